"""Tentative outputs on a real cluster: a node is killed, outputs go on without it, final ones replace them. And what is
refused."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.errors import BadInput
from holdfast.ids import NodeId, OperatorId, PartitionId
from holdfast.recovery.strategy import RecoveryStrategy
from holdfast.runtime import run_in_process
from holdfast.runtime.coordinator.outputs import name_sinks
from holdfast.runtime.io.sinks import VERSION_COLUMNS, MemorySink
from holdfast.runtime.program import Program
from holdfast.spark.pinned_jobs import executors_of
from holdfast.spark.run import SparkRun
from holdfast.spark.settings import Settings
from holdfast.spark.tentative import tentative_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast.spark.cluster import EmbeddedCluster

INCREMENTAL = RecoveryStrategy.INCREMENTAL


def application(place: Path | None = None, *, tentative: bool = True, sink: object = None) -> hf.Application:
    """Visits on four partitions, counted on two, put together on one."""
    app = hf.Application("web")
    visits = app.source("visits", schema="t double, page string", event_time="t", parallelism=4, cost=1.0)
    by_page = visits.key_by("page").window(hf.tumbling(1)).count(id="pages", parallelism=2, cost=1.0)
    kept = by_page.map(lambda rows: rows, schema=None, id="all", parallelism=1, cost=1.0)
    kept.output("all", tentative=tentative, sink=sink if place is None else hf.parquet(str(place)))
    return app


def batches(many: int) -> list[dict[str, pa.Table]]:
    return [
        {
            "visits": pa.table(
                {"t": [b + i / 100 for i in range(60)], "page": [f"p{(i * 7 + b) % 11}" for i in range(60)]}
            )
        }
        for b in range(many)
    ]


def until(holds: Callable[[], bool], run: SparkRun, what: str) -> None:
    deadline = time.monotonic() + 300
    while not holds():
        assert time.monotonic() < deadline, what
        run.coordinator.advance()


def victim_of(run: SparkRun, cluster: EmbeddedCluster) -> tuple[NodeId, str]:
    """Return a node with a source partition and without the output: as the run names it, and as the cluster does."""
    placement = run.coordinator.state.placement
    for name in sorted(set(placement.values())):
        here = {p for p, node in placement.items() if node == name}
        operators = [p.operator for p in here]
        if "visits" in operators and "all" not in operators and operators.count(OperatorId("pages")) < 2:
            host = name.rpartition("-")[0]
            (node,) = [one.id for one in cluster.nodes.values() if one.host == host]
            return name, node
    raise AssertionError(f"no node to kill in {placement}")


@pytest.fixture
def extra_node(spark: SparkSession, cluster: EmbeddedCluster) -> Iterator[None]:
    """A fourth node: the suite's cluster has three."""
    more_executors(spark, cluster)
    yield
    while len(cluster.nodes) > 3:
        cluster.kill_node(sorted(cluster.nodes)[-1])


def more_executors(spark: SparkSession, cluster: EmbeddedCluster) -> None:
    before = {one.id for one in executors_of(spark.sparkContext)}
    cluster.add_node()
    deadline = time.monotonic() + 300
    while not {one.id for one in executors_of(spark.sparkContext)} - before:
        assert time.monotonic() < deadline, "the node did not come"
        time.sleep(0.1)


