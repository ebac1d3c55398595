"""Where recovered partitions go: the node with most room, none above its bound (incremental recovery, sec. 5). Pure.

Costs do not split, so a set that fits the sum of the rooms may not fit the nodes. Then, in this order: partitions are
packed tighter (largest first into the fullest node that takes them); the other candidate plans of best-density are
tried, best first; and a program chooses queries and places together. What the first choice would have restored and the
plan cannot is named, with the reason. The bound is on planned steady cost, 80 % of a node by default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

import numpy as np

from holdfast.errors import BadInput
from holdfast.ids import NodeId, PartitionId
from holdfast.planning.recovery.best_density import grow_candidates
from holdfast.planning.recovery.exact import Proven, solve_exactly
from holdfast.planning.recovery.leftover import UpstreamReady, use_leftover
from holdfast.planning.recovery.problem import Mask, RecoveryPlan, RecoveryProblem, as_written, plan_problems

BOUND = 0.8
CANDIDATES_TRIED = 64
LARGEST_PROGRAM = 20_000
"""Partitions times nodes up to which choosing and placing are solved together."""
PROGRAM_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class RecoveryNode:
    """A node that can take partitions: its whole capacity, and what already runs there."""

    id: NodeId
    capacity: float
    used: float = 0.0

    def room(self, bound: float) -> Fraction:
        """What may still be planned onto it, by exact arithmetic: 0.8 of 3 is 2.4."""
        if not 0 < bound <= 1:
            raise BadInput(
                f"{bound:g} is not a share of a node's capacity",
                field="bound",
                remedy="give a number up to 1, like 0.8",
            )
        return _room(bound, float(self.capacity), float(self.used))


@lru_cache(maxsize=1024)
def _room(bound: float, capacity: float, used: float) -> Fraction:
    return max(Fraction(0), as_written(bound) * as_written(capacity) - as_written(used))


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A partition that the capacity would have paid for and the nodes could not take."""

    partition: PartitionId
    cost: float
    reason: str


@dataclass(frozen=True, slots=True)
class PlacedPlan:
    """A recovery plan and the node of each of its partitions."""

    plan: RecoveryPlan
    placement: Mapping[PartitionId, NodeId]
    left_out: tuple[LeftOut, ...]


class NodeRooms:
    """Rooms of nodes, in units; gives each cost to the node with most room, and remembers which."""

    def __init__(self, rooms: Sequence[int], total: int) -> None:
        self.rooms = list(rooms)
        self.total = total
        """What may be used in all, whatever the nodes have."""
        self.node_of: dict[int, int] = {}

    @property
    def largest(self) -> int:
        """The largest cost that still fits somewhere."""
        return min(self.total, max(self.rooms, default=0))

    def take(self, number: int, cost: int) -> bool:
        """Put a failed partition on the node with most room, if it fits there."""
        if cost > self.largest:
            return False
        return self.put(number, cost, max(range(len(self.rooms)), key=lambda node: (self.rooms[node], -node)))

    def put(self, number: int, cost: int, node: int) -> bool:
        """Put a failed partition on this node."""
        self.rooms[node] -= cost
        self.total -= cost
        self.node_of[number] = node
        return True


def place_plan(
    problem: RecoveryProblem,
    plan: RecoveryPlan,
    nodes: Sequence[RecoveryNode],
    *,
    bound: float = BOUND,
    program_seconds: float = PROGRAM_SECONDS,
) -> PlacedPlan:
    """Place a plan; where the nodes cannot take it, return the best plan found that they can."""
    rooms = rooms_of(problem, nodes, bound)
    first = np.isin(problem.partitions, problem.topology.indices(plan.recover))
    if plan.algorithm == "operator-centric":
        return _named(problem, plan, nodes, _place_one_by_one(problem, first, rooms), first, rooms)
    wanted = problem.partitions_of(problem.groups_of(problem.restored_by(first)))
    placed = pack(problem, wanted, rooms)
    if placed is not None:
        return _named(problem, plan, nodes, _with_leftover(problem, wanted, placed), first, rooms)
    best, limit = _best_that_fits(problem, rooms, program_seconds)
    chosen = np.zeros(len(problem.partitions), bool)
    chosen[list(best.node_of)] = True
    bounded = replace(plan, bound=min(plan.bound, limit))
    return _named(problem, bounded, nodes, _with_leftover(problem, chosen, best), first, rooms)


