"""From any m good fragments back to the state, or to lost fragments (A-FP4S, Table 2: Recompute). Pure; anywhere.

Nothing unverified leaves this module. A block with a wrong checksum counts as lost and is reported, and another is
used; each stripe is checked after decoding and before it is handed out; the state's digest is checked at the end.
`StateDecoder` takes blocks as they arrive from peers; `decode` and `decode_stream` take complete fragments, as
bytes or as memory-mapped files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from holdfast.erasure.checksums import StateDigest, stripe_check
from holdfast.erasure.codec import codec_for
from holdfast.erasure.encoding import Block
from holdfast.erasure.faults import DamagedFragment, MismatchedFragments, NotEnoughFragments, WrongState
from holdfast.erasure.fragment import FragmentHeader, StateHeader, open_block, pack_block_prefix
from holdfast.erasure.isa_l import Buffer
from holdfast.errors import BadInput


@dataclass(frozen=True, slots=True)
class Damage:
    """One fragment that could not be used, and why: it counts as lost."""

    index: int | None
    """Which fragment; None where its header could not be read."""
    reason: str


class StateDecoder:
    """Rebuilds one state, stripe by stripe and in order, from blocks given to it.

    Feed `stripe(blocks)` once per stripe with any blocks of it, then call `finish()`. Only after `finish()` has
    returned is the whole known to be right: write to a temporary place and publish then.
    """

    def __init__(self, header: StateHeader) -> None:
        """Begin at the first stripe."""
        self.header = header
        self.layout = header.layout
        self.damage: list[Damage] = []
        self._codec = codec_for(header.coding)
        self._fragments = [FragmentHeader(header, index) for index in range(header.coding.total)]
        self._digest = StateDigest(self.layout.state_bytes, self.layout.stripe_bytes)
        self._next = 0

    @property
    def next_stripe(self) -> int:
        """The stripe that is wanted next; equal to `layout.stripes` when all are there."""
        return self._next

    def stripe(self, blocks: Mapping[int, Buffer]) -> memoryview:
        """Return the next stripe from blocks (prefix included) by fragment index: the first m good ones in order.

        Raises `NotEnoughFragments` when too many are missing or damaged; the decoder then still waits for this stripe,
        and more blocks may be given.
        """
        check, good = self._opened(blocks)
        stripe = self._codec.decode(good, self.layout.stripe_length(self._next))
        if stripe_check(stripe) != check:
            raise WrongState(
                f"stripe {self._next} of {self.header}, rebuilt from {sorted(good)}, differs from the encoded stripe"
            )
        self._digest.add(check)
        self._next += 1
        return stripe

    def recompute(self, blocks: Mapping[int, Buffer], lost: Iterable[int]) -> dict[int, Block]:
        """Return the next stripe's lost blocks, ready to be written, from any m good others."""
        lost = sorted(set(lost))
        self._known(lost)
        check, good = self._opened(blocks)
        rebuilt = self._codec.recompute(good, lost, self.layout.stripe_length(self._next))
        written = {
            index: Block(pack_block_prefix(self._fragments[index], self._next, check, payload), payload)
            for index, payload in rebuilt.items()
        }
        self._digest.add(check)
        self._next += 1
        return written

    def finish(self) -> None:
        """Check that all stripes came and that together they are the state that was encoded."""
        if self._next != self.layout.stripes:
            raise NotEnoughFragments(f"{self.header}: {self._next} of {self.layout.stripes} stripes were rebuilt")
        if self._digest.value() != self.header.digest:
            raise WrongState(f"{self.header}: every stripe is valid, but the whole differs from the encoded state")

    def _known(self, indices: Iterable[int]) -> None:
        unknown = sorted(index for index in indices if not 0 <= index < self.header.coding.total)
        if unknown:
            raise BadInput(
                f"{self.header} has no fragments {unknown}", remedy=f"count to {self.header.coding.total - 1}"
            )

    def _opened(self, blocks: Mapping[int, Buffer]) -> tuple[bytes, dict[int, memoryview]]:
        """Return the stripe's check and m good payloads, data blocks first: they need no arithmetic."""
        self._known(blocks)
        needed = self.header.coding.data
        by_check: dict[bytes, dict[int, memoryview]] = {}
        for index in sorted(blocks):
            try:
                check, payload = open_block(self._fragments[index], self._next, blocks[index])
            except DamagedFragment as fault:
                self.damage.append(Damage(index, str(fault)))
                continue
            same = by_check.setdefault(check, {})
            same[index] = payload
            if len(same) == needed:
                return check, same
        good = sorted(index for same in by_check.values() for index in same)
        raise NotEnoughFragments(
            f"{self.header}: {len(good)} undamaged fragments, {needed} needed, at stripe {self._next}; "
            f"undamaged {good}, damaged {sorted(set(blocks) - set(good))}, "
            f"missing {sorted(set(range(self.header.coding.total)) - set(blocks))}"
        )


