"""One state's n fragments to n peers at once (A-FP4S, Table 2: Encode, Save). Runs wherever a client does.

The state is coded stripe by stripe; every fragment has a sender thread with a short queue, so memory stays at a few
stretches however large the state is. A peer that refuses, breaks or makes no progress loses its fragment to a spare
peer, which gets it in another pass over the state.

**When a save is acknowledged.** A fragment counts when its peer has synced it to disk. The save is acknowledged when
`required` fragments count, by default all n: from then on any n - m of their holders may be lost. A caller may require
fewer (m + t fragments survive t losses), but at least m. If the quorum is not reached, `NotSaved` names the peers that
failed and why. Some fragments may stay behind; readers then see that version whole (m or more stayed) or not at all. A
peer that responds with `StaleEpoch` ends the save at once: a newer writer has taken over.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from holdfast.erasure.encoding import encode_stripes
from holdfast.erasure.fragment import FragmentHeader, StateHeader
from holdfast.errors import HoldfastError
from holdfast.store.client.sending import FragmentSender
from holdfast.store.wire.connection import ConnectionPool
from holdfast.store.wire.failures import BadRequest, NotSaved, StaleEpoch
from holdfast.store.wire.messages import Bytes

IN_FLIGHT_BYTES = 16 << 20
LARGEST_CHUNK = 1 << 20
STALL_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """A peer that did not take its fragment."""

    index: int
    address: str
    error: HoldfastError


@dataclass(frozen=True, slots=True)
class SaveReport:
    """Which fragment lies where, and who refused."""

    stored: dict[int, str]
    refused: tuple[Refusal, ...]
    seconds: float
    encode_seconds: float
    """Of these, spent in coding."""
    sent: tuple[tuple[str, int, float], ...] = ()
    """Bytes that each peer was sent, and the seconds it took until it had stored them."""


def save_fragments(
    pool: ConnectionPool,
    header: StateHeader,
    contents: bytes | bytearray | memoryview,
    holders: Sequence[str],
    spares: Iterable[str] = (),
    *,
    required: int | None = None,
    stall_seconds: float = STALL_SECONDS,
    acknowledge_seconds: float = 30.0,
) -> SaveReport:
    """Save a state's fragments: fragment i to `holders[i]`, and to spares where that fails."""
    total = header.coding.total
    if len(holders) != total:
        raise BadRequest(f"{len(holders)} peers given for {total} fragments; each fragment needs its own")
    needed = total if required is None else max(required, header.coding.data)
    waiting = list(spares)
    targets = dict(enumerate(holders))
    stored: dict[int, str] = {}
    refused: list[Refusal] = []
    sent: list[tuple[str, int, float]] = []
    began, encoding = time.monotonic(), 0.0
    while targets:
        senders = [
            FragmentSender(pool, FragmentHeader(header, index), address, acknowledge_seconds)
            for index, address in targets.items()
        ]
        encoding += _feed(header, contents, senders, stall_seconds)
        deadline = time.monotonic() + acknowledge_seconds
        targets = {}
        for sender in senders:
            if sender.finished(deadline):
                stored[sender.header.index] = sender.address
                sent.append((sender.address, sender.sent_bytes, sender.busy_seconds))
                continue
            assert sender.error is not None
            refused.append(Refusal(sender.header.index, sender.address, sender.error))
            if isinstance(sender.error, StaleEpoch):
                raise sender.error
            if waiting:
                targets[sender.header.index] = waiting.pop(0)
    if len(stored) < needed:
        # A request that all refuse is bad. One that some have served is not: who refuses it is no peer of this ring.
        if not stored and refused and all(isinstance(one.error, BadRequest) for one in refused):
            raise refused[0].error
        why = "; ".join(f"fragment {one.index}: {one.error}" for one in refused[:3])
        raise NotSaved(
            f"{header}: {len(stored)} of {needed} required fragments were stored; {why}",
            remedy="start more peers, or ask for fewer fragments",
        )
    return SaveReport(stored, tuple(refused), time.monotonic() - began, encoding, tuple(sent))


def _feed(
    header: StateHeader, contents: bytes | bytearray | memoryview, senders: list[FragmentSender], stall_seconds: float
) -> float:
    """Code the state once and pass every sender its blocks, several stripes to a chunk; return seconds of coding."""
    chunk = min(LARGEST_CHUNK, max(header.block_bytes, IN_FLIGHT_BYTES // header.coding.total))
    per_chunk = max(1, chunk // header.block_bytes)
    pieces: list[list[Bytes]] = [[] for _ in senders]
    encoding = 0.0
    try:
        stripes = encode_stripes(header, contents)
        for number in itertools.count(1):
            before = time.monotonic()
            blocks = next(stripes, None)
            encoding += time.monotonic() - before
            if blocks is None:
                break
            for mine, sender in zip(pieces, senders, strict=True):
                block = blocks[sender.header.index]
                mine.extend((block.prefix, block.payload))
            if number % per_chunk == 0 or number == header.layout.stripes:
                for mine, sender in zip(pieces, senders, strict=True):
                    sender.feed(mine, stall_seconds)
                pieces = [[] for _ in senders]
            if all(sender.error is not None for sender in senders):
                break
    except BaseException:
        for sender in senders:
            sender.give_up(NotSaved(f"{header}: the state could not be read"))
        raise
    finally:
        for sender in senders:
            sender.feed(None, stall_seconds)
    return encoding
