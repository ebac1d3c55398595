"""Folders of files that simulated sources read in place: written slowly, out of order, twice; changed and lost.

Runs anywhere. Each source's rows are in CSV files, which appear one after the other as time passes. One that is being
written grows with every moment that somebody looks; when it is whole its modification time may be set back. A whole
file may be written again, vanish or hold other bytes for a while; in the end everybody brings back what was there. In
some seeds files have a retention, and one whose needed ranges have all been copied may be deleted for good. What was
ever whole is kept apart, so that the rows of a range are known whatever has become of its file.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from holdfast.application import Files
from holdfast.ids import OperatorId
from holdfast.runtime.io.file_ranges import FileRange, HowRead
from holdfast.runtime.io.in_place import read_ranges
from holdfast.runtime.program import Program, SourceProgram
from holdfast.storage.source_files import OpenFile, SourceFile
from holdfast_lab.simulation.recovery.faults import Fault, Mischief

SETTLE = 20.0
"""Seconds that a file must stay as it is before it is taken."""
TICK = 5.0
"""A file that is being written changes at least this often."""
READER = Files("simulated", "csv", (("settle", str(SETTLE)),))
RETENTION = 60.0
"""Seconds that files stay, where they are deleted."""
DELETED_READER = Files("simulated", "csv", (("retention", str(RETENTION)), ("settle", str(SETTLE))))
_NS = 1_000_000_000


def is_in_place(seed: int) -> bool:
    """Whether sources are read in place in a run, where its applications allow it; not in the first seeds."""
    return seed >= 2000 and seed % 3 == 1


def deletes_files(seed: int) -> bool:
    """Whether files are deleted for good in a run whose sources are read in place."""
    return is_in_place(seed) and seed % 2 == 0


def allows_in_place(program: Program) -> bool:
    """Whether any partition of a source may get any row: whoever reads a range finds all keys in it."""
    return all(one.parallelism == 1 or not one.keys for one in program.sources.values())


class SetClock:
    """The time by which a driver judges how old files are: its machine's clock may be set once it has looked."""

    def __init__(self, clock: Callable[[], float], seed: int, driver: int) -> None:
        self._clock, self._looks = clock, 0
        self._by = random.Random(f"{seed} clock of {driver}").choice((0.0, 0.0, 3600.0, -3600.0))

    def __call__(self) -> float:
        """Return the time."""
        self._looks += 1
        return self._clock() + (self._by if self._looks > 1 else 0.0)


