"""Which queries are held back where outboxes are full (incremental recovery, sec. 4.2, leaves it open). Pure."""

from __future__ import annotations

from collections.abc import Set

from holdfast.ids import PartitionId
from holdfast.recovery.graph import PartitionGraph


def paused_next(graph: PartitionGraph, paused: Set[PartitionId], dead: Set[PartitionId]) -> Set[PartitionId]:
    """Return the queries to hold back next: first those that give nothing now, then the least valuable live one."""
    if not dead <= paused:
        return dead
    topology = graph.topology
    live = [query for query in graph.outputs if query not in paused]
    return {min(live, key=lambda query: (int(topology.priority[topology.index(query)]), query))} if live else set()
