"""Ids on the ring: 128 bits, read as 32 digits of four bits (A-FP4S, sec. 3.2; Pastry). Pure; runs anywhere.

A peer's id and a state's key come from BLAKE2b over a name, so both spread evenly. Where a cluster spans sites, ids may
reflect proximity: `peer_id(name, site)` takes the first 16 bits from the site and the rest from the name. Peers of one
site are then neighbours on the ring and leaf sets stay inside it, where bandwidth is; a state saved under
`state_key(state, site)` lands there too. **A site is the unit of bandwidth, not of failure**: racks and zones must not
go into the id, or a leaf set would die together. They are the `domain` of a contact; placement keeps them apart.
"""

from __future__ import annotations

import hashlib
from typing import NewType

from holdfast.erasure.fragment import StateId

RingId = NewType("RingId", int)
"""A place on the ring: 0 to 2**128 - 1."""

BITS = 128
DIGIT_BITS = 4
DIGITS = BITS // DIGIT_BITS
SITE_BITS = 16
SIZE = 1 << BITS
_MASK = SIZE - 1
_DIGIT_MASK = (1 << DIGIT_BITS) - 1


def peer_id(name: str, site: str | None = None) -> RingId:
    """Return the id of a peer with this unique name (its address, or a name kept in its data folder)."""
    return _placed(b"peer\0" + name.encode(), site)


def state_key(state: StateId, site: str | None = None) -> RingId:
    """Return the key of a state: the live peer closest to it is the state's root."""
    return _placed(b"state\0" + str(state).encode(), site)


def _placed(name: bytes, site: str | None) -> RingId:
    number = int.from_bytes(hashlib.blake2b(name, digest_size=BITS // 8).digest(), "big")
    if site is None:
        return RingId(number)
    prefix = int.from_bytes(hashlib.blake2b(b"site\0" + site.encode(), digest_size=SITE_BITS // 8).digest(), "big")
    return RingId((prefix << (BITS - SITE_BITS)) | (number >> SITE_BITS))


def clockwise(start: int, end: int) -> int:
    """Return how far `end` lies after `start`, going upwards round the ring."""
    return (end - start) & _MASK


def distance(one: int, other: int) -> int:
    """Return the shorter way round between two ids."""
    gap = (one - other) & _MASK
    return min(gap, SIZE - gap)


def closeness(key: int, peer: int) -> tuple[int, int]:
    """Order peers by how close they are to a key; of two equally close the lower id comes first, for everyone."""
    return distance(key, peer), peer


def shared_digits(one: int, other: int) -> int:
    """Return how many leading digits are equal (32 for the same id)."""
    return (BITS - (one ^ other).bit_length()) // DIGIT_BITS


def digit(number: int, row: int) -> int:
    """Return the digit at this place, counted from the left."""
    return (number >> (BITS - DIGIT_BITS * (row + 1))) & _DIGIT_MASK


def written(number: int) -> str:
    """Write an id as 32 hexadecimal digits."""
    return f"{number:032x}"
