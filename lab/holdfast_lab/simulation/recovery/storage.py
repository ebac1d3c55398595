"""The run's storage in a simulation: a driver can die, be frozen or fail at every call. Runs anywhere.

Objects are in memory. Around every call the world may go on without its caller: that is where another driver takes
over. A call can fail with or without its effect, as a store that is away for a moment does.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import pyarrow as pa

from holdfast.ids import BatchId, OperatorId, PartitionId, SegmentId
from holdfast.runtime.identity import describe
from holdfast.runtime.io.file_ranges import FileRange, how_of
from holdfast.runtime.io.in_place import latest_event
from holdfast.runtime.io.offset_ranges import OffsetRange, SourceRange, source_range_of
from holdfast.runtime.io.range_copies import copy_name
from holdfast.runtime.io.source_pieces import Piece, piece_of, read_pieces
from holdfast.runtime.program import Program, SourceProgram
from holdfast.runtime.times import Watermark, highest
from holdfast.storage.memory import MemoryStorage
from holdfast.storage.storage import Storage
from holdfast_lab.simulation.recovery.applications import Recipe, program_of
from holdfast_lab.simulation.recovery.decided import Decided
from holdfast_lab.simulation.recovery.faults import Fault, Mischief
from holdfast_lab.simulation.recovery.folders import SimulatedFolder
from holdfast_lab.simulation.recovery.stores import Complain
from holdfast_lab.simulation.recovery.topics import SimulatedTopic


def identity_of(recipe: Recipe) -> str:
    """Return what progress says of a recipe's operators, as a text."""
    return json.dumps(describe(program_of(recipe))["operators"], sort_keys=True)


class Outage:
    """Whether the storage is away, or full, for a while."""

    def __init__(self, mischief: Mischief, clock: Callable[[], float]) -> None:
        self.mischief, self._clock = mischief, clock
        self._until = -1.0
        self._full = False

    def check(self, name: str, *, writes: bool) -> None:
        """Raise where a call fails because of it: all calls, or those that need room."""
        mischief, now = self.mischief, self._clock()
        if now >= self._until and mischief.strikes(Fault.STORAGE_AWAY):
            self._until = now + mischief.draw.uniform(2, 60)
            self._full = mischief.draw.random() < 0.5
        if mischief.active and now < self._until and (writes or not self._full):
            raise OSError(f"{name}: no space left" if self._full else f"{name}: the storage does not answer")


class DriverStorage:
    """A driver's view of the storage."""

    def __init__(
        self,
        world: Storage,
        touch: Callable[[str], None],
        outage: Outage,
        created: Callable[[str], None],
        folder: str = "",
    ) -> None:
        """`touch` is called around every call; `created` with the full name of every object that is new."""
        self._world, self._touch, self._outage, self._created, self._folder = world, touch, outage, created, folder
        self._mischief = outage.mischief
        self._view = world.within(folder) if folder else world
        self.url = f"simulated:{folder}"

    def create(self, name: str, data: bytes | memoryview | pa.Buffer) -> bool:
        """See Storage."""
        self._touch(f"before creating {name}")
        self._outage.check(name, writes=True)
        fails = self._mischief.strikes(Fault.STORAGE_FAILED)
        if fails and self._mischief.draw.random() < 0.5:
            raise OSError(f"{name}: no space left")
        new = self._view.create(name, data)
        if new:
            self._created(f"{self._folder}/{name}" if self._folder else name)
        if fails:
            raise OSError(f"{name}: the answer was lost")
        self._touch(f"after creating {name}")
        return new

    def read(self, name: str) -> pa.Buffer | None:
        """See Storage."""
        self._touch(f"before reading {name}")
        self._outage.check(name, writes=False)
        if self._mischief.strikes(Fault.STORAGE_READ_FAILED):
            raise OSError(f"{name}: input/output error")
        return self._view.read(name)

    def list(self, prefix: str = "", *, after: str = "") -> list[str]:
        """See Storage: slow, what others do meanwhile is seen or not, name by name."""
        self._outage.check(prefix, writes=False)
        before, changes = self._view.list(prefix, after=after), self._changes()
        self._touch(f"while listing {prefix}")
        if changes is not None and changes == self._changes():
            return before
        now = self._view.list(prefix, after=after)
        if now == before:
            return now
        self._mischief.injected[Fault.LIST_SLOW] += 1
        draw, there, since = self._mischief.draw, set(now), set(before)
        return [one for one in sorted(there | since) if (one in there and one in since) or draw.random() < 0.5]

    def _changes(self) -> int | None:
        """Return how often the storage has changed; None: it does not say."""
        return self._view.changes if isinstance(self._view, MemoryStorage) else None

    def delete(self, names: Iterable[str]) -> None:
        """See Storage: one after the other."""
        for name in names:
            self._touch(f"before deleting {name}")
            self._outage.check(name, writes=False)
            self._view.delete([name])

    def within(self, folder: str) -> DriverStorage:
        """See Storage."""
        inside = f"{self._folder}/{folder}" if self._folder else folder
        return DriverStorage(self._world, self._touch, self._outage, self._created, inside)


