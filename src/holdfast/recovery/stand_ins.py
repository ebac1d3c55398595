"""Stand-ins: who runs the branch of an output partition that is lost and waits for a node, and where. Pure.

A live partition has its branch where its clean line stands. A lost output partition has no such place: while it waits
for room, a *stand-in* on another node begins with what the partition will start from itself, its last clean snapshot,
and takes what senders keep for it from there. So it lacks nothing but what the holes upstream lack, and the loss model
counts it as alive. It is of the branch's line: in memory, never saved, dropped in every new epoch, and the partition
itself neither waits for it nor takes anything of it.

It has a cost. A plan fills nodes up to their bound; a stand-in may take what is left of a node's capacity above that,
beside primaries and copies, and nothing where none is left. Its snapshots are fetched when nothing is being restored
that they could delay. What serves further partitions gets none: these go on without it, as with every hole.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from holdfast.ids import NodeId, PartitionId
from holdfast.recovery.copies import costs
from holdfast.recovery.states import PartitionState

if TYPE_CHECKING:
    from holdfast.recovery.cluster_state import ClusterState

_ROUNDING = 1e-9


def can_have(state: ClusterState, query: PartitionId) -> bool:
    """Whether an output partition can have a stand-in: it waits for a node, and all that it needs is kept for it.

    Not at a start, where nodes come one by one: its query has been whole since the driver began, or people have chosen
    it since.
    """
    graph = state.graph
    return (
        state.partitions[query].state is PartitionState.LOST
        and query in state.branches.whole
        and query not in state.dropped
        and bool(graph.senders(query))
        and not graph.consumers(query)
    )


def place_stand_ins(state: ClusterState, queries: Collection[PartitionId]) -> dict[PartitionId, NodeId]:
    """Return where stand-ins of lost output partitions run now, the most valuable queries first."""
    wanted = [q for q in queries if can_have(state, q)]
    if not wanted or state.in_state([PartitionState.RESTORING]):
        return {}
    cost, copies, topology = costs(state), state.copies, state.graph.topology
    room = {node: capacity for node, capacity in state.nodes.items() if node not in copies.leaving}
    for p, node in [*state.placement.items(), *copies.placement.items()]:
        if node in room:
            room[node] -= cost[p]
    found: dict[PartitionId, NodeId] = {}
    before = state.branches.now.stand_ins
    for q in sorted(wanted, key=lambda one: (-int(topology.priority[topology.index(one)]), one)):
        fits = [node for node in sorted(room) if room[node] >= cost[q] - _ROUNDING]
        if fits:
            node = held if (held := before.get(q)) in fits else max(fits, key=lambda one: room[one])
            found[q] = node
            room[node] -= cost[q]
    return found
