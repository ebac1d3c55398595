"""BestDensity: grow candidate plans by the query of most priority per shared cost (incremental recovery, Alg. 4). Pure.

A query's profit density is its priority over the sum of c / f of its failed partitions not yet in the plan, c being a
partition's cost and f the number of failed queries that need it. Candidates start from every single query that fits
and, up to 100 failed queries, from every pair that does; beyond, from a capped list of pairs of dense queries (and
beyond 1,200, of singles). Each grows by the densest query that still fits; the candidate that restores the most
priority wins.

All candidates grow side by side, in chunks (`plan_growth`).

Past the paper the winner is then exchanged: each of its queries is dropped in turn and the plan grown again without it,
and while that restores more, the best such plan takes its place. It is never worse; on large problems, where only few
pairs are seeds, it gains several per cent.

Candidate recovery plans that grow side by side, as rows of matrices (for `best_density`). Pure.

Two facts keep a step cheap:
- f, the number of failed queries that need a partition, does not change while a plan grows: a partition outside the
  plan belongs to unrestored queries only;
- a query that no longer fits never fits again: what a plan takes lowers the room by at least as much as it lowers any
  query's remaining cost. So a query is struck from a row for good, and densities otherwise only rise.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from holdfast.planning.recovery.leftover import use_leftover
from holdfast.planning.recovery.problem import Mask, RecoveryPlan, RecoveryProblem
from holdfast.topology import Floats, Ints

STRUCK = -1.0
"""The score of a query that is restored or no longer fits."""


class PlanGrowth:
    """Candidate plans as rows: what each has, what is left of its capacity, what each query would still cost it."""

    def __init__(self, problem: RecoveryProblem, needs: ItemLists, needed_by: ItemLists, rows: int) -> None:
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
        score = np.where(free, STRUCK, self.priority / np.where(free, 1.0, problem.share_cost))
        self.score: Floats = np.tile(score, (rows, 1))

    def without_each(self, problem: RecoveryProblem, restored: Mask, dropped: Ints) -> None:
        """Set each row to one plan without one of its queries (as many as rows); that row may not retake it."""
        needed = problem.member[restored].sum(axis=0)
        has = needed > 0
        member = problem.member.astype(float)
        # The plan itself in every row; partitions that only the dropped query needed cost again for other queries.
        self.has[:] = has
        self.cost[:] = member @ (~has * self.group_cost)
        self.share[:] = member @ (~has * self.group_share)
        self.left[:] = problem.capacity - has @ self.group_cost
        row, group = np.nonzero(problem.member[dropped] & (needed == 1))
        self.has[row, group] = False
        np.add.at(self.left, row, self.group_cost[group])
        touched, query, source = self.needed_by.gather(row, group)
        np.add.at(self.cost, (touched, query), self.group_cost[group[source]])
        np.add.at(self.share, (touched, query), self.group_share[group[source]])
        self.restored = self.cost <= 0
        self.score = np.where(self.restored, STRUCK, self.priority / np.where(self.restored, 1.0, self.share))
        self.score[np.arange(len(dropped)), dropped] = STRUCK

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
            self.score[rows[~fits], best[~fits]] = STRUCK
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
        score[finished] = STRUCK
        waiting = ~done & (score[place] > 0)
        place = place[waiting]
        score[place] = self.priority[query[waiting]] / share[place]

    def _strike_what_does_not_fit(self) -> None:
        self.score[self.cost > self.left[:, None]] = STRUCK


class ItemLists:
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


# -- best density ------------------------------------------------------------------------------------------------------


ALL_PAIRS_UP_TO = 100
"""Failed queries up to which every pair is a seed."""
MOST_PAIRS = 250
"""Pairs beyond that: among the densest queries."""
SEED_WORK = 2 * 10**9
"""Seeds times work per seed: up to about 1,200 failed queries that share little, every single one is a seed."""
FEWEST_SEEDS = 16
EXCHANGES = 50
"""Most rounds of exchange, up to 200 failed queries; a few beyond, where a round takes a tenth of a second."""
_MANY_QUERIES = 200
_EXCHANGES_OF_MANY = 3
_CHUNK_ENTRIES = 1 << 18
_CHUNK_UPDATES = 1 << 22
"""Entries that one step may touch at most, so that memory stays bounded where everything is shared."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """What grew from the seeds, best first: the most priority, then the least cost, then the earlier seed."""

    restored: Mask
    """One row per candidate, one column per failed query."""
    seeds: int


def best_density(
    problem: RecoveryProblem, *, most_pairs: int = MOST_PAIRS, exchanges: int | None = None
) -> RecoveryPlan:
    """Return the best of the plans grown from all seeds; what is left over goes to the next query by density.

    `exchanges` limits the rounds of exchange; 0 is the paper's algorithm alone.
    """
    if int(problem.group_cost.sum()) <= problem.capacity and len(problem.queries) <= ALL_PAIRS_UP_TO:
        # All of it fits, so every seed grows into the plan that restores everything.
        paid = int(np.count_nonzero(problem.query_cost))
        everything = problem.partitions_of(np.ones(len(problem.group_cost), bool))
        return problem.plan("best-density", everything, seeds=paid * (paid + 1) // 2)
    found = grow_candidates(problem, most_pairs=most_pairs)
    best = exchanged(problem, found.restored[0], exchanges)
    taken = use_leftover(problem, problem.partitions_of(problem.groups_of(best)))
    return problem.plan("best-density", taken, seeds=found.seeds)


def grow_candidates(problem: RecoveryProblem, *, most_pairs: int = MOST_PAIRS, keep: int = 1) -> Candidates:
    """Grow every seed; return the `keep` best different candidates."""
    first, second = seeds_of(problem, most_pairs)
    if not len(first):
        free = problem.query_cost == 0
        return Candidates(free[None, :], 0)
    needs_in_all = max(1, int(problem.sharing.sum()))
    rows_per_chunk = max(1, min(_CHUNK_ENTRIES // len(problem.queries), _CHUNK_UPDATES // needs_in_all))
    weight = problem.priority.astype(float)
    needs, needed_by = ItemLists(problem.member), ItemLists(problem.member.T)
    best: list[tuple[float, float, int, Mask]] = []
    for start in range(0, len(first), rows_per_chunk):
        end = start + rows_per_chunk
        growth = PlanGrowth(problem, needs, needed_by, len(first[start:end]))
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
    growth = PlanGrowth(problem, ItemLists(problem.member), ItemLists(problem.member.T), 1)
    for query in np.flatnonzero(chosen).tolist():
        growth.take(np.zeros(1, np.int64), np.array([query]))
    growth.run()
    restored: Mask = growth.restored[0]
    return restored


def exchanged(problem: RecoveryProblem, restored: Mask, rounds: int | None = None) -> Mask:
    """Drop each query in turn and grow again, while that restores more."""
    if rounds is None:
        rounds = EXCHANGES if len(problem.queries) <= _MANY_QUERIES else _EXCHANGES_OF_MANY
    needs, needed_by = ItemLists(problem.member), ItemLists(problem.member.T)
    weight = problem.priority.astype(float)
    for _ in range(rounds):
        inside = np.flatnonzero(restored & (problem.query_cost > 0))
        if not len(inside):
            break
        growth = PlanGrowth(problem, needs, needed_by, len(inside))
        growth.without_each(problem, restored, inside)
        growth.run()
        value = growth.restored @ weight
        best = int(value.argmax())
        if value[best] <= weight[restored].sum():
            break
        restored = growth.restored[best]
    return restored


def seeds_of(problem: RecoveryProblem, most_pairs: int) -> tuple[Ints, Ints]:
    """Return the seeds that fit as two columns: a query, and a second one or -1."""
    cost = problem.query_cost
    singles = np.flatnonzero((cost <= problem.capacity) & (cost > 0))
    pool = singles
    if len(singles) > ALL_PAIRS_UP_TO:
        # A seed takes as many steps as queries, each over all queries, and touches every need once, at greater cost.
        most = max(FEWEST_SEEDS, SEED_WORK // (len(singles) ** 2 + 30 * int(problem.sharing.sum())))
        density = problem.priority[singles] / problem.share_cost[singles]
        densest = singles[np.argsort(-density, kind="stable")]
        # All pairs of the densest so many queries.
        pool = np.sort(densest[: int((1 + (1 + 8 * min(most_pairs, most)) ** 0.5) / 2)])
        if len(singles) > most:
            # The densest, and those that weigh most: a plan must not miss these because no seed has them.
            heaviest = singles[np.argsort(-problem.priority[singles], kind="stable")]
            singles = np.union1d(densest[: most // 2], heaviest[: most - most // 2])
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
