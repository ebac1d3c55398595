"""Costs as whole numbers of one small unit, so that no rounding ever decides what fits. Pure; runs anywhere.

Costs may be fractional: 0.1 + 0.2 must fit a capacity of 0.3. Decimal fractions are scaled to whole numbers without
loss wherever the sum of all costs stays below 10^15 (then sums are exact in integers and in floating point alike).
Where the digits do not fit (costs drawn at random to the last bit), costs are rounded up and capacities down, at the
fifteenth significant digit of the sum: a plan that fits in units fits in truth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

import numpy as np

from holdfast.topology import Floats, Ints

LARGEST_SUM = 2**53


@dataclass(frozen=True, slots=True)
class CostUnits:
    """How many units one of the user's measure is: a power of ten."""

    per_one: Fraction
    exact: bool
    """Whether all costs it was made for are whole numbers of units."""

    @classmethod
    def for_values(cls, costs: Floats) -> CostUnits:
        """Choose the unit for these costs. Sums of costs are whole units, so capacities round down."""
        distinct = [Decimal(repr(value)) for value in np.unique(costs).tolist()]
        total = float(np.sum(costs))
        largest = 15 - math.ceil(math.log10(total)) if total > 0 else 15
        wanted = max((_decimals(value) for value in distinct), default=0)
        return cls(Fraction(10) ** max(min(wanted, largest), -18), wanted <= largest)

    def costs(self, values: Floats) -> Ints:
        """Return costs in units, rounded up."""
        distinct, where = np.unique(values, return_inverse=True)
        units = [math.ceil(as_written(value) * self.per_one) for value in distinct.tolist()]
        return np.array(units, np.int64)[where].reshape(values.shape)

    def capacity(self, value: float | Fraction) -> int:
        """Return a capacity in units, rounded down; no more than any sum of costs can need."""
        if value == math.inf:
            return LARGEST_SUM
        return min(LARGEST_SUM, max(0, math.floor(as_written(value) * self.per_one)))

    def value(self, units: int) -> float:
        """Return units in the user's measure."""
        return float(Fraction(int(units)) / self.per_one)


def as_written(value: float | Fraction) -> Fraction:
    """Return the decimal fraction a number is written as: 0.1 is a tenth."""
    return value if isinstance(value, Fraction) else Fraction(Decimal(repr(float(value))))


def _decimals(value: Decimal) -> int:
    """Return how many decimal digits after the point it takes to write a number; below zero for 1000."""
    exponent = value.normalize().as_tuple().exponent
    return -exponent if value and isinstance(exponent, int) else -(10**6)
