"""One peer's part in the ring, as a machine: an event and the time go in, effects come out. Pure; runs anywhere.

Follows paper 002, sec. 3.2, and Pastry: prefix routing, leaf sets, keep-alives that carry the leaf set. Real peers and
the simulator drive the same `RingPeer`. It has no clock, socket or thread: whoever drives it

* calls `start` or `join` once, `receive` for each message, `tick` at `next_tick` at the latest,
* carries out the effects: `Send` may fail or get lost, the machine copes,
* calls `unreachable` when a transport knows that an address does not answer, to learn of it before the next timeout.

Rules that keep it right under loss and churn:

1. Only a peer heard from directly enters the leaf set. One heard of is probed first, so rumours do not raise the dead.
2. A leaf set member silent for `silence` seconds is probed; after `probes` unanswered probes it is lost.
3. Each hop of a route is acknowledged. A hop that does not answer is left out and the route goes another way; a
   neighbour, which may be the root itself, is asked again until it is lost.
4. A lost peer is not believed alive on hearsay for a while, but is asked now and then: split rings grow together.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from random import Random

from holdfast.store.leaf_set import NO_LIMITS, SMALLEST_LEAF_SET, LeafSet, Limits
from holdfast.store.ring_ids import RingId, clockwise, shared_digits
from holdfast.store.ring_messages import (
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
    PeerFound,
    PeerLost,
    Route,
    RouteAck,
    RouteReply,
    RowReply,
    RowRequest,
    Send,
)
from holdfast.store.routing_table import RoutingTable

_PERIODIC, _PROBE, _GREETING = Call.PERIODIC, Call.PROBE, Call.GREETING
MOST_HOPS = 64
"""A route this long goes in circles: it ends where it is."""
MOST_REMEMBERED = 64
"""Lost peers that are asked now and then whether they are back."""


@dataclass(frozen=True, slots=True)
class RingSettings:
    """What can be configured; seconds. The defaults are the paper's where it names one (T = 30 s, 24 leaves)."""

    leaf_size: int = SMALLEST_LEAF_SET
    keep_alive: float = 30.0
    """T: how often each leaf set member hears from this peer."""
    silences: float = 2.0
    """A member not heard from for this many T is probed."""
    answer_within: float = 1.0
    """How long a probe or a hop may take before it is repeated or goes elsewhere."""
    probes: int = 3
    table_period: float = 120.0
    """How often the routing table is mended and a lost peer is asked again."""
    lookup_within: float = 8.0
    """How long a lookup waits for its answer before it is repeated."""
    lookups: int = 3

    @property
    def silence(self) -> float:
        """Seconds of silence after which a member is probed."""
        return self.silences * self.keep_alive

    @property
    def detection(self) -> float:
        """Longest time from a crash to its being noticed by the leaf set (rule 2), ticks being on time."""
        return self.silence + self.keep_alive + self.probes * self.answer_within


