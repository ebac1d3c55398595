"""Files of segments: what one batch added to a partition's state, as memory-mapped Arrow streams. Runs on a node.

    8 bytes "HFRUNS1\\n" | Arrow IPC streams, one per state table, each at a multiple of 64 | index (JSON)
    u32 CRC-32 of the index | u32 length of the index | 8 bytes "HFRUNS1\\n"

The index names each stream's table, place, length, CRC-32 and segments (one record batch each, numbered over the file).
All of it is checked when the file is first opened; a file that is torn or changed counts as lost.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence

import pyarrow as pa

from holdfast.erasure.checksums import crc32
from holdfast.errors import BadInput, CheckFailed

_MAGIC = b"HFRUNS1\n"
_TAIL = struct.Struct("<II8s")
_ALIGN = 64


def encode_segments(tables: Mapping[str, Sequence[pa.Table]]) -> bytes:
    """Write the segments of some tables; they are numbered in the order given."""
    parts: list[bytes | memoryview] = [_MAGIC]
    at, index, number = len(_MAGIC), [], 0
    for name, segments in tables.items():
        if not segments:
            continue
        padding = -at % _ALIGN
        stream = memoryview(_stream(name, segments))
        parts += [bytes(padding), stream]
        at += padding
        index.append([name, at, len(stream), crc32(stream), number, len(segments)])
        at += len(stream)
        number += len(segments)
    text = json.dumps(index, separators=(",", ":"), ensure_ascii=False).encode()
    parts += [text, _TAIL.pack(crc32(text), len(text), _MAGIC)]
    return b"".join(parts)


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
    for _, at, size, stream_check, _, many in json.loads(bytes(text)):
        if at + size > begin or crc32(view[at : at + size]) != stream_check:
            raise _torn("has changed rows")
        with pa.ipc.open_stream(data.slice(at, size)) as reader:
            found = [pa.Table.from_batches([batch]) for batch in reader]
        if len(found) != many:
            raise _torn("has another number of segments than its index says")
        segments += found
    return segments


def _stream(name: str, segments: Sequence[pa.Table]) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    schema = segments[0].schema
    with pa.ipc.new_stream(sink, schema) as writer:
        for segment in segments:
            if not segment.schema.equals(schema):
                raise BadInput(
                    f"the columns of state table {name!r} changed from {_names(schema)} to {_names(segment.schema)}",
                    remedy="give every batch's rows the same columns and types; declare them with schema=",
                )
            for batch in segment.combine_chunks().to_batches():
                writer.write_batch(batch)
    return sink.getvalue()


def _names(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _torn(what: str) -> CheckFailed:
    return CheckFailed(f"a file of segments {what}", remedy="it counts as lost: restore from a checkpoint")
