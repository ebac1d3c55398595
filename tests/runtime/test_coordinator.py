"""The driver's loop in one process: what it does when the store says no, when nodes are short, when a sink fails."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from holdfast import Application, tumbling
from holdfast.errors import CheckFailed
from holdfast.examples.registry import EXAMPLES
from holdfast.ids import BatchId, Epoch, NodeId, OperatorId, PartitionId
from holdfast.recovery.checkpoints import NOTHING
from holdfast.recovery.effects import Effect
from holdfast.recovery.events import Event, PartitionsReported
from holdfast.recovery.strategy import RecoverySettings
from holdfast.runtime import run_in_process
from holdfast.runtime.blocks import SINK, Block, Edge, Header
from holdfast.runtime.coordinator.coordinator import Coordinator
from holdfast.runtime.coordinator.event_log import Observation
from holdfast.runtime.coordinator.outputs import Outputs
from holdfast.runtime.coordinator.pacing import CycleSettings
from holdfast.runtime.coordinator.progress import Progress, last_driver
from holdfast.runtime.in_process import LoopBackend
from holdfast.runtime.io.batch_log import BatchLog
from holdfast.runtime.io.sinks import MemorySink, OutputKey, Sink
from holdfast.runtime.messages import DesiredState, NodeReport, OperatorFailed, Refused
from holdfast.runtime.program import Program
from holdfast.runtime.state.snapshot_store import Answered, MemorySnapshotStore, SaveAnswer
from holdfast.runtime.state.store import MemoryStore, StaleEpoch
from holdfast.storage.memory import MemoryStorage

EXAMPLE = EXAMPLES["traffic"]
GIVEN = list(EXAMPLE.batches(1, 16, 60))


class StubbornSnapshotStore(MemorySnapshotStore):
    """Saves nothing while it has too few peers."""

    short = True

    def saved(self, name: str) -> SaveAnswer | None:
        return Answered("1 peer answers, 2 are needed") if self.short else super().saved(name)


@dataclass
class Bench:
    """One run in one process, with everything that it said."""

    snapshot_store: MemorySnapshotStore = field(default_factory=MemorySnapshotStore)
    recovery: RecoverySettings = field(default_factory=RecoverySettings)
    capacity: float = 100.0
    sink: Mapping[str, Sink] = field(default_factory=dict)
    application: Callable[[], Application] = EXAMPLE.application
    late: Sink = field(default_factory=MemorySink)
    storage: MemoryStorage = field(default_factory=MemoryStorage)
    pace: CycleSettings = field(default_factory=lambda: CycleSettings(checkpoint_batches=3, wait_seconds=0.5))
    now: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self.program = Program(self.application())
        progress = Progress(self.storage, self.program.name)
        self.log = BatchLog(self.program.sources, self.program.name, claim=progress.claim)
        self.sinks: dict[str, Sink] = {p.operator: MemorySink() for p in self.program.outputs} | dict(self.sink)
        self.told: list[str] = []
        self.seen: list[Observation] = []
        self.backend = LoopBackend(self.program, self.log, self.snapshot_store, lambda node: MemoryStore())
        self.backend.add_nodes({NodeId(f"n{number}"): self.capacity for number in range(4)})
        self.coordinator = Coordinator(
            self.program,
            self.backend,
            self.log,
            self.sinks,  # type: ignore[arg-type]
            lambda operator, feed: self.late,
            progress,
            recovery=self.recovery,
            pace=self.pace,
            now=self.now,
            log=self.told.append,
            emit=self.seen.append,
        )

    def feed(self, batches: list[Mapping[str, pa.Table]]) -> None:
        for batch in batches:
            self.log.append(batch)
            self.coordinator.run()

    def check(self) -> None:
        expected = run_in_process(EXAMPLE.application(), GIVEN, close=False)
        for name, sink in self.sinks.items():
            assert isinstance(sink, MemorySink)
            found = sink.rows()
            rows = [] if found is None else found.to_pylist()
            assert sorted(map(str, rows)) == sorted(map(str, expected.rows(name).to_pylist()))


def test_too_few_peers_hold_up_checkpoints_and_not_the_stream() -> None:
    snapshot_store = StubbornSnapshotStore()
    bench = Bench(snapshot_store)
    bench.feed(GIVEN[:10])
    assert bench.coordinator.status.frontier == 9, "the stream goes on"
    assert bench.coordinator.state.checkpoints.global_batch == -1
    assert any("1 peer answers, 2 are needed" in line and "speeds[0]" in line for line in bench.told), bench.told
    kept = [bench.log.blocks(name, BatchId(0), Epoch(1)) for name in bench.program.sources]
    assert all(kept), "and its log is kept"
    snapshot_store.short = False
    bench.feed(GIVEN[10:])
    assert bench.coordinator.state.checkpoints.global_batch > 0
    bench.check()


def test_a_system_clock_that_is_set_back_changes_no_plan() -> None:
    """Costs are shares of a core over time: after a step back of an hour they were above what any node can carry."""
    times = iter(range(1_000_000, 0, -3600))
    bench = Bench(now=lambda: float(next(times)))
    bench.feed(GIVEN[:6])
    last = last_driver(bench.storage)
    assert last is not None
    assert all(one["cost"] < 4 * one["cpu_seconds"] + 10 for one in last["measures"].values())
    assert [one.at for one in bench.seen] == list(range(1_000_000, 1_000_000 - 3600 * len(bench.seen), -3600))


def test_what_no_node_has_room_for_waits_and_says_so() -> None:
    total = float(Program(EXAMPLE.application()).topology.cost.sum())
    bench = Bench(capacity=total / 4 / 0.8 * 1.3)
    bench.feed(GIVEN[:8])
    bench.backend.lose_nodes(NodeId("n0"), NodeId("n1"))
    bench.log.append(GIVEN[8])
    with pytest.raises(CheckFailed, match="were assigned to no node"):
        bench.coordinator.run()
    assert [one.fields["count"] for one in bench.seen if one.kind == "requested"] == [2]
    alive = {p for p in bench.program.outputs if bench.coordinator.state.available(p)}
    assert alive, "queries that fit the nodes left go on"
    assert all(bench.coordinator.state.published[p] == 8 for p in alive)
    bench.backend.add_nodes({NodeId("n5"): bench.capacity, NodeId("n6"): bench.capacity})
    bench.feed(GIVEN[9:])
    bench.coordinator.checkpoint()
    assert not bench.coordinator.state.recovering
    assert [one for one in bench.seen if one.kind == "recovery-ended"]
    assert not [one for one in bench.seen if one.kind == "plan-rejected"]
    bench.check()


class Brittle(MemorySink):
    """Fails once, half-way through a batch's partitions."""

    broken = True

    def publish(self, key: OutputKey, rows: pa.Table, epoch: int) -> None:  # type: ignore[override]
        if self.broken and key.batch == 5 and key.query.index == 1:
            raise ConnectionError("the database is away")
        super().publish(key, rows, epoch)  # type: ignore[arg-type]


