"""A provably fewest set of backups on any DAG (past FTC, which leaves its optimality open). Runs anywhere.

The problem is reduced to its undecided cores (`reduction`); each core is bounded by its linear relaxation over
paths (`paths`) and closed by CP-SAT (`hitting_set`). Equal cores, as parallel lines make them, are solved
once. When the time is over the best set found comes back with a bound that is proven all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.planning.backups.core import CoreSearch
from holdfast.planning.backups.dag import dag_backups
from holdfast.planning.backups.hitting_set import CoreResult, solve_core
from holdfast.planning.backups.model import BackupProblem, Mask
from holdfast.planning.backups.paths import pack
from holdfast.planning.backups.reduction import Core, reduce
from holdfast.topology import Ints

_DAG_EDGES = 50_000
"""Task edges up to which `dag` answers within a second or so."""


@dataclass(frozen=True, slots=True)
class ExactBackups:
    """A set, what it costs (its size, unless costs were given), and a proven lower bound on any set's cost."""

    backups: Mask
    cost: int
    bound: int

    @property
    def optimal(self) -> bool:
        """Whether no set costs less."""
        return self.cost == self.bound


def exact_backups(
    problem: BackupProblem,
    clock: Callable[[], float],
    seconds: float,
    *,
    cost: Ints | None = None,
    workers: int = 1,
) -> ExactBackups:
    """Return a fewest (or cheapest) set when partitions fail alone; `domains` handles failure domains.

    Costs must agree with sizes: a larger set must never be cheaper. They choose among sets of one size.
    """
    until = clock() + seconds
    reduced = reduce(problem, cost=cost, contract=cost is None)
    certain = int(reduced.certain.sum() if cost is None else cost[reduced.certain].sum())
    known: dict[Core, CoreResult] = {}
    # Small cores first: they are done when a large one takes all the time there is.
    for core in sorted(reduced.cores, key=lambda core: len(core.nodes)):
        if core not in known:
            known[core] = solve_core(CoreSearch(core), clock, until, workers)
    results = [known[core] for core in reduced.cores]
    found = ExactBackups(
        backups=reduced.backups([result.answer.tolist() for result in results]),
        cost=certain + sum(result.cost for result in results),
        bound=certain + sum(result.bound for result in results),
    )
    if found.optimal or cost is not None or problem.topology.task_edges > _DAG_EDGES:
        return found
    # Out of time: never answer with more than the paper's heuristic does.
    heuristic = dag_backups(problem)
    size = int(heuristic.sum())
    return ExactBackups(heuristic, size, min(found.bound, size)) if size < found.cost else found


def quick_bound(problem: BackupProblem) -> int:
    """Return a lower bound on the number of backups in linear time: what is certain, and late paths that never meet."""
    reduced = reduce(problem)
    return int(reduced.certain.sum()) + sum(pack(CoreSearch(core)).bound for core in reduced.cores)
