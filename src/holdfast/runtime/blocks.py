"""Blocks: the rows of one batch on one edge from one partition to another, with a header. Runs anywhere.

A block is atomic. One without rows is the barrier alone. (line, edge, from, to, batch) is its sequence number: a
consumer drops a second copy (incremental recovery, Alg. 1, with tuples of a batch taken together). Written down, the
blocks of a batch from one partition on one edge are together

    4 bytes "HFB2" | u32 length of the header | u32 CRC-32 of header and rows | u64 length of the rows
    header (JSON, UTF-8) | zeros up to a multiple of 8 | rows (an Arrow IPC stream; nothing for barriers alone)

all numbers little-endian; the header says which rows are whose (a table for every receiver would cost more than its
rows). Reading copies nothing: the rows stay in the buffer they came in.

The outbox of a snapshot has many batches of few rows, and a schema takes as much as 20 rows: there ("HFB3") the blocks
of one edge and sender share a table over batches too (docs/decisions/0360), and the header has the watermark,
receivers and rows of each batch.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from holdfast.erasure.checksums import crc32
from holdfast.errors import BadInput, CheckFailed
from holdfast.ids import BatchId, Epoch, OperatorId, PartitionId
from holdfast.runtime.tables import decode_rows, encode_rows, in_own_buffers, one_chunk
from holdfast.runtime.times import Watermark

_MAGIC = b"HFB2"
_MAGIC_OF_MANY = b"HFB3"
"""Of a group whose blocks are of many batches."""
_ROWS_TOGETHER = 16_384
_BYTES_TOGETHER = 4 << 20
"""Rows and bytes after which a group of many batches ends with the block it has: who writes groups holds one in memory.

Where it ends follows from the rows alone, so that a snapshot that is saved again has the same bytes.
"""
_PREFIX = struct.Struct("<4sIIQ")
_ALIGN = 8

SINK = OperatorId("@sink")
"""What takes an output partition's rows to the outside; no operator can have this id."""
LATE = OperatorId("@late")
"""What takes the rows that an operator kept aside: late ones, and those that it cannot take."""
DEAD_LETTERS = OperatorId("@dead-letters")
"""Stands for the input of rows that an operator cannot take, where they are kept aside."""
OUTSIDE = OperatorId("@outside")
"""Where a source's rows come from."""
MESSAGE_BYTES = 16 << 20
"""Rows in one message of blocks, where one block has not more: what has come is processed while the rest travels."""
LARGEST_BLOCK = 896 << 20
"""Bytes of a block's rows: with it, and 64 MiB beside it, a message is below what a connection takes (1 GiB)."""


class Edge(NamedTuple):
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
    """Whether it is of a branch's line, and not of the clean one."""

    @property
    def stream(self) -> tuple[Edge, PartitionId]:
        """Which of the receiver's input streams it belongs to."""
        return self.edge, self.sender

    @property
    def sequence(self) -> SequenceNumber:
        """The block's sequence number: two blocks with one number are copies."""
        return self.tentative, self.edge, self.sender, self.receiver, self.batch

    def __str__(self) -> str:
        return f"{self.sender} to {self.receiver}, batch {self.batch}"


SequenceNumber: TypeAlias = tuple[bool, Edge, PartitionId, PartitionId, BatchId]
"""Line (tentative: a branch's), edge, sender, receiver, batch: two blocks with one sequence number are copies."""


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """A header and rows; no rows, no table: the barrier alone."""

    header: Header
    rows: pa.Table | None = None
    rejected: pa.Table | None = None
    """From the batch log: records that do not parse, which the source keeps aside. It is not sent on."""

    def stamped(self, epoch: Epoch) -> Block:
        """Return the same block as sent in an epoch: what is kept in an outbox outlives the one it was made in."""
        return self if self.header.epoch == epoch else Block(replace(self.header, epoch=epoch), self.rows)

    @property
    def row_count(self) -> int:
        """How many rows it has."""
        return 0 if self.rows is None else self.rows.num_rows

    @property
    def nbytes(self) -> int:
        """Bytes of its rows."""
        return 0 if self.rows is None else int(self.rows.nbytes)


