"""Medians with their intervals, without assuming how the values are spread. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb


@dataclass(frozen=True, slots=True)
class Spread:
    """A median and the values between which the true one lies, with at least this confidence."""

    median: float
    low: float
    high: float
    confidence: float
    count: int


def median_with_interval(values: Sequence[float], confidence: float = 0.95) -> Spread:
    """Return the median and its interval from the order of the values alone (the sign test).

    The true median is above the i-th smallest and below the i-th greatest value unless fewer than i of n values fall on
    one side of it: a chance of 2 * sum over k < i of binomial(n, k) / 2^n. The narrowest interval with the confidence
    asked for is taken, or the whole range where there are too few values for it.
    """
    ordered, n = sorted(values), len(values)
    missed, depth = 2 / 2**n, 1
    while depth < n // 2:
        wider = missed + 2 * comb(n, depth) / 2**n
        if wider > 1 - confidence:
            break
        missed, depth = wider, depth + 1
    return Spread(statistics.median(ordered), ordered[depth - 1], ordered[n - depth], 1 - missed, n)
