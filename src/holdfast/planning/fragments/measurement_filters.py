"""Estimates from noisy measurements that are steady under noise and quick after a change. Pure; runs anywhere.

`RateFilter` follows a rate (bytes per second), `LossFilter` a probability (holders that were down of those asked). Both
are values: `with_…` returns the next filter and leaves this one as it was. Both work the same way: a slow average
gives the estimate, and a test on the latest measurements detects when the average no longer describes them; then the
estimate starts again from those latest ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import median

GAIN = 0.1
"""Weight of one measurement in the slow averages."""
CLIP = 4.0
"""A residual counts at most this many deviations, so that one outlier neither moves the estimate nor is an alarm."""
DRIFT = 0.75
"""Deviations per measurement that are taken for noise."""
ALARM = 8.0
"""Deviations beyond drift, summed, that are a change: three clipped residuals in a row, or many smaller ones."""
FEWEST_DEVIATION = 0.05
"""Deviations below five per cent count as five: the tuned values do not depend on smaller ones."""
FIRST_DEVIATION = 0.15
RESTART = 3
"""After a change the level is the median of this many latest measurements."""


@dataclass(frozen=True, slots=True)
class RateFilter:
    """A rate's logarithmic level, its usual deviation, and a two-sided cumulative sum that finds changes."""

    level: float | None = None
    deviation: float = FIRST_DEVIATION
    rising: float = 0.0
    falling: float = 0.0
    latest: tuple[float, ...] = ()
    changed: bool = False
    """Whether the last measurement completed the evidence of a change."""

    @property
    def rate(self) -> float | None:
        """The estimate; None before the first measurement."""
        return None if self.level is None else math.exp(self.level)

    def with_rate(self, rate: float) -> RateFilter:
        """Take one measurement (above zero) and return the next filter."""
        value = math.log(rate)
        latest = (*self.latest[-(RESTART - 1) :], value)
        if self.level is None:
            return RateFilter(level=value, latest=latest)
        residual = max(-CLIP, min(CLIP, (value - self.level) / self.deviation))
        rising = max(0.0, self.rising + residual - DRIFT)
        falling = max(0.0, self.falling - residual - DRIFT)
        if max(rising, falling) > ALARM:
            return RateFilter(level=median(latest), deviation=self.deviation, latest=latest, changed=True)
        clipped = residual * self.deviation
        return RateFilter(
            level=self.level + GAIN * clipped,
            deviation=max(FEWEST_DEVIATION, self.deviation + GAIN * (abs(clipped) - self.deviation)),
            rising=rising,
            falling=falling,
            latest=latest,
        )


MEMORY = 0.99
"""How much of the older counts is kept per round."""
PRIOR_HOLDERS = 200.0
"""The first guess counts as much as this many holders asked."""
LEFT_OF_PRIOR = 5.0
"""The estimate before a change weighs as much as this many holders after it."""
EVIDENCE = 9.0
"""Log-likelihood ratio of the latest rounds against the estimate that is a change (about one in 40,000 by chance)."""
WINDOWS = (1, 2, 4, 8, 16)
"""Latest rounds that are tested, together."""


@dataclass(frozen=True, slots=True)
class LossFilter:
    """The probability that a holder is down: discounted counts, and a likelihood test that finds changes."""

    first_guess: float
    lost: float = 0.0
    asked: float = 0.0
    rounds: tuple[tuple[int, int], ...] = ()
    """Lost and asked of the latest rounds."""
    prior: float = PRIOR_HOLDERS
    changed: bool = False

    @property
    def probability(self) -> float:
        """The estimate."""
        return (self.lost + self.prior * self.first_guess) / (self.asked + self.prior)

    def with_round(self, lost: int, asked: int) -> LossFilter:
        """Take one round (how many holders were asked, how many were down) and return the next filter."""
        if asked <= 0:
            return replace(self, changed=False)
        rounds = (*self.rounds[-(WINDOWS[-1] - 1) :], (lost, asked))
        expected = self.probability
        for window in WINDOWS:
            recent = rounds[-window:]
            if len(recent) < window:
                break
            down, seen = sum(one[0] for one in recent), sum(one[1] for one in recent)
            if _evidence(down, seen, expected) > EVIDENCE:
                # Start again from the latest measurements; the earlier estimate weighs little.
                return LossFilter(
                    first_guess=expected, lost=down, asked=seen, rounds=recent, prior=LEFT_OF_PRIOR, changed=True
                )
        return replace(
            self,
            lost=self.lost * MEMORY + lost,
            asked=self.asked * MEMORY + asked,
            rounds=rounds,
            prior=self.prior * MEMORY,
            changed=False,
        )


def _evidence(down: int, seen: int, expected: float) -> float:
    """Return the log-likelihood ratio of the observed share against the expected one."""
    share = down / seen
    p = min(max(expected, 1e-9), 1 - 1e-9)
    total = 0.0
    if down:
        total += down * math.log(share / p)
    if down < seen:
        total += (seen - down) * math.log((1 - share) / (1 - p))
    return total
