"""Which partitions to replicate within a budget: the four algorithms of PPA behind one call. Runs anywhere."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from holdfast.errors import BadInput
from holdfast.planning.replicas.dp import dp
from holdfast.planning.replicas.exact import exact, relaxed_bound
from holdfast.planning.replicas.fidelity import LossModel, Metric
from holdfast.planning.replicas.fidelity_gradient import entangled
from holdfast.planning.replicas.greedy import greedy
from holdfast.planning.replicas.plan import ReplicaPlan, checked, replica_plan
from holdfast.planning.replicas.structure_aware import structure_aware
from holdfast.topology import Topology, smallest_mc_tree_size

BOUND_SECONDS = 2.0
"""How long a planner that proves nothing may look for a bound on what could be reached."""


class ReplicaAlgorithm(StrEnum):
    """How replicas are chosen."""

    STRUCTURE_AWARE = "structure-aware"
    DP = "dp"
    GREEDY = "greedy"
    EXACT = "exact"


def plan_replicas(
    topology: Topology,
    budget: int,
    *,
    clock: Callable[[], float],
    algorithm: ReplicaAlgorithm = ReplicaAlgorithm.STRUCTURE_AWARE,
    metric: Metric = Metric.FIDELITY,
    seconds: float = 60.0,
    with_bound: bool = True,
) -> ReplicaPlan:
    """Choose at most `budget` partitions to replicate; `seconds` limits dp and exact by the clock given.

    A budget below the smallest MC-tree keeps no output alive: the plan then holds no replicas and fidelity 0. (Greedy
    spends its budget all the same, as the paper has it.)
    """
    if budget < 0:
        raise BadInput(f"a budget of {budget} replicas is not possible", remedy="give a whole number of zero or more")
    model = LossModel(topology, metric)
    limit = min(budget, len(topology))
    end = clock() + seconds
    bound, optimal = 1.0, False
    if algorithm is ReplicaAlgorithm.EXACT:
        best = exact(model, limit, seconds, structure_aware(model, limit))
        chosen, bound, optimal = list(best.replicas), best.bound, best.optimal
    elif algorithm is ReplicaAlgorithm.DP:
        result = dp(model, limit, out_of_time=lambda: clock() > end)
        chosen, optimal = list(result.replicas), result.complete
    elif algorithm is ReplicaAlgorithm.GREEDY:
        chosen = greedy(model, limit)
    else:
        chosen = structure_aware(model, limit)
    if optimal or _no_tree_fits(model, limit):
        bound = 0.0  # what it has is the bound
    elif algorithm is not ReplicaAlgorithm.EXACT and with_bound:
        bound = relaxed_bound(model, limit, BOUND_SECONDS)
    plan = replica_plan(
        topology,
        algorithm.value,
        metric,
        budget,
        chosen,
        bound=bound,
        optimal=optimal,
        useful_only=algorithm is not ReplicaAlgorithm.GREEDY,
    )
    return checked(topology, plan)


def _no_tree_fits(model: LossModel, budget: int) -> bool:
    """Return whether surely no plan keeps an output alive; the size is exact where no branches meet again in a join."""
    if model.metric is not Metric.FIDELITY or len(entangled(model)):
        return False
    return budget < smallest_mc_tree_size(model.topology)
