"""What happens in a run, in words and fields for those who watch: logs, drills, displays. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.recovery.effects import (
    Changed,
    Effect,
    Fence,
    GlobalCheckpoint,
    Place,
    RecoveryEnded,
    RequestNodes,
    RollBack,
    Waiting,
)
from holdfast.recovery.events import Event
from holdfast.recovery.machine import Machine
from holdfast.recovery.states import LIVE_STATES, PartitionState


@dataclass(frozen=True, slots=True)
class Observation:
    """Something that those who watch a run may want to know."""

    at: float
    kind: str
    fields: Mapping[str, Any]


def event_kind(event: Event) -> str:
    """Name what has become of nodes: `node-arrived`, `node-lost`, `node-silent`."""
    words = type(event).__name__
    return "".join(f"-{c.lower()}" if c.isupper() else c for c in words).strip("-").replace("nodes", "node")


def effect_line(effect: Effect) -> str | None:
    """Tell people, in one line, of what they would want to hear."""
    match effect:
        case Place(placement, _, _, left) if left:
            return f"{len(placement)} partitions come back now, {len(left)} wait for nodes"
        case RollBack(partitions, batch):
            return f"{len(partitions)} live partitions go back to batch {batch}"
        case GlobalCheckpoint(batch):
            return f"checkpoint at batch {batch}"
        case RecoveryEnded(batch):
            return f"recovered: batch {batch} is safe everywhere"
        case Waiting(missing, partitions):
            return f"{len(partitions)} partitions wait for {missing} nodes"
    return None


def effect_fields(machine: Machine, effect: Effect) -> list[tuple[str, dict[str, Any]]]:
    """Tell of an effect to those who record a run: kinds of observations, and their fields."""
    match effect:
        case Fence(epoch, why):
            return [("epoch", {"epoch": epoch, "why": why})]
        case RequestNodes(count):
            return [("requested", {"count": count})]
        case Place():
            return [("planned", _planned_fields(machine, effect))]
        case RollBack(partitions, batch):
            return [("rolled-back", {"partitions": [str(p) for p in partitions], "to": batch})]
        case Changed():
            return _changed_fields(machine, effect)
        case GlobalCheckpoint(batch, durable):
            return [("checkpoint", {"batch": batch, "durable": durable})]
        case RecoveryEnded(batch):
            return [("recovery-ended", {"batch": batch})]
    return []


def _planned_fields(machine: Machine, effect: Place) -> dict[str, Any]:
    """Tell of a plan: what comes back where, what waits, and what is wrong with it, which should be nothing."""
    layout = machine.last_layout
    return {
        "recover": [str(p) for p, _ in effect.placement],
        "placement": {str(p): node for p, node in effect.placement},
        "left_out": [str(p) for p in effect.left],
        "queries": [str(p) for p in effect.queries],
        "priority": effect.priority,
        "problems": [] if layout is None else layout.problems(machine.settings.bound),
    }


def _changed_fields(machine: Machine, effect: Changed) -> list[tuple[str, dict[str, Any]]]:
    """Tell of a partition that has changed its state; of a restore, when it begins and when it has ended."""
    fields: dict[str, Any] = {"partition": str(effect.partition), "node": effect.node}
    batch = machine.partitions[effect.partition].start.batch
    found = []
    if effect.after is PartitionState.RESTORING:
        found.append(("restoring", {**fields, "batch": batch}))
    if effect.before is PartitionState.RESTORING and effect.after in LIVE_STATES:
        found.append(("restored", {**fields, "batch": batch}))
    states = {"before": str(effect.before), "after": str(effect.after), "cause": str(effect.cause)}
    return [*found, ("state", {**fields, **states})]
