"""Reed-Solomon over one stripe with ISA-L itself: the same blocks as pyeclib's, without its copies. Pure; anywhere.

Encoding reads the state where it lies, also in a memory-mapped file: the data blocks are views of it, and only parity
is new memory. Decoding writes lost blocks straight into their place in the stripe.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from holdfast.erasure.codec import blocks_to_use
from holdfast.erasure.faults import WrongState
from holdfast.erasure.isa_l import Buffer, Bytes, IsaL, address
from holdfast.erasure.layout import Coding

_MOST_PLANS = 256


class IsaLCodec:
    """Codes single stripes for one (m, k) with at least one parity block."""

    def __init__(self, coding: Coding, library: IsaL) -> None:
        """Prepare the encoding matrix."""
        self.coding = coding
        self._library = library
        self._matrix = library.cauchy_matrix(coding.total, coding.data)
        self._parity = library.tables(self._matrix[coding.data :])
        self._plans: dict[tuple[tuple[int, ...], tuple[int, ...]], Bytes] = {}

    def encode(self, stripe: Buffer) -> list[memoryview]:
        """Return the n blocks of a stripe that is not empty; the data blocks come first and are views of it."""
        data = self.coding.data
        block = -(-len(stripe) // data)
        view = memoryview(stripe)
        if len(view) != block * data:
            view = memoryview(bytes(view).ljust(block * data, b"\0"))
        parity = np.empty((self.coding.parity, block), dtype=np.uint8)
        start, out = address(view), address(parity)
        self._library.multiply(
            self._parity,
            block,
            [start + i * block for i in range(data)],
            [out + i * block for i in range(self.coding.parity)],
        )
        whole = parity.reshape(-1).data
        return [view[i * block : (i + 1) * block] for i in range(data)] + [
            whole[i * block : (i + 1) * block] for i in range(self.coding.parity)
        ]

    def decode(self, blocks: Mapping[int, Buffer], length: int) -> memoryview:
        """Return the `length` bytes of a stripe from any m of its blocks, data blocks preferred."""
        used = blocks_to_use(blocks, self.coding)
        block = -(-length // self.coding.data)
        stripe = np.empty(block * self.coding.data, dtype=np.uint8)
        view = stripe.data
        lost = []
        for index in range(self.coding.data):
            if index in blocks:
                view[index * block : (index + 1) * block] = blocks[index]
            else:
                lost.append(index)
        if lost:
            start = address(stripe)
            self._combine(blocks, used, lost, block, [start + index * block for index in lost])
        return view[:length].toreadonly()

    def recompute(self, blocks: Mapping[int, Buffer], lost: Iterable[int], length: int) -> dict[int, memoryview]:
        """Return the lost blocks from any m others of the stripe, without rebuilding the stripe itself."""
        wanted = sorted(set(lost))
        used = blocks_to_use(blocks, self.coding)
        if not wanted:
            return {}
        block = -(-length // self.coding.data)
        rebuilt = np.empty((len(wanted), block), dtype=np.uint8)
        start = address(rebuilt)
        self._combine(blocks, used, wanted, block, [start + i * block for i in range(len(wanted))])
        whole = rebuilt.reshape(-1).data
        return {index: whole[i * block : (i + 1) * block] for i, index in enumerate(wanted)}

    def _combine(
        self, blocks: Mapping[int, Buffer], used: Sequence[int], wanted: Sequence[int], block: int, targets: list[int]
    ) -> None:
        """Write the wanted blocks, each a combination of the used ones."""
        sources = [np.frombuffer(blocks[index], dtype=np.uint8) for index in used]
        if any(source.size != block for source in sources):
            # The next line reads memory by address: never beyond what a block has.
            raise WrongState(f"blocks of {[source.size for source in sources]} bytes; each must have {block}")
        self._library.multiply(self._plan(tuple(used), tuple(wanted)), block, [address(s) for s in sources], targets)

    def _plan(self, used: tuple[int, ...], wanted: tuple[int, ...]) -> Bytes:
        """Return the tables that make the wanted blocks out of the used ones."""
        plan = self._plans.get((used, wanted))
        if plan is None:
            inverse = self._library.inverse(self._matrix[list(used)])
            plan = self._library.tables(self._library.product(self._matrix[list(wanted)], inverse))
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            self._plans[used, wanted] = plan
        return plan
