"""How a run goes about its batches and checkpoints, and how long it goes on where it gets nowhere. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from holdfast.ids import BatchId

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
    durable_every: int = 5
    """Every so many checkpoints are durable: whole, and on storage that outlives the nodes."""
    most_batches: int = 8
    """Batches that a partition takes in one cycle at most."""
    time_budget: float = 2.0
    """On a node, at one level, no partition begins a second batch after so much time: live queries wait no longer."""
    most_tries: int = 20
    """Cycles in a row that may bring nothing, though something could be done, before the run gives up."""
    wait_seconds: float = 120.0
    """How long a run that can do nothing waits for nodes, and for states that are on their way."""
    measure_costs: bool = False
    """Whether plans use measured CPU, in cores, in the place of the topology's costs."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A batch at which partitions take snapshots."""

    batch: BatchId
    durable: bool


@dataclass(slots=True)
class CheckpointSchedule:
    """When the next checkpoint is due: after so many batches or seconds, whichever comes first."""

    settings: CycleSettings
    _marked_at: float
    _marks: int = 0

    def next_mark(self, last: BatchId, reached: BatchId, now: float) -> Mark | None:
        """Return the batch to mark now; None: it is not time, or the next cycle does not reach it.

        `last` is the last batch that is marked or a checkpoint, `reached` the last that any partition has completed.
        """
        settings = self.settings
        due = BatchId(last + settings.checkpoint_batches)
        timely = reached > last and now - self._marked_at >= settings.checkpoint_seconds
        if not timely and due > reached + settings.most_batches:
            return None
        durable = self._marks % settings.durable_every == 0
        self._marks += 1
        self._marked_at = now
        return Mark(BatchId(reached + 1) if timely else max(due, BatchId(reached + 1)), durable)


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
