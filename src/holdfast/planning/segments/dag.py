"""Segments of any topology, without a grid. Past FastRecover, which has chains and trees only. Pure; runs anywhere.

What it minimises is RT_all of the model (`model`) over the anchors alone: for given anchors the best
frequencies have a closed form (`frequencies`). Up to `EXHAUSTIVE_FREE` operators that may or may not be
anchors, every set is tried: the plan is the best there is. Beyond, a search by steps: from several starting sets (the
sources alone, every operator that can be afforded, and the plan of the chain or tree algorithm where the shape allows
one), make operators anchors or no anchors, those that gain most first, as long as that helps; then try to change two
and three at once. Because it starts from their plans, it is never worse than chain and tree.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

import numpy as np

from holdfast.errors import NoPlan, Undecided
from holdfast.planning.segments.chain import DEFAULT_STEPS, plan_chain
from holdfast.planning.segments.frequencies import best_frequencies
from holdfast.planning.segments.grid import FrequencyGrid
from holdfast.planning.segments.model import (
    Bools,
    SegmentModel,
    SegmentPlan,
    plan_of,
    require_feasible_overhead,
)
from holdfast.planning.segments.tree import plan_tree
from holdfast.topology.model import Floats, Ints

EXHAUSTIVE_FREE = 12
"""Up to this many operators besides the sources, all sets of anchors are tried."""

MOST_IN_A_TREE, MOST_IN_A_DAG = 2_000, 500
"""Up to so many operators the search is tried: minutes at most."""

BATCH_CELLS = 4_000_000
"""How many (set, operator, operator) entries are computed at once; bounds memory."""

PAIRS_UP_TO = 120
TRIPLES_UP_TO = 24
"""Up to so many operators, changing two and three at once is tried where changing one no longer helps."""

GRID_START_UP_TO = 300
"""Up to so many operators of a chain or a tree its own algorithm is asked for a start: seconds at most."""

LEAST_GAIN = 1e-12


def plan_dag(
    model: SegmentModel,
    overhead: float,
    *,
    grid: FrequencyGrid | None = None,
    exhaustive_free: int = EXHAUSTIVE_FREE,
) -> SegmentPlan:
    """Return the best plan found, for any topology; the very best up to `exhaustive_free` free operators."""
    grid = grid or FrequencyGrid(DEFAULT_STEPS)
    require_feasible_overhead(model, overhead)
    most = MOST_IN_A_TREE if model.is_forest else MOST_IN_A_DAG
    if len(model) > most:
        raise Undecided(
            f"{len(model):,} operators have too many sets of anchors to search",
            field="algorithm",
            remedy=f"use one-segment or n-segments, or a topology of at most {most:,} operators",
        )
    search = _Search(model, overhead, grid.max_frequency)
    free = np.flatnonzero(~model.sources)
    if len(free) <= exhaustive_free:
        best = search.best_of(_all_sets(model, free))
    else:
        best = min(
            (search.descend(start) for start in _starts(model, overhead, grid, search)), key=lambda found: found[0]
        )
    anchors = best[1]
    _, frequency = best_frequencies(model, anchors[None, :], overhead, grid.max_frequency)
    return plan_of(model, anchors, frequency[0])


def _all_sets(model: SegmentModel, free: Ints) -> Bools:
    bits = np.arange(1 << len(free))[:, None] >> np.arange(len(free)) & 1
    sets = np.broadcast_to(model.sources, (len(bits), len(model))).copy()
    sets[:, free] = bits.astype(bool)
    return sets


def _starts(model: SegmentModel, overhead: float, grid: FrequencyGrid, search: _Search) -> Iterable[Bools]:
    if model.is_tree and len(model) <= GRID_START_UP_TO:
        try:
            if model.is_chain:
                yield plan_chain(model, overhead, steps=grid.steps, max_frequency=grid.max_frequency).anchors
            else:
                yield plan_tree(model, overhead, grid).anchors
        except NoPlan:
            pass  # no plan on the grid; there is one off it
    yield model.sources
    yield search.affordable()


class _Search:
    """Looks at many sets of anchors at once, a batch at a time."""

    def __init__(self, model: SegmentModel, overhead: float, max_frequency: float) -> None:
        self.model, self.overhead, self.max_frequency = model, overhead, max_frequency
        per_set = len(model) if model.is_forest else len(model) ** 2
        self.batch = max(1, BATCH_CELLS // per_set)
        self.free = np.flatnonzero(~model.sources)

    def costs(self, sets: Bools) -> Floats:
        pieces = [
            best_frequencies(self.model, sets[first : first + self.batch], self.overhead, self.max_frequency)[0]
            for first in range(0, len(sets), self.batch)
        ]
        return np.concatenate(pieces)

    def best_of(self, sets: Bools) -> tuple[float, Bools]:
        costs = self.costs(sets)
        at = int(np.argmin(costs))
        return float(costs[at]), sets[at]

    def affordable(self) -> Bools:
        """Anchor everything, then drop the anchors with the most input until half the overhead is left for states."""
        anchors = np.ones(len(self.model), bool)
        for number in sorted(self.free, key=lambda one: -self.model.input_seconds[one]):
            if self.model.input_seconds[anchors].sum() <= self.overhead / 2:
                break
            anchors[number] = False
        return anchors

    def descend(self, start: Bools) -> tuple[float, Bools]:
        """Change one operator at a time, the best change first, then several at once; until neither helps."""
        anchors = start.copy()
        cost = float(self.costs(anchors[None, :])[0])
        while True:
            cost, anchors, helped = self._change_some(cost, anchors)
            if not helped:
                cost, anchors, helped = self._change_together(cost, anchors)
            if not helped:
                return cost, anchors

    def _change_some(self, cost: float, anchors: Bools) -> tuple[float, Bools, bool]:
        """Try every single change; then make the best one, two, three, ... and keep the best of these."""
        trials = np.repeat(anchors[None, :], len(self.free), axis=0)
        trials[np.arange(len(self.free)), self.free] ^= True
        costs = self.costs(trials)
        helpful = [place for place in np.argsort(costs) if costs[place] < cost * (1 - LEAST_GAIN)]
        if not helpful:
            return cost, anchors, False
        changes = np.cumsum(trials[helpful] ^ anchors, axis=0).astype(bool)
        return *self.best_of(anchors ^ changes), True

    def _change_together(self, cost: float, anchors: Bools) -> tuple[float, Bools, bool]:
        """Try to change two operators at once, then three, in all ways there are; take the first batch that helps."""
        for together, most in ((2, PAIRS_UP_TO), (3, TRIPLES_UP_TO)):
            if len(self.free) > most:
                continue
            ways = np.array(list(combinations(self.free.tolist(), together)), np.int64).reshape(-1, together)
            for begin in range(0, len(ways), self.batch):
                changed = ways[begin : begin + self.batch]
                trials = np.repeat(anchors[None, :], len(changed), axis=0)
                trials[np.arange(len(changed))[:, None], changed] ^= True
                found, best = self.best_of(trials)
                if found < cost * (1 - LEAST_GAIN):
                    return found, best, True
        return cost, anchors, False
