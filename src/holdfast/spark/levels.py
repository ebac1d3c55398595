"""How many exchanges a cycle needs for a placement. Runs on the driver; pure."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.ids import PartitionId
from holdfast.topology import Topology


def levels_needed(topology: Topology, placement: Mapping[PartitionId, int]) -> int:
    """Return how many levels of work bring a batch from the sources to every output: one more than node changes.

    Partitions that are placed nowhere take nothing, and send nothing.
    """
    slot = [placement.get(partition) for partition in topology.partitions()]
    changes = [0] * len(topology)
    for partitions in topology.partitions_by_level:
        for p in partitions.tolist():
            for u in topology.upstream(p).tolist():
                if slot[u] is not None and slot[p] is not None:
                    changes[p] = max(changes[p], changes[u] + (slot[u] != slot[p]))
    return max(changes) + 1
