"""The batch log: what came in, batch by batch, of all sources of a run. Runs on the driver; nodes read it.

A batch is one numbered record (`storage.records`): for every source the pieces its rows are in, where its watermark
stands, and how far its reader is. So a batch is there for all sources or for none, and what is in no record never
happened. Rows are written first, as pieces, under names that carry the writer's claim.

Any driver of the run may write the next number; the first one wins. A driver that finds it taken under a later claim is
over. Under an earlier claim, the driver before wrote it while this one started: this one takes the batch as it is and
goes on after it. Once a driver has written a batch of its own, no earlier one can write any more, and pieces of earlier
claims that no record names are deleted. A name is never used again, so that late writes and late deletes do no harm.

An empty batch of the next layout *fences* the log: drivers of this layout find their next number taken. A fence counts
while it is the last record, for whoever wrote it may be over: a driver with a later claim, whose run still has this
layout, logs an empty batch after it. A fence that a batch of an earlier layout follows is one more empty batch of that
layout. So a change of layout needs a fence of its own claim, as the last record.

Of a source that is read in place the record has ranges of files, or of offsets, in place of pieces, and how they are
read; nodes read them (`in_place`).

The watermark of a source is a function of the logged batches, the latest event so far less the allowed lateness, and
never goes back, so that every replay sees the same. Where ranges are read in place nobody knows their events yet: the
record has the watermark of what was read until then, and a partition that has ranges adds what it finds in them. A
record also says when it was logged, and which segments
checkpoint at its batch: the driver decides that once, as it logs the batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pyarrow as pa

from holdfast.errors import BadInput
from holdfast.ids import BatchId, OperatorId
from holdfast.runtime.io.batch_records import (
    Arrived,
    BatchRecord,
    BatchRecords,
    LearnReads,
    SourceBatch,
    WasRead,
    first_in_row,
    is_again,
    watermark_after,
)
from holdfast.runtime.io.event_bound import followed, until
from holdfast.runtime.io.in_place import OpenFiles, files_at
from holdfast.runtime.io.kafka_reading import Fetch, fetch_offsets
from holdfast.runtime.io.logged_marks import LoggedMarks
from holdfast.runtime.io.range_copies import CopyStore
from holdfast.runtime.io.source_blocks import SourceBlocks
from holdfast.runtime.io.source_pieces import Piece, claim_of, piece_name, write_piece
from holdfast.runtime.program import SourceProgram
from holdfast.runtime.schemas import conform
from holdfast.runtime.state.store import StaleEpoch
from holdfast.runtime.state.versions import NO_BATCH
from holdfast.runtime.times import highest
from holdfast.storage.memory import MemoryStorage
from holdfast.storage.records import Written
from holdfast.storage.storage import Storage

RECORDS_KEPT = 64
"""Of trimmed batches, so many records stay."""
WATERMARKS_KEPT = 64
"""How many of the last batches' watermarks are handed out for forged barriers."""


