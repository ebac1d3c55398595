"""Replicas and moves on a real cluster: queries go on where a node is killed or leaves. And what is refused."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import holdfast as hf
from holdfast.errors import BadInput
from holdfast.examples import EXAMPLES
from holdfast.ids import NodeId, PartitionId
from holdfast.planning.replicas.budget import ReplicaBudget
from holdfast.recovery.copies import level
from holdfast.recovery.strategy import RecoveryStrategy
from holdfast.runtime import run_in_process
from holdfast.runtime.program import Program
from holdfast.spark.pinned_jobs import executors_of
from holdfast.spark.replicas import ChosenReplicas, PlannedReplicas, choose_replicas
from holdfast.spark.run import SparkRun
from holdfast.spark.settings import Settings
from holdfast.topology import Topology, smallest_mc_tree_size

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast.spark.cluster import EmbeddedCluster

INCREMENTAL = RecoveryStrategy.INCREMENTAL


def until(holds: Any, run: SparkRun, what: str) -> None:
    """Let the run go on until something holds."""
    deadline = time.monotonic() + 300
    while not holds():
        assert time.monotonic() < deadline, what
        run.coordinator.advance()


def with_partitions(run: SparkRun, cluster: EmbeddedCluster) -> tuple[NodeId, NodeId]:
    """Return a node that has partitions, as the run and as the cluster names it."""
    name = sorted(run.coordinator.state.placement.values())[-1]
    host = name.rpartition("-")[0]
    (node,) = [one.id for one in cluster.nodes.values() if one.host == host]
    return name, node


@pytest.fixture
def extra_node(spark: SparkSession, cluster: EmbeddedCluster) -> Iterator[None]:
    """A fourth node, for tests that take one away: the suite's cluster has three."""
    before = {one.id for one in executors_of(spark.sparkContext)}
    node = cluster.add_node()
    deadline = time.monotonic() + 300
    while not {one.id for one in executors_of(spark.sparkContext)} - before:
        assert time.monotonic() < deadline, "the fourth node did not come"
        time.sleep(0.1)
    yield
    if len(cluster.nodes) > 3:
        cluster.kill_node(node.id)


