"""Applications on a real cluster: the same outputs as in one process, whatever fails."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

import holdfast as hf
from holdfast import Application, sliding, tumbling
from holdfast.errors import BadInput
from holdfast.ids import Epoch, OperatorId
from holdfast.runtime import MemorySink, OutputKey, ParquetSink, run_in_process
from holdfast.runtime.coordinator.outputs import stagers_of
from holdfast.runtime.io.parquet_sink import ParquetStager
from holdfast.runtime.io.sinks import StagedRows
from holdfast.runtime.messages import OperatorFailed
from holdfast.runtime.program import Program
from holdfast.spark import run as run_module
from holdfast.spark.pinned_jobs import executors_of
from holdfast.spark.requirements import check_requirements
from holdfast.spark.run import SparkRun
from holdfast.spark.settings import Settings
from runtime.backend_contract import check_backends

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast.spark.cluster import EmbeddedCluster

pytestmark = pytest.mark.cluster

OUTPUTS = ("speeds", "reports", "jams")


def traffic() -> Application:
    app = Application("traffic")
    window = sliding("4 seconds", every="1 second")
    columns = {"segment": "string", "speed": "double", "at": "timestamp"}
    locations = app.source("locations", schema=columns, event_time="at", lateness="1 second", parallelism=2)
    incidents = app.source("incidents", schema=columns, event_time="at", lateness="1 second")
    busy = locations.filter(lambda rows: rows["speed"].is_valid(), id="known")
    speeds = busy.key_by("segment").window(window).agg(id="speeds", parallelism=4, speed=hf.avg("speed"))
    reports = incidents.key_by("segment").window(window).count(id="reports", parallelism=2)
    speeds.output(priority=[5, 1, 1, 1])
    reports.output()
    speeds.join(reports, on="segment", window=tumbling("1 second"), id="jams", parallelism=2).output()
    return app


def batches(count: int, seed: int = 1) -> Iterator[dict[str, pa.Table]]:
    """Rows out of order, some late, some without a speed, unicode keys, every fifth batch empty."""
    draw = np.random.default_rng(seed)
    for number in range(count):
        made = {}
        for name, many in (("locations", 400), ("incidents", 40)):
            rows = 0 if number % 5 == 3 else many
            at = number * 500_000 + draw.integers(-1_500_000, 500_000, rows)
            speed = np.where(draw.random(rows) < 0.1, np.nan, np.round(draw.uniform(0, 120, rows), 1))
            made[name] = pa.table(
                {
                    "segment": pa.array([f"straße-{int(s)}" for s in draw.zipf(1.5, rows) % 40], pa.string()),
                    "speed": pa.array(speed, pa.float64(), from_pandas=True),
                    "at": pa.array(np.maximum(at, 0), pa.timestamp("us")),
                }
            )
        yield made


def as_rows(table: pa.Table) -> list[dict[str, object]]:
    return sorted(table.to_pylist(), key=str)


@pytest.fixture(scope="module")
def expected() -> dict[str, list[dict[str, object]]]:
    done = run_in_process(traffic(), batches(20))
    found = {name: as_rows(done.rows(name)) for name in OUTPUTS}
    assert all(found.values())
    return found


@pytest.mark.parametrize("exchange", ["resident", "shuffle"])
def test_outputs_equal_those_of_one_process(
    unhurried: SparkSession,
    tmp_path: Path,
    expected: dict[str, list[dict[str, object]]],
    exchange: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = check_backends(run_module, monkeypatch)
    chosen = replace(Settings.read(unhurried), exchange=exchange)
    run = SparkRun(traffic(), unhurried, tmp_path / "run", checkpoint_every=7, settings=chosen)
    for batch in batches(20):
        run.log(batch)
    run.log({}, last=True)
    run.run()
    assert run.rollbacks == 0
    for name in OUTPUTS:
        assert as_rows(run.rows(name)) == expected[name]
    (checked,) = made
    checked.check_over()
    run.close()


@pytest.mark.parametrize("exchange", ["resident", "shuffle"])
def test_a_killed_node_changes_nothing(
    spark: SparkSession,
    cluster: EmbeddedCluster,
    tmp_path: Path,
    expected: dict[str, list[dict[str, object]]],
    exchange: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = check_backends(run_module, monkeypatch)
    node = cluster.add_node()
    sinks = {name: str(tmp_path / "out" / name) for name in OUTPUTS}
    chosen = replace(Settings.read(spark), exchange=exchange)
    run = SparkRun(traffic(), spark, tmp_path / "run", sinks=sinks, checkpoint_every=5, settings=chosen)
    # The new node must take part before it dies.
    deadline = time.monotonic() + 300
    while node.host not in {one.host for one in executors_of(spark.sparkContext)}:
        assert time.monotonic() < deadline, "the new node did not come"
        time.sleep(0.1)
    for number, batch in enumerate(batches(20)):
        run.log(batch)
        if number % 4 == 3:
            run.run()
        if number == 11:
            cluster.kill_node(node.id)
    run.log({}, last=True)
    run.run()
    assert run.coordinator.state.epoch > 1, "it went on in another epoch"
    for name in OUTPUTS:
        assert as_rows(run.rows(name)) == expected[name]
    (checked,) = made
    checked.check_over()
    run.close()


@pytest.mark.parametrize("shared", [True, False])
def test_rows_of_files_are_written_by_nodes_where_these_reach_the_directory(
    shared: bool,
    unhurried: SparkSession,
    tmp_path: Path,
    expected: dict[str, list[dict[str, object]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sinks = {name: str(tmp_path / "out" / name) for name in OUTPUTS}
    by_nodes: list[OutputKey] = []
    told: list[str] = []
    adopt, stager = ParquetSink.adopt, ParquetSink.stager

    def counted(self: ParquetSink, key: OutputKey, staged: StagedRows, epoch: Epoch) -> bool:
        by_nodes.append(key)
        return adopt(self, key, staged, epoch)

    def elsewhere(self: ParquetSink, start: str) -> ParquetStager:
        found = stager(self, start)
        assert found is not None
        return ParquetStager(f"{found.url}-elsewhere", found.start)

    monkeypatch.setattr(ParquetSink, "adopt", counted)
    if not shared:
        monkeypatch.setattr(ParquetSink, "stager", elsewhere)
    run = SparkRun(traffic(), unhurried, tmp_path / "run", sinks=sinks, checkpoint_every=7, log=told.append)
    for batch in batches(20):
        run.log(batch)
    run.log({}, last=True)
    run.run()
    run.close()
    said = [line.partition(":")[0] for line in told if "nodes cannot write its files" in line]
    assert sorted(said) == ([] if shared else sorted(OUTPUTS)), "each is told of once"
    for name in OUTPUTS:
        assert as_rows(run.rows(name)) == expected[name]
        assert not list(Path(sinks[name]).glob("_holdfast/starts/*")), "nothing is left behind"
    assert {key.query.operator for key in by_nodes} == (set(OUTPUTS) if shared else set())


def test_another_driver_goes_on_where_the_first_stood(
    spark: SparkSession, tmp_path: Path, expected: dict[str, list[dict[str, object]]]
) -> None:
    sinks = {name: str(tmp_path / "out" / name) for name in OUTPUTS}
    given = list(batches(20))
    first = SparkRun(traffic(), spark, tmp_path / "run", sinks=sinks, checkpoint_every=4)
    for batch in given[:13]:
        first.log(batch)
    first.run()
    first.close()
    second = SparkRun(traffic(), spark, tmp_path / "run", sinks=sinks, checkpoint_every=4)
    assert second.frontier < second.logged == 12, "some batches come again after the checkpoint"
    for batch in given[13:]:
        second.log(batch)
    second.log({}, last=True)
    second.run()
    for name in OUTPUTS:
        assert as_rows(second.rows(name)) == expected[name]
        read = spark.read.parquet(sinks[name]).toArrow()
        assert read.num_rows == len(expected[name]), "ordinary Spark readers see each row once"
    second.close()


def uncertain() -> Application:
    """Each row gets a number nobody can foretell: a replay gives others."""
    app = Application("uncertain")
    numbers = app.source("s", schema={"a": "int64"})

    def draw(state: pa.Table, inputs: tuple[pa.Table, ...], watermark: float) -> tuple[pa.Table, pa.Table]:
        import os

        made = inputs[0].append_column("draw", pa.array([os.urandom(8).hex() for _ in range(inputs[0].num_rows)]))
        return pa.concat_tables([state, made]), made

    columns = {"a": "int64", "draw": "string"}
    numbers.apply(draw, state=columns, schema=columns, deterministic=False, id="draws").output()
    return app


def until_safe(run: SparkRun) -> None:
    """Checkpoints are saved in the background: go on until the marked batch that everybody has passed is safe."""
    deadline = time.monotonic() + 300
    publishing = run.coordinator.outputs.publishing
    while run.cycle(0.1) or publishing.is_at_work or publishing.has_news:
        assert time.monotonic() < deadline, "the checkpoint did not become safe, or its outputs are not out"


def test_what_is_not_certain_waits_for_its_checkpoint_and_comes_out_once(
    unhurried: SparkSession, tmp_path: Path
) -> None:
    place, sinks = tmp_path / "run", {"draws": str(tmp_path / "out")}
    first = SparkRun(uncertain(), unhurried, place, sinks=sinks, checkpoint_every=3)
    for number in range(5):
        first.log({"s": pa.table({"a": [number]})})
    first.run()
    until_safe(first)
    published = first.rows("draws").to_pylist()
    assert [row["a"] for row in published] == [0, 1, 2], "batches 3 and 4 wait"
    first.close()
    # An epoch that died while it took the checkpoint of batch 5: what it left must not be mixed with another's.
    left = place / "checkpoints" / first.id / "draws-0" / "c1.0-5.1-o3"
    left.write_bytes(b"half a checkpoint")
    second = SparkRun(uncertain(), unhurried, place, sinks=sinks, checkpoint_every=3)
    second.log({"s": pa.table({"a": [5]})})
    second.run()
    until_safe(second)
    rows = second.rows("draws").to_pylist()
    assert [row["a"] for row in rows] == [0, 1, 2, 3, 4, 5]
    assert rows[:3] == published, "what was out stays as it was"
    assert not left.exists(), "what an earlier driver had not forgotten is swept away"
    second.close()


def test_an_operator_that_raises_is_named(spark: SparkSession, tmp_path: Path) -> None:
    app = Application("broken")
    source = app.source("s", schema={"a": "int64"}, parallelism=2)

    def divide(rows: pa.Table) -> pa.Table:
        if 0 in rows["a"].to_pylist():
            raise ZeroDivisionError("cannot divide")
        return rows

    source.map(divide, id="divide", schema={"a": "int64"}).output()
    run = SparkRun(app, spark, tmp_path / "run")
    run.log({"s": pa.table({"a": [1, 2, 3]})})
    run.run()
    run.log({"s": pa.table({"a": [4, 0]})})
    with pytest.raises(OperatorFailed, match="cannot divide") as caught:
        run.run()
    assert "divide[" in str(caught.value)
    assert "batch 1" in str(caught.value)
    assert sorted(run.rows("divide")["a"].to_pylist())[:3] == [1, 2, 3], "what came before is out"
    run.close()


def test_what_cannot_run_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    app = Application("other")
    app.source("s", schema={"a": "int64"}).output()
    SparkRun(app, spark, tmp_path / "run").close()
    with pytest.raises(BadInput, match="this is a run of application 'other', not of 'traffic'"):
        SparkRun(traffic(), spark, tmp_path / "run")
    with pytest.raises(BadInput, match="Connect"):
        check_requirements(object())
    with pytest.raises(BadInput, match="not an output"):
        SparkRun(app, spark, tmp_path / "run", sinks={"t": None})
    holds = Application("holds")
    session = spark
    holds.source("s", schema={"a": "int64"}).map(session.createDataFrame).output()
    with pytest.raises(BadInput, match="cannot be sent"):
        SparkRun(holds, spark, tmp_path / "held")
    assert not (tmp_path / "held" / "progress").exists(), "a start that is refused takes no claim"


def test_a_sink_with_a_publish_of_its_own_gets_its_rows(tmp_path: Path) -> None:
    class Masked(ParquetSink):
        def publish(self, key: OutputKey, rows: pa.Table, epoch: Epoch) -> bool:
            return super().publish(key, rows.drop_columns(["speed"]), epoch)

    program, speeds = Program(traffic()), OperatorId("speeds")
    assert set(stagers_of(program, {speeds: ParquetSink(tmp_path / "a")}, "start")) == {speeds}
    own = stagers_of(program, {speeds: Masked(tmp_path / "b")}, "start")
    assert own == {}, "its own publish would be passed over"
    assert stagers_of(program, {speeds: MemorySink()}, "start") == {}
    random = Program(uncertain())
    waiting = stagers_of(random, {random.outputs[0].operator: ParquetSink(tmp_path / "c")}, "start")
    assert waiting == {}, "its rows wait for a checkpoint"


def test_settings_are_those_of_the_context_not_what_a_session_was_asked_for_too_late() -> None:
    asked = SimpleNamespace(
        version="4.3.0",
        conf={"spark.speculation": "false"},
        sparkContext=SimpleNamespace(
            getConf=lambda: SimpleNamespace(
                getAll=lambda: [("spark.master", "spark://127.0.0.1:7077"), ("spark.speculation", "true")]
            )
        ),
    )
    with pytest.raises(BadInput, match=r"spark\.speculation: true does not do"):
        check_requirements(asked)
