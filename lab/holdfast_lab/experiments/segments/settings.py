"""The parameters that FastRecover, chapter 4, varies, and their defaults (Table 4.1). Runs anywhere.

The paper counts minutes and kilobytes; here they are seconds and bytes. It does not state how fast its permanent
storage was, so bandwidth is a parameter like the others and has a sweep of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from holdfast.planning.segments.grid import FrequencyGrid
from holdfast.planning.segments.model import SegmentModel, model_of
from holdfast.topology.model import Topology
from holdfast_lab.random_topologies import fast_recover

PAPER_TOPOLOGIES = 1000
"""Random topologies a point in the paper (100 in the right half of Fig. 4.14)."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One point: what the random topologies are like, and what the planner is given."""

    shape: str
    operators: int
    tuples_per_minute: float
    overhead: float
    steps: int
    bandwidth: float
    frequencies: int = 100
    max_frequency: float = 200 / 60
    selectivity: tuple[float, float] = (0.1, 1.0)
    state_mb: tuple[float, float] = (10.0, 20.0)
    tuple_kb: float = 1.0
    tuple_ms: float = 0.6

    @property
    def grid(self) -> FrequencyGrid:
        """The grid the planners work on."""
        return FrequencyGrid(self.steps, self.frequencies, self.max_frequency)

    def topology(self, seed: int) -> Topology:
        """Return one random topology of this setting."""
        make: Callable[..., Topology] = fast_recover.chain if self.shape == "chain" else fast_recover.root_tree
        made = make(
            seed,
            operators=self.operators,
            tuples_per_minute=self.tuples_per_minute,
            least_selectivity=self.selectivity[0],
            most_selectivity=self.selectivity[1],
            least_state_mb=self.state_mb[0],
            most_state_mb=self.state_mb[1],
            tuple_kb=self.tuple_kb,
        )
        return Topology(
            made.name, [replace(operator, tuple_seconds=self.tuple_ms / 1000) for operator in made.operators]
        )

    def model(self, seed: int) -> SegmentModel:
        """Return what planning needs of one random topology."""
        return model_of(self.topology(seed), self.bandwidth)


CHAIN = Setting("chain", operators=15, tuples_per_minute=3000, overhead=0.4, steps=60, bandwidth=3.5e5)
"""Table 4.1 for chains. Bandwidth: where NSegments fails as often as in Fig. 4.1 (docs/research/experiments.md)."""
TREE = Setting("tree", operators=15, tuples_per_minute=1000, overhead=0.5, steps=20, bandwidth=2.5e7)
"""Table 4.1 for trees. Bandwidth: about the lowest at which its lowest grid frequency, 2 a minute, is affordable."""
SLOW_TREE = replace(TREE, steps=60, bandwidth=2.5e5, frequencies=50, max_frequency=0.005)
"""Trees on slow storage, where anchors cost something: 50 frequencies up to 0.005 a second, increments as for chains.
On the paper's grid such plans do not exist, because it begins at 2 checkpoints a minute."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """One parameter varied, the others held."""

    name: str
    figure: str
    """The paper's figure, or what is new."""
    shape: str
    field: str
    label: str
    values: tuple[Any, ...]
    base: Setting

    @property
    def settings(self) -> list[Setting]:
        """One setting per value."""
        return [replace(self.base, **{self.field: value}) for value in self.values]

    def axis(self) -> list[float]:
        """Return the values as numbers for an axis: of a range its middle."""
        return [sum(value) / 2 if isinstance(value, tuple) else float(value) for value in self.values]


def _sweep(kind: str, figure: str, name: str, field: str, label: str, *values: Any) -> Sweep:
    base = {"chain": CHAIN, "tree": TREE, "slow-tree": SLOW_TREE}[kind]
    return Sweep(f"{kind}-{name}", figure, base.shape, field, label, values, base)


_BANDS = ((0.1, 0.3), (0.3, 0.5), (0.5, 0.7), (0.7, 0.9), (0.9, 1.1))
_STATES = ((0.5, 1.0), (2.0, 4.0), (5.0, 10.0), (10.0, 20.0), (20.0, 40.0), (50.0, 100.0))

SWEEPS: tuple[Sweep, ...] = (
    _sweep("chain", "Fig. 4.1-4.3, 4.11", "operators", "operators", "operators n", 5, 10, 15, 20, 25, 30, 35),
    _sweep("chain", "Fig. 4.4, 4.11", "rate", "tuples_per_minute", "input rate Ω (tuples/min)",
           1000, 2000, 3000, 4000, 5000, 6000),
    _sweep("chain", "Fig. 4.5, 4.11", "overhead", "overhead", "CH_max", 0.2, 0.3, 0.4, 0.5, 0.6, 0.7),
    _sweep("chain", "Fig. 4.6, 4.11", "steps", "steps", "increments Z", 20, 40, 60, 80, 100, 200),
    _sweep("tree", "Fig. 4.7, 4.12", "operators", "operators", "operators n", 6, 9, 12, 15, 18),
    _sweep("tree", "Fig. 4.8, 4.12", "rate", "tuples_per_minute", "input rate Ω (tuples/min)",
           250, 500, 1000, 2000, 4000, 8000),
    _sweep("tree", "Fig. 4.9, 4.12", "overhead", "overhead", "CH_max", 0.4, 0.45, 0.5, 0.6, 0.7, 0.8),
    _sweep("tree", "Fig. 4.10, 4.12", "steps", "steps", "increments Z", 15, 20, 25, 30, 40, 60),
    _sweep("chain", "bandwidth, which the paper does not give", "bandwidth", "bandwidth", "bandwidth (bytes/s)",
           1.5e5, 2e5, 2.5e5, 3e5, 4e5, 6e5, 1e6, 2e6, 5e6, 2e7, 1e8),
    _sweep("tree", "bandwidth, which the paper does not give", "bandwidth", "bandwidth", "bandwidth (bytes/s)",
           2e7, 2.2e7, 2.5e7, 3e7, 4e7, 6e7, 1e8, 2e8, 1e9),
    _sweep("slow-tree", "bandwidth, with a finer grid of frequencies", "bandwidth", "bandwidth", "bandwidth (bytes/s)",
           1e5, 1.5e5, 2e5, 2.5e5, 3e5, 4e5, 6e5, 1e6),
    _sweep("slow-tree", "Fig. 4.7 on slow storage", "operators", "operators", "operators n", 6, 10, 15, 20, 25),
    _sweep("chain", "left by the paper", "selectivity", "selectivity", "selectivity (middle)", *_BANDS),
    _sweep("chain", "left by the paper", "tuple-size", "tuple_kb", "tuple size (KB)", 0.1, 0.3, 1.0, 2.0, 2.5),
    _sweep("chain", "left by the paper", "tuple-time", "tuple_ms", "time per tuple (ms)", 0.06, 0.2, 0.6, 2.0, 6.0),
    _sweep("chain", "left by the paper", "state", "state_mb", "state (MB, middle)", *_STATES),
    _sweep("slow-tree", "left by the paper", "selectivity", "selectivity", "selectivity (middle)", *_BANDS),
    _sweep("slow-tree", "left by the paper", "tuple-size", "tuple_kb", "tuple size (KB)", 0.1, 0.3, 1.0, 2.0, 3.0),
    _sweep("slow-tree", "left by the paper", "tuple-time", "tuple_ms", "time per tuple (ms)", 0.06, 0.2, 0.6, 2.0, 6.0),
    _sweep("slow-tree", "left by the paper", "state", "state_mb", "state (MB, middle)", *_STATES),
)  # fmt: skip
