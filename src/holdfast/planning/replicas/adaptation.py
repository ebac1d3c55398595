"""When rates change: whether to change the replica plan, and how, without flapping (PPA, sec. V-C, left open).

Runs anywhere. An observation is the topology with its rates of now. The plan in place stays until it has less than
(1 - tolerance) of what a fresh plan would reach, in `patience` observations one after the other. Then the cheapest
change is made that reaches (1 - margin) of it. Margin is smaller than tolerance: after a change the plan lies well
above the line at which the next one would be considered, so noise does not carry it back. A change that gains too
little for its cost is not made either. A plan that breaks its budget, or names partitions that are gone, is put right
at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.errors import BadInput
from holdfast.ids import PartitionId
from holdfast.planning.replicas.change import cheapest_change
from holdfast.planning.replicas.exchange import pruned
from holdfast.planning.replicas.fidelity import LossModel, Metric
from holdfast.planning.replicas.structure_aware import StructureAware, better_of, structure_aware
from holdfast.topology import Floats, Topology


@dataclass(frozen=True, slots=True)
class AdaptationSettings:
    """When a change is made. Shares are of what a fresh plan would reach."""

    tolerance: float = 0.10
    """A plan is left alone while it lacks no more than this share."""
    margin: float = 0.03
    """A change brings it back to within this share."""
    patience: int = 3
    """So many observations in a row must ask for a change."""
    least_gain_per_cost: float = 0.0
    """A change must raise the metric by this much per unit of start cost."""

    def __post_init__(self) -> None:
        if not 0 <= self.margin < self.tolerance < 1:
            raise BadInput(
                f"margin {self.margin:g} and tolerance {self.tolerance:g} leave no room between them",
                remedy="give 0 <= margin < tolerance < 1, or plans will flap",
            )
        if self.patience < 1 or self.least_gain_per_cost < 0:
            raise BadInput("patience must be 1 or more and gain 0 or more", remedy="leave them out for the defaults")


@dataclass(frozen=True, slots=True)
class AdaptationState:
    """What is remembered between observations."""

    replicas: tuple[PartitionId, ...]
    lacking: int = 0
    """How many observations in a row have asked for a change."""


@dataclass(frozen=True, slots=True)
class Adaptation:
    """What to do after one observation, and why."""

    start: tuple[PartitionId, ...]
    stop: tuple[PartitionId, ...]
    value_before: float
    """Of the plan in place, with the rates of now."""
    value: float
    """Of the plan after the change."""
    reachable: float
    """What the best plan known for the rates of now has."""
    cost: float
    """Of what is started."""
    reason: str

    @property
    def changed(self) -> bool:
        """Whether anything is started or stopped."""
        return bool(self.start or self.stop)


def adapt(
    state: AdaptationState,
    topology: Topology,
    budget: int,
    *,
    settings: AdaptationSettings | None = None,
    metric: Metric = Metric.FIDELITY,
    start_cost: Floats | None = None,
) -> tuple[AdaptationState, Adaptation]:
    """Take one observation; return the state after it and what to do. `start_cost` is per partition, 1 by default."""
    settings = settings or AdaptationSettings()
    model = LossModel(topology, metric)
    cost = np.ones(len(topology)) if start_cost is None else np.asarray(start_cost, float)
    if cost.shape != (len(topology),) or not (cost >= 0).all():
        raise BadInput("start costs are one number of zero or more per partition", remedy="leave them out for 1 each")
    known = set(topology.partitions())
    gone = [one for one in state.replicas if one not in known]
    standing = [topology.index(one) for one in state.replicas if one in known]
    fitting = pruned(model, standing, budget) if len(standing) > budget else standing
    before = model.value_of(fitting)
    fresh = structure_aware(model, budget)
    # The plan in place may be the better start.
    fresh = better_of(model, fresh, StructureAware(model).exchanged(fitting, budget))
    reachable = max(before, model.value_of(fresh))

    forced = "partitions are gone" if gone else "the budget is smaller" if len(fitting) < len(standing) else ""
    lacks = before < (1 - settings.tolerance) * reachable
    lacking = state.lacking + 1 if lacks else 0
    chosen = fitting
    if not lacks:
        reason = f"{metric} {before:.4g} is within {settings.tolerance:.0%} of {reachable:.4g}"
    elif lacking < settings.patience and not forced:
        reason = f"{metric} {before:.4g} of {reachable:.4g}: waiting, {lacking} of {settings.patience}"
    else:
        goal = (1 - settings.margin) * reachable
        change = cheapest_change(model, fitting, budget, goal, cost, fresh)
        spent = float(cost[[p for p in change if p not in set(fitting)]].sum())
        gain = model.value_of(change) - before
        if not forced and gain < settings.least_gain_per_cost * spent:
            reason = f"a gain of {gain:.4g} is not worth {spent:g}"
        else:
            chosen, lacking = change, 0
            reason = f"{metric} was {before:.4g} of {reachable:.4g}"
    if forced:
        reason = f"{forced}; {reason}"
    return _outcome(state, topology, model, chosen, lacking, before, reachable, cost, reason)


def _outcome(
    state: AdaptationState,
    topology: Topology,
    model: LossModel,
    chosen: Sequence[int],
    lacking: int,
    before: float,
    reachable: float,
    cost: Floats,
    reason: str,
) -> tuple[AdaptationState, Adaptation]:
    names = tuple(topology.partitions(chosen))
    start = tuple(one for one in names if one not in set(state.replicas))
    stop = tuple(one for one in state.replicas if one not in set(names))
    value = model.value_of(chosen)
    spent = float(cost[topology.indices(start)].sum())
    done = Adaptation(start, stop, before, value, max(reachable, value), spent, reason)
    return AdaptationState(names, lacking), done
