"""A ring of simulated peers in one process, with a clock of its own: the real `RingPeer`, no sockets.

Deterministic: one seed gives one run, event for event. Messages take a time drawn from `latency`, are lost with
probability `loss`, and a crashed peer neither sends nor receives. `SimulatedRing.check` is the oracle: what leaf sets
and roots have to be, computed from all live peers at once.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from random import Random

from holdfast.store.ring.ids import BITS, RingId, closeness
from holdfast.store.ring.machine import RingPeer, RingSettings
from holdfast.store.ring.messages import (
    Contact,
    Effect,
    Joined,
    JoinFailed,
    KeepAlive,
    LookupDone,
    LookupFailed,
    Message,
    PeerFound,
    PeerLost,
    Send,
)


@dataclass(frozen=True, slots=True)
class Network:
    """How messages travel: seconds, uniformly drawn, and the share that gets lost."""

    shortest: float = 0.0005
    longest: float = 0.002
    loss: float = 0.0


@dataclass(slots=True)
class Counts:
    """What happened so far."""

    messages: int = 0
    lost_messages: int = 0
    by_kind: dict[str, int] = field(default_factory=dict)
    """Keep-alives by why they were sent, other messages by what they are."""
    peers_lost: int = 0
    """Losses noticed, each counted once per peer that noticed it."""
    false_losses: int = 0
    """Of those: the peer was alive."""
    joins_failed: int = 0


@dataclass(frozen=True, slots=True)
class Found:
    """A lookup's end: what was found, what should have been, and how long it took."""

    key: RingId
    root: RingId | None
    expected: RingId | None
    hops: int
    seconds: float


