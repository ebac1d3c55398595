"""Which lost partitions come back now, and on which node; and the one check of it before it runs. Pure.

`assign` plans on the nodes there are, none above its bound. `assignment_problems` is the oracle: it checks any
assignment against the state of the cluster, whoever made it, and serves the tests and every run alike.
"""

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
class Assignment:
    """Lost partitions and their nodes."""

    placement: Mapping[PartitionId, NodeId]
    queries: tuple[PartitionId, ...]
    """The queries that are whole again with them."""
    priority: int
    left: tuple[PartitionId, ...]
    """Lost partitions for which there is no room yet."""
    placed: PlacedPlan
    """The plan that it follows from."""


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
    """Return the topology with measured costs instead of the declared ones."""
    operators = []
    for number, operator in enumerate(topology.operators):
        first = int(topology.first[number])
        declared = topology.cost[first : first + operator.parallelism].tolist()
        found = tuple(
            costs.get(PartitionId(operator.id, index), declared[index]) for index in range(operator.parallelism)
        )
        operators.append(replace(operator, cost=found))
    return Topology(topology.name, operators)


def assign(
    graph: PartitionGraph,
    topology: Topology,
    lost: Collection[PartitionId],
    running: Mapping[PartitionId, NodeId],
    nodes: Mapping[NodeId, float],
    settings: RecoverySettings,
    wanted: Mapping[PartitionId, NodeId] = MappingProxyType({}),
    *,
    even: bool = True,
) -> Assignment:
    """Choose which lost partitions come back now, and where: on the nodes wanted for them, if those can take them.

    A whole topology is spread evenly where that fits, unless `even` says no.
    """
    problem, places = _problem(graph, topology, lost, running, nodes, settings.bound)
    if even and not running and len(lost) == len(topology):
        spread = _even(topology, places, settings.bound)
        if spread is not None:
            plan = problem.plan("even", np.ones(len(problem.partitions), bool))
            return _assignment(graph, lost, PlacedPlan(plan, spread, ()))
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
    return _assignment(graph, lost, placed)


def assignment_problems(
    graph: PartitionGraph,
    topology: Topology,
    lost: Collection[PartitionId],
    running: Mapping[PartitionId, NodeId],
    nodes: Mapping[NodeId, float],
    bound: float,
    assignment: Assignment,
) -> list[str]:
    """Say what is wrong with an assignment; nothing when it may run."""
    problem, places = _problem(graph, topology, lost, running, nodes, bound)
    found = placement_problems(problem, assignment.placed, places, bound)
    if dict(assignment.placement) != dict(assignment.placed.placement):
        found.append("what is assigned is not what was planned")
    if strange := [p for p in assignment.placement if p not in lost]:
        found.append(f"{min(strange)} is assigned and not lost")
    return found


def _assignment(graph: PartitionGraph, lost: Collection[PartitionId], placed: PlacedPlan) -> Assignment:
    left = tuple(partition for partition in graph.order if partition in lost and partition not in placed.placement)
    return Assignment(placed.placement, placed.plan.queries, placed.plan.priority, left, placed)


def _problem(
    graph: PartitionGraph,
    topology: Topology,
    lost: Collection[PartitionId],
    running: Mapping[PartitionId, NodeId],
    nodes: Mapping[NodeId, float],
    bound: float,
) -> tuple[RecoveryProblem, tuple[RecoveryNode, ...]]:
    """Return what is to be planned, and the nodes with the room they have."""
    total = float(topology.cost.sum())
    room_for_all = 2 * total / bound if total else 1.0
    used = dict.fromkeys(nodes, 0.0)
    for partition, node in running.items():
        if node in used:
            used[node] += float(topology.cost[topology.index(partition)])
    places = tuple(
        RecoveryNode(node, room_for_all if math.isinf(capacity) else capacity, used[node])
        for node, capacity in sorted(nodes.items())
    )
    missing = np.zeros(len(topology), bool)
    missing[topology.indices(lost)] = True
    room = sum(float(place.room(bound)) for place in places)
    return RecoveryProblem(topology, missing, room, queries=graph.queries), places


def _even(topology: Topology, places: tuple[RecoveryNode, ...], bound: float) -> dict[PartitionId, NodeId] | None:
    """Spread a whole topology over nodes, if each has the room."""
    spread = spread_evenly(topology, len(places))
    load = [0.0] * len(places)
    for partition, slot in spread.items():
        load[slot] += float(topology.cost[topology.index(partition)])
    if any(load[slot] > float(place.room(bound)) for slot, place in enumerate(places)):
        return None
    return {partition: places[slot].id for partition, slot in spread.items()}
