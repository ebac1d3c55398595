"""Queries: an output partition and everything upstream of it (incremental recovery, Definition 1). Runs anywhere.

Membership is kept as bits, one row per partition and one bit per query, so that ten thousand queries over ten thousand
partitions take 12.5 MB. A partition belongs to the queries of its consumers, and to its own where it is an output.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from holdfast.topology.model import Floats, Ints, Topology
from holdfast.topology.operators import Partitioning

_GATHER_BYTES = 32 * 2**20
_KEPT_ENTRIES = 1 << 20
"""Of a membership matrix up to this size the truth values are kept: a recovery asks for them with every plan."""


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
        """Return, for each query, the sum of a value (for example a cost) over its partitions."""
        total = np.zeros(len(self))
        step = max(1, _GATHER_BYTES // max(1, len(self) * 8))
        for start in range(0, len(self.topology), step):
            part = np.unpackbits(self._bits[start : start + step], axis=1, count=len(self), bitorder="little")
            total += value[start : start + step].astype(np.float64) @ part.astype(np.float64)
        return total

    def matrix(self, queries: Ints | None = None) -> NDArray[np.bool_]:
        """Return membership as truth values, one row per query (all, or those given), one column per partition."""
        if queries is None and len(self) * len(self.topology) <= _KEPT_ENTRIES:
            return self._whole
        return self._matrix(np.arange(len(self)) if queries is None else np.asarray(queries, np.int64))

    @cached_property
    def _whole(self) -> NDArray[np.bool_]:
        found = self._matrix(np.arange(len(self)))
        found.setflags(write=False)
        return found

    def _matrix(self, chosen: Ints) -> NDArray[np.bool_]:
        bits = self._bits[:, chosen >> 3] >> (chosen & 7).astype(np.uint8) & np.uint8(1)
        return np.ascontiguousarray(bits.T).astype(bool)


def _membership(topology: Topology) -> NDArray[np.uint8]:
    heads = topology.outputs
    bits = np.zeros((len(topology), (len(heads) + 7) // 8), np.uint8)
    order = np.arange(len(heads))
    bits[heads, order >> 3] = np.uint8(1) << (order & 7).astype(np.uint8)
    wide = _wide_links(topology)
    by_level: list[list[int]] = [[] for _ in topology.partitions_by_level]
    for link in np.flatnonzero(wide).tolist():
        by_level[topology.operator_level[topology.link_from[link]]].append(link)
    narrow = topology.down_edges[~wide[topology.stream_link[topology.edge_stream[topology.down_edges]]]]
    count = np.bincount(topology.edge_from[narrow], minlength=len(topology))
    start: Ints = np.concatenate([[0], np.cumsum(count)]).astype(np.int64)
    consumers = topology.edge_to[narrow]
    step = max(1, _GATHER_BYTES // max(1, bits.shape[1]))
    for level in reversed(range(len(by_level))):
        for link in by_level[level]:
            up, down = (_own(topology, int(end[link])) for end in (topology.link_from, topology.link_to))
            bits[up] |= np.bitwise_or.reduce(bits[down], axis=0)
        partitions = topology.partitions_by_level[level]
        senders = partitions[start[partitions + 1] > start[partitions]]
        # Gather the consumers' rows in pieces of bounded size, whole partitions at a time.
        piece = (np.cumsum(start[senders + 1] - start[senders]) - 1) // step
        for number in np.unique(piece):
            _take_consumers(bits, senders[piece == number], start, consumers)
    return bits


def _wide_links(topology: Topology) -> NDArray[np.bool_]:
    """Return which links are full between several partitions: all their upstream partitions get the same members."""
    full = topology.link_kind == list(Partitioning).index(Partitioning.FULL)
    several = (topology.parallelism[topology.link_from] > 1) & (topology.parallelism[topology.link_to] > 1)
    return np.asarray(full & several, bool)


def _own(topology: Topology, operator: int) -> slice:
    return slice(int(topology.first[operator]), int(topology.first[operator + 1]))


def _take_consumers(bits: NDArray[np.uint8], senders: Ints, start: Ints, consumers: Ints) -> None:
    begin = start[senders]
    width = start[senders + 1] - begin
    places = np.concatenate([[0], np.cumsum(width)[:-1]])
    rows = bits[consumers[np.arange(int(width.sum())) + np.repeat(begin - places, width)]]
    bits[senders] |= np.bitwise_or.reduceat(rows, places, axis=0)