def too_large(block: Block, most: int) -> BadInput | None:
    """Return what to say of a block that no message can carry; None: it can be sent."""
    if (size := block.nbytes) <= most:
        return None
    head = block.header
    target = "its output" if head.receiver.operator == SINK else "what it keeps aside"
    if head.receiver.operator not in (SINK, LATE):
        target = f"what it sends to {head.receiver}"
    return BadInput(
        f"{target} in batch {head.batch} has {size / 2**20:,.1f} MiB in {block.row_count:,} rows; a message takes at "
        f"most {most / 2**20:,.1f} MiB",
        remedy="take smaller batches (spark.holdfast.ingest.batchBytes), more partitions, or fewer columns",
    )


def in_messages(blocks: Sequence[Block], most: int = MESSAGE_BYTES) -> Iterator[list[Block]]:
    """Divide blocks into messages, those of one sender and batch beside each other; a link takes none without bound."""
    part: list[Block] = []
    size = 0
    for block in sorted(blocks, key=lambda one: (one.header.batch, one.header.sender, one.header.edge)):
        more = block.nbytes
        if part and size + more > most:
            yield part
            part, size = [], 0
        part.append(block)
        size += more
    if part:
        yield part


def encode_blocks(blocks: Sequence[Block]) -> bytes:
    """Write blocks one after the other; neighbours of one sender, edge and batch share a header and a table."""
    return b"".join(block_pieces(blocks))


def block_pieces(blocks: Sequence[Block]) -> list[bytes | memoryview]:
    """As `encode_blocks`, in pieces that belong behind each other: who writes them need not copy them."""
    return [piece for pieces in block_groups(blocks) for piece in pieces]


def block_groups(blocks: Sequence[Block]) -> Iterator[Sequence[bytes | memoryview]]:
    """As `block_pieces`, one group of blocks after the other: who writes them need not have all in memory."""
    return map(_encode_group, _groups(blocks))


def outbox_groups(blocks: Sequence[Block]) -> Iterator[Sequence[bytes | memoryview]]:
    """Write the outbox of a snapshot: edge by edge, the blocks of many batches behind one header and one schema."""
    streams = {_stream(block.header): number for number, block in reversed(list(enumerate(blocks)))}
    ordered = sorted(
        blocks, key=lambda one: (streams[_stream(one.header)], one.header.batch, one.header.receiver.index)
    )
    for group in _groups(ordered, over_batches=True):
        yield _encode_many(group)


def encode_outbox(blocks: Sequence[Block]) -> bytes:
    """As `outbox_groups`, in one piece."""
    return b"".join(piece for pieces in outbox_groups(blocks) for piece in pieces)


def decode_blocks(data: pa.Buffer | bytes | memoryview) -> list[Block]:
    """Read blocks one after the other; what is torn or changed is refused."""
    buffer = data if isinstance(data, pa.Buffer) else pa.py_buffer(data)
    view, at = memoryview(buffer), 0
    found: list[Block] = []
    while at < len(view):
        if len(view) - at < _PREFIX.size:
            raise _torn("ends in the middle")
        magic, header_length, check, rows_length = _PREFIX.unpack_from(view, at)
        if magic not in (_MAGIC, _MAGIC_OF_MANY):
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
        read = _read_group if magic == _MAGIC else _read_many
        found += read(json.loads(bytes(header)), table)
        at = rows_at + rows_length + -rows_length % _ALIGN
    return found


def _groups(blocks: Sequence[Block], *, over_batches: bool = False) -> Iterator[list[Block]]:
    """Put neighbours together that differ only in receiver and rows; `over_batches`: in batch and watermark too."""
    group: list[Block] = []
    schema: pa.Schema | None = None
    rows = size = 0
    for block in blocks:
        mine = None if block.rows is None else block.rows.schema
        full = rows >= _ROWS_TOGETHER or size >= _BYTES_TOGETHER
        if group and not (
            (
                _alike(group[-1].header, block.header)
                or (over_batches and not full and _may_share(group[-1].header, block.header, schema))
            )
            and (mine is None or schema is None or mine.equals(schema))
        ):
            yield group
            group, schema, rows, size = [], None, 0, 0
        group.append(block)
        schema, rows = schema or mine, rows + block.row_count
        size += _written_bytes(block.rows) if over_batches and block.rows is not None else 0
    if group:
        yield group


def _written_bytes(rows: pa.Table) -> int:
    """Return how many bytes rows take once they are written, wherever they were cut from."""
    return sum(pa.ipc.get_record_batch_size(one) for one in in_own_buffers(rows).to_batches())


