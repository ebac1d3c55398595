"""When a recovery will be over, from how long its parts took so far. Pure.

A partition that is being restored needs what restores took, then what replays took; one that replays needs the latter.
Both are taken from partitions that have done so, in this recovery first, else in earlier ones of the run's log. Nothing
is said where nothing was measured, where partitions wait for nodes, or where what is left already took longer than
usual: such a number would be a guess.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

SLOW_FACTOR = 3.0
SLOW_SECONDS = 5.0
"""A partition is slow when it takes so many times the mean, and so many seconds, longer."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds until every partition is level again."""

    seconds: float
    plus_minus: float | None
    source: str
    """`measured`: by partitions of this run; `plan`: by the plan's prediction."""


@dataclass(frozen=True, slots=True)
class Under:
    """A partition on its way."""

    state: str
    since: float


@dataclass(slots=True)
class Durations:
    """How long something took, of those that have done it: enough of it for a mean and a spread."""

    count: int = 0
    seconds: float = 0.0
    squares: float = 0.0

    @classmethod
    def of(cls, samples: Iterable[float]) -> Durations:
        """Take these."""
        found = cls()
        for one in samples:
            found.add(one)
        return found

    def add(self, seconds: float) -> None:
        """Take one more."""
        self.count += 1
        self.seconds += seconds
        self.squares += seconds * seconds

    def plus(self, more: Durations) -> Durations:
        """Return both together."""
        return Durations(self.count + more.count, self.seconds + more.seconds, self.squares + more.squares)

    def mean_and_spread(self) -> tuple[float, float] | None:
        """Return the mean and the standard deviation; None where there is nothing."""
        if not self.count:
            return None
        mean = self.seconds / self.count
        return mean, max(0.0, self.squares / self.count - mean * mean) ** 0.5


def estimate(
    now: float,
    under: Mapping[str, Under],
    waiting: int,
    restores: Durations,
    replays: Durations,
    planned_until: float | None,
) -> Estimate | None:
    """Return when the partitions `under` way will be level; `waiting` is how many lost ones have no node.

    `planned_until`: until when the plan's prediction has all queries back, where a plan covers this loss.
    """
    if waiting or not under:
        return None
    restore, replay = restores.mean_and_spread(), replays.mean_and_spread()
    longest, spread = 0.0, 0.0
    measured = True
    for one in under.values():
        gone = now - one.since
        needed = [(restore, gone), (replay, 0.0)] if one.state == "restoring" else [(replay, gone)]
        seconds, variance = 0.0, 0.0
        for known, spent in needed:
            if known is None or spent > known[0] * SLOW_FACTOR + SLOW_SECONDS:
                measured = False
                break
            seconds += max(0.0, known[0] - spent)
            variance += known[1] ** 2
        if not measured:
            break
        if seconds >= longest:
            longest, spread = seconds, variance**0.5
    if measured:
        return Estimate(longest, spread, "measured")
    if planned_until is not None and planned_until > now:
        return Estimate(planned_until - now, None, "plan")
    return None


def slow_after(samples: Durations) -> float:
    """Return after how many seconds in a state a partition takes much longer there than others took."""
    known = samples.mean_and_spread()
    return float("inf") if known is None else known[0] * SLOW_FACTOR + SLOW_SECONDS
