"""Whole fragments kept in memory, the least recently used first to go. Runs in peers."""

from __future__ import annotations

from collections import OrderedDict

from holdfast.erasure.fragment import FragmentHeader


class MemoryTier:
    """At most `capacity` bytes of fragments. What is in it was verified when it came in."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        self.hits = 0
        self.misses = 0
        self._fragments: OrderedDict[FragmentHeader, bytes] = OrderedDict()

    def takes(self, size: int) -> bool:
        """Return whether a fragment of this size is kept: no single one may push out most of the others."""
        return size <= self.capacity // 4

    def put(self, header: FragmentHeader, fragment: bytes) -> None:
        """Keep a fragment, making room."""
        self.drop(header)
        if not self.takes(len(fragment)):
            return
        while self.used + len(fragment) > self.capacity:
            _, gone = self._fragments.popitem(last=False)
            self.used -= len(gone)
        self._fragments[header] = fragment
        self.used += len(fragment)

    def get(self, header: FragmentHeader) -> bytes | None:
        """Return a fragment if it is here."""
        found = self._fragments.get(header)
        if found is None:
            self.misses += 1
            return None
        self.hits += 1
        self._fragments.move_to_end(header)
        return found

    def drop(self, header: FragmentHeader) -> None:
        """Forget a fragment."""
        gone = self._fragments.pop(header, None)
        if gone is not None:
            self.used -= len(gone)
