"""BestDensity: grow candidate plans by the query with the most priority per shared cost (paper 000, Alg. 4). Pure.

A query's profit density is its priority over the sum of c / f of its failed partitions not yet in the plan, c being a
partition's cost and f the number of failed queries that need it. Candidates start from every single query that fits
and, up to 100 failed queries, from every pair that does; beyond, from a capped list of pairs of dense queries. Each
grows by the densest query that still fits; the candidate that restores the most priority wins.

All candidates grow side by side, in chunks, as rows of matrices. Two facts keep a step cheap:
- f does not change while a plan grows: a partition outside the plan belongs to unrestored queries only;
- a query that no longer fits never fits again: what a plan takes lowers the room by at least as much as it lowers any
  query's remaining cost. So a query is struck from a row for good, and densities otherwise only rise.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from holdfast.planning.leftover import use_leftover
from holdfast.planning.recovery_problem import Mask, RecoveryPlan, RecoveryProblem
from holdfast.topology import Floats, Ints

ALL_PAIRS_UP_TO = 100
"""Failed queries up to which every pair is a seed."""
MOST_PAIRS = 250
"""Pairs beyond that: among the densest queries."""
_CHUNK_ENTRIES = 1 << 18
_STRUCK = -1.0


@dataclass(frozen=True, slots=True)
class Candidates:
    """What grew from the seeds, best first: the most priority, then the least cost, then the earlier seed."""

    restored: Mask
    """One row per candidate, one column per failed query."""
    seeds: int


def best_density(problem: RecoveryProblem, *, most_pairs: int = MOST_PAIRS) -> RecoveryPlan:
    """Return the best of the plans grown from all seeds; what is left over goes to the next query by density."""
    found = grow_candidates(problem, most_pairs=most_pairs)
    best = found.restored[0] if len(found.restored) else np.zeros(len(problem.queries), bool)
    taken = use_leftover(problem, problem.partitions_of(problem.groups_of(best)))
    return problem.plan("best-density", taken, seeds=found.seeds)


def grow_candidates(problem: RecoveryProblem, *, most_pairs: int = MOST_PAIRS, keep: int = 1) -> Candidates:
    """Grow every seed; return the `keep` best different candidates."""
    first, second = seeds_of(problem, most_pairs)
    if not len(first):
        free = problem.query_cost == 0
        return Candidates(free[None, :], 0)
    rows_per_chunk = max(1, _CHUNK_ENTRIES // max(1, len(problem.queries)))
    weight = problem.priority.astype(float)
    needs, needed_by = _Lists(problem.member), _Lists(problem.member.T)
    best: list[tuple[float, float, int, Mask]] = []
    for start in range(0, len(first), rows_per_chunk):
        end = start + rows_per_chunk
        growth = _Growth(problem, needs, needed_by, len(first[start:end]))
        growth.take(np.arange(len(first[start:end])), first[start:end])
        paired = np.flatnonzero(second[start:end] >= 0)
        growth.take(paired, second[start:end][paired])
        growth.run()
        value = growth.restored @ weight
        order = np.lexsort((-growth.left, -value))
        chosen: dict[bytes, int] = {}
        for row in order:
            chosen.setdefault(growth.restored[row].tobytes(), int(row))
            if len(chosen) >= keep:
                break
        best += [(-value[row], -growth.left[row], start + row, growth.restored[row]) for row in chosen.values()]
        best = sorted(best, key=lambda one: one[:3])[: 4 * keep]
    distinct = {one[3].tobytes(): one[3] for one in best}
    return Candidates(np.array(list(distinct.values())[:keep]), len(first))


def grow_from(problem: RecoveryProblem, chosen: Mask) -> Mask:
    """Grow one plan that already restores these queries (which must fit together); return what it restores."""
    growth = _Growth(problem, _Lists(problem.member), _Lists(problem.member.T), 1)
    for query in np.flatnonzero(chosen).tolist():
        growth.take(np.zeros(1, np.int64), np.array([query]))
    growth.run()
    restored: Mask = growth.restored[0]
    return restored


def seeds_of(problem: RecoveryProblem, most_pairs: int) -> tuple[Ints, Ints]:
    """Return the seeds that fit as two columns: a query, and a second one or -1."""
    cost = problem.query_cost
    singles = np.flatnonzero((cost <= problem.capacity) & (cost > 0))
    pool = singles
    if len(singles) > ALL_PAIRS_UP_TO:
        # All pairs of the densest so many queries.
        size = int((1 + (1 + 8 * most_pairs) ** 0.5) / 2)
        density = problem.priority[singles] / problem.share_cost[singles]
        pool = np.sort(singles[np.argsort(-density, kind="stable")[:size]])
    pairs = np.array(list(combinations(pool.tolist(), 2)), np.int64).reshape(-1, 2)
    if len(pairs):
        needs = problem.member[pool].astype(float)
        shared = (needs * problem.group_cost) @ needs.T
        place = {query: number for number, query in enumerate(pool.tolist())}
        a, b = (np.array([place[query] for query in column]) for column in pairs.T.tolist())
        both = cost[pairs[:, 0]] + cost[pairs[:, 1]] - shared[a, b]
        pairs = pairs[both <= problem.capacity]
    first = np.concatenate([singles, pairs[:, 0]])
    second = np.concatenate([np.full(len(singles), -1), pairs[:, 1]])
    return first, second


class _Growth:
    """Candidate plans as rows: what each has, what is left of its capacity, what each query would still cost it."""

    def __init__(self, problem: RecoveryProblem, needs: _Lists, needed_by: _Lists, rows: int) -> None:
        queries, groups = problem.member.shape
        self.priority = problem.priority.astype(float)
        self.group_cost = problem.group_cost.astype(float)
        self.group_share = self.group_cost / np.maximum(1, problem.sharing)
        self.needs, self.needed_by = needs, needed_by
        self.width = queries
        self.has = np.zeros((rows, groups), bool)
        self.left: Floats = np.full(rows, float(problem.capacity))
        self.cost: Floats = np.tile(problem.query_cost.astype(float), (rows, 1))
        self.share: Floats = np.tile(problem.share_cost, (rows, 1))
        free = problem.query_cost == 0
        self.restored = np.tile(free, (rows, 1))
        score = np.where(free, _STRUCK, self.priority / np.where(free, 1.0, problem.share_cost))
        self.score: Floats = np.tile(score, (rows, 1))

    def run(self) -> None:
        """Grow every row until nothing fits it."""
        if not self.width:
            return
        self._strike_what_does_not_fit()
        rows = np.arange(len(self.left))
        while len(rows):
            best = self.score[rows].argmax(axis=1) if len(rows) < len(self.left) else self.score.argmax(axis=1)
            going = self.score[rows, best] > 0
            rows, best = rows[going], best[going]
            fits = self.cost[rows, best] <= self.left[rows]
            self.score[rows[~fits], best[~fits]] = _STRUCK
            self.take(rows[fits], best[fits])
            if 4 * np.count_nonzero(fits) < 3 * len(fits):
                self._strike_what_does_not_fit()

    def take(self, rows: Ints, queries: Ints) -> None:
        """Add one query to each of these rows (each row at most once)."""
        row, group, _ = self.needs.gather(rows, queries)
        flat_has = self.has.ravel()
        place = row * self.has.shape[1] + group
        new = ~flat_has[place]
        row, group = row[new], group[new]
        flat_has[place[new]] = True
        group_cost = self.group_cost[group]
        np.subtract.at(self.left, row, group_cost)
        touched, query, source = self.needed_by.gather(row, group)
        place = touched * self.width + query
        cost, share, score = self.cost.ravel(), self.share.ravel(), self.score.ravel()
        np.subtract.at(cost, place, group_cost[source])
        np.subtract.at(share, place, self.group_share[group][source])
        done = cost[place] <= 0
        finished = place[done]
        self.restored.ravel()[finished] = True
        score[finished] = _STRUCK
        waiting = ~done & (score[place] > 0)
        place = place[waiting]
        score[place] = self.priority[query[waiting]] / share[place]

    def _strike_what_does_not_fit(self) -> None:
        self.score[self.cost > self.left[:, None]] = _STRUCK


class _Lists:
    """The true columns of each row of a matrix, as one array, to gather for many rows at once."""

    def __init__(self, matrix: Mask) -> None:
        rows, self.items = np.nonzero(matrix)
        self.start = np.searchsorted(rows, np.arange(matrix.shape[0] + 1))

    def gather(self, owners: Ints, keys: Ints) -> tuple[Ints, Ints, Ints]:
        """Return, for each item of each key: the key's owner, the item, and which of the keys it came from."""
        begin = self.start[keys]
        width = self.start[keys + 1] - begin
        source = np.repeat(np.arange(len(keys)), width)
        ends = np.cumsum(width)
        place = np.arange(len(source)) + (begin - ends + width)[source]
        return owners[source], self.items[place], source
