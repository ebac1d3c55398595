"""The peers that a peer knows, and failure detection: keep-alives, probes, losses, repair (A-FP4S, sec. 3.2).

Pure; runs anywhere. Half of the machine of `ring.RingPeer`, which also routes and joins: rules 1, 2 and 4 live here.
Methods add what is to be sent to `effects`, or return it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

from holdfast.store.ring.ids import RingId, clockwise
from holdfast.store.ring.leaf_set import NO_LIMITS, LeafSet, Limits
from holdfast.store.ring.messages import (
    Call,
    Contact,
    Effect,
    KeepAlive,
    PeerFound,
    PeerLost,
    RowRequest,
    Send,
)
from holdfast.store.ring.routing_table import RoutingTable
from holdfast.store.ring.settings import RingSettings

_PERIODIC, _PROBE, _GREETING = Call.PERIODIC, Call.PROBE, Call.GREETING
MOST_REMEMBERED = 64
"""Lost peers that are asked now and then whether they are back."""


@dataclass(slots=True)
class Probe:
    """A question under way: are you there?"""

    contact: Contact
    deadline: float
    left: int


class Neighbourhood:
    """Leaf set, routing table, and the news about them."""

    def __init__(self, contact: Contact, settings: RingSettings) -> None:
        """Begin with no one."""
        self.contact = contact
        self.settings = settings
        self.leaves = LeafSet(contact.id, settings.leaf_size)
        self.table = RoutingTable(contact.id)
        self.active = False
        """Whether this peer is part of the ring."""
        self.probes: dict[RingId, Probe] = {}
        self._last_message: dict[RingId, float] = {}
        self._member_lists: dict[RingId, tuple[Contact, ...]] = {}
        self._lost: dict[RingId, tuple[Contact, float]] = {}

    def on_keep_alive(self, sender: Contact, message: KeepAlive, now: float) -> list[Effect]:
        """Take a keep-alive in: its sender lives, and those it names may."""
        call = message.call
        effects = self.note_alive(sender, now, as_neighbour=call is not _GREETING)
        if call is not _GREETING and self._member_lists.get(sender.id) != message.members:
            limits = self._limits()
            if limits == NO_LIMITS:
                self._member_lists[sender.id] = (
                    message.members
                )  # nothing was left out: the same list need not be read again
            for contact in self.leaves.fitting(message.members, limits):
                if contact.id not in self._lost:
                    self.probe(contact, now, effects)
        if call is _PROBE or (call is _PERIODIC and sender.id not in self.leaves):
            effects.append(Send(sender.address, KeepAlive(Call.ANSWER, self.leaves.members)))
        return effects

    def note_alive(self, sender: Contact, now: float, *, as_neighbour: bool = False) -> list[Effect]:
        """Record that a peer is alive: it sent a message itself.

        While joining, only a keep-alive makes a neighbour: it shows that the other has this peer in its leaf set too.
        """
        self._last_message[sender.id] = now
        if self._lost:
            self._lost.pop(sender.id, None)
        if not self.probes and self.leaves.holds(sender):
            return []  # a neighbour, known as it is, and no room for more: nearly every message ends here
        self.table.add(sender)
        if not (self.active or as_neighbour):
            return []
        if self.probes:
            self.probes.pop(sender.id, None)
        return [PeerFound(sender)] if self.leaves.add(sender, self._limits()) else []

    def probe(self, contact: Contact, now: float, effects: list[Effect]) -> None:
        """Ask a peer whether it is there, unless it is being asked."""
        if contact.id == self.contact.id or contact.id in self.probes:
            return
        self.probes[contact.id] = Probe(contact, now + self.settings.answer_within, self.settings.probes - 1)
        effects.append(Send(contact.address, KeepAlive(Call.PROBE, self.leaves.members)))

    def keep_alive(self, now: float, effects: list[Effect]) -> None:
        """Send keep-alives to all neighbours; probe those without a recent message."""
        members = self.leaves.members
        message = KeepAlive(Call.PERIODIC, members)
        silent_since = now - self.settings.silence
        for contact in members:
            if self._last_message.get(contact.id, now) < silent_since:
                self.probe(contact, now, effects)
            else:
                effects.append(Send(contact.address, message))
        self._mend(now, effects)

    def lose(self, contact: Contact, now: float, *, left: bool = False) -> list[Effect]:
        """Forget a peer that is gone, and look for who takes its place in the leaf set."""
        self.probes.pop(contact.id, None)
        self._last_message.pop(contact.id, None)
        self._member_lists.pop(contact.id, None)
        self.table.remove(contact.id)
        if len(self._lost) >= MOST_REMEMBERED:
            del self._lost[next(iter(self._lost))]
        self._lost[contact.id] = (contact, now)
        was_after = clockwise(self.contact.id, contact.id) <= clockwise(contact.id, self.contact.id)
        gone = self.leaves.remove(contact.id)
        effects: list[Effect] = []
        if gone is not None:
            effects.append(PeerLost(gone, left))
            side = self.leaves.after if was_after else self.leaves.before
            if side:
                # The furthest live member on that side knows who comes next.
                self.probe(side[-1], now, effects)
        if self.active:
            self._mend(now, effects)
        return effects

    def expire(self, now: float, effects: list[Effect]) -> None:
        """Repeat probes without an answer, and give up on peers that were asked often enough."""
        for probe in [probe for probe in self.probes.values() if probe.deadline <= now]:
            if probe.left > 0:
                probe.left -= 1
                probe.deadline = now + self.settings.answer_within
                effects.append(Send(probe.contact.address, KeepAlive(Call.PROBE, self.leaves.members)))
            else:
                effects.extend(self.lose(probe.contact, now))

    def unreachable(self, address: str, now: float, effects: list[Effect]) -> None:
        """Take a refused connection for an unanswered probe, the second one for the last."""
        for probe in [probe for probe in self.probes.values() if probe.contact.address == address]:
            probe.deadline, probe.left = now, 0
        for contact in [contact for contact in self.leaves.members if contact.address == address]:
            self.probe(contact, now, effects)
            self.probes[contact.id].left = min(self.probes[contact.id].left, 1)

    def _mend(self, now: float, effects: list[Effect]) -> None:
        """Where a side has room and peers outside the leaf set are known, ask the nearest of them."""
        after, before = self.leaves.short_sides
        if not (after or before):
            return
        outside = [contact for contact in self.table if contact.id not in self.leaves and contact.id not in self.probes]
        if outside and after:
            self.probe(min(outside, key=lambda contact: clockwise(self.contact.id, contact.id)), now, effects)
        if outside and before:
            self.probe(min(outside, key=lambda contact: clockwise(contact.id, self.contact.id)), now, effects)

    def next_hop(self, key: int, avoid: Iterable[RingId] = (), sender: RingId | None = None) -> Contact | None:
        """Return the next hop of a route to this key; None: it ends here (sec. 3.2).

        A route goes back to its `sender` only where the leaf set requires it. Otherwise two peers, one of them with a
        leaf set not yet repaired, could pass it to and fro.
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

    def upkeep(self, now: float, effects: list[Effect], random: Random) -> None:
        """Mend one row of the routing table from a peer that has the same row; ask one lost peer whether it is back."""
        filled = [row for row in range(self.table.rows) if self.table.row(row)]
        if filled:
            row = random.choice(filled)
            effects.append(Send(random.choice(self.table.row(row)).address, RowRequest(row)))
        # Times of messages and member lists matter for neighbours only.
        self._last_message = {peer: when for peer, when in self._last_message.items() if peer in self.leaves}
        self._member_lists = {peer: members for peer, members in self._member_lists.items() if peer in self.leaves}
        long_ago = now - 2 * self.settings.table_period
        ready = [contact for contact, when in self._lost.values() if when <= long_ago]
        if ready:
            self._member_lists.clear()  # a peer lost long ago may be named by neighbours again
            contact = random.choice(ready)
            del self._lost[contact.id]
            self.probe(contact, now, effects)

    def remember(self, contacts: Iterable[Contact]) -> None:
        """Add peers named by others to the routing table: there, a lost peer only costs a detour."""
        for contact in contacts:
            if contact.id not in self._lost and contact.id != self.contact.id:
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
        after = min(clockwise(self.contact.id, peer) for peer in outside)
        before = min(clockwise(peer, self.contact.id) for peer in outside)
        return after + 1, before + 1

    def _knows_whole_ring(self) -> bool:
        return all(contact.id in self.leaves for contact in self.table)

    def everyone(self) -> Iterable[Contact]:
        """Return all peers known."""
        return {contact.id: contact for contact in (*self.leaves.members, *self.table)}.values()
