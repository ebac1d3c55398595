"""Where partitions go at the start, and how many exchanges a cycle needs for it. Runs on the driver; pure."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.ids import PartitionId
from holdfast.topology import Topology


def place_evenly(topology: Topology, slots: int) -> dict[PartitionId, int]:
    """Spread partitions over slots: neighbours of one key range together, lone partitions in turn.

    Partition i of N goes to slot floor(i * slots / N): where keys nest, an upstream and a downstream partition of the
    same range meet on one node, and their blocks stay there.
    """
    placement: dict[PartitionId, int] = {}
    turn = 0
    for number in topology.operator_order:
        many = topology.operators[number].parallelism
        for index in range(many):
            partition = topology.partition(int(topology.first[number]) + index)
            if many == 1:
                placement[partition] = turn % slots
                turn += 1
            else:
                placement[partition] = index * slots // many
    return placement


def levels_needed(topology: Topology, placement: Mapping[PartitionId, int]) -> int:
    """Return how many levels of work bring a batch from the sources to every output: one more than node changes."""
    slot = [placement[partition] for partition in topology.partitions()]
    changes = [0] * len(topology)
    for partitions in topology.partitions_by_level:
        for p in partitions.tolist():
            for u in topology.upstream(p).tolist():
                changes[p] = max(changes[p], changes[u] + (slot[u] != slot[p]))
    return max(changes) + 1
