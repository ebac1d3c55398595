"""Peers further away, by how many leading digits they share with the owner (A-FP4S, sec. 3.2). Pure; anywhere.

Row r, column d holds one peer that shares the owner's first r digits and has d as its next: a step towards any key with
that beginning brings it at least one digit closer, so a route takes about log16(N) steps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from holdfast.store.ring.ids import DIGITS, RingId, digit, distance, shared_digits
from holdfast.store.ring.messages import Contact


class RoutingTable:
    """One contact for each known (row, digit); the first to come stays until it is lost."""

    def __init__(self, owner: RingId) -> None:
        """Begin with no one."""
        self.owner = owner
        self._rows: list[dict[int, Contact]] = []

    def __iter__(self) -> Iterator[Contact]:
        for row in self._rows:
            yield from row.values()

    def __len__(self) -> int:
        return sum(len(row) for row in self._rows)

    @property
    def rows(self) -> int:
        """How many rows have ever had an entry."""
        return len(self._rows)

    def row(self, number: int) -> tuple[Contact, ...]:
        """Return the contacts of one row; none for a row that is not there."""
        return tuple(self._rows[number].values()) if 0 <= number < len(self._rows) else ()

    def add(self, contact: Contact) -> bool:
        """Take a contact in where its place is free, or renew it; True if it is now in the table and was not."""
        row = shared_digits(self.owner, contact.id)
        if row == DIGITS:
            return False
        column = digit(contact.id, row)
        while len(self._rows) <= row:
            self._rows.append({})
        known = self._rows[row].get(column)
        if known is not None and known.id != contact.id:
            return False
        self._rows[row][column] = contact
        return known is None

    def remove(self, peer: RingId) -> None:
        """Drop a peer, wherever it is."""
        row = shared_digits(self.owner, peer)
        if row < len(self._rows):
            column = digit(peer, row)
            known = self._rows[row].get(column)
            if known is not None and known.id == peer:
                del self._rows[row][column]

    def towards(self, key: int) -> Contact | None:
        """Return the entry that shares one digit more with the key than the owner does."""
        row = shared_digits(self.owner, key)
        if row >= len(self._rows):
            return None
        return self._rows[row].get(digit(key, row))

    def nearer(self, key: int, others: Iterable[Contact], avoided: Collection[RingId]) -> Contact | None:
        """Of entries and others, return one that shares as much with the key as the owner and is closer; or None."""
        row, own = shared_digits(self.owner, key), distance(self.owner, key)
        best: tuple[int, int, RingId] | None = None
        found: Contact | None = None
        for contact in (*self, *others):
            shared, gap = shared_digits(contact.id, key), distance(contact.id, key)
            if shared >= row and gap < own and contact.id not in avoided:
                rank = (-shared, gap, contact.id)
                if best is None or rank < best:
                    best, found = rank, contact
        return found
