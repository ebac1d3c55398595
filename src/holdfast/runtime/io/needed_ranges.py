"""The ranges of a source that a recovery may still read, as the log has them. Runs on the driver.

A range is needed until two durable checkpoints cover its batch; for a parked or waiting query that can be long. Each
record of the log is looked at once: what is known grows with the log and shrinks as it is trimmed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from holdfast.ids import BatchId, OperatorId
from holdfast.runtime.io.batch_log import BatchLog
from holdfast.runtime.io.file_ranges import FileRange, HowRead
from holdfast.runtime.io.offset_ranges import OffsetRange

Kind = TypeVar("Kind", bound=FileRange | OffsetRange)


class NeededRanges(Generic[Kind]):
    """The needed ranges of one source; used by one thread."""

    def __init__(self, log: BatchLog, source: OperatorId, kind: type[Kind]) -> None:
        self._log, self._source, self._kind = log, source, kind
        self._looked = BatchId(-1)
        """The last batch whose record was read."""
        self._ranges: dict[BatchId, list[tuple[int, int, Kind, HowRead]]] = {}
        self._checks: dict[tuple[BatchId, int], Sequence[int]] = {}

    def __call__(self) -> list[tuple[BatchId, int, int, Kind, HowRead]]:
        """Return batch, partition of the source, number among its ranges; the range, and how it is read."""
        first, last = self._log.first_needed, self._log.frontier
        for number in range(max(first, self._looked + 1), last + 1):
            self._read(BatchId(number))
            self._looked = BatchId(number)
        for batch in [batch for batch in self._ranges if batch < first]:
            del self._ranges[batch]
        for place in [place for place in self._checks if place[0] < first]:
            del self._checks[place]
        return [(batch, *one) for batch, some in sorted(self._ranges.items()) for one in some]

    def check(self, batch: BatchId, partition: int, number: int) -> int | None:
        """Return the checksum that the first reading of a range found; None: the log does not have it yet."""
        found = self._checks.get((batch, partition))
        return None if found is None or number >= len(found) else found[number]

    def _read(self, batch: BatchId) -> None:
        record = self._log.record(batch)
        one = None if record is None else record.sources.get(self._source)
        if one is None:
            return
        for place, read in one.reads.items():
            self._checks.setdefault(place, read.checks)
        if one.how is None:
            return
        for index in sorted({part.partition for part in one.ranges}):
            for at, part in enumerate(one.ranges_of(index)):
                if isinstance(part, self._kind):
                    self._ranges.setdefault(batch, []).append((index, at, part, one.how))
