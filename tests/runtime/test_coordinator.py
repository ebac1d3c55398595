"""The driver's loop in one process: what it does when the store says no, when nodes are short, when a sink fails."""

from __future__ import annotations

import errno
import itertools
import math
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
from holdfast.recovery.events import Event, NodesArrived, NodesLost, PartitionsReported
from holdfast.recovery.strategy import RecoverySettings
from holdfast.runtime import run_in_process
from holdfast.runtime.blocks import SINK, Block, Edge, Header
from holdfast.runtime.coordinator.coordinator import Coordinator
from holdfast.runtime.coordinator.event_log import Observation
from holdfast.runtime.coordinator.feeding import log_batches
from holdfast.runtime.coordinator.liveness import SignWriter
from holdfast.runtime.coordinator.outputs import Outputs
from holdfast.runtime.coordinator.pacing import CycleSettings
from holdfast.runtime.coordinator.parking import ErrorSettings
from holdfast.runtime.coordinator.profile_records import ProfileRecords, last_profile
from holdfast.runtime.coordinator.profiling import Profiler
from holdfast.runtime.coordinator.progress import Progress, last_driver
from holdfast.runtime.in_process import LoopBackend
from holdfast.runtime.io.batch_log import BatchLog
from holdfast.runtime.io.sinks import MemorySink, OutputKey, Sink
from holdfast.runtime.messages import DesiredState, NodeReport, Refused, SnapshotNotStored
from holdfast.runtime.program import Program
from holdfast.runtime.state.snapshot_store import Answered, MemorySnapshotStore, SaveAnswer
from holdfast.runtime.state.store import Addition, MemoryStore, StaleEpoch
from holdfast.runtime.state.versions import Commit
from holdfast.storage.memory import MemoryStorage
from holdfast.storage.records import Records
from holdfast.topology import from_document

EXAMPLE = EXAMPLES["traffic"]
GIVEN = list(EXAMPLE.batches(1, 16, 60))


class StubbornSnapshotStore(MemorySnapshotStore):
    """Saves nothing while it has too few peers."""

    short = True

    def saved(self, name: str) -> SaveAnswer | None:
        return Answered("1 peer answers, 2 are needed") if self.short else super().saved(name)


