"""Which connections to senders are dead without an end: requests go out, and nothing comes back. Pure; runs on nodes.

A firewall that has forgotten a connection drops what is sent over it, and neither side is told; the kernel gives it up
after a quarter of an hour. Senders answer every message of requests at once, if only with a few bytes, by a thread that
does nothing else. So a connection that owes an answer and brings no byte for long is either dead, or its sender's
process cannot run now. Dialling beside it tells them apart: a process that cannot run takes no second connection. Where
one is made, the first has a last chance, for the process may just have come back; then the second takes its place.

Time counts in short steps: a consumer that was held up itself for a minute has not waited for a minute.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.ids import NodeId

ANSWER_SECONDS = 10.0
"""A connection that owes an answer and has brought nothing for so long is dialled beside."""
CHANCE_SECONDS = 2.0
"""How long the first connection may still bring something once a second is made."""
LONGEST_STEP = 1.0
"""What counts at most of the time between two looks."""


@dataclass(slots=True)
class _Watched:
    received: int
    """Bytes that it has brought so far."""
    waited: float | None = None
    """How long it has owed an answer without bringing anything; None: it owes none."""
    reached: float | None = None
    """How long that was when a second connection was made; None: there is none."""


class QuietLinks:
    """The connections of one process to the nodes of its senders."""

    def __init__(self, seconds: float = ANSWER_SECONDS, chance: float = CHANCE_SECONDS) -> None:
        """`seconds` without a byte until it is dialled beside, `chance` more until it is given up."""
        self._seconds, self._chance = seconds, chance
        self._watched: dict[NodeId, _Watched] = {}
        self._looked_at: float | None = None

    def connected(self, node: NodeId, received: int = 0) -> None:
        """Watch the connection to a node, which has brought so many bytes, in place of the one before."""
        self._watched[node] = _Watched(received)

    def disconnected(self, node: NodeId) -> None:
        """The connection to a node has ended."""
        self._watched.pop(node, None)

    def asked(self, node: NodeId) -> None:
        """Requests go out to a node now, which it is to answer."""
        one = self._watched.get(node)
        if one is not None and one.waited is None:
            one.waited = 0.0

    def look(self, now: float, received: Mapping[NodeId, int]) -> None:
        """Take what connections have brought by now, in bytes; whatever it is, the connection lives."""
        step = 0.0 if self._looked_at is None else min(max(0.0, now - self._looked_at), LONGEST_STEP)
        self._looked_at = now
        for node, one in self._watched.items():
            brought = received.get(node, one.received)
            if brought != one.received:
                one.received, one.waited, one.reached = brought, None, None
            elif one.waited is not None:
                one.waited += step

    def quiet(self) -> list[NodeId]:
        """The nodes to dial beside the connection there is; not those where a second one is made."""
        return [
            node
            for node, one in self._watched.items()
            if one.waited is not None and one.waited >= self._seconds and one.reached is None
        ]

    def reached(self, node: NodeId) -> None:
        """A second connection to a node is made; nothing changes where the first has brought something meanwhile."""
        one = self._watched.get(node)
        if one is not None and one.waited is not None:
            one.reached = one.waited

    def refused(self, node: NodeId) -> None:
        """The second connection is gone: where the first still brings nothing, another is to be dialled."""
        if (one := self._watched.get(node)) is not None:
            one.reached = None

    def is_dead(self, node: NodeId) -> bool:
        """Whether the second connection is to take the place of the first."""
        one = self._watched.get(node)
        if one is None:
            return True
        if one.reached is None or one.waited is None:
            return False
        return one.waited - one.reached >= self._chance

    def lives(self, node: NodeId) -> bool:
        """Whether the first connection has brought something, so that no second is needed."""
        one = self._watched.get(node)
        return one is not None and one.reached is None
