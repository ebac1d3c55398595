"""Replica plans, and the one checker of their validity and value. Runs anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.errors import CheckFailed
from holdfast.ids import PartitionId
from holdfast.planning.replicas.completion import present
from holdfast.planning.replicas.fidelity import LossModel, Metric
from holdfast.topology import Topology

_SAME = 1e-9


@dataclass(frozen=True, slots=True)
class ReplicaPlan:
    """Which partitions get a replica, and what survives when everything without one has failed."""

    algorithm: str
    metric: Metric
    budget: int
    replicas: tuple[PartitionId, ...]
    """In the order they were chosen, where the algorithm has one."""
    fidelity: float
    completeness: float
    bound: float
    """No plan within the budget has more of the metric."""
    optimal: bool
    """Whether this one has as much as any could."""

    @property
    def value(self) -> float:
        """What was maximised."""
        return self.fidelity if self.metric is Metric.FIDELITY else self.completeness


def replica_plan(
    topology: Topology,
    algorithm: str,
    metric: Metric,
    budget: int,
    replicas: Sequence[int],
    *,
    bound: float,
    optimal: bool,
    useful_only: bool,
) -> ReplicaPlan:
    """Make a plan of partition numbers; `useful_only` leaves out replicas without which the plan is worth as much."""
    models = {one: LossModel(topology, one) for one in Metric}
    chosen = list(replicas)
    if useful_only:
        chosen = _useful(models[metric], chosen)
    values = {one: model.value_of(chosen) for one, model in models.items()}
    bound = max(bound, values[metric])
    return ReplicaPlan(
        algorithm=algorithm,
        metric=metric,
        budget=budget,
        replicas=tuple(topology.partitions(chosen)),
        fidelity=values[Metric.FIDELITY],
        completeness=values[Metric.COMPLETENESS],
        bound=bound,
        optimal=optimal or values[metric] >= bound,
    )


def _useful(model: LossModel, replicas: list[int]) -> list[int]:
    """Leave out what keeps nothing, or of which nothing reaches a result."""
    now = present(model, model.only(replicas))
    return [p for p in replicas if now.kept[p] > 0 and now.slope[p] > 0]


def problems_of(topology: Topology, plan: ReplicaPlan) -> list[str]:
    """Return everything that is wrong with a plan; nothing: it is valid and has the value it states."""
    found = []
    if len(set(plan.replicas)) != len(plan.replicas):
        found.append("a partition has two replicas")
    if len(plan.replicas) > plan.budget:
        found.append(f"{len(plan.replicas)} replicas for a budget of {plan.budget}")
    known = set(topology.partitions())
    unknown = [one for one in plan.replicas if one not in known]
    if unknown:
        return [*found, f"{unknown[0]} is not in {topology.name}"]
    replicas = topology.indices(plan.replicas).tolist()
    for metric, claimed in ((Metric.FIDELITY, plan.fidelity), (Metric.COMPLETENESS, plan.completeness)):
        value = LossModel(topology, metric).value_of(replicas)
        if abs(value - claimed) > _SAME:
            found.append(f"{metric} is {value:.9g}, not {claimed:.9g}")
    if plan.value > plan.bound + _SAME:
        found.append(f"{plan.metric} {plan.value:.9g} exceeds its bound {plan.bound:.9g}")
    if plan.optimal and plan.value < plan.bound - 2e-6:
        found.append(f"marked optimal, but its value is {plan.value:.9g} and its bound {plan.bound:.9g}")
    return found


def checked(topology: Topology, plan: ReplicaPlan) -> ReplicaPlan:
    """Return a plan that is valid; refuse one that is not. No plan is printed or run unchecked."""
    if problems := problems_of(topology, plan):
        raise CheckFailed(f"the {plan.algorithm} plan failed its check: {problems[0]}", remedy="report this as a bug")
    return plan
