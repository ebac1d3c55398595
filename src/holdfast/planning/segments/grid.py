"""The grid that trees are planned on: F checkpoint frequencies, Z increments of overhead. Pure; runs anywhere.

FastRecover, sec. 3.4.1: F_inc = F_max / F, CH_inc = CH_max / Z; an operator's overhead is rounded up to increments, so
that a plan on the grid never takes more than CH_max.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from holdfast.errors import BadInput
from holdfast.planning.segments.model import MAX_FREQUENCY, SegmentModel
from holdfast.topology.model import Floats, Ints

DEFAULT_FREQUENCIES = 100
"""F where none is given, as in the paper."""

_ROUNDING = 1e-11
"""What sums of floats may add to a whole number of increments without taking the next."""


@dataclass(frozen=True, slots=True)
class FrequencyGrid:
    """Z increments of overhead and F frequencies up to F_max, per second."""

    steps: int
    count: int = DEFAULT_FREQUENCIES
    max_frequency: float = MAX_FREQUENCY

    def __post_init__(self) -> None:
        for value, field in ((self.steps, "steps"), (self.count, "frequencies")):
            if value < 1:
                raise BadInput(f"must be 1 or more, not {value}", field=field, remedy="give a whole number from 1")
        if not (self.max_frequency > 0 and np.isfinite(self.max_frequency)):
            raise BadInput(
                f"must be above zero, not {self.max_frequency:g}",
                field="max-frequency",
                remedy="give checkpoints per second",
            )

    @property
    def frequencies(self) -> Floats:
        """The frequencies, lowest first."""
        return np.arange(1, self.count + 1, dtype=np.float64) * (self.max_frequency / self.count)


def operator_increments(model: SegmentModel, overhead: float, grid: FrequencyGrid) -> Ints:
    """Return the increments each operator takes (eq. 2.1, rounded up): [is anchor][operator][frequency].

    What is above CH_max by itself is given as Z + 1.
    """
    state = model.state_seconds[:, None] * grid.frequencies
    both = np.stack([state, state + model.input_seconds[:, None]]) / (overhead / grid.steps)
    return np.ceil(np.minimum(both, grid.steps + 1) - _ROUNDING).astype(np.int64)
