"""Frames of a journal file: records with a length and checksums, one behind the other. Runs anywhere.

    4 bytes "HFJ1" | u32 length of the head | u64 length of the body | u32 CRC-32 of the body
    u32 CRC-32 of the 16 bytes before and of the head | head (JSON, UTF-8) | zeros up to a multiple of 64
    body | zeros up to a multiple of 64

all numbers little-endian. A frame begins at a multiple of 64, and so does its body: Arrow reads what is in it in place.
Reading ends at the first frame that is not whole: what is behind it is never believed, whatever it looks like.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.erasure.checksums import crc32
from holdfast.runtime.state.state_files import Piece

ALIGN = 64
_MAGIC = b"HFJ1"
_PREFIX = struct.Struct("<4sIQII")
_CHECKED = struct.Struct("<IQI")


class Frame(NamedTuple):
    """One record: what it says, and where in the file its body is."""

    head: Mapping[str, Any]
    body_at: int
    body_size: int
    end: int


def padded(size: int) -> int:
    """Return a size rounded up to where the next frame, or the next part of a body, begins."""
    return size + -size % ALIGN


def encode_frame(head: Mapping[str, Any], body: Sequence[Piece] = ()) -> tuple[list[Piece], int, int]:
    """Return a frame's pieces, where its body begins in it, and its length. The body's pieces are not copied."""
    text = json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode()
    size, check = 0, 0
    for piece in body:
        size += len(piece)
        check = crc32(piece, check)
    head_check = crc32(text, crc32(_CHECKED.pack(len(text), size, check)))
    begin = _PREFIX.size + len(text)
    body_at = padded(begin)
    front = b"".join((_PREFIX.pack(_MAGIC, len(text), size, check, head_check), text, bytes(body_at - begin)))
    return [front, *body, bytes(-size % ALIGN)], body_at, body_at + padded(size)


def read_frames(data: bytes) -> Iterator[Frame]:
    """Read frames up to the first that is torn or changed."""
    view, at = memoryview(data), 0
    while len(view) - at >= _PREFIX.size:
        magic, head_size, body_size, check, head_check = _PREFIX.unpack_from(view, at)
        head_at = at + _PREFIX.size
        body_at = at + padded(_PREFIX.size + head_size)
        end = body_at + padded(body_size)
        head = view[head_at : head_at + head_size]
        body = view[body_at : body_at + body_size]
        if magic != _MAGIC or not is_whole(head, body, check, head_check):
            return
        yield Frame(json.loads(bytes(head)), body_at, body_size, end)
        at = end


def is_whole(head: memoryview, body: memoryview, check: int, head_check: int) -> bool:
    """Whether a head and a body, cut off where the file ends, have the lengths and the contents they had."""
    return crc32(head, crc32(_CHECKED.pack(len(head), len(body), check))) == head_check and crc32(body, 0) == check
