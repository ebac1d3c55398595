"""The dynamic program over growing usage (incremental recovery, Alg. 3). Pure; exact, exponential in queries.

Candidate plans are sets of queries with everything they need. Usage steps over the costs that are reachable (the
paper's `usage + 1` needs whole costs): each candidate of the current usage is extended by every query that still fits,
and the extension waits at its own cost. Sets that need the same partitions are one candidate, and the best plan so far
is kept when its candidate is done with.

Two things keep it affordable without changing what is reached. A set is built by adding its queries in order of their
numbers only, since every set can be (what is completed on the way comes along by itself). And no extension costs less
than the cheapest group, so all candidates whose costs lie within that much of each other are extended together, as
rows of matrices: the same walk, several steps at a time.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdfast.planning.recovery.leftover import use_leftover
from holdfast.planning.recovery.problem import Mask, RecoveryPlan, RecoveryProblem, share_bound
from holdfast.topology import Floats, Ints

MOST_CANDIDATES = 4_000_000
"""Candidate plans after which the search stops without a proof of optimality."""
_ROWS = 4096

Words = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Frontier:
    """The plans that no cheaper one matches: costs (in units) rise, priorities rise with them."""

    cost: Ints
    priority: Ints
    queries: Words
    """The restored queries of each, as bits."""
    complete: bool
    candidates: int

    def best_within(self, capacity: int) -> int:
        """Return which plan is best for a capacity in units; -1 when there is none."""
        return int(np.searchsorted(self.cost, capacity, side="right")) - 1


def recovery_dp(problem: RecoveryProblem, *, most_candidates: int = MOST_CANDIDATES) -> RecoveryPlan:
    """Return the best plan; where there are too many candidates, the best so far with a bound."""
    frontier = dp_frontier(problem, most_candidates=most_candidates)
    place = frontier.best_within(problem.capacity)
    restored = _unpack(frontier.queries[place : place + 1], len(problem.queries))[0]
    taken = use_leftover(problem, problem.partitions_of(problem.groups_of(restored)))
    bound = int(frontier.priority[place]) if frontier.complete else share_bound(problem)
    notes = () if frontier.complete else (f"stopped after {frontier.candidates:,} candidate plans",)
    return problem.plan("dp", taken, bound=bound, notes=notes)


def dp_frontier(problem: RecoveryProblem, *, most_candidates: int = MOST_CANDIDATES) -> Frontier:
    """Walk all candidates up to the capacity; return the best plan for every usage."""
    needs = problem.member.astype(float)
    group_cost = problem.group_cost.astype(float)
    weight = problem.priority.astype(float)
    costed = problem.group_cost[problem.group_cost > 0]
    window = int(costed.min()) if len(costed) else 1
    free = problem.query_cost == 0
    waiting: dict[int, list[_Batch]] = {0: [_Batch(np.zeros(1, np.int64), _pack(free[None, :]), np.full(1, -1))]}
    steps = [0]
    best: list[tuple[int, int, Words]] = []
    seen = 0
    complete = True
    while steps:
        batch = _distinct(waiting.pop(heapq.heappop(steps)))
        seen += len(batch.cost)
        _note_best(best, batch, _unpack(batch.words, len(weight)) @ weight)
        if seen > most_candidates:
            complete = False
            break
        for start in range(0, len(batch.cost), _ROWS):
            grown = _extend(problem.capacity, needs, group_cost, batch.rows(slice(start, start + _ROWS)))
            for place, piece in _by_window(grown, window):
                if place not in waiting:
                    heapq.heappush(steps, place)
                waiting.setdefault(place, []).append(piece)
    return Frontier(
        cost=np.array([one[0] for one in best], np.int64),
        priority=np.array([one[1] for one in best], np.int64),
        queries=np.array([one[2] for one in best]),
        complete=complete,
        candidates=seen,
    )


@dataclass(frozen=True, slots=True)
class _Batch:
    """Candidate plans side by side."""

    cost: Ints
    words: Words
    last: Ints
    """The query added last; only later ones are added."""

    def rows(self, which: slice | Ints) -> _Batch:
        return _Batch(self.cost[which], self.words[which], self.last[which])


def _extend(capacity: int, needs: Floats, group_cost: Floats, batch: _Batch) -> _Batch:
    """Extend each candidate by each later query that fits; sets are closed, costs are new."""
    queries = needs.shape[0]
    has_query = _unpack(batch.words, queries)
    missing = (has_query.astype(float) @ needs == 0) * group_cost
    further = missing @ needs.T
    later = np.arange(queries) > batch.last[:, None]
    row, query = np.nonzero(later & ~has_query & (further <= (capacity - batch.cost)[:, None]))
    total = batch.cost[row] + further[row, query].astype(np.int64)
    # Queries that the new partitions complete on the way belong to the set.
    whole = np.empty((len(row), queries), bool)
    for start in range(0, len(row), _ROWS):
        part = slice(start, start + _ROWS)
        whole[part] = (missing[row[part]] * (needs[query[part]] == 0)) @ needs.T == 0
    return _Batch(total, _pack(whole), query)


def _by_window(batch: _Batch, window: int) -> list[tuple[int, _Batch]]:
    if not len(batch.cost):
        return []
    place = batch.cost // window
    order = np.argsort(place, kind="stable")
    ends = np.flatnonzero(np.diff(place[order])) + 1
    return [(int(place[part[0]]), batch.rows(part)) for part in np.split(order, ends)]


def _distinct(pieces: list[_Batch]) -> _Batch:
    """Put pieces together and drop repeated sets (the same set has the same cost), keeping the most ways to go on."""
    words = np.concatenate([piece.words for piece in pieces])
    last = np.concatenate([piece.last for piece in pieces])
    order = np.lexsort((last, *words.T))
    changes = (words[order[1:]] != words[order[:-1]]).any(axis=1)
    first = order[np.concatenate([[True], changes])]
    return _Batch(np.concatenate([piece.cost for piece in pieces])[first], words[first], last[first])


def _note_best(best: list[tuple[int, int, Words]], batch: _Batch, priority: Floats) -> None:
    """Keep, in order of cost, the plans that restore more than every cheaper one."""
    highest = best[-1][1] if best else -1
    better = np.flatnonzero(priority > highest)
    for place in better[np.lexsort((-priority[better], batch.cost[better]))].tolist():
        if priority[place] > highest:
            highest = int(priority[place])
            best.append((int(batch.cost[place]), highest, batch.words[place]))


def _pack(sets: Mask) -> Words:
    width = -(-max(1, sets.shape[1]) // 64) * 64
    padded = np.zeros((len(sets), width), bool)
    padded[:, : sets.shape[1]] = sets
    return np.packbits(padded, axis=1, bitorder="little").view(np.uint64)


def _unpack(words: Words, count: int) -> Mask:
    return np.unpackbits(words.view(np.uint8), axis=1, count=count, bitorder="little").astype(bool)
