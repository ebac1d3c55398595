"""Versions of a partition's state: one per batch and epoch, each a list of segments that never change. Runs anywhere.

A *commit* is the record that a partition has completed a batch: which segments make its state, where its output is, the
watermark. It is written last and at once, so what it names is there; what no commit names never happened. Most segments
of a commit were written by earlier ones: a commit is a base and changes without either being copied.

A *pointer* says which commit a partition goes on from, and in which epoch. The pointer, the commits before it by their
parents and those after it in its epoch are the partition's *chain*. Going back to an earlier batch is writing a
pointer; commits of an abandoned chain, and those an old epoch still writes, are not on the chain.

Files of segments: what one batch added to a partition's state, as memory-mapped Arrow streams. Runs on a node.

    8 bytes "HFRUNS1\\n" | Arrow IPC streams, one per state table, each at a multiple of 64 | index (JSON)
    u32 CRC-32 of the index | u32 length of the index | 8 bytes "HFRUNS1\\n"

The index names each stream's table, place, length, CRC-32 and segments (one record batch each, numbered over the file).
A segment with more than 2 GiB of text in a column is several record batches: then the index has their numbers as well.
All of it is checked when the file is first opened; a file that is torn or changed counts as lost.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NewType

import pyarrow as pa

from holdfast.erasure.checksums import crc32
from holdfast.errors import BadInput, CheckFailed
from holdfast.ids import BatchId, Epoch, PartitionId
from holdfast.runtime.times import Watermark

SEGMENTS_MAGIC = _MAGIC = b"HFRUNS1\n"
_TAIL = struct.Struct("<II8s")
_ALIGN = 64


def encode_segments(tables: Mapping[str, Sequence[pa.Table]]) -> bytes:
    """Write the segments of some tables; they are numbered in the order given."""
    return b"".join(segment_pieces(tables))


def segment_pieces(tables: Mapping[str, Sequence[pa.Table]]) -> list[bytes | memoryview]:
    """As `encode_segments`, in pieces that belong behind each other: who writes them need not copy them."""
    parts: list[bytes | memoryview] = [_MAGIC]
    at, index, number = len(_MAGIC), [], 0
    for name, segments in tables.items():
        if not segments:
            continue
        padding = -at % _ALIGN
        sink = pa.BufferOutputStream()
        counts = write_stream(sink, name, segments)
        stream = memoryview(sink.getvalue())
        parts += [bytes(padding), stream]
        at += padding
        index.append(index_entry(name, at, len(stream), crc32(stream), number, counts))
        at += len(stream)
        number += len(segments)
    return [*parts, segments_index(index)]


def index_entry(name: str, at: int, length: int, check: int, first: int, counts: Sequence[int]) -> list[Any]:
    """Return what the index has of a stream: `counts` are the record batches of its segments, written where not 1."""
    entry = [name, at, length, check, first, len(counts)]
    return entry if set(counts) <= {1} else [*entry, list(counts)]


def segments_index(index: Sequence[Sequence[Any]]) -> bytes:
    """Return the end of a file of segments, with an entry (`index_entry`) of each stream."""
    text = json.dumps(index, separators=(",", ":"), ensure_ascii=False).encode()
    return text + _TAIL.pack(crc32(text), len(text), _MAGIC)


def decode_segments(data: pa.Buffer) -> list[pa.Table]:
    """Read all segments, in their numbers' order, without copying them; what is torn or changed is refused."""
    view = memoryview(data)
    if len(view) < len(_MAGIC) + _TAIL.size or bytes(view[: len(_MAGIC)]) != _MAGIC:
        raise _torn("does not begin like one")
    check, length, magic = _TAIL.unpack_from(view, len(view) - _TAIL.size)
    begin = len(view) - _TAIL.size - length
    if magic != _MAGIC or begin < len(_MAGIC):
        raise _torn("ends in the middle")
    text = view[begin : begin + length]
    if crc32(text) != check:
        raise _torn("has a changed index")
    segments: list[pa.Table] = []
    for _, at, size, stream_check, _, many, *more in json.loads(bytes(text)):
        if at + size > begin or crc32(view[at : at + size]) != stream_check:
            raise _torn("has changed rows")
        with pa.ipc.open_stream(data.slice(at, size)) as reader:
            found = list(reader)
        counts = more[0] if more else [1] * many
        if len(found) != sum(counts) or len(counts) != many:
            raise _torn("has another number of segments than its index says")
        ends = accumulate(counts, initial=0)
        segments += [pa.Table.from_batches(found[start:end]) for start, end in pairwise(ends)]
    return segments


def write_stream(sink: pa.NativeFile, name: str, segments: Sequence[pa.Table]) -> list[int]:
    """Write the segments of one table as an Arrow stream; return how many record batches each of them is."""
    schema, counts = segments[0].schema, []
    with pa.ipc.new_stream(sink, schema) as writer:
        for segment in segments:
            if not segment.schema.equals(schema):
                raise BadInput(
                    f"the columns of state table {name!r} changed from {_names(schema)} to {_names(segment.schema)}",
                    remedy="give every batch's rows the same columns and types; declare them with schema=",
                )
            batches = _batches(segment)
            for batch in batches:
                writer.write_batch(batch)
            counts.append(len(batches))
    return counts


def _batches(segment: pa.Table) -> list[pa.RecordBatch]:
    """Return a segment as one record batch, as several where one cannot have so much text."""
    # Arrow gives none of a table without rows, and several where the offsets of a column would not fit.
    return segment.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], schema=segment.schema)]


