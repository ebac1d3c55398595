"""Which queries are held back where outboxes are full (paper 000, sec. 4.2, leaves it open). Pure."""

from __future__ import annotations

from collections.abc import Set

from holdfast.ids import PartitionId
from holdfast.recovery.wiring import Wiring


def paused_next(wiring: Wiring, paused: Set[PartitionId], dead: Set[PartitionId]) -> Set[PartitionId]:
    """Return the queries to hold back next: first those that give nothing now, then the least valuable live one."""
    if not dead <= paused:
        return dead
    topology = wiring.topology
    live = [query for query in wiring.outputs if query not in paused]
    return {min(live, key=lambda query: (int(topology.priority[topology.index(query)]), query))} if live else set()
