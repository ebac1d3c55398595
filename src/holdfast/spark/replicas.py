"""Which partitions of a run have a replica: by a budget, by name, or by a joint plan. Runs on the driver."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from holdfast.errors import BadInput
from holdfast.ids import PartitionId
from holdfast.planning.replicas.adaptation import AdaptationSettings
from holdfast.planning.replicas.algorithms import ReplicaAlgorithm
from holdfast.planning.replicas.budget import ReplicaBudget, plan_within
from holdfast.planning.replicas.fidelity import LossModel
from holdfast.planning.replicas.following import Planned, ReplicaRules
from holdfast.recovery.copies import refused
from holdfast.recovery.strategy import RecoveryStrategy
from holdfast.runtime.coordinator.adapting import FollowingPlans
from holdfast.runtime.program import Program
from holdfast.spark.settings import PREFIX, Settings
from holdfast.topology import Topology
from holdfast.wording import counted


@dataclass(frozen=True, slots=True)
class PlannedReplicas:
    """The replicas of a joint plan."""

    partitions: tuple[PartitionId, ...]
    fixed: tuple[PartitionId, ...] = ()
    """Those of them that recovery times rest on: they stay whatever rates are."""
    cores: float | None = None
    """What those that follow rates may cost; None: their number counts."""


@dataclass(frozen=True, slots=True)
class ChosenReplicas:
    """Who has a replica at the start, and how that may change."""

    replicas: tuple[PartitionId, ...] = ()
    """The most valuable first."""
    lines: tuple[str, ...] = ()
    """For people."""
    rules: ReplicaRules | None = None
    """What later plans keep to; None: the replicas stay as they are."""
    planned: Planned = field(default_factory=lambda: Planned(()))

    def following(
        self, settings: Settings, *, clock: Callable[[], float] = time.monotonic, log: Callable[[str], object]
    ) -> FollowingPlans | None:
        """Return what lets the plan follow measured rates; None: it stays as it is."""
        if self.rules is None:
            return None
        seconds = settings.replicas_adapt_seconds
        return FollowingPlans(self.rules, self.planned, seconds=seconds, clock=clock, beside=True, log=log)


def choose_replicas(
    settings: Settings,
    program: Program,
    strategy: RecoveryStrategy,
    *,
    measured: Topology | None = None,
    plan: PlannedReplicas | None = None,
) -> ChosenReplicas:
    """Choose the partitions that have a replica. `measured` is the topology as an earlier driver measured it.

    A budget that somebody has set goes before the `plan`.
    """
    budgeted = settings.replicas_budget is not None
    if not budgeted and not settings.replicas_partitions and (plan is None or not plan.partitions):
        return ChosenReplicas()
    _check_goes_together(settings, strategy, planned=plan is not None and not budgeted)
    following = _following(settings)
    topology = program.topology if measured is None else measured

    def deterministic(partition: PartitionId) -> bool:
        return program.operators[partition.operator].deterministic

    none_of = frozenset(refused(deterministic, program.partitions))
    named = _named(settings.replicas_partitions, program)
    if others := [p for p in named if p in none_of]:
        raise BadInput(
            f"{others[0]} is not deterministic: a replica might make other rows",
            field=f"{PREFIX}replicas.partitions",
            remedy="leave it out, or make its operator and those before it deterministic",
        )
    lines: list[str] = []
    if not budgeted and (plan is None or not plan.partitions):
        return ChosenReplicas(tuple(named), (f"replicas of {counted(len(named), 'partition')}, as named",))
    if settings.replicas_budget is not None:
        budget = ReplicaBudget.parse(settings.replicas_budget)
        algorithm = ReplicaAlgorithm(settings.replicas_algorithm)
        try:
            found = plan_within(topology, budget, algorithm, clock=time.monotonic)
        except BadInput as bad:
            raise BadInput(bad.what, field=f"{PREFIX}replicas.budget", remedy=bad.remedy) from None
        chosen, fixed, by, fidelity = found.replicas, tuple(named), str(found.algorithm), found.fidelity
    else:
        assert plan is not None
        fixed = tuple(dict.fromkeys((*named, *plan.fixed)))
        chosen, by = tuple(p for p in plan.partitions if p not in fixed), "the plan's"
        budget = ReplicaBudget(count=len(chosen)) if plan.cores is None else ReplicaBudget(cores=plan.cores)
        fidelity = LossModel(topology).value_of([topology.index(p) for p in plan.partitions])
    lines += _left_out(chosen, none_of)
    rules = ReplicaRules(budget, fixed, none_of, following or AdaptationSettings())
    planned = Planned(tuple(chosen))
    replicas = planned.replicas(rules)
    rates = "" if measured is None else ", by the rates measured before"
    lines.append(
        f"replicas of {counted(len(replicas), 'partition')} ({by}{rates}): with nothing else left, outputs keep "
        f"a fidelity of {fidelity:.2f}"
    )
    return ChosenReplicas(replicas, tuple(lines), None if following is None or not chosen else rules, planned)


def _following(settings: Settings) -> AdaptationSettings | None:
    """Return when a plan is changed; None: never."""
    if not settings.replicas_adapt_seconds:
        return None
    try:
        return AdaptationSettings(settings.replicas_tolerance, settings.replicas_margin, settings.replicas_patience)
    except BadInput as bad:
        raise BadInput(bad.what, field=f"{PREFIX}replicas.margin", remedy=bad.remedy) from None


def _left_out(chosen: Collection[PartitionId], none_of: Collection[PartitionId]) -> list[str]:
    others = [str(p) for p in chosen if p in none_of]
    return [f"no replica of {', '.join(others)}: not deterministic, so a replica might make other rows"] * bool(others)


def _check_goes_together(settings: Settings, strategy: RecoveryStrategy, *, planned: bool) -> None:
    field_name = f"{PREFIX}replicas.{'partitions' if settings.replicas_partitions else 'budget'}"
    if planned:
        field_name = "plan"
    if settings.exchange != "resident":
        raise BadInput(
            "replicas need tasks that stay", field=field_name, remedy=f"set {PREFIX}exchange=resident, or no replicas"
        )
    if strategy is RecoveryStrategy.SOURCE_REPLAY:
        raise BadInput(
            "with source-replay every failure takes everything back, and a replica is of no use",
            field=field_name,
            remedy=f"set another {PREFIX}recovery.strategy, or no replicas",
        )


def _named(names: tuple[str, ...], program: Program) -> list[PartitionId]:
    """Return the partitions that are named, one by one or by their operators."""
    found: dict[PartitionId, None] = {}
    for name in names:
        mine = [p for p in program.partitions if name in (str(p), str(p.operator))]
        if not mine:
            raise BadInput(
                f"there is no partition or operator {name}",
                field=f"{PREFIX}replicas.partitions",
                remedy=f"operators are {', '.join(dict.fromkeys(str(p.operator) for p in program.partitions))}",
            )
        found.update(dict.fromkeys(mine))
    return list(found)
