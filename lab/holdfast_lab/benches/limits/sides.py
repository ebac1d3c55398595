"""What every measurement of limits gives: seconds of each side in each turn, and ratios to the plain one. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from holdfast_lab.benches.streaming.spread import Spread, median_with_interval


@dataclass(frozen=True, slots=True)
class Measured:
    """One comparison: CPU seconds of one unit of work, for each side, in each turn."""

    part: str
    """operators, exchange or state."""
    workload: str
    plain: str
    """The side that the others are compared with."""
    unit: str
    seconds: Mapping[str, tuple[float, ...]]
    rows: int | None = None
    """Rows of a unit."""
    size: int | None = None
    """Bytes of a unit."""

    def ratio(self, side: str) -> Spread:
        """How many times the plain side's seconds this side takes: the median over the turns, and its interval."""
        turns = zip(self.seconds[side], self.seconds[self.plain], strict=True)
        return median_with_interval([mine / plain for mine, plain in turns])

    def median(self, side: str) -> float:
        """The median seconds of a unit."""
        return median_with_interval(self.seconds[side]).median


def take_turns(sides: Mapping[str, Callable[[], float]], turns: int) -> dict[str, tuple[float, ...]]:
    """Measure each side in turns, in an order that moves on; the first turn warms up and does not count."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    names = list(sides)
    for turn in range(turns + 1):
        for place in range(len(names)):
            name = names[(place + turn) % len(names)]
            seconds = sides[name]()
            if turn:
                found[name].append(seconds)
    return {name: tuple(values) for name, values in found.items()}