@dataclass(frozen=True, slots=True)
class LoggedSource:
    """What a batch has of one source, as it was when the batch was logged."""

    pieces: tuple[Piece, ...]
    tables: tuple[pa.Table | None, ...]
    """The rows of each partition."""
    watermark: Watermark
    watermarks: tuple[Watermark, ...]
    """Of each partition: with what it finds in its ranges, where it reads them in place."""

    def mark(self, partition: int) -> Watermark:
        """Return the watermark of a partition; the batch between two layouts has those of the one before."""
        return self.watermarks[partition] if partition < len(self.watermarks) else self.watermark


@dataclass(frozen=True, slots=True)
class LoggedBatch:
    """A batch as it was when it was logged."""

    generation: int
    """The layout that processes it."""
    sources: Mapping[OperatorId, LoggedSource]
    marked: frozenset[SegmentId]
    """The segments of which it is a mark; those of which it is an intermediate one are not among them."""


@dataclass(slots=True)
class LogWatch:
    """What was ever logged, and which layouts the run had. It looks when a record is written: later it may be gone."""

    world: MemoryStorage
    complain: Complain
    sources: Mapping[OperatorId, SourceProgram]
    recipes: Mapping[str, Recipe]
    """The layouts that drivers are started with, by what progress says of them."""
    folders: Mapping[OperatorId, SimulatedFolder | SimulatedTopic] = field(default_factory=dict)
    """Of sources that are read in place: folders, or topics."""
    batches: dict[BatchId, LoggedBatch] = field(default_factory=dict)
    ranges: dict[tuple[OperatorId, BatchId, int], tuple[SourceRange, ...]] = field(default_factory=dict)
    """By source, batch and partition."""
    layouts: dict[int, Recipe] = field(default_factory=dict)
    """By generation."""
    given_up: dict[int, Recipe] = field(default_factory=dict)
    """By generation: what was left of a layout in the end, of which operators were given up."""
    decided: Decided = field(default_factory=Decided)
    """Rows that are left out."""
    _read: tuple[bytes, dict[str, Any]] = field(default=(b"", {}))
    """The record that was read last."""
    _may_end_as: dict[str, tuple[int, Recipe]] = field(default_factory=dict)
    _looked: tuple[int, int] = (-1, -1)
    """How often the storage had changed, and how many batches were logged, when it last looked."""
    _progress: int = -1
    """The highest number that a record of progress has had."""

    def created(self, name: str) -> None:
        """Look at an object that is new."""
        kind, _, number = name.rpartition("/")
        if kind == "batches":
            self._logged(BatchId(int(number)), name)
        elif kind == "progress":
            fields = self._contents(name)
            if (problem := self.decided.written(int(number), fields["machine"])) is not None:
                self.complain(problem)
            late, self._progress = int(number) < self._progress, max(self._progress, int(number))
            if fields["identity"] is not None and not late:  # under a number that was dropped it is not in force
                generation = fields["generation"]
                recipe = self._recipe(generation, json.dumps(fields["identity"]["operators"], sort_keys=True))
                if self.layouts.setdefault(generation, recipe) != recipe:
                    self.complain(f"layout {generation} was {self.layouts[generation]}, and is {recipe}")

    def gives_up(self, generation: int, left: Recipe) -> None:
        """A driver brings a layout to its end without some of its operators."""
        self._may_end_as[identity_of(left)] = generation, left

    def _recipe(self, generation: int, identity: str) -> Recipe:
        """Return which layout this is; where operators were given up, the one that it was before."""
        its, left = self._may_end_as.get(identity, (-1, None))
        if left is not None and its == generation:
            layout, now = self.layouts[generation], program_of(left)
            before = program_of(self.given_up.get(generation, layout))
            if again := now.operators.keys() - before.operators.keys():
                self.complain(f"layout {generation} has {min(again)} again, which was given up")
            self.given_up[generation] = left
            return layout
        if generation in self.given_up:
            self.complain(f"layout {generation} has operators again that were given up")
        return self.recipes[identity]

    def ended_as(self) -> dict[int, Program]:
        """Return, by the first batch of the layout after it, what is left of each layout with operators given up."""
        numbers = self.generations()
        return {
            batch: program_of(self.given_up[before])
            for batch, (before, now) in enumerate(itertools.pairwise(numbers), start=1)
            if before != now and before in self.given_up
        }

    def is_given_up(self, operator: OperatorId, generation: int) -> bool:
        """Whether a layout was brought to its end without an operator.

        Several drivers may have tried to, each without more of them: what one has left is the layout of the next.
        """
        if (left := self.given_up.get(generation)) is None:
            return False
        return operator in program_of(self.layouts[generation]).operators.keys() - program_of(left).operators.keys()

    def _logged(self, batch: BatchId, name: str) -> None:
        if batch in self.batches:
            return  # of a number that was dropped: whoever wrote it must find out that it is over
        fields = self._contents(name)
        found = {}
        for source, one in fields["sources"].items():
            pieces = tuple(piece_of(piece) for piece in one["pieces"])
            for piece in pieces:
                if self.world.read(piece.file) is None:
                    self.complain(f"batch {batch} is logged, and {piece.file} of {source} is not there")
            tables = tuple(read_pieces(self.world, pieces, index) for index in range(len(one["rows"])))
            marks = (one["watermark"],) * len(tables)
            if OperatorId(source) in self.folders:
                tables, marks = self._in_place(OperatorId(source), batch, one, len(tables))
            found[OperatorId(source)] = LoggedSource(pieces, tables, one["watermark"], marks)
        moving = frozenset(SegmentId(name) for name, mark in fields["marks"].items() if not mark.get("step"))
        self.batches[batch] = LoggedBatch(fields["generation"], found, moving)

    def _in_place(
        self, name: OperatorId, batch: BatchId, one: Mapping[str, Any], partitions: int
    ) -> tuple[tuple[pa.Table | None, ...], tuple[Watermark, ...]]:
        """Return the rows of each partition's ranges, and its watermark, as they are if nothing happens to files."""
        folder, source = self.folders[name], self.sources[name]
        ranges: Any = [source_range_of(fields) for fields in one.get("ranges", ())]
        folder.logged(ranges)
        tables: list[pa.Table | None] = []
        marks: list[Watermark] = []
        for index in range(partitions):
            mine = tuple(part for part in ranges if part.partition == index)
            self.ranges[name, batch, index] = mine
            rows = folder.rows(source, mine, how_of(one["how"])) if mine else None
            if rows is None:
                latest = None
            elif isinstance(folder, SimulatedTopic):
                latest = folder.latest(source, mine, how_of(one["how"]))
            else:
                latest = latest_event(source, rows)
            tables.append(rows if rows is not None and rows.num_rows else None)
            late = 0 if latest is None else how_of(one["how"]).lateness
            marks.append(one["watermark"] if latest is None else highest(one["watermark"], latest - late))
        for earlier, index, *_ in one.get("reads", ()):
            checked: Any = self.ranges.get((name, BatchId(earlier), index), ())
            folder.was_checked(checked)
        return tuple(tables), tuple(marks)

    def has_copies(self, name: OperatorId, path: str) -> bool:
        """Whether the log has all of a file, and the run a copy of every range of it that is still in the log."""
        taken = 0
        for (source, batch, index), ranges in self.ranges.items():
            for number, one in enumerate(ranges):
                if source != name or not isinstance(one, FileRange) or one.file.path != path:
                    continue
                taken += one.bytes
                needed = self.world.read(f"batches/{batch:012d}") is not None
                if needed and self.world.read(copy_name(source, batch, index, number)) is None:
                    return False
        folder = self.folders[name]
        assert isinstance(folder, SimulatedFolder)
        return taken > 0 and taken >= len(folder.files[path].whole)

    def copied_through(self, name: OperatorId, number: int, offset: int) -> int:
        """Return up to where, and no further than an offset, the run can do without what a topic partition has."""
        found = 0
        for _, one, is_free in sorted(self._offset_ranges(name, number), key=lambda each: each[1].start):
            if one.start > found or not is_free or found >= offset:
                break
            found = min(one.end, offset)
        return found

    def copied(self, name: OperatorId) -> list[OffsetRange]:
        """Return the ranges of a topic of which the run has copies."""
        return [one for there, one, _ in self._offset_ranges(name, None) if there]

    def _offset_ranges(self, name: OperatorId, number: int | None) -> Iterator[tuple[bool, OffsetRange, bool]]:
        """Yield ranges of a topic: whether there is a copy, the range, whether there is one or none is needed."""
        copies, needed = set(self.world.list(f"copies/{name}/")), set(self.world.list("batches/"))
        for (source, batch, index), ranges in self.ranges.items():
            for at, one in enumerate(ranges if source == name else ()):
                if isinstance(one, OffsetRange) and number in (None, one.topic_partition):
                    there = copy_name(source, batch, index, at) in copies
                    yield there, one, there or f"batches/{batch:012d}" not in needed

    def _contents(self, name: str) -> dict[str, Any]:
        """Return a record, which nobody changes."""
        held = self.world.read(name)
        assert held is not None
        data = held.to_pybytes()
        if data != self._read[0]:
            self._read = data, dict(json.loads(data.partition(b"\n")[2]))
        return self._read[1]

    def was_marked(self, batch: BatchId, generation: int) -> frozenset[SegmentId]:
        """Return the segments whose mark a batch was ever logged as; a frozen driver may know one trimmed since."""
        logged = self.batches.get(batch)
        return logged.marked if logged is not None and logged.generation == generation else frozenset()

    def is_marked(self, batch: BatchId, generation: int) -> frozenset[SegmentId]:
        """Return the segments whose mark a batch in the log is; one whose record is trimmed is none."""
        there = self.world.read(f"batches/{batch:012d}") is not None
        return self.was_marked(batch, generation) if there else frozenset()

    def generations(self) -> list[int]:
        """Return the layout of each batch, in their order: a fence that an earlier layout follows is one of its own."""
        found = [self.batches[batch].generation for batch in sorted(self.batches, reverse=True)]
        return list(accumulate(found, min))[::-1]

    def programs(self) -> list[Program]:
        """Return the program that processes each batch, in their order."""
        return [program_of(self.layouts[generation]) for generation in self.generations()]

    def look(self) -> None:
        """See that what the newest progress needs is there: the rows of all batches after the older checkpoint."""
        if self._looked == (self.world.changes, len(self.batches)):
            return  # nothing was written or deleted since
        names = self.world.list("progress/")
        if not names:
            return
        self._looked = self.world.changes, len(self.batches)
        machine = self._contents(names[-1])["machine"]
        checkpoints = None if machine is None else machine["checkpoints"]
        there = set(self.world.list("pieces/"))
        needed: dict[OperatorId, int] = {}
        for batch, logged in self.batches.items():
            for source, one in logged.sources.items():
                if source not in needed:
                    needed[source] = _needed_after(checkpoints, source)
                for piece in one.pieces if batch > needed[source] else ():
                    if piece.file not in there:
                        self.complain(f"{piece.file} of {source} in batch {batch} is gone, and may be needed")


