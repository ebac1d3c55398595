"""From a partition's output to the blocks of its consumers, for every partitioning. Runs anywhere.

Rows of a key go where the hash of the key belongs among the consumer's partitions; rows without a key stay together
as far as the edge allows: a split cuts the table into slices of equal length, in order. Every target gets a block, with
or without rows: the barrier goes to all of them.

Keys to partitions: one hash, the same on every machine and in every version of Python. Runs anywhere.

A partition of an operator with n partitions holds the n-th part of the range of hashes, so partitions of the same key
nest where one count divides the other: no full exchange is needed between them (decision 0005). The hash is ours,
not Arrow's, not Python's: state outlives both (decision 0050). Equal values hash alike whatever their width: 1 as
int8, int64 and 1.0; "é" as string and large_string; the same moment in seconds and in microseconds.

The words of a value (8 bytes, little-endian) are mixed one after the other, starting from its length, and finished with
the mixer of splitmix64; columns are mixed in order; a null is a word of its own. Texts above 256 bytes are hashed with
BLAKE2b instead, one by one: a few long values must not cost a round over all rows each.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.errors import BadInput, CheckFailed
from holdfast.ids import PartitionId
from holdfast.runtime.blocks import Edge
from holdfast.runtime.times import Ints
from holdfast.topology import Partitioning

Hashes: TypeAlias = NDArray[np.uint64]

_LONG = 256
_FEW = 1024
_NULL = np.uint64(0x9E6C63D0676A9A99)
_TEXT = np.uint64(0x2545F4914F6CDD1D)
_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)
_ONE = np.uint64(1)
_TIME_UNITS = {"s": 1_000_000, "ms": 1000, "us": 1}


def partition_of(hashes: Hashes, count: int) -> Ints:
    """Return the partition of each hash among `count`: the hash's place in its range, times the count."""
    return ((hashes >> np.uint64(32)) * np.uint64(count) >> np.uint64(32)).astype(np.int64)


def hash_rows(table: pa.Table, columns: Sequence[str]) -> Hashes:
    """Hash each row's values in these columns; a column that is not there or cannot be hashed is refused."""
    total = np.zeros(table.num_rows, np.uint64)
    for column in columns:
        if column not in table.column_names:
            raise BadInput(f"there is no key column {column!r}", remedy=f"there are {', '.join(table.column_names)}")
        try:
            hashed = hash_column(table[column])
        except BadInput as error:
            raise BadInput(f"key column {column!r} {error.what}", remedy=error.remedy) from None
        total = _mixed(total * _STEP + hashed)
    return total


