"""What a batch has for one source partition, read from files or from Kafka. Runs on a node.

The batch's record says which ranges, and which file each was; for offsets of a topic see `kafka_reading`. Where a
reading before has left its checksums, the bytes decide: the same bytes are the same rows, also in a file that was
brought back from a copy. Else size and version do, before and after reading. Anything else is an error that names the
file, before a row of it goes anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import pyarrow as pa

from holdfast.errors import CheckFailed, one_line
from holdfast.ids import BatchId, PartitionId
from holdfast.runtime.io.dead_letter_columns import DEAD_LETTER_COLUMNS
from holdfast.runtime.io.event_bound import latest_events
from holdfast.runtime.io.file_ranges import FileRange, HowRead, RangesRead
from holdfast.runtime.io.kafka_reading import Fetch, fetch_offsets, read_offsets
from holdfast.runtime.io.kafka_records import Records
from holdfast.runtime.io.offset_ranges import OffsetRange, SourceRange, stream_name
from holdfast.runtime.io.range_reading import read_range
from holdfast.runtime.io.range_rows import RangeRows, Rejected, Unreadable
from holdfast.runtime.program import SourceProgram
from holdfast.runtime.tables import one_chunk
from holdfast.runtime.times import event_times
from holdfast.storage.source_files import OpenFile, SourceFile, SourceFiles, open_source_files
from holdfast.storage.storage import is_url

OpenFiles = Callable[[str], SourceFiles]
"""Returns what can open the file at a path."""
CopyOf = Callable[[int], OpenFile | None]
"""Returns a copy of one of the ranges' files, where the run has made one."""
RecordsOf = Callable[[int], Records | None]
"""Returns a copy of the records of one of the ranges, where the run has made one."""


@dataclass(frozen=True, slots=True, eq=False)
class PartitionRows:
    """What a batch has for one partition."""

    rows: pa.Table
    rejected: tuple[tuple[SourceRange, Rejected], ...]
    read: RangesRead
    streams: tuple[tuple[str, int], ...] = ()
    """Of each range, in their order, the file or topic partition it is of, and how many rows it has."""

    def followed(self, source: SourceProgram, how: HowRead) -> tuple[int | None, RangesRead]:
        """Return the event that the watermark follows, and what was read, with what else is to be known of events."""
        if not how.by_stream:
            events = latest_events(source, self.rows, how.until)
            return events.within, replace(self.read, ahead=events.ahead)
        latest, ahead, at = dict[str, int](), 0, 0
        silent = {stream for stream, rows in self.streams if not rows}
        silent -= {stream for stream, rows in self.streams if rows}
        silent -= {stream_name(one) for one, _ in self.rejected}
        for stream, rows in self.streams:
            events = latest_events(source, self.rows.slice(at, rows), how.until)
            at, ahead = at + rows, ahead + events.ahead
            if events.within is not None:
                latest[stream] = max(events.within, latest.get(stream, events.within))
        behind = None if silent else min(latest.values(), default=None)
        furthest = max(latest.values(), default=None)
        mark = None if furthest is None or furthest == behind else furthest - how.lateness
        return behind, replace(self.read, ahead=ahead, furthest=mark)


@lru_cache(maxsize=64)
def _folder(place: str) -> SourceFiles:
    return open_source_files(place)


def files_at(path: str) -> SourceFiles:
    """Return what can open the file at a path or URL."""
    return _folder("/".join(path.split("/")[:3]) if is_url(path) else "/")


def read_ranges(
    source: SourceProgram,
    ranges: Sequence[SourceRange],
    how: HowRead,
    expected: Sequence[int] | None,
    *,
    files: OpenFiles = files_at,
    copy_of: CopyOf = lambda number: None,
    records_of: RecordsOf = lambda number: None,
    fetch: Fetch = fetch_offsets,
) -> PartitionRows:
    """Read a partition's ranges, in their order; `expected` are the checksums of the reading before."""
    tables, rejected, checks = list[pa.Table](), list[tuple[SourceRange, Rejected]](), list[int]()
    streams = list[tuple[str, int]]()
    for number, one in enumerate(ranges):
        known = None if expected is None or len(expected) != len(ranges) else expected[number]
        if isinstance(one, OffsetRange):
            found = read_offsets(source, one, how, known, partial(records_of, number), fetch=fetch)
        else:
            found = _read(source, one, how, known, files, partial(copy_of, number))
        tables.append(found.rows)
        streams.append((stream_name(one), found.rows.num_rows))
        rejected += [(one, row) for row in found.rejected]
        checks.append(found.check)
    rows = one_chunk(tables) if tables else source.schema.empty_table()
    return PartitionRows(rows, tuple(rejected), RangesRead(rows.num_rows, tuple(checks)), tuple(streams))


