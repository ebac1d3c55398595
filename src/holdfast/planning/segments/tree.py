"""The best segments of a tree on the grid, in polynomial time. Pure; runs anywhere.

FastRecover, sec. 3.4, asks for the plan on a grid of frequencies and overheads with the least expected recovery time.
Its eq. 3.5 finds it only nearly: it takes a child's best plan without what that child's failures cost the operators
above, and it lists every split of an overhead over the children. Here plans are indexed **by anchor**. Let h be an
anchor at frequency f. For an operator i below it in its segment,

    T(i)[f, c] = rho_i x (cost at f of the path from h to i) + least over splits of the children's costs,

where a child costs min(A(child), T(child)): an anchor of its own, or in h's segment. Everything that depends on what is
above i, the path from h, is known, so the least is the true one. A(h)[c] is the least over f of the same sum at h. The
children's budgets are merged in pairs. Anchors are done from the leaves up; there are sum |subtree(h)| = n x depth
pairs (h, i), each with F rows of Z^2 or fewer additions, and memory for one anchor at a time plus A: O(n Z).

Budgets that leave too little for the rest of the tree are not looked at: a subtree gets at most Z minus what the
operators outside it take at the very least.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from holdfast.errors import BadInput, NoPlan
from holdfast.planning.segments.grid import FrequencyGrid, operator_increments
from holdfast.planning.segments.min_plus import best_split, share
from holdfast.planning.segments.model import (
    Bools,
    SegmentModel,
    SegmentPlan,
    plan_of,
    require_feasible_overhead,
)
from holdfast.topology.model import Floats, Ints


def plan_tree(model: SegmentModel, overhead: float, grid: FrequencyGrid) -> SegmentPlan:
    """Return the best plan of a tree on the grid; refuse where there is none."""
    if not model.is_tree:
        raise BadInput("the topology is not a tree with one source at its root", field="algorithm", remedy="use dag")
    require_feasible_overhead(model, overhead)
    return _TreePlanner(model, overhead, grid).plan()


@dataclass(frozen=True, slots=True, eq=False)
class _Below:
    """Costs in the segment of one anchor, by frequency and budget."""

    with_operator: dict[int, Floats]
    """What each operator's subtree costs when the operator is in the segment."""
    children: dict[int, list[Floats]]
    """Merged costs of the first 1, 2, ... children, rows by frequency."""