@pytest.mark.cluster
@pytest.mark.usefixtures("extra_node")
def test_the_queries_of_a_killed_node_go_on_by_replicas(
    spark: SparkSession, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    """Nothing is restored, nothing rolls back, every batch is published once and in order, and the rows are right."""
    example = EXAMPLES["hashtags"]
    given = list(example.batches(5, 14, 120))
    events: list[Any] = []
    settings = replace(Settings.read(spark), exchange="resident", replicas_budget="1.0", node_capacity=1e6)
    run = SparkRun(
        example.application(), spark, tmp_path / "run", settings=settings, checkpoint_every=4, nodes=4,
        emit=events.append,
    )  # fmt: skip
    for batch in given[:6]:
        run.log(batch)
        run.run()
    state = run.coordinator.state
    everybody = set(run.program.partitions)
    until(lambda: set(level(state)) == everybody, run, "the replicas are not level")
    victim, node = with_partitions(run, cluster)
    here = {p for p, at in state.placement.items() if at == victim}
    before = len(events)
    cluster.kill_node(node)
    until(lambda: victim not in state.nodes, run, "the loss was not noticed")
    for batch in given[6:]:
        run.log(batch)
        run.run()
    run.log({}, last=True)
    run.run()
    found = {name: sorted(map(str, run.rows(name).to_pylist())) for name in run.program.output_names.values()}
    rollbacks = run.rollbacks
    run.close()
    later = events[before:]
    assert {one.fields["partition"] for one in later if one.kind == "promoted"} == {str(p) for p in here}
    assert not [one for one in later if one.kind in ("restored", "rolled-back")]
    assert rollbacks == 0
    published: dict[str, list[int]] = {}
    for one in events:
        if one.kind == "published":
            published.setdefault(one.fields["partition"], []).append(one.fields["batch"])
    assert all(batches == list(range(len(given) + 1)) for batches in published.values()), "no batch is left out"
    wanted = run_in_process(example.application(), given)
    assert found == {name: sorted(map(str, wanted.rows(name).to_pylist())) for name in found}


@pytest.mark.cluster
@pytest.mark.usefixtures("extra_node")
def test_a_decommissioned_executor_is_evacuated_and_its_task_ends(
    spark: SparkSession, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    """Spark says that an executor will go: its partitions move by copies, nothing rolls back, and its job ends."""
    example = EXAMPLES["hashtags"]
    given = list(example.batches(5, 16, 60))
    events: list[Any] = []
    settings = replace(Settings.read(spark), exchange="resident", node_capacity=1e6)
    run = SparkRun(
        example.application(), spark, tmp_path / "run", settings=settings, checkpoint_every=2, nodes=4,
        emit=events.append,
    )  # fmt: skip
    for batch in given[:3]:
        run.log(batch)
        run.run()
    state = run.coordinator.state
    leaving, node = with_partitions(run, cluster)
    cluster.decommission_node(node)
    until(lambda: leaving in state.copies.leaving, run, "nobody heard that the executor will go")
    left = iter(given[3:])

    def evacuated() -> bool:
        if (batch := next(left, None)) is not None:
            run.log(batch)
            run.run()
        return leaving not in state.placement.values()

    until(evacuated, run, "the node is not evacuated")
    until(lambda: leaving not in state.nodes, run, "its task does not end")
    for batch in left:
        run.log(batch)
        run.run()
    run.log({}, last=True)
    run.run()
    found = {name: sorted(map(str, run.rows(name).to_pylist())) for name in run.program.output_names.values()}
    rollbacks = run.rollbacks
    run.close()
    cluster.kill_node(node)
    assert {one.fields["why"] for one in events if one.kind == "promoted"} == {"moved"}
    assert [one.fields["nodes"] for one in events if one.kind == "node-evacuated"] == [[leaving]]
    assert rollbacks == 0
    wanted = run_in_process(example.application(), given)
    assert found == {name: sorted(map(str, wanted.rows(name).to_pylist())) for name in found}


def nondeterministic() -> Program:
    """A program with an operator that is not deterministic, and one behind it."""

    def step(state: pa.Table, inputs: tuple[pa.Table, ...], watermark: float) -> tuple[pa.Table, pa.Table]:
        return state, inputs[0]

    app = hf.Application("drawing")
    words = app.source("words", schema={"n": "int64"})
    drawn = words.apply(step, state={"n": "int64"}, schema={"n": "int64"}, deterministic=False, id="drawn")
    drawn.map(lambda rows: rows, schema={"n": "int64"}, id="after").output()
    return Program(app)


def of(**given: Any) -> Settings:
    return replace(Settings(), **given)


class TestWhatIsAsked:
    program = Program(EXAMPLES["hashtags"].application())

    def test_nothing_by_default(self) -> None:
        assert choose_replicas(Settings(), self.program, INCREMENTAL) == ChosenReplicas()

    @pytest.mark.parametrize(
        ("text", "budget"),
        [("3", ReplicaBudget(count=3)), ("0.5", ReplicaBudget(share=0.5)), ("1.5 cores", ReplicaBudget(cores=1.5))],
    )
    def test_budgets_are_counts_shares_or_cores(self, text: str, budget: ReplicaBudget) -> None:
        assert ReplicaBudget.parse(text) == budget

    @pytest.mark.parametrize("text", ["-1", "1.5", "many", "-2 cores", ""])
    def test_other_budgets_are_refused(self, text: str) -> None:
        with pytest.raises(BadInput, match=r"spark\.holdfast\.replicas\.budget"):
            Settings.of({"spark.holdfast.replicas.budget": text})

    def test_all_partitions_and_a_line_about_it(self) -> None:
        chosen = choose_replicas(of(replicas_budget="1.0"), self.program, INCREMENTAL)
        found, lines = chosen.replicas, chosen.lines
        assert set(found) == set(self.program.partitions)
        assert "fidelity of 1.00" in lines[-1]

    def test_cores_bound_the_costs(self) -> None:
        topology = self.program.topology
        cores = float(topology.cost.sum()) * 0.6
        found = choose_replicas(of(replicas_budget=f"{cores} cores"), self.program, INCREMENTAL).replicas
        assert 0 < topology.cost[topology.indices(found)].sum() <= cores

    def test_names_come_one_by_one_or_by_operator(self) -> None:
        first = self.program.partitions[0]
        found = choose_replicas(of(replicas_partitions=(str(first.operator),)), self.program, INCREMENTAL).replicas
        assert set(found) == {p for p in self.program.partitions if p.operator == first.operator}
        found = choose_replicas(of(replicas_partitions=(str(first),)), self.program, INCREMENTAL).replicas
        assert found == (first,)

    @pytest.mark.parametrize(
        ("given", "words"),
        [
            ({"replicas_budget": "1"}, "keeps no output alive.*smallest tree"),
            ({"replicas_partitions": ("nobody",)}, "no partition or operator nobody"),
            ({"replicas_budget": "1.0", "exchange": "shuffle"}, "replicas need tasks that stay"),
        ],
    )
    def test_bad_use_gets_one_line(self, given: dict[str, Any], words: str) -> None:
        with pytest.raises(BadInput, match=words) as refused:
            choose_replicas(of(**given), self.program, INCREMENTAL)
        assert "\n" not in str(refused.value)

    def test_source_replay_has_no_use_for_them(self) -> None:
        with pytest.raises(BadInput, match="of no use"):
            choose_replicas(of(replicas_budget="1.0"), self.program, RecoveryStrategy.SOURCE_REPLAY)

    def test_what_is_not_deterministic_is_refused_by_name_and_left_out_of_plans(self) -> None:
        program = nondeterministic()
        with pytest.raises(BadInput, match=r"drawn\[0\] is not deterministic"):
            choose_replicas(of(replicas_partitions=("drawn",)), program, INCREMENTAL)
        chosen = choose_replicas(of(replicas_budget="1.0"), program, INCREMENTAL)
        lines = chosen.lines
        assert [str(p) for p in chosen.replicas] == ["words[0]"]
        assert "no replica of" in lines[0]
        assert "after[0]" in lines[0]

    def test_a_plan_with_a_margin_that_would_flap_is_refused(self) -> None:
        with pytest.raises(BadInput, match=r"replicas\.margin.*leave no room between them"):
            choose_replicas(of(replicas_budget="1.0", replicas_margin=0.2), self.program, INCREMENTAL)

    def test_a_budget_follows_rates_and_names_do_not(self) -> None:
        budget = choose_replicas(of(replicas_budget="0.5"), self.program, INCREMENTAL)
        assert budget.rules is not None
        assert budget.rules.budget == ReplicaBudget(share=0.5)
        still = choose_replicas(of(replicas_budget="0.5", replicas_adapt_seconds=0.0), self.program, INCREMENTAL)
        assert still.replicas == budget.replicas
        assert still.following(Settings(), log=print) is None
        first = self.program.partitions[0]
        assert choose_replicas(of(replicas_partitions=(str(first),)), self.program, INCREMENTAL).rules is None

    def test_the_replicas_of_a_joint_plan_run_and_those_of_a_budget_go_before_them(self) -> None:
        every = tuple(self.program.partitions)
        plan = PlannedReplicas(every, every[:1])
        found = choose_replicas(Settings(), self.program, INCREMENTAL, plan=plan)
        assert set(found.replicas) == set(every)
        assert found.rules is not None
        assert found.rules.fixed == every[:1]
        assert found.rules.budget == ReplicaBudget(count=len(every) - 1)
        by_hand = choose_replicas(of(replicas_budget="0.5"), self.program, INCREMENTAL, plan=plan)
        assert len(by_hand.replicas) < len(every)
        with pytest.raises(BadInput, match=r"plan.*replicas need tasks that stay"):
            choose_replicas(of(exchange="shuffle"), self.program, INCREMENTAL, plan=plan)

    def test_a_start_plans_by_the_rates_that_were_measured_before(self) -> None:
        app = hf.Application("visits")
        visits = app.source("visits", schema="ts double, page string", event_time="ts", parallelism=4)
        visits.filter(pc.field("page") == "a").output("pages")
        program = Program(app)
        topology = program.topology
        (source,) = [one for one in topology.operators if one.is_source]
        for busy in range(source.parallelism):
            weights = tuple(100.0 if n == busy else 1.0 for n in range(source.parallelism))
            measured = Topology(
                topology.name, [replace(one, weights=weights) if one is source else one for one in topology.operators]
            )
            tree = smallest_mc_tree_size(topology)
            found = choose_replicas(of(replicas_budget=f"{tree}"), program, INCREMENTAL, measured=measured)
            assert PartitionId(source.id, busy) in found.replicas
            assert "by the rates measured before" in found.lines[-1]