class SlowSnapshotStore(MemorySnapshotStore):
    """Brings a snapshot fragment by fragment, one each time that it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: dict[str, int] = {}

    def fetched(self, name: str) -> pa.Buffer | None:
        self.asked[name] = self.asked.get(name, -1) + 1
        return super().fetched(name) if self.asked[name] > 3 else None

    def progress(self, name: str) -> tuple[int, int] | None:
        return (self.asked[name], 4) if self.asked[name] else None


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
    errors: ErrorSettings = field(default_factory=lambda: ErrorSettings(retries=0))
    now: Callable[[], float] = time.time
    clock: Callable[[], float] = time.monotonic
    follower: Callable[[], int | None] = lambda: None

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
            errors=self.errors,
            follower=self.follower,
            now=self.now,
            clock=self.clock,
            profiles=ProfileRecords(self.storage, progress.claim),
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


def test_a_restore_that_takes_a_while_says_how_many_fragments_have_come() -> None:
    store = SlowSnapshotStore()
    bench = Bench(store)
    bench.feed(GIVEN[:8])
    bench.backend.lose_nodes(NodeId("n0"))
    bench.coordinator.handle(NodesLost((NodeId("n0"),)))
    bench.feed(GIVEN[8:])
    told: dict[str, list[tuple[int, int]]] = {}
    for one in bench.seen:
        if one.kind == "fragments":
            told.setdefault(one.fields["partition"], []).append((one.fields["fetched"], one.fields["needed"]))
    restored = {
        one.fields["partition"] for one in bench.seen if one.kind == "restored" and "fetch_seconds" in one.fields
    }
    assert told
    assert set(told) <= restored
    for counts in told.values():
        assert counts == sorted(set(counts)), "each count once, and none goes back"
        assert all(came <= needed for came, needed in counts)
    bench.check()


@pytest.mark.parametrize(("pace", "ahead"), [(CycleSettings(batches_ahead=3), 3), (CycleSettings(most_batches=2), 4)])
def test_the_log_is_so_many_batches_ahead_and_then_waits(pace: CycleSettings, ahead: int) -> None:
    bench, given = Bench(pace=pace), iter(GIVEN)

    def make_batch() -> BatchId | None:
        batch = next(given, None)
        return None if batch is None else bench.log.append(batch)

    status = bench.coordinator.status
    for turn in range(len(GIVEN) // ahead):
        assert log_batches(status, pace.most_ahead, make_batch)
        assert status.logged == (turn + 1) * ahead - 1, "so many ahead of what is processed"
        assert not log_batches(status, pace.most_ahead, make_batch), "and no further"
        bench.coordinator.run()
        assert status.live_frontier == status.logged, "it goes on once they are processed"
    while log_batches(status, pace.most_ahead, make_batch):
        bench.coordinator.run()
    bench.check()


def test_a_system_clock_that_is_set_back_changes_no_plan() -> None:
    """Costs are shares of a core over time: after a step back of an hour they were above what any node can carry."""
    times = iter(range(1_000_000, 0, -3600))
    bench = Bench(now=lambda: float(next(times)))
    bench.feed(GIVEN[:6])
    last = last_driver(bench.storage)
    assert last is not None
    assert all(one["cost"] < 4 * one["cpu_seconds"] + 10 for one in last["measures"].values())
    assert all(earlier.at > later.at for earlier, later in itertools.pairwise(bench.seen)), "events have that clock"


def test_a_run_waits_for_nodes_without_an_end_unless_one_is_set() -> None:
    """It was over after two minutes, whatever was set."""
    hours = itertools.count(0, 5)
    bench = Bench(pace=CycleSettings(checkpoint_batches=3, wait_seconds=math.inf), clock=lambda: float(next(hours)))
    bench.feed(GIVEN[:4])
    bench.backend.lose_nodes(*bench.coordinator.state.nodes)
    bench.log.append(GIVEN[4])
    bench.told.clear()
    until = float(next(hours)) + 6 * 3600
    bench.coordinator.run(gives_up=lambda: next(hours) > until)
    assert not bench.coordinator.status.caught_up
    assert bench.told, "it reports what it waits for"
    with pytest.raises(CheckFailed, match="the wait for it was ended"):
        bench.coordinator.checkpoint(gives_up=lambda: True)
    bench.backend.add_nodes({NodeId("n8"): bench.capacity, NodeId("n9"): bench.capacity})
    bench.coordinator.run()
    assert bench.coordinator.status.caught_up


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


class Over(MemorySink):
    """Belongs to a later driver from batch 5 on."""

    def publish(self, key: OutputKey, rows: pa.Table, epoch: int) -> None:  # type: ignore[override]
        if key.batch == 5:
            raise StaleEpoch("another driver has the run", remedy="end this one")
        super().publish(key, rows, epoch)  # type: ignore[arg-type]


def test_a_sink_that_fails_half_way_is_named_and_loses_nothing() -> None:
    sink = Brittle()
    bench = Bench(sink={"speeds": sink})
    bench.feed(GIVEN)
    problem = bench.coordinator.parked_problem
    assert "operator speeds: partition speeds[1], batch 5" in str(problem)
    assert "the database is away" in str(problem)
    state = bench.coordinator.state
    published = {str(p): batch for p, batch in state.published.items()}
    assert published.pop("speeds[1]") == 4, "it is parked, and jams[0], which needs its partition, is not"
    assert set(published.values()) == {len(GIVEN) - 1}, "all others are out"
    assert any("parked: speeds[1]" in line for line in bench.told)
    sink.broken = False
    bench.coordinator.resume_all()
    bench.coordinator.run()
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
        bench.coordinator.run()
    late.away = False
    if isinstance(out, Brittle):
        out.broken = False
    bench.coordinator.resume_all()
    bench.coordinator.run()
    found = late.rows()
    assert found is not None
    assert found.num_rows == 4, "each late row, once"
    counted = [bench.coordinator.measuring.measures[PartitionId.parse(name)].late_rows for name in ("c[0]", "c[1]")]
    assert sum(counted) == 4


def test_an_output_never_leaves_a_batch_out() -> None:
    """What comes without the batch before it waits: it comes again together with that."""
    program, sink = Program(late_words()), MemorySink()
    outputs = Outputs(program, {OperatorId("c"): sink}, lambda operator, feed: MemorySink())
    query = PartitionId.parse("c[0]")

    def block(batch: int) -> Block:
        edge, receiver = Edge(query.operator, SINK), PartitionId(SINK, 0)
        return Block(Header(edge, query, receiver, BatchId(batch), Epoch(1), None), pa.table({"n": [batch]}))

    first = outputs.publish([block(1), block(3), block(2)], {query: BatchId(0)}, {query: NOTHING}, Epoch(1))
    assert first.reached == {query: 3}
    gap = outputs.publish([block(5), block(6)], {query: BatchId(3)}, {query: NOTHING}, Epoch(1))
    assert (gap.reached, gap.out, gap.problem) == ({}, [], None)
    assert sink.rows()["n"].to_pylist() == [1, 2, 3]  # type: ignore[index]


def test_costs_are_measured_and_a_new_driver_plans_with_them() -> None:
    storage, clock = MemoryStorage(), itertools.count(0.0, 0.5)
    bench = Bench(
        storage=storage,
        pace=CycleSettings(checkpoint_batches=3, wait_seconds=0.5, measure_costs=True),
        capacity=1.0,
        clock=lambda: next(clock),
    )
    bench.feed(GIVEN)
    measures = (last_driver(storage) or {})["measures"]
    costs = {name: one["cost"] for name, one in measures.items()}
    assert set(costs) == {str(p) for p in bench.program.partitions}
    assert max(costs.values()) > 1e-5
    again = Bench(storage=storage, pace=CycleSettings(measure_costs=True), capacity=1.0)
    assert again.coordinator.state.costs == {PartitionId.parse(name): cost for name, cost in costs.items()}
    kept = last_profile(storage)
    assert kept is not None
    assert from_document(kept).operators[0].rate
    assert len(Records(storage, "profile", version=1).numbers()) <= 3


def test_a_bound_that_nobody_has_set_delays_a_query_and_does_not_leave_it_down() -> None:
    clock = itertools.count(0.0, 0.25)
    pace = CycleSettings(checkpoint_batches=3, wait_seconds=60.0, measure_costs=True, bound_seconds=5.0)
    bench = Bench(capacity=1.0, pace=pace, clock=lambda: next(clock))
    partitions = bench.program.partitions
    bench.coordinator.measuring.profiler = Profiler(partitions, 0.0, costs=dict.fromkeys(partitions, 0.2))
    bench.feed(GIVEN[:4])
    bench.backend.lose_nodes(NodeId("n0"), NodeId("n1"))
    bench.feed(GIVEN[4:])
    plans = [one.fields for one in bench.seen if one.kind == "planned"]
    assert plans[-2]["left_out"], "two nodes have no room for all by what was measured"
    assert not plans[-1]["left_out"]
    (lifted,) = [one.fields for one in bench.seen if one.kind == "bound-lifted"]
    assert sorted(lifted["partitions"]) == sorted(plans[-1]["recover"])
    assert any("restored above the bound" in line for line in bench.told)
    bench.check()


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
    bench = Bench(sink={"speeds": Over()})
    with pytest.raises(StaleEpoch):
        bench.feed(GIVEN)
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


class FencedSnapshotStore(MemorySnapshotStore):
    """Refuses every save as one of an epoch that is over."""

    def saved(self, name: str) -> SaveAnswer | None:
        return Answered("epoch 1.1 of 'run' is fenced: epoch 2.1 has started", fenced=True)


def test_a_snapshot_that_is_not_stored_is_said_once() -> None:
    """Each attempt failed with a line of its own, some every second."""
    bench = Bench(FencedSnapshotStore())
    bench.feed(GIVEN[:4])
    tried = [one for one in bench.seen if one.kind == "snapshot-not-stored"]
    answer = SnapshotNotStored(
        PartitionId.parse(tried[0].fields["partition"]), tried[0].fields["batch"], tried[0].fields["problem"]
    )
    state = bench.coordinator.state
    for _ in range(3):
        bench.backend._reports.append(NodeReport(state.placement[answer.partition], state.epoch, [answer]))
        bench.coordinator.read_reports()
    assert len([one for one in bench.seen if one.kind == "snapshot-not-stored"]) == len(tried) + 3, "events say all"
    lines = [line for line in bench.told if "not stored yet" in line]
    assert lines
    assert len(set(lines)) == len(lines)


def test_a_driver_that_only_saves_learns_of_a_later_claim_by_the_refusal_of_its_snapshots() -> None:
    bench = Bench(FencedSnapshotStore())
    bench.feed(GIVEN[:4])
    refused = [seen for seen in bench.seen if seen.kind == "snapshot-not-stored"]
    assert refused
    assert all(seen.fields["fenced"] for seen in refused)
    assert bench.coordinator.status.frontier == 3, "it has the run: a refusal alone does not end it"
    Progress(bench.storage, bench.program.name)
    with pytest.raises(StaleEpoch, match="claim 1 is over"):
        bench.coordinator.probe()


@pytest.mark.parametrize("lost", [(), ("n0", "n1", "n2", "n3")], ids=["idle", "waits for nodes"])
def test_a_driver_that_is_followed_ends_also_where_it_has_nothing_to_do(lost: tuple[str, ...]) -> None:
    """It would hold its executors for good: nothing that it writes is refused, because it writes nothing."""
    storage = MemoryStorage()
    signs = SignWriter(storage, 1)
    bench = Bench(storage=storage, pace=CycleSettings(wait_seconds=math.inf), follower=signs.follower)
    bench.feed(GIVEN[:4])
    for node in map(NodeId, lost):
        bench.backend.lose_nodes(node)
    for _ in range(20):
        bench.coordinator.advance()
    second = SignWriter(storage, Progress(storage, bench.program.name).claim)
    second.write()
    with pytest.raises(StaleEpoch, match="claim 1 is over: a driver with claim 2 runs this application"):
        bench.coordinator.advance()


def test_outboxes_of_nodes_that_hold_nothing_do_not_count() -> None:
    bench = Bench()
    bench.feed(GIVEN[:2])
    bench.coordinator.measuring.outbox_bytes[NodeId("elsewhere")] = 10**9
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


class FullDisk(MemoryStore):
    """A node's files; from a batch on there is no room for more."""

    full = False

    def commit(self, commit: Commit, added: Addition) -> Commit:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().commit(commit, added)


