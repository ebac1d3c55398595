"""Lower bounds on backups from paths: the linear relaxation over all paths longer than R, by cutting planes.

Runs anywhere. Every path longer than R needs a backup; letting backups be fractions gives a linear programme whose
value bounds the fewest from below, and bounds it well. It has a row per path, too many to write, so rows are added as
they are violated: `lightest` finds, for every node and in one sweep, the path longer than R that ends there and holds
the least backup. Where times are whole numbers up to `_FINEST` that search is exact; else times are rounded to as many
steps, what is found is measured again with true times, and a bound from fewer rows is still a bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from ortools.linear_solver import pywraplp

from holdfast.planning.backups.core import Answer, CoreSearch, Literal
from holdfast.topology import Floats, Ints

_FINEST = 96
_ROWS_PER_ROUND = 3000
_SLACK = 1e-6
_BRANCHES = 8
_SURE = (0.99, 0.7, 0.5, 0.34, 0.2, 0.05)


@dataclass(frozen=True, slots=True)
class Relaxation:
    """The result of the linear programme: a bound on the cost, the fractions by literal, and the rows it had."""

    bound: int
    value: float
    fractions: Floats
    paths: list[tuple[Literal, ...]]


class PathSearch:
    """Lightest long paths through a core, for any weights of its literals."""

    def __init__(self, search: CoreSearch) -> None:
        self.search = search
        scale = min(1.0, _FINEST / max(1, search.limit))
        self.steps = round(search.limit * scale)
        self.ticks: Ints = np.rint(scale * search.ticks).astype(np.int64)
        self.head: Ints = np.rint(scale * search.head).astype(np.int64)
        self.tail: Ints = np.rint(scale * search.tail).astype(np.int64)

    def lightest(self, weights: Floats, most: int = _ROWS_PER_ROUND) -> list[tuple[float, tuple[Literal, ...]]]:
        """Return paths longer than R of weight below 1, some ending at each node, lightest first with their weights."""
        wide = self.steps + 2
        count = len(self.search.core.nodes)
        sums = np.arange(wide)
        # waiting[c, s]: least weight of what c may wait for when that lasts s steps or more; passing adds c itself.
        waiting = np.full((count, wide), np.inf)
        passing = np.full((count, wide), np.inf)
        node_of = self.search.node_of
        for number, rank in enumerate(self.search.downwards):
            nodes, literals = rank.nodes, rank.literals
            if number:
                waiting[nodes] = np.minimum.reduceat(passing[rank.neighbours], rank.neighbour_starts)
            waiting[nodes] = np.where(sums[None, :] <= self.head[nodes][:, None], 0.0, waiting[nodes])
            before = np.maximum(sums[None, :] - self.ticks[literals][:, None], 0)
            through = waiting[node_of[literals][:, None], before] + weights[literals][:, None]
            passing[nodes] = np.minimum.reduceat(through, rank.literal_starts)
        ends = np.maximum(self.steps + 1 - self.tail, 0)
        value = np.where(self.search.is_hub, np.inf, passing[np.arange(count), ends])
        light = np.flatnonzero(value < 1 - _SLACK)
        found: dict[tuple[Literal, ...], float] = {}
        for c in light[np.argsort(value[light], kind="stable")].tolist():
            for path in self._traces(c, int(ends[c]), waiting, passing, weights):
                if path not in found and self._is_late(path):
                    found[path] = float(sum(weights[self.search.first[c] + j] for c, j in path))
            if len(found) >= most:
                break
        return sorted(((weight, path) for path, weight in found.items()), key=lambda one: one[0])

    def _traces(
        self, c: int, s: int, waiting: Floats, passing: Floats, weights: Floats
    ) -> Iterator[tuple[Literal, ...]]:
        """Yield light paths that end at c: the lightest, and the lightest through each of some upstream neighbours."""
        first, levels = int(self.search.first[c]), len(self.search.core.nodes[c].ticks)
        places = np.maximum(s - self.ticks[first : first + levels], 0)
        j = int(np.argmin(waiting[c, places] + weights[first : first + levels]))
        s = int(places[j])
        if s <= self.head[c]:
            yield ((c, j),)
            return
        feeders = np.array(self.search.up[c])
        totals = passing[feeders, s] + weights[first + j]
        light = np.flatnonzero(totals < 1 - _SLACK)
        for turn, p in enumerate(feeders[light[np.argsort(totals[light], kind="stable")]][:_BRANCHES].tolist()):
            # Through a hub there are as many ways as it has feeders: take some that differ.
            for again in range(_BRANCHES if self.search.is_hub[p] else 1):
                yield ((c, j), *self._trace(p, s, waiting, passing, weights, c + turn + 7 * again))

    def _trace(
        self, c: int, s: int, waiting: Floats, passing: Floats, weights: Floats, salt: int
    ) -> tuple[Literal, ...]:
        path: list[Literal] = []
        while True:
            first, levels = int(self.search.first[c]), len(self.search.core.nodes[c].ticks)
            j = 0
            if levels > 1:
                places = np.maximum(s - self.ticks[first : first + levels], 0)
                j = int(np.argmin(waiting[c, places] + weights[first : first + levels]))
            s = max(0, s - int(self.ticks[first + j]))
            if not self.search.is_hub[c]:
                path.append((c, j))
            if s <= self.head[c]:
                return tuple(path)
            feeders = self.search.up[c]
            values = passing[feeders, s]
            # Of equal ways take one by the salt, so that paths to different ends differ.
            equal = np.flatnonzero(values <= values.min() + _SLACK)
            c = feeders[int(equal[salt % len(equal)])]

    def _is_late(self, path: tuple[Literal, ...]) -> bool:
        nodes = self.search.core.nodes
        total = sum(nodes[c].ticks[j] for c, j in path) + nodes[path[0][0]].tail + nodes[path[-1][0]].head
        return total > self.search.limit


@dataclass(frozen=True, slots=True)
class Packing:
    """Late paths that share no node: each needs a backup of its own. And an answer that backs up all their nodes."""

    bound: int
    paths: list[tuple[Literal, ...]]
    answer: Answer


def pack(search: CoreSearch) -> Packing:
    """Take late paths that do not meet until no partition is late: a first bound, and rows from the whole core."""
    answer = search.nothing()
    paths: list[tuple[Literal, ...]] = []
    bound = 0
    while late := search.late_paths(answer):
        met: set[int] = set()
        for path in sorted(late, key=len):
            if not any(c in met for c, _ in path):
                met.update(c for c, _ in path)
                paths.append(path)
                bound += min(search.core.nodes[c].costs[0] for c, _ in path)
        taken = np.array(sorted(met), np.int64)
        answer[taken] = search.levels[taken]
    return Packing(bound, paths, answer)


def relax(search: CoreSearch, packing: Packing, enough: int, left: Callable[[], float]) -> Relaxation:
    """Bound the cost of a core from below; stop when `enough` is proven, no row is violated, or no seconds are left."""
    finder = PathSearch(search)
    first = search.first.tolist()
    solver = pywraplp.Solver.CreateSolver("GLOP")
    literals = search.literals
    variables = [solver.NumVar(0.0, 1.0, "") for _ in literals]
    objective = solver.Objective()
    for variable, cost, (c, j) in zip(variables, search.costs.tolist(), literals, strict=True):
        objective.SetCoefficient(variable, float(cost))
        if j:
            row = solver.Constraint(0.0, solver.infinity())
            row.SetCoefficient(variables[first[c] + j - 1], 1.0)
            row.SetCoefficient(variable, -1.0)
    objective.SetMinimization()
    known: set[tuple[Literal, ...]] = set()
    fractions = np.zeros(len(literals))
    value = 0.0
    fresh = packing.paths
    while True:
        fresh = [path for path in dict.fromkeys(fresh) if path not in known][:_ROWS_PER_ROUND]
        if not fresh:
            break
        for path in fresh:
            row = solver.Constraint(1.0, solver.infinity())
            for c, j in path:
                row.SetCoefficient(variables[first[c] + j], 1.0)
        known.update(fresh)
        milliseconds = int(1e3 * left())
        if milliseconds <= 0:
            break
        solver.SetTimeLimit(milliseconds)
        if solver.Solve() != pywraplp.Solver.OPTIMAL:
            break
        value = objective.Value()
        fractions = np.array([variable.solution_value() for variable in variables])
        if value > enough - 1 + _SLACK or left() <= 0:
            break
        fresh = [path for _, path in finder.lightest(fractions)]
    return Relaxation(max(packing.bound, int(np.ceil(value - _SLACK))), value, fractions, list(known))


def rounded(search: CoreSearch, relaxation: Relaxation) -> Answer:
    """Return the best answer that keeps what the relaxation is certain of, for several thresholds."""
    found: dict[bytes, Answer] = {}
    for sure in _SURE:
        # Levels of a node fall in fraction, so certain ones come first.
        kept = np.add.reduceat((relaxation.fractions >= sure).astype(np.int64), search.first)
        if kept.tobytes() in found:
            continue
        found[kept.tobytes()] = answer = search.completed(kept)
        if search.cost(answer) <= relaxation.bound:
            return answer
    return min(found.values(), key=search.cost)
