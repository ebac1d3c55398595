"""Which partitions of a run have a replica: by a budget and a planner, or by name. Runs on the driver."""

from __future__ import annotations

import time

from holdfast.errors import BadInput
from holdfast.ids import PartitionId
from holdfast.planning.replicas.algorithms import ReplicaAlgorithm
from holdfast.planning.replicas.budget import ReplicaBudget, plan_within
from holdfast.recovery.copies import refused
from holdfast.recovery.strategy import RecoveryStrategy
from holdfast.runtime.program import Program
from holdfast.spark.settings import PREFIX, Settings
from holdfast.wording import counted


def replicas_of(
    settings: Settings, program: Program, strategy: RecoveryStrategy
) -> tuple[tuple[PartitionId, ...], list[str]]:
    """Return the partitions that have a replica, the most valuable first, and lines for people."""
    if settings.replicas_budget is None and not settings.replicas_partitions:
        return (), []
    _check_goes_together(settings, strategy)

    def deterministic(partition: PartitionId) -> bool:
        return program.operators[partition.operator].deterministic

    named = _named(settings.replicas_partitions, program)
    if others := refused(deterministic, named):
        raise BadInput(
            f"{others[0]} is not deterministic: a replica might make other rows",
            field=f"{PREFIX}replicas.partitions",
            remedy="leave it out, or make its operator and those before it deterministic",
        )
    lines: list[str] = []
    if settings.replicas_budget is not None:
        try:
            plan = plan_within(
                program.topology,
                ReplicaBudget.parse(settings.replicas_budget),
                ReplicaAlgorithm(settings.replicas_algorithm),
                clock=time.monotonic,
            )
        except BadInput as bad:
            raise BadInput(bad.what, field=f"{PREFIX}replicas.budget", remedy=bad.remedy) from None
        others = refused(deterministic, plan.replicas)
        if others:
            lines.append(
                f"no replica of {', '.join(map(str, others))}: not deterministic, so a replica might make other rows"
            )
        named += [p for p in plan.replicas if p not in others and p not in named]
        lines.append(
            f"replicas of {counted(len(named), 'partition')} ({plan.algorithm}): with nothing else left, outputs keep "
            f"a fidelity of {plan.fidelity:.2f}"
        )
    else:
        lines.append(f"replicas of {counted(len(named), 'partition')}, as named")
    return tuple(named), lines


def _check_goes_together(settings: Settings, strategy: RecoveryStrategy) -> None:
    field = f"{PREFIX}replicas.{'partitions' if settings.replicas_partitions else 'budget'}"
    if settings.exchange != "resident":
        raise BadInput(
            "replicas need tasks that stay", field=field, remedy=f"set {PREFIX}exchange=resident, or no replicas"
        )
    if strategy is RecoveryStrategy.SOURCE_REPLAY:
        raise BadInput(
            "with source-replay every failure takes everything back, and a replica is of no use",
            field=field,
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