def rooms_of(problem: RecoveryProblem, nodes: Sequence[RecoveryNode], bound: float) -> list[int]:
    """Return each node's room in units."""
    return [problem.units.capacity(node.room(bound)) for node in nodes]


def pack(problem: RecoveryProblem, wanted: Mask, rooms: Sequence[int]) -> NodeRooms | None:
    """Place failed partitions (a mask): each, largest first, where most room is; tighter where that fails."""
    numbers = np.flatnonzero(wanted)
    order = numbers[np.lexsort((numbers, -problem.cost[numbers]))].tolist()
    widely, tightly = NodeRooms(rooms, problem.capacity), NodeRooms(rooms, problem.capacity)
    if all(widely.take(number, int(problem.cost[number])) for number in order):
        return widely
    for number in order:
        cost = int(problem.cost[number])
        taking = [node for node, room in enumerate(tightly.rooms) if cost <= room]
        if not taking or cost > tightly.total:
            return None
        tightly.put(number, cost, min(taking, key=lambda node: (tightly.rooms[node], node)))
    return tightly


def _place_one_by_one(problem: RecoveryProblem, wanted: Mask, rooms: Sequence[int]) -> NodeRooms:
    """Operator-centric: in its own order, what a node can take, upstream first."""
    placed = NodeRooms(rooms, problem.capacity)
    taken = np.zeros(len(problem.partitions), bool)
    ready = UpstreamReady(problem)
    numbers = np.flatnonzero(wanted)
    level = problem.topology.level[problem.partitions[numbers]]
    for number in numbers[np.lexsort((numbers, problem.cost[numbers], level))].tolist():
        if ready.of(number, taken) and placed.take(number, int(problem.cost[number])):
            taken[number] = True
    return placed


def _best_that_fits(problem: RecoveryProblem, rooms: Sequence[int], seconds: float) -> tuple[NodeRooms, int]:
    """Return the best placement found and a priority that no placeable plan exceeds."""
    best = NodeRooms(rooms, problem.capacity)
    value = 0
    for restored in grow_candidates(problem, keep=CANDIDATES_TRIED).restored:
        gained = int(problem.priority[restored].sum())
        if gained <= value:
            break
        placed = pack(problem, problem.partitions_of(problem.groups_of(restored)), rooms)
        if placed is not None:
            best, value = placed, gained
    grown = _grow_on_nodes(problem, rooms)
    if _value(problem, grown) > value:
        best, value = grown, _value(problem, grown)
    limit = problem.total_priority
    if len(problem.partitions) * len(rooms) <= LARGEST_PROGRAM:
        node_of = np.full(len(problem.partitions), -1)
        node_of[list(best.node_of)] = list(best.node_of.values())
        hint = Proven(problem.restored_by(node_of >= 0), limit, node_of)
        try:
            proven = solve_exactly(problem, rooms=rooms, hint=hint, time_limit=seconds)
        except ModuleNotFoundError:  # the extra `plan` is not installed: the best packing found stands
            return best, limit
        limit = proven.bound
        if int(problem.priority[proven.restored].sum()) > value and proven.node_of is not None:
            best = NodeRooms(rooms, problem.capacity)
            for number in np.flatnonzero(proven.node_of >= 0).tolist():
                best.put(number, int(problem.cost[number]), int(proven.node_of[number]))
    return best, limit


def _grow_on_nodes(problem: RecoveryProblem, rooms: Sequence[int]) -> NodeRooms:
    """Add query after query by density, each only when all of its partitions find a place."""
    placed = NodeRooms(rooms, problem.capacity)
    taken = np.zeros(len(problem.partitions), bool)
    density = problem.priority / np.maximum(problem.share_cost, 1e-300)
    for query in np.argsort(-density, kind="stable").tolist():
        wanted = taken | problem.partitions_of(problem.member[query])
        packed = pack(problem, wanted, rooms)
        if packed is not None:
            placed, taken = packed, wanted
    return placed


