"""States kept on a simulated ring: who holds which fragment, what a failure leaves of them, and their repair.

Only where fragments are is simulated, not their bytes. The root of a state looks after it (docs/concepts/ring.md): when
it notices a lost holder it has the fragments rebuilt on other neighbours, which takes `repair_seconds`, and every
`audit` seconds it asks all holders, since some are no longer its neighbours. A state with fewer than m fragments left
is lost.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from holdfast.erasure.layout import Coding
from holdfast.store.ring.ids import RingId
from holdfast.store.ring.machine import RingPeer
from holdfast.store.ring.messages import Contact, Effect, PeerLost
from holdfast.store.ring.placement import choose_holders
from holdfast_lab.ring_simulation.ring import SimulatedRing


@dataclass(slots=True)
class KeptState:
    """One state: where its fragments are."""

    key: RingId
    holders: dict[int, Contact]
    warning: str | None
    repair_at: float | None = None
    lost: bool = False


@dataclass(slots=True)
class RepairCounts:
    """What repair did."""

    rebuilt: int = 0
    """Fragments rebuilt on another peer."""
    repairs: int = 0
    audits: int = 0
    found_by_audit: int = 0
    """Repairs that only an audit set off."""
    lost_states: int = 0
    least_left: list[int] = field(default_factory=list)
    """For each repair: fragments alive when it ran, before rebuilding."""


class SimulatedStates:
    """All states of one ring."""

    def __init__(
        self, ring: SimulatedRing, coding: Coding, *, repair_seconds: float = 10.0, audit: float = 120.0
    ) -> None:
        """Begin with no states; listens to the ring's losses."""
        self.ring = ring
        self.coding = coding
        self.repair_seconds = repair_seconds
        self.audit = audit
        self.states: list[KeptState] = []
        self.counts = RepairCounts()
        self._held: dict[RingId, set[int]] = {}
        self._due: list[tuple[float, int]] = []
        self._next_audit = ring.now + audit
        ring.observers.append(self._observe)

    def place(self, key: RingId, candidates: Iterable[Contact]) -> KeptState:
        """Save a state under the key, on the root and the neighbours that a lookup named."""
        placement = choose_holders(key, candidates, self.coding)
        state = KeptState(key, dict(enumerate(placement.holders)), placement.warning)
        self._remember(len(self.states), state)
        self.states.append(state)
        return state

    def fragments_per_peer(self) -> list[int]:
        """Return how many fragments each live peer holds, peers that hold none included."""
        load = Counter(holder.id for state in self.states for holder in state.holders.values())
        return [load[peer.id] for peer in self.ring.peers.values()]

    def alive(self, state: KeptState, without: frozenset[RingId] = frozenset()) -> int:
        """Count the fragments of a state on live peers, taking some more as lost."""
        peers = self.ring.peers
        return sum(holder.address in peers and holder.id not in without for holder in state.holders.values())

    def run(self, seconds: float) -> None:
        """Let time pass for the ring, with repairs and audits when they are due."""
        end = self.ring.now + seconds
        while True:
            due = min(self._due[0][0] if self._due else end, self._next_audit, end)
            self.ring.run(max(0.0, due - self.ring.now))
            while self._due and self._due[0][0] <= self.ring.now:
                self._repair(heapq.heappop(self._due)[1])
            if self._next_audit <= self.ring.now:
                self._next_audit += self.audit
                self._ask_all_holders()
            if due >= end:
                return

    def _observe(self, peer: RingPeer, effect: Effect, now: float) -> None:
        if not isinstance(effect, PeerLost):
            return
        for number in self._held.get(effect.contact.id, ()):
            if self.ring.root_of(self.states[number].key) == peer.id:
                self._schedule(number)

    def _schedule(self, number: int) -> bool:
        state = self.states[number]
        if state.repair_at is not None or state.lost:
            return False
        state.repair_at = self.ring.now + self.repair_seconds
        heapq.heappush(self._due, (state.repair_at, number))
        return True

    def _repair(self, number: int) -> None:
        state = self.states[number]
        state.repair_at = None
        keep = {i: holder for i, holder in state.holders.items() if holder.address in self.ring.peers}
        self.counts.repairs += 1
        self.counts.least_left.append(len(keep))
        if len(keep) < self.coding.data:
            state.lost = True
            self.counts.lost_states += 1
            return
        root = self.ring.root_peer(state.key)
        if root is None or not root.active:
            self._schedule(number)  # the next root is not ready yet
            return
        live = [contact for contact in (root.contact, *root.leaves.members) if contact.address in self.ring.peers]
        placement = choose_holders(state.key, live, self.coding, keep=keep)
        self.counts.rebuilt += self.coding.total - len(keep)
        for holder in state.holders.values():
            self._held.get(holder.id, set()).discard(number)
        state.holders = dict(enumerate(placement.holders))
        state.warning = placement.warning
        self._remember(number, state)

    def _ask_all_holders(self) -> None:
        self.counts.audits += 1
        for number, state in enumerate(self.states):
            if self.alive(state) < self.coding.total:
                self.counts.found_by_audit += self._schedule(number)

    def _remember(self, number: int, state: KeptState) -> None:
        for holder in state.holders.values():
            self._held.setdefault(holder.id, set()).add(number)
