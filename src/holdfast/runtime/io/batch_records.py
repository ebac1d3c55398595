"""The records of the batch log: what each says of every source, their form on storage, the last ones in memory.

Runs on the driver; nodes read it. Who may write which, and what follows which, is in `batch_log`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.errors import BadInput, CheckFailed
from holdfast.ids import BatchId, OperatorId
from holdfast.runtime.io.file_ranges import HowRead, RangesRead, how_fields, how_of
from holdfast.runtime.io.logged_marks import LoggedMarks, mark_fields, marks_of
from holdfast.runtime.io.offset_ranges import SourceRange, source_range_fields, source_range_of
from holdfast.runtime.io.source_pieces import Piece, piece_fields, piece_of
from holdfast.runtime.program import SourceProgram
from holdfast.runtime.times import END_OF_TIME, NOT_YET, Watermark, highest, microseconds
from holdfast.storage.records import Records, Written
from holdfast.storage.storage import Storage

FORMAT = 1
_HELD = 256
"""So many records are kept in memory."""

Reads = Mapping[tuple[BatchId, int], RangesRead]
"""What was found in ranges, by batch and partition."""


@dataclass(frozen=True, slots=True)
class WasRead:
    """What is known, when a batch is logged, of the ranges of a source in the batches before."""

    watermark: Watermark = None
    """Of the partition that is furthest behind among those that have something to read."""
    reads: Reads = field(default_factory=dict)
    """What no record has yet."""


LearnReads = Callable[[OperatorId, frozenset[int]], WasRead]
"""Says it of a source, and of the partitions that have ranges in the batch that is logged."""


@dataclass(frozen=True, slots=True)
class SourceBatch:
    """What a batch has of one source."""

    watermark: Watermark
    rows: tuple[int, ...]
    """Rows per partition of the source."""
    pieces: tuple[Piece, ...]
    """Where the rows are, in their order."""
    position: Mapping[str, Any] = field(default_factory=dict)
    """How far the source's reader is after this batch, in its own words."""
    ranges: tuple[SourceRange, ...] = ()
    """What is read in place, in the order of the rows of each partition."""
    how: HowRead | None = None
    """How the ranges are read; None: there are none."""
    reads: Reads = field(default_factory=dict)
    """What partitions found in the ranges of earlier batches, reported since the batch before was logged."""
    ahead: int = 0
    """Rows in its pieces whose event is too far in the future to move the watermark."""

    @property
    def empty(self) -> bool:
        """Whether the source has nothing in the batch."""
        return not self.pieces and not self.ranges

    def ranges_of(self, partition: int) -> tuple[SourceRange, ...]:
        """Return the ranges of one partition."""
        return tuple(one for one in self.ranges if one.partition == partition)


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """That a batch is in the log."""

    batch: BatchId
    claim: int
    """Of the driver that wrote it."""
    driver: str
    generation: int
    """The layout in which it is processed; its rows are cut for that one's partitions."""
    sources: Mapping[OperatorId, SourceBatch]
    marks: LoggedMarks = field(default_factory=dict)
    """The segments that take a snapshot at it."""
    logged_at: float | None = None
    """When it was logged, in seconds since 1970; None: by a version that did not write it down."""

    @property
    def empty(self) -> bool:
        """Whether no source has anything in it, as in a fence."""
        return all(one.empty for one in self.sources.values())

    @property
    def closes(self) -> bool:
        """Whether nothing comes after it: all windows are closed."""
        return any(one.watermark == END_OF_TIME for one in self.sources.values())


@dataclass(frozen=True, slots=True)
class Arrived:
    """What a batch that is to be logged has of one source."""

    pieces: Sequence[Piece] = ()
    position: Mapping[str, Any] = field(default_factory=dict)
    at_least: Watermark = None
    """Where the watermark must stand whatever the rows say (a source that has been idle)."""
    ranges: Sequence[SourceRange] = ()
    how: HowRead | None = None


def watermark_after(source: SourceProgram, before: Watermark, latest: int | None, *, last: bool) -> Watermark:
    """Move a source's watermark on by the latest event of a batch; None where the source has no event time."""
    if source.event_time is None:
        return None
    if last:
        return END_OF_TIME
    lateness = microseconds(source.lateness) if source.lateness else 0
    return highest(highest(before, NOT_YET), None if latest is None else latest - lateness)


def is_again(record: BatchRecord, tried: BatchRecord) -> bool:
    """Whether a record is of the same rows as one that was tried: what was decided then holds."""
    if record.sources.keys() != tried.sources.keys():
        return False
    if record.closes != tried.closes:
        return False
    decided = {
        name: replace(
            one,
            watermark=before.watermark,
            reads=before.reads,
            ahead=before.ahead,
            how=_with_bound(one.how, before.how),
        )
        for name, one in record.sources.items()
        for before in [tried.sources[name]]
    }
    return replace(record, marks=tried.marks, logged_at=tried.logged_at, sources=decided) == tried