@dataclass(slots=True)
class _File:
    """A file as it will be."""

    path: str
    whole: bytes
    begins: float
    """When somebody begins to write it."""
    ends: float
    modified: float
    """Its modification time once it is whole."""
    damage: bytes | None = None
    """What it holds now, where that is something else; empty: it is not there."""
    moved: float = 0.0
    """By how much its modification time differs from what it was."""
    until: float = 0.0
    """When the damage ends."""
    deleted: bool = False
    """Whether it is gone for good."""

    def seen(self, now: float) -> tuple[bytes, float] | None:
        """Return the contents and the modification time at a moment; None: it is not there."""
        if now < self.begins or self.deleted:
            return None
        if now < self.ends:
            ticks, all_ticks = int((now - self.begins) / TICK), max(1, int((self.ends - self.begins) / TICK))
            return self.whole[: len(self.whole) * ticks // (all_ticks + 1)], self.begins + ticks * TICK
        if self.damage is not None:
            return None if not self.damage else (self.damage, self.modified + self.moved)
        return self.whole, self.modified + self.moved


class SimulatedFolder:
    """The files of one source."""

    atomic = False

    def __init__(
        self,
        source: OperatorId,
        tables: Sequence[pa.Table],
        seed: int,
        clock: Callable[[], float],
        mischief: Mischief,
        touch: Callable[[str], None],
    ) -> None:
        self.url = f"simulated/{source}"
        self._draw, self._clock, self._mischief, self._touch = random.Random(f"{source} {seed}"), clock, mischief, touch
        self.files: dict[str, _File] = {}
        self.taken: set[str] = set()
        """Files of which the log has ranges."""
        self.checked: set[str] = set()
        """Files of which the driver that has the run knows the checksums of all ranges."""
        self._checked_bytes: Counter[str] = Counter()
        self.reader = DELETED_READER if deletes_files(seed) else READER
        self.has_copies: Callable[[str], bool] = lambda path: False
        """Whether the run has copies of all ranges of a file that a recovery may read."""
        self.alone: Callable[[], bool] = lambda: True
        """Whether no driver is there that another has replaced: it may not know the checksums."""
        draw, at, left = self._draw, 0.0, list(tables)
        while left:
            many = draw.choice((1, 1, 2, 3))
            table, left = pa.concat_tables(left[:many]), left[many:]
            path = f"{self.url}/f{len(self.files):03d}.csv"
            at += draw.choice((0.0, 1.0, 30.0))
            ends = at + draw.choice((0.0, 0.0, 60.0, 300.0))
            modified = ends - draw.choice((0.0, 0.0, 100.0, 1000.0))
            self.files[path] = _File(path, _csv(table), at, ends, modified)

    # -- as SourceFiles ------------------------------------------------------------------------------------------------

    def list(self) -> list[SourceFile]:
        """See SourceFiles: the driver may be frozen afterwards, with what it has seen."""
        self._strike()
        now = self._clock()
        found = [self._as_seen(one, now) for one in self.files.values()]
        self._touch(f"after listing {self.url}")
        return [one for one in found if one is not None]

    def open(self, path: str) -> OpenFile:
        """See SourceFiles."""
        one = self.files[path]
        seen = self._as_seen(one, self._clock())
        if seen is None:
            raise FileNotFoundError(path)
        if self._mischief.strikes(Fault.STORAGE_READ_FAILED):
            raise OSError(f"{path}: input/output error")
        held = one.seen(self._clock())
        assert held is not None
        return _Held(seen, held[0], lambda: self._as_seen(one, self._clock()) or replace(seen, size=-1))

    def _as_seen(self, one: _File, now: float) -> SourceFile | None:
        held = one.seen(now)
        return None if held is None else SourceFile(one.path, len(held[0]), round(held[1] * _NS))

    # -- what happens to them ------------------------------------------------------------------------------------------

    def _strike(self) -> None:
        """Perhaps a file vanishes, changes or is written again; and what was damaged is brought back in time."""
        now, draw = self._clock(), self._draw
        for one in self.files.values():
            if one.damage is not None and (now >= one.until or not self._mischief.active):
                one.damage = None
                one.moved = 0.0 if one.path not in self.checked else one.moved
        whole = [one for one in self.files.values() if now >= one.ends and one.damage is None and one.whole]
        if not whole or not self._mischief.active:
            return
        if self.reader is DELETED_READER:
            self._delete(now)
            self._change_before_the_copy(whole)
        one = draw.choice(whole)
        kind = draw.random()
        if kind < 0.03:
            self._damage(one, b"", Fault.FILE_LOST)
        elif kind < 0.05 and one.path in self.taken:
            self._damage(one, one.whole[: draw.randrange(1, len(one.whole) + 1)] + b"#", Fault.FILE_CHANGED)
            one.moved = 7.0
        elif kind < 0.10 and one.path in self.checked and self.alone():
            # Of the same size and modification time: only the checksum shows it.
            other = bytes(b ^ 1 if 48 <= b < 58 else b for b in one.whole)
            self._damage(one, other, Fault.FILE_CHANGED_SILENTLY)
        elif kind < 0.15 and one.path in self.checked:
            one.moved = draw.choice((1.0, 50.0))
            self._mischief.injected[Fault.FILE_TWICE] += 1

    def _delete(self, now: float) -> None:
        """Delete files whose time is over and that the run can do without."""
        for one in self.files.values():
            if not one.deleted and one.whole and now >= max(one.ends, one.modified + RETENTION):
                one.deleted = self.has_copies(one.path)
                self._mischief.injected[Fault.FILE_DELETED] += one.deleted

    def _change_before_the_copy(self, whole: Sequence[_File]) -> None:
        """Perhaps a file that was logged has other contents when it is to be copied."""
        if self._draw.random() < 0.15 and (new := [one for one in whole if one.path in self.taken and not one.deleted]):
            one = new[-1]
            if not self.has_copies(one.path):
                self._damage(one, one.whole[::-1], Fault.FILE_CHANGED)
                one.moved = 7.0

    def _damage(self, one: _File, contents: bytes, fault: Fault) -> None:
        one.damage, one.until = contents, self._clock() + self._draw.uniform(5, 120)
        self._mischief.injected[fault] += 1

    def logged(self, ranges: Sequence[FileRange]) -> None:
        """Ranges are in the log."""
        self.taken.update(one.file.path for one in ranges)

    def was_checked(self, ranges: Sequence[FileRange]) -> None:
        """The log has the checksums of ranges."""
        for one in ranges:
            self._checked_bytes[one.file.path] += one.bytes
            # Of a driver that has been replaced: the one that has the run takes its record with its own next one.
            if self.alone() and self._checked_bytes[one.file.path] >= len(self.files[one.file.path].whole):
                self.checked.add(one.file.path)

    @property
    def ended(self) -> bool:
        """Whether the log has all of its files."""
        return all(not one.whole or path in self.taken for path, one in self.files.items())

    def mend(self) -> None:
        """What is damaged is brought back."""
        for one in self.files.values():
            one.damage = None
            one.moved = 0.0 if one.path not in self.checked else one.moved

    def calm(self) -> None:
        """What is damaged is brought back, and what is being written is whole."""
        self.mend()
        now = self._clock()
        for one in self.files.values():
            one.begins, one.ends = min(one.begins, now), min(one.ends, now)

    # -- what is true --------------------------------------------------------------------------------------------------

    def rows(self, source: SourceProgram, ranges: Sequence[FileRange], how: HowRead) -> pa.Table:
        """Return the rows of ranges as they were when their files were whole."""
        return read_ranges(source, ranges, how, None, files=lambda path: _Whole(self.files, ranges)).rows


class _Whole:
    """Files as they were when they were logged."""

    url, atomic = "", True

    def __init__(self, files: dict[str, _File], ranges: Sequence[FileRange]) -> None:
        self._files, self._logged = files, {one.file.path: one.file for one in ranges}

    def list(self) -> list[SourceFile]:
        return []

    def open(self, path: str) -> OpenFile:
        logged = self._logged[path]
        return _Held(logged, self._files[path].whole, lambda: logged)


class _Held:
    """An open file: it stays what it was."""

    def __init__(self, seen: SourceFile, contents: bytes, look: Callable[[], SourceFile]) -> None:
        self.seen, self._contents, self.look = seen, contents, look

    def read(self, start: int, count: int) -> pa.Buffer:
        return pa.py_buffer(self._contents[start : start + count])

    def close(self) -> None:
        pass


def _csv(table: pa.Table) -> bytes:
    rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
    return "".join(",".join(map(str, row)) + "\n" for row in rows).encode()
