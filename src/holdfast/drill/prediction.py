"""What the planner's own schedule predicts for a drill's failure, to compare with the measures. Runs anywhere; pure.

From the history: which partitions the first failure took, what the survivors carried, and when nodes were there (as the
run saw them arrive, not as they were started). From those alone `planning.recovery.schedule` predicts when each query
is back. The time to notice, plan, restore and replay is not in it: that is what the difference shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.drill.history import Event
from holdfast.drill.losses import TAKES_PARTITIONS, find_losses, placement_of
from holdfast.drill.measures import DrillMeasures
from holdfast.drill.settings import DrillSettings, DrillStrategy
from holdfast.ids import NodeId
from holdfast.planning.recovery.algorithms import RecoveryAlgorithm, planner_of
from holdfast.planning.recovery.placement import RecoveryNode
from holdfast.planning.recovery.schedule import Arrival, Strategy, make_schedule
from holdfast.topology import Topology

_STRATEGIES = {
    DrillStrategy.INCREMENTAL: Strategy.INCREMENTAL,
    DrillStrategy.OPERATOR_CENTRIC: Strategy.OPERATOR_CENTRIC,
    DrillStrategy.BLOCKING: Strategy.BLOCKING,
    DrillStrategy.BEST_CASE: Strategy.INCREMENTAL,  # its nodes have really come at half of the last arrival
}


@dataclass(frozen=True, slots=True)
class Prediction:
    """When the planner would have every query back, had restoring taken no time."""

    unavailability: float
    """Sum of priority x seconds."""
    back_after: dict[str, float]
    """Seconds after the failure, for each failed query."""


def predict(
    asked: DrillSettings, topology: Topology, history: Sequence[Event], measures: DrillMeasures
) -> Prediction | None:
    """Predict a drill with one failure; None where there were several, or none, or the strategy does not plan."""
    waves = {event.at for event in history if event.kind == "fault" and event.fields["what"] in TAKES_PARTITIONS}
    if asked.strategy not in _STRATEGIES or asked.capacity is None or measures.fault_at is None:
        return None
    began = measures.fault_at
    if max(waves) - began > 1.0:
        return None
    before = placement_of([event for event in history if event.at < began])
    losses = find_losses(history, before)
    lost = sorted({loss.partition for loss in losses})
    index = {str(name): number for number, name in enumerate(topology.partitions())}
    if not lost or not set(before) >= set(index):
        return None
    gone = {before[partition] for partition in lost}
    loads: dict[str, float] = {}
    for partition, node in before.items():
        loads[node] = loads.get(node, 0.0) + float(topology.cost[index[partition]])
    arrivals = [
        Arrival(0.0, RecoveryNode(NodeId(node), asked.capacity, used))
        for node, used in sorted(loads.items())
        if node not in gone
    ]
    arrivals += [
        Arrival(event.at - began, RecoveryNode(NodeId(str(node)), asked.capacity))
        for event in history
        if event.kind == "node-arrived" and event.at > began
        for node in event.fields["nodes"]
    ]
    if not arrivals:
        return None
    schedule = make_schedule(
        topology,
        np.array([index[partition] for partition in lost]),
        arrivals,
        planner_of(RecoveryAlgorithm(asked.algorithm)),
        strategy=_STRATEGIES[asked.strategy],
    )
    return Prediction(schedule.unavailability, {str(query): at for query, at in schedule.back_at.items()})