class _TreePlanner:
    """One run: the tables of one tree, and the way back through them."""

    def __init__(self, model: SegmentModel, overhead: float, grid: FrequencyGrid) -> None:
        self.model, self.overhead, self.grid = model, overhead, grid
        self.taken = operator_increments(model, overhead, grid)
        self.frequencies = grid.frequencies
        root = model.order[0]
        self.least = self.taken[0].min(axis=1)
        """The fewest increments each operator can take; the root is always an anchor."""
        self.least[root] = self.taken[1, root].min()
        self.spare = grid.steps - int(self.least.sum())
        """Increments that are left when every operator takes its fewest."""
        self.as_anchor: dict[int, Floats] = {}
        """A: the least cost of each subtree whose root is an anchor, by budget."""
        self.best_row: dict[int, Ints] = {}
        """The frequency of that anchor, by budget."""

    def plan(self) -> SegmentPlan:
        root = self.model.order[0]
        if self.spare < 0:
            raise self._nothing()
        for head in reversed(self.model.order):
            rows = self._rows_that_fit(head)
            costs = self._anchor_costs(head, self._below(head, rows), rows)
            self.as_anchor[head] = costs.min(axis=0)
            self.best_row[head] = rows[costs.argmin(axis=0)] if len(rows) else rows
        if not np.isfinite(self.as_anchor[root][-1]):
            raise self._nothing()
        return self._walk_back(root)

    def _nothing(self) -> NoPlan:
        grid = self.grid
        return NoPlan(
            f"no plan on a grid of {grid.steps} increments and frequencies from {self.frequencies[0]:.4g} per second "
            f"stays within an overhead of {self.overhead:.4g}",
            remedy="use more --steps or --frequencies, or --algorithm dag, which needs no grid",
        )

    # Budgets of a subtree are counted from its least: column x of its tables means x increments more than the fewest of
    # its operators, and every table has spare + 1 columns.

    def _rows_that_fit(self, head: int) -> Ints:
        """Return the frequencies at which this operator may be an anchor at all."""
        return np.flatnonzero(self.taken[1, head] - self.least[head] <= self.spare)

    def _below(self, head: int, rows: Ints) -> _Below:
        """Compute T for all operators that the segment of this anchor may reach, at these frequencies."""
        model = self.model
        reached, path_cost = self._paths(head, rows)
        below = _Below({}, {})
        for number in reversed(reached):
            below.children[number] = self._merged_children(number, below, len(rows))
            if number != head:
                own = self.taken[0, number][rows] - self.least[number]
                inner = self._children_costs(number, below, len(rows))
                below.with_operator[number] = (
                    _later(inner, own) + (model.failure_rate[number] * path_cost[number])[:, None]
                )
        return below

    def _paths(self, head: int, rows: Ints) -> tuple[list[int], dict[int, Floats]]:
        """Return the subtree of an anchor, top down, and what one recovery of each operator costs at each frequency."""
        model, frequency = self.model, self.frequencies[rows]
        cost = {head: (model.input_seconds[head] + model.work_seconds[head]) / frequency + model.state_seconds[head]}
        reached = [head]
        for number in reached:
            for child in model.consumers[number]:
                cost[child] = cost[number] + model.work_seconds[child] / frequency + model.state_seconds[child]
                reached.append(child)
        return reached, cost

    def _merged_children(self, number: int, below: _Below, rows: int) -> list[Floats]:
        merged: list[Floats] = []
        for child in self.model.consumers[number]:
            cost = np.minimum(self.as_anchor[child], below.with_operator[child])
            merged.append(share(merged[-1], cost) if merged else cost)
        return merged

    def _children_costs(self, number: int, below: _Below, rows: int) -> Floats:
        merged = below.children[number]
        return merged[-1] if merged else np.zeros((rows, self.spare + 1))

    def _anchor_costs(self, head: int, below: _Below, rows: Ints) -> Floats:
        """Return the cost of this anchor's subtree by frequency (rows) and budget."""
        if not len(rows):
            return np.full((1, self.spare + 1), np.inf)
        model, frequency = self.model, self.frequencies[rows]
        once = (model.input_seconds[head] + model.work_seconds[head]) / frequency + model.state_seconds[head]
        own = self.taken[1, head][rows] - self.least[head]
        inner = self._children_costs(head, below, len(rows))
        cost: Floats = _later(inner, own) + (model.failure_rate[head] * once)[:, None]
        return cost

    def _walk_back(self, root: int) -> SegmentPlan:
        anchors: Bools = np.zeros(len(self.model), bool)
        frequency: Floats = np.zeros(len(self.model))
        waiting = [(root, self.spare)]
        while waiting:
            head, budget = waiting.pop()
            # Tables were kept for one anchor at a time: make this one's again, only at its best frequency.
            row = self.best_row[head][[budget]]
            below = self._below(head, row)
            anchors[head] = True
            inside = [(head, budget - int(self.taken[1, head, row[0]] - self.least[head]))]
            while inside:
                number, left = inside.pop()
                frequency[number] = self.frequencies[row[0]]
                for child, given in self._splits(number, below, left):
                    if self.as_anchor[child][given] <= below.with_operator[child][0, given]:
                        waiting.append((child, given))
                    else:
                        own = int(self.taken[0, child, row[0]] - self.least[child])
                        inside.append((child, given - own))
        return plan_of(self.model, anchors, frequency)

    def _splits(self, number: int, below: _Below, left: int) -> list[tuple[int, int]]:
        """Return what each child of an operator gets of a budget in the best plan at the one frequency in `below`."""
        found = []
        merged = below.children[number]
        for place in range(len(merged) - 1, -1, -1):
            child = self.model.consumers[number][place]
            given = left
            if place:
                cost = np.minimum(self.as_anchor[child], below.with_operator[child][0])
                given = best_split(merged[place - 1][0], cost, left)
            found.append((child, given))
            left -= given
        return found


def _later(costs: Floats, delay: Ints) -> Floats:
    """Shift every row of costs to higher budgets by its own delay; budgets below it have no plan."""
    columns = np.arange(costs.shape[1]) - delay[:, None]
    shifted: Floats = np.where(columns >= 0, np.take_along_axis(costs, np.maximum(columns, 0), axis=1), np.inf)
    return shifted
