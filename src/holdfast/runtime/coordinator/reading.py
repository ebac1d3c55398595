"""What source partitions found in the ranges that they read in place: watermarks, and checksums. Runs on the driver.

A batch is logged before its ranges are read. What partitions report is logged with the next batch: where the source's
watermark stands, so that partitions without ranges do not hold it back, and the checksums of the ranges, which a
partition that reads them again must find. So both are decided once, and a new driver reads them in the log.

While partitions have something to read, the watermark is that of the one furthest behind: where a backlog is read,
partitions may be days apart, and the rows of the last must not be late because of the first. When everything is read
(and, where a run has such a setting, partitions have had no rows for a while), it is that of the one furthest on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import RLock

from holdfast.ids import BatchId, OperatorId, PartitionId
from holdfast.runtime.io.batch_log import BatchLog
from holdfast.runtime.io.batch_records import WasRead
from holdfast.runtime.io.file_ranges import RangesRead
from holdfast.runtime.messages import SourceRead
from holdfast.runtime.program import Program
from holdfast.runtime.times import END_OF_TIME, Watermark, highest, lowest

NOTHING = BatchId(-1)


class SourceReads:
    """What is known of the ranges of a run's sources."""

    def __init__(
        self, program: Program, log: BatchLog, checkpoint: BatchId, frontier: Callable[[PartitionId], BatchId]
    ) -> None:
        """Begin with what the log has of the batches after a checkpoint. `frontier`: the last batch of a partition."""
        self._log, self._frontier, self._guard = log, frontier, RLock()
        self._began = log.frontier, log.time()
        self._found: dict[PartitionId, dict[BatchId, RangesRead]] = {
            p: {} for p in program.partitions if p.operator in log.sources and log.sources[p.operator].reader
        }
        self._marks: dict[PartitionId, Watermark] = {}
        self._furthest: dict[PartitionId, Watermark] = {}
        """Of the stream of each partition that is furthest on, where it has several."""
        self._written: dict[PartitionId, set[BatchId]] = {p: set() for p in self._found}
        self._given: dict[PartitionId, tuple[BatchId, float]] = {}
        """The last batch that has ranges of each partition, and its time."""
        self._counted: dict[PartitionId, BatchId] = {}
        """The last batch of each partition whose rows are in `rows_read`."""
        self.rows_read: dict[OperatorId, int] = dict.fromkeys((p.operator for p in self._found), 0)
        """How many rows each source has read since this driver began; of batches that are read again once."""
        self._looked = checkpoint
        """The last batch whose record was read."""
        if self._found:
            self._catch_up()
        log.learn_reads(self._was_read)

    def _catch_up(self) -> None:
        """Read the records that are new: those of this driver, and those that it has adopted."""
        while self._looked < self._log.frontier:
            self._looked = BatchId(self._looked + 1)
            self._take_logged(self._looked)

    def _take_logged(self, number: BatchId) -> None:
        record = self._log.record(number)
        if record is None or record.generation != self._log.generation:
            return
        for name, one in record.sources.items():
            for given in one.ranges:
                self._given[PartitionId(name, given.partition)] = number, record.logged_at or 0.0
            for (batch, index), read in one.reads.items():
                partition = PartitionId(name, index)
                if partition in self._found:
                    self._furthest[partition] = highest(self._furthest.get(partition), read.furthest)
                    self._found[partition].setdefault(batch, read)
                    self._written[partition].add(batch)

    def take(self, reports: Sequence[tuple[PartitionId, SourceRead]]) -> list[tuple[OperatorId, BatchId, RangesRead]]:
        """Take what partitions report. What was found first holds: who finds anything else refuses it.

        Returns what is new, of batches that are read again nothing.
        """
        with self._guard:
            new = []
            for partition, read in reports:
                mine = self._found.get(partition)
                if mine is None:
                    continue
                self._marks[partition] = highest(self._marks.get(partition), read.watermark)
                for batch, found in read.batches:
                    self._furthest[partition] = highest(self._furthest.get(partition), found.furthest)
                    mine.setdefault(batch, found)
                    if batch > self._counted.get(partition, NOTHING):
                        self._counted[partition] = batch
                        self.rows_read[partition.operator] += found.rows
                        new.append((partition.operator, batch, found))
            return new

    def checks(self, partition: PartitionId, frontier: BatchId) -> tuple[tuple[BatchId, tuple[int, ...]], ...]:
        """Return the checksums of a partition's ranges in the batches after one, as far as they are known."""
        with self._guard:
            mine = self._found.get(partition)
            if not mine or max(mine) <= frontier:
                return ()
            return tuple((batch, mine[batch].checks) for batch in sorted(mine) if batch > frontier)

    def rows(self, source: OperatorId, batch: BatchId) -> int:
        """Return how many rows the ranges of a batch had, as far as they have been read."""
        with self._guard:
            return sum(mine[batch].rows for p, mine in self._found.items() if p.operator == source and batch in mine)

    def is_ahead(self) -> bool:
        """Whether an empty batch would bring a source's watermark on, at all of its partitions. From any thread."""
        with self._guard:
            return any(self._logged(name) < mark for name, mark in self._marks_now().items())

    def marks_logged(self) -> Callable[[], bool]:
        """Return what says whether the log has moved watermarks as far as what was read until now does.

        Where more has come since that holds them back, it has moved them as far as it can. From any thread.
        """
        with self._guard:
            wanted = self._marks_now()

        def moved() -> bool:
            return all(self._logged(name) >= mark for name, mark in wanted.items()) or not self.is_ahead()

        return moved

    def _marks_now(self) -> dict[OperatorId, int]:
        """Return where an empty batch would bring the watermarks of sources."""
        self._catch_up()
        found = {name: self._mark(name, frozenset()) for name in self.rows_read}
        return {name: mark for name, mark in found.items() if mark is not None}

    def _logged(self, source: OperatorId) -> int:
        """Return the watermark that all partitions of a source have by the log; a single one moves by itself, too."""
        last = self._log.record(self._log.frontier)
        if last is None or last.closes or (logged := last.sources.get(source)) is None or logged.watermark is None:
            return END_OF_TIME
        alone = self._log.sources[source].parallelism == 1
        mine = self._marks.get(PartitionId(source, 0)) if alone else None
        return logged.watermark if mine is None else max(logged.watermark, mine)

    def _mark(self, source: OperatorId, reading: frozenset[int]) -> Watermark:
        """Return where a source's watermark stands as a batch is logged in which these partitions have ranges."""
        mine = [p for p in self._found if p.operator == source]
        behind = [p for p in mine if p.index in reading or self._has_more(p, goes_on=bool(reading), of=len(mine))]
        marks = [self._marks.get(p) for p in behind]
        if None in marks:
            return None  # it has not read anything yet: the watermark stays where it is
        return lowest(marks) if behind else highest(*map(self._marks.get, mine), *map(self._furthest.get, mine))

    def _has_more(self, partition: PartitionId, *, goes_on: bool, of: int) -> bool:
        """Whether a partition has something to read, or will have soon, as far as its last ranges tell."""
        given = self._given.get(partition)
        if given is not None and given[0] > self._frontier(partition):
            return True
        # What it had before this driver, or layout, began is not known.
        batch, at = given or self._began
        if batch < 0:
            return False
        if self._log.idle is not None:
            now = self._log.time()
            if now < at:  # the clock was set back, or the driver before had one that is ahead: time counts from now on
                at = now
                if given is None:
                    self._began = batch, now
                else:
                    self._given[partition] = batch, now
            if now - at <= self._log.idle:
                return True
        # Files go to one partition after the other: one that had some lately will have more.
        return goes_on and batch > self._log.frontier - 2 * of

    def trim(self, through: BatchId) -> None:
        """Forget what no recovery can need."""
        with self._guard:
            for partition, mine in self._found.items():
                for batch in [batch for batch in mine if batch <= through]:
                    del mine[batch]
                self._written[partition] = {batch for batch in self._written[partition] if batch > through}

    def _was_read(self, source: OperatorId, reading: frozenset[int]) -> WasRead:
        """Say what the record of the next batch is to have; of batches that are in the log."""
        with self._guard:
            return self._read_until_now(source, reading)

    def _read_until_now(self, source: OperatorId, reading: frozenset[int]) -> WasRead:
        self._catch_up()
        mine = [p for p in self._found if p.operator == source]
        new = {
            (batch, p.index): read
            for p in mine
            for batch, read in self._found[p].items()
            if batch not in self._written[p] and batch <= self._log.frontier
        }
        return WasRead(self._mark(source, reading), new)