def _needed_after(checkpoints: dict[str, Any] | None, source: OperatorId) -> int:
    """Return the batch after which a source's rows may be needed: of its partitions, at the older checkpoint."""
    if checkpoints is None:
        return -1
    name = "durable" if checkpoints["durable-before"] is None else "durable-before"
    covered, beyond = int(checkpoints[name]), checkpoints["lines"][name]
    mine = [p for p in checkpoints["snapshots"] if PartitionId.parse(p).operator == source]
    return min((int(beyond.get(p, covered)) for p in mine), default=covered)


class SimulatedReader:
    """Reads a source: micro-batches of one or two tables, the last one again after a start, as Spark does."""

    def __init__(self, tables: list[pa.Table], state: dict[str, Any], mischief: Mischief) -> None:
        self._tables, self._draw = tables, mischief.draw
        self._number, self._at = state.get("number", -1), state.get("at", 0)
        self._again: tuple[int, int, int] | None = None
        if self._number >= 0:
            self._again = self._number, state["from"], self._at

    @property
    def ended(self) -> bool:
        """Whether there is nothing more to deliver."""
        return bool(self._at >= len(self._tables))

    def deliver(self) -> tuple[int, str, pa.Table, dict[str, Any]]:
        """Return the next micro-batch: number, offsets, rows, and what a reader goes on from after it."""
        if self._again is not None:
            number, first, last = self._again
            self._again = None
        else:
            first = self._at
            last = min(len(self._tables), first + self._draw.choice((1, 1, 2)))
            self._number, self._at = self._number + 1, last
            number = self._number
        state = {"number": number, "from": first, "at": last}
        rows = pa.concat_tables(self._tables[first:last]) if last > first else self._tables[0].slice(0, 0)
        return number, f"{first}-{last}", rows, state
