"""Blocks: the rows of one batch on one edge from one partition to another, with a header. Runs anywhere.

A block is atomic. One without rows is the barrier alone. (edge, from, to, batch) is its sequence number: a consumer
drops a second copy (paper 000, Alg. 1, with tuples of a batch taken together). Written down, a block is

    4 bytes "HFB1" | u32 length of the header | u32 CRC-32 of header and rows | u64 length of the rows
    header (JSON, UTF-8) | zeros up to a multiple of 8 | rows (an Arrow IPC stream; nothing for a barrier alone)

all numbers little-endian. Reading copies nothing: the rows stay in the buffer they came in.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from holdfast.erasure.checksums import crc32
from holdfast.errors import CheckFailed
from holdfast.ids import BatchId, Epoch, OperatorId, PartitionId
from holdfast.runtime.times import Watermark

_MAGIC = b"HFB1"
_PREFIX = struct.Struct("<4sIIQ")
_ALIGN = 8

SINK = OperatorId("@sink")
"""What takes an output partition's rows to the outside; no operator can have this id."""
LATE = OperatorId("@late")
"""What takes the rows that an event-time window kept aside."""
OUTSIDE = OperatorId("@outside")
"""Where a source's rows come from."""


@dataclass(frozen=True, slots=True, order=True)
class Edge:
    """Two operators, the first sending to the second."""

    source: OperatorId
    target: OperatorId

    def __str__(self) -> str:
        return f"{self.source}->{self.target}"


@dataclass(frozen=True, slots=True)
class Header:
    """What a block says of itself."""

    edge: Edge
    sender: PartitionId
    receiver: PartitionId
    batch: BatchId
    epoch: Epoch
    watermark: Watermark
    tentative: bool = False

    @property
    def stream(self) -> tuple[Edge, PartitionId]:
        """Which of the receiver's input streams it belongs to."""
        return self.edge, self.sender

    @property
    def sequence(self) -> tuple[Edge, PartitionId, PartitionId, BatchId]:
        """The block's sequence number: two blocks with one number are copies."""
        return self.edge, self.sender, self.receiver, self.batch

    def __str__(self) -> str:
        return f"{self.sender} to {self.receiver}, batch {self.batch}"


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """A header and rows; no rows, no table: the barrier alone."""

    header: Header
    rows: pa.Table | None = None

    def stamped(self, epoch: Epoch) -> Block:
        """Return the same block as sent in an epoch: what is kept in an outbox outlives the one it was made in."""
        return self if self.header.epoch == epoch else Block(replace(self.header, epoch=epoch), self.rows)

    @property
    def row_count(self) -> int:
        """How many rows it has."""
        return 0 if self.rows is None else self.rows.num_rows


def encode_rows(table: pa.Table) -> pa.Buffer:
    """Write a table as an Arrow IPC stream: the same table gives the same bytes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def decode_rows(data: pa.Buffer) -> pa.Table:
    """Read an Arrow IPC stream without copying its rows."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()


def encode_block(block: Block) -> bytes:
    """Write a block down."""
    head = block.header
    fields: dict[str, Any] = {
        "edge": [head.edge.source, head.edge.target],
        "from": str(head.sender),
        "to": str(head.receiver),
        "batch": head.batch,
        "epoch": head.epoch,
        "watermark": head.watermark,
        "tentative": head.tentative,
    }
    header = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
    rows = memoryview(b"") if block.rows is None else memoryview(encode_rows(block.rows))
    padding = bytes(-(_PREFIX.size + len(header)) % _ALIGN)
    check = crc32(rows, crc32(header))
    return b"".join((_PREFIX.pack(_MAGIC, len(header), check, len(rows)), header, padding, rows))


def decode_block(data: pa.Buffer | bytes | memoryview) -> Block:
    """Read one block; what is torn or changed is refused."""
    blocks = decode_blocks(data)
    if len(blocks) != 1:
        raise CheckFailed(f"{len(blocks)} blocks where one was expected", remedy="read them with decode_blocks")
    return blocks[0]


def encode_blocks(blocks: Sequence[Block]) -> bytes:
    """Write blocks one after the other, each beginning at a multiple of 8."""
    parts = []
    for block in blocks:
        written = encode_block(block)
        parts += [written, bytes(-len(written) % _ALIGN)]
    return b"".join(parts)


def decode_blocks(data: pa.Buffer | bytes | memoryview) -> list[Block]:
    """Read blocks one after the other; what is torn or changed is refused."""
    buffer = data if isinstance(data, pa.Buffer) else pa.py_buffer(data)
    view, at, found = memoryview(buffer), 0, []
    while at < len(view):
        if len(view) - at < _PREFIX.size:
            raise _torn("ends in the middle")
        magic, header_length, check, rows_length = _PREFIX.unpack_from(view, at)
        if magic != _MAGIC:
            raise _torn("does not begin like a block")
        header_at = at + _PREFIX.size
        rows_at = header_at + header_length + -(_PREFIX.size + header_length) % _ALIGN
        if rows_at + rows_length > len(view):
            raise _torn("ends in the middle")
        header = view[header_at : header_at + header_length]
        rows = view[rows_at : rows_at + rows_length]
        if crc32(rows, crc32(header)) != check:
            raise _torn("has another checksum than its content")
        table = decode_rows(buffer.slice(rows_at, rows_length)) if rows_length else None
        found.append(Block(_read_header(json.loads(bytes(header))), table))
        at = rows_at + rows_length + -rows_length % _ALIGN
    return found


def _read_header(fields: dict[str, Any]) -> Header:
    source, target = fields["edge"]
    return Header(
        Edge(OperatorId(source), OperatorId(target)),
        _partition(fields["from"]),
        _partition(fields["to"]),
        BatchId(fields["batch"]),
        Epoch(fields["epoch"]),
        fields["watermark"],
        fields["tentative"],
    )


def _partition(text: str) -> PartitionId:
    """Read `O3[0]`, and the ends of the world, which are not operators."""
    if text.startswith("@"):
        name, _, index = text.partition("[")
        return PartitionId(OperatorId(name), int(index.removesuffix("]")))
    return PartitionId.parse(text)


def _torn(what: str) -> CheckFailed:
    return CheckFailed(f"a block {what}", remedy="it counts as lost: take another copy")
