"""Reed-Solomon over one stripe: what every codec does, and which one a process uses. Pure; runs anywhere.

The code is `isa_l_rs_cauchy`: systematic, over GF(2**8), any m of n blocks give the stripe back. Three ways to it give
the same blocks: ISA-L called directly, pyeclib where that is not possible, and plain cutting where there is no parity.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Protocol

from holdfast.erasure.faults import NotEnoughFragments
from holdfast.erasure.isa_l import Buffer, library
from holdfast.erasure.layout import Coding


class StripeCodec(Protocol):
    """Codes single stripes for one (m, k). Keeps nothing of them: one instance serves a whole process."""

    @property
    def coding(self) -> Coding:
        """How many data and parity blocks."""

    def encode(self, stripe: Buffer) -> list[memoryview]:
        """Return the n blocks of a stripe that is not empty; the data blocks come first and may be views of it."""

    def decode(self, blocks: Mapping[int, Buffer], length: int) -> memoryview:
        """Return the `length` bytes of a stripe from any m of its blocks, data blocks preferred."""

    def recompute(self, blocks: Mapping[int, Buffer], lost: Iterable[int], length: int) -> dict[int, memoryview]:
        """Return the lost blocks from any m others of the stripe, without rebuilding the stripe itself."""


class CutOnly:
    """The code without parity: a stripe is cut and joined; nothing may be lost."""

    def __init__(self, coding: Coding) -> None:
        """Take a code with k = 0."""
        assert not coding.parity
        self.coding = coding

    def encode(self, stripe: Buffer) -> list[memoryview]:
        """Cut the stripe, zeros filling up the last block."""
        block = -(-len(stripe) // self.coding.data)
        view = memoryview(stripe)
        if len(view) != block * self.coding.data:
            view = memoryview(bytes(view).ljust(block * self.coding.data, b"\0"))
        return [view[i * block : (i + 1) * block] for i in range(self.coding.data)]

    def decode(self, blocks: Mapping[int, Buffer], length: int) -> memoryview:
        """Join all blocks."""
        used = blocks_to_use(blocks, self.coding)
        return memoryview(b"".join(blocks[index] for index in used))[:length]

    def recompute(self, blocks: Mapping[int, Buffer], lost: Iterable[int], length: int) -> dict[int, memoryview]:
        """Nothing can be rebuilt; nothing may be asked for."""
        blocks_to_use(blocks, self.coding)
        wanted = sorted(set(lost))
        if wanted:
            raise NotEnoughFragments(f"blocks {wanted} are lost and the coding has no parity to rebuild them")
        return {}


def blocks_to_use(blocks: Mapping[int, Buffer], coding: Coding) -> list[int]:
    """Return the m blocks to decode from: the lowest indices, since data blocks need no arithmetic."""
    used = sorted(blocks)[: coding.data]
    if len(used) < coding.data:
        raise NotEnoughFragments(f"a stripe has {len(used)} blocks, {coding.data} needed")
    return used


@lru_cache(maxsize=64)
def codec_for(coding: Coding) -> StripeCodec:
    """Return the process's codec for this (m, k): making one costs more than coding a small state."""
    from holdfast.erasure.isa_l_codec import IsaLCodec
    from holdfast.erasure.pyeclib_codec import PyeclibCodec

    if not coding.parity:
        return CutOnly(coding)
    found = library()
    return PyeclibCodec(coding) if found is None else IsaLCodec(coding, found)
