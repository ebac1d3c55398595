"""The recovery planners by name. Pure."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from holdfast.planning.recovery.best_density import best_density
from holdfast.planning.recovery.dp import recovery_dp
from holdfast.planning.recovery.exact import TIME_LIMIT, recovery_exact
from holdfast.planning.recovery.operator_centric import operator_centric
from holdfast.planning.recovery.problem import RecoveryPlan, RecoveryProblem

Planner = Callable[[RecoveryProblem], RecoveryPlan]


class RecoveryAlgorithm(StrEnum):
    """How recovery plans are made (incremental recovery, sec. 5 and 6)."""

    BEST_DENSITY = "best-density"
    DP = "dp"
    OPERATOR_CENTRIC = "operator-centric"
    EXACT = "exact"


def planner_of(algorithm: RecoveryAlgorithm, *, time_limit: float = TIME_LIMIT) -> Planner:
    """Return the planner of a name; the time limit is for `exact`."""
    planners: dict[RecoveryAlgorithm, Planner] = {
        RecoveryAlgorithm.BEST_DENSITY: best_density,
        RecoveryAlgorithm.DP: recovery_dp,
        RecoveryAlgorithm.OPERATOR_CENTRIC: operator_centric,
        RecoveryAlgorithm.EXACT: lambda problem: recovery_exact(problem, time_limit=time_limit),
    }
    return planners[algorithm]
