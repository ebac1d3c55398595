"""The fewest literals that hit every late path of a core: CP-SAT over the paths met so far. Runs anywhere.

An implicit hitting set: solve over the paths known, find partitions that are still late, add their paths, solve again.
Every round's optimum is a proven bound, since it obeys only some of the paths; the first one after which no partition
is late is a fewest set. The linear relaxation (`paths`) has found nearly all paths that matter before this
starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from ortools.sat.python import cp_model

from holdfast.planning.backups.core import Answer, CoreSearch, Literal
from holdfast.planning.backups.paths import PathSearch, pack, relax, rounded
from holdfast.topology import Ints

_SEED = 1
_RELAXING = 0.6
"""Part of the time that may go into the relaxation; the rest is CP-SAT's."""


class Choices(Protocol):
    """What is chosen from: literals, node by node and largest T first, and what each costs."""

    @property
    def first(self) -> Ints: ...  # noqa: D102
    @property
    def literals(self) -> list[Literal]: ...  # noqa: D102
    @property
    def costs(self) -> Ints: ...  # noqa: D102
    def chosen(self, answer: Answer) -> Ints: ...  # noqa: D102
    def cost(self, answer: Answer) -> int: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class CoreResult:
    """An answer, what it costs, and a proven lower bound on the cost of any."""

    answer: Answer
    cost: int
    bound: int

    @property
    def optimal(self) -> bool:
        """Whether no answer is cheaper."""
        return self.cost == self.bound


def solve_core(search: CoreSearch, clock: Callable[[], float], until: float, workers: int = 1) -> CoreResult:
    """Return a cheapest answer, or at time `until` the best found and a bound."""
    packing = pack(search)
    best = min(search.completed(search.nothing()), search.completed(packing.answer), key=search.cost)
    now = clock()
    relaxed_until = now + _RELAXING * (until - now)
    relaxation = relax(search, packing, search.cost(best), lambda: relaxed_until - clock())
    best = min(best, rounded(search, relaxation), key=search.cost)
    return _hit(search, best, relaxation.bound, relaxation.paths, clock, until, workers)


def _hit(
    search: CoreSearch,
    best: Answer,
    bound: int,
    paths: Iterable[tuple[Literal, ...]],
    clock: Callable[[], float],
    until: float,
    workers: int,
) -> CoreResult:
    known = dict.fromkeys(paths)
    finder = PathSearch(search)
    while bound < search.cost(best):
        left = until - clock()
        if left <= 0:
            break
        found, proven = hit(search, list(known), best, bound, left, workers)
        bound = max(bound, proven)
        if found is None:
            break
        best = min(best, search.completed(found), key=search.cost)
        late = search.late_paths(found)
        if not late:
            break
        known |= dict.fromkeys(late)
        known |= dict.fromkeys(path for _, path in finder.lightest(search.chosen(found).astype(float)))
    cost = search.cost(best)
    return CoreResult(best, cost, min(bound, cost))


def hit(
    search: Choices, paths: list[tuple[Literal, ...]], best: Answer, bound: int, seconds: float, workers: int
) -> tuple[Answer | None, int]:
    """Return literals that hit these paths and a bound; nothing where none cheaper than `best` was found."""
    model = cp_model.CpModel()
    first = search.first.tolist()
    backed = [model.new_bool_var("") for _ in search.literals]
    for number, (_, level) in enumerate(search.literals):
        if level:
            model.add_implication(backed[number], backed[number - 1])
    for path in paths:
        model.add_bool_or([backed[first[c] + j] for c, j in path])
    total = cp_model.LinearExpr.weighted_sum(backed, search.costs.tolist())
    model.add(total >= bound)
    model.add(total <= search.cost(best))
    model.minimize(total)
    for variable, chosen in zip(backed, search.chosen(best).tolist(), strict=True):
        model.add_hint(variable, chosen)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = _SEED
    # The relaxation over paths is nearly integral: with it in the search, the optimum is proven at once.
    solver.parameters.linearization_level = 2
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        if status == cp_model.UNKNOWN:
            return None, bound
        raise AssertionError(f"CP-SAT returned {solver.status_name(status)} for paths that the best answer hits")
    values = np.array([solver.boolean_value(variable) for variable in backed], np.int64)
    found = np.add.reduceat(values, search.first)
    return found, int(np.ceil(solver.best_objective_bound - 1e-6))
