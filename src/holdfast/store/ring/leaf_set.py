"""The peers nearest to one peer on the ring: half of them before it, half after (A-FP4S, sec. 3.2). Pure; anywhere.

In a ring of at most size / 2 others every peer is on both sides, and the leaf set is the whole ring.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable

from holdfast.store.ring.ids import SIZE, RingId, clockwise, closeness
from holdfast.store.ring.messages import Contact

SMALLEST_LEAF_SET = 24

Limits = tuple[int, int]
"""How near, after and before the owner, a peer must be; in a half that is full, the last member sets it."""
NO_LIMITS: Limits = (SIZE, SIZE)


def leaf_set_size(fragments: int) -> int:
    """Return the leaf set that can hold n fragments beside its owner: max(24, the next even number above n)."""
    return max(SMALLEST_LEAF_SET, fragments + 2 - fragments % 2)


class LeafSet:
    """Up to `size` contacts around `owner`, kept in order of distance on each side."""

    def __init__(self, owner: RingId, size: int) -> None:
        """Begin with no one."""
        if size < 2 or size % 2:
            raise ValueError(f"a leaf set of {size}: it has two halves")
        self.owner = owner
        self.half = size // 2
        self._contacts: dict[RingId, Contact] = {}
        self._after: list[tuple[int, RingId]] = []
        self._before: list[tuple[int, RingId]] = []
        self._members: tuple[Contact, ...] | None = None

    def __contains__(self, peer: RingId) -> bool:
        return peer in self._contacts

    def __len__(self) -> int:
        return len(self._contacts)

    @property
    def members(self) -> tuple[Contact, ...]:
        """All contacts, clockwise from the one furthest before the owner; the same tuple until something changes."""
        if self._members is None:
            order = dict.fromkeys([peer for _, peer in reversed(self._before)])
            order |= dict.fromkeys([peer for _, peer in self._after])
            self._members = tuple(self._contacts[peer] for peer in order)
        return self._members

    @property
    def after(self) -> list[Contact]:
        """The half that follows the owner, nearest first."""
        return [self._contacts[peer] for _, peer in self._after]

    @property
    def before(self) -> list[Contact]:
        """The half that precedes the owner, nearest first."""
        return [self._contacts[peer] for _, peer in self._before]

    def get(self, peer: RingId) -> Contact | None:
        """Return a member's contact."""
        return self._contacts.get(peer)

    def holds(self, contact: Contact) -> bool:
        """Return whether this contact is a member just so, and no half has room: adding it would change nothing."""
        known = self._contacts.get(contact.id)
        return (known is contact or known == contact) and not self.has_room

    def fitting(self, contacts: Iterable[Contact], limits: Limits = NO_LIMITS) -> list[Contact]:
        """Return those that would be members if they were alive and are not yet.

        Called for the members of every keep-alive, so written for speed. `limits`: on a side with room left, those
        further away than this are left out.
        """
        known, owner, mask = self._contacts, self.owner, SIZE - 1
        after, before = self._reach(limits)
        return [
            contact
            for contact in contacts
            if (peer := contact.id) not in known
            and peer != owner
            and ((peer - owner) & mask < after or (owner - peer) & mask < before)
        ]

    def add(self, contact: Contact, limits: Limits = NO_LIMITS) -> bool:
        """Take a contact in if it fits, dropping a member that is then too far away; True if it is a new member.

        A member named again may have found room on its other side: in a ring hardly larger than the leaf set, a peer
        may be both among the next and among the previous ones.
        """
        known = self._contacts.get(contact.id)
        if known is None:
            if not self.fitting((contact,), limits):
                return False
            self._enter(contact, limits)
            self._forget_the_far()
            return contact.id in self._contacts
        if known != contact:
            self._contacts[contact.id] = contact
            self._members = None
        if self.has_room:
            self._enter(contact, limits)
        return False

    def remove(self, peer: RingId) -> Contact | None:
        """Drop a member; returns its contact if it was one."""
        contact = self._contacts.get(peer)
        if contact is not None:
            whole = self.overlaps
            del self._contacts[peer]
            self._after = [entry for entry in self._after if entry[1] != peer]
            self._before = [entry for entry in self._before if entry[1] != peer]
            if whole:
                for other in self._contacts.values():
                    self._enter(other, NO_LIMITS)
            self._members = None
        return contact

    @property
    def overlaps(self) -> bool:
        """Return whether the two sides meet on the far side of the ring."""
        if not self._after or not self._before:
            return False
        return self._after[-1][0] + self._before[-1][0] >= SIZE

    def covers(self, key: int, *, whole_ring: Callable[[], bool]) -> bool:
        """Return whether the key lies in the arc of the leaf set, so that the closest peer is a member or the owner.

        `whole_ring`: no peer outside the leaf set is known. Sides that meet although others are known are the remains
        of a loss not yet repaired: then only the arc between the nearest on each side is certain.
        """
        if self._after and self._before:
            reach = 0 if self.overlaps and not whole_ring() else -1
            if (
                clockwise(self.owner, key) <= self._after[reach][0]
                or clockwise(key, self.owner) <= self._before[reach][0]
            ):
                return True
        return whole_ring()

    def closest(self, key: int, excluded: Iterable[RingId] = ()) -> Contact | None:
        """Return the member closest to the key; None if the owner is closer than all of them."""
        left_out = set(excluded)
        candidates = [peer for peer in self._contacts if peer not in left_out]
        candidates.append(self.owner)
        best = min(candidates, key=lambda peer: closeness(key, peer))
        return self._contacts.get(best)

    @property
    def has_room(self) -> bool:
        """Return whether a half is not full."""
        return len(self._after) < self.half or len(self._before) < self.half

    @property
    def short_sides(self) -> tuple[bool, bool]:
        """Return which halves, after and before, have room left."""
        return len(self._after) < self.half, len(self._before) < self.half

    def _reach(self, limits: Limits) -> Limits:
        """Return how near a peer must be on each side to be taken in: nearer than the last, or than the limit."""
        after, before = limits
        return (
            self._after[-1][0] if len(self._after) == self.half else after,
            self._before[-1][0] if len(self._before) == self.half else before,
        )

    def _enter(self, contact: Contact, limits: Limits) -> None:
        """Put a contact on each side where it is near enough."""
        self._contacts[contact.id] = contact
        reach = self._reach(limits)
        for side, gap, nearer_than in (
            (self._after, clockwise(self.owner, contact.id), reach[0]),
            (self._before, clockwise(contact.id, self.owner), reach[1]),
        ):
            entry = (gap, contact.id)
            place = bisect_left(side, entry)
            if gap < nearer_than and (place == len(side) or side[place] != entry):
                side.insert(place, entry)
                del side[self.half :]

    def _forget_the_far(self) -> None:
        self._members = None
        if len(self._contacts) <= self.half:
            return
        near = {peer for _, peer in self._after} | {peer for _, peer in self._before}
        for peer in [peer for peer in self._contacts if peer not in near]:
            del self._contacts[peer]
