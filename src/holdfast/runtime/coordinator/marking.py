"""Marks of checkpoints: decided when a batch is logged, and read from the log before the batch is handed out.

The record of a batch says whether the batch is a mark. The driver that logs the batch decides it; whoever reads the
record later, this driver or another one, takes it from there. So a batch and its mark are one, and no worker can be
past a batch that is marked afterwards. Runs on the driver; pure apart from the log that it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.ids import BatchId, SegmentId
from holdfast.recovery.cluster_state import ClusterState
from holdfast.runtime.coordinator.pacing import Mark
from holdfast.runtime.coordinator.segment_schedule import SegmentSchedule, by_segment
from holdfast.runtime.io.batch_log import BatchLog
from holdfast.runtime.io.logged_marks import LoggedMarks

MOST_AT_ONCE = 4
"""Of the marks in a long stretch of the log that is handed out at once, so many count: each costs a snapshot."""


class BatchMarks:
    """Decides marks as batches are logged, and finds them in the log, beyond the checkpoint."""

    def __init__(
        self, log: BatchLog, state: ClusterState, schedule: SegmentSchedule, clock: Callable[[], float]
    ) -> None:
        """From now on this decides for every batch that is logged to `log`."""
        self._log, self._state, self._schedule, self._clock = log, state, schedule, clock
        self._checkpoint = self._through = state.checkpoints.global_batch
        """The last checkpoint that was seen, and up to where records are read."""
        self._line = dict(state.checkpoints.line)
        self._found: list[Mark] = []
        """Marks that were read and are not handed out yet."""
        log.decide_marks(self.decide)

    def decide(self, batch: BatchId) -> LoggedMarks:
        """Say which segments take a snapshot at a batch that is about to be logged."""
        self._read()
        checkpoints, segments = self._state.checkpoints, self._state.segments
        if self._state.plan.next is not None and not self._state.recovering:
            return {} if self._plan_is_marked() else self._schedule.mark_of_all()
        open_marks: dict[SegmentId, list[BatchId]] = {}
        last: dict[SegmentId, BatchId] = {}
        for name, members in segments.by_name(checkpoints.line).items():
            known = checkpoints.open_marks(name)
            found = (mark.batch for mark in self._found if is_of(mark, name) or self._is_between(mark, name))
            open_marks[name] = [*known, *found]
            last[name] = max([*(checkpoints.line[p] for p in members), *open_marks[name]])
        # One at a time; during a recovery live partitions take further snapshots meanwhile.
        waiting = set() if self._state.recovering else {name for name, marks in open_marks.items() if marks}
        return self._schedule.next_marks(batch, self._clock(), last.__getitem__, waiting)

    def _plan_is_marked(self) -> bool:
        """Whether a mark of all partitions is open at which the plan that was chosen can take effect."""
        after = self._state.plan.after
        logged = any(mark.segments is None and mark.batch >= after for mark in self._found)
        return logged or any(mark >= after for mark in self._state.checkpoints.marks_of_all)

    def use(self, schedule: SegmentSchedule) -> None:
        """Decide by another schedule from now on: another plan has taken effect."""
        schedule.follow(self._schedule, self._clock())
        self._schedule = schedule

    def take(self) -> list[Mark]:
        """Return the marks of batches that were logged since the last call: they go out with the batches."""
        self._read()
        found, self._found = self._found, []
        new = [mark for mark in found if mark.batch > self._checkpoint]
        names = self._state.segments.names
        mine = {name: [mark for mark in new if is_of(mark, name)] for name in names}
        chosen = by_segment(mine, lambda marks: spread(marks, MOST_AT_ONCE))
        # Of intermediate marks in a long stretch the last is enough: no partition starts from one before it.
        between = [mark for mark in new if mark.between and mark.segments == frozenset()][-1:]
        return sorted([*chosen, *between], key=lambda mark: mark.batch)

    def _is_between(self, mark: Mark, segment: SegmentId) -> bool:
        """Whether an intermediate mark is one of a segment."""
        segments = self._state.segments
        return bool(mark.between) and (
            not segments.many or any(segments.operators[one] == segment for one in mark.between)
        )

    def _read(self) -> None:
        """Read the records of batches that have not been handed out."""
        checkpoint, line = self._state.checkpoints.global_batch, dict(self._state.checkpoints.line)
        if any(line[p] < at for p, at in self._line.items()):
            # It was lost: everything starts anew from an earlier one, and processes what was logged since once more.
            # The lowest batch may be the same: a query was waiting there.
            self._through, self._found = checkpoint, []
        self._checkpoint, self._line = checkpoint, line
        for number in range(self._through + 1, self._log.frontier + 1):
            record = self._log.record(BatchId(number))
            self._through = BatchId(number)
            if record is not None and record.generation == self._log.generation:
                mark = self._schedule.marked(record.batch, record.marks, self._clock())
                if mark is not None:
                    self._found.append(mark)


def is_of(mark: Mark, segment: SegmentId) -> bool:
    """Whether the checkpoint of a segment may move to a mark."""
    return mark.segments is None or segment in mark.segments


def spread(marks: Sequence[Mark], most: int) -> list[Mark]:
    """Choose among marks in their order: all, or the durable ones if they are too many, evenly, with the last one."""
    chosen = marks if len(marks) <= most else [mark for mark in marks if mark.durable] or marks
    return (
        [chosen[(number + 1) * len(chosen) // most - 1] for number in range(most)] if len(chosen) > most else [*chosen]
    )
