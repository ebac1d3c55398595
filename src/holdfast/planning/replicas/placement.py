"""Where replicas run: never on the node of their primary, nor in its failure domain where domains are named.

Runs anywhere. Replicas come in the order of their worth and are placed one by one, each on the allowed node with most
room. Where none has room, replicas placed before move on to other nodes to make some, along a shortest chain of moves;
none is ever given up for a later one. With equal costs that places as many as can be placed, the first ones first (it
is a matching of replicas to places); with unequal costs it may leave out one that a perfect packing would fit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdfast.errors import BadInput
from holdfast.ids import NodeId, PartitionId

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class ReplicaNode:
    """A node that may hold replicas: how much still fits on it, and its failure domain if it is named."""

    id: NodeId
    room: float
    domain: str | None = None


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica to place: where its primary runs, the primary's domain if named, and what it costs."""

    partition: PartitionId
    primary: NodeId | None
    domain: str | None = None
    cost: float = 1.0


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A replica that could not be placed, and why."""

    partition: PartitionId
    reason: str


@dataclass(frozen=True, slots=True)
class ReplicaPlacement:
    """The node of each placed replica, and what was left out."""

    nodes: Mapping[PartitionId, NodeId]
    left_out: tuple[LeftOut, ...]


def allowed(replica: Replica, node: ReplicaNode, domain_of: Mapping[NodeId, str | None]) -> bool:
    """Return whether a replica may run on a node, room aside."""
    return node.id != replica.primary and (node.domain is None or node.domain not in _domains(replica, domain_of))


def _domains(replica: Replica, domain_of: Mapping[NodeId, str | None]) -> set[str]:
    """Return the failure domains of the primary: the one named with it, and that of its node."""
    at = None if replica.primary is None else domain_of.get(replica.primary)
    return {one for one in (replica.domain, at) if one is not None}


def place_replicas(
    replicas: Sequence[Replica], nodes: Sequence[ReplicaNode], *, domain_of: Mapping[NodeId, str | None] | None = None
) -> ReplicaPlacement:
    """Place replicas, the most valuable first. `domain_of` names domains of nodes that hold only primaries."""
    domains = {node.id: node.domain for node in nodes} | dict(domain_of or {})
    if len({node.id for node in nodes}) != len(nodes):
        raise BadInput("a node is named twice", remedy="name every node once")
    if len({replica.partition for replica in replicas}) != len(replicas):
        raise BadInput("a partition has two replicas", remedy="name every replica once")
    free = {node.id: node.room for node in nodes}
    may: dict[PartitionId, list[NodeId]] = {
        replica.partition: [node.id for node in nodes if allowed(replica, node, domains)] for replica in replicas
    }
    cost = {replica.partition: replica.cost for replica in replicas}
    on: dict[NodeId, set[PartitionId]] = {node.id: set() for node in nodes}
    at: dict[PartitionId, NodeId] = {}
    left_out: list[LeftOut] = []
    for replica in replicas:
        chain = _chain(replica.partition, may, cost, free, on)
        if chain is None:
            left_out.append(LeftOut(replica.partition, _why(replica, may[replica.partition], nodes, domains)))
            continue
        # From the far end back: each move finds the room that the one before it has made.
        for partition, node in reversed(chain):
            if partition in at:
                on[at[partition]].discard(partition)
                free[at[partition]] += cost[partition]
            at[partition] = node
            on[node].add(partition)
            free[node] -= cost[partition]
    return ReplicaPlacement(dict(at), tuple(left_out))


def _chain(
    partition: PartitionId,
    may: Mapping[PartitionId, list[NodeId]],
    cost: Mapping[PartitionId, float],
    free: Mapping[NodeId, float],
    on: Mapping[NodeId, set[PartitionId]],
) -> list[tuple[PartitionId, NodeId]] | None:
    """Return the shortest chain of moves that makes room for a replica: (who, where to), the new one first."""
    least = min([cost[partition], *(cost[one] for there in on.values() for one in there)])
    if max(free.values(), default=0.0) + _ROUNDING < least:
        return None  # whoever moves last finds nothing
    came: dict[NodeId, tuple[PartitionId, NodeId | None]] = {}
    queue: deque[tuple[PartitionId, NodeId | None]] = deque([(partition, None)])
    while queue:
        mover, source = queue.popleft()
        for node in sorted(may[mover], key=lambda one: (-free[one], one)):
            if node in came or node == source:
                continue
            came[node] = (mover, source)
            if free[node] + _ROUNDING >= cost[mover]:
                chain: list[tuple[PartitionId, NodeId]] = []
                where: NodeId | None = node
                while where is not None:
                    who, before = came[where]
                    chain.append((who, where))
                    where = before
                return chain[::-1]
            # Full: the replica that leaves it must make enough room for the one that moves in.
            for other in sorted(on[node]):
                if free[node] + cost[other] + _ROUNDING >= cost[mover]:
                    queue.append((other, node))
    return None


def _why(
    replica: Replica, may: list[NodeId], nodes: Sequence[ReplicaNode], domains: Mapping[NodeId, str | None]
) -> str:
    if not nodes:
        return "there are no nodes for replicas"
    if not may:
        named = sorted(_domains(replica, domains))
        if all(node.id == replica.primary for node in nodes):
            return f"the only node is {replica.primary}, where its primary runs"
        return f"every other node is in the failure domain of its primary ({', '.join(named)})"
    largest = max(node.room for node in nodes if node.id in set(may))
    if largest + _ROUNDING < replica.cost:
        return f"it needs {replica.cost:g}, and no allowed node has more than {largest:g}"
    return f"the {len(may)} nodes it may run on are full"


def placement_problems(
    placement: ReplicaPlacement,
    replicas: Sequence[Replica],
    nodes: Sequence[ReplicaNode],
    *,
    domain_of: Mapping[NodeId, str | None] | None = None,
) -> list[str]:
    """Return everything that is wrong with a placement; nothing: it keeps the rules."""
    domains = {node.id: node.domain for node in nodes} | dict(domain_of or {})
    by_id = {node.id: node for node in nodes}
    used = dict.fromkeys(by_id, 0.0)
    found = []
    for replica in replicas:
        at = placement.nodes.get(replica.partition)
        out = [one for one in placement.left_out if one.partition == replica.partition]
        if (at is None) == (not out):
            found.append(f"{replica.partition} is {'neither placed nor' if at is None else 'placed and'} left out")
        if at is None:
            continue
        if at not in by_id:
            found.append(f"{replica.partition} is on {at}, which is not among the nodes")
            continue
        used[at] += replica.cost
        if at == replica.primary:
            found.append(f"{replica.partition} is on {at} with its primary")
        elif not allowed(replica, by_id[at], domains):
            found.append(f"{replica.partition} on {at} is in the failure domain of its primary")
    known = {replica.partition for replica in replicas}
    found += [f"{one} is placed, but was not to be" for one in placement.nodes if one not in known]
    found += [
        f"{node.id} holds {used[node.id]:g} and has room for {node.room:g}"
        for node in nodes
        if used[node.id] > node.room + 1e-6
    ]
    return found
