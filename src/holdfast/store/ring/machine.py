"""One peer of the ring as a state machine: an event and the time go in, effects come out. Pure; runs anywhere.

Follows A-FP4S, sec. 3.2, and Pastry: prefix routing, leaf sets, keep-alives that carry the leaf set. Real peers and
the simulator drive the same `RingPeer`. It has no clock, socket or thread. The caller

* calls `start` or `join` once, `receive` for each message, `tick` at `next_tick` at the latest,
* carries out the effects: a `Send` may fail or get lost,
* calls `unreachable` when the transport finds that an address does not respond, before the timeout does,
* calls `meet` for peers that may be unknown to this one.

Rules that keep the ring correct under loss and churn:

1. Only a peer that sent a message itself enters the leaf set. One named by others is probed first: it may be lost.
2. A leaf set member silent for `silence` seconds is probed; after `probes` unanswered probes it is lost.
3. Each hop of a route is acknowledged. A hop that does not respond is left out and the route goes another way; a
   neighbour, which may be the root itself, is tried again until it is lost.
4. For a while a lost peer that others name is ignored, but it is probed regularly: rings that were split merge again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from holdfast.store.ring.ids import RingId, shared_digits
from holdfast.store.ring.leaf_set import LeafSet
from holdfast.store.ring.messages import (
    Call,
    Contact,
    Effect,
    Joined,
    JoinFailed,
    KeepAlive,
    Leave,
    LookupDone,
    LookupFailed,
    Message,
    Route,
    RouteAck,
    RouteReply,
    RowReply,
    RowRequest,
    Send,
)
from holdfast.store.ring.neighbourhood import Neighbourhood
from holdfast.store.ring.routing_table import RoutingTable
from holdfast.store.ring.settings import RingSettings

__all__ = ["RingPeer", "RingSettings"]

MOST_HOPS = 64
"""A route this long goes in circles: it ends where it is."""
MOST_HELD = 1000
"""Routes that a joining peer keeps until it can send them on; more are dropped, and their senders try again."""


@dataclass(slots=True)
class _Hop:
    route: Route
    to: Contact
    deadline: float
    avoid: set[RingId]
    sender: RingId | None
    tries: int


@dataclass(slots=True)
class _Lookup:
    key: RingId
    deadline: float
    left: int


class RingPeer:
    """A peer of the ring. Not safe for threads; cheap enough to have thousands of in one process."""

    def __init__(self, contact: Contact, settings: RingSettings, random: Random) -> None:
        """Begin outside of any ring. `random` only spreads upkeep over time and tables: no decision depends on it."""
        self.contact = contact
        self.settings = settings
        self._around = Neighbourhood(contact, settings)
        self._random = random
        self._joining = False
        self._bootstrap: str | None = None
        self._hops: dict[tuple[RingId, int, int], _Hop] = {}
        self._lookups: dict[int, _Lookup] = {}
        self._join_tokens: set[int] = set()
        self._awaited: set[RingId] = set()
        self._held: list[tuple[RingId, Route]] = []
        self._tokens = 0
        self._next_keep_alive = float("inf")
        self._next_upkeep = float("inf")

    # What a driver calls -------------------------------------------------------------------------------------------

    @property
    def id(self) -> RingId:
        """This peer's place on the ring."""
        return self.contact.id

    @property
    def active(self) -> bool:
        """Whether this peer is part of the ring."""
        return self._around.active

    @property
    def leaves(self) -> LeafSet:
        """The neighbours."""
        return self._around.leaves

    @property
    def table(self) -> RoutingTable:
        """The peers further away."""
        return self._around.table

    @property
    def next_tick(self) -> float:
        """When `tick` has to be called next, at the latest; infinity while there is nothing to wait for."""
        due = min(self._next_keep_alive, self._next_upkeep)
        for waiting in (self._around.probes, self._hops, self._lookups):
            if waiting:
                due = min(due, *(one.deadline for one in waiting.values()))
        return due

    def start(self, now: float) -> list[Effect]:
        """Be the first peer of a new ring."""
        self._schedule(now)
        self._around.active = True
        return [Joined()]

    def join(self, bootstrap: str, now: float) -> list[Effect]:
        """Enter the ring through any peer of it, given its address; again through another where that takes long."""
        self._bootstrap = bootstrap
        self._joining = True
        self._schedule(now)
        token = self._new_token()
        self._join_tokens.add(token)
        self._lookups[token] = _Lookup(self.id, now + self.settings.lookup_within, self.settings.lookups)
        return [Send(bootstrap, Route(token, self.id, self.contact, 0, joining=True))]

    def leave(self, now: float) -> list[Effect]:
        """Go in good order; afterwards the peer does nothing more."""
        effects: list[Effect] = [Send(contact.address, Leave()) for contact in self._around.everyone()]
        self._around.active = self._joining = False
        self._next_keep_alive = self._next_upkeep = float("inf")
        self._around.probes.clear()
        self._hops.clear()
        self._lookups.clear()
        return effects

    def meet(self, address: str) -> list[Effect]:
        """Contact the peer that may be at this address: two separate rings merge into one."""
        if not self.active or any(contact.address == address for contact in self.leaves.members):
            return []
        return [Send(address, KeepAlive(Call.PROBE, self.leaves.members))]

    def lookup(self, key: RingId, now: float) -> tuple[int, list[Effect]]:
        """Find the live peer closest to the key; `LookupDone` or `LookupFailed` with the returned token will follow.

        Asked for before this peer is part of the ring, a lookup waits and is tried later.
        """
        token = self._new_token()
        self._lookups[token] = _Lookup(key, now + self.settings.lookup_within, self.settings.lookups)
        return token, self._step(Route(token, key, self.contact, 0), now, set()) if self.active else []

    def receive(self, sender: Contact, message: Message, now: float) -> list[Effect]:
        """Take a message in."""
        if sender.id == self.contact.id:
            return []
        match message:
            case KeepAlive():
                effects = self._around.on_keep_alive(sender, message, now)
                self._perhaps_joined(effects, now)
                return effects
            case RouteAck():
                self._hops.pop((message.origin, message.token, message.hops), None)
                return self._around.note_alive(sender, now)
            case Route():
                return self._on_route(sender, message, now)
            case RouteReply():
                return self._on_reply(sender, message, now)
            case RowRequest():
                row = Send(sender.address, RowReply(self.table.row(message.row)))
                return [*self._around.note_alive(sender, now), row]
            case RowReply():
                self._around.remember(message.contacts)
                return self._around.note_alive(sender, now)
            case Leave():
                return self._around.lose(sender, now, left=True)

    def tick(self, now: float) -> list[Effect]:
        """Do what is due: keep-alives, probes, hops and lookups without an answer, upkeep."""
        effects: list[Effect] = []
        if self._around.probes or self._hops or self._lookups:
            self._expire(now, effects)
        if now >= self._next_keep_alive:
            self._next_keep_alive = now + self.settings.keep_alive
            if self.active:
                self._around.keep_alive(now, effects)
        if now >= self._next_upkeep:
            self._next_upkeep = now + self.settings.table_period
            if self.active:
                self._around.upkeep(now, effects, self._random)
        return effects

    def unreachable(self, address: str, now: float) -> list[Effect]:
        """Learn from the transport that nothing answers at this address: probes and hops to it have failed."""
        effects: list[Effect] = []
        for hop in self._hops.values():
            if hop.to.address == address:
                hop.deadline = now
        self._around.unreachable(address, now, effects)
        self._expire(now, effects)
        return effects

    # Routes --------------------------------------------------------------------------------------------------------

    def _on_route(self, sender: Contact, route: Route, now: float) -> list[Effect]:
        effects: list[Effect] = [Send(sender.address, RouteAck(route.token, route.origin.id, route.hops))]
        if not (route.joining and sender.id == route.origin.id):
            effects += self._around.note_alive(sender, now)
        if not self.active:
            if len(self._held) < MOST_HELD:
                self._held.append((sender.id, route))
            return effects
        return effects + self._step(route, now, {route.origin.id} if route.joining else set(), sender.id)

    def _step(
        self, route: Route, now: float, avoid: set[RingId], sender: RingId | None = None, tries: int = 1
    ) -> list[Effect]:
        """Send a route on, or end it here."""
        onward = None if route.hops >= MOST_HOPS else self._around.next_hop(route.key, avoid, sender)
        if route.joining:
            rows = range(shared_digits(self.id, route.key) + 1)
            known = (contact for row in rows for contact in self.table.row(row))
            route = replace(route, known=tuple(dict.fromkeys((*route.known, *known, self.contact))))
        if onward is None:
            reply = RouteReply(route.token, route.key, self.contact, self.leaves.members, route.hops, route.known)
            if route.origin.id == self.id:
                return self._on_reply(self.contact, reply, now)
            return [Send(route.origin.address, reply)]
        sent = replace(route, hops=route.hops + 1)
        hop = _Hop(route, onward, now + self.settings.answer_within, avoid, sender, tries)
        self._hops[route.origin.id, route.token, sent.hops] = hop
        return [Send(onward.address, sent)]

    def _on_reply(self, sender: Contact, reply: RouteReply, now: float) -> list[Effect]:
        joining = reply.token in self._join_tokens
        effects = self._around.note_alive(sender, now) if sender.id != self.id else []
        if self._lookups.pop(reply.token, None) is None:
            return effects  # a late or second answer
        if not joining:
            return [*effects, LookupDone(reply.token, reply.key, reply.root, reply.members, reply.hops)]
        for token in self._join_tokens:
            self._lookups.pop(token, None)
        self._join_tokens.clear()
        self._around.remember(reply.known)
        for contact in self.leaves.fitting((reply.root, *reply.members)):
            self._around.probe(contact, now, effects)
            self._awaited.add(contact.id)
        self._perhaps_joined(effects, now)
        return effects

    def _perhaps_joined(self, effects: list[Effect], now: float) -> None:
        """Become active once the root's neighbours have all answered or been given up.

        Not those named later: in a ring that grows fast there would always be one more.
        """
        if not self._joining or self._join_tokens or not self._awaited.isdisjoint(self._around.probes):
            return
        self._joining = False
        self._awaited.clear()
        if not len(self.leaves):
            effects.append(JoinFailed())  # neighbours were named, and none of them responded
            return
        self._around.active = True
        effects.append(Joined())
        # Peers whose routing tables lack an entry for this one are notified now.
        greeting = KeepAlive(Call.GREETING, ())
        effects.extend(Send(contact.address, greeting) for contact in self.table if contact.id not in self.leaves)
        held, self._held = self._held, []
        for sender, route in held:
            effects.extend(self._step(route, now, {route.origin.id} if route.joining else set(), sender))

    # What time brings ----------------------------------------------------------------------------------------------

    def _expire(self, now: float, effects: list[Effect]) -> None:
        self._around.expire(now, effects)
        for name, hop in [(name, hop) for name, hop in self._hops.items() if hop.deadline <= now]:
            del self._hops[name]
            if hop.to.id in self.leaves:
                self._around.probe(hop.to, now, effects)
            else:
                self.table.remove(hop.to.id)
            # A neighbour may be the root itself: it is asked again until it is lost. Others are left out at once.
            if hop.to.id not in self.leaves or hop.tries >= 2 * self.settings.probes:
                hop.avoid.add(hop.to.id)
            effects.extend(self._step(hop.route, now, hop.avoid, hop.sender, hop.tries + 1))
        for token, lookup in [(token, lookup) for token, lookup in self._lookups.items() if lookup.deadline <= now]:
            self._retry(token, lookup, now, effects)
        self._perhaps_joined(effects, now)

    def _retry(self, token: int, lookup: _Lookup, now: float, effects: list[Effect]) -> None:
        lookup.left -= 1
        lookup.deadline = now + self.settings.lookup_within
        joining = token in self._join_tokens
        if lookup.left <= 0:
            del self._lookups[token]
            if joining:
                self._join_tokens.discard(token)
                if not self._join_tokens:
                    self._joining = False
                    effects.append(JoinFailed())
            else:
                effects.append(LookupFailed(token, lookup.key))
        elif joining and self._bootstrap is not None:
            effects.append(Send(self._bootstrap, Route(token, self.id, self.contact, 0, joining=True)))
        elif self.active:
            effects.extend(self._step(Route(token, lookup.key, self.contact, 0), now, set()))

    # Small things --------------------------------------------------------------------------------------------------

    def _schedule(self, now: float) -> None:
        self._next_keep_alive = now + self.settings.keep_alive * self._random.uniform(0.5, 1.0)
        self._next_upkeep = now + self.settings.table_period * self._random.uniform(0.5, 1.5)

    def _new_token(self) -> int:
        self._tokens += 1
        return self._tokens
