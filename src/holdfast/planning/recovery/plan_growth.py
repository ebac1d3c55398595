"""Candidate recovery plans that grow side by side, as rows of matrices (for `best_density`). Pure.

Two facts keep a step cheap:
- f, the number of failed queries that need a partition, does not change while a plan grows: a partition outside the
  plan belongs to unrestored queries only;
- a query that no longer fits never fits again: what a plan takes lowers the room by at least as much as it lowers any
  query's remaining cost. So a query is struck from a row for good, and densities otherwise only rise.
"""

from __future__ import annotations

import numpy as np

from holdfast.planning.recovery.problem import Mask, RecoveryProblem
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
