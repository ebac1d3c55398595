"""Replica plans that follow measured rates, under workers that stay, without Spark; and when they are looked at."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import holdfast as hf
from holdfast.ids import NodeId, OperatorId, PartitionId
from holdfast.planning.replicas.adaptation import AdaptationSettings
from holdfast.planning.replicas.budget import ReplicaBudget
from holdfast.planning.replicas.following import Planned, ReplicaRules
from holdfast.recovery.copies import level
from holdfast.recovery.events import ReplicasPlanned
from holdfast.recovery.strategy import RecoverySettings
from holdfast.runtime import run_in_process
from holdfast.runtime.coordinator import adapting
from holdfast.runtime.coordinator.adapting import FollowingPlans
from holdfast.runtime.coordinator.coordinator import Coordinator
from holdfast.runtime.coordinator.event_log import Observation
from holdfast.runtime.coordinator.pacing import CycleSettings
from holdfast.runtime.coordinator.progress import Progress
from holdfast.runtime.io.batch_log import BatchLog
from holdfast.runtime.io.sinks import MemorySink
from holdfast.runtime.io.source_pieces import cut_rows
from holdfast.runtime.program import Program
from holdfast.runtime.state.snapshot_store import MemorySnapshotStore
from holdfast.runtime.state.store import MemoryStore
from holdfast.storage.memory import MemoryStorage
from runtime.resident_loop import ResidentLoop

LANES = 2


def application() -> hf.Application:
    """Two lanes, each filtered apart, and one operator that takes both."""
    app = hf.Application("lanes")
    rows = app.source("rows", schema={"lane": "string", "n": "int64"}, key="lane", parallelism=LANES, rate=100)
    kept = rows.filter(pc.field("n") >= 0, id="kept", parallelism=LANES)
    kept.map(lambda table: table, schema={"lane": "string", "n": "int64"}, id="all", parallelism=1).output("all")
    return app


def lane(index: int) -> str:
    """A key of a source partition."""
    program = Program(application())
    source = program.sources[OperatorId("rows")]
    for number in range(100):
        table = pa.table({"lane": [f"key-{number}"], "n": [1]})
        pieces, _ = cut_rows(source, table)
        if (piece := pieces[index]) is not None and piece.num_rows:
            return f"key-{number}"
    raise AssertionError("no key of this partition")


def rows(busy: int, count: int) -> pa.Table:
    """Most rows of one lane, some of the other."""
    keys = [lane(busy)] * count + [lane(1 - busy)] * (count // 10)
    return pa.table({"lane": keys, "n": list(range(len(keys)))})


@dataclass
class Clock:
    """Time that goes on by itself, and is moved on by tests."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now + time.monotonic()


def tree(index: int) -> set[PartitionId]:
    return {PartitionId(OperatorId(name), 0 if name == "all" else index) for name in ("rows", "kept", "all")}


@dataclass
class Running:
    """The application with replicas of one lane's tree, on three nodes."""

    plans: FollowingPlans | None = None
    clock: Clock = field(default_factory=Clock)
    seen: list[Observation] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.program = Program(application())
        progress = Progress(MemoryStorage(), "lanes")
        self.log = BatchLog(self.program.sources, self.program.name, claim=progress.claim, now=self.clock)
        self.backend = ResidentLoop(self.program, self.log, MemorySnapshotStore(), lambda node: MemoryStore())
        self.backend.add_nodes({NodeId(f"n{number}"): 1e9 for number in range(3)})
        self.sink = MemorySink()
        first = tuple(sorted(tree(0)))
        rules = ReplicaRules(ReplicaBudget(count=3), settings=AdaptationSettings(patience=2))
        self.plans = FollowingPlans(rules, Planned(first), seconds=20.0, clock=self.clock)
        self.coordinator = Coordinator(
            self.program,
            self.backend,
            self.log,
            {p.operator: self.sink for p in self.program.outputs},
            lambda operator, feed: MemorySink(),
            progress,
            recovery=RecoverySettings(replicas=first, tentative=frozenset(self.program.outputs)),
            pace=CycleSettings(checkpoint_batches=4),
            replica_plans=self.plans,
            clock=self.clock,
            now=self.clock,
            emit=self.seen.append,
        )

    def feed(self, table: pa.Table) -> None:
        self.clock.now += 10.0
        self.log.append({"rows": table})
        self.coordinator.run()
        for _ in range(8):
            self.coordinator.step()

    def changes(self) -> list[Observation]:
        return [one for one in self.seen if one.kind == "replicas-changed"]


def test_replicas_move_to_the_lane_that_has_become_busy() -> None:
    running = Running()
    fed = []
    for busy, count in ((0, 12), (1, 40)):
        for _ in range(count):
            fed.append(rows(busy, 60))
            running.feed(fed[-1])
        state = running.coordinator.state
        if not busy:
            assert running.changes() == [], "the plan of the start is right"
    assert len(running.changes()) == 1, "one change, and none back and forth"
    assert set(state.copies.replicas) == tree(1)
    assert set(level(state)) == tree(1)
    assert state.copies.retiring == {}
    done = run_in_process(application(), [{"rows": one} for one in fed], close=False).rows("all")
    assert sorted(map(str, running.sink.rows().to_pylist())) == sorted(map(str, done.to_pylist()))


def test_rates_of_predictions_are_those_before_an_outage() -> None:
    running = Running()
    for _ in range(8):
        running.feed(rows(0, 60))
    rates = running.coordinator.state.branches.rates
    assert rates is not None
    source = rates.operator("rows")
    assert source.weights is not None
    assert source.weights[0] > 5 * source.weights[1]
    running.backend.lose_nodes(*(NodeId(f"n{number}") for number in range(3)))
    running.coordinator.step()
    running.clock.now += 100.0
    running.coordinator.step()
    assert len(running.coordinator.state.lost) == len(running.program.partitions)
    assert running.coordinator.state.branches.rates is rates


def test_a_plan_that_another_has_changed_is_followed_from_there_and_errors_change_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines: list[str] = []
    clock = Clock()
    topology = Program(application()).topology
    rules = ReplicaRules(ReplicaBudget(count=3), settings=AdaptationSettings(patience=1))
    plans = FollowingPlans(rules, Planned(tuple(tree(0))), seconds=5.0, clock=clock, log=lines.append)
    assert not plans.due(0.0)
    assert plans.due(6.0)
    plans.observe(6.0, topology, ())
    assert not plans.due(20.0), "an answer is on its way"
    found = plans.decided()
    assert isinstance(found, ReplicasPlanned)
    assert set(found.replicas) in (tree(0), tree(1))
    assert plans.decided() is None
    monkeypatch.setattr(adapting, "follow", lambda *given, **more: 1 // 0)
    plans.observe(12.0, topology, found.replicas)
    assert plans.decided() is None
    assert lines
    assert "the replica plan stays as it is" in lines[0]
    plans.close()


def test_a_pool_without_a_thread_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    topology = Program(application()).topology
    rules = ReplicaRules(ReplicaBudget(count=3), settings=AdaptationSettings(patience=1))
    first = Planned(tuple(tree(0)))
    plans = FollowingPlans(rules, first, seconds=5.0, clock=Clock(), beside=True, log=lines.append)
    assert plans._pool is not None

    def no_thread(work: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(plans._pool, "submit", no_thread)
    assert not plans.due(0.0)
    plans.observe(6.0, topology, ())
    assert plans.decided() is None
    assert lines == ["the replica plan stays as it is: can't start new thread"]
    assert plans.due(12.0), "the next observation is made"
    plans.close()
