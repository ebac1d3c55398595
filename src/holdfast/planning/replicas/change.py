"""The cheapest change of a replica plan that reaches a goal: what to start and what to stop. Runs anywhere.

PPA, sec. V-C, leaves this open. Starting a replica costs: its checkpoint is sent and replayed. Stopping one is
free. So among plans that reach the goal, one is wanted whose new replicas cost least. Where the plans are few, all are
tried and it is the cheapest. Beyond that, more and more of the present plan is given up, least useful first, the rest
is extended, and what is not needed for the goal is not started; the cheapest found is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, combinations, islice
from math import comb

import numpy as np

from holdfast.planning.replicas.completion import present
from holdfast.planning.replicas.exchange import pruned
from holdfast.planning.replicas.fidelity import LossModel
from holdfast.planning.replicas.structure_aware import StructureAware
from holdfast.topology import Floats

MOST_TRIED = 20_000
_CHUNK = 8_192


def cheapest_change(
    model: LossModel, previous: Sequence[int], budget: int, goal: float, start_cost: Floats, fresh: Sequence[int]
) -> list[int]:
    """Return a plan within the budget that reaches the goal with few starts; `fresh` is one that does."""
    count = len(model.topology)
    if sum(comb(count, size) for size in range(budget + 1)) <= MOST_TRIED:
        return _cheapest_of_all(model, previous, budget, goal, start_cost)
    had = set(previous)
    planner = StructureAware(model)
    best = _without_needless_starts(model, list(fresh), had, goal, start_cost)
    least = _cost(best, had, start_cost)
    given_up = 0
    while given_up <= len(had):
        kept = pruned(model, previous, min(budget, len(had) - given_up))
        other = planner.extended(kept, budget)
        if model.value_of(other) >= goal:
            other = _without_needless_starts(model, other, had, goal, start_cost)
            if _cost(other, had, start_cost) < least:
                best, least = other, _cost(other, had, start_cost)
        given_up = max(1, given_up * 2)
    return best


def _cheapest_of_all(
    model: LossModel, previous: Sequence[int], budget: int, goal: float, start_cost: Floats
) -> list[int]:
    """Try every plan: the cheapest that reaches the goal, the best of those that cost the same."""
    count = len(model.topology)
    new_cost = start_cost.copy()
    new_cost[list(previous)] = 0.0
    plans = chain.from_iterable(combinations(range(count), size) for size in range(budget + 1))
    best: tuple[int, ...] = ()
    rank = (np.inf, 0.0)
    while chunk := list(islice(plans, _CHUNK)):
        sets = np.zeros((len(chunk), count), bool)
        for row, plan in enumerate(chunk):
            sets[row, list(plan)] = True
        values = model.values(sets)
        costs = np.where(values >= goal, sets @ new_cost, np.inf)
        at = int(np.lexsort((-values, costs))[0])
        if np.isfinite(costs[at]) and (costs[at], -values[at]) < rank:
            best, rank = chunk[at], (float(costs[at]), -float(values[at]))
    # What was there and costs nothing to keep stays while it fits: stopping it would gain nothing.
    spare = [p for p in previous if p not in best][: budget - len(best)]
    return [*best, *spare]


def _without_needless_starts(
    model: LossModel, plan: list[int], had: set[int], goal: float, start_cost: Floats
) -> list[int]:
    """Leave out new replicas, dearest per loss first, as long as the goal is reached."""
    alive = model.only(plan)
    while True:
        now = present(model, alive)
        loss = now.kept * now.slope
        spare = float(model.weight @ now.kept) - goal
        new = [p for p in plan if alive[p] and p not in had and loss[p] <= spare]
        for p in sorted(new, key=lambda one: (loss[one] / max(float(start_cost[one]), 1e-12), -start_cost[one], one)):
            alive[p] = False
            if model.value(alive) >= goal:
                break
            alive[p] = True
        else:
            return [p for p in plan if alive[p]]


def _cost(plan: Sequence[int], had: set[int], start_cost: Floats) -> float:
    return float(sum(start_cost[p] for p in plan if p not in had))
