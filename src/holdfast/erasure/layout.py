"""How a state of some length is cut: m data and k parity fragments, in stripes of m blocks each (A-FP4S, sec. 3.3).

Pure; runs anywhere. A stripe is what is coded at once, so memory is bounded by a stripe and not by the state. Blocks
of a stripe have the same size; those of all stripes but the last have `block_bytes`. The last stripe's blocks are as
small as the rest of the state allows, so a small state does not grow to a whole stripe. An empty state has no stripes.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.errors import BadInput

MOST_FRAGMENTS = 32
"""The code's limit: n = m + k is at most this."""

BLOCK_BYTES = 1 << 18
"""Default block: large enough that Python costs little per block, small enough that a stripe stays in the cache."""

SMALLEST_BLOCK_BYTES = 1 << 6
LARGEST_BLOCK_BYTES = 1 << 24
LARGEST_STATE_BYTES = 1 << 46


@dataclass(frozen=True, slots=True, order=True)
class Coding:
    """m data and k parity fragments: any m of the n = m + k rebuild the state."""

    data: int
    parity: int

    def __post_init__(self) -> None:
        if self.data < 1:
            raise BadInput(f"{self.data} data fragments are too few", field="data", remedy="use at least 1")
        if self.parity < 0:
            raise BadInput(f"{self.parity} parity fragments are not possible", field="parity", remedy="use 0 or more")
        if self.total > MOST_FRAGMENTS:
            raise BadInput(
                f"{self.data} data and {self.parity} parity fragments are {self.total}, too many",
                remedy=f"data and parity together are at most {MOST_FRAGMENTS}",
            )

    @property
    def total(self) -> int:
        """Fragments in all: the paper's n."""
        return self.data + self.parity

    def __str__(self) -> str:
        return f"{self.data}+{self.parity}"


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each block of a fragment lies, given how many bytes precede each block's payload."""

    state_bytes: int
    data: int
    block_bytes: int = BLOCK_BYTES

    def __post_init__(self) -> None:
        if not 0 <= self.state_bytes <= LARGEST_STATE_BYTES:
            raise BadInput(
                f"a state of {self.state_bytes} bytes is too large", remedy=f"store at most {LARGEST_STATE_BYTES} bytes"
            )
        if not SMALLEST_BLOCK_BYTES <= self.block_bytes <= LARGEST_BLOCK_BYTES:
            raise BadInput(
                f"blocks of {self.block_bytes} bytes are not supported",
                remedy=f"use {SMALLEST_BLOCK_BYTES} to {LARGEST_BLOCK_BYTES}",
            )

    @property
    def stripe_bytes(self) -> int:
        """State bytes in every stripe but the last."""
        return self.data * self.block_bytes

    @property
    def stripes(self) -> int:
        """How many stripes the state has; none for an empty one."""
        return -(-self.state_bytes // self.stripe_bytes)

    def stripe_length(self, stripe: int) -> int:
        """State bytes in this stripe."""
        self._known(stripe)
        return min(self.stripe_bytes, self.state_bytes - stripe * self.stripe_bytes)

    def block_length(self, stripe: int) -> int:
        """Payload bytes of each block of this stripe (zeros fill the last data blocks up)."""
        return -(-self.stripe_length(stripe) // self.data)

    def block_offset(self, stripe: int, prefix_bytes: int) -> int:
        """Where the stripe's block, prefix first, begins behind the fragment's header."""
        self._known(stripe)
        return stripe * (self.block_bytes + prefix_bytes)

    def body_length(self, prefix_bytes: int) -> int:
        """Bytes of a fragment behind its header."""
        if not self.stripes:
            return 0
        last = self.stripes - 1
        return self.block_offset(last, prefix_bytes) + prefix_bytes + self.block_length(last)

    def _known(self, stripe: int) -> None:
        if not 0 <= stripe < self.stripes:
            raise IndexError(f"stripe {stripe} of {self.stripes}")