def _names(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _torn(what: str) -> CheckFailed:
    return CheckFailed(f"a file of segments {what}", remedy="it counts as lost: restore from a checkpoint")


# -- versions ----------------------------------------------------------------------------------------------------------


NO_BATCH = BatchId(-1)
"""The frontier of a partition that has completed nothing."""

GONE = "@gone"
"""The state table of a version whose output is kept but whose state is not: loading it finds nothing."""

FileName = NewType("FileName", str)
"""A file of segments or blocks, within its partition."""


@dataclass(frozen=True, slots=True, order=True)
class VersionId:
    """One version of a partition's state."""

    batch: BatchId
    epoch: Epoch


@dataclass(frozen=True, slots=True, order=True)
class SegmentRef:
    """Where a segment is: a file, and its number there."""

    file: FileName
    number: int


@dataclass(frozen=True, slots=True)
class Commit:
    """That a partition has completed a batch, and all that came of it."""

    partition: PartitionId
    id: VersionId
    parent: VersionId | None
    watermark: Watermark
    segments: Mapping[str, tuple[SegmentRef, ...]]
    blocks: FileName | None = None
    """Its output blocks that have rows; None: barriers alone."""
    late_rows: int = 0
    """Rows kept aside so far, over all batches of the chain."""
    rows_in: int = 0
    rows_out: int = 0
    """Rows taken and given so far, over all batches of the chain."""
    state_bytes: int = 0
    tentative: bool = False

    @property
    def files(self) -> set[FileName]:
        """The files its state is in."""
        return {ref.file for refs in self.segments.values() for ref in refs}


@dataclass(frozen=True, slots=True)
class Pointer:
    """Which version a partition goes on from (None: from nothing), and in which epoch."""

    epoch: Epoch
    at: VersionId | None


@dataclass(frozen=True, slots=True)
class VersionChain:
    """The commits that count for a partition, by batch."""

    pointer: Pointer
    commits: Mapping[BatchId, Commit]

    @property
    def frontier(self) -> BatchId:
        """The last batch completed."""
        return max(self.commits, default=NO_BATCH)

    @property
    def last(self) -> Commit | None:
        """The commit at the frontier."""
        return self.commits.get(self.frontier)


def chain_of(pointer: Pointer, commits: Mapping[VersionId, Commit]) -> VersionChain | None:
    """Find the chain; None where the version pointed at is not there."""
    found: dict[BatchId, Commit] = {}
    at = pointer.at
    if at is not None and at not in commits:
        return None
    earlier = at
    while earlier is not None and (commit := commits.get(earlier)) is not None:
        found[earlier.batch] = commit
        earlier = commit.parent
    while (commit := commits.get(VersionId(BatchId((at.batch if at else NO_BATCH) + 1), pointer.epoch))) is not None:
        if commit.parent != at:
            break
        at = commit.id
        found[at.batch] = commit
    return VersionChain(pointer, found)


def encode_record(record: Commit | Pointer) -> bytes:
    """Write a record as one line of JSON with its CRC-32 before it."""
    text = json.dumps(record_fields(record), separators=(",", ":"), ensure_ascii=False, sort_keys=True).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def decode_commit(data: bytes) -> Commit:
    """Read a commit; what is torn or changed is refused."""
    return commit_of_fields(_checked(data))


def commit_of_fields(fields: Mapping[str, Any]) -> Commit:
    """Return the commit that some fields describe."""
    return Commit(
        PartitionId.parse(fields["partition"]),
        _version(fields["id"]),
        None if fields["parent"] is None else _version(fields["parent"]),
        fields["watermark"],
        {name: tuple(SegmentRef(FileName(f), n) for f, n in refs) for name, refs in fields["segments"].items()},
        fields["blocks"],
        fields["late_rows"],
        fields["rows_in"],
        fields["rows_out"],
        fields["state_bytes"],
        fields["tentative"],
    )


def decode_pointer(data: bytes) -> Pointer:
    """Read a pointer; what is torn or changed is refused."""
    return pointer_of_fields(_checked(data))


def pointer_of_fields(fields: Mapping[str, Any]) -> Pointer:
    """Return the pointer that some fields describe."""
    return Pointer(Epoch(fields["epoch"]), None if fields["at"] is None else _version(fields["at"]))


def record_fields(record: Commit | Pointer) -> dict[str, Any]:
    """Return a record as JSON has it."""
    if isinstance(record, Pointer):
        return {"epoch": record.epoch, "at": _pair(record.at)}
    return {
        "partition": str(record.partition),
        "id": _pair(record.id),
        "parent": _pair(record.parent),
        "watermark": record.watermark,
        "segments": {name: [[ref.file, ref.number] for ref in refs] for name, refs in record.segments.items()},
        "blocks": record.blocks,
        "late_rows": record.late_rows,
        "rows_in": record.rows_in,
        "rows_out": record.rows_out,
        "state_bytes": record.state_bytes,
        "tentative": record.tentative,
    }


def _pair(version: VersionId | None) -> list[int] | None:
    return None if version is None else [version.batch, version.epoch]


def _version(pair: list[int]) -> VersionId:
    return VersionId(BatchId(pair[0]), Epoch(pair[1]))


def _checked(data: bytes) -> dict[str, Any]:
    check, _, text = data.removesuffix(b"\n").partition(b" ")
    if not data.endswith(b"\n") or check != b"%08x" % zlib.crc32(text):
        raise CheckFailed("a record is torn or changed", remedy="it counts as lost: restore from a checkpoint")
    fields: dict[str, Any] = json.loads(text)
    return fields
