"""Deliberate bugs of connections that die without an end, and of what comes to full inboxes; each is to be found."""

from __future__ import annotations

from typing import Any

from holdfast.runtime.worker.inbox_room import InboxRoom
from holdfast.runtime.worker.quiet_links import QuietLinks
from holdfast.runtime.worker.sender_links import SenderLinks
from simulation.bugs import Bug, Patch


def dead_link_never_suspected(patch: Patch) -> None:
    """A connection owes no answer, whatever is requested over it."""
    patch.setattr(QuietLinks, "asked", lambda self, node: None)


def dead_link_kept(patch: Patch) -> None:
    """A connection that brings nothing stays, although its sender has taken a second one."""
    patch.setattr(QuietLinks, "is_dead", lambda self, node: False)


def answers_over_a_link_ignored(patch: Patch) -> None:
    """What a connection brings does not count: each that is used is taken for dead before long."""
    right = QuietLinks.look
    patch.setattr(QuietLinks, "look", lambda self, now, received: right(self, now, {}))


def second_link_not_subscribed(patch: Patch) -> None:
    """A second connection takes the place of the first, and nothing is requested anew by it."""

    def take(self: SenderLinks[Any, Any], node: Any, one: Any) -> None:
        first = node not in self.held
        self.held[node] = one
        self.quiet.connected(node, one.link.received_bytes)
        if first:
            self._subscriptions.connected(node, one.number)

    patch.setattr(SenderLinks, "_take", take)


def full_inboxes_forgotten(patch: Patch) -> None:
    """Only what is on its way counts: a process keeps whatever comes to its full inboxes in memory."""
    right = InboxRoom.taken
    patch.setattr(InboxRoom, "taken", lambda self, size, in_inboxes: right(self, size, 0))


def taken_blocks_still_on_their_way(patch: Patch) -> None:
    """What the worker has taken counts as on its way for ever: before long everything goes to disk."""
    right = InboxRoom.taken
    patch.setattr(InboxRoom, "taken", lambda self, size, in_inboxes: right(self, 0, in_inboxes))


def blocks_on_their_way_not_counted(patch: Patch) -> None:
    """What comes between two rounds of a worker finds room, however much it is."""

    def arrived(self: InboxRoom, size: int) -> bool:
        return self._in_inboxes <= self.most

    patch.setattr(InboxRoom, "arrived", arrived)
    patch.setattr(InboxRoom, "taken", lambda self, size, in_inboxes: setattr(self, "_in_inboxes", in_inboxes))


ROOM_BUGS = tuple(
    Bug(one.__name__.replace("_", " "), (one.__doc__ or "").strip(), one)
    for one in (full_inboxes_forgotten, taken_blocks_still_on_their_way, blocks_on_their_way_not_counted)
)
LINK_BUGS = tuple(
    Bug(one.__name__.replace("_", " "), (one.__doc__ or "").strip(), one)
    for one in (
        dead_link_never_suspected,
        dead_link_kept,
        answers_over_a_link_ignored,
        second_link_not_subscribed,
    )
)
