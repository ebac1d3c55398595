"""The best segments of a chain, by dynamic programming over operators and overhead. Pure; runs anywhere.

FastRecover, Algorithm 1 and eq. 3.3 (with c' = c allowed and DP(0, 0) = 0): CH_max is cut into Z increments, a segment
from k to i takes a whole number of them, and DP(c, i) is the least expected recovery time of the first i operators
within c increments. Here every i is one array operation over all k, c and c'. A segment's cost is convex in what it is
given (alpha P / (c' inc - I) + beta), so for fine grids the least over c' is searched by halves: O(n^2 Z log Z) in all
instead of the paper's O(n^2 Z^2). Memory is O(n Z).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from holdfast.errors import BadInput, Undecided
from holdfast.planning.segments.min_plus import ConvexSharing, best_split
from holdfast.planning.segments.model import (
    MAX_FREQUENCY,
    SegmentModel,
    SegmentPlan,
    plan_of,
    require_feasible_overhead,
)
from holdfast.topology.model import Floats

DEFAULT_STEPS = 200
"""Z where none is given. The paper has 60 for chains and 20 for trees, because its algorithm is slow."""

MOST_OPERATORS = 2_000
"""Longest chain: there is a table of all pairs of operators."""

COST_CELLS = 200_000
"""How many costs of segments are made in one go: enough to keep arrays long, few enough to stay in the cache."""


@dataclass(frozen=True, slots=True, eq=False)
class ChainSums:
    """For every segment from operator k (row) to i (column) of a chain: RT = alpha / eta + beta, CH = P eta + I."""

    alpha: Floats
    beta: Floats
    state: Floats
    inputs: Floats
    """I of a segment, by its anchor k alone."""


def chain_sums(model: SegmentModel) -> ChainSums:
    """Sum eq. 2.1 and 3.2 over all segments of a chain; entries with k > i mean nothing."""
    order = list(model.order)
    inputs, state = model.input_seconds[order], model.state_seconds[order]
    work, rho = model.work_seconds[order], model.failure_rate[order]
    work_to, state_to = np.cumsum(work), np.cumsum(state)
    work_before, state_before = work_to - work, state_to - state
    # Entry (k, i) before summing: rho_i times what operator i costs when k is its anchor.
    starts = np.tri(len(order), dtype=bool).T
    alpha = np.where(starts, rho * (inputs[:, None] + work_to - work_before[:, None]), 0.0)
    beta = np.where(starts, rho * (state_to - state_before[:, None]), 0.0)
    return ChainSums(
        alpha=np.cumsum(alpha, axis=1),
        beta=np.cumsum(beta, axis=1),
        state=state_to - state_before[:, None],
        inputs=inputs,
    )


def segment_costs(sums: ChainSums, anchors: slice, lasts: slice, budget: Floats, limit: float) -> Floats:
    """Return CtoR of the segments from these anchors to these last operators, given each overhead (third axis)."""
    left = budget - sums.inputs[anchors, None, None]
    alpha, state = sums.alpha[anchors, lasts, None], sums.state[anchors, lasts, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        # What has no state checkpoints for nothing, at the limit, even where nothing is left (0 / 0).
        cost: Floats = np.fmax(alpha * state / left, alpha / limit)
    cost += sums.beta[anchors, lasts, None]
    cost[(left <= 0) & ((left < 0) | (state > 0))] = np.inf
    return cost


def segment_frequency(sums: ChainSums, anchor: int, last: int, overhead: float, limit: float) -> float:
    """Return Cto-eta: the frequency of the segment from this anchor to `last` when it takes this overhead."""
    state = float(sums.state[anchor, last])
    return min((overhead - float(sums.inputs[anchor])) / state, limit) if state > 0 else limit


def plan_chain(
    model: SegmentModel, overhead: float, *, steps: int = DEFAULT_STEPS, max_frequency: float = MAX_FREQUENCY
) -> SegmentPlan:
    """Return the best plan in which every segment of a chain takes a whole number of increments of the overhead."""
    if not model.is_chain:
        raise BadInput("the operators are not a chain", field="algorithm", remedy="use tree or dag")
    require_feasible_overhead(model, overhead)
    if len(model) > MOST_OPERATORS:
        raise Undecided(
            f"a chain of {len(model):,} operators has too many segments to compare",
            field="algorithm",
            remedy=f"use dag, or a chain of at most {MOST_OPERATORS:,} operators",
        )
    sums = chain_sums(model)
    size = len(model)
    budget: Floats = np.arange(steps + 1, dtype=np.float64) * (overhead / steps)
    # best[i]: least cost of the first i operators within each number of increments; anchor[i]: where the last
    # segment of such a plan begins.
    best = np.full((size + 1, steps + 1), np.inf)
    best[0] = 0.0
    anchor = np.zeros((size + 1, steps + 1), np.int64)
    share = ConvexSharing(size, steps + 1)
    block = max(1, COST_CELLS // (size * (steps + 1)))
    for last in range(size):
        if last % block == 0:
            costs = segment_costs(sums, slice(0, size), slice(last, last + block), budget, max_frequency)
        shared = share(best[: last + 1], costs[: last + 1, last % block])
        anchor[last + 1] = shared.argmin(axis=0)
        best[last + 1] = shared.min(axis=0)

    anchors = np.zeros(size, bool)
    frequencies = np.zeros(size)
    order = np.array(model.order)
    end, left = size, steps
    while end:
        first = int(anchor[end, left])
        cost = segment_costs(sums, slice(first, first + 1), slice(end - 1, end), budget, max_frequency)[0, 0]
        spent = best_split(best[first], cost, left)
        anchors[order[first]] = True
        frequencies[order[first:end]] = segment_frequency(sums, first, end - 1, float(budget[spent]), max_frequency)
        end, left = first, left - spent
    return plan_of(model, anchors, frequencies)