@pytest.mark.cluster
@pytest.mark.usefixtures("extra_node")
def test_a_killed_nodes_query_goes_on_tentatively_and_is_corrected(
    spark: SparkSession, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    given = batches(14)
    place = tmp_path / "out"
    events: list[Any] = []
    # Room for two partitions on each node: with one of four gone, something waits until another one comes.
    settings = replace(Settings.read(spark), exchange="resident", node_capacity=2.5, node_costs="declared")
    run = SparkRun(
        application(place), spark, tmp_path / "run", settings=settings, checkpoint_every=4, nodes=4,
        emit=events.append,
    )  # fmt: skip
    for batch in given[:6]:
        run.log(batch)
        run.run()
    state = run.coordinator.state
    victim, node = victim_of(run, cluster)
    cluster.kill_node(node)
    until(lambda: victim not in state.nodes, run, "the loss was not noticed")
    query = PartitionId.parse("all[0]")

    def tentative() -> list[int]:
        return [one.fields["batch"] for one in events if one.kind == "published" and one.fields.get("tentative")]

    for number, batch in enumerate(given[6:10], 6):
        run.log(batch)
        until(lambda number=number: number in tentative(), run, f"batch {number} has no tentative output")  # type: ignore[misc]
    assert state.published[query] < 9, "the final output of batch 9 cannot be there"
    final = {str(row.asDict()) for row in hf.read(spark, place).collect()}
    shown = [row.asDict() for row in hf.read(spark, place, tentative=True).collect()]
    predicted = {one.fields["fidelity"] for one in events if one.kind == "tentative"}
    assert all(0.0 < one < 1.0 for one in predicted)
    marked = [row for row in shown if row["tentative"]]
    assert marked
    assert {row["fidelity"] for row in marked} <= predicted
    assert {row["revision"] for row in marked} == {0}
    own = [{name: row[name] for name in row if name not in VERSION_COLUMNS} for row in shown if not row["tentative"]]
    assert {str(row) for row in own} == final
    more_executors(spark, cluster)
    for batch in given[10:]:
        run.log(batch)
        run.run()
    run.log({}, last=True)
    run.run()
    until(lambda: not state.branches.at, run, "it is never corrected")
    rollbacks = run.rollbacks
    run.close()
    wanted = sorted(map(str, run_in_process(application(sink=MemorySink()), given).rows("all").to_pylist()))
    assert sorted(str(row.asDict()) for row in hf.read(spark, place).collect()) == wanted
    shown = [row.asDict() for row in hf.read(spark, place, tentative=True).collect()]
    assert not any(row["tentative"] for row in shown)
    assert {row["revision"] for row in shown} == {0, 1}
    assert len(shown) == len(wanted)
    assert rollbacks == 0
    corrected = [one.fields for one in events if one.kind == "corrected"]
    assert corrected[0]["since"] == 6
    assert max(one["through"] for one in corrected) >= 9


class TestWhatIsAsked:
    def of(self, **given: Any) -> Settings:
        return replace(Settings(), **given)

    def found(self, settings: Settings, app: hf.Application, **sinks: Any) -> set[str]:
        program = Program(app)
        queries, _ = tentative_of(settings, program, name_sinks(program, sinks), INCREMENTAL)
        return {str(query) for query in queries}

    def test_those_that_ask_by_default(self) -> None:
        assert self.found(Settings(), application(sink=MemorySink())) == {"all[0]"}
        assert self.found(Settings(), application(tentative=False, sink=MemorySink())) == set()

    def test_all_none_or_names(self) -> None:
        app = application(tentative=False, sink=MemorySink())
        assert self.found(self.of(tentative_outputs=("all",)), app) == {"all[0]"}
        assert self.found(self.of(tentative_outputs=("none",)), application(sink=MemorySink())) == set()
        with pytest.raises(BadInput, match=r"'nobody' is not an output"):
            self.found(self.of(tentative_outputs=("nobody",)), app)

    def test_all_leaves_out_what_cannot_be_corrected_with_a_line(self) -> None:
        program = Program(application(tentative=False, sink=hf.foreach_batch(lambda rows, key: None)))
        found, lines = tentative_of(self.of(tentative_outputs=("all",)), program, name_sinks(program, {}), INCREMENTAL)
        assert not found
        assert "no tentative outputs of all" in lines[0]

    @pytest.mark.parametrize(
        ("given", "sink", "words"),
        [
            ({}, hf.console(), "cannot correct"),
            ({}, hf.foreach_batch(lambda rows, key: None), "cannot correct"),
            ({}, hf.transactional(lambda key: False, lambda rows, key: None), "cannot correct"),
            ({"exchange": "shuffle"}, MemorySink(), "need tasks that stay"),
        ],
    )
    def test_bad_use_gets_one_line(self, given: dict[str, Any], sink: object, words: str) -> None:
        with pytest.raises(BadInput, match=words) as refused:
            self.found(self.of(**given), application(sink=sink))
        assert "\n" not in str(refused.value)

    @pytest.mark.parametrize("name", ["revision", "holdfast_query"])
    def test_columns_that_say_which_version_rows_are_cannot_be_its_own(self, name: str) -> None:
        app = hf.Application("web")
        app.source("visits", schema=f"t double, {name} string").filter(lambda rows: rows["t"], id="all").output(
            tentative=True
        )
        with pytest.raises(BadInput, match=f"a column '{name}' of its own"):
            self.found(Settings(), app)

    def test_source_replay_leaves_nothing(self) -> None:
        program = Program(application(sink=MemorySink()))
        with pytest.raises(BadInput, match="source-replay"):
            tentative_of(Settings(), program, name_sinks(program, {}), RecoveryStrategy.SOURCE_REPLAY)