def test_a_sink_that_fails_half_way_is_named_and_loses_nothing() -> None:
    sink = Brittle()
    bench = Bench(sink={"speeds": sink})
    with pytest.raises(OperatorFailed, match="the database is away") as caught:
        bench.feed(GIVEN)
    assert "operator speeds" in str(caught.value)
    assert "partition speeds[1], batch 5" in str(caught.value)
    sink.broken = False
    bench.coordinator.run()
    bench.feed(GIVEN[bench.coordinator.status.logged + 1 :])
    bench.check()


def test_what_is_alive_goes_on_while_others_wait_for_nodes() -> None:
    """Whoever feeds a stream calls `advance`: live queries do not wait for dead ones, and no time ends the run."""
    total = float(Program(EXAMPLE.application()).topology.cost.sum())
    bench = Bench(capacity=total / 4 / 0.8 * 1.3)
    bench.feed(GIVEN[:6])
    bench.backend.lose_nodes(NodeId("n0"), NodeId("n1"))
    state = bench.coordinator.state
    for number in range(6, 14):
        bench.log.append(GIVEN[number])
        while bench.coordinator.status.live_frontier < number:
            bench.coordinator.advance()
    alive = {p for p in bench.program.outputs if state.available(p)}
    assert alive
    assert all(state.published[p] == 13 for p in alive)
    assert state.lost
    assert bench.coordinator.status.frontier < 13
    for _ in range(200):
        assert not bench.coordinator.advance(), "there is nothing to do, and that does not end the run"
    assert any("waiting for 2 nodes" in line for line in bench.told), bench.told
    bench.backend.add_nodes({NodeId("n5"): bench.capacity, NodeId("n6"): bench.capacity})
    bench.feed(GIVEN[14:])
    bench.check()


class Absent(MemorySink):
    """Refuses late rows for a while."""

    away = True

    def publish(self, key: OutputKey, rows: pa.Table, epoch: int) -> None:  # type: ignore[override]
        if self.away:
            raise CheckFailed("the disk for late rows is full")
        super().publish(key, rows, epoch)  # type: ignore[arg-type]


def late_words() -> Application:
    app = Application("late")
    stream = app.source("s", schema={"word": "string", "at": "double"}, event_time="at")
    stream.key_by("word").window(tumbling(1)).count(id="c", parallelism=2).output()
    return app


def late_batches() -> list[dict[str, pa.Table]]:
    """Batches whose second rows are all too late, but for the first batch."""
    return [{"s": pa.table({"word": ["a", "b"], "at": [number + 0.5, 0.5]})} for number in range(6)]


@pytest.mark.parametrize("broken", ["late rows", "output"])
def test_late_rows_are_not_lost_where_a_sink_fails(broken: str) -> None:
    late, out = Absent(), Brittle() if broken == "output" else MemorySink()
    late.away = broken == "late rows"
    bench = Bench(application=late_words, late=late, sink={"c": out})
    for batch in late_batches():
        bench.log.append(batch)
        with contextlib.suppress(CheckFailed, OperatorFailed):
            bench.coordinator.run()
    late.away = False
    if isinstance(out, Brittle):
        out.broken = False
    bench.coordinator.run()
    found = late.rows()
    assert found is not None
    assert found.num_rows == 4, "each late row, once"
    counted = [bench.coordinator.measures[PartitionId.parse(name)].late_rows for name in ("c[0]", "c[1]")]
    assert sum(counted) == 4


