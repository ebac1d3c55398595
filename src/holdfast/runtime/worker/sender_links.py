"""The connections of one process to the nodes of its senders: whom to dial when, and which of two stays. Pure.

What they are is left to whoever has them: sockets on a node, messages with delays in the simulator. Each has a number,
above those of all before it, and an address; a node whose address has changed is another process in the same place. A
connection that brings nothing is dialled beside (quiet_links.py), and one of the two is closed once it is known which.

    for node, address in links.due(now, wanted): ...      # dial; then made(…), or not_made(…)
    links.asked(node)                                     # with every message of requests
    links.lost(node, number)                              # where a connection has ended
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, NamedTuple, Protocol, TypeVar

from holdfast.ids import NodeId
from holdfast.runtime.worker.quiet_links import QuietLinks
from holdfast.runtime.worker.subscriptions import Subscriptions

REDIAL_SECONDS = 0.25
"""How long to wait before a node that does not answer is dialled again."""


class SenderLink(Protocol):
    """What must be known of a connection."""

    @property
    def ended(self) -> bool:
        """Whether it has ended, as far as this side knows."""
        ...

    @property
    def received_bytes(self) -> int:
        """How much it has brought; any measure that grows with what comes."""
        ...

    def close(self) -> None:
        """End it; its own end may be reported to this side afterwards."""
        ...


L = TypeVar("L", bound=SenderLink)
A = TypeVar("A")


class Held(NamedTuple, Generic[L, A]):
    """A connection to a node."""

    link: L
    number: int
    address: A


class SenderLinks(Generic[L, A]):
    """See the module."""

    def __init__(self, subscriptions: Subscriptions, replaced: Callable[[NodeId, L], object]) -> None:
        """`replaced` gets the node, and the connection to it that was dead, before that is closed."""
        self._subscriptions, self._replaced = subscriptions, replaced
        self.held: dict[NodeId, Held[L, A]] = {}
        self.beside: dict[NodeId, Held[L, A]] = {}
        """Second connections to nodes whose first one brings nothing."""
        self.addresses: dict[NodeId, A] = {}
        self.quiet = QuietLinks()
        self._dial_at: dict[NodeId, float] = {}
        """When to dial a node: not before, and not while that is under way."""

    def link(self, node: NodeId) -> L | None:
        """Return the connection to a node, where there is one."""
        found = self.held.get(node)
        return None if found is None else found.link

    def asked(self, node: NodeId) -> None:
        """Requests go out to a node, which its process is to answer at once."""
        self.quiet.asked(node)

    def met(self, addresses: Mapping[NodeId, A]) -> list[NodeId]:
        """Take where processes listen; return the nodes to which the connection was one of a process before."""
        self.addresses = dict(addresses)
        stale = [node for node, one in self.held.items() if addresses.get(node) != one.address]
        for node in stale:
            self.held[node].link.close()
        return stale

    def due(self, now: float, wanted: Iterable[NodeId]) -> list[tuple[NodeId, A]]:
        """Return whom to dial now, of the nodes whose partitions send to partitions here."""
        self.quiet.look(now, {node: one.link.received_bytes for node, one in self.held.items()})
        quiet = set(self.quiet.quiet())
        self._choose()
        found = []
        for node in wanted:
            address = self.addresses.get(node)
            if address is None or (node in self.held and node not in quiet) or now < self._dial_at.get(node, now):
                continue
            self._dial_at[node] = math.inf
            found.append((node, address))
        return found

    def made(self, node: NodeId, link: L, number: int, address: A, now: float) -> None:
        """A connection that was dialled is there."""
        if link.ended:  # before it was known here: the event of its end has come, and comes no more
            self.not_made(node, now)
            return
        self._dial_at.pop(node, None)
        if self.addresses.get(node) != address:
            link.close()  # another process has its place since it was dialled; this one may live on beside it
        elif node in self.held:  # it was dialled beside a connection that brings nothing
            self.beside[node] = Held(link, number, address)
            self.quiet.reached(node)
        else:
            self._take(node, Held(link, number, address))

    def not_made(self, node: NodeId, now: float) -> None:
        """A node that was dialled did not answer: it is being replaced, or starts."""
        self._dial_at[node] = now + REDIAL_SECONDS

    def lost(self, node: NodeId, number: int) -> None:
        """A connection to a node has ended."""
        self._subscriptions.disconnected(node, number)
        if node in self.held and self.held[node].number == number:
            del self.held[node]
            self.quiet.disconnected(node)

    def close(self) -> None:
        """End all of them."""
        for one in (*self.held.values(), *self.beside.values()):
            one.link.close()

    def _choose(self) -> None:
        """Of two connections to a node, close one, once it is known which."""
        for node, one in list(self.beside.items()):
            stale = one.link.ended or self.addresses.get(node) != one.address
            if stale or self.quiet.lives(node):
                del self.beside[node]
                one.link.close()
                self.quiet.refused(node)
            elif self.quiet.is_dead(node):
                del self.beside[node]
                before = self.held.get(node)
                self._take(node, one)
                if before is not None:
                    self._replaced(node, before.link)
                    before.link.close()

    def _take(self, node: NodeId, one: Held[L, A]) -> None:
        self.held[node] = one
        self.quiet.connected(node, one.link.received_bytes)
        self._subscriptions.connected(node, one.number)
