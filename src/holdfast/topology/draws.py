"""Randomness from a seed that is the same on every machine, Python and numpy, for ever. Runs anywhere.

The generator is SplitMix64 (Steele, Lea and Flood, 2014): a counter that grows by a constant modulo 2^64, each value
mixed by two multiplications. Whole numbers and fractions come from it by exact arithmetic only. Where a
logarithm or a power is needed (normal draws, Zipf shares), C libraries may differ in the last bit, so the result is
rounded to six significant digits. `tests/topology/test_draws.py` holds the golden values.
"""

from __future__ import annotations

import math
from collections.abc import MutableSequence, Sequence
from typing import TypeVar

_Item = TypeVar("_Item")

_WORD = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


class Draws:
    """A stream of random draws. `branch` gives independent streams, so that one draw more here moves nothing there."""

    def __init__(self, seed: int) -> None:
        self._seed = seed & _WORD
        self._state = self._seed

    def branch(self, name: str) -> Draws:
        """Return a stream of its own for one purpose; it depends on the seed and the name, not on what was drawn."""
        hashed = 0xCBF29CE484222325  # FNV-1a, 64 bits
        for byte in name.encode():
            hashed = (hashed ^ byte) * 0x100000001B3 & _WORD
        return Draws(_mix(self._seed ^ hashed))

    def word(self) -> int:
        """Draw 64 bits."""
        self._state = self._state + _GOLDEN & _WORD
        return _mix(self._state)

    def whole(self, low: int, high: int) -> int:
        """Draw a whole number from low to high, both included, all alike."""
        if high < low:
            raise ValueError(f"no whole number from {low} to {high}")
        span = high - low + 1
        if span > 2**64:
            raise ValueError("the range is wider than 64 bits")
        # Words above the last whole multiple of the span would favour small numbers: draw again.
        limit = 2**64 - 2**64 % span
        while (word := self.word()) >= limit:
            pass
        return low + word % span

    def fraction(self) -> float:
        """Draw a number from 0 to 1 (not included), a multiple of 2^-53."""
        return (self.word() >> 11) * 2.0**-53

    def real(self, low: float, high: float) -> float:
        """Draw a number between low and high, to six significant digits."""
        return rounded(low + (high - low) * self.fraction())

    def normal(self, mean: float, deviation: float) -> float:
        """Draw from a normal distribution (Marsaglia's polar method), to six significant digits."""
        while True:
            x, y = 2 * self.fraction() - 1, 2 * self.fraction() - 1
            square = x * x + y * y
            if 0 < square < 1:
                return rounded(mean + deviation * x * math.sqrt(-2 * math.log(square) / square))

    def chance(self, probability: float) -> bool:
        """Draw true with this probability."""
        return self.fraction() < probability

    def pick(self, items: Sequence[_Item]) -> _Item:
        """Draw one of the items, all alike."""
        return items[self.whole(0, len(items) - 1)]

    def shuffle(self, items: MutableSequence[_Item]) -> None:
        """Put the items into a random order, in place."""
        # `whole(0, last)` written out: recipes spend most of their time here.
        state = self._state
        for last in range(len(items) - 1, 0, -1):
            span = last + 1
            while True:
                state = state + _GOLDEN & _WORD
                word = (state ^ state >> 30) * _FIRST & _WORD
                word = (word ^ word >> 27) * _SECOND & _WORD
                word ^= word >> 31
                if word <= _WORD - span or word < 2**64 - 2**64 % span:
                    break
            other = word % span
            items[last], items[other] = items[other], items[last]
        self._state = state

    def sample(self, items: Sequence[_Item], count: int) -> list[_Item]:
        """Draw so many different items, in random order."""
        pool = list(items)
        self.shuffle(pool)
        return pool[:count]


def zipf_shares(count: int, skew: float) -> list[float]:
    """Return relative shares of the ranks 1 to count: rank^-skew, to six significant digits; skew 0 is uniform."""
    return [rounded(float(rank) ** -skew) for rank in range(1, count + 1)]


def rounded(value: float) -> float:
    """Round to six significant digits, so that the last bit of a C library's answer does not show."""
    return float(f"{value:.6g}")


def _mix(word: int) -> int:
    word = (word ^ word >> 30) * _FIRST & _WORD
    word = (word ^ word >> 27) * _SECOND & _WORD
    return word ^ word >> 31
