"""What a soak draws, measures and concludes: actions from a seed, slopes with their spread, a verdict. Pure.

A series is *flat* where its slope is not above zero with 95 % confidence, or where what it would gain in an hour is
below a share of its median. The slope is the median of the slopes between pairs of samples (Theil-Sen), which single
peaks during a recovery do not move; its spread comes from resampled blocks of neighbouring samples, for those are
alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from statistics import median

SETTLE = 0.2
"""The first part of a series, in which caches and heaps fill, is left out."""
TOLERATED = 0.05
"""Share of its median that a series may gain in an hour and pass for flat."""
_PAIRS = 4000
_RESAMPLES = 200
_FEWEST = 8


class Action(StrEnum):
    """What a soak does to its run."""

    KILL_NODE = "kill-node"
    FREEZE_NODE = "freeze-node"
    KILL_DRIVER = "kill-driver"
    POISON = "poison"
    RESCALE = "rescale"


WEIGHTS = {
    Action.KILL_NODE: 4,
    Action.FREEZE_NODE: 2,
    Action.KILL_DRIVER: 1,
    Action.POISON: 3,
    Action.RESCALE: 1,
}


def draw_action(seed: int, number: int) -> tuple[Action, Random]:
    """Return the number-th action of a seed, and the draws that belong to it: the same however often it is resumed."""
    draw = Random(f"soak {seed} {number}")
    return draw.choices(list(WEIGHTS), list(WEIGHTS.values()))[0], draw


@dataclass(frozen=True, slots=True)
class Slope:
    """How a series changes in an hour, with the middle 95 % of what resampling gives."""

    name: str
    median: float
    per_hour: float
    low: float
    high: float
    samples: int

    @property
    def flat(self) -> bool | None:
        """Whether it does not grow; None: too few samples."""
        if self.samples < _FEWEST:
            return None
        return self.low <= 0 or self.per_hour <= TOLERATED * max(self.median, 1e-9)


def slope_of(name: str, points: Sequence[tuple[float, float]], seed: int = 1) -> Slope:
    """Return the slope of a series of (hours, value), after it has settled."""
    settled = points[int(len(points) * SETTLE) :]
    if len(settled) < _FEWEST:
        return Slope(name, median([value for _, value in settled] or [0.0]), 0.0, 0.0, 0.0, len(settled))
    draw = Random(seed)
    found = sorted(_theil_sen(_resampled(settled, draw), draw) for _ in range(_RESAMPLES))
    low, high = found[int(0.025 * _RESAMPLES)], found[int(0.975 * _RESAMPLES) - 1]
    return Slope(name, median(value for _, value in settled), _theil_sen(settled, draw), low, high, len(settled))


def _theil_sen(points: Sequence[tuple[float, float]], draw: Random) -> float:
    slopes = []
    for _ in range(min(_PAIRS, len(points) * (len(points) - 1))):
        (x1, y1), (x2, y2) = draw.choice(points), draw.choice(points)
        if x1 != x2:
            slopes.append((y2 - y1) / (x2 - x1))
    return median(slopes) if slopes else 0.0


def _resampled(points: Sequence[tuple[float, float]], draw: Random) -> list[tuple[float, float]]:
    length = max(2, len(points) // 10)
    found: list[tuple[float, float]] = []
    while len(found) < len(points):
        start = draw.randrange(len(points) - length + 1)
        found += points[start : start + length]
    return found[: len(points)]


def series_of(samples: Sequence[Mapping[str, float]]) -> dict[str, list[tuple[float, float]]]:
    """Return each measure over the hours of a soak; pauses between two starts of the tool do not count."""
    found: dict[str, list[tuple[float, float]]] = {}
    for sample in samples:
        for name, value in sample.items():
            if name != "hours" and value is not None:
                found.setdefault(name, []).append((float(sample["hours"]), float(value)))
    return found


def expected_counts(files: int, rows: int, keys: int, window: int) -> dict[tuple[str, int], int]:
    """Return how many rows each key has in each window (by its number), of files with one second of rows each."""
    found: dict[tuple[str, int], int] = {}
    for number in range(files):
        for row in range(rows):
            place = f"k{row % keys}", number // window
            found[place] = found.get(place, 0) + 1
    return found
