"""The fragment format, version 1: header, then one block per stripe (docs/reference/fragment-format.md). Pure.

What all fragments of one encoding share is a `StateHeader`: whose state, which version and epoch, which code, which
content. Fragments belong together exactly when their `StateHeader`s are equal. `FragmentHeader` adds the index.

Reading is strict: every field is checked, reserved bytes are zero, lengths must be exact, and the header's own checksum
is verified before any field is used. Anything else is a `DamagedFragment`.
"""

from __future__ import annotations

import re
import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum

from holdfast.erasure.checksums import CHECK_BYTES, DIGEST_BYTES, block_checksum
from holdfast.erasure.faults import DamagedFragment
from holdfast.erasure.isa_l import Buffer
from holdfast.erasure.layout import Coding, Layout
from holdfast.errors import BadInput
from holdfast.ids import BatchId, Epoch

MAGIC = b"HOLDFRAG"
FORMAT_VERSION = 1
CODE_CAUCHY = 1
"""Code 1: Reed-Solomon over GF(2**8), systematic, ISA-L's Cauchy matrix."""

_FIXED = struct.Struct("<8sHHBBBBB3sIQqqq16sHH")
_CRC = struct.Struct("<I")
_NO_VERSION = -1
LONGEST_NAMESPACE = 100
LONGEST_NAME = 200
LONGEST_HEADER = _FIXED.size + LONGEST_NAMESPACE + LONGEST_NAME + _CRC.size
SHORTEST_HEADER = _FIXED.size + 2 + _CRC.size
BLOCK_PREFIX = struct.Struct(f"<{CHECK_BYTES}sI")
"""Before each payload: the stripe's check, then the block's checksum."""

_NAME = re.compile(r"[A-Za-z0-9_\[\]][A-Za-z0-9_.\[\]-]*", re.ASCII)


class StateKind(IntEnum):
    """A whole state, or the changes since an earlier version of it."""

    BASE = 0
    DELTA = 1


@dataclass(frozen=True, slots=True, order=True)
class StateId:
    """Whose state: an application's namespace and a name in it, such as `O3[0]`.

    Letters, digits, `_`, `-`, `.`, `[` and `]`, not starting with `.` or `-`: a name is never a path.
    """

    namespace: str
    name: str

    def __post_init__(self) -> None:
        for field, text, longest in (
            ("namespace", self.namespace, LONGEST_NAMESPACE),
            ("name", self.name, LONGEST_NAME),
        ):
            if len(text) > longest or not _NAME.fullmatch(text):
                raise BadInput(
                    f"{text!r} is not a valid state name",
                    field=field,
                    remedy=f"use 1 to {longest} letters, digits, _ - . [ ], the first of them no - or .",
                )

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class StateHeader:
    """Everything that the fragments of one encoding have in common."""

    state: StateId
    version: BatchId
    epoch: Epoch
    coding: Coding
    state_bytes: int
    block_bytes: int
    digest: bytes
    follows: BatchId | None = None
    """The version these changes apply to; None where this is a base."""

    def __post_init__(self) -> None:
        Layout(self.state_bytes, self.coding.data, self.block_bytes)
        if len(self.digest) != DIGEST_BYTES:
            raise BadInput(
                f"the digest has {len(self.digest)} bytes", field="digest", remedy=f"give {DIGEST_BYTES} bytes"
            )
        for field, number in (("version", self.version), ("epoch", self.epoch)):
            if not 0 <= number < 2**63:
                raise BadInput(f"{number} is out of range", field=field, remedy="use 0 to 2**63 - 1")
        if self.follows is not None and not 0 <= self.follows < self.version:
            raise BadInput(
                f"version {self.version} cannot follow version {self.follows}",
                field="follows",
                remedy="a delta follows an earlier version",
            )

    @property
    def kind(self) -> StateKind:
        """Return whether this is a whole state or changes."""
        return StateKind.BASE if self.follows is None else StateKind.DELTA

    @property
    def layout(self) -> Layout:
        """How the state is cut."""
        return Layout(self.state_bytes, self.coding.data, self.block_bytes)

    @property
    def header_length(self) -> int:
        """Bytes of each fragment's header."""
        return _FIXED.size + len(self.state.namespace) + len(self.state.name) + _CRC.size

    @property
    def fragment_length(self) -> int:
        """Bytes of each fragment, header included: known before anything is encoded."""
        return self.header_length + self.layout.body_length(BLOCK_PREFIX.size)

    def block_span(self, stripe: int) -> tuple[int, int]:
        """Return where in a fragment the stripe's block begins and ends, prefix included."""
        start = self.header_length + self.layout.block_offset(stripe, BLOCK_PREFIX.size)
        return start, start + BLOCK_PREFIX.size + self.layout.block_length(stripe)

    def __str__(self) -> str:
        return f"{self.state} version {self.version} epoch {self.epoch} ({self.coding})"


