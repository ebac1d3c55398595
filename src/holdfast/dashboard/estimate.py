"""When a recovery will be over, from how long its parts took so far. Pure.

A partition that is being restored needs what restores took, then what replays took; one that replays needs the latter.
Both are taken from partitions that have done so, in this recovery first, else in earlier ones of the run's log. Nothing
is said where nothing was measured, where partitions wait for nodes, or where what is left already took longer than
usual: such a number would be a guess.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
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


def mean_and_spread(samples: Sequence[float]) -> tuple[float, float] | None:
    """Return the mean and the standard deviation; None where there is nothing."""
    if not samples:
        return None
    return statistics.fmean(samples), statistics.pstdev(samples)


def estimate(
    now: float,
    under: Mapping[str, Under],
    waiting: int,
    restores: Sequence[float],
    replays: Sequence[float],
    planned_until: float | None,
) -> Estimate | None:
    """Return when the partitions `under` way will be level; `waiting` is how many lost ones have no node.

    `planned_until`: until when the plan's prediction has all queries back, where a plan covers this loss.
    """
    if waiting or not under:
        return None
    restore, replay = mean_and_spread(restores), mean_and_spread(replays)
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


def is_slow(now: float, one: Under, samples: Sequence[float]) -> bool:
    """Whether a partition takes much longer in its state than others took."""
    known = mean_and_spread(samples)
    return known is not None and now - one.since > known[0] * SLOW_FACTOR + SLOW_SECONDS
