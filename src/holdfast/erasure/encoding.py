"""From a state to its n fragments, stripe by stripe (A-FP4S, Table 2: Encode). Pure; runs anywhere.

    header = describe(state, StateId("traffic", "O3[0]"), version, epoch, Coding(10, 20))
    for stripe in encode_stripes(header, state):
        for index, block in enumerate(stripe):
            connection[index].writelines((block.prefix, block.payload))

The state is read twice: once for its digest, which every fragment's header carries, and once to code it. It may be a
memory-mapped file: beyond it only one stripe is in memory. It must not change meanwhile: blocks may be views of it, and
a change is detected, at the end or by a reader of the block. Fragment i is `FragmentHeader(header, i).pack()`, then its
blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.erasure.checksums import StateDigest, stripe_check
from holdfast.erasure.codec import codec_for
from holdfast.erasure.faults import WrongState
from holdfast.erasure.fragment import FragmentHeader, StateHeader, StateId, pack_block_prefix
from holdfast.erasure.isa_l import Buffer
from holdfast.erasure.layout import BLOCK_BYTES, Coding, Layout
from holdfast.ids import BatchId, Epoch


@dataclass(frozen=True, slots=True)
class Block:
    """One block as it is written: two buffers, so that no one has to join them."""

    prefix: bytes
    payload: memoryview

    def __len__(self) -> int:
        return len(self.prefix) + len(self.payload)


def describe(
    state: Buffer,
    state_id: StateId,
    version: BatchId,
    epoch: Epoch,
    coding: Coding,
    *,
    follows: BatchId | None = None,
    block_bytes: int = BLOCK_BYTES,
) -> StateHeader:
    """Return what all fragments of this state will share; reads the state once. `follows` makes it a delta."""
    layout = Layout(len(state), coding.data, block_bytes)
    digest = StateDigest(layout.state_bytes, layout.stripe_bytes)
    for stripe in _stripes(layout, state):
        digest.add(stripe_check(stripe))
    return StateHeader(
        state=state_id,
        version=version,
        epoch=epoch,
        coding=coding,
        state_bytes=layout.state_bytes,
        block_bytes=block_bytes,
        digest=digest.value(),
        follows=follows,
    )


def encode_stripes(header: StateHeader, state: Buffer) -> Iterator[list[Block]]:
    """Yield each stripe's n blocks, in order of stripe. Raises at the end if the state changed since `describe`."""
    layout = header.layout
    if len(state) != header.state_bytes:
        raise WrongState(
            f"{header}: the state has {len(state)} bytes; it had {header.state_bytes} when it was described"
        )
    codec = codec_for(header.coding)
    fragments = [FragmentHeader(header, index) for index in range(header.coding.total)]
    digest = StateDigest(layout.state_bytes, layout.stripe_bytes)
    for number, stripe in enumerate(_stripes(layout, state)):
        check = stripe_check(stripe)
        digest.add(check)
        yield [
            Block(pack_block_prefix(fragment, number, check, payload), payload)
            for fragment, payload in zip(fragments, codec.encode(stripe), strict=True)
        ]
    if digest.value() != header.digest:
        raise WrongState(f"{header}: the state changed while it was being encoded", remedy="encode it again")


def encode(
    state: Buffer,
    state_id: StateId,
    version: BatchId,
    epoch: Epoch,
    coding: Coding,
    *,
    follows: BatchId | None = None,
    block_bytes: int = BLOCK_BYTES,
) -> list[bytearray]:
    """Return the n whole fragments of a state that fits in memory n / m more times."""
    header = describe(state, state_id, version, epoch, coding, follows=follows, block_bytes=block_bytes)
    fragments = [bytearray(FragmentHeader(header, index).pack()) for index in range(coding.total)]
    for stripe in encode_stripes(header, state):
        for index, block in enumerate(stripe):
            fragments[index] += block.prefix
            fragments[index] += block.payload
    return fragments


def _stripes(layout: Layout, state: Buffer) -> Iterator[memoryview]:
    view = memoryview(state).cast("B")
    for start in range(0, layout.state_bytes, layout.stripe_bytes):
        yield view[start : start + layout.stripe_bytes]
