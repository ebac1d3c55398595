"""Reed-Solomon over one stripe through pyeclib's `isa_l_rs_cauchy`. Pure; runs anywhere.

Used where ISA-L cannot be called directly, and by the tests to show that both give the same blocks. pyeclib puts a
header of its own before each block. It is of no use to us (our blocks have theirs), it would tie the written format to
a library, and so it is cut off when encoding, without a copy. When decoding, pyeclib needs it again: it depends only on
the block's index and on the lengths, so one made for zeros of the same length serves.

pyeclib accepts only `bytes`; anything else makes it fail, and a memoryview given to its decoder aborts the process. All
buffers are turned into `bytes` here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pyeclib.ec_iface import ECDriver, ECDriverError

from holdfast.erasure.codec import blocks_to_use
from holdfast.erasure.faults import WrongState
from holdfast.erasure.isa_l import Buffer
from holdfast.erasure.layout import Coding


class PyeclibCodec:
    """Codes single stripes for one (m, k) with at least one parity block."""

    def __init__(self, coding: Coding) -> None:
        """Prepare the code."""
        self.coding = coding
        self._driver = ECDriver(ec_type="isa_l_rs_cauchy", k=coding.data, m=coding.parity)
        self._library_headers: dict[int, list[bytes]] = {}

    def encode(self, stripe: Buffer) -> list[memoryview]:
        """Return the n blocks of a stripe that is not empty; the data blocks come first."""
        block = -(-len(stripe) // self.coding.data)
        framed = self._driver.encode(stripe if isinstance(stripe, bytes) else bytes(stripe))
        return [memoryview(one)[-block:] for one in framed]

    def decode(self, blocks: Mapping[int, Buffer], length: int) -> memoryview:
        """Return the `length` bytes of a stripe from any m of its blocks, data blocks preferred."""
        used = blocks_to_use(blocks, self.coding)
        if used[-1] < self.coding.data:
            return memoryview(b"".join(blocks[index] for index in used))[:length]
        try:
            stripe = memoryview(self._driver.decode(self._framed(blocks, used, length)))
        except ECDriverError as error:
            raise WrongState(f"the code could not rebuild a stripe from blocks {used}: {error}") from error
        if len(stripe) != length:
            raise WrongState(f"a rebuilt stripe has {len(stripe)} bytes, not {length}")
        return stripe

    def recompute(self, blocks: Mapping[int, Buffer], lost: Iterable[int], length: int) -> dict[int, memoryview]:
        """Return the lost blocks from any m others of the stripe, without rebuilding the stripe itself."""
        wanted = sorted(set(lost))
        used = blocks_to_use(blocks, self.coding)
        if not wanted:
            return {}
        block = -(-length // self.coding.data)
        try:
            rebuilt = self._driver.reconstruct(self._framed(blocks, used, length), list(wanted))
        except ECDriverError as error:
            raise WrongState(f"the code could not rebuild blocks {wanted} from {used}: {error}") from error
        return {index: memoryview(one)[-block:] for index, one in zip(wanted, rebuilt, strict=True)}

    def _framed(self, blocks: Mapping[int, Buffer], used: Sequence[int], length: int) -> list[bytes]:
        headers = self._headers(length)
        return [b"".join((headers[index], blocks[index])) for index in used]

    def _headers(self, length: int) -> list[bytes]:
        """Return pyeclib's own headers for the n blocks of a stripe of this length."""
        known = self._library_headers.get(length)
        if known is None:
            block = -(-length // self.coding.data)
            known = [bytes(one[: len(one) - block]) for one in self._driver.encode(bytes(length))]
            if len(self._library_headers) >= 64:
                # Only the last stripes of states have odd lengths: forget them all rather than grow.
                self._library_headers.clear()
            self._library_headers[length] = known
        return known
