"""Whether inboxes have room for what comes; what finds none goes to disk (spill.py). Pure; runs on nodes.

What has come is on its way until the worker has had a round with it, and in inboxes from then on: both count.
"""

from __future__ import annotations


class InboxRoom:
    """Counts bytes; what comes finds room as long as no more than the bound was there before it."""

    def __init__(self, most: int) -> None:
        """`most`: bytes in inboxes, and on their way to them, beyond which there is no room."""
        self.most = most
        self._in_inboxes = self._on_the_way = 0

    def arrived(self, size: int) -> bool:
        """So many bytes have come; return whether there is room for them."""
        has_room = self._in_inboxes + self._on_the_way <= self.most
        self._on_the_way += size
        return has_room

    def taken(self, size: int, in_inboxes: int) -> None:
        """So many bytes that had come are in inboxes now, or were of no use; inboxes hold so many in all."""
        self._on_the_way -= size
        self._in_inboxes = in_inboxes
