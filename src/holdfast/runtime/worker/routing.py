"""From a partition's output to the blocks of its consumers, for every partitioning. Runs anywhere.

Rows of a key go where the hash of the key belongs among the consumer's partitions; rows without a key stay together
as far as the edge allows: a split cuts the table into slices of equal length, in order. Every target gets a block, with
or without rows: the barrier goes to all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from holdfast.errors import CheckFailed
from holdfast.ids import PartitionId
from holdfast.runtime.blocks import Edge
from holdfast.runtime.times import Ints
from holdfast.runtime.worker.hashing import hash_rows, partition_of
from holdfast.topology import Partitioning


@dataclass(frozen=True, slots=True)
class Route:
    """How the partitions of one operator send to those of another."""

    edge: Edge
    partitioning: Partitioning
    senders: int
    receivers: int
    keys: tuple[str, ...]
    """The columns rows are spread by; none: any partition that the edge reaches will do."""

    def targets(self, sender: int) -> range:
        """Return the consumer's partitions that one partition sends to."""
        n1, n2 = self.senders, self.receivers
        if self.partitioning is Partitioning.FULL:
            return range(n2)
        if self.partitioning is Partitioning.SPLIT:
            return range(-(-sender * n2 // n1), -(-(sender + 1) * n2 // n1))
        if self.partitioning is Partitioning.MERGE:
            target = sender * n2 // n1
            return range(target, target + 1)
        return range(sender, sender + 1)

    def receiver(self, index: int) -> PartitionId:
        """Name one of the consumer's partitions."""
        return PartitionId(self.edge.target, index)


def spread(table: pa.Table, route: Route, sender: int) -> list[pa.Table | None]:
    """Return the rows for each of the sender's targets, in order; None where there are none."""
    targets = route.targets(sender)
    if table.num_rows == 0:
        return [None] * len(targets)
    if len(targets) == 1:
        return [table]
    if not route.keys:
        return _slices(table, len(targets))
    places = partition_of(hash_rows(table, route.keys), route.receivers)
    if places.min() < targets.start or places.max() >= targets.stop:
        strayed = int(np.flatnonzero((places < targets.start) | (places >= targets.stop))[0])
        raise CheckFailed(
            f"row {strayed} has a key of {route.edge.target}[{places[strayed]}], which this edge does not reach",
            remedy="the operator's rows are not spread by the key it declared: put a map before key_by",
        )
    return cut(table, places - targets.start, len(targets))


def spread_by_key(table: pa.Table, keys: Sequence[str], count: int) -> list[pa.Table | None]:
    """Spread rows over a number of partitions by key; without a key in slices."""
    if count == 1 or table.num_rows == 0:
        return [table if table.num_rows else None] + [None] * (count - 1)
    if not keys:
        return _slices(table, count)
    return cut(table, partition_of(hash_rows(table, keys), count), count)


def cut(table: pa.Table, places: Ints, count: int) -> list[pa.Table | None]:
    """Cut a table by a number per row; rows keep their order within each piece."""
    small = places.astype(np.uint8 if count <= 256 else np.uint16 if count <= 65536 else np.int64)
    order = np.argsort(small, kind="stable")  # a radix sort for small numbers
    ends = np.cumsum(np.bincount(places, minlength=count))
    if ends[-1] == ends[int(places[0])] - (ends[int(places[0]) - 1] if places[0] else 0):
        return [table if place == places[0] else None for place in range(count)]
    sorted_rows = table.take(pa.array(order))
    starts = ends - np.bincount(places, minlength=count)
    return [
        sorted_rows.slice(int(start), int(end - start)) if end > start else None
        for start, end in zip(starts, ends, strict=True)
    ]


def _slices(table: pa.Table, count: int) -> list[pa.Table | None]:
    bounds = [table.num_rows * number // count for number in range(count + 1)]
    return [table.slice(low, high - low) if high > low else None for low, high in pairwise(bounds)]
