"""Events of a run: as fields for whoever records them (logs, drills, displays), and as lines for people. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.recovery.cluster_state import ClusterState
from holdfast.recovery.effects import (
    Changed,
    Effect,
    Fence,
    GlobalCheckpoint,
    Place,
    PlanRejected,
    RecoveryEnded,
    RequestNodes,
    RollBack,
    Waiting,
)
from holdfast.recovery.events import Event
from holdfast.recovery.states import LIVE_STATES, PartitionState
from holdfast.wording import counted


@dataclass(frozen=True, slots=True)
class Observation:
    """One event of a run."""

    at: float
    kind: str
    fields: Mapping[str, Any]


def event_kind(event: Event) -> str:
    """Name an event of nodes: `node-arrived`, `node-lost`, `node-silent`."""
    words = type(event).__name__
    return "".join(f"-{c.lower()}" if c.isupper() else c for c in words).strip("-").replace("nodes", "node")


def effect_line(effect: Effect) -> str | None:
    """Return a line for people about an effect; None where they need none."""
    match effect:
        case Place(placement, _, _, left) if left:
            return f"{counted(len(placement), 'lost partition')} in recovery, {len(left)} waiting for nodes"
        case PlanRejected(problems):
            return f"a recovery plan failed its check and does not run ({problems[0]}); please report it"
        case RollBack(partitions, batch):
            return f"rolled back to batch {batch}: {counted(len(partitions), 'live partition')}"
        case GlobalCheckpoint(batch, _, _):
            return f"checkpoint at batch {batch} is complete"
        case RecoveryEnded(batch):
            return f"recovery ended: the checkpoint at batch {batch} is complete and nothing is lost"
        case Waiting(missing, partitions):
            return f"waiting for {counted(missing, 'node')}: {counted(len(partitions), 'partition')}"
    return None


def effect_fields(state: ClusterState, effect: Effect) -> list[tuple[str, dict[str, Any]]]:
    """Return the events of an effect: kinds and fields."""
    match effect:
        case Fence(epoch, why):
            return [("epoch", {"claim": epoch.claim, "epoch": epoch.number, "why": why})]
        case RequestNodes(count):
            return [("requested", {"count": count})]
        case Place():
            return [("planned", _planned_fields(effect))]
        case PlanRejected(problems):
            return [("plan-rejected", {"problems": list(problems)})]
        case RollBack(partitions, batch):
            return [("rolled-back", {"partitions": [str(p) for p in partitions], "to": batch})]
        case Changed():
            return _changed_fields(state, effect)
        case GlobalCheckpoint(batch, durable, _):
            return [("checkpoint", {"batch": batch, "durable": durable})]
        case RecoveryEnded(batch):
            return [("recovery-ended", {"batch": batch})]
    return []


def _planned_fields(effect: Place) -> dict[str, Any]:
    """Describe a plan: what comes back where, and what waits."""
    return {
        "recover": [str(p) for p, _ in effect.placement],
        "placement": {str(p): node for p, node in effect.placement},
        "left_out": [str(p) for p in effect.left],
        "queries": [str(p) for p in effect.queries],
        "priority": effect.priority,
    }


def _changed_fields(state: ClusterState, effect: Changed) -> list[tuple[str, dict[str, Any]]]:
    """Describe a partition that has changed its state; a restore has a beginning and an end."""
    fields: dict[str, Any] = {"partition": str(effect.partition), "node": effect.node}
    batch = state.partitions[effect.partition].start.batch
    found = []
    if effect.after is PartitionState.RESTORING:
        found.append(("restoring", {**fields, "batch": batch}))
    if effect.before is PartitionState.RESTORING and effect.after in LIVE_STATES:
        found.append(("restored", {**fields, "batch": batch}))
    states = {"before": str(effect.before), "after": str(effect.after), "cause": str(effect.cause)}
    return [*found, ("state", {**fields, **states})]
