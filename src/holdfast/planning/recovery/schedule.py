"""A recovery over time: nodes come one by one, each brings the next plan (incremental recovery, sec. 4.4). Pure.

Each plan starts from what is already back and costs only what is left. Strategies differ in when they plan and how:
`incremental` plans at every arrival with the chosen algorithm, `operator-centric` at every arrival in topological
order, `blocking` once, when the last node has come, and `best-case` as if all nodes came at half of the last
arrival (the paper's BestCase: three minutes where nodes take up to six).

Unavailability is the sum over failed queries of priority x seconds until back. The time to restore is not in it, being
the same for all: it is what waiting for nodes costs. A query that no arrival brings back counts up to the last one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from itertools import groupby

import numpy as np

from holdfast.errors import BadInput
from holdfast.ids import NodeId, PartitionId
from holdfast.planning.recovery.algorithms import Planner
from holdfast.planning.recovery.operator_centric import operator_centric
from holdfast.planning.recovery.placement import BOUND, PlacedPlan, RecoveryNode, place_plan
from holdfast.planning.recovery.problem import CostUnits, Mask, RecoveryProblem, as_written
from holdfast.topology import Ints, Queries, Topology


class Strategy(StrEnum):
    """When and how to plan as nodes arrive."""

    INCREMENTAL = "incremental"
    OPERATOR_CENTRIC = "operator-centric"
    BLOCKING = "blocking"
    BEST_CASE = "best-case"


@dataclass(frozen=True, slots=True)
class Arrival:
    """A node that comes so many seconds after the failure."""

    at: float
    node: RecoveryNode


@dataclass(frozen=True, slots=True)
class ScheduleStep:
    """What one arrival (or several at once) brings back."""

    at: float
    nodes: tuple[NodeId, ...]
    placed: PlacedPlan
    problem: RecoveryProblem
    """What was asked at that moment."""
    places: tuple[RecoveryNode, ...]
    """The nodes there were, with what they ran already. With both, `placement_problems` can look at the step."""


@dataclass(frozen=True, slots=True)
class RecoverySchedule:
    """All steps of one strategy, and what they come to."""

    strategy: Strategy
    steps: tuple[ScheduleStep, ...]
    back_at: Mapping[PartitionId, float]
    """When each failed query came back, by its output partition."""
    never: tuple[PartitionId, ...]
    """Failed queries that the nodes do not suffice for."""
    unavailability: float
    """Sum of priority x seconds."""


def make_schedule(
    topology: Topology,
    failed: Ints | Mask,
    arrivals: Sequence[Arrival],
    planner: Planner,
    *,
    strategy: Strategy = Strategy.INCREMENTAL,
    capacity: float = math.inf,
    bound: float = BOUND,
    queries: Queries | None = None,
) -> RecoverySchedule:
    """Plan at the arrivals by the strategy; `capacity` limits what may be used in all."""
    if not arrivals:
        raise BadInput("no node arrivals are given", field="arrivals", remedy="give a time for each node")
    if any(not 0 <= arrival.at < math.inf for arrival in arrivals):
        raise BadInput(
            "a node's arrival is not a time", field="arrivals", remedy="give seconds after the failure, 0 or more"
        )
    queries = queries or Queries(topology)
    units = CostUnits.for_values(topology.cost)
    missing = RecoveryProblem(topology, failed, capacity, queries=queries, units=units).missing
    used: dict[NodeId, Fraction] = {arrival.node.id: as_written(arrival.node.used) for arrival in arrivals}
    if len(used) < len(arrivals):
        raise BadInput("two nodes have the same name", field="arrivals", remedy="give each node a name of its own")
    present: list[RecoveryNode] = []
    spent = 0
    steps: list[ScheduleStep] = []
    back_at: dict[PartitionId, float] = {}
    plan_with = operator_centric if strategy is Strategy.OPERATOR_CENTRIC else planner
    for at, group in groupby(_retimed(arrivals, strategy), key=lambda arrival: arrival.at):
        present += [arrival.node for arrival in group]
        new = tuple(node.id for node in present[sum(len(step.nodes) for step in steps) :])
        nodes = [replace(node, used=float(used[node.id])) for node in present]
        room = sum(units.capacity(node.room(bound)) for node in nodes)
        left = min(room, units.capacity(capacity) - spent)
        problem = RecoveryProblem(topology, missing, units.value(left), queries=queries, units=units)
        placed = place_plan(problem, plan_with(problem), nodes, bound=bound)
        steps.append(ScheduleStep(at, new, placed, problem, tuple(nodes)))
        for partition, node in placed.placement.items():
            number = topology.index(partition)
            missing[number] = False
            used[node] += as_written(topology.cost[number])
            spent += int(units.costs(topology.cost[[number]])[0])
        back_at.update(dict.fromkeys(placed.plan.queries, at))
    return _summed(topology, strategy, steps, back_at, queries)


def _retimed(arrivals: Sequence[Arrival], strategy: Strategy) -> list[Arrival]:
    ordered = sorted(arrivals, key=lambda arrival: arrival.at)
    if strategy is Strategy.BLOCKING:
        return [replace(arrival, at=ordered[-1].at) for arrival in ordered]
    if strategy is Strategy.BEST_CASE:
        half = ordered[-1].at / 2  # nodes that survived are there from the start
        return [replace(arrival, at=half if arrival.at > 0 else 0.0) for arrival in ordered]
    return ordered


def _summed(
    topology: Topology,
    strategy: Strategy,
    steps: list[ScheduleStep],
    back_at: dict[PartitionId, float],
    queries: Queries,
) -> RecoverySchedule:
    start = steps[0].problem
    heads = queries.heads[start.queries]
    last = steps[-1].at
    down = topology.partitions(heads)
    never = tuple(query for query in down if query not in back_at)
    waited = np.array([back_at.get(query, last) for query in down])
    return RecoverySchedule(
        strategy=strategy,
        steps=tuple(steps),
        back_at={query: back_at[query] for query in down if query in back_at},
        never=never,
        unavailability=float(waited @ start.priority) if len(down) else 0.0,
    )