def _with_bound(how: HowRead | None, tried: HowRead | None) -> HowRead | None:
    return how if how is None or tried is None else replace(how, until=tried.until)


class BatchRecords:
    """The records of one application's log, the last ones in memory."""

    def __init__(self, storage: Storage, application: str) -> None:
        self._storage, self._application = storage, application
        self._records = Records(storage, "batches", version=FORMAT)
        self.numbers, self.drop = self._records.numbers, self._records.drop
        self._held: dict[BatchId, BatchRecord] = {}

    def create(self, record: BatchRecord) -> Written:
        """Write a record, only if there is none under its number."""
        return self._records.create(record.batch, record_fields(record, self._application))

    def read(self, batch: BatchId) -> BatchRecord | None:
        """Return a batch's record, if it is in the log."""
        held = self._held.get(batch)
        if held is None and batch >= 0:
            fields = self._records.read(batch)
            if fields is not None:
                self._check(fields)
                held = self.keep(record_of(batch, fields))
        return held

    def need(self, batch: BatchId) -> BatchRecord:
        """Return a batch's record; one that is not in the log is an error."""
        record = self.read(batch)
        if record is None:
            raise CheckFailed(
                f"batch {batch} is not in the log",
                where=f"application {self._application}",
                remedy="it was trimmed or never logged",
            )
        return record

    def held(self, batch: BatchId) -> BatchRecord | None:
        """Return a batch's record where it is in memory."""
        return self._held.get(batch)

    def keep(self, record: BatchRecord) -> BatchRecord:
        """Keep a record in memory; those of the lowest numbers give way."""
        self._held[record.batch] = record
        if len(self._held) > 2 * _HELD:
            for old in sorted(self._held)[:_HELD]:
                del self._held[old]
        return record

    def _check(self, fields: Mapping[str, Any]) -> None:
        """Refuse the log of another application."""
        if fields["application"] != self._application:
            raise BadInput(
                f"the log belongs to application {fields['application']!r}, not {self._application!r}",
                where=self._storage.url,
                remedy="give every application a directory of its own",
            )


def first_in_row(numbers: Sequence[int]) -> int:
    """Return the first of the numbers that come one after the other up to the last.

    What is before a gap was dropped once: a driver that is over has written it again, or died while it dropped it.
    """
    first = numbers[-1]
    for number in reversed(numbers[:-1]):
        if number != first - 1:
            break
        first = number
    return first


# -- on storage --------------------------------------------------------------------------------------------------------


def record_fields(record: BatchRecord, application: str) -> dict[str, Any]:
    """Return a record as plain values."""
    return {
        "application": application,
        "claim": record.claim,
        "driver": record.driver,
        "generation": record.generation,
        "logged-at": record.logged_at,
        "marks": mark_fields(record.marks),
        "sources": {
            name: {
                "watermark": one.watermark,
                "rows": list(one.rows),
                "pieces": [piece_fields(piece) for piece in one.pieces],
                "position": dict(one.position),
                **_in_place_fields(one),
            }
            for name, one in record.sources.items()
        },
    }


def _in_place_fields(one: SourceBatch) -> dict[str, Any]:
    """Return what a record has of a source that is read in place; of others nothing, as before there were such."""
    found: dict[str, Any] = {}
    if one.ranges and one.how is not None:
        found |= {"ranges": [source_range_fields(part) for part in one.ranges], "how": how_fields(one.how)}
    if one.reads:
        found["reads"] = [
            [batch, index, read.rows, list(read.checks), *([] if read.furthest is None else [read.furthest])]
            for (batch, index), read in one.reads.items()
        ]
    if one.ahead:
        found["ahead"] = one.ahead
    return found


def record_of(batch: BatchId, fields: Mapping[str, Any]) -> BatchRecord:
    """Read what was written."""
    sources = {
        OperatorId(name): SourceBatch(
            one["watermark"],
            tuple(one["rows"]),
            tuple(piece_of(piece) for piece in one["pieces"]),
            one["position"],
            tuple(source_range_of(fields) for fields in one.get("ranges", ())),
            how_of(one["how"]) if "how" in one else None,
            {
                (BatchId(batch), index): RangesRead(rows, tuple(checks), 0, *furthest)
                for batch, index, rows, checks, *furthest in one.get("reads", ())
            },
            one.get("ahead", 0),
        )
        for name, one in fields["sources"].items()
    }
    return BatchRecord(
        batch,
        fields["claim"],
        fields["driver"],
        fields["generation"],
        sources,
        marks_of(fields),
        fields.get("logged-at"),
    )
