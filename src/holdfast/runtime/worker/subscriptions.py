"""Exchange between workers that stay: consumers subscribe to sender partitions. Pure; runs on nodes.

A consumer requests, of each sender partition on another node, all blocks after a batch in an epoch. A new epoch, a new
connection or a new placement is a new subscription, which is served from the sender's outbox: nothing is remembered of
the one before, so that a lost, repeated or late message costs nothing but time. A request also says how far the
consumer has room (`through`). That is always past its frontier, so that no stream waits for another: joins and
diamonds cannot deadlock. A sender without credit goes on processing; what it has not sent stays in its outbox. What was
received is not acknowledged here: only the coordinator's frontiers release outboxes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from holdfast.ids import BatchId, Epoch, NodeId, PartitionId

WINDOW = 8
"""Batches that a stream may be ahead of its consumer's frontier, by default."""

Pair = tuple[PartitionId, PartitionId]
"""Consumer and sender."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a consumer requests of a sender partition."""

    epoch: Epoch
    consumer: PartitionId
    sender: PartitionId
    after: BatchId | None
    """Begin after this batch: a new subscription. None: the one there is goes on."""
    through: BatchId
    """The last batch that the consumer has room for."""
    connection: int
    """The consumer's number for the connection: what is late on an earlier one does not count."""


@dataclass(slots=True)
class _Subscription:
    """What a sender knows of a consumer."""

    link: int
    """Where blocks go: the sender's own number for a connection."""
    epoch: Epoch
    connection: int
    sent: BatchId
    through: BatchId


class Publications:
    """The sender's side: who has subscribed to partitions here, and how far each has been served."""

    def __init__(self) -> None:
        self._subscriptions: dict[Pair, _Subscription] = {}

    def take(self, link: int, request: Request) -> None:
        """Take a request; one of a later epoch waits until this node has entered it, one of an earlier one is over."""
        pair = request.consumer, request.sender
        held = self._subscriptions.get(pair)
        number = request.epoch, request.connection
        if request.after is not None:
            if held is None or number >= (held.epoch, held.connection):
                self._subscriptions[pair] = _Subscription(link, *number, request.after, request.through)
        elif held is not None and (held.epoch, held.connection) == number:
            held.through = max(held.through, request.through)

    def disconnected(self, link: int) -> None:
        """Forget the subscriptions of a connection that has ended: consumers subscribe again by the next."""
        self._subscriptions = {pair: one for pair, one in self._subscriptions.items() if one.link != link}

    def due(
        self, epoch: Epoch, frontier: Callable[[PartitionId], BatchId | None]
    ) -> list[tuple[PartitionId, PartitionId, BatchId, BatchId]]:
        """Return what can be sent now: consumer, sender, after which batch, through which.

        `frontier` gives how far a partition here is; None: it is not here.
        """
        found = []
        over = []
        for (consumer, sender), one in self._subscriptions.items():
            if one.epoch < epoch:
                over.append((consumer, sender))
                continue
            if one.epoch > epoch or (at := frontier(sender)) is None:
                continue
            last = min(at, one.through)
            if last > one.sent:
                found.append((consumer, sender, one.sent, last))
        for pair in over:
            del self._subscriptions[pair]
        return found

    def sent(self, consumer: PartitionId, sender: PartitionId, through: BatchId) -> int:
        """Note that blocks go out now; return the connection that takes them."""
        one = self._subscriptions[consumer, sender]
        one.sent = through
        return one.link

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """Who has subscribed to what, for tests and checkers."""
        return tuple(self._subscriptions)


@dataclass(slots=True)
class _Asked:
    """What a consumer has requested."""

    epoch: Epoch
    node: NodeId
    connection: int
    through: BatchId


class Subscriptions:
    """The consumer's side: what partitions here have requested of senders elsewhere."""

    def __init__(self, window: int = WINDOW) -> None:
        """`window`: batches that a stream may be ahead of its consumer, at least one."""
        self._window = max(1, window)
        self._asked: dict[Pair, _Asked] = {}
        self._connections: dict[NodeId, int] = {}

    def connected(self, node: NodeId, connection: int) -> None:
        """A connection to a node is there; everything is requested anew by it. Its number is above all before."""
        self._connections[node] = connection

    def disconnected(self, node: NodeId, connection: int) -> None:
        """A connection to a node has ended; what was on its way is lost."""
        if self._connections.get(node) == connection:
            del self._connections[node]

    def is_connected(self, node: NodeId) -> bool:
        """Whether there is a connection to a node."""
        return node in self._connections

    def again(self, consumer: PartitionId) -> None:
        """Request everything anew for a consumer: it lost what it had received."""
        for pair in [pair for pair in self._asked if pair[0] == consumer]:
            del self._asked[pair]

    def requests(
        self,
        epoch: Epoch,
        consumers: Mapping[PartitionId, BatchId],
        senders: Callable[[PartitionId], Iterable[tuple[PartitionId, NodeId]]],
        room: bool = True,
    ) -> dict[NodeId, list[Request]]:
        """Return the requests to send now, by node.

        `consumers`: partitions here and their frontiers; `senders` gives a consumer's senders on other nodes. Without
        `room`, streams get no further than the batch that their consumer needs next.
        """
        found: dict[NodeId, list[Request]] = {}
        wanted: set[Pair] = set()
        ahead = self._window if room else 1
        for consumer, frontier in consumers.items():
            for sender, node in senders(consumer):
                pair = consumer, sender
                wanted.add(pair)
                connection = self._connections.get(node)
                if connection is None:
                    continue
                through = BatchId(frontier + ahead)
                asked = self._asked.get(pair)
                if (
                    asked is None
                    or asked.epoch != epoch
                    or asked.node != node
                    or asked.connection != connection
                    or asked.through < frontier
                ):
                    self._asked[pair] = _Asked(epoch, node, connection, through)
                    found.setdefault(node, []).append(Request(epoch, consumer, sender, frontier, through, connection))
                elif asked.through < through and (asked.through <= frontier or through - asked.through >= ahead / 2):
                    asked.through = through
                    found.setdefault(node, []).append(Request(epoch, consumer, sender, None, through, connection))
        for pair in [pair for pair in self._asked if pair not in wanted]:
            del self._asked[pair]
        return found
