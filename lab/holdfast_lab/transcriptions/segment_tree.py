"""The tree algorithm as FastRecover prints it (Algorithm 2, eq. 3.5 and 3.6), fast enough to measure its gap. Pure.

The same choices as the transcription in `segment_chain`, which lists every split; here children are merged in
pairs over whole arrays. A child is either an anchor at its best or in its parent's segment at **its own** least cost,
whatever its failures cost the operators above: that is why its plans are not always the best.
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import as_strided

from holdfast.errors import NoPlan
from holdfast.planning.segments.grid import FrequencyGrid, operator_increments
from holdfast.planning.segments.model import Bools, SegmentModel, SegmentPlan, plan_of, require_feasible_overhead
from holdfast.topology.model import Floats, Ints

MERGE_CELLS = 500_000
"""Pairs of budgets looked at in one go; bounds memory."""


def plan_printed_tree(model: SegmentModel, overhead: float, grid: FrequencyGrid) -> SegmentPlan:
    """Return the plan of Algorithm 2; its totals are the model's, as for every plan."""
    require_feasible_overhead(model, overhead)
    taken = operator_increments(model, overhead, grid)
    frequencies = grid.frequencies
    rows, columns = len(frequencies), grid.steps + 1
    # [inp][operator]: DP_rt and DP_fr, arrays (f, c); split[inp][operator][child]: increments for the child.
    cost: list[dict[int, Floats]] = [{}, {}]
    failures: list[dict[int, Floats]] = [{}, {}]
    split: list[dict[int, list[Ints]]] = [{}, {}]
    apart: list[dict[int, Bools]] = [{}, {}]
    best: dict[int, Floats] = {}
    best_row: dict[int, Ints] = {}
    for number in reversed(model.order):
        rho = model.failure_rate[number]
        for inp in (0, 1):
            once = (inp * model.input_seconds[number] + model.work_seconds[number]) / frequencies
            once = once + model.state_seconds[number]
            total, failing = np.zeros((rows, columns)), np.zeros((rows, columns))
            split[inp][number] = []
            for child in model.consumers[number]:
                inner = failures[0][child] * once[:, None] + cost[0][child]
                alone = np.broadcast_to(best[child], inner.shape)
                apart[inp][child] = alone <= inner
                child_failing = np.where(apart[inp][child], 0.0, failures[0][child])
                total, failing, given = _merge(total, failing, np.minimum(alone, inner), child_failing)
                split[inp][number].append(given)
            shift = np.arange(columns) - taken[inp, number][:, None]
            inside = np.maximum(shift, 0)
            cost[inp][number] = np.where(
                shift >= 0, np.take_along_axis(total, inside, axis=1) + (rho * once)[:, None], np.inf
            )
            failures[inp][number] = np.where(shift >= 0, np.take_along_axis(failing, inside, axis=1), 0.0) + rho
        best[number] = cost[1][number].min(axis=0)
        best_row[number] = cost[1][number].argmin(axis=0)

    root = model.order[0]
    if not np.isfinite(best[root][-1]):
        raise NoPlan("Algorithm 2 finds no plan on this grid", remedy="use more steps or frequencies")
    anchors = np.zeros(len(model), bool)
    frequency = np.zeros(len(model))
    waiting = [(root, grid.steps, 1, int(best_row[root][grid.steps]))]
    while waiting:
        number, budget, inp, row = waiting.pop()
        anchors[number] = bool(inp)
        frequency[number] = frequencies[row]
        left = budget - int(taken[inp, number, row])
        for child, given in reversed(list(zip(model.consumers[number], split[inp][number], strict=True))):
            share = int(given[row, left])
            if apart[inp][child][row, share]:
                waiting.append((child, share, 1, int(best_row[child][share])))
            else:
                waiting.append((child, share, 0, row))
            left -= share
    return plan_of(model, anchors, frequency)


def _merge(a: Floats, a_failing: Floats, b: Floats, b_failing: Floats) -> tuple[Floats, Floats, Ints]:
    """Share every budget between a and b; return the cost, the failures that reach the parent, and b's share."""
    rows, columns = a.shape
    padded = np.full((rows, 2 * columns - 1), np.inf)
    padded[:, columns - 1 :] = a
    row, one = padded.strides
    shifted = as_strided(padded[:, columns - 1 :], (rows, columns, columns), (row, -one, one), writeable=False)
    given = np.empty(a.shape, np.int64)
    block = max(1, MERGE_CELLS // columns**2)
    for first in range(0, rows, block):
        some = slice(first, first + block)
        given[some] = (shifted[some] + b[some, :, None]).argmin(axis=1)
    rest = np.arange(columns) - given
    cost = np.take_along_axis(a, rest, axis=1) + np.take_along_axis(b, given, axis=1)
    failing = np.take_along_axis(a_failing, rest, axis=1) + np.take_along_axis(b_failing, given, axis=1)
    return cost, failing, given
