"""Which partitions of a joint plan have a replica, and which replicas find room. Pure; runs anywhere.

Replicas run on other nodes than their primaries, in what primaries leave within the bound. Runs place primaries on the
node with most room and then the replicas, those that recovery times rest on first; so it is counted here, with nodes
that are alike. A replica that finds no room takes over from nobody, and nothing is promised of it.
"""

from __future__ import annotations

import math
from heapq import heapify, heapreplace

import numpy as np
from numpy.typing import NDArray

from holdfast.ids import NodeId
from holdfast.planning.joint.targets import Assumptions
from holdfast.planning.replicas.budget import ReplicaBudget, most_within_cores
from holdfast.planning.replicas.fidelity import LossModel
from holdfast.planning.replicas.placement import Replica, ReplicaNode, place_replicas
from holdfast.planning.replicas.structure_aware import structure_aware
from holdfast.topology import Topology

Mask = NDArray[np.bool_]

MOVED_UP_TO = 200
"""Replicas up to which those placed before move to make room, as in a run; with more that takes seconds."""
_ROUNDING = 1e-9


def replica_mask(topology: Topology, budget: ReplicaBudget) -> Mask:
    """Return the partitions that PPA replicates within a budget, for the most fidelity."""
    mask = np.zeros(len(topology), bool)
    if not budget.any:
        return mask
    loss, count = LossModel(topology), budget.count_for(topology)

    def plan(most: int) -> list[int]:
        return list(structure_aware(loss, most)) if most else []

    def cost(chosen: list[int]) -> float:
        return float(topology.cost[chosen].sum())

    if count is None:
        mask[most_within_cores(len(topology), plan, cost, budget.cores or 0.0)] = True
    else:
        mask[plan(min(count, len(topology)))] = True
    return mask


def fixed_replicas(topology: Topology, replicas: Mask) -> Mask:
    """Return the replicas of a plan that are not there for fidelity: recovery times rest on them, and they stay."""
    if not replicas.any():
        return replicas
    return replicas & ~replica_mask(topology, ReplicaBudget(count=int(replicas.sum())))


def replicas_with_room(topology: Topology, replicas: Mask, assumed: Assumptions) -> Mask:
    """Return the replicas that find room on the nodes; all of them where nodes or their cores are not known."""
    if not replicas.any() or not assumed.nodes or (math.isinf(assumed.cores) and assumed.nodes > 1):
        return replicas
    if assumed.nodes == 1:
        return np.zeros(len(topology), bool)
    primaries, room = _primaries(topology, assumed)
    if replicas.sum() > MOVED_UP_TO:
        return _one_by_one(topology, replicas, primaries, np.array(room))
    nodes = [ReplicaNode(NodeId(f"n{number}"), left) for number, left in enumerate(room)]
    fixed = fixed_replicas(topology, replicas)
    found = replicas.copy()
    asked = [
        Replica(topology.partition(one), NodeId(f"n{primaries[one]}"), cost=float(topology.cost[one]))
        for one in [*np.flatnonzero(fixed).tolist(), *np.flatnonzero(replicas & ~fixed).tolist()]
    ]
    found[topology.indices([one.partition for one in place_replicas(asked, nodes).left_out])] = False
    return found


def _one_by_one(topology: Topology, replicas: Mask, primaries: list[int], room: NDArray[np.float64]) -> Mask:
    """Place each replica on the node with most room besides its primary's; none moves, so a run places no fewer."""
    found = replicas.copy()
    for one in np.flatnonzero(replicas).tolist():
        own, cost = primaries[one], float(topology.cost[one])
        kept, room[own] = float(room[own]), -math.inf
        node = int(room.argmax())
        found[one] = room[node] + _ROUNDING >= cost
        room[node] -= cost if found[one] else 0.0
        room[own] = kept
    return found


def _primaries(topology: Topology, assumed: Assumptions) -> tuple[list[int], list[float]]:
    """Place each partition on the node with most room, the largest first; return where, and what is left there."""
    rooms = [(-assumed.cores * assumed.bound, number) for number in range(assumed.nodes)]
    heapify(rooms)
    at = [0] * len(topology)
    for one in np.argsort(-topology.cost, kind="stable").tolist():
        room, at[one] = rooms[0]
        heapreplace(rooms, (room + float(topology.cost[one]), at[one]))
    return at, [-room for room, _ in sorted(rooms, key=lambda one: one[1])]
