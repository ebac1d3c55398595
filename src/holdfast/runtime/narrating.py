"""What happens in a run, in words and fields for those who watch: logs, drills, displays. Pure."""

from __future__ import annotations

from typing import Any

from holdfast.recovery.effects import Changed, Place
from holdfast.recovery.events import Event
from holdfast.recovery.machine import Machine
from holdfast.recovery.states import LIVE_STATES, PartitionState


def event_kind(event: Event) -> str:
    """Name what has become of nodes: `node-arrived`, `node-lost`, `node-silent`."""
    words = type(event).__name__
    return "".join(f"-{c.lower()}" if c.isupper() else c for c in words).strip("-").replace("nodes", "node")


def planned_fields(machine: Machine, effect: Place) -> dict[str, Any]:
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


def changed_fields(machine: Machine, effect: Changed) -> list[tuple[str, dict[str, Any]]]:
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
