"""How a partition is put in place on a node: from nothing, by a pointer, from snapshots; by two attempts at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.ids import BatchId, Epoch, NodeId, PartitionId
from holdfast.recovery.checkpoints import NOTHING, SavedSnapshot, snapshot_name
from holdfast.recovery.cluster_state import Start
from holdfast.runtime.blocks import LATE, SINK, encode_blocks
from holdfast.runtime.fetches import Restored
from holdfast.runtime.io.batch_log import BatchLog
from holdfast.runtime.messages import (
    DesiredState,
    Missing,
    NodeReport,
    PartitionAssignment,
    SnapshotLost,
    SnapshotStored,
)
from holdfast.runtime.state.directory_store import DirectoryStore
from holdfast.runtime.state.durable_snapshots import DurableSnapshotStore
from holdfast.runtime.state.journal_store import JournalStore
from holdfast.runtime.state.snapshot_store import MemorySnapshotStore, SnapshotStore
from holdfast.runtime.state.snapshots import decode_snapshot
from holdfast.runtime.state.store import MemoryStore, VersionStore
from holdfast.runtime.state.versions import NO_BATCH
from holdfast.runtime.worker.worker import NodeWorker
from holdfast.spark.snapshot_store import NodeSnapshotStore
from holdfast.storage.files import FileStorage
from holdfast.storage.memory import MemoryStorage
from runtime.test_host import P, words

PROGRAM = words(1, 1)
SOURCE, COUNTED, TO_SINK = P("s[0]"), P("c[0]"), PartitionId(SINK, 0)
BATCHES = 8


class CountingSnapshotStore(MemorySnapshotStore):
    """Counts the snapshots that are brought; `pause` is called while one is."""

    def __init__(self) -> None:
        super().__init__()
        self.brought: list[str] = []
        self.pause: Callable[[], object] = lambda: None

    def fetched(self, name: str) -> pa.Buffer | None:
        self.brought.append(name)
        self.pause()
        return super().fetched(name)


def log() -> BatchLog:
    made = BatchLog(PROGRAM.sources, PROGRAM.name)
    for number in range(BATCHES):
        rows = {"word": ["a", "b", f"c{number}"], "n": [number, 1, 2], "at": [number + 0.25] * 3}
        made.append({"s": pa.table(rows)})
    return made


LOG = log()


def node(name: str, store: VersionStore, snapshot_store: SnapshotStore) -> NodeWorker:
    return NodeWorker(PROGRAM, store, snapshot_store, LOG, name=NodeId(name), clock=lambda: 0.0, cpu_clock=lambda: 0.0)


def cycle(name: str, epoch: int, through: int, *, marks: tuple[int, ...] = (), **task: object) -> DesiredState:
    """A cycle of one node with both partitions, which keep all output; `task` is what COUNTED is told beside."""
    nothing = Start(Epoch(1), NOTHING, ())
    saved = tuple(BatchId(mark) for mark in marks)
    told = {"start": nothing, "frontier": NO_BATCH, "marks": saved, "with_outbox": True, **task}
    tasks = {
        SOURCE: PartitionAssignment(NodeId(name), nothing, NO_BATCH, keep_from=BatchId(0), through=BatchId(through)),
        COUNTED: PartitionAssignment(NodeId(name), keep_from=BatchId(0), through=BatchId(through), **told),  # type: ignore[arg-type]
    }
    return DesiredState("run", 1, Epoch(epoch), tasks, {COUNTED: NO_BATCH})


def stored(report: NodeReport) -> SavedSnapshot:
    (snapshot,) = [one.snapshot for one in report.answers if isinstance(one, SnapshotStored)]
    return snapshot


def run_and_save(worker: NodeWorker, name: str) -> tuple[SavedSnapshot, ...]:
    """Run all batches, with a base at batch 2 and the changes since at batch 5."""
    base = stored(worker.reconcile(cycle(name, 1, 2, marks=(2,)), 0, []))
    change = stored(worker.reconcile(cycle(name, 1, 5, marks=(5,), follows=base), 0, []))
    worker.reconcile(cycle(name, 1, BATCHES - 1, follows=change), 0, [])
    assert worker.host.frontier(COUNTED) == BATCHES - 1
    return base, change


def outbox(worker: NodeWorker) -> bytes:
    """All that the counting partition has sent, as bytes of one epoch."""
    kept = worker.host.replay(COUNTED, TO_SINK, NO_BATCH)
    assert kept is not None
    return encode_blocks([block.stamped(Epoch(9)) for block in kept])


@pytest.fixture(params=["memory", "directory"])
def snapshot_store(request: pytest.FixtureRequest, tmp_path: Path) -> SnapshotStore:
    return (
        MemorySnapshotStore()
        if request.param == "memory"
        else DurableSnapshotStore(FileStorage(tmp_path / "snapshot_store"))
    )


def test_a_base_and_its_changes_bring_state_and_outbox_to_another_node(
    snapshot_store: SnapshotStore, tmp_path: Path
) -> None:
    old = node("old", DirectoryStore(tmp_path / "old"), snapshot_store)
    base, change = run_and_save(old, "old")
    assert (base.follows, base.outbox_from) == (None, 0)
    assert (change.follows, change.outbox_from) == (base.id, 0), "with the one it follows it holds all from batch 0"
    data = snapshot_store.fetched(snapshot_name("run", COUNTED, change))
    assert data is not None
    assert {block.header.batch for block in decode_snapshot(data).outbox} == {3, 4, 5}, "but itself only what is new"

    new = node("new", DirectoryStore(tmp_path / "new"), snapshot_store)
    start = Start(Epoch(2), BatchId(5), (base, change))
    report = new.reconcile(cycle("new", 2, 5, start=start, frontier=BatchId(5)), 0, [])
    assert [type(one) for one in report.answers] == [Restored]
    assert report.frontiers[COUNTED] == 5
    kept = old.host.replay(COUNTED, TO_SINK, NO_BATCH)
    assert kept is not None
    first = [block.stamped(Epoch(9)) for block in kept if block.header.batch <= 5]
    assert outbox(new) == encode_blocks(first), "what consumers may still ask for came with it"
    new.reconcile(cycle("new", 2, BATCHES - 1, start=start, frontier=BatchId(5)), 0, [])
    assert outbox(new) == outbox(old), "and it goes on as the other did"
    again = node("new", DirectoryStore(tmp_path / "new"), MemorySnapshotStore())
    report = again.reconcile(cycle("new", 2, BATCHES - 1, start=start, frontier=BatchId(BATCHES - 1)), 0, [])
    assert report.frontiers[COUNTED] == BATCHES - 1, "a new worker finds it in place, and needs no snapshot"
    assert outbox(again) == outbox(old)


@pytest.mark.parametrize("kind", ["memory", "directory"])
def test_a_version_that_is_here_needs_a_pointer_and_no_images(kind: str, tmp_path: Path) -> None:
    snapshot_store = CountingSnapshotStore()
    store: VersionStore = MemoryStore() if kind == "memory" else DirectoryStore(tmp_path)
    worker = node("here", store, snapshot_store)
    snapshots = run_and_save(worker, "here")
    expected = outbox(worker)
    start = Start(Epoch(2), BatchId(5), snapshots)
    told = cycle("here", 2, 5, start=start, frontier=BatchId(5), follows=snapshots[-1])
    report = worker.reconcile(told, 0, [])
    assert snapshot_store.brought == []
    assert report.answers == []
    line = store.chain(COUNTED)
    assert line is not None
    assert (line.pointer.epoch, line.pointer.at) == (2, line.commits[BatchId(5)].id)
    assert line.commits[BatchId(5)].id.epoch == 1, "the version of the first epoch, as it was"
    worker.reconcile(cycle("here", 2, BATCHES - 1, start=start, frontier=BatchId(5)), 0, [])
    assert outbox(worker) == expected
    line = store.chain(COUNTED)
    assert line is not None
    assert [line.commits[BatchId(number)].id.epoch for number in (5, 6, 7)] == [1, 2, 2]

    elsewhere = node("there", MemoryStore(), snapshot_store)
    elsewhere.reconcile(cycle("there", 2, BATCHES - 1, start=start, frontier=BatchId(5)), 0, [])
    assert snapshot_store.brought == [snapshot_name("run", COUNTED, snapshot) for snapshot in snapshots], (
        "where it is not, they are brought"
    )
    assert outbox(elsewhere) == expected, "and the two cannot be told apart"


def test_a_copy_that_starts_from_a_later_snapshot_than_is_surely_completed_is_in_place() -> None:
    """A checkpoint has moved while the copy was on its way: the driver counts on less than it starts with."""
    snapshot_store = MemorySnapshotStore()
    primary = node("old", MemoryStore(), snapshot_store)
    later = stored(primary.reconcile(cycle("old", 1, 5, marks=(5,), with_outbox=False), 0, []))
    assert PartitionId(LATE, 0) in PROGRAM.consumers(COUNTED), "it keeps late rows aside: these have no consumer"

    replica = PartitionAssignment(
        NodeId("new"),
        Start(Epoch(1), BatchId(5), (later,)),
        frontier=BatchId(2),
        keep_from=BatchId(3),
        through=BatchId(5),
        replica=True,
    )
    told = cycle("old", 1, 5, frontier=BatchId(5))
    desired = replace(told, published={COUNTED: BatchId(5)}, copies={COUNTED: replica})
    report = node("new", MemoryStore(), snapshot_store).reconcile(desired, 0, [])
    assert report.frontiers == {COUNTED: 5}
    assert [type(one) for one in report.answers] == [Restored], "nothing of it is missing: no one will ask for it"


def test_a_version_that_is_damaged_comes_from_images(tmp_path: Path) -> None:
    snapshot_store = CountingSnapshotStore()
    whole = node("here", DirectoryStore(tmp_path), snapshot_store)
    snapshots = run_and_save(whole, "here")
    expected = outbox(whole)
    for path in tmp_path.glob(f"{COUNTED.operator}-{COUNTED.index}/*.segments"):
        path.write_bytes(path.read_bytes()[:-9])
    start = Start(Epoch(2), BatchId(5), snapshots)
    worker = node("here", DirectoryStore(tmp_path), snapshot_store)
    report = worker.reconcile(cycle("here", 2, 5, start=start, frontier=BatchId(5)), 0, [])
    assert snapshot_store.brought == [snapshot_name("run", COUNTED, snapshot) for snapshot in snapshots]
    assert [type(one) for one in report.answers] == [Restored]
    assert report.frontiers[COUNTED] == BATCHES - 1, "its sender is here, and has kept the rest"
    assert outbox(worker) == expected


def test_one_that_had_gone_on_is_missing_and_an_image_that_is_not_there_is_lost() -> None:
    snapshot_store = CountingSnapshotStore()
    snapshots = run_and_save(node("here", MemoryStore(), snapshot_store), "here")
    start = Start(Epoch(2), BatchId(5), snapshots)
    worker = node("here", MemoryStore(), snapshot_store)
    report = worker.reconcile(cycle("here", 2, 7, start=start, frontier=BatchId(6)), 0, [])
    assert report.answers == [Missing(COUNTED, BatchId(6))], "the driver decides from where it starts again"
    assert snapshot_store.brought == []
    snapshot_store.forget([snapshot_name("run", COUNTED, snapshots[0])])
    report = worker.reconcile(cycle("here", 2, 7, start=start, frontier=BatchId(5)), 0, [])
    assert report.answers == [SnapshotLost(COUNTED, snapshots[0].id, "it is not here")]
    assert COUNTED not in report.frontiers
    assert report.frontiers[SOURCE] == 7, "its neighbour goes on"


@pytest.mark.parametrize("trims", [False, True])
@pytest.mark.parametrize("marks", [(), (BatchId(2),)])
def test_a_late_task_that_begins_a_partition_again_does_not_take_the_node_back(
    tmp_path: Path, trims: bool, marks: tuple[BatchId, ...]
) -> None:
    """Finding 8: the files vanish, a late task of an earlier cycle begins anew, and the node went on from batch 0.

    Where a snapshot was due as well, the task ended with an error.
    """
    first = node("here", DirectoryStore(tmp_path), MemorySnapshotStore())

    def desired(through: int, frontier: int) -> DesiredState:
        start = Start(Epoch(1), NOTHING, ())
        tasks = {
            p: PartitionAssignment(NodeId("here"), start, BatchId(frontier), BatchId(0), BatchId(through), marks=marks)
            for p in (SOURCE, COUNTED)
        }
        return DesiredState("run", 1, Epoch(1), tasks, {COUNTED: NO_BATCH}, trim_outboxes=trims)

    assert first.reconcile(desired(2, -1), 0, []).frontiers[SOURCE] == 2
    DirectoryStore(tmp_path).drop(SOURCE)
    late = node("here", DirectoryStore(tmp_path), MemorySnapshotStore())
    assert late.reconcile(desired(0, -1), 0, []).frontiers[SOURCE] == 0
    report = first.reconcile(desired(3, 2), 0, [])
    assert SOURCE not in report.frontiers
    assert [one.partition for one in report.answers if isinstance(one, Missing)] == [SOURCE]
    anew = node("here", DirectoryStore(tmp_path), MemorySnapshotStore()).reconcile(desired(3, 2), 0, [])
    assert [one for one in anew.answers if isinstance(one, Missing)] == [Missing(SOURCE, BatchId(2))]


def test_a_snapshot_that_another_process_saves_again_in_a_later_epoch_is_the_same(tmp_path: Path) -> None:
    """The report of the first was lost. With other bytes under the same name it never counted as saved."""
    storage, marked = FileStorage(tmp_path / "durable"), frozenset([BatchId(5)])
    saved = []
    for epoch, frontier in ((1, NO_BATCH), (2, BatchId(5)), (3, BatchId(7))):
        worker = NodeWorker(
            PROGRAM,
            DirectoryStore(tmp_path / "here"),
            DurableSnapshotStore(storage),
            LOG,
            name=NodeId("here"),
            clock=lambda: 0.0,
            cpu_clock=lambda: 0.0,
            small_snapshot=0,
        )
        desired = cycle("here", epoch, 5 + epoch, marks=(5,), durable=marked, frontier=frontier)
        saved.append(stored(worker.reconcile(desired, 0, [])))
    assert saved[1:] == saved[:1] * 2
    assert saved[0].outbox_from == 0
    assert len(storage.list()) == 1


def test_two_attempts_at_once_put_a_partition_in_place_once(tmp_path: Path) -> None:
    """The second comes while the first is in the middle of it, waits, and finds it done."""
    snapshot_store = CountingSnapshotStore()
    snapshots = run_and_save(node("old", MemoryStore(), snapshot_store), "old")
    start = Start(Epoch(2), BatchId(5), snapshots)
    told = cycle("new", 2, BATCHES - 1, start=start, frontier=BatchId(5))
    in_the_middle, second_is_there = threading.Event(), threading.Event()

    def pause() -> None:
        in_the_middle.set()
        assert second_is_there.wait(60)
        # Nothing tells when the second waits for the lock; where there were none, it would come through meanwhile.
        second.join(0.3)

    snapshot_store.pause = pause
    reports: list[NodeReport] = []

    def attempt() -> None:
        reports.append(node("new", DirectoryStore(tmp_path), snapshot_store).reconcile(told, 0, []))

    def come_second() -> None:
        assert in_the_middle.wait(60)
        second_is_there.set()
        attempt()

    second = threading.Thread(target=come_second)
    first = threading.Thread(target=attempt)
    for thread in (second, first):
        thread.start()
    for thread in (second, first):
        thread.join(120)
    assert snapshot_store.brought == [snapshot_name("run", COUNTED, snapshot) for snapshot in snapshots], (
        "by the first alone"
    )
    assert sorted(len(report.answers) for report in reports) == [0, 1]
    assert all(isinstance(one, Restored) for report in reports for one in report.answers)
    assert [report.frontiers for report in reports] == [{SOURCE: BATCHES - 1, COUNTED: BATCHES - 1}] * 2
    plain = node("old", MemoryStore(), snapshot_store)
    plain.reconcile(cycle("old", 1, BATCHES - 1), 0, [])
    after = node("new", DirectoryStore(tmp_path), snapshot_store)
    after.reconcile(cycle("new", 2, BATCHES - 1, start=start, frontier=BatchId(BATCHES - 1)), 0, [])
    assert outbox(after) == outbox(plain)


@pytest.mark.parametrize("kind", ["memory", "directory", "journal"])
def test_what_is_here_of_a_partition_that_moved_away_goes_once_its_checkpoint_is_past_it(
    kind: str, tmp_path: Path
) -> None:
    """Otherwise every node comes to hold the state of all partitions that it ever had."""
    makers: dict[str, Callable[[], VersionStore]] = {
        "memory": MemoryStore,
        "directory": lambda: DirectoryStore(tmp_path),
        "journal": lambda: JournalStore(tmp_path),
    }
    store = makers[kind]()
    worker = node("n0", store, MemorySnapshotStore())
    worker.reconcile(cycle("n0", 1, 4), 0, [])
    assert set(store.held_partitions()) == {SOURCE, COUNTED}

    def moved(epoch: int, checkpoint: int) -> DesiredState:
        """COUNTED is at work on another node, and has a snapshot there."""
        given = cycle("n0", epoch, 4)
        saved = SavedSnapshot(BatchId(checkpoint), Epoch(1))
        away = replace(given.assignments[COUNTED], node=NodeId("n1"), follows=saved)
        return replace(given, assignments={**given.assignments, COUNTED: away})

    worker.reconcile(moved(2, 4), 0, [])
    assert set(store.held_partitions()) == {SOURCE, COUNTED}, "it may start from what is here, should it come back"
    worker.reconcile(moved(2, 5), 0, [])
    assert store.held_partitions() == (SOURCE,)
    assert store.chain(COUNTED) is None
    if kind == "journal":
        assert JournalStore(tmp_path).held_partitions() == (SOURCE,), "nor does the next process find it"


def test_a_late_task_of_an_earlier_epoch_drops_nothing_that_a_later_one_has_put_here() -> None:
    store = MemoryStore()
    late, snapshot_store = node("n0", store, MemorySnapshotStore()), MemorySnapshotStore()
    given = cycle("n0", 2, 4)
    away = replace(given.assignments[COUNTED], node=NodeId("n1"), follows=SavedSnapshot(BatchId(7), Epoch(1)))
    node("n0", store, snapshot_store).reconcile(cycle("n0", 3, 4), 0, [])
    late.reconcile(replace(given, assignments={COUNTED: away}), 0, [])
    assert store.chain(COUNTED) is not None


class AtOnce:
    """Threads that do everything at once."""

    def submit(self, work: Callable[..., object], /, *given: object, **named: object) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(work(*given, **named))
        return done


def test_memory_does_not_hold_snapshots_that_were_put_in_place() -> None:
    """They are as large as the state: a process that restored some from storage was ended for the memory it took."""
    storage = MemoryStorage()
    snapshots = run_and_save(node("old", MemoryStore(), DurableSnapshotStore(storage)), "old")
    snapshot_store = NodeSnapshotStore(storage, None, AtOnce())
    worker = node("new", MemoryStore(), snapshot_store)
    given = cycle("new", 2, 5, start=Start(Epoch(2), BatchId(5), snapshots), frontier=BatchId(5))
    worker.reconcile(given, 0, [])
    assert all(snapshot_store.fetched(snapshot_name("run", COUNTED, one)) is not None for one in snapshots)
    worker.reconcile(given, 0, [])
    assert worker.host.frontier(COUNTED) == 5
    assert all(snapshot_store.fetched(snapshot_name("run", COUNTED, one)) is None for one in snapshots)
    assert worker.bring("run", COUNTED, given.assignments[COUNTED].start) is None
    brought = worker.bring("run", COUNTED, given.assignments[COUNTED].start)
    assert brought is not None, "who needs them once more gets them"
    assert len(brought) == 2
    assert all(snapshot_store.fetched(snapshot_name("run", COUNTED, one)) is None for one in snapshots)
