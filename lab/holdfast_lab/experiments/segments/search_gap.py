"""How near the search of `dag` comes to the best anchors there are, by trying every set. Runs anywhere.

Random DAGs: the paper's random trees, in which operators besides the root may read a second and a third operator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from holdfast.errors import NoPlan
from holdfast.planning.segments.dag import plan_dag
from holdfast.planning.segments.model import SegmentModel, model_of
from holdfast.topology.model import Topology
from holdfast.topology.operators import Input, Partitioning
from holdfast_lab.experiments.segments.settings import SLOW_TREE

SIZES = (8, 10, 12, 15)
BANDWIDTHS = (1.5e5, 2.5e5, 5e5, 2e6)
EXTRA_INPUT = 0.4
"""Chance that an operator reads one more."""


@dataclass(frozen=True, slots=True)
class SearchGap:
    """How far the search was above the best, over random topologies of one kind."""

    kind: str
    operators: int
    cases: int
    exact: float
    """Share of topologies where the search found the best."""
    mean: float
    most: float


def random_dag(seed: int, operators: int) -> Topology:
    """Return a random DAG with one source and the attributes of FastRecover."""
    tree = replace(SLOW_TREE, operators=operators).topology(seed)
    random = np.random.default_rng(seed)
    made = []
    for number, operator in enumerate(tree.operators):
        inputs = list(operator.inputs)
        while inputs and len(inputs) < min(3, number) and random.random() < EXTRA_INPUT:
            others = [one.id for one in tree.operators[:number] if all(one.id != read.source for read in inputs)]
            inputs.append(Input(others[int(random.integers(len(others)))], Partitioning.FULL))
        made.append(replace(operator, inputs=tuple(inputs)))
    return Topology(f"dag-{operators}-seed-{seed}", made)


def measure_search(cases: int, step: Callable[[], None] = lambda: None) -> list[SearchGap]:
    """Compare the search alone with trying every set of anchors, on DAGs, trees and chains."""
    found = []
    for kind in ("dag", "tree", "chain"):
        for size in SIZES:
            gaps = []
            for seed in range(cases):
                model = _model(kind, seed, size, BANDWIDTHS[seed % len(BANDWIDTHS)])
                grid = SLOW_TREE.grid
                try:
                    best = plan_dag(model, SLOW_TREE.overhead, grid=grid, exhaustive_free=size)
                except NoPlan:
                    continue
                near = plan_dag(model, SLOW_TREE.overhead, grid=grid, exhaustive_free=0)
                gaps.append(max(0.0, near.recovery_time / best.recovery_time - 1))
                step()
            gap = np.array(gaps)
            found.append(
                SearchGap(kind, size, len(gaps), float((gap < 1e-9).mean()), float(gap.mean()), float(gap.max()))
            )
    return found


def _model(kind: str, seed: int, size: int, bandwidth: float) -> SegmentModel:
    if kind == "dag":
        return model_of(random_dag(seed, size), bandwidth)
    return replace(SLOW_TREE, shape=kind, operators=size, bandwidth=bandwidth).model(seed)
