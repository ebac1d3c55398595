"""When each segment's next checkpoint is due: at its own interval, with durable marks that all segments share. Pure.

The segment with the longest interval decides about durable marks: every so many of its marks is one of all segments, at
one batch. So the durable line stays one batch, and the log is trimmed as with one segment.

Where operators of a segment save more often than its checkpoint moves, its interval is cut into steps: the last step of
each interval is a mark of the segment, those before are intermediate ones of some of its operators (`intermediate`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from holdfast.ids import BatchId, OperatorId, SegmentId
from holdfast.recovery.checkpoints import NOTHING
from holdfast.recovery.segments import ALL_PARTITIONS, Segments
from holdfast.runtime.coordinator.pacing import CheckpointSchedule, CycleSettings, Mark
from holdfast.runtime.io.logged_marks import LoggedMark, LoggedMarks


class SegmentSchedule:
    """A schedule per segment. With one segment it is that of the settings."""

    def __init__(self, settings: CycleSettings, segments: Segments, began: float) -> None:
        """`settings` has the interval of every segment that it names; others have the settings' own."""
        self._segments = segments
        self._schedules: dict[SegmentId, CheckpointSchedule] = {}
        self._steps = {name: segments.steps(name) for name in segments.names}
        """Into how many steps the interval of each segment is cut; 1: its operators save when its checkpoint moves."""
        self._at = dict.fromkeys(segments.names, _Step())
        """The last step of each segment that is in the log."""
        own = {one.segment: one for one in settings.segment_intervals}
        intervals: dict[SegmentId, tuple[float, int]] = {}
        for name in segments.names:
            mine = settings
            if (given := own.get(name)) is not None:
                mine = replace(settings, checkpoint_batches=given.batches, checkpoint_seconds=given.seconds)
            intervals[name] = mine.checkpoint_seconds, mine.checkpoint_batches
            if (steps := self._steps[name]) > 1:
                batches = max(1, mine.checkpoint_batches // steps)
                mine = replace(mine, checkpoint_batches=batches, checkpoint_seconds=mine.checkpoint_seconds / steps)
            self._schedules[name] = CheckpointSchedule(mine, began)
        self._slowest = max(segments.names, key=lambda name: (intervals[name], name))

    def follow(self, before: SegmentSchedule, now: float) -> None:
        """Count on from the schedule of the plan before, whose last mark was one of all segments."""
        counted = before._schedules[before._slowest]
        for schedule in self._schedules.values():
            schedule.follow(counted, now)

    def mark_of_all(self) -> LoggedMarks:
        """Return a mark of all segments, due or not: it is durable where it is the turn of a durable one."""
        return {ALL_PARTITIONS: LoggedMark(self._schedules[self._slowest].durable_is_next)}

    def next_marks(
        self, batch: BatchId, now: float, last: Callable[[SegmentId], BatchId], waiting: Collection[SegmentId]
    ) -> LoggedMarks:
        """Say which segments take a snapshot at a batch that is about to be logged.

        `last`: the last batch that is marked or a checkpoint of a segment; `waiting`: segments that take no mark now,
        because one of theirs is open.
        """
        found: dict[SegmentId, LoggedMark] = {}
        for name, schedule in self._schedules.items():
            at = self._at[name]
            mark = None if name in waiting else schedule.next_mark(batch, max(last(name), at.batch), now)
            if mark is None:
                continue
            if step := (at.number + 1) % self._steps[name]:
                found[name] = LoggedMark(durable=False, step=step)
                continue
            durable = mark.durable and name == self._slowest
            if durable or len(self._schedules) == 1:
                return {ALL_PARTITIONS: LoggedMark(durable)}
            found[name] = LoggedMark(durable=False)
        return found

    def marked(self, batch: BatchId, marks: LoggedMarks, now: float) -> Mark | None:
        """Count the marks of a record, whichever driver has decided them; return them, those of unknown segments out.

        None: there is no mark of a segment of this run. Segments are named by the plan that holds now: those of
        another plan mark what they name in this one.
        """
        both = marks.get(ALL_PARTITIONS)
        if both is not None:
            if both.step:  # with one segment
                return self._stepped(batch, marks, now)
            for name, schedule in self._schedules.items():
                schedule.marked(Mark(batch, both.durable and name == self._slowest), now)
                self._at[name] = _Step()
            return Mark(batch, both.durable)
        known = [name for name, mark in marks.items() if name in self._schedules and not mark.step]
        for name in known:
            self._schedules[name].marked(Mark(batch, durable=False), now)
            self._at[name] = _Step()
        return self._stepped(batch, marks, now, frozenset(known))

    def _stepped(
        self, batch: BatchId, marks: LoggedMarks, now: float, segments: frozenset[SegmentId] = frozenset()
    ) -> Mark | None:
        """Count the intermediate marks of a record; return them with its marks of segments. None: there are none."""
        between: frozenset[OperatorId] = frozenset()
        for name, mark in marks.items():
            if mark.step and name in self._schedules:
                between |= self._segments.saving_at(name, mark.step)
                self._schedules[name].stepped(now)
                self._at[name] = _Step(batch, mark.step)
        return Mark(batch, durable=False, segments=segments, between=between) if segments or between else None


@dataclass(frozen=True, slots=True)
class _Step:
    """Where a segment stands between two of its checkpoints."""

    batch: BatchId = NOTHING
    """Of the last intermediate mark."""
    number: int = 0
    """0: its last mark was one of a checkpoint."""


def by_segment(marks: Mapping[SegmentId, list[Mark]], choose: Callable[[list[Mark]], list[Mark]]) -> list[Mark]:
    """Choose among the marks of every segment; return each batch once, with the segments for which it was chosen.

    Intermediate marks go with the batch, where it was chosen for a segment.
    """
    found: dict[BatchId, Mark] = {}
    for name, mine in marks.items():
        for mark in choose(mine):
            before = found.get(mark.batch)
            if mark.segments is None:
                found[mark.batch] = mark
            elif before is None:
                found[mark.batch] = replace(mark, segments=frozenset({name}))
            elif before.segments is not None:
                found[mark.batch] = replace(before, segments=before.segments | {name})
    return [found[batch] for batch in sorted(found)]
