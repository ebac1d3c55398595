"""The record of checkpoints: which snapshots of which partitions are saved, and which checkpoints are complete. Pure.

Sources mark batches; every partition that completes a marked batch saves a snapshot of its state at it. A set of
partitions moves its checkpoint to a mark once their snapshots are safe and every output up to it is out: all
partitions together, or those that go on while others wait (`recovery_line`). The *recovery line* has the batch of every
partition's checkpoint. Each snapshot is a base or the changes since the one before (a chain). During a recovery
snapshots hold outboxes too, so that a partition that fails again starts from its own last snapshot and costs only
itself. Every so many marks are durable: bases, on storage that outlives the nodes. A recovery that finds too few
fragments restores the last durable line; where that is damaged too, the one before, which is kept with all inputs
since.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from bisect import insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from holdfast.errors import CheckFailed
from holdfast.ids import BatchId, Epoch, OperatorId, PartitionId, SegmentId
from holdfast.recovery.intermediate import IntermediateMarks, kept_between
from holdfast.recovery.recovery_line import Line
from holdfast.recovery.segments import ONE_SEGMENT, MarkedSegments, Segments

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
    """The claim under which it was saved, and what `saved_count` gives: a name is used once."""
    contents: bytes | None = field(default=None, compare=False)
    """The snapshot itself, where it is so small that the record of checkpoints holds it; None: the store has it."""

    @property
    def id(self) -> tuple[BatchId, Epoch]:
        """Its batch and epoch: with the partition, its name."""
        return self.batch, self.epoch


def saved_count(forgotten: int, digest: int | None) -> int:
    """Number a snapshot: by how many the partition has forgotten, and by how its node keeps the state.

    A version is made twice in one epoch where a node's files vanish before the driver knows of it. The second is
    the same state in other segments: it must not pass for the first, which may have been saved.
    """
    return forgotten << 32 | (digest or 0)


def is_saved_of(snapshot: SavedSnapshot, digest: int | None) -> bool:
    """Whether a snapshot was saved of a state that is kept like this: only then it has the segments that one has."""
    return digest is not None and snapshot.saved[1] & 0xFFFFFFFF == digest


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
        """Marked batches to which a partition's checkpoint may still move."""
        self.line: dict[PartitionId, BatchId] = dict.fromkeys(self._partitions, NOTHING)
        """The batch of every partition's checkpoint."""
        self.durable_line: dict[PartitionId, BatchId] = dict(self.line)
        """The same, of checkpoints on storage that outlives the nodes."""
        self.line_before: dict[PartitionId, BatchId] | None = dict(self.line)
        """The durable line before it: the beginning, where there was none yet; None: it is used up."""
        self._durable_marks: set[BatchId] = set()
        self.segments: Segments = ONE_SEGMENT
        """Which partitions move their checkpoints together while all is well."""
        self._marked: dict[BatchId, frozenset[SegmentId]] = {}
        """The segments of each open mark that is not of all of them."""
        self.between = IntermediateMarks()
        """Where operators save between two checkpoints of their segments."""

    @property
    def global_batch(self) -> BatchId:
        """The last batch that the checkpoint of every partition covers."""
        return min(self.line.values(), default=NOTHING)

    @property
    def durable_batch(self) -> BatchId:
        """The last batch that the durable checkpoint of every partition covers."""
        return min(self.durable_line.values(), default=NOTHING)

    @property
    def durable_before(self) -> BatchId | None:
        """The last batch that the durable checkpoint before covers; None: there is none any more."""
        return None if self.line_before is None else min(self.line_before.values(), default=NOTHING)

    @classmethod
    def at_batch(cls, snapshots: Mapping[PartitionId, SavedSnapshot], batch: BatchId) -> Checkpoints:
        """Return the record of one durable checkpoint, and of nothing before it: where another layout begins."""
        checkpoints = cls(snapshots)
        for partition, snapshot in snapshots.items():
            checkpoints._snapshots[partition][snapshot.id] = snapshot
        checkpoints.line = dict.fromkeys(snapshots, batch)
        checkpoints.durable_line, checkpoints.line_before = dict(checkpoints.line), None
        checkpoints._durable_marks = {batch}
        return checkpoints

    # -- marks and snapshots -------------------------------------------------------------------------------------------

    def mark(self, batch: BatchId, *, durable: bool, segments: MarkedSegments = None) -> None:
        """Say that partitions save at a batch; one that is marked, or global, can be asked for again, durably.

        `segments`: whose partitions do; None: all partitions.
        """
        again = durable and batch not in self._durable_marks
        behind = any(at < batch for p, at in self.line.items() if segments is None or self.segments.of(p) in segments)
        if behind or (again and batch == self.global_batch != NOTHING):
            if segments is None:
                self._marked.pop(batch, None)
            elif batch not in self.marks or batch in self._marked:
                self._marked[batch] = self._marked.get(batch, frozenset()).union(segments)
            if batch not in self.marks:
                insort(self.marks, batch)
            if durable:
                self._durable_marks.add(batch)

    def concerns(self, partition: PartitionId, mark: BatchId) -> bool:
        """Whether a mark is one of a partition's segment."""
        return mark not in self._marked or self.segments.of(partition) in self._marked[mark]

    @property
    def marks_of_all(self) -> list[BatchId]:
        """The open marks that are those of every segment."""
        return [mark for mark in self.marks if mark not in self._marked]

    def mark_between(self, batch: BatchId, operators: Iterable[OperatorId]) -> None:
        """Say that operators save at a batch, and that no checkpoint moves by it."""
        named = frozenset(operators)
        if behind := {p.operator for p, at in self.line.items() if p.operator in named and at < batch}:
            self.between.open[batch] = self.between.open.get(batch, frozenset()) | behind

    def close_between(self, batch: BatchId) -> frozenset[OperatorId]:
        """Return the operators of an intermediate mark, of which all partitions have saved there, and close it."""
        mine = [p for p in self._partitions if self.between.concerns(p, batch)]
        if not mine or any(self.at(p, batch) is None for p in mine):
            return frozenset()
        return self.between.open.pop(batch)

    def snapshots(self, partition: PartitionId) -> list[SavedSnapshot]:
        """Return all snapshots of a partition."""
        return [*self._snapshots[partition].values()]

    def open_marks(self, segment: SegmentId) -> list[BatchId]:
        """Return the marks to which the checkpoint of a segment may still move, and its intermediate ones."""
        mine = [p for p in self._partitions if self.segments.of(p) == segment]
        between = sorted({batch for p in mine for batch in self.between.of(p)}) if self.between.open else []
        if not self.segments.many:
            return self.marks + between
        return [mark for mark in self.marks if any(self.lacks(p, mark) for p in mine)] + between

    def give_up(self, batch: BatchId, segment: SegmentId | None = None) -> None:
        """Give up a mark that will never be a checkpoint: a partition's state at it is lost.

        `segment`: whose partition; the others may still use it. None: nobody does.
        """
        if batch in self.marks and segment is not None and self.segments.many:
            left = frozenset(self._marked.get(batch, self.segments.names)) - {segment}
            if left:
                self._marked[batch] = left
                return
        if batch in self.marks:
            self._marked.pop(batch, None)
            self.marks.remove(batch)
            self._durable_marks -= {batch} - set(self.durable_line.values())

    def change_segments(self, segments: Segments) -> dict[PartitionId, list[SavedSnapshot]]:
        """Let other sets move together from now on, all being at one batch; return the snapshots of no use now.

        Marks of some of the old segments are given up: partitions that the new ones have as well may be past them.
        """
        for mark in [*self._marked]:
            self.give_up(mark)
        self.between.open.clear()
        self.segments = segments
        return self.sweep()

    def is_durable(self, mark: BatchId) -> bool:
        """Whether snapshots of a mark are whole, and kept on durable storage too."""
        return mark in self._durable_marks

    def stored(
        self, partition: PartitionId, snapshot: SavedSnapshot, needed_from: BatchId | None = None
    ) -> SavedSnapshot | None:
        """Record that a snapshot is safe; return the one that is of no use now, if any: this, or one it replaces.

        It is of no use if it holds changes since one that is gone, or if there is one that holds as much. Where rows
        from a batch on are not published, or consumers that wait will need them (`needed_from`), no snapshot that
        lacks them replaces one that holds them: its node had lost its outbox.
        """
        snapshots = self._snapshots[partition]
        if snapshot.follows is not None and snapshot.follows not in snapshots:
            return snapshot
        there = snapshots.get(snapshot.id)
        if there is not None and there != snapshot and not self._is_better(partition, snapshot, there):
            return snapshot
        needed = None if needed_from is None or needed_from > snapshot.batch else needed_from
        # Also one of another version: of several at a batch the latest stands for it.
        before = self.at(partition, snapshot.batch)
        if before is not None and needed is not None and _reaches(before, needed) and not _reaches(snapshot, needed):
            return snapshot
        snapshots[snapshot.id] = snapshot
        return there if there != snapshot else None

    def let_durable_stand(
        self, partition: PartitionId, version: tuple[BatchId, Epoch], needed_from: BatchId | None
    ) -> list[SavedSnapshot]:
        """Let the durable snapshot of a version stand for its batch; return later ones there, which go.

        A node that has an earlier version of a batch goes on from it, and saves it again and again: the later one,
        which is not durable, would keep the durable line behind for good. Not where only the later one holds rows from
        a batch on that are needed, or others follow it.
        """
        snapshots = self._snapshots[partition]
        durable = snapshots.get(version)
        if durable is None or not durable.durable:
            return []
        needed = None if needed_from is None or needed_from > version[0] else needed_from
        later = [one for one in snapshots.values() if one.batch == version[0] and one.id > version]
        followed = {one.follows for one in snapshots.values()}
        if any(one.durable or one.id in followed for one in later):
            return []
        if needed is not None and not _reaches(durable, needed) and any(_reaches(one, needed) for one in later):
            return []
        for one in later:
            del snapshots[one.id]
        return later

    def _is_better(self, partition: PartitionId, snapshot: SavedSnapshot, there: SavedSnapshot) -> bool:
        """Whether a snapshot takes the place of another of the same version: it is durable, or holds the outbox too."""
        if snapshot.durable and not there.durable:
            return True
        needed = there.batch in (self.durable_line[partition], self.oldest_line[partition])
        followed = any(one.follows == there.id for one in self._snapshots[partition].values())
        return (
            there.outbox_from is None
            and snapshot.outbox_from is not None
            and not followed
            and (snapshot.durable or not (there.durable and needed))
        )

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
        """Whether a partition's snapshot at a mark is safe, durably where the mark is: the one that stands for it.

        Of several versions at a batch that is the latest. Where it is not durable and an earlier one is, the mark is
        saved at again: the durable line counts what stands for its batch.
        """
        snapshot = self.at(partition, mark)
        return snapshot is not None and (snapshot.durable or mark not in self._durable_marks)

    def has_durable(self, partition: PartitionId, batch: BatchId) -> bool:
        """Whether the snapshot of a partition at a batch is on durable storage."""
        snapshot = self.at(partition, batch)
        return snapshot is not None and snapshot.durable

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

    def is_covered(self, partition: PartitionId, batch: BatchId, published: Mapping[PartitionId, BatchId]) -> bool:
        """Whether the outputs of a partition up to a batch cannot be lost: they are out, or its snapshot holds them.

        Those of an operator that is not deterministic go out only after the checkpoint; a sink may fail for long.
        """
        out = published.get(partition, batch)
        return out >= batch or self._holds(partition, batch, BatchId(out + 1))

    def lacks(self, partition: PartitionId, mark: BatchId) -> bool:
        """Whether a mark is of use to a partition: its checkpoint, or its durable one, is behind it."""
        at = self.line[partition]
        if self.segments.many and not self.concerns(partition, mark):
            return False
        if self.segments.many and at == mark and self.has_durable(partition, mark):
            return False  # it has done its part: the others come to it at their own time
        return at < mark or (at == mark in self._durable_marks and self.durable_line[partition] < mark)

    def _holds(self, partition: PartitionId, mark: BatchId, first: BatchId) -> bool:
        """Whether a partition's snapshot at a mark holds its output from a batch on."""
        return _reaches(self.at(partition, mark), first)

    def outbox_from(self, partition: PartitionId, batch: BatchId) -> BatchId | None:
        """Return the first batch of output that a partition's snapshot at a batch holds; None: it holds none."""
        snapshot = self.at(partition, batch)
        return None if snapshot is None else snapshot.outbox_from

    def durable_next(self, published: Mapping[PartitionId, BatchId]) -> BatchId | None:
        """Return the last mark that is durable of all segments, and which all have reached; None: there is none."""
        for mark in sorted(self._durable_marks, reverse=True):
            if mark > self.durable_batch and all(
                at >= mark and self.has_durable(p, mark) and self.is_covered(p, mark, published)
                for p, at in self.line.items()
            ):
                return mark
        return None

    def move(
        self, moving: Line, published: Mapping[PartitionId, BatchId] | None = None
    ) -> dict[PartitionId, list[SavedSnapshot]]:
        """Move the checkpoints of a set to these batches; return the snapshots that are not needed any more.

        The durable line follows when all partitions are at one batch, durably. While some wait it stays: a line with
        their old snapshots would share them with the line before, and there would be no second copy of them. Where
        there are several segments, it follows when the last of them has a durable mark: others may be past it.
        """
        self.line.update(moving)
        self.between.trim(self.line)
        if self.segments.many:
            return self._move_segments({} if published is None else published)
        level = len(set(self.line.values())) == 1
        if level and self.line != self.durable_line and all(self.has_durable(p, at) for p, at in self.line.items()):
            self._move_durable(dict(self.line), published or {})
        covered = self.global_batch
        # One that all have reached, and some not durably, stays open for these.
        undone = any(self.lacks(p, covered) for p in self._partitions if p not in moving)
        self.marks = [one for one in self.marks if one > covered or (undone and one == covered)]
        lines = {*self.line.values(), *self.durable_line.values()}
        self._durable_marks = {one for one in self._durable_marks if one >= covered or one in lines}
        return self.sweep()

    def _move_segments(self, published: Mapping[PartitionId, BatchId]) -> dict[PartitionId, list[SavedSnapshot]]:
        if (durable := self.durable_next(published)) is not None:
            self._move_durable(dict.fromkeys(self.line, durable), published)
        self.marks = [one for one in self.marks if any(self.lacks(p, one) for p in self._partitions)]
        self._marked = {mark: names for mark, names in self._marked.items() if mark in self.marks}
        kept = {*self.marks, *self.line.values(), *self.durable_line.values()}
        self._durable_marks &= kept
        return self.sweep()

    def _move_durable(self, line: dict[PartitionId, BatchId], published: Mapping[PartitionId, BatchId]) -> None:
        """Move the durable line. One that is known to be damaged (`lost`) is not kept as the one before it."""
        if not self.durable_is_damaged(published):
            self.line_before = self.durable_line
        self.durable_line = line

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

    def durable_snapshots(self, partition: PartitionId) -> list[SavedSnapshot]:
        """Return the snapshots that a partition starts from at the durable lines, with those they follow."""
        ends = [self.at(partition, line[partition]) for line in (self.durable_line, self.oldest_line)]
        return [one for end in ends if end is not None for one in self.chain(partition, end)]

    @property
    def oldest_line(self) -> Line:
        """The batches after which inputs are needed: of the older durable checkpoint."""
        return self.durable_line if self.line_before is None else self.line_before

    def durable_is_damaged(self, published: Mapping[PartitionId, BatchId]) -> bool:
        """Whether a snapshot of the last durable checkpoint is lost, or one with rows that are not out."""
        return any(
            at != NOTHING and (self.at(p, at) is None or not self.is_covered(p, at, published))
            for p, at in self.durable_line.items()
        )

    def go_durable(
        self, published: Mapping[PartitionId, BatchId] = MappingProxyType({})
    ) -> dict[PartitionId, list[SavedSnapshot]]:
        """A checkpoint is lost: the last durable line takes the place of the line, and what came after is forgotten.

        Where that one is damaged too, the durable one before takes its place.
        """
        if self.durable_is_damaged(published) and self.line_before is not None:
            self.durable_line, self.line_before = self.line_before, None
        self.line = dict(self.durable_line)
        self.marks, self._marked = [], {}
        self.between = IntermediateMarks()
        self._durable_marks = set(self.durable_line.values())
        return {partition: self.forget_after(partition, at) for partition, at in self.line.items()}

    def sweep(self) -> dict[PartitionId, list[SavedSnapshot]]:
        """Drop what is not needed any more, and return it.

        Needed are the lines, what a partition's checkpoint may still move to, and every partition's last snapshot;
        where operators save at multiples, also what others of the segment may have it start from (`intermediate`).
        """
        gone = {}
        lasts = self._last_by_segment() if self.segments.multiples else {}
        for partition, snapshots in self._snapshots.items():
            needed_at = {*self._kept(partition), *(mark for mark in self.marks if mark > self.line[partition])}
            if self.segments.many:
                needed_at |= self._durable_marks & set(self.marks)  # others have not come to it yet
            if lasts:
                held = (batch for batch, _ in snapshots)
                needed_at |= kept_between(held, self.line[partition], lasts[self.segments.of(partition)])
            if partition in self.between.started:
                needed_at.add(self.between.started[partition])
            needed: set[tuple[BatchId, Epoch]] = set()
            last = self.last(partition)
            for snapshot in snapshots.values():
                if snapshot.batch in needed_at or snapshot == last:
                    needed |= {one.id for one in self.chain(partition, snapshot)}
            gone[partition] = [snapshots.pop(key) for key in [key for key in snapshots if key not in needed]]
        return gone

    def _last_by_segment(self) -> dict[SegmentId, set[BatchId]]:
        """Return the batches of the last snapshots of partitions, by their segments."""
        found: dict[SegmentId, set[BatchId]] = {}
        for partition in self._partitions:
            batches = found.setdefault(self.segments.of(partition), set())
            if (last := self.last(partition)) is not None:
                batches.add(last.batch)
        return found

    def _kept(self, partition: PartitionId) -> set[BatchId]:
        """The batches of a partition's checkpoints that a recovery may start from."""
        return {self.line[partition], self.durable_line[partition], self.oldest_line[partition]}

    # -- written down --------------------------------------------------------------------------------------------------

    def written(self) -> dict[str, object]:
        """Return what a driver that starts again needs."""
        return {
            "global": self.global_batch,
            "durable": self.durable_batch,
            "durable-before": self.durable_before,
            "lines": {
                "checkpoint": _beyond(self.line, self.global_batch),
                "durable": _beyond(self.durable_line, self.durable_batch),
                "durable-before": {}
                if self.line_before is None or self.durable_before is None
                else _beyond(self.line_before, self.durable_before),
            },
            "snapshots": {
                str(partition): [
                    [one.batch, one.epoch, one.follows, one.outbox_from, one.durable, one.saved, _as_text(one.contents)]
                    for one in sorted(snapshots.values())
                    if any(one in self.chain(partition, top) for top in _tops(snapshots, self._kept(partition)))
                ]
                for partition, snapshots in self._snapshots.items()
            },
        }

    @classmethod
    def read(cls, partitions: Sequence[PartitionId], fields: Mapping[str, Any]) -> Checkpoints:
        """Read the record that an earlier driver wrote."""
        checkpoints = cls(partitions)
        lines = fields.get("lines", {})

        def line(name: str, batch: int) -> dict[PartitionId, BatchId]:
            beyond = lines.get(name, {})
            return {p: BatchId(int(beyond.get(str(p), batch))) for p in partitions}

        checkpoints.line = line("checkpoint", fields["global"])
        checkpoints.durable_line = line("durable", fields["durable"])
        before = fields["durable-before"]
        checkpoints.line_before = None if before is None else line("durable-before", before)
        checkpoints._durable_marks = set(checkpoints.durable_line.values())
        snapshots = fields["snapshots"]
        for partition in partitions:
            for batch, epoch, follows, outbox_from, durable, saved, kept in snapshots.get(str(partition), ()):
                base = None if follows is None else (BatchId(follows[0]), Epoch(follows[1]))
                contents = b64decode(kept) if isinstance(kept, str) else None
                snapshot = SavedSnapshot(
                    BatchId(batch), Epoch(epoch), base, outbox_from, durable, (saved[0], saved[1]), contents
                )
                checkpoints._snapshots[partition][snapshot.id] = snapshot
        return checkpoints


def _beyond(line: Line, batch: BatchId) -> dict[str, BatchId]:
    """Return the partitions of a line that are further than a batch."""
    return {str(p): at for p, at in line.items() if at > batch}


def _reaches(snapshot: SavedSnapshot | None, first: BatchId | None) -> bool:
    """Whether a snapshot holds the output from a batch on."""
    held = None if snapshot is None else snapshot.outbox_from
    return held is not None and first is not None and held <= first


def _tops(snapshots: Mapping[tuple[BatchId, Epoch], SavedSnapshot], kept: set[BatchId]) -> list[SavedSnapshot]:
    return [one for one in snapshots.values() if one.batch in kept]


def _as_text(contents: bytes | None) -> str | None:
    return None if contents is None else b64encode(contents).decode()
