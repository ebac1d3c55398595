"""The messages between peers of the ring, and the effects that the ring's state machine returns. Pure; runs anywhere.

Messages travel with their sender's `Contact`; `encoding` turns them into JSON values and back.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from holdfast.store.ring.ids import RingId


@dataclass(frozen=True, slots=True)
class Contact:
    """How to reach a peer, and what placement must know about it."""

    id: RingId
    address: str
    domain: str | None = None
    """Failure domain (rack, zone); None: nothing is known, the peer is a domain of its own."""
    weight: float = 1.0
    """Share of fragments relative to other peers; 0 takes none."""


class Call(StrEnum):
    """Why a keep-alive was sent."""

    PERIODIC = "periodic"
    PROBE = "probe"
    """Please answer: are you there?"""
    ANSWER = "answer"
    """Never answered, so that two peers cannot talk in circles."""
    GREETING = "greeting"
    """A new peer announces itself for the routing table; not answered either."""


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """I am alive, and these are my neighbours (membership rides on keep-alives)."""

    call: Call
    members: tuple[Contact, ...]


@dataclass(frozen=True, slots=True)
class Route:
    """Find the live peer closest to `key`, for `origin`. A joining peer routes to its own id and collects `known`."""

    token: int
    key: RingId
    origin: Contact
    hops: int
    joining: bool = False
    known: tuple[Contact, ...] = ()


@dataclass(frozen=True, slots=True)
class RouteAck:
    """I have this route and take care of it; without it the last hop goes another way."""

    token: int
    origin: RingId
    hops: int


@dataclass(frozen=True, slots=True)
class RouteReply:
    """The route ended at `root`; its neighbours hold what is kept under the key."""

    token: int
    key: RingId
    root: Contact
    members: tuple[Contact, ...]
    hops: int
    known: tuple[Contact, ...] = ()


@dataclass(frozen=True, slots=True)
class RowRequest:
    """Send me this row of your routing table."""

    row: int


@dataclass(frozen=True, slots=True)
class RowReply:
    """A row, as asked for."""

    contacts: tuple[Contact, ...]


@dataclass(frozen=True, slots=True)
class Leave:
    """I am going, in good order."""


Message = KeepAlive | Route | RouteAck | RouteReply | RowRequest | RowReply | Leave


@dataclass(frozen=True, slots=True)
class Send:
    """Effect: send this message to this address; it may get lost."""

    address: str
    message: Message


@dataclass(frozen=True, slots=True)
class Joined:
    """Effect: this peer is now part of the ring."""


@dataclass(frozen=True, slots=True)
class JoinFailed:
    """Effect: no one answered; the driver may call `join` again with another address."""


@dataclass(frozen=True, slots=True)
class PeerFound:
    """Effect: this peer is now in the leaf set."""

    contact: Contact


@dataclass(frozen=True, slots=True)
class PeerLost:
    """Effect: this peer of the leaf set is gone: what it held has to be rebuilt elsewhere."""

    contact: Contact
    left: bool
    """It announced that it leaves; False: it stopped responding."""


@dataclass(frozen=True, slots=True)
class LookupDone:
    """Effect: a lookup asked for here has its answer: the root of the key, its neighbours, and the hops it took."""

    token: int
    key: RingId
    root: Contact
    members: tuple[Contact, ...]
    hops: int


@dataclass(frozen=True, slots=True)
class LookupFailed:
    """Effect: a lookup got no answer in the time and attempts it had."""

    token: int
    key: RingId


Effect = Send | Joined | JoinFailed | PeerFound | PeerLost | LookupDone | LookupFailed
