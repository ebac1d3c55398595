"""Deliberate bugs of the exchange between workers that stay, which the simulator must find in runs that have them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from holdfast.ids import BatchId, Epoch
from holdfast.runtime.messages import Done
from holdfast.runtime.worker import resident as residents
from holdfast.runtime.worker.host import PartitionHost
from holdfast.runtime.worker.hosted import Delivery
from holdfast.runtime.worker.resident import ResidentWorker, Standing
from holdfast.runtime.worker.subscriptions import Publications, Subscriptions
from simulation.bugs import Bug, Patch


def later_subscription_dropped(patch: Patch) -> None:
    """A subscription of an epoch that the sender has not entered yet is dropped."""
    right = Publications.due

    def due(self: Publications, epoch: Epoch, *given: Any, **named: Any) -> Any:
        self._subscriptions = {pair: one for pair, one in self._subscriptions.items() if one.epoch <= epoch}
        return right(self, epoch, *given, **named)

    patch.setattr(Publications, "due", due)


def old_connection_ends_the_new(patch: Patch) -> None:
    """The end of a connection drops the subscriptions that its consumers have made by the next one, too."""
    right_take, right_end = Publications.take, Publications.disconnected
    seen: dict[tuple[int, int], set[Any]] = {}

    def take(self: Publications, link: int, request: Any) -> None:
        seen.setdefault((id(self), link), set()).add(request.subscriber)
        right_take(self, link, request)

    def disconnected(self: Publications, link: int) -> None:
        for pair in seen.get((id(self), link), ()):
            self._subscriptions.pop(pair, None)
        right_end(self, link)

    patch.setattr(Publications, "take", take)
    patch.setattr(Publications, "disconnected", disconnected)


def request_of_an_old_connection_taken(patch: Patch) -> None:
    """A subscription that comes late, by a connection that another one has followed, replaces the later one."""
    right = Publications.take

    def take(self: Publications, link: int, request: Any) -> None:
        if request.after is not None:
            self._subscriptions.pop(request.subscriber, None)
        right(self, link, request)

    patch.setattr(Publications, "take", take)


def blocks_of_another_epoch_accepted(patch: Patch) -> None:
    """A host takes blocks in whatever their epoch."""

    def deliver(self: PartitionHost, blocks: Any) -> list[Delivery]:
        here = [(self._placed[one.header.receiver], one) for one in blocks if one.header.receiver in self._placed]
        return [placed.inbox.put(one, placed.frontier) for placed, one in here]

    patch.setattr(PartitionHost, "deliver", deliver)


def subscribed_past_the_next_batch(patch: Patch) -> None:
    """A consumer subscribes after the batch that it needs next."""
    right = Subscriptions.requests

    def requests(self: Subscriptions, *given: Any) -> Any:
        return {
            node: [one if one.after is None else replace(one, after=BatchId(one.after + 1)) for one in found]
            for node, found in right(self, *given).items()
        }

    patch.setattr(Subscriptions, "requests", requests)


def new_connection_goes_on(patch: Patch) -> None:
    """A new connection goes on with what was requested by the one before, and does not subscribe."""
    right = Subscriptions.connected

    def connected(self: Subscriptions, node: Any, connection: int) -> None:
        right(self, node, connection)
        for asked in self._asked.values():
            if asked.node == node:
                asked.connection = connection

    patch.setattr(Subscriptions, "connected", connected)


def credit_never_raised(patch: Patch) -> None:
    """A sender ignores that a consumer has room for more."""
    right = Publications.take

    def take(self: Publications, link: int, request: Any) -> None:
        if request.after is not None:
            right(self, link, request)

    patch.setattr(Publications, "take", take)


def next_batch_not_admitted(patch: Patch) -> None:
    """A window counts the batch that a consumer has completed: with a window of one, none is admitted."""
    right = Subscriptions.__init__

    def init(self: Subscriptions, window: int = 8) -> None:
        right(self, window)
        self._window -= 1

    patch.setattr(Subscriptions, "__init__", init)


def outputs_reported_once(patch: Patch) -> None:
    """Outputs and late rows are reported once, whether or not the coordinator acts on it."""
    patch.setattr(residents, "RESEND_SECONDS", 1e12)
    patch.setattr(ResidentWorker, "driver_connected", lambda self: None)
    patch.setattr(ResidentWorker, "_is_news", lambda self, answer, now: True)


def answers_reported_once(patch: Patch) -> None:
    """What is not a completed batch is reported once, whether or not the report arrives."""

    def is_news(self: ResidentWorker, answer: Any, now: float) -> bool:
        if not isinstance(answer, Done) and answer in self._reported_at:
            return False
        self._reported_at[answer] = now
        return True

    patch.setattr(ResidentWorker, "_is_news", is_news)
    patch.setattr(ResidentWorker, "driver_connected", lambda self: None)


def log_read_once(patch: Patch) -> None:
    """A batch of the log is given to a source partition once, also where its inbox was cleared for a new epoch."""
    right = ResidentWorker.hand_out

    def hand_out(self: ResidentWorker, desired: Any) -> None:
        given = dict(self._given)
        right(self, desired)
        self._given.update(given)

    patch.setattr(ResidentWorker, "hand_out", hand_out)


def older_state_taken(patch: Patch) -> None:
    """A worker takes a desired state that comes late, after newer ones."""
    right = ResidentWorker.hand_out

    def hand_out(self: ResidentWorker, desired: Any) -> None:
        if self._desired is not None and desired.number < self._desired.number:
            self._desired = None
        right(self, desired)

    patch.setattr(ResidentWorker, "hand_out", hand_out)


def idleness_not_reported(patch: Patch) -> None:
    """A worker that has nothing more to do, and nothing to report, does not tell the driver."""
    patch.setattr(Standing, "is_news", lambda self, done: False)


RESIDENT_BUGS = tuple(
    Bug(one.__name__.replace("_", " "), (one.__doc__ or "").strip(), one)
    for one in (
        later_subscription_dropped,
        old_connection_ends_the_new,
        request_of_an_old_connection_taken,
        blocks_of_another_epoch_accepted,
        subscribed_past_the_next_batch,
        new_connection_goes_on,
        credit_never_raised,
        next_batch_not_admitted,
        outputs_reported_once,
        answers_reported_once,
        log_read_once,
        older_state_taken,
        idleness_not_reported,
    )
)
