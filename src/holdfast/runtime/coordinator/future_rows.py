"""Reports rows whose event time is too far in the future to move the watermark. Runs on the driver.

Rows that were written into the log are counted in the record of their batch; of ranges that are read in place,
partitions report them. Each batch with such rows is one event; a line is logged at the first, and whenever their number
has doubled.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.ids import BatchId, OperatorId
from holdfast.runtime.io.batch_log import BatchLog
from holdfast.wording import counted


class FutureRows:
    """Counts and reports them, by source."""

    def __init__(self, log: BatchLog, emit: Callable[..., object], log_line: Callable[[str], object]) -> None:
        """Begin after what is logged now: the driver before has reported it."""
        self._log, self._emit, self._log_line, self._looked = log, emit, log_line, log.frontier
        self.rows: dict[OperatorId, int] = {}
        """How many there were since this driver began."""
        self._logged: dict[OperatorId, int] = {}

    def look(self) -> None:
        """Look at the records that are new."""
        while self._looked < self._log.frontier:
            self._looked = BatchId(self._looked + 1)
            record = self._log.record(self._looked)
            for source, one in () if record is None else record.sources.items():
                self.found(source, self._looked, one.ahead)

    def found(self, source: OperatorId, batch: BatchId, rows: int) -> None:
        """Report rows of a batch, where there are any."""
        if not rows:
            return
        total = self.rows[source] = self.rows.get(source, 0) + rows
        self._emit("future-rows", source=source, batch=batch, rows=rows, total=total)
        if total >= 2 * self._logged.get(source, 0):
            self._logged[source] = total
            bound = "" if self._log.ahead is None else f" by more than {self._log.ahead:g} s"
            self._log_line(
                f"source {source}: {counted(total, 'row')} so far, the last in batch {batch}, with event times in the "
                f"future{bound}: the watermark does not follow them (spark.holdfast.ingest.maxEventAhead)"
            )