def _alike(one: Header, other: Header) -> bool:
    return (
        one.batch == other.batch
        and one.sender == other.sender
        and one.edge == other.edge
        and (one.epoch, one.watermark, one.tentative) == (other.epoch, other.watermark, other.tentative)
    )


def _stream(header: Header) -> tuple[Edge, PartitionId, OperatorId, Epoch, bool]:
    """Return what the blocks of one group over batches have in common."""
    return header.edge, header.sender, header.receiver.operator, header.epoch, header.tentative


def _may_share(one: Header, other: Header, schema: pa.Schema | None) -> bool:
    """Whether blocks of different batches may share a table: dictionaries of different batches are not put together."""
    return (
        one.batch != other.batch
        and _stream(one) == _stream(other)
        and (schema is None or "dictionary<" not in str(schema.types))
    )


def _encode_group(blocks: Sequence[Block]) -> Sequence[bytes | memoryview]:
    head = blocks[0].header
    fields: dict[str, Any] = {
        "edge": head.edge,
        "from": head.sender,
        "to": [block.header.receiver for block in blocks],
        "rows": [None if block.rows is None else block.rows.num_rows for block in blocks],
        "batch": head.batch,
        "epoch": head.epoch,
        "watermark": head.watermark,
        "tentative": head.tentative,
    }
    tables = [block.rows for block in blocks if block.rows is not None]
    return _encoded(_MAGIC, fields, one_chunk(tables) if tables else None)


def _encode_many(blocks: Sequence[Block]) -> Sequence[bytes | memoryview]:
    head = blocks[0].header
    batches = [
        [
            batch,
            watermark,
            [block.header.receiver.index for block in of_batch],
            [None if block.rows is None else block.rows.num_rows for block in of_batch],
        ]
        for (batch, watermark), of_batch in (
            (key, list(found))
            for key, found in groupby(blocks, lambda block: (block.header.batch, block.header.watermark))
        )
    ]
    fields: dict[str, Any] = {
        "edge": head.edge,
        "from": head.sender,
        "to": head.receiver.operator,
        "epoch": head.epoch,
        "tentative": head.tentative,
        "batches": batches,
    }
    tables = [block.rows for block in blocks if block.rows is not None]
    return _encoded(_MAGIC_OF_MANY, fields, in_own_buffers(*tables) if tables else None)


def _encoded(magic: bytes, fields: dict[str, Any], table: pa.Table | None) -> Sequence[bytes | memoryview]:
    header = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
    rows = memoryview(b"") if table is None else memoryview(encode_rows(table))
    padding = bytes(-(_PREFIX.size + len(header)) % _ALIGN)
    check = crc32(rows, crc32(header))
    front = b"".join((_PREFIX.pack(magic, len(header), check, len(rows)), header, padding))
    return front, rows, bytes(-len(rows) % _ALIGN)


def _read_group(fields: dict[str, Any], table: pa.Table | None) -> Iterator[Block]:
    edge = Edge(*map(OperatorId, fields["edge"]))
    sender, batch, epoch = _partition(fields["from"]), BatchId(fields["batch"]), Epoch(fields["epoch"])
    watermark, tentative, at = fields["watermark"], fields["tentative"], 0
    for receiver, count in zip(fields["to"], fields["rows"], strict=True):
        header = Header(edge, sender, _partition(receiver), batch, epoch, watermark, tentative)
        if count is None or table is None:
            yield Block(header)
        else:
            yield Block(header, table.slice(at, count))
            at += count


def _read_many(fields: dict[str, Any], table: pa.Table | None) -> Iterator[Block]:
    common = {name: fields[name] for name in ("edge", "from", "epoch", "tentative")}
    at = 0
    for batch, watermark, indices, counts in fields["batches"]:
        rows = sum(count or 0 for count in counts)
        receivers = [(fields["to"], index) for index in indices]
        one = common | {"batch": batch, "watermark": watermark, "to": receivers, "rows": counts}
        yield from _read_group(one, None if table is None else in_own_buffers(table.slice(at, rows)))
        at += rows


def _partition(fields: Sequence[Any]) -> PartitionId:
    operator, index = fields
    return PartitionId(OperatorId(operator), index)


def _torn(what: str) -> CheckFailed:
    return CheckFailed(f"a block {what}", remedy="it counts as lost: take another copy")