def _read(
    source: SourceProgram,
    one: FileRange,
    how: HowRead,
    expected: int | None,
    files: OpenFiles,
    copy: Callable[[], OpenFile | None],
) -> RangeRows:
    try:
        file = files(one.file.path).open(one.file.path)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        held = copy()
        if held is None:
            raise _lost("is not there any more", one) from None
        file = held
    except PermissionError as error:
        raise CheckFailed(
            f"may not be read: {error.strerror or error}",
            where=one.file.path,
            remedy="let the user that executors run as read it, then run `holdfast resume`",
        ) from None
    try:
        try:
            found = read_checked(source, one, how, expected, file)
        except CheckFailed:
            held = copy()
            if held is None:
                raise
            file.close()
            file = held
            found = read_checked(source, one, how, expected, file)
    finally:
        file.close()
    return found


def read_checked(
    source: SourceProgram, one: FileRange, how: HowRead, expected: int | None, file: OpenFile
) -> RangeRows:
    """Read a range; refuse it where it is not the one that the batch has."""
    if expected is None and not file.seen.is_same(one.file):
        raise _changed(one, file.seen)
    problem: Unreadable | None = None
    try:
        found = read_range(file, one, how, source.schema)
    except Unreadable as error:
        problem = error
        whole = Rejected(0, "", f"the file {error.reason}")
        found = RangeRows(source.schema.empty_table(), (whole,), error.check)
    except pa.ArrowException as error:
        raise CheckFailed(
            one_line(f"cannot be read: {error}", 200) + f": nothing of {one} is published",
            where=one.file.path,
            remedy="see that the file is what its format and options say, then run `holdfast resume`",
        ) from None
    if expected is not None and found.check != expected:
        raise _lost("has other bytes than when it was first read", one)
    if expected is None and not (now := file.look()).is_same(one.file):
        raise _changed(one, now)
    if problem is not None and not how.file_options.corrupt_aside:
        raise CheckFailed(
            f"{problem.reason}: nothing of {one} can be read",
            where=one.file.path,
            remedy="replace it by a whole file of the same name and start in another directory, or set "
            "ignoreCorruptFiles=True: such files are kept aside then",
        )
    return found


def _changed(one: FileRange, now: SourceFile) -> CheckFailed:
    had, has = f"{one.file.size} bytes", f"{now.size} bytes"
    return _lost(f"has changed since its batch was logged (it had {had}, and has {has})", one)


def _lost(what: str, one: FileRange) -> CheckFailed:
    return CheckFailed(
        f"{what}: the rows of {one} are lost to its batch, and nothing is published from it",
        where=one.file.path,
        remedy="bring the file back as it was, then run `holdfast resume`; move files in whole and keep them until "
        "their batches are in two durable checkpoints",
    )


def latest_event(source: SourceProgram, rows: pa.Table) -> int | None:
    """Return the latest event among rows, in microseconds; None: none has an event time."""
    if source.event_time is None:
        return None
    times, known = event_times(rows, source.event_time)
    return int(times[known].max()) if known.any() else None


def rejected_rows(
    partition: PartitionId, batch: BatchId, logged_at: float, rejected: Sequence[tuple[SourceRange, Rejected]]
) -> pa.Table:
    """Return records that do not parse, as they are kept aside."""
    columns: list[list[object]] = [
        [partition.operator] * len(rejected),
        [partition.index] * len(rejected),
        [batch] * len(rejected),
        [str(one) for one, _ in rejected],
        [row.position for _, row in rejected],
        [row.reason for _, row in rejected],
        [round(logged_at * 1e6)] * len(rejected),
        [row.record for _, row in rejected],
    ]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, DEAD_LETTER_COLUMNS, strict=True)]
    return pa.Table.from_arrays(arrays, schema=DEAD_LETTER_COLUMNS)