class SimulatedRing:
    """Peers, messages under way, and the clock."""

    def __init__(self, settings: RingSettings, seed: int, network: Network | None = None) -> None:
        """Begin with no peers at time 0."""
        self.settings = settings
        self.network = network or Network()
        self.random = Random(seed)
        self.now = 0.0
        self.peers: dict[str, RingPeer] = {}
        self._by_id: dict[RingId, RingPeer] = {}
        self._active: list[str] = []
        self.counts = Counts()
        self.lookups: list[Found] = []
        self.reachable: Callable[[str, str], bool] | None = None
        """Says whether a message from one address reaches another; None: all do. Set it to cut the network in parts."""
        self.observers: list[Callable[[RingPeer, Effect, float], None]] = []
        self._queue: list[tuple[float, int, str, Contact | None, Message | None]] = []
        self._order = count()
        self._wake: dict[str, float] = {}
        self._asked: dict[tuple[str, int], float] = {}
        self._ids: list[RingId] = []

    # Peers come and go ----------------------------------------------------------------------------------------------

    def new_contact(self, domain: str | None = None, weight: float = 1.0) -> Contact:
        """Return a contact with a random id for a peer that is not there yet."""
        number = RingId(self.random.getrandbits(BITS))
        return Contact(number, f"sim:{number:032x}", domain, weight)

    def add(self, contact: Contact, bootstrap: str | None = None) -> RingPeer:
        """Let a peer join through another, at random where none is named; the first one starts the ring."""
        peer = RingPeer(contact, self.settings, Random(self.random.getrandbits(64)))
        if bootstrap is None:
            bootstrap = self.any_active()
        self.peers[contact.address] = self._by_id[contact.id] = peer
        insort(self._ids, contact.id)
        self._do(peer, peer.start(self.now) if bootstrap is None else peer.join(bootstrap, self.now))
        return peer

    def any_active(self) -> str | None:
        """Return the address of a peer that is part of the ring, at random; None while there is none."""
        while self._active:
            place = self.random.randrange(len(self._active))
            address = self._active[place]
            if address in self.peers:
                return address
            # Gone since: forget it, at no more cost than moving one entry.
            self._active[place] = self._active[-1]
            self._active.pop()
        return None

    def crash(self, address: str) -> None:
        """Let a peer vanish without a word."""
        peer = self.peers.pop(address)
        del self._by_id[peer.id]
        del self._ids[bisect_left(self._ids, peer.id)]
        self._wake.pop(address, None)

    def leave(self, address: str) -> None:
        """Let a peer go in good order."""
        peer = self.peers[address]
        self._do(peer, peer.leave(self.now))
        self.crash(address)

    def lookup(self, address: str, key: RingId) -> None:
        """Ask a peer to find the root of a key; the end is appended to `lookups`."""
        peer = self.peers[address]
        token, effects = peer.lookup(key, self.now)
        self._asked[address, token] = self.now
        self._do(peer, effects)

    # Time passes ----------------------------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        """Let this much time pass."""
        end = self.now + seconds
        queue = self._queue
        while queue and queue[0][0] <= end:
            self.now, _, address, sender, message = heapq.heappop(queue)
            peer = self.peers.get(address)
            if peer is None:
                continue
            if message is None:
                if self._wake.get(address) != self.now:
                    continue  # it was woken earlier and sleeps to another time
                del self._wake[address]
                self._do(peer, peer.tick(self.now))
            else:
                assert sender is not None
                effects = peer.receive(sender, message, self.now)
                if effects:  # without effects nothing new is due: most keep-alives end here
                    self._do(peer, effects)
        self.now = end

    def answer_all(self) -> None:
        """Run until every lookup asked for has been answered or given up."""
        limit = self.now + self.settings.lookups * self.settings.lookup_within
        while self._asked and self.now < limit:
            self.run(0.1)

    @property
    def settled(self) -> bool:
        """Whether all leaf sets are right; where messages get lost, 99 of 100: some peer is always being probed."""
        return len(self.check()) <= (0.01 * len(self.peers) if self.network.loss else 0)

    def settle(self, limit: float) -> float | None:
        """Run until the ring is settled; return the seconds it took, or None after `limit`."""
        began = self.now
        while not self.settled:
            if self.now - began >= limit:
                return None
            self.run(self.settings.keep_alive / 4)
        return self.now - began

    def _do(self, peer: RingPeer, effects: Iterable[Effect]) -> None:
        address = peer.contact.address
        for effect in effects:
            match effect:
                case Send():
                    self._send(peer.contact, effect)
                case LookupDone():
                    self._found(address, effect.token, effect.key, effect.root.id, effect.hops)
                case LookupFailed():
                    self._found(address, effect.token, effect.key, None, 0)
                case PeerLost():
                    self.counts.peers_lost += 1
                    self.counts.false_losses += effect.contact.address in self.peers and not effect.left
                case JoinFailed():
                    self.counts.joins_failed += 1
                    other = self.any_active()
                    if other is not None:
                        self._do(peer, peer.join(other, self.now))
                case Joined():
                    self._active.append(address)
                case PeerFound():
                    pass
            for observer in self.observers:
                observer(peer, effect, self.now)
        if address in self.peers:
            due = peer.next_tick
            if due < self._wake.get(address, float("inf")):
                self._wake[address] = due
                heapq.heappush(self._queue, (due, next(self._order), address, None, None))

    def _send(self, sender: Contact, effect: Send) -> None:
        self.counts.messages += 1
        message = effect.message
        kind = message.call if isinstance(message, KeepAlive) else type(message).__name__
        self.counts.by_kind[kind] = self.counts.by_kind.get(kind, 0) + 1
        network = self.network
        cut = self.reachable is not None and not self.reachable(sender.address, effect.address)
        if cut or (network.loss and self.random.random() < network.loss):
            self.counts.lost_messages += 1
            return
        arrives = self.now + network.shortest + (network.longest - network.shortest) * self.random.random()
        heapq.heappush(self._queue, (arrives, next(self._order), effect.address, sender, message))

    def _found(self, address: str, token: int, key: RingId, root: RingId | None, hops: int) -> None:
        asked = self._asked.pop((address, token))
        self.lookups.append(Found(key, root, self.root_of(key), hops, self.now - asked))

    # The oracle -----------------------------------------------------------------------------------------------------

    @property
    def live_ids(self) -> list[RingId]:
        """The ids of all live peers, in order."""
        return self._ids

    def root_peer(self, key: RingId) -> RingPeer | None:
        """Return the live peer closest to the key."""
        root = self.root_of(key)
        return None if root is None else self._by_id[root]

    def root_of(self, key: RingId) -> RingId | None:
        """Return the id of the live peer closest to the key."""
        ids = self._ids
        if not ids:
            return None
        place = bisect_left(ids, key)
        return min((ids[place % len(ids)], ids[place - 1]), key=lambda peer: closeness(key, peer))

    def true_neighbours(self, peer: RingId) -> set[RingId]:
        """Return what the peer's leaf set has to be: the nearest live ones on each side."""
        ids = self.live_ids
        half = self.settings.leaf_size // 2
        if len(ids) - 1 <= half:
            return {other for other in ids if other != peer}
        place = bisect_left(ids, peer)
        around = {ids[(place + step) % len(ids)] for step in range(-half, half + 1)}
        return around - {peer}

    def check(self) -> list[str]:
        """Return violations: peers outside the ring, leaf sets that differ from the true neighbours."""
        wrong = []
        for peer in self.peers.values():
            if not peer.active:
                wrong.append(f"{peer.id:032x} has not joined")
                continue
            actual, expected = {contact.id for contact in peer.leaves.members}, self.true_neighbours(peer.id)
            if actual != expected:
                missing, extra = len(expected - actual), len(actual - expected)
                wrong.append(f"{peer.id:032x}: {missing} neighbours are missing, {extra} are wrong")
        return wrong
