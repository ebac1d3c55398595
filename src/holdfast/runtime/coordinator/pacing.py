"""How a run goes about its batches and checkpoints, and how long it goes on where it gets nowhere. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from holdfast.ids import BatchId, OperatorId, SegmentId
from holdfast.recovery.executed_plan import SegmentInterval

REPORT_SECONDS = 15.0
"""How often it is told that partitions wait for nodes."""
LONGEST_COUNTED = 10.0
"""Of the time between two looks, so many seconds count as waiting at most: a driver that was frozen has not waited."""
LONGEST_PAUSE = 0.5
"""Seconds between two cycles that bring nothing, at most."""


@dataclass(frozen=True, slots=True)
class CycleSettings:
    """How a run goes about its batches and checkpoints."""

    checkpoint_batches: int = 10
    """Batches between checkpoints; the earlier of both counts."""
    checkpoint_seconds: float = math.inf
    segment_intervals: tuple[SegmentInterval, ...] = ()
    """Of segments that have an interval of their own."""
    durable_every: int = 5
    """Every so many checkpoints are durable: whole, and on storage that outlives the nodes."""
    most_batches: int = 8
    """Batches that a partition takes in one cycle at most."""
    batches_ahead: int | None = None
    """Batches that may be logged ahead of the live partitions; None: those of two cycles."""
    batches_behind: int | None = None
    """Batches that live queries may be behind the log where others are worth more; None: as few as those."""
    time_budget: float = 2.0
    """On a node, at one level, no partition begins a second batch after so much time: live queries wait no longer."""
    most_tries: int = 20
    """Cycles in a row that may bring nothing, though something could be done, before the run gives up."""
    wait_seconds: float = 120.0
    """How long a run that can do nothing waits for nodes, and for states that are on their way; `inf`: it waits."""
    measure_costs: bool = False
    """Whether plans use measured CPU, in cores, in the place of the topology's costs."""
    bound_seconds: float = math.inf
    """Partitions for which no node has had room for so long are put in place all the same, with measured costs."""

    @property
    def most_ahead(self) -> int:
        """Batches that may be logged ahead of the live partitions."""
        # Several where much has come: a cycle then takes them together, with fewer exchanges.
        return 2 * self.most_batches if self.batches_ahead is None else self.batches_ahead


@dataclass(frozen=True, slots=True)
class Mark:
    """A batch at which partitions take snapshots."""

    batch: BatchId
    durable: bool
    segments: frozenset[SegmentId] | None = None
    """Whose partitions; None: all."""
    between: frozenset[OperatorId] = frozenset()
    """Operators that save there between two checkpoints of their segments."""


@dataclass(slots=True)
class CheckpointSchedule:
    """When the next checkpoint is due: after so many batches or seconds, whichever comes first."""

    settings: CycleSettings
    _marked_at: float
    _since_durable: int | None = None
    """Marks since the last durable one; None: no durable one is known."""

    def next_mark(self, batch: BatchId, last: BatchId, now: float) -> Mark | None:
        """Say whether a batch that is about to be logged is marked; None: it is not time.

        `last` is the last batch that is marked or a checkpoint. Changes nothing: the record counts, see `marked`.
        """
        settings = self.settings
        if batch - last < settings.checkpoint_batches and now - self._marked_at < settings.checkpoint_seconds:
            return None
        return Mark(batch, self.durable_is_next)

    @property
    def durable_is_next(self) -> bool:
        """Whether the next mark is a durable one."""
        return self._since_durable is None or self._since_durable + 1 >= self.settings.durable_every

    def since_marked(self, now: float) -> float:
        """Return the seconds since the last mark."""
        return now - self._marked_at

    def follow(self, before: CheckpointSchedule, now: float) -> None:
        """Count on from where another schedule has come."""
        self._marked_at, self._since_durable = now, before._since_durable

    def stepped(self, now: float) -> None:
        """Count an intermediate mark that is in the log."""
        self._marked_at = now

    def marked(self, mark: Mark, now: float) -> None:
        """Count a mark that is in the log, whichever driver has decided it."""
        self._marked_at = now
        if mark.durable:
            self._since_durable = 0
        elif self._since_durable is not None:
            self._since_durable += 1


@dataclass(slots=True)
class StallDetector:
    """What a run has gone through since it last moved."""

    settings: CycleSettings
    idle: float = 0.0
    """Seconds without a cycle: nothing could be done."""
    _reported_at: float = 0.0
    _still: int = 0
    """Cycles in a row that brought nothing."""
    _still_for: float = 0.0
    _tries: int = 0
    """Those of them that should have."""

    def moved(self) -> None:
        """Something was done: begin anew."""
        self.idle = self._reported_at = self._still_for = 0.0
        self._still = self._tries = 0

    def idled(self, seconds: float) -> bool:
        """Time has passed without a cycle; return whether a line about it is due."""
        self.idle += min(seconds, LONGEST_COUNTED)
        due = self.idle - self._reported_at > REPORT_SECONDS
        if due:
            self._reported_at = self.idle
        return due

    def stood(self, *, could: bool) -> float:
        """A cycle brought nothing; return how long to wait before the next. `could`: it should have."""
        self.idle = self._reported_at = 0.0
        self._still += 1
        self._tries += could
        return float(min(LONGEST_PAUSE, 0.01 * 2 ** min(10, self._still)))

    def gets_nowhere(self, seconds: float, *, restoring: bool) -> bool:
        """So much more time has passed: say whether to give up.

        What is being restored or saved takes its time, in the background: that is no reason to give up soon.
        """
        self._still_for += min(seconds, LONGEST_COUNTED)
        return self._tries > self.settings.most_tries or (restoring and self._still_for > self.settings.wait_seconds)

    @property
    def waits_in_vain(self) -> bool:
        """Whether nothing could be done for as long as a run waits."""
        return self.idle > self.settings.wait_seconds
