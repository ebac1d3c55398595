"""Marks of checkpoints: decided when a batch is logged, and read from the log before the batch is handed out.

The record of a batch says whether the batch is a mark. The driver that logs the batch decides it; whoever reads the
record later, this driver or another one, takes it from there. So a batch and its mark are one, and no worker can be
past a batch that is marked afterwards. Runs on the driver; pure apart from the log that it reads.

When each segment's next checkpoint is due has `SegmentSchedule`: at its own interval, with durable marks that all
segments share. The segment with the longest interval decides about durable marks: every so many of its marks is one of
all segments, at one batch. So the durable line stays one batch, and the log is trimmed as with one segment.

Where operators of a segment save more often than its checkpoint moves, its interval is cut into steps: the last step of
each interval is a mark of the segment, those before are intermediate ones of some of its operators (`intermediate`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from holdfast.ids import BatchId, OperatorId, SegmentId
from holdfast.recovery.checkpoints import NOTHING
from holdfast.recovery.cluster_state import ClusterState
from holdfast.recovery.segments import ALL_PARTITIONS, Segments
from holdfast.runtime.coordinator.pacing import CheckpointSchedule, CycleSettings, Mark
from holdfast.runtime.io.batch_log import BatchLog
from holdfast.runtime.io.logged_marks import LoggedMark, LoggedMarks

MOST_AT_ONCE = 4
"""Of the marks in a long stretch of the log that is handed out at once, so many count: each costs a snapshot."""


AT_REST_SECONDS = 10.0
"""After its last mark, a segment whose interval is in batches marks the last one so late, where no other comes."""


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
        return self._schedule.next_marks(batch, self._clock(), last.__getitem__, waiting, self._after_held_edges())

    def _after_held_edges(self) -> dict[SegmentId, set[SegmentId]]:
        """Return the segments that take in over held edges, and from which ones."""
        found: dict[SegmentId, set[SegmentId]] = {}
        of = self._state.segments.operators
        for sender, consumer in self._state.held.edges:
            found.setdefault(of[consumer], set()).add(of[sender])
        return found

    def let_cross(self, *, at_once: bool) -> Mark | None:
        """Return a mark at the last batch for segments whose blocks wait at held edges, where no batch comes to mark.

        Called where partitions have completed what they can. Their interval has passed; `at_once`: or the run drains.
        """
        self._read()
        state, logged, now = self._state, self._log.frontier, self._clock()
        checkpoints, segments, held = state.checkpoints, state.segments, {sender for sender, _ in state.held.edges}
        found = {
            segments.of(p)
            for p, one in state.partitions.items()
            if p.operator in held and checkpoints.line[p] < logged <= one.frontier
        }
        found = {name for name in found if at_once or self._schedule.is_due(name, now)}
        if found and state.plan.next is not None and not state.recovering:
            return None if self._plan_is_marked() else Mark(logged, durable=False)
        open_marks = {name: checkpoints.open_marks(name) for name in segments.names}
        free = {name for name, marks in open_marks.items() if not marks or (state.recovering and logged not in marks)}
        found &= free
        found |= {name for name, senders in self._after_held_edges().items() if senders & found} & free
        self._schedule.rested(found, logged, now)
        return Mark(logged, durable=False, segments=frozenset(found)) if found else None

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

    def is_due(self, name: SegmentId, now: float) -> bool:
        """Whether a segment's interval has passed since its last mark, while no batch came."""
        seconds, _ = self._between(name)
        return self._schedules[name].since_marked(now) >= (seconds or AT_REST_SECONDS)

    def _between(self, name: SegmentId) -> tuple[float, int]:
        """Return the seconds between two checkpoints of a segment; where there is no such interval, the batches."""
        settings, steps = self._schedules[name].settings, self._steps[name]
        seconds = settings.checkpoint_seconds * steps
        return (0.0, settings.checkpoint_batches * steps) if math.isinf(seconds) else (seconds, 0)

    def rested(self, names: Iterable[SegmentId], batch: BatchId, now: float) -> None:
        """Count marks at the last batch of a log that stands still; a restart does not know of them."""
        for name in names:
            self._schedules[name].marked(Mark(batch, durable=False), now)
            self._at[name] = _Step()

    def mark_of_all(self) -> LoggedMarks:
        """Return a mark of all segments, due or not: it is durable where it is the turn of a durable one."""
        return {ALL_PARTITIONS: LoggedMark(self._schedules[self._slowest].durable_is_next)}

    def next_marks(
        self,
        batch: BatchId,
        now: float,
        last: Callable[[SegmentId], BatchId],
        waiting: Collection[SegmentId],
        after: Mapping[SegmentId, Collection[SegmentId]] = MappingProxyType({}),
    ) -> LoggedMarks:
        """Say which segments take a snapshot at a batch that is about to be logged.

        `last`: the last batch that is marked or a checkpoint of a segment; `waiting`: segments that take no mark now,
        because one of theirs is open; `after`: segments that take in over held edges, and from which. Those come no
        further than a checkpoint of these: they are marked where these are, if they would be due before the next.
        """
        found: dict[SegmentId, LoggedMark] = {}
        for name in sorted(self._schedules, key=partial(_held_edges_before, after=after)):
            schedule, at = self._schedules[name], self._at[name]
            until, at_batch = now, batch
            if name in after:
                crossing = [one for one in after[name] if one in found and not found[one].step]
                if not crossing:
                    continue
                seconds, batches = min(self._between(one) for one in crossing)
                until, at_batch = now + seconds, BatchId(batch + batches)
            mark = None if name in waiting else schedule.next_mark(at_batch, max(last(name), at.batch), until)
            if mark is None:
                continue
            if name not in after and (step := (at.number + 1) % self._steps[name]):
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


def _held_edges_before(name: SegmentId, after: Mapping[SegmentId, Collection[SegmentId]]) -> int:
    """Return how many held edges are one after the other before a segment."""
    return max((1 + _held_edges_before(one, after) for one in after.get(name, ())), default=0)


@dataclass(frozen=True, slots=True)
class _Step:
    """Where a segment stands between two of its checkpoints."""

    batch: BatchId = NOTHING
    """Of the last intermediate mark."""
    number: int = 0
    """0: its last mark was one of a checkpoint."""
