"""The three checks a fragment carries, and why three (docs/decisions/0010-fragment-checks.md). Pure; runs anywhere.

* **Block checksum**: CRC-32 (the polynomial of zlib and gzip) over where the block belongs and what it holds. It finds
  every flip of one or two bits and every burst up to 32 bits, and it names the fragment that is damaged.
* **Stripe check**: BLAKE2b over the sums of the stripe's pages, taken after decoding. Sums are not the CRC's algebra
  and not the code's, so what slips through those, and what a wrong decoder would make of good blocks, meets it.
* **State digest**: BLAKE2b over all stripe checks: one name for the content, equal in all fragments of one encoding, so
  that fragments of two different encodings are never mixed.

They detect accidents, not forgery: authentication is a task of the transport.
"""

from __future__ import annotations

import hashlib
import struct
import zlib

import numpy as np

from holdfast.erasure.isa_l import Buffer, library

CHECK_BYTES = 16
DIGEST_BYTES = 16
PAGE_WORDS = 512
"""A page has 4096 bytes: 512 words of 64 bits."""
_PAGE_BYTES = 8 * PAGE_WORDS
_PLACE = struct.Struct("<16sBQ16s")
_SHORT = 512
"""Below this many bytes calling a faster CRC costs more than it saves."""


def stripe_check(stripe: Buffer) -> bytes:
    """Return BLAKE2b-128 over the stripe's page sums: little-endian 64-bit words added modulo 2**64, page by page.

    Zeros fill the last page up.
    """
    pages = len(stripe) // _PAGE_BYTES
    words = np.frombuffer(stripe, dtype="<u8", count=pages * PAGE_WORDS).reshape(pages, PAGE_WORDS)
    hashed = hashlib.blake2b(words.sum(axis=1, dtype=np.uint64).astype("<u8", copy=False).data, digest_size=CHECK_BYTES)
    rest = bytes(memoryview(stripe)[pages * _PAGE_BYTES :])
    if rest:
        padded = np.frombuffer(rest.ljust(-(-len(rest) // 8) * 8, b"\0"), dtype="<u8")
        hashed.update(int(padded.sum(dtype=np.uint64)).to_bytes(8, "little"))
    return hashed.digest()


def block_checksum(digest: bytes, index: int, stripe: int, check: bytes, payload: Buffer) -> int:
    """Return the CRC-32 of one block in its place: state, fragment, stripe, the stripe's check, payload."""
    return crc32(payload, zlib.crc32(_PLACE.pack(digest, index, stripe, check)))


class StateDigest:
    """The name of a state's content: feed it the stripe checks in order."""

    def __init__(self, state_bytes: int, stripe_bytes: int) -> None:
        """Begin with the lengths, so that no state is the beginning of another."""
        self._hash = hashlib.blake2b(struct.pack("<QQ", state_bytes, stripe_bytes), digest_size=DIGEST_BYTES)

    def add(self, check: bytes) -> None:
        """Take the next stripe's check."""
        self._hash.update(check)

    def value(self) -> bytes:
        """Return the digest of what was added so far."""
        return self._hash.digest()


def crc32(data: Buffer, start: int = 0) -> int:
    """Return zlib's CRC-32, from the fastest code there is in this process (ISA-L: three times zlib's speed)."""
    fast = library() if len(data) >= _SHORT else None
    return zlib.crc32(data, start) if fast is None else fast.crc32(data, start)
