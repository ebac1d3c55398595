"""When each segment's next checkpoint is due: at its own interval, with durable marks that all segments share. Pure.

The segment with the longest interval decides about durable marks: every so many of its marks is one of all segments, at
one batch. So the durable line stays one batch, and the log is trimmed as with one segment.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from holdfast.ids import BatchId, SegmentId
from holdfast.recovery.segments import ALL_PARTITIONS, Segments
from holdfast.runtime.coordinator.pacing import CheckpointSchedule, CycleSettings, Mark
from holdfast.runtime.io.logged_marks import LoggedMark, LoggedMarks


class SegmentSchedule:
    """A schedule per segment. With one segment it is that of the settings."""

    def __init__(self, settings: CycleSettings, segments: Segments, began: float) -> None:
        """`settings` has the interval of every segment that it names; others have the settings' own."""
        self._schedules: dict[SegmentId, CheckpointSchedule] = {}
        own = {one.segment: one for one in settings.segment_intervals}
        for name in segments.names:
            mine = settings
            if (given := own.get(name)) is not None:
                mine = replace(settings, checkpoint_batches=given.batches, checkpoint_seconds=given.seconds)
            self._schedules[name] = CheckpointSchedule(mine, began)
        self._slowest = max(
            segments.names,
            key=lambda name: (
                self._schedules[name].settings.checkpoint_seconds,
                self._schedules[name].settings.checkpoint_batches,
                name,
            ),
        )

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
            mark = None if name in waiting else schedule.next_mark(batch, last(name), now)
            if mark is None:
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
            for name, schedule in self._schedules.items():
                schedule.marked(Mark(batch, both.durable and name == self._slowest), now)
            return Mark(batch, both.durable)
        known = [name for name in marks if name in self._schedules]
        for name in known:
            self._schedules[name].marked(Mark(batch, durable=False), now)
        return Mark(batch, durable=False, segments=frozenset(known)) if known else None


def by_segment(marks: Mapping[SegmentId, list[Mark]], choose: Callable[[list[Mark]], list[Mark]]) -> list[Mark]:
    """Choose among the marks of every segment; return each batch once, with the segments for which it was chosen."""
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