@dataclass(frozen=True, slots=True)
class FragmentSet:
    """Fragments of one encoding, by index, whole and with readable headers; their blocks are not yet checked."""

    header: StateHeader
    fragments: Mapping[int, memoryview]
    damage: tuple[Damage, ...] = ()

    def blocks(self, stripe: int) -> dict[int, Buffer]:
        """Return the blocks of one stripe, without a copy."""
        start, end = self.header.block_span(stripe)
        return {index: fragment[start:end] for index, fragment in self.fragments.items()}


def gather(fragments: Iterable[Buffer]) -> FragmentSet:
    """Read the headers of fragments of one state; unreadable, cut or overlong ones are reported as damage.

    Raises `MismatchedFragments` where good headers disagree, and `NotEnoughFragments` where no header is good.
    """
    damage: list[Damage] = []
    found: dict[int, memoryview] = {}
    header: StateHeader | None = None
    for fragment in fragments:
        try:
            read = FragmentHeader.unpack(fragment)
        except DamagedFragment as fault:
            damage.append(Damage(None, str(fault)))
            continue
        if header is not None and read.state != header:
            raise MismatchedFragments(f"fragments of {header} and of {read.state}: {_difference(header, read.state)}")
        header = read.state
        if len(fragment) != header.fragment_length:
            damage.append(Damage(read.index, f"{len(fragment)} bytes, not {header.fragment_length}"))
            continue
        found.setdefault(read.index, memoryview(fragment).cast("B"))
    if header is None:
        raise NotEnoughFragments(f"no fragment has a readable header ({len(damage)} given)")
    return FragmentSet(header, found, tuple(damage))


def decode_stream(fragments: FragmentSet) -> Iterator[memoryview]:
    """Yield the state's stripes, each verified. Use the bytes only once the end was reached without an error."""
    decoder = StateDecoder(fragments.header)
    while decoder.next_stripe < decoder.layout.stripes:
        yield decoder.stripe(fragments.blocks(decoder.next_stripe))
    decoder.finish()


def decode(fragments: Iterable[Buffer]) -> bytearray:
    """Return the state from any m good fragments of it. Never returns anything else."""
    gathered = gather(fragments)
    _enough(gathered)
    state = bytearray(gathered.header.state_bytes)
    place = 0
    for stripe in decode_stream(gathered):
        state[place : place + len(stripe)] = stripe
        place += len(stripe)
    return state


def recompute_stream(fragments: FragmentSet, lost: Iterable[int]) -> Iterator[dict[int, Block]]:
    """Yield, stripe by stripe, the blocks of lost fragments; write each behind `FragmentHeader(header, i).pack()`."""
    wanted = sorted(set(lost))
    decoder = StateDecoder(fragments.header)
    while decoder.next_stripe < decoder.layout.stripes:
        yield decoder.recompute(fragments.blocks(decoder.next_stripe), wanted)
    decoder.finish()


def recompute(fragments: Iterable[Buffer], lost: Iterable[int]) -> dict[int, bytearray]:
    """Return whole lost fragments, bit for bit those that `encode` made, from any m good others."""
    gathered = gather(fragments)
    _enough(gathered)
    rebuilt = {index: bytearray(FragmentHeader(gathered.header, index).pack()) for index in sorted(set(lost))}
    for blocks in recompute_stream(gathered, rebuilt):
        for index, block in blocks.items():
            rebuilt[index] += block.prefix
            rebuilt[index] += block.payload
    return rebuilt


def verify_fragment(fragment: Buffer) -> FragmentHeader:
    """Check a whole fragment by itself: header, length, every block. Returns its header or raises `DamagedFragment`."""
    header = FragmentHeader.unpack(fragment)
    if len(fragment) != header.state.fragment_length:
        raise DamagedFragment(
            f"fragment {header.index} of {header.state} has {len(fragment)} bytes, not {header.state.fragment_length}"
        )
    view = memoryview(fragment).cast("B")
    digest = StateDigest(header.state.state_bytes, header.state.layout.stripe_bytes)
    for stripe in range(header.state.layout.stripes):
        start, end = header.state.block_span(stripe)
        check, _ = open_block(header, stripe, view[start:end])
        digest.add(check)
    if digest.value() != header.state.digest:
        raise DamagedFragment(f"fragment {header.index} of {header.state} holds blocks of other states")
    return header


def _enough(gathered: FragmentSet) -> None:
    coding = gathered.header.coding
    if len(gathered.fragments) < coding.data:
        raise NotEnoughFragments(
            f"{gathered.header}: {len(gathered.fragments)} fragments, {coding.data} needed; missing "
            f"{sorted(set(range(coding.total)) - set(gathered.fragments))}, damaged {len(gathered.damage)}"
        )


def _difference(one: StateHeader, other: StateHeader) -> str:
    fields = [name for name in StateHeader.__slots__ if getattr(one, name) != getattr(other, name)]
    return f"{' and '.join(fields)} differ"