def hash_column(values: pa.ChunkedArray | pa.Array) -> Hashes:
    """Hash each value of one column."""
    if isinstance(values, pa.ChunkedArray):
        values = values.chunk(0) if values.num_chunks == 1 else values.combine_chunks()
    kind = values.type
    if len(values) > _FEW and (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        # Keys repeat: Arrow finds the different ones faster than they are hashed.
        values = values.dictionary_encode()
    if pa.types.is_dictionary(values.type):
        codes = np.asarray(values.indices.fill_null(0)).astype(np.int64)
        words = np.append(_hash_plain(values.dictionary), _NULL)  # an empty dictionary has only nulls
        hashed: Hashes = words[codes]
    else:
        hashed = _hash_plain(values)
    if values.null_count:
        hashed = np.where(np.asarray(values.is_null()), _NULL, hashed)
    return hashed


def _hash_plain(values: pa.Array) -> Hashes:
    """Hash values that are not null; what comes of nulls does not matter."""
    kind = values.type
    if pa.types.is_null(kind):
        return np.zeros(len(values), np.uint64)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return _hash_bytes(values.cast(pa.large_string()).cast(pa.large_binary()))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return _hash_bytes(values.cast(pa.large_binary()))
    return _mixed(_number_words(values) + _STEP)


def _mixed(words: Hashes) -> Hashes:
    """Spread every bit over all others (the finisher of splitmix64, a bijection)."""
    words = (words ^ (words >> np.uint64(30))) * _MIX1
    words = (words ^ (words >> np.uint64(27))) * _MIX2
    return words ^ (words >> np.uint64(31))


def _number_words(values: pa.Array) -> Hashes:
    """Return one word per value; equal numbers give equal words, whatever their type."""
    kind = values.type
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        if values.null_count:
            values = values.fill_null(False if pa.types.is_boolean(kind) else 0)
        plain = np.asarray(values)
        return plain.astype(np.uint64) if plain.dtype == np.uint64 else plain.astype(np.int64).view(np.uint64)
    if pa.types.is_floating(kind):
        numbers = np.asarray(values.cast(pa.float64()).fill_null(0.0), dtype=np.float64) + 0.0  # -0.0 becomes 0.0
        numbers = np.where(np.isnan(numbers), np.nan, numbers)  # one NaN for all
        whole = (np.abs(numbers) < 2.0**63) & (numbers == np.floor(numbers))
        words: Hashes = numbers.astype("<f8").view("<u8").astype(np.uint64)
        words[whole] = numbers[whole].astype(np.int64).view(np.uint64)
        return words
    if pa.types.is_timestamp(kind):
        counts = np.asarray(values.cast(pa.int64()).fill_null(0), dtype=np.int64)
        if kind.unit == "ns":
            rest = (counts % 1000).astype(np.uint64)
            return (counts // 1000).view(np.uint64) + rest * _TEXT
        return (counts * _TIME_UNITS[kind.unit]).view(np.uint64)
    if pa.types.is_date32(kind):
        return np.asarray(values.cast(pa.int32()).fill_null(0)).astype(np.int64).view(np.uint64)
    raise BadInput(
        f"is {kind}, which cannot be hashed", remedy="key by texts, numbers, times or bytes; map the value to one first"
    )


def _hash_bytes(values: Any) -> Hashes:
    """Hash texts: eight bytes a round for all that are long enough, from Arrow's own buffers, copying nothing big."""
    many = len(values)
    if many == 0:
        return np.zeros(0, np.uint64)
    _, offset_buffer, data_buffer = values.buffers()
    offsets = np.frombuffer(offset_buffer, np.int64, many + 1, values.offset * 8)
    starts, lengths = offsets[:-1], np.diff(offsets)
    hashed = _mixed(lengths.astype(np.uint64) * _STEP + _TEXT)
    first, last = int(offsets[0]), int(offsets[-1])
    data = np.zeros((last - first) // 8 * 8 + 16, np.uint8)  # padded, so that reading a whole word is always allowed
    if last > first:
        data[: last - first] = np.frombuffer(data_buffer, np.uint8, last - first, first)
    words = data.view("<u8")
    place = starts - first
    active = np.flatnonzero((lengths > 0) & (lengths <= _LONG))
    done = 0
    while len(active):
        at = place[active] + done
        shift = ((at & 7) << 3).astype(np.uint64)
        index = at >> 3
        low = words[index] >> shift
        # A shift by 64 is not defined: shift by 63 and once more.
        high = (words[index + 1] << (np.uint64(63) - shift)) << np.uint64(1)
        word = (low | high).astype(np.uint64)
        left = lengths[active] - done
        partial = left < 8
        word = np.where(partial, word & ((np.uint64(1) << (np.minimum(left, 7) << 3).astype(np.uint64)) - _ONE), word)
        hashed[active] = _mixed(hashed[active] * _STEP + word)
        done += 8
        active = active[left > 8]
    for row in np.flatnonzero(lengths > _LONG):
        begin = int(place[row])
        digest = hashlib.blake2b(data[begin : begin + int(lengths[row])].data, digest_size=8).digest()
        hashed[row] = np.uint64(int.from_bytes(digest, "little"))
    return hashed


# -- routing -----------------------------------------------------------------------------------------------------------


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
    counts = np.bincount(places, minlength=count)
    if counts[places[0]] == len(places):
        return [table if place == places[0] else None for place in range(count)]
    small = places.astype(np.uint8 if count <= 256 else np.uint16 if count <= 65536 else np.int64)
    order = np.argsort(small, kind="stable")  # a radix sort for small numbers
    sorted_rows = table.take(pa.array(order))
    ends = np.cumsum(counts)
    starts = ends - counts
    return [
        sorted_rows.slice(int(start), int(end - start)) if end > start else None
        for start, end in zip(starts, ends, strict=True)
    ]


def _slices(table: pa.Table, count: int) -> list[pa.Table | None]:
    bounds = [table.num_rows * number // count for number in range(count + 1)]
    return [table.slice(low, high - low) if high > low else None for low, high in pairwise(bounds)]