def test_a_node_whose_disk_is_full_is_lost_and_its_host_gets_no_more_work() -> None:
    bench = Bench()
    disks: dict[NodeId, FullDisk] = {}

    def disk_of(node: NodeId) -> FullDisk:
        return disks.setdefault(node, FullDisk())

    bench.backend._store_of = disk_of
    bench.feed(GIVEN[:3])
    bench.backend.add_nodes({NodeId("n9"): bench.capacity})
    bench.coordinator.run()
    bench.backend.lose_nodes(NodeId("n0"))  # something goes to the new node
    bench.feed(GIVEN[3:6])
    assert "n9" in bench.coordinator.state.placement.values()
    disks[NodeId("n9")].full = True
    bench.feed(GIVEN[6:])
    assert NodeId("n9") not in bench.coordinator.state.nodes
    assert not bench.coordinator.state.parked, "no operator is to blame"
    assert any("n9 is lost, and its host gets no more work" in line for line in bench.told)
    assert [seen.fields["nodes"] for seen in bench.seen if seen.kind == "node-lost"] == [["n0"], ["n9"]]
    bench.backend._reports.append(NodesArrived({NodeId("n9"): bench.capacity}))
    bench.coordinator.read_reports()
    assert NodeId("n9") not in bench.coordinator.state.nodes, "it is not asked again"
    bench.check()


def test_attempts_and_the_pauses_between_them_are_no_standstill() -> None:
    """A run that gives up after a moment without progress still makes all attempts, and then goes on."""
    sink = Brittle()
    pace = CycleSettings(checkpoint_batches=3, wait_seconds=0.01, most_tries=1)
    bench = Bench(sink={"speeds": sink}, pace=pace, errors=ErrorSettings(retries=4, backoff=0.02))
    bench.feed(GIVEN)
    assert [why.attempts for why in bench.coordinator.state.parked.values()] == [5]
    failed = [seen.fields["attempt"] for seen in bench.seen if seen.kind == "failed"]
    assert failed == [1, 2, 3, 4, 5]
    sink.broken = False
    bench.coordinator.resume_all()
    bench.coordinator.run()
    bench.check()
