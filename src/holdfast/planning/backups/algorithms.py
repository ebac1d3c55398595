"""Backup plans by the name of an algorithm (FTC, and past it). Runs anywhere; the clock is an argument."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from holdfast.errors import BadInput
from holdfast.planning.backups.dag import dag_backups
from holdfast.planning.backups.domains import domain_backups, repaired
from holdfast.planning.backups.exact import ExactBackups, exact_backups, quick_bound
from holdfast.planning.backups.exhaustive import exhaustive_backups
from holdfast.planning.backups.line_tree import is_forest, is_lines, line_backups, tree_backups
from holdfast.planning.backups.model import BackupProblem, Mask, check_backups, require_feasible
from holdfast.planning.backups.replan import Replanned, replanned
from holdfast.planning.backups.share import share_backups
from holdfast.topology import Floats, Ints


class BackupAlgorithm(StrEnum):
    """The algorithms, by the names people give."""

    AUTO = "auto"
    LINE = "line"
    TREE = "tree"
    DAG = "dag"
    SHARE = "share"
    EXHAUSTIVE = "exhaustive"
    EXACT = "exact"


@dataclass(frozen=True, slots=True)
class BackupPlan:
    """Which partitions keep a backup, and the result of the checker."""

    algorithm: BackupAlgorithm
    """The one that made it; never auto."""
    backups: Ints
    latency: Floats
    """Guaranteed seconds, per partition."""
    worst: float
    optimal: bool
    bound: int
    """No set with fewer backups meets the latency."""
    changes: Replanned | None = None
    """Against the previous plan, where one was given."""

    @property
    def count(self) -> int:
        """How many backups there are."""
        return len(self.backups)


BY_NAME: dict[BackupAlgorithm, Callable[[BackupProblem], Mask]] = {
    BackupAlgorithm.LINE: line_backups,
    BackupAlgorithm.TREE: tree_backups,
    BackupAlgorithm.DAG: dag_backups,
    BackupAlgorithm.SHARE: share_backups,
    BackupAlgorithm.EXHAUSTIVE: exhaustive_backups,
}
"""The algorithms that need no time limit, as functions of partitions that fail alone (exhaustive: also of domains)."""
_OPTIMAL_ALONE = {BackupAlgorithm.LINE, BackupAlgorithm.TREE, BackupAlgorithm.EXHAUSTIVE}
"""Optimal when partitions fail alone; exhaustive also when domains fail."""


def plan_backups(
    problem: BackupProblem,
    algorithm: BackupAlgorithm = BackupAlgorithm.AUTO,
    *,
    clock: Callable[[], float],
    seconds: float = 10.0,
    previous: Mask | None = None,
    workers: int = 1,
) -> BackupPlan:
    """Return a plan that meets the latency, or raise NoPlan with the partition that takes too long.

    `seconds` bounds exact; then the best set found comes with a bound. `previous` (auto and exact) is a set in use: of
    all fewest sets, the plan is one that changes as little of it as possible.
    """
    require_feasible(problem)
    chosen = _for_shape(problem, previous) if algorithm is BackupAlgorithm.AUTO else algorithm
    changes = None
    if chosen is BackupAlgorithm.EXACT:
        if previous is None:
            found = fewest_backups(problem, clock, seconds, workers=workers)
        else:
            found, changes = replanned(problem, previous, fewest_backups, clock, seconds, workers)
    else:
        if previous is not None:
            raise BadInput(
                f"algorithm {chosen} does not use a previous plan", field="--previous", remedy="use auto or exact"
            )
        found = _by_name(problem, chosen, clock, seconds)
    check = check_backups(problem, found.backups)
    assert check.meets, f"{chosen} made a plan the checker refuses: {problem.topology.partitions(check.late[:3])}"
    return BackupPlan(
        algorithm=chosen,
        backups=np.flatnonzero(found.backups),
        latency=check.latency,
        worst=check.worst,
        optimal=found.optimal,
        bound=found.bound,
        changes=changes,
    )


def _for_shape(problem: BackupProblem, previous: Mask | None) -> BackupAlgorithm:
    """Return the linear-time algorithm where it is optimal, else exact."""
    if problem.has_domains or previous is not None or not is_forest(problem):
        return BackupAlgorithm.EXACT
    return BackupAlgorithm.LINE if is_lines(problem) else BackupAlgorithm.TREE


def _by_name(
    problem: BackupProblem, algorithm: BackupAlgorithm, clock: Callable[[], float], seconds: float
) -> ExactBackups:
    made = BY_NAME[algorithm](problem)
    count = int(made.sum())
    if algorithm is BackupAlgorithm.EXHAUSTIVE:
        return ExactBackups(made, count, count)
    # Without domains fewer could do, so what is optimal then bounds what is needed with them.
    bound = count if algorithm in _OPTIMAL_ALONE else min(count, quick_bound(problem))
    if problem.has_domains and not check_backups(problem, made).meets:
        made = repaired(problem, made, clock, seconds)
    return ExactBackups(made, int(made.sum()), bound)


def fewest_backups(
    problem: BackupProblem,
    clock: Callable[[], float],
    seconds: float,
    *,
    cost: Ints | None = None,
    workers: int = 1,
) -> ExactBackups:
    """Return a fewest (or cheapest) set, with failure domains where the topology names them."""
    until = clock() + seconds
    alone = exact_backups(problem, clock, seconds * (0.4 if problem.has_domains else 1.0), cost=cost, workers=workers)
    if not problem.has_domains or check_backups(problem, alone.backups).meets:
        return alone
    return domain_backups(
        problem, clock, until - clock(), start=alone.backups, bound=alone.bound, cost=cost, workers=workers
    )
