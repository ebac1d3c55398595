"""Which files a source has taken, and which come next: the position of a source that reads files. Pure; on the driver.

A file is known by its path. It is taken once, in the order of modification times and paths, and never again, whatever
becomes of it. What was taken is a *low-water mark* of modification times and the paths above it:

- A file that was modified before the mark is not read: it was taken, or it came too late. The mark trails the newest
  file that was taken by `maxFileAge` (7 days); so files may arrive out of order by that much. Those that come later
  than that are reported.
- A file that is taken and then changes is reported; what was added is not read.
- A file that may be half-written (no object of a bucket is) is taken once it has stayed as it is for `settle` seconds.
  Those that a driver finds at its first listing, and that are old enough by their times, are taken at once. What comes
  later has just been written or moved in, whatever the clocks of this machine and of the files' say.

The position is in the record of each batch, so it is part of the same decision as the ranges: a driver that dies
between listing and logging has taken nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.application.readers import FileOptions
from holdfast.runtime.io.file_ranges import FileRange, is_split
from holdfast.storage.source_files import SourceFile

MOST_SEEN = 100_000
"""Paths above the low-water mark that are remembered at most: with more, the mark rises."""
OLD_SECONDS = 60.0
"""A file that was last modified so long before a driver began is not being written, also where clocks differ a bit."""
SMALL_RANGE = 1 << 20
"""Partitions get no ranges smaller than this, where there are larger ones."""
MOST_REPORTED = 1000
_NS = 1_000_000_000
_NEVER = -(2**62)

Seen = tuple[int, int]
"""When a file that was taken was modified, in nanoseconds, and its size."""


@dataclass(frozen=True, slots=True)
class FilePosition:
    """What a source has taken."""

    low: int = _NEVER
    """Files that were modified before are not read any more."""
    latest: int = _NEVER
    """When the newest file that was taken was modified."""
    recent: tuple[tuple[str, int, int], ...] = ()
    """Path, modification time and size of files that were taken and are in no bundle."""
    bundles: tuple[str, ...] = ()
    """Objects that hold the others."""
    open: tuple[SourceFile, int] | None = None
    """A file of which only the first bytes are taken, and how many."""
    turn: int = 0
    """The partition that gets the next range."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What the next batch has of a source, and where the source is after it."""

    ranges: tuple[FileRange, ...]
    position: FilePosition
    fresh: tuple[tuple[str, int, int], ...] = ()
    """Path, modification time and size of the files that were not begun before."""

    @property
    def bytes(self) -> int:
        """How many bytes it has."""
        return sum(one.bytes for one in self.ranges)


@dataclass(frozen=True, slots=True)
class Notice:
    """Something about a file, or a topic, that people should know."""

    kind: str
    """`too-old` or `changed`; `kept`: about copies of ranges; `topic`: about a topic."""
    file: SourceFile | None
    line: str


