"""Marks of checkpoints: decided when a batch is logged, and read from the log before the batch is handed out.

The record of a batch says whether the batch is a mark. The driver that logs the batch decides it; whoever reads the
record later, this driver or another one, takes it from there. So a batch and its mark are one, and no worker can be
past a batch that is marked afterwards. Runs on the driver; pure apart from the log that it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.ids import BatchId
from holdfast.recovery.cluster_state import ClusterState
from holdfast.runtime.coordinator.pacing import CheckpointSchedule, Mark
from holdfast.runtime.io.batch_log import BatchLog
from holdfast.runtime.io.logged_marks import ALL_PARTITIONS, LoggedMark, LoggedMarks

MOST_AT_ONCE = 4
"""Of the marks in a long stretch of the log that is handed out at once, so many count: each costs a snapshot."""


class BatchMarks:
    """Decides marks as batches are logged, and finds them in the log, beyond the checkpoint."""

    def __init__(
        self, log: BatchLog, state: ClusterState, schedule: CheckpointSchedule, clock: Callable[[], float]
    ) -> None:
        """From now on this decides for every batch that is logged to `log`."""
        self._log, self._state, self._schedule, self._clock = log, state, schedule, clock
        self._checkpoint = self._through = state.checkpoints.global_batch
        """The last checkpoint that was seen, and up to where records are read."""
        self._found: list[Mark] = []
        """Marks that were read and are not handed out yet."""
        log.decide_marks(self.decide)

    def decide(self, batch: BatchId) -> LoggedMarks:
        """Say which segments take a snapshot at a batch that is about to be logged."""
        self._read()
        checkpoints = self._state.checkpoints
        open_marks = [*checkpoints.marks, *(mark.batch for mark in self._found)]
        if open_marks and not self._state.recovering:
            return {}  # one at a time; during a recovery live partitions take further snapshots meanwhile
        last = max([*checkpoints.line.values(), *open_marks])  # while some wait, of those that go on
        mark = self._schedule.next_mark(batch, last, self._clock())
        return {} if mark is None else {ALL_PARTITIONS: LoggedMark(mark.durable)}

    def take(self) -> list[Mark]:
        """Return the marks of batches that were logged since the last call: they go out with the batches."""
        self._read()
        found, self._found = self._found, []
        return spread([mark for mark in found if mark.batch > self._checkpoint], MOST_AT_ONCE)

    def _read(self) -> None:
        """Read the records of batches that have not been handed out."""
        checkpoint = self._state.checkpoints.global_batch
        if checkpoint < self._checkpoint:
            # It was lost: everything starts anew from an earlier one, and processes what was logged since once more.
            self._through, self._found = checkpoint, []
        self._checkpoint = checkpoint
        for number in range(self._through + 1, self._log.frontier + 1):
            record = self._log.record(BatchId(number))
            self._through = BatchId(number)
            if record is not None and record.generation == self._log.generation and ALL_PARTITIONS in record.marks:
                mark = Mark(record.batch, record.marks[ALL_PARTITIONS].durable)
                self._found.append(mark)
                self._schedule.marked(mark, self._clock())


def spread(marks: Sequence[Mark], most: int) -> list[Mark]:
    """Choose among marks in their order: all, or the durable ones if they are too many, evenly, with the last one."""
    chosen = marks if len(marks) <= most else [mark for mark in marks if mark.durable] or marks
    return (
        [chosen[(number + 1) * len(chosen) // most - 1] for number in range(most)] if len(chosen) > most else [*chosen]
    )
