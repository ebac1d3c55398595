"""A run's replica plan after one more measurement: budgets of any kind, partitions that may have none. Pure.

`adapt` decides by fidelity and a count. Here a budget may be a share or cores as well, and some replicas are fixed:
named by a user, or what the recovery times of a joint plan rest on. Partitions that cannot have one (they are not
deterministic) are planned like the others and left out, as at a start.

A budget in cores goes by measured costs, which are never twice the same. So the plan in place may cost up to the
tolerance more than the budget before anything stops; a plan with anything new in it is always within it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from holdfast.errors import BadInput
from holdfast.ids import PartitionId
from holdfast.planning.replicas.adaptation import AdaptationSettings, AdaptationState, adapt
from holdfast.planning.replicas.algorithms import ReplicaAlgorithm
from holdfast.planning.replicas.budget import ReplicaBudget, cost_of, plan_within
from holdfast.planning.replicas.exchange import pruned
from holdfast.planning.replicas.fidelity import LossModel
from holdfast.topology import Floats, Topology


@dataclass(frozen=True, slots=True)
class ReplicaRules:
    """What a run's replica plan keeps to."""

    budget: ReplicaBudget
    fixed: tuple[PartitionId, ...] = ()
    """Replicas that stay whatever the rates are, beside the budget."""
    refused: frozenset[PartitionId] = frozenset()
    """Partitions that cannot have one."""
    settings: AdaptationSettings = field(default_factory=AdaptationSettings)


@dataclass(frozen=True, slots=True)
class Planned:
    """A run's replica plan, and what is remembered between measurements."""

    chosen: tuple[PartitionId, ...]
    """Within the budget, those that cannot have a replica among them."""
    lacking: int = 0
    """How many measurements in a row have asked for a change."""

    def replicas(self, rules: ReplicaRules) -> tuple[PartitionId, ...]:
        """Return who is to have a replica: the fixed ones first."""
        return tuple(p for p in dict.fromkeys((*rules.fixed, *self.chosen)) if p not in rules.refused)


@dataclass(frozen=True, slots=True)
class Followed:
    """What follows from one measurement."""

    planned: Planned
    exceeded: bool
    """Whether the plan before is beyond the budget, so that what stops must stop at once."""
    reason: str


def follow(rules: ReplicaRules, before: Planned, topology: Topology, *, clock: Callable[[], float]) -> Followed:
    """Take one measurement of the topology; return the plan from now on. `clock` bounds what planning may take."""
    tolerance, held = rules.settings.tolerance, list(before.chosen)
    count, cores, exceeded = rules.budget.count_for(topology), rules.budget.cores or 0.0, False
    if count is None:
        exceeded = cost_of(topology, held) > cores * (1 + tolerance) + 1e-9
        if exceeded:
            held = _within(topology, held, cores)
        try:
            fresh = plan_within(topology, rules.budget, ReplicaAlgorithm.STRUCTURE_AWARE, clock=clock).replicas
        except BadInput:  # with the costs of now it keeps no output alive: what is there stays
            fresh = ()
        count = max(len(fresh), len(held))
    exceeded |= len(held) > count
    state, found = adapt(
        AdaptationState(tuple(held), before.lacking),
        topology,
        count,
        settings=rules.settings,
        start_cost=_start_cost(topology),
    )
    chosen = list(state.replicas)
    if rules.budget.cores is not None and not set(chosen) <= set(held):
        chosen = _within(topology, chosen, cores)
    return Followed(Planned(tuple(chosen), state.lacking), exceeded, found.reason)


def _within(topology: Topology, replicas: Sequence[PartitionId], cores: float) -> list[PartitionId]:
    """Return as many of these replicas as fit, those that keep the most."""
    model, left = LossModel(topology), [int(p) for p in topology.indices(replicas)]
    while left and float(topology.cost[left].sum()) > cores + 1e-9:
        left = pruned(model, left, len(left) - 1)
    return topology.partitions(left)


def _start_cost(topology: Topology) -> Floats:
    """Return what starting a replica costs: one, and more where there is more state to bring over."""
    state = np.array([operator.state_bytes / operator.parallelism for operator in topology.operators])
    each: Floats = state[topology.operator_of]
    mean = float(each.mean())
    return np.ones(len(topology)) if mean <= 0 else 1.0 + each / mean