def test_an_output_never_leaves_a_batch_out() -> None:
    """What comes without the batch before it waits: it comes again together with that."""
    program, sink = Program(late_words()), MemorySink()
    outputs = Outputs(program, {OperatorId("c"): sink}, lambda operator, feed: MemorySink())
    query = PartitionId.parse("c[0]")

    def block(batch: int) -> Block:
        edge, receiver = Edge(query.operator, SINK), PartitionId(SINK, 0)
        return Block(Header(edge, query, receiver, BatchId(batch), Epoch(1), None), pa.table({"n": [batch]}))

    first = outputs.publish([block(1), block(3), block(2)], {query: BatchId(0)}, NOTHING, Epoch(1))
    assert first.reached == {query: 3}
    gap = outputs.publish([block(5), block(6)], {query: BatchId(3)}, NOTHING, Epoch(1))
    assert (gap.reached, gap.out, gap.problem) == ({}, [], None)
    assert sink.rows()["n"].to_pylist() == [1, 2, 3]  # type: ignore[index]


def test_costs_are_measured_and_a_new_driver_plans_with_them() -> None:
    storage = MemoryStorage()
    bench = Bench(
        storage=storage, pace=CycleSettings(checkpoint_batches=3, wait_seconds=0.5, measure_costs=True), capacity=1.0
    )
    bench.feed(GIVEN)
    measures = (last_driver(storage) or {})["measures"]
    costs = {name: one["cost"] for name, one in measures.items()}
    assert set(costs) == {str(p) for p in bench.program.partitions}
    assert max(costs.values()) > 1e-5
    again = Bench(storage=storage, pace=CycleSettings(measure_costs=True), capacity=1.0)
    assert again.coordinator.state.costs == {PartitionId.parse(name): cost for name, cost in costs.items()}


def test_a_checkpoint_that_no_node_can_finish_ends_with_a_line() -> None:
    """All nodes are lost while the last checkpoint is taken, and none comes: that must not wait for ever."""
    pace = CycleSettings(checkpoint_batches=1000, wait_seconds=0.5, most_tries=1)
    bench = Bench(StubbornSnapshotStore(), pace=pace)
    bench.feed(GIVEN[:5])
    reconcile = bench.backend.reconcile

    def then_all_die(desired: DesiredState) -> None:
        reconcile(desired)
        if bench.backend.nodes:
            bench.backend.lose_nodes(*bench.backend.nodes)

    bench.backend.reconcile = then_all_die  # type: ignore[method-assign]
    with pytest.raises(CheckFailed, match="no partition makes progress, at batch"):
        bench.coordinator.checkpoint()


def test_reports_behind_one_that_raises_are_read_by_the_next_call() -> None:
    sink = Brittle()
    bench = Bench(sink={"speeds": sink})
    with pytest.raises(OperatorFailed):
        bench.feed(GIVEN)
    sink.broken = False
    bench.coordinator.read_reports()
    assert not bench.coordinator.busy, "the end of the cycle was read"


def test_reports_of_an_earlier_epoch_do_not_count() -> None:
    bench = Bench()
    bench.feed(GIVEN[:3])
    state = bench.coordinator.state
    query = bench.program.outputs[0]
    node = state.placement[query]
    stale = NodeReport(node, Epoch(state.epoch - 1), frontiers={query: BatchId(99)})
    bench.backend._reports.append(stale)
    bench.coordinator.read_reports()
    assert state.partitions[query].frontier == 2


def test_only_a_higher_claim_ends_a_driver() -> None:
    bench = Bench()
    bench.feed(GIVEN[:2])
    state = bench.coordinator.state
    query = bench.program.outputs[0]
    late = Refused(query, state.epoch, state.epoch.next)
    bench.backend._reports.append(NodeReport(state.placement[query], state.epoch, [late]))
    bench.coordinator.read_reports()
    over = Refused(query, state.epoch, Epoch.of(state.epoch.claim + 1, 1))
    bench.backend._reports.append(NodeReport(state.placement[query], state.epoch, [over]))
    with pytest.raises(StaleEpoch, match="claim 1 is over"):
        bench.coordinator.read_reports()


def test_outboxes_of_nodes_that_hold_nothing_do_not_count() -> None:
    bench = Bench()
    bench.feed(GIVEN[:2])
    bench.coordinator._counters.outbox_bytes[NodeId("elsewhere")] = 10**9
    seen: list[int] = []
    handle = bench.coordinator.machine.handle

    def watched(event: Event) -> list[Effect]:
        if isinstance(event, PartitionsReported):
            seen.append(event.kept_bytes)
        return handle(event)

    bench.coordinator.machine.handle = watched  # type: ignore[method-assign]
    bench.feed(GIVEN[2:3])
    assert seen
    assert max(seen) < 10**9
