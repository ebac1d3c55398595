"""Where lost partitions go: by plan, on the nodes there are now, none above its bound. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from holdfast.ids import NodeId, PartitionId
from holdfast.planning.recovery.placement import PlacedPlan, RecoveryNode, place_plan, placement_problems
from holdfast.planning.recovery.problem import RecoveryProblem
from holdfast.recovery.graph import PartitionGraph
from holdfast.recovery.strategy import RecoverySettings
from holdfast.topology import Topology


@dataclass(frozen=True, slots=True)
class Layout:
    """What a plan comes to."""

    placement: Mapping[PartitionId, NodeId]
    queries: tuple[PartitionId, ...]
    priority: int
    left: tuple[PartitionId, ...]
    placed: PlacedPlan | None = None
    problem: RecoveryProblem | None = None
    nodes: tuple[RecoveryNode, ...] = ()

    def problems(self, bound: float) -> list[str]:
        """Say what is wrong with it; nothing when it may be used."""
        if self.placed is None or self.problem is None:
            return []
        return placement_problems(self.problem, self.placed, self.nodes, bound)


def spread_evenly(topology: Topology, slots: int) -> dict[PartitionId, int]:
    """Spread partitions over slots: neighbours of one key range together, lone partitions in turn.

    Partition i of N goes to slot floor(i * slots / N): where keys nest, an upstream and a downstream partition of the
    same range meet on one node, and their blocks stay there.
    """
    placement: dict[PartitionId, int] = {}
    turn = 0
    for number in topology.operator_order:
        many = topology.operators[number].parallelism
        for index in range(many):
            partition = topology.partition(int(topology.first[number]) + index)
            if many == 1:
                placement[partition] = turn % slots
                turn += 1
            else:
                placement[partition] = index * slots // many
    return placement


def with_costs(topology: Topology, costs: Mapping[PartitionId, float]) -> Topology:
    """Return the topology with measured costs in the place of the planned."""
    operators = []
    for number, operator in enumerate(topology.operators):
        first = int(topology.first[number])
        planned = topology.cost[first : first + operator.parallelism].tolist()
        found = tuple(
            costs.get(PartitionId(operator.id, index), planned[index]) for index in range(operator.parallelism)
        )
        operators.append(replace(operator, cost=found))
    return Topology(topology.name, operators)


def lay_out(
    graph: PartitionGraph,
    topology: Topology,
    lost: Collection[PartitionId],
    running: Mapping[PartitionId, NodeId],
    nodes: Mapping[NodeId, float],
    settings: RecoverySettings,
    wanted: Mapping[PartitionId, NodeId] = MappingProxyType({}),
) -> Layout:
    """Choose which lost partitions come back now, and where: on the nodes wanted for them, if those can take them."""
    total = float(topology.cost.sum())
    room_for_all = 2 * total / settings.bound if total else 1.0
    used = dict.fromkeys(nodes, 0.0)
    for partition, node in running.items():
        if node in used:
            used[node] += float(topology.cost[topology.index(partition)])
    places = tuple(
        RecoveryNode(node, room_for_all if math.isinf(capacity) else capacity, used[node])
        for node, capacity in sorted(nodes.items())
    )
    if not running and len(lost) == len(topology):
        even = _even(topology, places, settings.bound)
        if even is not None:
            priority = int(graph.queries.priority.sum())
            return Layout(even, graph.outputs, priority, ())
    missing = np.zeros(len(topology), bool)
    missing[topology.indices(lost)] = True
    room = sum(float(place.room(settings.bound)) for place in places)
    problem = RecoveryProblem(topology, missing, room, queries=graph.queries)
    placed = place_plan(
        problem,
        settings.plan_with(problem),
        places,
        bound=settings.bound,
        program_seconds=settings.program_seconds,
    )
    if wanted:
        moved = replace(placed, placement={p: wanted.get(p, node) for p, node in placed.placement.items()})
        if not placement_problems(problem, moved, places, settings.bound):
            placed = moved
    left = tuple(partition for partition in graph.order if partition in lost and partition not in placed.placement)
    return Layout(placed.placement, placed.plan.queries, placed.plan.priority, left, placed, problem, places)


def _even(topology: Topology, places: tuple[RecoveryNode, ...], bound: float) -> dict[PartitionId, NodeId] | None:
    """Spread a whole topology over nodes, if each has the room."""
    spread = spread_evenly(topology, len(places))
    load = [0.0] * len(places)
    for partition, slot in spread.items():
        load[slot] += float(topology.cost[topology.index(partition)])
    if any(load[slot] > float(place.room(bound)) for slot, place in enumerate(places)):
        return None
    return {partition: places[slot].id for partition, slot in spread.items()}