class BatchLog:
    """The batches of a run, in its storage."""

    def __init__(
        self,
        sources: Mapping[OperatorId, SourceProgram],
        application: str,
        storage: Storage | None = None,
        *,
        claim: int = 0,
        generation: int = 0,
        kept: int = RECORDS_KEPT,
        now: Callable[[], float] = time.time,
        files: OpenFiles = files_at,
        fetch: Fetch = fetch_offsets,
        ahead: float | None = None,
        idle: float | None = None,
    ) -> None:
        """Open or begin a log; another application's is refused. Without storage, it is in memory.

        `claim`: the driver's that writes here; nodes only read. `generation`: the layout of the run;
        batches of later ones are not seen. `kept`: so many records of trimmed batches stay. `now`: what time a record
        is logged at. `files` opens the files of ranges, `fetch` returns records of topics. `ahead`: events that are
        later than that time by more seconds do not move watermarks (None: all do). `idle`: what has had no rows for so
        many seconds, by the times of records, does not hold watermarks back (None: sources do, and their partitions do
        not).
        """
        self._kept, self.generation, self._now, self.ahead = kept, generation, now, ahead
        self.idle = idle
        self._decide: Callable[[BatchId], LoggedMarks] = lambda batch: {}
        self._was_read: LearnReads = lambda source, reading: WasRead()
        self._tried: dict[BatchId, BatchRecord] = {}
        """What was last written, perhaps without an answer: the same batch again must be the same bytes."""
        self.sources, self._application, self.claim = sources, application, claim
        self._storage = MemoryStorage() if storage is None else storage
        self._records = BatchRecords(self._storage, application)
        self.record = self._records.read
        """Returns a batch's record, if it is in the log."""
        self.copies = CopyStore(self._storage)
        """Of ranges that their source may not give again."""
        blocks = SourceBlocks(
            sources, application, generation, self._storage, self._records, self.copies, files, fetch, self._begun
        )
        self.block, self.blocks, self.reads_of = blocks.block, blocks.blocks, blocks.reads_of
        """What nodes read: the block of a partition, those of a source, and what was found in ranges."""
        self._driver = uuid4().hex
        self._own = False
        """Whether this driver has written a batch."""
        self._inherited: BatchId | None = None
        numbers = self._records.numbers()
        self._frontier = BatchId(numbers[-1]) if numbers else NO_BATCH
        self._trimmed = BatchId(first_in_row(numbers) - 1) if numbers else NO_BATCH
        self._left_over = [number for number in numbers if number <= self._trimmed]
        """Records that drivers which are over have written again under numbers that had been dropped."""
        last = self.record(self._frontier)  # one that is damaged is named at once
        while last is not None and last.generation > generation:  # a fence
            self._frontier = BatchId(self._frontier - 1)
            last = self.record(self._frontier)

    @property
    def frontier(self) -> BatchId:
        """The last batch in the log, as far as this driver has seen."""
        return self._frontier

    @property
    def first_needed(self) -> BatchId:
        """The first batch that a recovery may need."""
        return BatchId(self._trimmed + 1)

    @property
    def inherited(self) -> BatchId | None:
        """The last batch that earlier drivers have logged; None: one of them may still log another."""
        return self._frontier if self._inherited is None and self.closed else self._inherited

    @property
    def closed(self) -> bool:
        """Whether the sources are closed: every window is, and nothing can follow."""
        last = self.record(self._frontier)
        return last is not None and last.closes

    # -- writing -----------------------------------------------------------------------------------------------------

    def decide_marks(self, decide: Callable[[BatchId], LoggedMarks]) -> None:
        """Name who says, of every batch that is logged from now on, which segments take a snapshot at it."""
        self._decide = decide

    def learn_reads(self, was_read: LearnReads) -> None:
        """Name who says, whenever a batch is logged, what partitions have found in the ranges of those before."""
        self._was_read = was_read

    def append(
        self,
        tables: Mapping[str, pa.Table],
        *,
        last: bool = False,
        number: BatchId | None = None,
        given: int | None = None,
    ) -> BatchId:
        """Log a batch: rows by source; sources that are not named have none. Returns its number.

        `last`: nothing comes after it, windows close. `number`: which batch it must be; one that is there stays.
        `given`: which of a numbered sequence of batches these rows are; one that is logged is not logged again.
        """
        if strange := set(tables) - set(self.sources):
            raise BadInput(
                f"there is no source {min(strange)!r}", remedy=f"there are {', '.join(sorted(self.sources))}"
            )
        for name, rows in tables.items():
            if not isinstance(rows, pa.Table):
                raise BadInput(f"the rows of source {name!r} are {type(rows).__name__}", remedy="give a pyarrow.Table")
            conform(rows, self.sources[OperatorId(name)].schema, f"a batch of source {name}")
        arrived: dict[OperatorId, Arrived] | None = None
        while True:
            batch = BatchId(self._frontier + 1) if number is None else number
            if batch <= self._frontier:
                return batch
            self.check_next(batch)
            if arrived is None:
                position = {} if given is None else {"given": given}
                arrived = {} if given is None else {name: Arrived((), position) for name in self.sources}
                arrived |= {
                    OperatorId(name): Arrived([self.write_piece(OperatorId(name), rows, str(batch))], position)
                    for name, rows in tables.items()
                    if rows.num_rows
                }
            record = self.commit(batch, arrived, last=last)
            # What the driver before has logged meanwhile is not logged again: these rows, or the end.
            same = given is not None and (known := self.last_given) is not None and known >= given
            if (
                self.is_own(record)
                or same
                or (last and record.closes and not any(one.pieces for one in arrived.values()))
            ):
                return batch

    @property
    def last_given(self) -> int | None:
        """The last batch of a numbered sequence that is logged (`append`); None: no such sequence is."""
        last = self.record(self._frontier)
        found = (
            [] if last is None else [one.position["given"] for one in last.sources.values() if "given" in one.position]
        )
        return max(found, default=None)

    def write_piece(self, source: OperatorId, rows: pa.Table, label: str) -> Piece:
        """Write rows where a batch can name them; the label tells people where they are from."""
        name = piece_name(source, self.claim, label)
        return write_piece(self._storage, self.sources[source], rows, name, self.event_bound())

    def time(self) -> float:
        """Return the time that a record would have now."""
        return self._now()

    def event_bound(self, at: float | None = None) -> int | None:
        """Return the last event that watermarks follow in a batch that is logged at a time (None: now)."""
        return None if self.ahead is None else until(self._now() if at is None else at, self.ahead)

    def commit(self, batch: BatchId, arrived: Mapping[OperatorId, Arrived], *, last: bool = False) -> BatchRecord:
        """Log a batch of pieces that are written, in one step. Returns what is logged under its number.

        That is another record where the driver before wrote it: its own pieces then do not count.
        """
        before, at = self.record(BatchId(batch - 1)), self._now()
        sources = {
            name: self._logged(source, arrived.get(name, Arrived()), before, self.event_bound(at), last=last)
            for name, source in self.sources.items()
        }
        self.check_next(batch)
        return self._commit(batch, sources, self._decide(batch), at)

    def repeat(self, batch: BatchId, sources: Mapping[OperatorId, SourceBatch], at: float | None = None) -> None:
        """Log a batch as the log of another run has it, watermarks included: the same outputs must come of it."""
        self._commit(batch, sources, {}, at)

    def _commit(
        self,
        batch: BatchId,
        sources: Mapping[OperatorId, SourceBatch],
        marks: LoggedMarks | None = None,
        at: float | None = None,
    ) -> BatchRecord:
        self.check_next(batch)
        record = self._write(batch, sources, self.generation, marks or {}, self._now() if at is None else at)
        if record.generation > self.generation:
            self._follow(record)
        else:
            self._goes_on(record)
        return record

    def _write(
        self, batch: BatchId, sources: Mapping[OperatorId, SourceBatch], generation: int, marks: LoggedMarks, at: float
    ) -> BatchRecord:
        """Create a record; return what is under its number: this one, or one of an earlier claim."""
        record = BatchRecord(batch, self.claim, self._driver, generation, sources, marks, at)
        tried = self._tried.get(batch)
        if tried is not None and is_again(record, tried):
            record = tried
        self._tried[batch] = record
        written = self._records.create(record)
        if written is Written.PASSED:
            raise self._over("batches after this one are logged")
        if written is Written.TAKEN:
            record = self._records.need(batch)
            self._check_earlier(record)
        return record

    def _goes_on(self, last: BatchRecord) -> None:
        """Take a record for the last one of this layout.

        What can fail comes first: a batch whose commit has failed is not logged here, and tried again under its number.
        """
        self._records.keep(last)
        if self.is_own(last) and not self._own:
            self._sweep(last)
            self._own, self._inherited = True, BatchId(last.batch - 1)
        self._frontier = last.batch
        self._tried.clear()

    def _follow(self, fence: BatchRecord) -> None:
        """Log an empty batch after a fence of a driver that is over: the run, and so the next record, has this layout.

        Only then do batches go on after the fence: where this driver dies before, the log is as it was.
        """
        last = fence
        while last.generation > self.generation:
            last = self._write(BatchId(last.batch + 1), self._stand(self.sources), self.generation, {}, self._now())
        self._goes_on(last)

    def adopt(self) -> bool:
        """Take batches as they are that the driver before has logged since this one has read; say whether it has."""
        found = False
        while not self._own and (record := self.record(BatchId(self._frontier + 1))) is not None:
            self._check_earlier(record)
            if record.generation > self.generation:
                self._follow(record)
            else:
                self._goes_on(record)
            found = True
        return found

    def fence(self, before: Iterable[OperatorId]) -> bool:
        """Log an empty batch as the first of the next layout: no driver of this one can log any more.

        It says where the sources of `before`, the layout that ends, stand, also where the next one is to be without
        them: should this driver die before the run has the next layout, another one may have them. Other sources begin.
        False: the driver before has logged a batch of this layout meanwhile, which must be processed first.
        """
        batch, stand = BatchId(self._frontier + 1), self._stand(before)
        self.check_next(batch)
        while True:
            record = self._write(batch, stand, self.generation + 1, {}, self._now())
            if record.generation <= self.generation:
                self._goes_on(record)
                return False
            if self.is_own(record):
                return True
            batch = BatchId(batch + 1)

    def _check_earlier(self, record: BatchRecord) -> None:
        """Refuse a record of a driver that has a later claim: this one is over."""
        if record.claim >= self.claim:
            raise self._over(f"batch {record.batch} was logged under claim {record.claim}")

    def is_own(self, record: BatchRecord) -> bool:
        """Whether this driver has written a record."""
        return record.driver == self._driver

    def check_next(self, batch: BatchId) -> None:
        """Refuse a batch that cannot follow."""
        if batch != self._frontier + 1:
            raise BadInput(
                f"batch {batch} cannot follow batch {self._frontier}",
                where=f"application {self._application}",
                remedy="batches come in order",
            )
        self.check_open()

    def check_open(self) -> None:
        """Refuse a log that is closed: nothing can follow."""
        if self.closed:
            raise BadInput(
                f"its sources were closed with batch {self._frontier}: all windows are, and rows that come now would "
                "all be late",
                where=f"application {self._application}",
                remedy="begin in another directory; a run that is to go on later must not be closed",
            )

    def trim(self, through: BatchId) -> None:
        """Delete the rows of batches that no recovery can need: a committed checkpoint has dropped them.

        Files that are read in place belong to others: they stay.
        """
        copied = False
        for number in range(self._trimmed + 1, through + 1):
            record = self.record(BatchId(number))
            if record is not None:
                copied = copied or _has_ranges(record)
                self._storage.delete(piece.file for one in record.sources.values() for piece in one.pieces)
        old = [number for number in range(self._trimmed + 1, through + 1) if number < self._frontier]
        self._records.drop([number - self._kept for number in old if number >= self._kept])
        if copied:
            self.copies.drop(through)
        self._trimmed = max(self._trimmed, through)

    # -- reading -----------------------------------------------------------------------------------------------------

    def logged_at(self, batch: BatchId) -> float | None:
        """Return when a recent batch was logged; None where that is not known without reading."""
        held = self._records.held(batch)
        return None if held is None else held.logged_at

    def recent_watermarks(self, source: OperatorId) -> tuple[tuple[BatchId, int], ...]:
        """Return where a source's watermark stood after recent batches, those after which it had moved; reads none."""
        found: list[tuple[BatchId, int]] = []
        for number in range(max(0, self._frontier - WATERMARKS_KEPT + 1), self._frontier + 1):
            held = self._records.held(BatchId(number))
            mine = None if held is None else held.sources.get(source)
            mark = None if mine is None else mine.watermark
            if mark is not None and (not found or found[-1][1] != mark):
                found.append((BatchId(number), mark))
        return tuple(found)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _logged(
        self,
        source: SourceProgram,
        arrived: Arrived,
        before: BatchRecord | None,
        bound: int | None = None,
        *,
        last: bool,
    ) -> SourceBatch:
        """Say what a batch has of one source, after the batch before; the watermark follows events up to the bound."""
        past = SourceBatch(None, (), ()) if before is None else before.sources.get(source.id, SourceBatch(None, (), ()))
        found = [followed(piece.events, bound) for piece in arrived.pieces]
        known = [latest for latest, _ in found if latest is not None]
        mark = watermark_after(source, past.watermark, max(known, default=None), last=last)
        if mark is not None:
            mark = highest(mark, arrived.at_least)
        reading = frozenset(one.partition for one in arrived.ranges)
        known_read = self._was_read(source.id, reading) if source.reader is not None else WasRead()
        if mark is not None:
            mark = highest(mark, known_read.watermark)
        counts = [0] * source.parallelism
        for piece in arrived.pieces:
            for section in piece.sections:
                counts[section.partition] += section.rows
        full = tuple(piece for piece in arrived.pieces if piece.rows)
        position = {**past.position, **arrived.position}
        ranges = tuple(arrived.ranges)
        how = replace(arrived.how, until=bound) if arrived.ranges and arrived.how is not None else None
        ahead = sum(rows for _, rows in found)
        return SourceBatch(mark, tuple(counts), full, position, ranges, how, known_read.reads, ahead)

    def _begun(self, source: SourceProgram) -> SourceBatch:
        """Say what a batch has of a source that begins after it."""
        return self._logged(source, Arrived(), None, last=False)

    def _stand(self, before: Iterable[OperatorId]) -> dict[OperatorId, SourceBatch]:
        """Say where sources stand between two layouts: those of the one before, and those that begin."""
        last, stay = self.record(self._frontier), set(before)
        known = {} if last is None else {name: one for name, one in last.sources.items() if name in stay}
        found = {name: self._begun(source) for name, source in self.sources.items()}
        stood = {
            name: replace(one, rows=(0,) * len(one.rows), pieces=(), ranges=(), how=None, reads={}, ahead=0)
            for name, one in known.items()
        }
        return found | stood

    def _sweep(self, last: BatchRecord) -> None:
        """Delete what earlier claims wrote and no batch names: no earlier driver can write a batch after this one."""
        named = {
            piece.file
            for number in range(self._trimmed + 1, last.batch + 1)
            if (record := self.record(BatchId(number))) is not None
            for one in record.sources.values()
            for piece in one.pieces
        }
        for one in last.sources.values():
            named.update(one.position.get("reader", {}).get("bundles", ()))
        there = [*self._storage.list("pieces/"), *self._storage.list("readers/")]
        self._storage.delete([name for name in there if claim_of(name) < self.claim and name not in named])
        if self._left_over:
            self._records.drop(self._left_over)

    def _over(self, why: str) -> StaleEpoch:
        return StaleEpoch(
            f"claim {self.claim} is over: {why}",
            where=f"application {self._application}",
            remedy="another driver runs this application: end this one",
        )


def _has_ranges(record: BatchRecord) -> bool:
    return any(one.ranges for one in record.sources.values())


def last_positions(log: BatchLog, sources: Iterable[OperatorId]) -> dict[OperatorId, Mapping[str, Any]]:
    """Return where each source's reader is after the last batch; empty: it begins."""
    last = log.record(log.frontier)
    return {name: {} if last is None or name not in last.sources else last.sources[name].position for name in sources}
