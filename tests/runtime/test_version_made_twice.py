"""A version that is made twice in one epoch: a node's files vanish before the driver knows of any progress."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.examples import EXAMPLES
from holdfast.ids import BatchId, Epoch, NodeId, PartitionId
from holdfast.recovery.checkpoints import NOTHING, SavedSnapshot, snapshot_name
from holdfast.recovery.cluster_state import Start
from holdfast.runtime.io.batch_log import BatchLog
from holdfast.runtime.messages import (
    DesiredState,
    Failed,
    NodeReport,
    PartitionAssignment,
    SnapshotLost,
    SnapshotStored,
)
from holdfast.runtime.program import Program
from holdfast.runtime.state.durable_snapshots import DurableSnapshotStore
from holdfast.runtime.state.journal_store import JournalStore
from holdfast.runtime.state.snapshot_store import MemorySnapshotStore, SnapshotStore
from holdfast.runtime.state.snapshots import assemble, decode_snapshot
from holdfast.runtime.state.store import MemoryStore
from holdfast.runtime.worker.worker import NodeWorker
from holdfast.storage.memory import MemoryStorage

NODE, EPOCH = NodeId("n0"), Epoch.of(1, 1)
FIRST, SECOND = BatchId(2), BatchId(4)
EXAMPLE = EXAMPLES["hashtags"]


class World:
    """One node, and what outlives its files."""

    def __init__(self, snapshots: SnapshotStore) -> None:
        self.program, self.snapshots = Program(EXAMPLE.application()), snapshots
        self.log = BatchLog(self.program.sources, self.program.name)
        for batch in EXAMPLE.batches(3, 6, 40):
            self.log.append(batch)

    def worker(self, store: JournalStore | MemoryStore) -> NodeWorker:
        return NodeWorker(
            self.program,
            store,
            self.snapshots,
            self.log,
            name=NODE,
            clock=lambda: 0.0,
            cpu_clock=lambda: 0.0,
            small_snapshot=0,
        )

    def desired(
        self,
        through: BatchId,
        mark: BatchId,
        last: dict[PartitionId, SavedSnapshot] | None = None,
        starts: dict[PartitionId, Start] | None = None,
    ) -> DesiredState:
        nothing = Start(EPOCH, NOTHING, ())
        assignments = {
            p: PartitionAssignment(
                NODE,
                (starts or {}).get(p, nothing),
                (starts or {}).get(p, nothing).batch if starts or last is None else FIRST,
                BatchId(0),
                through,
                (mark,),
                frozenset(),
                (last or {}).get(p),
            )
            for p in self.program.partitions
        }
        published = dict.fromkeys(self.program.partitions, NOTHING)
        return DesiredState("run", 1, EPOCH if starts is None else EPOCH.next, assignments, published)


def stored(report: NodeReport) -> dict[PartitionId, SavedSnapshot]:
    return {one.partition: one.snapshot for one in report.answers if isinstance(one, SnapshotStored)}


def needs_another(world: World, partition: PartitionId, snapshot: SavedSnapshot) -> bool:
    """Whether a snapshot does not have all segments of its state."""
    data = world.snapshots.fetched(snapshot_name("run", partition, snapshot))
    assert data is not None
    found = decode_snapshot(data)
    return any(ref not in found.segments for refs in found.commit.segments.values() for ref in refs)


@pytest.mark.parametrize("snapshots", [lambda: DurableSnapshotStore(MemoryStorage()), MemorySnapshotStore])
def test_the_second_is_saved_for_itself_and_what_follows_it_fits(
    snapshots: Callable[[], SnapshotStore], tmp_path: Path
) -> None:
    world = World(snapshots())
    first = stored(world.worker(JournalStore(tmp_path / "a")).reconcile(world.desired(FIRST, FIRST), 0, []))
    assert set(first) == set(world.program.partitions)
    # The report is lost, and so are the files; another process of the node starts as the first one did.
    JournalStore(tmp_path / "b")
    worker = world.worker(JournalStore(tmp_path / "b"))
    second = stored(worker.reconcile(world.desired(FIRST, FIRST), 0, []))
    assert set(second) == set(world.program.partitions), "it is saved, though the first one was"
    third = stored(worker.reconcile(world.desired(SECOND, SECOND, second), 0, []))
    follows = [p for p, one in third.items() if one.follows is not None]
    assert follows, "it holds what has changed since"
    for p in follows:
        found = []
        for one in (second[p], third[p]):
            data = world.snapshots.fetched(snapshot_name("run", p, one))
            assert data is not None
            found.append(decode_snapshot(data))
        assemble(found)


def test_a_snapshot_of_the_first_is_not_followed_by_one_of_the_second(tmp_path: Path) -> None:
    """A late report of the first may have reached the driver: the next snapshot is whole."""
    world = World(MemorySnapshotStore())
    first = stored(world.worker(JournalStore(tmp_path / "a")).reconcile(world.desired(FIRST, FIRST), 0, []))
    JournalStore(tmp_path / "b")
    worker = world.worker(JournalStore(tmp_path / "b"))
    worker.reconcile(world.desired(FIRST, FIRST), 0, [])
    third = stored(worker.reconcile(world.desired(SECOND, SECOND, first), 0, []))
    for p, one in third.items():
        data = world.snapshots.fetched(snapshot_name("run", p, one))
        assert data is not None
        if one.follows is None:
            assemble([decode_snapshot(data)])
        else:
            before = world.snapshots.fetched(snapshot_name("run", p, first[p]))
            assert before is not None
            assemble([decode_snapshot(before), decode_snapshot(data)])


def test_snapshots_that_do_not_fit_each_other_count_as_lost(tmp_path: Path) -> None:
    """The partition starts from another checkpoint then; an error would end the run, and the next start as well."""
    world = World(MemorySnapshotStore())
    worker = world.worker(JournalStore(tmp_path / "a"))
    first = stored(worker.reconcile(world.desired(FIRST, FIRST), 0, []))
    third = stored(worker.reconcile(world.desired(SECOND, SECOND, first), 0, []))
    p, last = next((p, one) for p, one in third.items() if needs_another(world, p, one))
    other = World(MemorySnapshotStore())
    JournalStore(tmp_path / "b")
    wrong = stored(other.worker(JournalStore(tmp_path / "b")).reconcile(other.desired(FIRST, FIRST), 0, []))
    data = other.snapshots.fetched(snapshot_name("run", p, wrong[p]))
    assert data is not None
    store = world.snapshots
    assert isinstance(store, MemorySnapshotStore)
    store.snapshots[snapshot_name("run", p, first[p])] = data
    starts = {p: Start(EPOCH.next, SECOND, (first[p], last))}
    report = world.worker(MemoryStore()).reconcile(world.desired(SECOND, SECOND, None, starts), 0, [])
    lost = [one for one in report.answers if isinstance(one, SnapshotLost)]
    assert [one.partition for one in lost] == [p]
    assert "do not have all of its segments" in lost[0].problem


def test_files_that_vanish_while_a_partition_is_restored_are_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was an assertion, which ended the process with all its partitions."""
    world = World(MemorySnapshotStore())
    first = stored(world.worker(JournalStore(tmp_path / "a")).reconcile(world.desired(FIRST, FIRST), 0, []))
    store = MemoryStore()
    monkeypatch.setattr(store, "chain", lambda partition: None)
    starts = {p: Start(EPOCH.next, FIRST, (one,)) for p, one in first.items()}
    report = world.worker(store).reconcile(world.desired(FIRST, SECOND, starts=starts), 0, [])
    failed = {one.partition: one.problem for one in report.answers if isinstance(one, Failed)}
    assert set(failed) == set(world.program.partitions)
    assert all("vanished while it was restored" in problem for problem in failed.values())
