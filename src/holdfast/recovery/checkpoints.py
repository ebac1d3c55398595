"""The record of checkpoints: which snapshots of which partitions are saved, and which checkpoints are complete. Pure.

Sources mark batches; every partition that completes a marked batch saves a snapshot of its state at it. The checkpoint
of a mark is *global* once every partition's snapshot is safe and every output up to it is out. Each snapshot is a base
or the changes since the one before (a chain). During a recovery snapshots hold outboxes too, so that a partition that
fails again starts from its own last snapshot and costs only itself. Every so many marks are durable: bases, on storage
that outlives the nodes. A recovery that finds too few fragments restores the last of those; where that is damaged
too, to the one before, which is kept with all inputs since.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from bisect import insort
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.errors import CheckFailed
from holdfast.ids import BatchId, Epoch, PartitionId

FIRST = BatchId(0)
NO_EPOCH = Epoch(0)
NOTHING = BatchId(-1)
"""Before the first batch: what a partition starts from that has no checkpoint."""
_DURABLE = "-d"


@dataclass(frozen=True, slots=True, order=True)
class SavedSnapshot:
    """That a partition's state at a batch is safe in the store."""

    batch: BatchId
    epoch: Epoch
    """The epoch of the version it was taken of."""
    follows: tuple[BatchId, Epoch] | None = None
    """The snapshot whose changes it holds; None: it is whole."""
    outbox_from: BatchId | None = None
    """The first batch whose output it holds, with the snapshots it follows; None: it holds none."""
    durable: bool = False
    saved: tuple[int, int] = (0, 0)
    """The claim under which it was saved, and the partition's count of forgotten snapshots: a name is used once."""
    contents: bytes | None = field(default=None, compare=False)
    """The snapshot itself, where it is so small that the record of checkpoints holds it; None: the store has it."""

    @property
    def id(self) -> tuple[BatchId, Epoch]:
        """Its batch and epoch: with the partition, its name."""
        return self.batch, self.epoch


def snapshot_name(run: str, partition: PartitionId, snapshot: SavedSnapshot) -> str:
    """Name a snapshot in the store. A name never stands for two things, and is never used again once it is forgotten.

    So a driver or node that was frozen can neither overwrite nor delete what a later one needs.
    """
    claim, count = snapshot.saved
    name = f"{run}/{partition.operator}-{partition.index}/c{claim}.{count}-{snapshot.batch}.{snapshot.epoch}"
    if snapshot.follows is not None:
        name += f"-{snapshot.follows[0]}.{snapshot.follows[1]}"
    if snapshot.outbox_from is not None:
        name += f"-o{snapshot.outbox_from}"
    return f"{name}{_DURABLE}" if snapshot.durable else name


def claim_of_name(name: str) -> int:
    """Return the claim under which a snapshot of this name was saved."""
    return int(name.rpartition("/")[2].partition(".")[0].removeprefix("c"))


def is_durable_name(name: str) -> bool:
    """Whether a snapshot of this name is kept on durable storage."""
    return name.endswith(_DURABLE)


