"""Marks: decided when a batch is logged, in its record, and read by whoever hands the batch out."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.ids import BatchId, NodeId, SegmentId
from holdfast.recovery.checkpoints import Checkpoints
from holdfast.recovery.cluster_state import ClusterState
from holdfast.recovery.graph import PartitionGraph
from holdfast.runtime.coordinator.coordinator import Coordinator
from holdfast.runtime.coordinator.marking import BatchMarks, SegmentSchedule, spread
from holdfast.runtime.coordinator.pacing import CycleSettings, Mark
from holdfast.runtime.coordinator.progress import Progress
from holdfast.runtime.in_process import LoopBackend
from holdfast.runtime.io.batch_log import BatchLog
from holdfast.runtime.io.logged_marks import ALL_PARTITIONS, LoggedMark
from holdfast.runtime.io.sinks import MemorySink
from holdfast.runtime.program import Program
from holdfast.runtime.state.snapshot_store import MemorySnapshotStore
from holdfast.runtime.state.store import MemoryStore
from holdfast.storage.memory import MemoryStorage
from runtime.test_coordinator import EXAMPLE, GIVEN, StubbornSnapshotStore

PROGRAM = Program(EXAMPLE.application())
PACE = CycleSettings(checkpoint_batches=3, durable_every=2)


class Keeping:
    """A log, and who decides its marks; the state is as after a checkpoint at a batch."""

    def __init__(self, storage: MemoryStorage, claim: int = 1, checkpoint: int = -1, generation: int = 0) -> None:
        self.log = BatchLog(PROGRAM.sources, PROGRAM.name, storage, claim=claim, generation=generation)
        checkpoints = Checkpoints(PROGRAM.partitions)
        checkpoints.line = dict.fromkeys(PROGRAM.partitions, BatchId(checkpoint))
        self.state = ClusterState(PartitionGraph(PROGRAM.topology, {}), checkpoints=checkpoints)
        self.now = 0.0
        self.marks = BatchMarks(self.log, self.state, SegmentSchedule(PACE, self.state.segments, 0.0), lambda: self.now)

    def append(self, count: int = 1) -> None:
        for _ in range(count):
            self.log.append({})

    def take(self) -> list[int]:
        """Hand out what is logged, as the coordinator does; return the batches of the marks."""
        found = self.marks.take()
        for mark in found:
            self.state.checkpoints.mark(mark.batch, durable=mark.durable)
        return [mark.batch for mark in found]

    def complete(self, batch: int) -> None:
        self.state.checkpoints.move(dict.fromkeys(PROGRAM.partitions, BatchId(batch)))


def marked(log: BatchLog) -> dict[int, bool]:
    """Return the marks of a log: whether each is durable."""
    records = [log.record(BatchId(number)) for number in range(log.frontier + 1)]
    return {one.batch: one.marks[ALL_PARTITIONS].durable for one in records if one is not None and one.marks}


def test_a_batch_is_marked_as_it_is_logged_and_the_next_one_waits_for_it() -> None:
    run = Keeping(MemoryStorage())
    run.append(8)
    assert marked(run.log) == {2: True}, "one at a time: the log runs ahead, and the mark is open"
    assert run.take() == [2]
    assert run.take() == [], "once"
    run.append()
    assert marked(run.log) == {2: True}
    run.complete(2)
    run.append(5)
    assert marked(run.log) == {2: True, 9: False}, "the next batch that is logged is due"
    assert run.take() == [9]


def test_live_partitions_get_further_marks_during_a_recovery() -> None:
    run = Keeping(MemoryStorage())
    run.append(3)
    run.state.recovering = True
    run.append(6)
    assert marked(run.log) == {2: True, 5: False, 8: True}
    assert run.take() == [2, 5, 8]


def test_a_mark_that_was_given_up_is_not_taken_again() -> None:
    run = Keeping(MemoryStorage())
    run.append(4)
    assert run.take() == [2]
    run.state.checkpoints.give_up(BatchId(2))
    assert run.take() == []
    run.append()
    assert run.take() == [4], "the next batch is marked instead"


def test_a_new_driver_finds_the_marks_beyond_its_checkpoint() -> None:
    storage = MemoryStorage()
    first = Keeping(storage)
    first.append(4)
    first.take()
    first.complete(2)
    first.append(4)
    assert marked(first.log) == {2: True, 5: False}
    behind, ahead = Keeping(storage, 2, checkpoint=2), Keeping(storage, 3, checkpoint=7)
    assert behind.take() == [5], "and none that the checkpoint covers"
    assert ahead.take() == []
    assert Keeping(storage, 4).take() == [2, 5], "the same, whatever its own interval and clock"


def test_a_driver_decides_nothing_while_a_mark_of_the_one_before_is_open() -> None:
    storage = MemoryStorage()
    first = Keeping(storage)
    first.append(4)
    second = Keeping(storage, 2)
    second.append(6)
    assert marked(second.log) == {2: True}, "read before the first batch of its own, before anything is handed out"
    assert second.take() == [2]
    second.complete(2)
    second.append()
    assert marked(second.log) == {2: True, 10: False}, "the one before has logged the durable one"


def test_what_the_driver_before_has_logged_counts_and_not_what_this_one_decided() -> None:
    storage = MemoryStorage()
    first = Keeping(storage)
    first.append(2)
    second = Keeping(storage, 2)
    first.complete(1)  # so that the first driver does not mark batch 2, and the second would
    first.append()
    second.append()
    assert second.log.frontier == 3, "batch 2 was taken"
    assert marked(second.log) == {3: True}
    assert second.take() == [3]


def test_after_a_lost_checkpoint_marks_are_read_once_more() -> None:
    run = Keeping(MemoryStorage())
    run.append(3)
    assert run.take() == [2]
    run.complete(2)
    run.append(3)
    assert run.take() == [5]
    run.complete(5)
    run.state.checkpoints.durable_line = dict.fromkeys(PROGRAM.partitions, BatchId(-1))
    run.state.checkpoints.go_durable()
    assert run.take() == [2, 5], "everything starts anew before them"
    assert run.take() == []


def test_marks_are_read_once_more_where_the_durable_checkpoint_is_as_far_back_as_who_waits() -> None:
    run = Keeping(MemoryStorage())
    run.append(3)
    assert run.take() == [2]
    run.complete(2)
    checkpoints = run.state.checkpoints
    checkpoints.durable_line, checkpoints.line_before = dict(checkpoints.line), None
    run.state.recovering = True
    run.append(6)
    assert run.take() == [5, 8]
    # One query waits at the durable checkpoint; the others move on without it, and then a snapshot of theirs is lost.
    waits = PROGRAM.partitions[-1]
    checkpoints.move({p: BatchId(5) for p in PROGRAM.partitions if p != waits})
    assert run.take() == []
    checkpoints.go_durable()
    assert checkpoints.marks == []
    assert run.take() == [5, 8], "all of them process what was logged since once more"


def test_marks_of_another_layout_and_of_other_segments_do_not_count() -> None:
    storage = MemoryStorage()
    old = Keeping(storage)
    old.append(3)
    assert old.log.fence(PROGRAM.sources)
    record = Keeping(storage, 2, generation=1).log.record(BatchId(3))
    assert record is not None
    assert record.marks == {}, "a fence is no mark"
    new = Keeping(storage, 3, generation=1)
    assert new.take() == []
    new.log.decide_marks(lambda batch: {SegmentId("speeds"): LoggedMark(durable=True)})
    new.append()
    assert new.take() == []


def test_of_a_long_stretch_some_marks_count() -> None:
    def some(count: int, durable: Callable[[int], bool]) -> list[Mark]:
        return [Mark(BatchId(number), durable(number)) for number in range(count)]

    def never(number: int) -> bool:
        return False

    assert spread(some(4, never), 4) == some(4, never)
    assert [mark.batch for mark in spread(some(10, never), 4)] == [1, 4, 6, 9]
    assert [mark.batch for mark in spread(some(10, lambda number: number % 5 == 0), 4)] == [0, 5]
    assert [mark.batch for mark in spread(some(100, lambda number: number % 5 == 0), 4)] == [20, 45, 70, 95]
    assert spread([], 4) == []
    storage = MemoryStorage()
    first = Keeping(storage)
    first.state.recovering = True
    first.append(60)
    assert len(marked(first.log)) == 20
    second = Keeping(storage, 2)
    assert second.take() == [8, 26, 38, 56]


# -- the coordinator -------------------------------------------------------------------------------------------------


def driver(storage: MemoryStorage, snapshots: MemorySnapshotStore, pace: CycleSettings = PACE) -> Coordinator:
    progress = Progress(storage, PROGRAM.name)
    log = BatchLog(PROGRAM.sources, PROGRAM.name, storage, claim=progress.claim)
    backend = LoopBackend(PROGRAM, log, snapshots, lambda node: MemoryStore())
    backend.add_nodes({NodeId(f"{progress.claim}n{number}"): 100.0 for number in range(3)})
    sinks = {p.operator: MemorySink() for p in PROGRAM.outputs}
    return Coordinator(PROGRAM, backend, log, sinks, lambda *names: MemorySink(), progress, pace=pace)


def test_a_checkpoint_that_the_driver_before_began_is_completed_by_the_next() -> None:
    """Its mark is in the log: the next driver takes it, though its own interval would not."""
    storage, stubborn = MemoryStorage(), StubbornSnapshotStore()
    before = driver(storage, stubborn)
    for batch in GIVEN[:5]:
        before.batch_log.append(batch)
        before.run()
    assert before.state.checkpoints.marks == [2]
    assert before.state.checkpoints.global_batch == -1, "too few peers"
    rare = CycleSettings(checkpoint_batches=1000)
    after = driver(storage, MemorySnapshotStore(), rare)
    after.run()
    assert after.state.checkpoints.global_batch == 2
    assert after.state.checkpoints.durable_batch == 2


def test_a_desired_state_has_the_marks_of_what_it_lets_sources_read() -> None:
    coordinator = driver(MemoryStorage(), MemorySnapshotStore())
    coordinator.read_reports()
    for batch in GIVEN[:4]:
        coordinator.batch_log.append(batch)
    desired = coordinator.desired_state()
    assert {one.through for one in desired.assignments.values()} == {3}
    assert {one.marks for one in desired.assignments.values()} == {(2,)}
    assert {one.durable for one in desired.assignments.values()} == {frozenset({2})}


def test_a_checkpoint_can_be_ordered_at_a_batch_that_is_no_mark() -> None:
    coordinator = driver(MemoryStorage(), MemorySnapshotStore())
    for batch in GIVEN[:5]:
        coordinator.batch_log.append(batch)
    assert coordinator.checkpoint() == 4
    assert marked(coordinator.batch_log) == {2: True}
    assert coordinator.state.checkpoints.durable_batch == 4
