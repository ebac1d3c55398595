"""Which queries pause where outboxes are full, and which pause in vain. Pure.

A pause is of use only where senders keep blocks that nothing but the return of somebody frees: for a partition that is
restored, that returns and gets the rest regenerated, that serves tentative outputs, or whose inputs are not made again
the same. What is kept for all others that wait is dropped once the checkpoint of a sender is past theirs (`to_drop`);
and live queries that paused would never come to that checkpoint: nothing would ever be dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.ids import PartitionId
from holdfast.recovery.regeneration import can_be_dropped, waiting
from holdfast.recovery.states import PartitionState

if TYPE_CHECKING:
    from holdfast.recovery.cluster_state import ClusterState


def feeding(state: ClusterState) -> set[PartitionId]:
    """Return the partitions whose outboxes grow, as long as they are at work, by what cannot be dropped.

    Senders keep blocks for queries that pause as well: who feeds these counts, where they pause for a reason.
    """
    graph = state.graph
    # What a sink does not take is kept where it was made, and made on for others.
    found = {query for query in state.parked if not state.serves_parked_only(query)}
    for p in _kept_for(state):
        found.update(graph.senders(p))
    left = set(state.paused)
    while more := {query for query in left if not found.isdisjoint(graph.members(query))}:
        left -= more
        for query in more:
            for p in graph.members(query):
                if state.paused.issuperset(graph.queries_of(p)):
                    found.update(graph.senders(p))
    return found


def next_to_pause(state: ClusterState) -> PartitionId | None:
    """Return the least valuable query whose pause can bound what is kept; None: there is none.

    What other queries send is kept for nobody that waits. One that returns does not pause: all would be kept for it
    until it has.
    """
    feeds, topology = feeding(state), state.graph.topology
    return min(
        (
            query
            for query in state.graph.outputs
            if query not in state.paused
            and not feeds.isdisjoint(state.graph.members(query))
            and state.dropped.isdisjoint(state.graph.members(query))
        ),
        key=lambda query: (int(topology.priority[topology.index(query)]), query),
        default=None,
    )


def paused_in_vain(state: ClusterState) -> set[PartitionId]:
    """Return the queries that are whole, and pause for nobody any more, or return themselves."""
    if not state.paused:
        return set()
    feeds, members = feeding(state), state.graph.members
    return {
        query
        for query in state.paused
        if state.available(query) and (feeds.isdisjoint(members(query)) or not state.dropped.isdisjoint(members(query)))
    }


def _kept_for(state: ClusterState) -> list[PartitionId]:
    """Return the partitions for which senders keep what they cannot drop until these are back."""
    away, stopped = waiting(state), set[PartitionId]()
    found = []
    for p in state.graph.order:
        restores = state.partitions[p].state is PartitionState.RESTORING
        if p in away or restores or not stopped.isdisjoint(state.graph.senders(p)):
            stopped.add(p)
        if p in state.dropped:
            if p not in away:
                found.append(p)  # it returns: from now on all is kept for it
        elif p in stopped and not (p in away and can_be_dropped(state, p)):
            found.append(p)
    return found
