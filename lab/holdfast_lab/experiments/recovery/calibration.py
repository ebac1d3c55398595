"""The simulator's constants from a real drill, and what it then says of others. Runs anywhere; pure.

Constants are taken from one drill's history and nothing is fitted to its outcome; how far the simulated unavailability
of the other drills is from the measured one says how well the simulator predicts them. Only then are larger clusters
worth simulating.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import median
from typing import Any

from holdfast.drill.history import Event
from holdfast.drill.losses import find_losses, placement_of
from holdfast.errors import BadInput
from holdfast.ids import NodeId, PartitionId
from holdfast.planning.recovery.algorithms import RecoveryAlgorithm, planner_of
from holdfast.recovery.strategy import RecoverySettings
from holdfast.simulation.times import STRATEGY_OF, RecoveryTimes, TimeConstants, simulate_times
from holdfast.topology import Topology

Result = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A drill, as it was and as the simulator has it: priority x seconds without outputs."""

    drill: str
    measured: float
    simulated: float
    calibrated: bool
    """Whether the constants are from this very drill."""

    @property
    def ratio(self) -> float:
        """Simulated over measured."""
        return self.simulated / self.measured if self.measured else float("inf")


def measure_constants(result: Result, history: Sequence[Event]) -> TimeConstants:
    """Take the simulator's constants from a drill in which nodes failed at once."""
    fault = float(result["fault_at"])
    after = [event for event in history if event.at > fault]
    noticed = [event.at for event in after if event.kind in {"node-lost", "node-silent"}]
    cycles = [float(event.fields["seconds"]) for event in after if event.kind == "cycle"]
    restores = _restores(after)
    if not noticed or not cycles or not restores:
        raise BadInput(
            "the drill has no failure, cycle or restore to measure", remedy="take one in which nodes were killed"
        )
    cycle = median(cycles)
    planned = [event.at - noticed[0] for event in after if event.kind == "planned" and event.at >= noticed[0]]
    return TimeConstants(
        detect_seconds=noticed[0] - fault,
        # A plan that waited for a node to come says nothing of how long planning takes.
        plan_seconds=min(planned[0], cycle) if planned else 0.0,
        cycle_seconds=cycle,
        work_seconds=0.0,  # it is in the cycles
        batch_seconds=float(result["settings"]["batch_seconds"]),
        # A restore is seen at the end of the cycle that finds it done.
        restore_seconds=max(0.0, median(restores) - cycle),
        restore_seconds_per_byte=0.0,
        checkpoint_age=checkpoint_age(history, fault, float(result["settings"]["batch_seconds"])),
    )


def checkpoint_age(history: Sequence[Event], fault: float, batch_seconds: float) -> int:
    """Return how many batches were due since the last checkpoint when nodes failed."""
    marks = [int(event.fields["batch"]) for event in history if event.kind == "checkpoint" and event.at <= fault]
    return max(1, int(fault / batch_seconds) - max(marks, default=-1))


def simulate_drill(
    result: Result, history: Sequence[Event], topology: Topology, constants: TimeConstants
) -> RecoveryTimes | None:
    """Simulate a drill's failure, with its arrivals as the run saw them; None where it had none, or several."""
    asked, fault = result["settings"], result["fault_at"]
    if fault is None or asked["strategy"] not in STRATEGY_OF or asked["capacity"] is None:
        return None
    before = placement_of([event for event in history if event.at < fault])
    gone = {before[loss.partition] for loss in find_losses(history, before) if loss.partition in before}
    known = {str(p): p for p in topology.partitions()}
    if not gone or not set(known) <= set(before):
        return None
    size = float(asked["capacity"])
    arrivals = [
        (event.at - fault, NodeId(str(node)), size)
        for event in history
        if event.kind == "node-arrived" and event.at > fault
        for node in event.fields["nodes"]
    ]
    placement: dict[PartitionId, NodeId] = {p: NodeId(before[name]) for name, p in known.items()}
    settings = RecoverySettings(STRATEGY_OF[asked["strategy"]], planner_of(RecoveryAlgorithm(asked["algorithm"])))
    capacity = dict.fromkeys(sorted(set(placement.values())), size)
    failed = sorted(NodeId(node) for node in gone)
    return simulate_times(topology, placement, capacity, failed, arrivals, settings, constants)


def constants_document(constants: TimeConstants) -> dict[str, float]:
    """Return constants as plain values, by name."""
    return {one.name: getattr(constants, one.name) for one in fields(TimeConstants)}


def _restores(history: Sequence[Event]) -> list[float]:
    """Return how long each restore took, from its order to the word that it is done."""
    begun: dict[str, float] = {}
    found = []
    for event in history:
        partition = str(event.fields.get("partition"))
        if event.kind == "restoring":
            begun[partition] = event.at
        elif event.kind == "restored" and partition in begun:
            found.append(event.at - begun.pop(partition))
    return found