class Checkpoints:
    """What is safe of every partition."""

    def __init__(self, partitions: Iterable[PartitionId]) -> None:
        self._partitions = tuple(partitions)
        self._snapshots: dict[PartitionId, dict[tuple[BatchId, Epoch], SavedSnapshot]] = {
            p: {} for p in self._partitions
        }
        self.marks: list[BatchId] = []
        """Marked batches after the last global checkpoint."""
        self.global_batch = NOTHING
        self.durable_batch = NOTHING
        """The last durable checkpoint."""
        self.durable_before: BatchId | None = NOTHING
        """The durable checkpoint before it: the beginning, where there was none yet; None: it is used up."""
        self._durable_marks: set[BatchId] = set()

    @classmethod
    def at_batch(cls, snapshots: Mapping[PartitionId, SavedSnapshot], batch: BatchId) -> Checkpoints:
        """Return the record of one durable checkpoint, and of nothing before it: where another layout begins."""
        checkpoints = cls(snapshots)
        for partition, snapshot in snapshots.items():
            checkpoints._snapshots[partition][snapshot.id] = snapshot
        checkpoints.global_batch = checkpoints.durable_batch = batch
        checkpoints.durable_before = None
        checkpoints._durable_marks = {batch}
        return checkpoints

    # -- marks and snapshots -------------------------------------------------------------------------------------------

    def mark(self, batch: BatchId, *, durable: bool) -> None:
        """Say that partitions save at a batch; one that is marked, or global, can be asked for again, durably."""
        again = durable and batch not in self._durable_marks
        if batch > self.global_batch or (again and batch == self.global_batch != NOTHING):
            if batch not in self.marks:
                insort(self.marks, batch)
            if durable:
                self._durable_marks.add(batch)

    def give_up(self, batch: BatchId) -> None:
        """Give up a mark that will never be a checkpoint: a partition's state at it is lost."""
        if batch in self.marks:
            self.marks.remove(batch)
            self._durable_marks -= {batch} - {self.durable_batch}

    def is_durable(self, mark: BatchId) -> bool:
        """Whether snapshots of a mark are whole, and kept on durable storage too."""
        return mark in self._durable_marks

    def stored(self, partition: PartitionId, snapshot: SavedSnapshot) -> SavedSnapshot | None:
        """Record that a snapshot is safe; return the one that is of no use now, if any: this, or one it replaces.

        It is of no use if it holds changes since one that is gone, or if there is one that holds as much.
        """
        snapshots = self._snapshots[partition]
        if snapshot.follows is not None and snapshot.follows not in snapshots:
            return snapshot
        there = snapshots.get(snapshot.id)
        if there is not None and there != snapshot and (there.durable or not snapshot.durable):
            return snapshot
        snapshots[snapshot.id] = snapshot
        return there if there != snapshot else None

    @property
    def last_batch(self) -> BatchId:
        """The last batch at which somebody's snapshot is safe."""
        return max((batch for snapshots in self._snapshots.values() for batch, _ in snapshots), default=NOTHING)

    def names(self, run: str) -> set[str]:
        """Return the names of all recorded snapshots."""
        return {
            snapshot_name(run, p, snapshot)
            for p, snapshots in self._snapshots.items()
            for snapshot in snapshots.values()
        }

    def knows(self, partition: PartitionId, snapshot: SavedSnapshot) -> bool:
        """Whether a snapshot is recorded."""
        return self._snapshots[partition].get(snapshot.id) == snapshot

    def has(self, partition: PartitionId, mark: BatchId) -> bool:
        """Whether a partition's snapshot at a mark is safe, durably where the mark is."""
        snapshots, durable = self._snapshots[partition], mark in self._durable_marks
        return any(batch == mark and (snapshot.durable or not durable) for (batch, _), snapshot in snapshots.items())

    def last(self, partition: PartitionId) -> SavedSnapshot | None:
        """Return a partition's last snapshot."""
        return max(self._snapshots[partition].values(), default=None)

    def at(self, partition: PartitionId, batch: BatchId) -> SavedSnapshot | None:
        """Return a partition's snapshot at a batch, the latest where there are several."""
        return max((one for one in self._snapshots[partition].values() if one.batch == batch), default=None)

    def chain(self, partition: PartitionId, snapshot: SavedSnapshot) -> tuple[SavedSnapshot, ...]:
        """Return a snapshot with those it follows, the base first."""
        found = [snapshot]
        while (follows := found[-1].follows) is not None:
            before = self._snapshots[partition].get(follows)
            if before is None:
                raise CheckFailed(
                    f"the snapshot of {partition} at batch {found[-1].batch} follows one that is gone",
                    where="recovery",
                    remedy="this is a fault of ours: report it",
                )
            found.append(before)
        return tuple(reversed(found))

    # -- what counts -------------------------------------------------------------------------------------------------

    def next_global(self, published: Mapping[PartitionId, BatchId], sure: Collection[PartitionId]) -> BatchId | None:
        """Return the last mark that every partition has saved and whose outputs cannot be lost, if there is a new one.

        A sure (deterministic) output is out. One that is not goes out only after the checkpoint: its snapshot holds it.
        """
        for mark in reversed(self.marks):
            if all(self.has(p, mark) for p in self._partitions) and all(
                batch >= mark or (p not in sure and self._holds(p, mark, BatchId(batch + 1)))
                for p, batch in published.items()
            ):
                return mark
        return None

    def _holds(self, partition: PartitionId, mark: BatchId, first: BatchId) -> bool:
        """Whether a partition's snapshot at a mark holds its output from a batch on."""
        snapshot = self.at(partition, mark)
        return snapshot is not None and snapshot.outbox_from is not None and snapshot.outbox_from <= first

    def make_global(self, mark: BatchId) -> dict[PartitionId, list[SavedSnapshot]]:
        """Let a mark be the global checkpoint; return the snapshots that nobody needs any more."""
        self.global_batch = mark
        if mark in self._durable_marks and mark != self.durable_batch:
            self.durable_before, self.durable_batch = self.durable_batch, mark
        self.marks = [one for one in self.marks if one > mark]
        self._durable_marks = {one for one in self._durable_marks if one >= mark}
        return self.sweep()

    def forget_after(self, partition: PartitionId, batch: BatchId) -> list[SavedSnapshot]:
        """Forget snapshots after a batch: the partition rolls back, and may give other rows. Returns them."""
        snapshots = self._snapshots[partition]
        return [snapshots.pop(key) for key in [key for key in snapshots if key[0] > batch]]

    def lost(self, partition: PartitionId, snapshot: tuple[BatchId, Epoch]) -> list[SavedSnapshot]:
        """Remove a snapshot that cannot be restored, and with it those that hold the changes since.

        Returns those that were removed.
        """
        snapshots, gone = self._snapshots[partition], {snapshot}
        found: list[SavedSnapshot] = []
        while gone:
            found += [snapshots.pop(one) for one in gone if one in snapshots]
            gone = {key for key, one in snapshots.items() if one.follows in gone}
        return found

    @property
    def inputs_from(self) -> BatchId:
        """The batch after which inputs are needed: of the older durable checkpoint."""
        return self.durable_batch if self.durable_before is None else self.durable_before

    @property
    def durable_is_damaged(self) -> bool:
        """Whether a snapshot of the last durable checkpoint is lost."""
        batch = self.durable_batch
        return batch != NOTHING and any(self.at(p, batch) is None for p in self._partitions)

    def go_durable(self) -> dict[PartitionId, list[SavedSnapshot]]:
        """The global checkpoint is lost: the last durable one takes its place, and what came after is forgotten.

        Where that one is damaged too, the durable one before takes its place.
        """
        if self.durable_is_damaged and self.durable_before is not None:
            self.durable_batch, self.durable_before = self.durable_before, None
        self.global_batch = self.durable_batch
        self.marks = []
        self._durable_marks = {self.durable_batch}
        return {partition: self.forget_after(partition, self.durable_batch) for partition in self._partitions}

    def sweep(self) -> dict[PartitionId, list[SavedSnapshot]]:
        """Drop what nobody needs any more, and return it.

        Needed are the global and the durable checkpoints, what may become one, and every partition's last snapshot.
        """
        needed_at = {*self._kept, *self.marks}
        gone = {}
        for partition, snapshots in self._snapshots.items():
            needed: set[tuple[BatchId, Epoch]] = set()
            last = self.last(partition)
            for snapshot in snapshots.values():
                if snapshot.batch in needed_at or snapshot == last:
                    needed |= {one.id for one in self.chain(partition, snapshot)}
            gone[partition] = [snapshots.pop(key) for key in [key for key in snapshots if key not in needed]]
        return gone

    @property
    def _kept(self) -> set[BatchId]:
        """The batches of checkpoints that a recovery may start from."""
        return {self.global_batch, self.durable_batch, self.inputs_from}

    # -- written down --------------------------------------------------------------------------------------------------

    def written(self) -> dict[str, object]:
        """Return what a driver that starts again needs."""
        kept = self._kept
        return {
            "global": self.global_batch,
            "durable": self.durable_batch,
            "durable-before": self.durable_before,
            "snapshots": {
                str(partition): [
                    [one.batch, one.epoch, one.follows, one.outbox_from, one.durable, one.saved, _as_text(one.contents)]
                    for one in sorted(snapshots.values())
                    if one.batch in kept or any(one in self.chain(partition, top) for top in _tops(snapshots, kept))
                ]
                for partition, snapshots in self._snapshots.items()
            },
        }

    @classmethod
    def read(cls, partitions: Sequence[PartitionId], fields: Mapping[str, object]) -> Checkpoints:
        """Read the record that an earlier driver wrote."""
        checkpoints = cls(partitions)
        checkpoints.global_batch = BatchId(int(str(fields["global"])))
        checkpoints.durable_batch = BatchId(int(str(fields["durable"])))
        before = fields["durable-before"]
        checkpoints.durable_before = None if before is None else BatchId(int(str(before)))
        checkpoints._durable_marks = {checkpoints.durable_batch}
        snapshots = fields["snapshots"]
        assert isinstance(snapshots, Mapping)
        for partition in partitions:
            for batch, epoch, follows, outbox_from, durable, saved, kept in snapshots.get(str(partition), ()):
                base = None if follows is None else (BatchId(follows[0]), Epoch(follows[1]))
                contents = b64decode(kept) if isinstance(kept, str) else None
                snapshot = SavedSnapshot(
                    BatchId(batch), Epoch(epoch), base, outbox_from, durable, (saved[0], saved[1]), contents
                )
                checkpoints._snapshots[partition][snapshot.id] = snapshot
        return checkpoints


def _tops(snapshots: Mapping[tuple[BatchId, Epoch], SavedSnapshot], kept: set[BatchId]) -> list[SavedSnapshot]:
    return [one for one in snapshots.values() if one.batch in kept]


def _as_text(contents: bytes | None) -> str | None:
    return None if contents is None else b64encode(contents).decode()
