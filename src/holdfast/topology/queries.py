"""Queries: an output partition and everything upstream of it (paper 000, Definition 1). Runs anywhere.

Membership is kept as bits, one row per partition and one bit per query, so that ten thousand queries over ten thousand
partitions take 12.5 MB. A partition belongs to the queries of its consumers, and to its own where it is an output.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from holdfast.topology.model import Floats, Ints, Topology

_GATHER_BYTES = 32 * 2**20


class Queries:
    """All queries of a topology; query q is headed by output partition `heads[q]`."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.heads: Ints = topology.outputs
        self.priority: Ints = topology.priority[topology.outputs]
        self._bits = _membership(topology)

    def __len__(self) -> int:
        """How many queries there are."""
        return len(self.heads)

    def members(self, query: int) -> Ints:
        """Return the partitions of a query, its head among them."""
        return np.flatnonzero(self._bits[:, query >> 3] >> np.uint8(query & 7) & np.uint8(1))

    def containing(self, partition: int) -> Ints:
        """Return the queries that need this partition."""
        return np.flatnonzero(np.unpackbits(self._bits[partition], count=len(self), bitorder="little"))

    def sizes(self) -> Ints:
        """Return how many partitions each query has."""
        return self.weight(np.ones(len(self.topology))).astype(np.int64)

    def weight(self, value: Floats) -> Floats:
        """Return, for each query, the sum of a value (a cost, say) over its partitions."""
        total = np.zeros(len(self))
        step = max(1, _GATHER_BYTES // max(1, len(self) * 8))
        for start in range(0, len(self.topology), step):
            part = np.unpackbits(self._bits[start : start + step], axis=1, count=len(self), bitorder="little")
            total += value[start : start + step] @ part
        return total

    def matrix(self, queries: Ints | None = None) -> NDArray[np.bool_]:
        """Return membership as truth values, one row per query (all, or those given), one column per partition."""
        chosen = np.arange(len(self)) if queries is None else np.asarray(queries, np.int64)
        bits = self._bits[:, chosen >> 3] >> (chosen & 7).astype(np.uint8) & np.uint8(1)
        return np.ascontiguousarray(bits.T).astype(bool)

    def share_frequency(self) -> Ints:
        """Return how many queries each partition is part of."""
        counts: Ints = np.bitwise_count(self._bits).sum(axis=1, dtype=np.int64)
        return counts


def _membership(topology: Topology) -> NDArray[np.uint8]:
    heads = topology.outputs
    bits = np.zeros((len(topology), (len(heads) + 7) // 8), np.uint8)
    order = np.arange(len(heads))
    bits[heads, order >> 3] = np.uint8(1) << (order & 7).astype(np.uint8)
    step = max(1, _GATHER_BYTES // max(1, bits.shape[1]))
    for partitions in reversed(topology.partitions_by_level):
        begin, end = topology.down_start[partitions], topology.down_start[partitions + 1]
        senders = partitions[end > begin]
        # Gather the consumers' rows in pieces that stay small, whole partitions at a time where that is possible.
        width = (topology.down_start[senders + 1] - topology.down_start[senders]).astype(np.int64)
        piece = (np.cumsum(width) - 1) // step
        for number in np.unique(piece):
            _take_consumers(topology, bits, senders[piece == number])
    return bits


def _take_consumers(topology: Topology, bits: NDArray[np.uint8], senders: Ints) -> None:
    begin = topology.down_start[senders]
    width = topology.down_start[senders + 1] - begin
    starts = np.concatenate([[0], np.cumsum(width)[:-1]])
    edges = topology.down_edges[np.arange(int(width.sum())) + np.repeat(begin - starts, width)]
    rows = bits[topology.edge_to[edges]]
    bits[senders] |= np.bitwise_or.reduceat(rows, starts, axis=0)