def _value(problem: RecoveryProblem, placed: NodeRooms) -> int:
    taken = np.zeros(len(problem.partitions), bool)
    taken[list(placed.node_of)] = True
    return int(problem.priority[problem.restored_by(taken)].sum())


def _with_leftover(problem: RecoveryProblem, wanted: Mask, placed: NodeRooms) -> NodeRooms:
    use_leftover(problem, wanted, placed)
    return placed


def _named(
    problem: RecoveryProblem,
    plan: RecoveryPlan,
    nodes: Sequence[RecoveryNode],
    placed: NodeRooms,
    first: Mask,
    rooms: Sequence[int],
) -> PlacedPlan:
    taken = np.zeros(len(problem.partitions), bool)
    taken[list(placed.node_of)] = True
    final = problem.plan(plan.algorithm, taken, bound=plan.bound, seeds=plan.seeds, notes=plan.notes)
    names = {
        number: problem.topology.partition(int(problem.partitions[number])) for number in np.flatnonzero(taken).tolist()
    }
    placement = {names[number]: nodes[placed.node_of[number]].id for number in sorted(names)}
    needed = problem.partitions_of(problem.groups_of(problem.restored_by(first)))
    # Leftover that finds no place is no loss; what a query of the first choice needed is.
    dropped = first & ~taken & (needed if plan.algorithm != "operator-centric" else first)
    return PlacedPlan(final, placement, _reasons(problem, dropped, placed, rooms))


def _reasons(problem: RecoveryProblem, dropped: Mask, placed: NodeRooms, rooms: Sequence[int]) -> tuple[LeftOut, ...]:
    largest, left = max(rooms, default=0), max(placed.rooms, default=0)
    too_large = dropped & (problem.cost > largest)
    value = problem.units.value
    found = []
    for number in np.flatnonzero(dropped).tolist():
        cost = int(problem.cost[number])
        if cost > largest:
            reason = f"costs {value(cost):g}, more than the room of any node"
        elif (problem.partitions_of(problem.groups_of(problem.member[:, problem.group_of[number]])) & too_large).any():
            reason = "belongs to queries that need a partition too large for every node"
        elif cost > left:
            reason = f"costs {value(cost):g}, and no node has so much room left"
        else:
            reason = "has room, but the rest of its query has not: capacity is split over the nodes"
        found.append(LeftOut(problem.topology.partition(int(problem.partitions[number])), value(cost), reason))
    return tuple(found)


def placement_problems(
    problem: RecoveryProblem, placed: PlacedPlan, nodes: Sequence[RecoveryNode], bound: float = BOUND
) -> list[str]:
    """Return what is wrong with a placed plan; nothing when it may be used. Serves the run and the tests."""
    found = plan_problems(problem, placed.plan)
    if set(placed.placement) != set(placed.plan.recover):
        found.append("what is placed is not what is recovered")
    rooms = dict(zip([node.id for node in nodes], rooms_of(problem, nodes, bound), strict=True))
    costs = problem.units.costs(problem.topology.cost[problem.topology.indices(placed.placement)])
    for (partition, node), cost in zip(placed.placement.items(), costs.tolist(), strict=True):
        if node not in rooms:
            found.append(f"{partition} is on {node}, which is not there")
            continue
        rooms[node] -= cost
    found += [
        f"{node} is above its bound by {problem.units.value(-room):g}" for node, room in rooms.items() if room < 0
    ]
    both = {one.partition for one in placed.left_out} & set(placed.plan.recover)
    if both:
        found.append(f"{min(both)} is left out and recovered")
    return found


def node_ids(count: int) -> list[NodeId]:
    """Name nodes in the order they are given: N1, N2, …"""
    return [NodeId(f"N{number + 1}") for number in range(count)]