@dataclass(slots=True)
class FileTracker:
    """The files of one source."""

    format: str
    options: FileOptions
    partitions: int
    atomic: bool
    """Whether no file can be seen half-written."""
    position: FilePosition = field(default_factory=FilePosition)
    seen: dict[str, Seen] = field(default_factory=dict)
    """Files above the low-water mark that were taken."""
    begun: bool = False
    """Whether the log has a position of this source."""
    small_range: int = SMALL_RANGE
    _waiting: dict[str, tuple[SourceFile, float]] = field(default_factory=dict)
    """Files that are not taken, and since when they are as they are; -inf: since before the driver's first listing."""
    _known: dict[str, tuple[SourceFile, float]] = field(default_factory=dict)
    """The same of the tracker before, until the first listing."""
    _settled: list[SourceFile] = field(default_factory=list)
    _listed: frozenset[str] | None = None
    """The files of the last listing."""
    _reported: dict[tuple[str, str], None] = field(default_factory=dict)

    def follow(self, before: FileTracker) -> None:
        """Take over since when files are as they are, as reading begins anew: that does not depend on what was read."""
        self._known = {**before._known, **before._waiting}

    def look(
        self, listing: Iterable[SourceFile], *, now: float, wall: float, complete: float | None = None
    ) -> list[Notice]:
        """Take in a listing that began at `now`, by a monotonic clock, and was complete at `complete`.

        `wall` is the time of its beginning that files are compared with; -inf: it is not the driver's first, and none
        is old. A driver may be frozen in a listing: a file was seen as it is at the end of one at the latest, and at
        the beginning of the next at the earliest.
        """
        complete = now if complete is None else complete
        there = {one.path: one for one in listing}
        notices = [found for one in there.values() if (found := self._notice(one)) is not None]
        first, self._listed = self._listed is None, frozenset(there)
        if first and (skipped := self._skipped_at_start(there.values())) is not None:
            notices.append(skipped)
        if first and not self.begun and self.options.start == "latest" and not self.seen:
            self.seen = {one.path: (one.modified, one.size) for one in there.values()}
            newest = max((one.modified for one in there.values()), default=_NEVER)
            recent = tuple((path, *what) for path, what in sorted(self.seen.items()))
            self.position = replace(self.position, latest=newest, recent=recent)
        before, self._waiting = {**self._known, **self._waiting}, {}
        self._known = {}
        for path, one in there.items():
            if path in self.seen or one.modified < self.position.low or self._is_open(path):
                continue
            known = before.get(path)
            if known is not None and known[0].is_same(one):
                since = known[1]  # also one that was old: a backlog is taken over many listings
            else:
                old = wall - one.modified / _NS > max(OLD_SECONDS, self.options.settle)
                since = -math.inf if old else complete
            self._waiting[path] = (one, since)
        self._settle(now)
        return notices

    def _is_open(self, path: str) -> bool:
        return self.position.open is not None and self.position.open[0].path == path

    def _settle(self, now: float) -> None:
        at_once = self.atomic or not self.options.settle
        found = [one for one, since in self._waiting.values() if at_once or now - since >= self.options.settle]
        self._settled = sorted(found, key=lambda one: (one.modified, one.path))

    def _notice(self, one: SourceFile) -> Notice | None:
        taken = self.seen.get(one.path)
        found: Notice | None = None
        if taken is not None and taken != (one.modified, one.size) and taken[1] != one.size:
            line = f"{one.path} had {taken[1]} bytes when it was read, and has {one.size}: what was added is not read"
            found = Notice("changed", one, line)
        elif taken is None and one.modified < self.position.low and one.path not in (self._listed or {one.path}):
            # Files of the first listing may have been taken long ago: nobody knows any more.
            line = f"{one.path} is older than maxFileAge allows, beside the newest file that was read: it is not read"
            found = Notice("too-old", one, line)
        if found is None or (one.path, found.kind) in self._reported or len(self._reported) > MOST_REPORTED:
            return None
        self._reported[one.path, found.kind] = None
        return found

    def _skipped_at_start(self, there: Iterable[SourceFile]) -> Notice | None:
        """Say how many files are too old at a driver's first listing: which of them were read is not known any more."""
        old = [one for one in there if one.modified < self.position.low and one.path not in self.seen]
        if not old:
            return None
        newest = max(old, key=lambda one: (one.modified, one.path))
        what = f"{newest.path} is" if len(old) == 1 else f"{len(old)} files, {newest.path} the newest of them, are"
        line = f"{what} older than maxFileAge allows, beside the newest file that was read: what came while no driver "
        return Notice("too-old", newest, line + "ran is not read")

    @property
    def unsettled(self) -> bool:
        """Whether there are files that may be half-written: they are looked at again."""
        return len(self._waiting) > len(self._settled)

    @property
    def pending(self) -> bool:
        """Whether there is something to take; also a start position that is not logged."""
        first = not self.begun and self.options.start == "latest" and self._listed is not None
        return bool(self._settled) or self.position.open is not None or first

    @property
    def waiting(self) -> frozenset[str]:
        """The files that are listed and not taken to their end."""
        open_one = {self.position.open[0].path} if self.position.open is not None else set()
        return frozenset(self._waiting) | open_one

    # -- taking --------------------------------------------------------------------------------------------------------

    def take(self, most_bytes: int) -> Taken:
        """Return what the next batch has, about so many bytes at most; `logged` makes it so."""
        position, parts = self.position, list[tuple[SourceFile, int, int]]()
        room: float = min(most_bytes, self.options.max_bytes or math.inf)
        files, fresh = 0, list[SourceFile]()
        opened = position.open
        queue = [] if opened is None else [(opened[0], opened[1])]
        queue += [(one, 0) for one in self._settled]
        opened = None
        for file, start in queue:
            if (not start and files >= (self.options.max_files or math.inf)) or (room <= 0 and parts):
                break
            end = file.size
            if end - start > room:
                if is_split(self.format, self.options, file.path):
                    end = start + max(1, int(room))
                elif parts:
                    break
            if not start:
                files += 1
                fresh.append(file)
            if end > start:
                parts.append((file, start, end))
                room -= end - start
            if end < file.size:
                opened = (file, end)
                break
        position = replace(position, open=opened)
        ranges, turn = self._spread(parts, position.turn)
        newest = max((one.modified for one in fresh), default=_NEVER)
        begun = tuple((one.path, one.modified, one.size) for one in fresh)
        latest, recent = max(position.latest, newest), (*position.recent, *begun)
        position = replace(position, latest=latest, recent=recent, turn=turn)
        return Taken(tuple(ranges), self._raised(position, fresh), begun)

    def _raised(self, position: FilePosition, fresh: Sequence[SourceFile]) -> FilePosition:
        """Raise the low-water mark: by age, and where too many paths are remembered."""
        low = position.low
        if position.latest > _NEVER and self.options.max_age < math.inf:
            low = max(low, position.latest - round(self.options.max_age * _NS))
        count = len(self.seen) + len(fresh)
        if count > MOST_SEEN:
            times = sorted([one.modified for one in fresh] + [modified for modified, _ in self.seen.values()])
            left = [one.modified for one in self._settled if one not in fresh]
            low = max(low, min([times[count - MOST_SEEN], *left]))
        kept = tuple(one for one in position.recent if one[1] >= low)
        return replace(position, low=low, recent=kept)

    def _spread(self, parts: Sequence[tuple[SourceFile, int, int]], turn: int) -> tuple[list[FileRange], int]:
        """Give partitions about as many bytes each, and each range whole where cutting it would not pay."""
        total = sum(end - start for _, start, end in parts)
        used = max(1, min(self.partitions, total // self.small_range))
        share, ranges = math.ceil(total / used), list[FileRange]()
        number, filled = 0, 0
        for file, start, end in parts:
            at = start
            while at < end:
                rest = end - at
                room = share - filled
                if number == used - 1 or rest <= room or not is_split(self.format, self.options, file.path):
                    cut = end
                else:
                    cut = (
                        at + room
                        if min(room, rest - room) >= self.small_range // 2
                        else (end if room * 2 > rest else at)
                    )
                if cut > at:
                    ranges.append(FileRange((turn + number) % self.partitions, file, at, cut))
                    filled += cut - at
                    at = cut
                if filled >= share or cut < end:
                    number, filled = min(number + 1, used - 1), 0
        return ranges, (turn + used) % self.partitions if parts else turn

    def logged(self, taken: Taken) -> None:
        """What was taken is in the log."""
        position = taken.position
        self.seen.update({path: (modified, size) for path, modified, size in taken.fresh})
        for path in [path for path, (modified, _) in self.seen.items() if modified < position.low]:
            del self.seen[path]
        self.position, self.begun = position, True
        for path in [path for path in self._waiting if path in self.seen or self._is_open(path)]:
            del self._waiting[path]
        self._settled = [one for one in self._settled if one.path in self._waiting]


# -- as JSON -----------------------------------------------------------------------------------------------------------


def position_fields(position: FilePosition) -> dict[str, Any]:
    """Return a position as the record of a batch holds it; its bundles are named beside it."""
    opened = position.open
    return {
        "low": position.low,
        "latest": position.latest,
        "recent": [list(one) for one in position.recent],
        "open": None
        if opened is None
        else [opened[0].path, opened[0].size, opened[0].modified, opened[0].version, opened[1]],
        "turn": position.turn,
    }


def position_of(fields: Mapping[str, Any], bundles: Sequence[str]) -> FilePosition:
    """Read a position from the record of a batch."""
    opened = fields["open"]
    return FilePosition(
        fields["low"],
        fields["latest"],
        tuple((path, modified, size) for path, modified, size in fields["recent"]),
        tuple(bundles),
        None if opened is None else (SourceFile(*opened[:4]), opened[4]),
        fields["turn"],
    )