@dataclass(frozen=True, slots=True)
class FragmentHeader:
    """One fragment's header: its state's, and which of the n it is."""

    state: StateHeader
    index: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.state.coding.total:
            raise BadInput(
                f"there is no fragment {self.index} of {self.state.coding.total}", field="index", remedy="count from 0"
            )

    def pack(self) -> bytes:
        """Write the header."""
        state = self.state
        namespace, name = state.state.namespace.encode("ascii"), state.state.name.encode("ascii")
        fixed = _FIXED.pack(
            MAGIC,
            FORMAT_VERSION,
            state.header_length,
            state.coding.data,
            state.coding.total,
            self.index,
            state.kind,
            CODE_CAUCHY,
            b"\0\0\0",
            state.block_bytes,
            state.state_bytes,
            state.version,
            _NO_VERSION if state.follows is None else state.follows,
            state.epoch,
            state.digest,
            len(namespace),
            len(name),
        )
        covered = fixed + namespace + name
        return covered + _CRC.pack(zlib.crc32(covered))

    @classmethod
    def unpack(cls, fragment: Buffer) -> FragmentHeader:
        """Read the header at the beginning of these bytes (`LONGEST_HEADER` of them, or all there are)."""
        head = bytes(memoryview(fragment)[:LONGEST_HEADER])
        if len(head) < SHORTEST_HEADER:
            raise DamagedFragment(f"{len(head)} bytes are too few for a fragment header")
        (magic, written, length, data, total, index, kind, code, reserved, block_bytes, state_bytes) = (
            _FIXED.unpack_from(head)[:11]
        )
        if magic != MAGIC:
            raise DamagedFragment(f"not a fragment: it starts with {magic!r}")
        if written != FORMAT_VERSION:
            raise DamagedFragment(
                f"unknown fragment format version {written}", remedy=f"this Holdfast reads version {FORMAT_VERSION}"
            )
        if not SHORTEST_HEADER <= length <= min(len(head), LONGEST_HEADER):
            raise DamagedFragment(f"a fragment header states a length of {length} bytes")
        (found,) = _CRC.unpack_from(head, length - _CRC.size)
        if found != zlib.crc32(head[: length - _CRC.size]):
            raise DamagedFragment("a fragment header has a wrong checksum")
        version, follows, epoch, digest, namespace_length, name_length = _FIXED.unpack_from(head)[11:]
        if _FIXED.size + namespace_length + name_length + _CRC.size != length:
            raise DamagedFragment("a fragment header has names of the wrong length")
        if code != CODE_CAUCHY:
            raise DamagedFragment(f"unknown code {code}", remedy=f"this Holdfast reads code {CODE_CAUCHY}")
        names = head[_FIXED.size : length - _CRC.size]
        try:
            if kind not in (StateKind.BASE, StateKind.DELTA) or (kind == StateKind.BASE) != (follows == _NO_VERSION):
                raise BadInput(f"kind {kind} does not go with a predecessor {follows}", field="kind")
            if any(reserved):
                raise BadInput("reserved bytes are not zero")
            state = StateHeader(
                state=StateId(names[:namespace_length].decode("ascii"), names[namespace_length:].decode("ascii")),
                version=BatchId(version),
                epoch=Epoch(epoch),
                coding=Coding(data, total - data),
                state_bytes=state_bytes,
                block_bytes=block_bytes,
                digest=digest,
                follows=None if follows == _NO_VERSION else BatchId(follows),
            )
            return cls(state, index)
        except (BadInput, UnicodeDecodeError) as error:
            raise DamagedFragment(f"a fragment header is not valid: {error}") from error


def pack_block_prefix(header: FragmentHeader, stripe: int, check: bytes, payload: Buffer) -> bytes:
    """Write what precedes this payload in its fragment."""
    return BLOCK_PREFIX.pack(check, block_checksum(header.state.digest, header.index, stripe, check, payload))


def open_block(header: FragmentHeader, stripe: int, block: Buffer) -> tuple[bytes, memoryview]:
    """Check one block, prefix included, and return the stripe's check and the payload (no copy)."""
    view = memoryview(block)
    expected = BLOCK_PREFIX.size + header.state.layout.block_length(stripe)
    if len(view) != expected:
        raise DamagedFragment(
            f"block {stripe} of fragment {header.index} of {header.state} has {len(view)} bytes, not {expected}"
        )
    check, checksum = BLOCK_PREFIX.unpack_from(view)
    payload = view[BLOCK_PREFIX.size :]
    if checksum != block_checksum(header.state.digest, header.index, stripe, check, payload):
        raise DamagedFragment(f"block {stripe} of fragment {header.index} of {header.state} has a wrong checksum")
    return check, payload