@dataclass(slots=True)
class _Probe:
    contact: Contact
    deadline: float
    left: int


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
        self.leaves = LeafSet(contact.id, settings.leaf_size)
        self.table = RoutingTable(contact.id)
        self.active = False
        self._random = random
        self._joining = False
        self._bootstrap: str | None = None
        self._heard: dict[RingId, float] = {}
        self._said: dict[RingId, tuple[Contact, ...]] = {}
        self._lost: dict[RingId, tuple[Contact, float]] = {}
        self._probes: dict[RingId, _Probe] = {}
        self._hops: dict[tuple[RingId, int, int], _Hop] = {}
        self._lookups: dict[int, _Lookup] = {}
        self._join_token: int | None = None
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
    def next_tick(self) -> float:
        """When `tick` has to be called next, at the latest; infinity while there is nothing to wait for."""
        due = min(self._next_keep_alive, self._next_upkeep)
        for waiting in (self._probes, self._hops, self._lookups):
            if waiting:
                due = min(due, *(one.deadline for one in waiting.values()))
        return due

    def start(self, now: float) -> list[Effect]:
        """Be the first peer of a new ring."""
        self._schedule(now)
        self.active = True
        return [Joined()]

    def join(self, bootstrap: str, now: float) -> list[Effect]:
        """Enter the ring through any peer of it, given its address."""
        self._bootstrap = bootstrap
        self._joining = True
        self._schedule(now)
        token = self._new_token()
        self._join_token = token
        self._lookups[token] = _Lookup(self.id, now + self.settings.lookup_within, self.settings.lookups)
        return [Send(bootstrap, Route(token, self.id, self.contact, 0, joining=True))]

    def leave(self, now: float) -> list[Effect]:
        """Go in good order; afterwards the peer does nothing more."""
        effects: list[Effect] = [Send(contact.address, Leave()) for contact in self._everyone()]
        self.active = self._joining = False
        self._next_keep_alive = self._next_upkeep = float("inf")
        self._probes.clear()
        self._hops.clear()
        self._lookups.clear()
        return effects

    def lookup(self, key: RingId, now: float) -> tuple[int, list[Effect]]:
        """Find the live peer closest to the key; `LookupDone` or `LookupFailed` with the returned token will follow."""
        token = self._new_token()
        self._lookups[token] = _Lookup(key, now + self.settings.lookup_within, self.settings.lookups)
        return token, self._step(Route(token, key, self.contact, 0), now, set())

    def receive(self, sender: Contact, message: Message, now: float) -> list[Effect]:
        """Take a message in."""
        if sender.id == self.contact.id:
            return []
        match message:
            case KeepAlive():
                return self._on_keep_alive(sender, message, now)
            case RouteAck():
                self._hops.pop((message.origin, message.token, message.hops), None)
                return self._hear(sender, now)
            case Route():
                return self._on_route(sender, message, now)
            case RouteReply():
                return self._on_reply(sender, message, now)
            case RowRequest():
                row = Send(sender.address, RowReply(self.table.row(message.row)))
                return [*self._hear(sender, now), row]
            case RowReply():
                self._remember(message.contacts)
                return self._hear(sender, now)
            case Leave():
                return self._lose(sender, now, left=True)

    def tick(self, now: float) -> list[Effect]:
        """Do what is due: keep-alives, probes, hops and lookups without an answer, upkeep."""
        effects: list[Effect] = []
        if self._probes or self._hops or self._lookups:
            self._expire(now, effects)
        if now >= self._next_keep_alive:
            self._next_keep_alive = now + self.settings.keep_alive
            if self.active:
                self._keep_alive(now, effects)
        if now >= self._next_upkeep:
            self._next_upkeep = now + self.settings.table_period
            if self.active:
                self._upkeep(now, effects)
        return effects

    def unreachable(self, address: str, now: float) -> list[Effect]:
        """Learn from the transport that nothing answers at this address: probes and hops to it have failed."""
        effects: list[Effect] = []
        for probe in [probe for probe in self._probes.values() if probe.contact.address == address]:
            probe.deadline, probe.left = now, 0
        for hop in self._hops.values():
            if hop.to.address == address:
                hop.deadline = now
        for contact in [contact for contact in self.leaves.members if contact.address == address]:
            self._probe(contact, now, effects)
            self._probes[contact.id].left = min(self._probes[contact.id].left, 1)
        self._expire(now, effects)
        return effects

    def knows(self, peer: RingId) -> bool:
        """Say whether a peer is among the neighbours or in the routing table."""
        return peer in self.leaves or any(contact.id == peer for contact in self.table)

    # Keep-alives, probes, losses -----------------------------------------------------------------------------------

    def _on_keep_alive(self, sender: Contact, message: KeepAlive, now: float) -> list[Effect]:
        call = message.call
        effects = self._hear(sender, now, as_neighbour=call is not _GREETING)
        if call is not _GREETING and self._said.get(sender.id) != message.members:
            limits = self._limits()
            if limits == NO_LIMITS:
                self._said[sender.id] = message.members  # nothing was left out: the same list need not be read again
            for contact in self.leaves.fitting(message.members, limits):
                if contact.id not in self._lost:
                    self._probe(contact, now, effects)
        if call is _PROBE or (call is _PERIODIC and sender.id not in self.leaves):
            effects.append(Send(sender.address, KeepAlive(Call.ANSWER, self.leaves.members)))
        self._perhaps_joined(effects, now)
        return effects

    def _hear(self, sender: Contact, now: float, *, as_neighbour: bool = False) -> list[Effect]:
        """Note that a peer is alive: it spoke itself.

        While joining, only a keep-alive makes a neighbour: it shows that the other has heard of this peer too.
        """
        self._heard[sender.id] = now
        if self._lost:
            self._lost.pop(sender.id, None)
        if not self._probes and self.leaves.holds(sender):
            return []  # a neighbour, known as it is, and no room for more: nearly every message ends here
        self.table.add(sender)
        if not (self.active or as_neighbour):
            return []
        if self._probes:
            self._probes.pop(sender.id, None)
        return [PeerFound(sender)] if self.leaves.add(sender, self._limits()) else []

    def _probe(self, contact: Contact, now: float, effects: list[Effect]) -> None:
        if contact.id == self.id or contact.id in self._probes:
            return
        self._probes[contact.id] = _Probe(contact, now + self.settings.answer_within, self.settings.probes - 1)
        effects.append(Send(contact.address, KeepAlive(Call.PROBE, self.leaves.members)))

    def _keep_alive(self, now: float, effects: list[Effect]) -> None:
        members = self.leaves.members
        message = KeepAlive(Call.PERIODIC, members)
        silent_since = now - self.settings.silence
        for contact in members:
            if self._heard.get(contact.id, now) < silent_since:
                self._probe(contact, now, effects)
            else:
                effects.append(Send(contact.address, message))
        self._mend_leaf_set(now, effects)

    def _lose(self, contact: Contact, now: float, *, left: bool = False) -> list[Effect]:
        """Forget a peer that is gone, and look for who takes its place in the leaf set."""
        self._probes.pop(contact.id, None)
        self._heard.pop(contact.id, None)
        self._said.pop(contact.id, None)
        self.table.remove(contact.id)
        if len(self._lost) >= MOST_REMEMBERED:
            del self._lost[next(iter(self._lost))]
        self._lost[contact.id] = (contact, now)
        was_after = clockwise(self.id, contact.id) <= clockwise(contact.id, self.id)
        gone = self.leaves.remove(contact.id)
        effects: list[Effect] = []
        if gone is not None:
            effects.append(PeerLost(gone, left))
            side = self.leaves.after if was_after else self.leaves.before
            if side:
                # The furthest live member on that side knows who comes next.
                self._probe(side[-1], now, effects)
        if self.active:
            self._mend_leaf_set(now, effects)
        return effects

    def _mend_leaf_set(self, now: float, effects: list[Effect]) -> None:
        """Where a side has room and peers outside the leaf set are known, ask the nearest of them."""
        after, before = self.leaves.short_sides
        if not (after or before):
            return
        outside = [
            contact for contact in self.table if contact.id not in self.leaves and contact.id not in self._probes
        ]
        if outside and after:
            self._probe(min(outside, key=lambda contact: clockwise(self.id, contact.id)), now, effects)
        if outside and before:
            self._probe(min(outside, key=lambda contact: clockwise(contact.id, self.id)), now, effects)

    # Routes --------------------------------------------------------------------------------------------------------

    def next_hop(self, key: int, avoid: Iterable[RingId] = (), sender: RingId | None = None) -> Contact | None:
        """Return who brings a route to this key closer; None: no one known, it ends here (sec. 3.2).

        A route goes back to its `sender` only where the leaf set says so, or two peers, one of them with a leaf set not
        yet repaired, could pass it to and fro.
        """
        avoided = set(avoid)
        if self.leaves.covers(key, whole_ring=self._knows_whole_ring):
            return self.leaves.closest(key, avoided)
        if sender is not None:
            avoided.add(sender)
        entry = self.table.towards(key)
        if entry is not None and entry.id not in avoided:
            return entry
        return self.table.nearer(key, self.leaves.members, avoided)

    def _on_route(self, sender: Contact, route: Route, now: float) -> list[Effect]:
        effects: list[Effect] = [Send(sender.address, RouteAck(route.token, route.origin.id, route.hops))]
        if not (route.joining and sender.id == route.origin.id):
            effects += self._hear(sender, now)
        if not self.active:
            self._held.append((sender.id, route))
            return effects
        return effects + self._step(route, now, {route.origin.id} if route.joining else set(), sender.id)

    def _step(
        self, route: Route, now: float, avoid: set[RingId], sender: RingId | None = None, tries: int = 1
    ) -> list[Effect]:
        """Send a route on, or end it here."""
        onward = None if route.hops >= MOST_HOPS else self.next_hop(route.key, avoid, sender)
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
        joining = self._join_token is not None and reply.token == self._join_token
        effects = self._hear(sender, now) if sender.id != self.id else []
        if self._lookups.pop(reply.token, None) is None:
            return effects  # a late or second answer
        if not joining:
            return [*effects, LookupDone(reply.token, reply.key, reply.root, reply.members, reply.hops)]
        self._join_token = None
        self._remember(reply.known)
        for contact in self.leaves.fitting((reply.root, *reply.members)):
            self._probe(contact, now, effects)
        self._perhaps_joined(effects, now)
        return effects

    def _perhaps_joined(self, effects: list[Effect], now: float) -> None:
        """Become active once everyone who could be a neighbour has answered or been given up."""
        if not self._joining or self._join_token is not None or self._probes:
            return
        self._joining = False
        if not len(self.leaves):
            effects.append(JoinFailed())  # someone knew of neighbours, and none of them answered
            return
        self.active = True
        effects.append(Joined())
        # Those whose tables lack a peer like this one hear of it now.
        greeting = KeepAlive(Call.GREETING, ())
        effects.extend(Send(contact.address, greeting) for contact in self.table if contact.id not in self.leaves)
        held, self._held = self._held, []
        for sender, route in held:
            effects.extend(self._step(route, now, {route.origin.id} if route.joining else set(), sender))

    # What time brings ----------------------------------------------------------------------------------------------

    def _expire(self, now: float, effects: list[Effect]) -> None:
        for probe in [probe for probe in self._probes.values() if probe.deadline <= now]:
            if probe.left > 0:
                probe.left -= 1
                probe.deadline = now + self.settings.answer_within
                effects.append(Send(probe.contact.address, KeepAlive(Call.PROBE, self.leaves.members)))
            else:
                effects.extend(self._lose(probe.contact, now))
        for name, hop in [(name, hop) for name, hop in self._hops.items() if hop.deadline <= now]:
            del self._hops[name]
            if hop.to.id in self.leaves:
                self._probe(hop.to, now, effects)
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
        joining = token == self._join_token
        if lookup.left <= 0:
            del self._lookups[token]
            if joining:
                self._join_token = None
                self._joining = False
                effects.append(JoinFailed())
            else:
                effects.append(LookupFailed(token, lookup.key))
        elif joining and self._bootstrap is not None:
            effects.append(Send(self._bootstrap, Route(token, self.id, self.contact, 0, joining=True)))
        else:
            effects.extend(self._step(Route(token, lookup.key, self.contact, 0), now, set()))

    def _upkeep(self, now: float, effects: list[Effect]) -> None:
        """Mend one row of the routing table from a peer that has the same row; ask one lost peer whether it is back."""
        filled = [row for row in range(self.table.rows) if self.table.row(row)]
        if filled:
            row = self._random.choice(filled)
            effects.append(Send(self._random.choice(self.table.row(row)).address, RowRequest(row)))
        long_ago = now - 2 * self.settings.table_period
        ready = [contact for contact, when in self._lost.values() if when <= long_ago]
        if ready:
            self._said.clear()  # what neighbours say of a peer lost long ago counts again
            contact = self._random.choice(ready)
            del self._lost[contact.id]
            self._probe(contact, now, effects)

    # Small things --------------------------------------------------------------------------------------------------

    def _schedule(self, now: float) -> None:
        self._next_keep_alive = now + self.settings.keep_alive * self._random.uniform(0.5, 1.0)
        self._next_upkeep = now + self.settings.table_period * self._random.uniform(0.5, 1.5)

    def _remember(self, contacts: Iterable[Contact]) -> None:
        for contact in contacts:
            if contact.id not in self._lost and contact.id != self.id:
                self.table.add(contact)

    def _limits(self) -> Limits:
        """Return how far a side of the leaf set that has room may reach: not beyond the next peer known outside.

        Without this, one loss would let peers from the far side of the ring in, for want of better ones.
        """
        if not self.active or not self.leaves.has_room:
            return NO_LIMITS
        outside = [contact.id for contact in self.table if contact.id not in self.leaves]
        if not outside:
            return NO_LIMITS
        after = min(clockwise(self.id, peer) for peer in outside)
        before = min(clockwise(peer, self.id) for peer in outside)
        return after + 1, before + 1

    def _knows_whole_ring(self) -> bool:
        return all(contact.id in self.leaves for contact in self.table)

    def _everyone(self) -> Iterable[Contact]:
        return {contact.id: contact for contact in (*self.leaves.members, *self.table)}.values()

    def _new_token(self) -> int:
        self._tokens += 1
        return self._tokens
