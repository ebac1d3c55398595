"""Which partitions move when nothing is lost: off nodes that have too much to do, to nodes that have less. Pure.

A move is a copy that takes its primary's place (`recovery.copying`): the stream goes on while it is built. Moves are
worth it only where a node is busy: while one is above a share of its bound, the busiest nodes give partitions to those
that have the least to do. And they never go back and forth: the greater load of the two nodes must fall by at least
half of what the partition costs, which the same move back cannot do; and while costs change, a partition that has moved
stays for a while, for twice as long each time. Partitions with a replica stay where they are.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from holdfast.ids import NodeId, PartitionId
from holdfast.recovery.copies import costs
from holdfast.recovery.states import PartitionState

if TYPE_CHECKING:
    from holdfast.recovery.cluster_state import ClusterState

GAP = 0.2
"""Nodes whose loads differ by no more than this share of the greater one are alike."""
MOST_MOVES = 16
"""Partitions that move together."""
_UNSETTLED = (PartitionState.LOST, PartitionState.RESTORING, PartitionState.CATCHING_UP, PartitionState.PAUSED)


def moves_for_load(state: ClusterState) -> dict[PartitionId, NodeId]:
    """Return the partitions that are to move now, and where to; none while anything else is going on."""
    settings, copies = state.settings, state.copies
    if math.isinf(settings.move_above) or not settings.promotes or copies.leaving or copies.moving:
        return {}
    if state.in_state(_UNSETTLED):
        return {}
    room = {node: settings.bound * capacity for node, capacity in sorted(state.nodes.items()) if capacity > 0}
    cost = costs(state)
    at = dict(state.placement)
    load = dict.fromkeys(room, 0.0)
    for p, node in [*at.items(), *copies.placement.items()]:
        if node in load:
            load[node] += cost[p]
    stays = {p for p in at if p in copies.at or p in copies.replicas or not _may_move(state, p)}

    def share(node: NodeId, more: float = 0.0) -> float:
        return (load[node] + more) / room[node]

    gave: set[NodeId] = set()
    """A node gives or takes, never both: until a move is done its partition is on both nodes."""

    def next_move() -> tuple[PartitionId, NodeId] | None:
        takers, givers = load.keys() - gave, load.keys() - found.values()
        least = min(takers, key=lambda node: (share(node), node))
        for full in sorted(givers, key=lambda node: (-share(node), node)):
            if share(full) - share(least) <= GAP * share(full):
                return None
            choices = [
                (after, p)
                for p, node in at.items()
                if node == full and p not in stays and p not in found
                # Half of what it costs must be won: then nothing is won by the same move back.
                if (after := max(share(full, -cost[p]), share(least, cost[p]))) <= share(full, -cost[p] / 2)
                if share(least, cost[p]) <= 1
            ]
            if choices:
                return min(choices)[1], least
        return None

    found: dict[PartitionId, NodeId] = {}
    if max(map(share, load), default=0.0) <= settings.move_above:
        return found
    while len(found) < MOST_MOVES and (chosen := next_move()) is not None:
        p, node = chosen
        gave.add(at[p])
        load[at[p]] -= cost[p]
        load[node] += cost[p]
        found[p] = at[p] = node
    return found


def _may_move(state: ClusterState, partition: PartitionId) -> bool:
    return (
        state.graph.deterministic(partition)
        and state.partitions[partition].state is PartitionState.RUNNING
        and state.copies.has_stayed(partition, state.logged)
    )
