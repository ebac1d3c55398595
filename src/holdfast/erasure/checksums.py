"""The three checks a fragment carries, and why three (docs/decisions/0010-fragment-checks.md). Pure; runs anywhere.

* **Block checksum**: CRC-32 (the polynomial of zlib and gzip) over where the block belongs and what it holds. It finds
  every flip of one or two bits and every burst up to 32 bits, and it names the fragment that is damaged.
* **Stripe check**: two sums of the decoded stripe's 64-bit words, plain and weighted by position, modulo 2**64
  (Fletcher's idea on wide words). Its algebra is not the CRC's and not the code's, so what slips through them meets it.
* **State digest**: BLAKE2b over all stripe checks: one name for the content, equal in all fragments of one encoding, so
  that fragments of two different encodings are never mixed.

They find accidents, not forgery: that peers are who they say is the transport's business.

CRC-32 runs in ISA-L where the library that pyeclib itself has loaded can be reached (12 GB/s against zlib's 3.7 on one
core of the machine it was written on) and in zlib elsewhere; both give the same number.
"""

from __future__ import annotations

import ctypes
import hashlib
import struct
import zlib
from collections.abc import Callable
from functools import cache, lru_cache

import numpy as np

Buffer = bytes | bytearray | memoryview

STRIPE_CHECK = struct.Struct("<QQ")
DIGEST_BYTES = 16
_ISA_L_NAMES = ("libisal-pyeclib.so.2", "libisal.so.2")
_PLACE = struct.Struct("<16sBQ")


def stripe_check(stripe: Buffer) -> bytes:
    """Return the stripe's two sums: of its words, and of its words times their position counted from one.

    Words are little-endian; zeros fill the last one up.
    """
    whole = len(stripe) // 8
    words = np.frombuffer(stripe, dtype="<u8", count=whole)
    plain = int(words.sum(dtype=np.uint64)) if whole else 0
    weighted = int(np.dot(words, _positions(whole))) if whole else 0
    rest = bytes(memoryview(stripe)[whole * 8 :])
    if rest:
        word = int.from_bytes(rest, "little")
        plain += word
        weighted += word * (whole + 1)
    return STRIPE_CHECK.pack(plain % 2**64, weighted % 2**64)


@lru_cache(maxsize=8)
def _positions(count: int) -> np.ndarray:
    return np.arange(1, count + 1, dtype=np.uint64)


def block_checksum(digest: bytes, index: int, stripe: int, check: bytes, payload: Buffer) -> int:
    """Return the CRC-32 of one block in its place: state, fragment, stripe, the stripe's check, payload."""
    return crc32(payload, zlib.crc32(check, zlib.crc32(_PLACE.pack(digest, index, stripe))))


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
    """Return zlib's CRC-32, from the fastest code there is in this process."""
    fast = _isa_l_crc32()
    if fast is None or len(data) < 512:
        return zlib.crc32(data, start)
    return fast(data, start)


@cache
def _isa_l_crc32() -> Callable[[Buffer, int], int] | None:
    """Return ISA-L's CRC-32 if pyeclib has loaded the library and it agrees with zlib; else None."""
    for name in _ISA_L_NAMES:
        try:
            function = ctypes.CDLL(name).crc32_gzip_refl
        except (OSError, AttributeError):
            continue
        function.restype = ctypes.c_uint32
        function.argtypes = [ctypes.c_uint32, ctypes.c_void_p, ctypes.c_uint64]

        def fast(data: Buffer, start: int, function: Callable[[int, int, int], int] = function) -> int:
            view = np.frombuffer(data, dtype=np.uint8)
            return function(start, view.ctypes.data, view.size)

        probe = bytes(range(256)) * 5
        if all(fast(probe[:size], 7) == zlib.crc32(probe[:size], 7) for size in (1, 15, 64, 1000, 1280)):
            return fast
    return None
