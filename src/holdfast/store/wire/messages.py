"""Frames: what travels between clients and peers, without any I/O of its own. Runs anywhere.

    "HF"  version  kind   header length  body length   header   body    seal
    2     1        1      4              4             JSON     bytes   16

Numbers are big-endian. The seal is HMAC-SHA256, cut to 16 bytes, over the frame's number in its direction and
everything before the seal; its key belongs to the session and the direction (`handshake`). A frame that was changed,
repeated, left out or moved to another session therefore does not verify, and the connection ends. Lengths are checked
before anything is allocated; before the handshake is over only small frames are taken.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from holdfast.errors import HoldfastError

VERSION = 1
PREFIX = struct.Struct("!2sBBII")
SEAL_BYTES = 16
LARGEST_HEADER = 64 << 10
LARGEST_BODY = 8 << 20
LARGEST_GREETING = 2 << 10
"""No frame of the handshake is larger: strangers cannot make a peer allocate."""

_MAGIC = b"HF"
_NUMBER = struct.Struct("!Q")

Header = dict[str, Any]
Bytes = bytes | bytearray | memoryview


class Kind(IntEnum):
    """What a frame is."""

    HELLO = 1
    CHALLENGE = 2
    PROOF = 3
    WELCOME = 4
    REFUSED = 5
    REQUEST = 16
    ANSWER = 17
    FAILURE = 18
    CHUNK = 19
    NOTE = 20


class BadFrame(HoldfastError):
    """Bytes that are no frame, or not one of this session: the connection ends."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """The first twelve bytes, checked."""

    kind: Kind
    header_bytes: int
    body_bytes: int

    @property
    def rest(self) -> int:
        """How many bytes follow the prefix."""
        return self.header_bytes + self.body_bytes + SEAL_BYTES


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame, verified. `body` is a view into the buffer it was received in."""

    kind: Kind
    header: Header
    body: Bytes


def read_prefix(data: Bytes, *, trusted: bool) -> Prefix:
    """Check the first bytes of a frame; before trust only small frames pass."""
    magic, version, kind, header_bytes, body_bytes = PREFIX.unpack(data)
    if magic != _MAGIC:
        raise BadFrame("not a Holdfast frame")
    if version != VERSION:
        raise BadFrame(f"frame version {version}; this side supports {VERSION}")
    try:
        known = Kind(kind)
    except ValueError:
        raise BadFrame(f"frame of unknown kind {kind}") from None
    if trusted:
        if header_bytes > LARGEST_HEADER or body_bytes > LARGEST_BODY:
            raise BadFrame(f"frame too large: header {header_bytes}, body {body_bytes} bytes")
    elif header_bytes > LARGEST_GREETING or body_bytes or known >= Kind.REQUEST:
        raise BadFrame("a frame that is no greeting, before the handshake")
    return Prefix(known, header_bytes, body_bytes)


class Seals:
    """One direction of one session: the key, and how many frames have passed."""

    __slots__ = ("_key", "_number")

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._number = 0

    def next(self, *parts: Bytes) -> bytes:
        """Return the seal of the next frame, given its parts in order."""
        seal = hmac.new(self._key, _NUMBER.pack(self._number), hashlib.sha256)
        self._number += 1
        for part in parts:
            seal.update(part)
        return seal.digest()[:SEAL_BYTES]


def pack(kind: Kind, header: Mapping[str, Any], body: Sequence[Bytes], seals: Seals) -> list[Bytes]:
    """Return a frame as buffers to be sent one after the other; the body's pieces are passed on, not copied."""
    return pack_encoded(kind, encode_header(header), body, seals)


def encode_header(header: Mapping[str, Any]) -> bytes:
    """Write a header; an empty one is no bytes."""
    return json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode() if header else b""


def pack_encoded(kind: Kind, text: bytes, body: Sequence[Bytes], seals: Seals) -> list[Bytes]:
    """Return a frame, as `pack` does, of a header that is written already."""
    size = sum(map(len, body))
    if len(text) > LARGEST_HEADER or size > LARGEST_BODY:
        raise BadFrame(f"will not send a frame this large: header {len(text)}, body {size} bytes")
    head = PREFIX.pack(_MAGIC, VERSION, kind, len(text), size) + text
    return [head, *body, seals.next(head, *body)]


def unpack(prefix: Prefix, head: Bytes, rest: Bytes, seals: Seals) -> Frame:
    """Verify the seal and read the frame; `head` is the prefix's bytes, `rest` all that follows it."""
    view = memoryview(rest)
    sealed = prefix.header_bytes + prefix.body_bytes
    verify(seals, view[sealed:], head, view[:sealed])
    return Frame(prefix.kind, read_header(view[: prefix.header_bytes]), view[prefix.header_bytes : sealed])


def verify(seals: Seals, seal: Bytes, *parts: Bytes) -> None:
    """Refuse a frame whose seal is not that of its parts, in its place in the session."""
    if not hmac.compare_digest(seal, seals.next(*parts)):
        raise BadFrame("a frame whose seal does not fit: changed, repeated or out of order")


def read_header(data: Bytes) -> Header:
    """Read a header: a JSON object, or nothing."""
    if not len(data):
        return {}
    try:
        header = json.loads(bytes(data))
    except (ValueError, RecursionError):
        raise BadFrame("a header that is not JSON") from None
    if not isinstance(header, dict):
        raise BadFrame("a header that is not an object")
    return header
