"""Targets that contradict each other: a smallest set of them that no plan keeps, and what would do. Pure.

A set of targets is in conflict where the search finds no plan that keeps it. Starting from all, each target is left out
in turn: if the rest is still in conflict it stays out, else it belongs to the set. What remains is minimal: without any
one of its members there is a plan. In small topologies every structure was tried; in larger ones "no plan" means that
the search found none.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from holdfast.errors import BadInput, NoPlan, Undecided
from holdfast.planning.joint.model import JointModel
from holdfast.planning.joint.replicas import replica_mask
from holdfast.planning.joint.search import Planned, plan_jointly
from holdfast.planning.joint.targets import Assumptions, Targets
from holdfast.topology import Topology
from holdfast.wording import counted

EACH_SECONDS = 1.5
"""How long one set of targets may be searched."""
_ANY_OVERHEAD = 1e6
_HALVINGS = 6


@dataclass(frozen=True, slots=True)
class Target:
    """One thing that was asked for."""

    kind: str
    """`recovery`, `overhead`, `survive` or `room`."""
    words: str
    priority: int = 0


def targets_in(targets: Targets) -> list[Target]:
    """Return what was asked for, one by one; overhead counts also where it is the default."""
    found = [
        Target(
            "recovery", f"recovery {priority}:{within:g} (priority {priority} and above back in {within:g} s)", priority
        )
        for priority, within in targets.recovery
    ]
    word = "overhead" if targets.overhead is not None else "overhead (the default)"
    found.append(Target("overhead", f"{word} {targets.overhead_limit:g}"))
    if targets.survive:
        found.append(Target("survive", f"survive {targets.survive}"))
    return found


def only(targets: Targets, kept: list[Target]) -> Targets:
    """Return the targets of a list; the others ask for nothing."""
    priorities = {one.priority for one in kept if one.kind == "recovery"}
    kinds = {one.kind for one in kept}
    return replace(
        targets,
        recovery=tuple(one for one in targets.recovery if one[0] in priorities),
        overhead=targets.overhead_limit if "overhead" in kinds else _ANY_OVERHEAD,
        survive=targets.survive if "survive" in kinds else 0,
    )


def require_queries(topology: Topology, targets: Targets) -> None:
    """Refuse recovery times for priorities that no query has, nor a higher one: they would ask for nothing."""
    there = sorted({int(topology.priority[one]) for one in topology.outputs}, reverse=True)
    for priority, within in targets.recovery:
        if there and priority > there[0]:
            raise BadInput(
                f"recovery {priority}:{within:g} asks for nothing: no query has priority {priority} or above",
                remedy=f"there are queries of priority {', '.join(map(str, there))}",
            )


def require_room(topology: Topology, targets: Targets, assumed: Assumptions) -> None:
    """Refuse targets of no query, and losses after which the nodes that are left cannot carry those that have one."""
    require_queries(topology, targets)
    if not targets.survive or not assumed.nodes:
        return
    if targets.survive >= assumed.nodes:
        raise NoPlan(
            f"survive {targets.survive} contradicts a cluster of {assumed.nodes} nodes: nothing would be left",
            remedy=f"survive at most {assumed.nodes - 1}, or plan for more nodes with --nodes",
        )
    if assumed.cores == float("inf"):
        return
    model = JointModel(topology, targets, assumed)
    needed = float(topology.cost[model.limit < float("inf")].sum())
    room = (assumed.nodes - targets.survive) * assumed.cores * assumed.bound
    if needed > room * (1 + 1e-9):
        names = " and ".join(f"recovery {priority}:{within:g}" for priority, within in targets.recovery)
        raise NoPlan(
            f"{names} and survive {targets.survive} contradict each other: the queries with a target need {needed:.4g} "
            f"cores, and {assumed.nodes - targets.survive} nodes have {room:.4g} within the bound of {assumed.bound:g}",
            remedy="add nodes, survive fewer losses, or ask for fewer priorities",
        )


def refuse(
    model: JointModel, clock: Callable[[], float], *, finished: bool = True, one_segment: bool = False
) -> NoPlan | Undecided:
    """Return the error that names a smallest set of targets that contradict each other, and what would do.

    Where the search had not `finished`, nothing is decided.
    """
    if not finished:
        return Undecided(
            f"no plan that keeps all targets was found in time for {len(model.topology):,} partitions",
            remedy="give more time with --time-limit, or allow more",
        )

    def planned(wanted: Targets) -> Planned:
        return plan_jointly(model.asking(wanted), clock=clock, seconds=EACH_SECONDS, one_segment=one_segment)

    kept = targets_in(model.targets)
    # What no plan keeps on its own contradicts nothing else; recovery times first, which nothing can be given for.
    alone = [one for one in kept if not planned(only(model.targets, [one])).keeps_targets]
    kept = [one for one in alone if one.kind == "recovery"] or alone or kept
    for one in list(kept) if not alone else []:
        rest = [other for other in kept if other is not one]
        if not planned(only(model.targets, rest)).keeps_targets:
            kept = rest
    words = " and ".join(one.words for one in kept)
    verb = "contradict each other" if len(kept) > 1 and not alone else "cannot be met"
    return NoPlan(f"{words} {verb}: {_why(model, kept, planned)}{_left_out(model)}", remedy=_remedy(kept))


def _why(model: JointModel, kept: list[Target], planned: Callable[[Targets], Planned]) -> str:
    asked, assumed = only(model.targets, kept), model.assumed
    if any(one.kind == "overhead" for one in kept) and (least := _least_overhead(asked, planned)) is not None:
        return f"the least overhead found that keeps the rest is {least:.3g}"
    wanted = replace(asked, overhead=_ANY_OVERHEAD)
    found = planned(wanted)
    over = found.evaluation.promised / model.asking(wanted).limit
    worst = int(over.argmax())
    return (
        f"{model.topology.partition(worst)} is back after {found.evaluation.promised[worst]:.4g} s at the soonest: "
        f"detection and plan take {assumed.fixed_seconds:g} s, then its state and {assumed.least_interval:g} s of input"
    )


def _left_out(model: JointModel) -> str:
    """Return how many replicas within the budget find no room; the promises do not count them."""
    wanted = replica_mask(model.topology, model.targets.replicas)
    without = int((wanted & ~model.placed(wanted)).sum())
    if not without:
        return ""
    return (
        f"; {without} of {counted(int(wanted.sum()), 'replica')} find no room on {counted(model.assumed.nodes, 'node')}"
    )


def _least_overhead(asked: Targets, planned: Callable[[Targets], Planned]) -> float | None:
    """Return the least overhead found with which the other targets are kept; None: with none."""
    low, high = asked.overhead_limit, _ANY_OVERHEAD
    for _ in range(_HALVINGS):
        found = planned(replace(asked, overhead=high))
        if found.keeps_targets:
            least = found.evaluation.overhead
            high = math.sqrt(low * least)
        elif high == _ANY_OVERHEAD:
            return None
        else:
            low, high = high, math.sqrt(high * least)
    return least


def _remedy(kept: list[Target]) -> str:
    remedies = {
        "recovery": "allow a longer recovery",
        "overhead": "allow more overhead",
        "survive": "survive fewer losses",
    }
    return ", or ".join(dict.fromkeys(remedies[one.kind] for one in kept))
