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
from types import MappingProxyType

from holdfast.ids import BatchId, Epoch, NodeId, PartitionId

WINDOW = 8
"""Batches that a stream may be ahead of its consumer's frontier, by default."""

Pair = tuple[PartitionId, PartitionId]
"""Consumer and sender."""
Subscriber = tuple[PartitionId, PartitionId, NodeId | None]
"""Consumer, sender, and the place of the consumer where it is a second copy: each has a subscription of its own."""


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
    copy: NodeId | None = None
    """Where the consumer is, if it is a second copy or a member of a branch; None: it is the primary."""
    tentative: bool = False
    """Whether a member of a branch asks."""

    @property
    def subscriber(self) -> Subscriber:
        """Who subscribes to what."""
        return self.consumer, self.sender, self.copy


@dataclass(slots=True)
class _Subscription:
    """What a sender knows of a consumer."""

    link: int
    """Where blocks go: the sender's own number for a connection."""
    epoch: Epoch
    connection: int
    sent: BatchId
    through: BatchId
    completed: BatchId
    """The consumer has completed this batch at least."""
    tentative: bool = False


class Publications:
    """The sender's side: who has subscribed to partitions here, and how far each has been served."""

    def __init__(self, window: int = WINDOW) -> None:
        """`window`: how many batches a request goes beyond its consumer's frontier at most."""
        self._window = max(1, window)
        self._subscriptions: dict[Subscriber, _Subscription] = {}
        self.is_full: Callable[[int], bool] = lambda link: False
        """Whether a connection has so much to send that it gets nothing more now."""
        self.waits = False
        """Whether something was due, the last time, for a connection that was full."""

    def take(self, link: int, request: Request) -> None:
        """Take a request; one of a later epoch waits until this node has entered it, one of an earlier one is over."""
        subscriber = request.subscriber
        held = self._subscriptions.get(subscriber)
        number = request.epoch, request.connection
        if request.after is not None:
            if held is None or number >= (held.epoch, held.connection):
                self._subscriptions[subscriber] = _Subscription(
                    link, *number, request.after, request.through, request.after, request.tentative
                )
        elif held is not None and (held.epoch, held.connection) == number:
            held.through = max(held.through, request.through)
            held.completed = max(held.completed, BatchId(request.through - self._window))

    def disconnected(self, link: int) -> None:
        """Forget the subscriptions of a connection that has ended: consumers subscribe again by the next."""
        self._subscriptions = {who: one for who, one in self._subscriptions.items() if one.link != link}

    def drop(self, subscriber: Subscriber) -> None:
        """Forget a subscription that cannot be served."""
        self._subscriptions.pop(subscriber, None)

    def due(
        self, epoch: Epoch, frontier: Callable[[PartitionId], BatchId | None], *, tentative: bool = False
    ) -> list[tuple[Subscriber, BatchId, BatchId]]:
        """Return what can be sent now: to whom and from whom, after which batch, through which.

        `frontier` gives how far a partition here is; None: it is not here. `tentative`: to members of a branch.
        """
        found = []
        over = []
        self.waits = self.waits and tentative
        for subscriber, one in self._subscriptions.items():
            if one.epoch < epoch:
                over.append(subscriber)
                continue
            if one.tentative != tentative:
                continue
            if one.epoch > epoch or (at := frontier(subscriber[1])) is None:
                continue
            last = min(at, one.through)
            if last > one.sent and self.is_full(one.link):
                self.waits = True
            elif last > one.sent:
                found.append((subscriber, one.sent, last))
        for subscriber in over:
            del self._subscriptions[subscriber]
        return found

    def completed(self, subscriber: Subscriber) -> BatchId | None:
        """Return a batch that a subscriber has completed, as its requests say; None: it has no subscription."""
        one = self._subscriptions.get(subscriber)
        return None if one is None else one.completed

    def sent(self, subscriber: Subscriber, through: BatchId) -> int:
        """Note that blocks go out now; return the connection that takes them."""
        one = self._subscriptions[subscriber]
        one.sent = through
        return one.link

    @property
    def subscribers(self) -> tuple[Subscriber, ...]:
        """Who has subscribed to what, for tests and checkers."""
        return tuple(self._subscriptions)

    def served_by(self, subscriber: Subscriber) -> tuple[Epoch, int] | None:
        """Return in which epoch and by which connection a consumer is served, for checkers; None: by none."""
        one = self._subscriptions.get(subscriber)
        return None if one is None else (one.epoch, one.link)


@dataclass(slots=True)
class _Asked:
    """What a consumer has requested."""

    epoch: Epoch
    node: NodeId
    connection: int
    through: BatchId
    copy: NodeId | None = None


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

    def beside(self) -> Subscriptions:
        """Return subscriptions of their own over the same connections."""
        found = Subscriptions(self._window)
        found._connections = self._connections
        return found

    def is_connected(self, node: NodeId) -> bool:
        """Whether there is a connection to a node."""
        return node in self._connections

    def again(self, consumer: PartitionId) -> None:
        """Request everything anew for a consumer: it lost what it had received."""
        for pair in [pair for pair in self._asked if pair[0] == consumer]:
            del self._asked[pair]

    def requested(self, node: NodeId) -> list[tuple[Subscriber, Epoch]]:
        """Return what was requested of a node by the connection that there is, for checkers."""
        connection = self._connections.get(node)
        return [
            ((*pair, one.copy), one.epoch)
            for pair, one in self._asked.items()
            if one.node == node and one.connection == connection
        ]

    def requests(
        self,
        epoch: Epoch,
        consumers: Mapping[PartitionId, BatchId],
        senders: Callable[[PartitionId], Iterable[tuple[PartitionId, NodeId]]],
        room: bool = True,
        copies: Mapping[PartitionId, NodeId] = MappingProxyType({}),
    ) -> dict[NodeId, list[Request]]:
        """Return the requests to send now, by node; `copies`: consumers here that are second copies, and their place.

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
                    self._asked[pair] = _Asked(epoch, node, connection, through, copies.get(consumer))
                    new = Request(epoch, consumer, sender, frontier, through, connection, copies.get(consumer))
                    found.setdefault(node, []).append(new)
                elif asked.through < through and (asked.through <= frontier or through - asked.through >= ahead / 2):
                    asked.through = through
                    more = Request(epoch, consumer, sender, None, through, connection, copies.get(consumer))
                    found.setdefault(node, []).append(more)
        for pair in [pair for pair in self._asked if pair not in wanted]:
            del self._asked[pair]
        return found
