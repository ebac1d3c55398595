"""The best plan when the anchors are given, on either of the paper's grids. Pure.

On the grid of overheads every segment takes a whole number of increments (chains); on the grid of frequencies every
segment has one of F frequencies and its operators' overheads are rounded up to increments (trees). So a simple
configuration can be compared with the dynamic programmes on their own grid.
"""

from __future__ import annotations

import numpy as np

from holdfast.errors import NoPlan
from holdfast.planning.segments.frequencies import sums_of
from holdfast.planning.segments.grid import FrequencyGrid, operator_increments
from holdfast.planning.segments.min_plus import best_split, share
from holdfast.planning.segments.model import MAX_FREQUENCY, Bools, SegmentModel, SegmentPlan, plan_of
from holdfast.topology.model import Floats


def plan_on_overhead_grid(
    model: SegmentModel, anchors: Bools, overhead: float, steps: int, *, max_frequency: float = MAX_FREQUENCY
) -> SegmentPlan:
    """Return the best plan with these anchors in which every segment takes a whole number of increments."""
    sums = sums_of(model, anchors[None, :])
    budget: Floats = np.arange(steps + 1, dtype=np.float64) * (overhead / steps)
    numbers = np.unique(sums.segment[0])
    alpha, beta = sums.alpha[0, numbers, None], sums.beta[0, numbers, None]
    state, left = sums.state[0, numbers, None], budget - sums.inputs[0, numbers, None]
    feasible = (left > 0) | ((left == 0) & (state <= 0))
    with np.errstate(divide="ignore", invalid="ignore"):
        frequency = np.where(
            state > 0, np.minimum(left / np.where(state > 0, state, 1.0), max_frequency), max_frequency
        )
        costs = np.where(feasible, alpha / frequency + beta, np.inf)
    given = _shares(costs, overhead)
    chosen = dict(zip(numbers.tolist(), frequency[np.arange(len(numbers)), given].tolist(), strict=True))
    return plan_of(model, anchors, np.array([chosen[int(one)] for one in sums.segment[0]]))


def plan_on_frequency_grid(model: SegmentModel, anchors: Bools, overhead: float, grid: FrequencyGrid) -> SegmentPlan:
    """Return the best plan with these anchors on the grid of frequencies, operators' overheads rounded up."""
    sums = sums_of(model, anchors[None, :])
    taken = operator_increments(model, overhead, grid)
    numbers = np.unique(sums.segment[0])
    costs = np.full((len(numbers), grid.steps + 1), np.inf)
    row = np.zeros(costs.shape, np.int64)
    for place, number in enumerate(numbers):
        members = sums.segment[0] == number
        needed = taken[0, members & ~anchors].sum(axis=0) + taken[1, members & anchors].sum(axis=0)
        cost = sums.alpha[0, number] / grid.frequencies + sums.beta[0, number]
        # A higher frequency costs less and needs more, so the last that fits is the best for each budget.
        fits = np.searchsorted(needed, np.arange(grid.steps + 1), side="right") - 1
        costs[place] = np.where(fits >= 0, cost[np.maximum(fits, 0)], np.inf)
        row[place] = np.maximum(fits, 0)
    given = _shares(costs, overhead)
    chosen = {int(one): grid.frequencies[row[place, given[place]]] for place, one in enumerate(numbers)}
    return plan_of(model, anchors, np.array([chosen[int(one)] for one in sums.segment[0]]))


def _shares(costs: Floats, overhead: float) -> list[int]:
    """Share all increments between the rows of costs for the least sum; return what each row gets."""
    merged = [costs[0]]
    for cost in costs[1:]:
        merged.append(share(merged[-1], cost))
    if not np.isfinite(merged[-1][-1]):
        raise NoPlan(
            f"{len(costs)} segments do not fit into {costs.shape[1] - 1} increments of an overhead of {overhead:.4g}",
            remedy="allow more overhead or more steps, or let fewer operators be anchors",
        )
    left = costs.shape[1] - 1
    given = []
    for place in range(len(costs) - 1, 0, -1):
        given.append(best_split(merged[place - 1], costs[place], left))
        left -= given[-1]
    return [*reversed([*given, left])]
