"""Simulated Kafka brokers, and clients as confluent-kafka has them: topics, groups, transactions. Runs anywhere.

Transactions are what Kafka's protocol makes of them. A producer is known by its name (`transactional.id`); who opens
one (`init_transactions`) ends the open transaction of that name, and every earlier producer of it is fenced: whatever
that one asks for is refused. Records are in the topic from the moment that they are produced; readers of committed
records see none of a transaction that was aborted, and nothing after the first record of one that is open. A
transaction that stays open is aborted after its timeout, and its producer fenced. Offsets that are sent to a
transaction count with its commit.

Every request of a client can be the last thing that its driver does, wait while the world goes on, be lost, or have its
answer lost; a commit whose answer was given up can reach the brokers later. Brokers may not answer for a while.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar

from holdfast_lab.simulation.recovery.faults import Fault, Mischief

T = TypeVar("T")
AWAY, LOST, COMES_LATE, ARRIVES = 0.02, 0.08, 0.5, 0.2
"""The chances at a request: that brokers answer no more for a while, that it or its answer is lost, that a commit that
was lost comes later; and, of each that is to come, that it does now."""
NO_ANSWER = (
    *("the transaction was not committed", "no transaction can be had"),
    *("the brokers have not answered", "the brokers do not answer"),
)
"""What errors say whose cause is brokers, or another driver's producer."""
NOT_DELIVERED = 0.006
"""The chance that a record is not delivered, though its brokers answer."""


class KafkaError:
    """See confluent_kafka.KafkaError."""

    _FENCED, INVALID_PRODUCER_EPOCH, _TIMED_OUT, _TRANSPORT, _STATE, _MSG_TIMED_OUT = range(-6, 0)

    def __init__(self, code: int, text: str, *, retriable: bool = False, aborts: bool = False) -> None:
        self._code, self._text, self._retriable, self._aborts = code, text, retriable, aborts

    def code(self) -> int:
        """See confluent_kafka.KafkaError."""
        return self._code

    def str(self) -> str:
        """See confluent_kafka.KafkaError."""
        return self._text

    def retriable(self) -> bool:
        """See confluent_kafka.KafkaError."""
        return self._retriable

    def txn_requires_abort(self) -> bool:
        """See confluent_kafka.KafkaError."""
        return self._aborts


class KafkaException(Exception):
    """See confluent_kafka.KafkaException."""


@dataclass(slots=True)
class TopicPartition:
    """See confluent_kafka.TopicPartition."""

    topic: str
    partition: int = -1
    offset: int = -1001
    metadata: str | None = None
    error: KafkaError | None = None


@dataclass(slots=True, eq=False)
class Transaction:
    """What a producer has in its open transaction, or had."""

    name: str
    until: float
    """When brokers abort it."""
    offsets: dict[tuple[str, str], TopicPartition] = field(default_factory=dict)
    """By group and topic."""
    records: list[Record] = field(default_factory=list)
    state: str = "open"


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """A record of a topic, whatever becomes of its transaction."""

    transaction: Transaction
    key: bytes | None
    value: bytes | None
    headers: Mapping[str, Any]


@dataclass(slots=True)
class _Name:
    """What brokers know of a `transactional.id`."""

    epoch: int = -1
    transaction: Transaction | None = None
    """The last one."""


class Brokers:
    """The brokers of a run, and all that is on its way to them."""

    def __init__(self, seed: int, mischief: Mischief, clock: Callable[[], float]) -> None:
        self.draw = random.Random(f"brokers {seed}")
        self.mischief, self.clock = mischief, clock
        self.topics: dict[str, list[Record]] = {}
        self.groups: dict[tuple[str, str], TopicPartition] = {}
        self.left: list[Callable[[], object]] = []
        """Attempts that nobody waits for any more, and that go on in threads of their drivers."""
        self.committed: Callable[[Transaction], object] = lambda transaction: None
        """Called where a transaction is committed."""
        self._names: dict[str, _Name] = {}
        self._late: list[tuple[str, int, Transaction]] = []
        """Commits that were given up and are on their way."""
        self._away_until = -1.0

    def library(self, touch: Callable[[str], None]) -> Any:
        """Return what a driver's clients are made with, as the module `confluent_kafka`; see `Link` for `touch`."""
        link = Link(self, touch)
        return SimpleNamespace(
            Producer=partial(Producer, link),
            Consumer=partial(Consumer, link),
            TopicPartition=TopicPartition,
            KafkaException=KafkaException,
            KafkaError=KafkaError,
        )

    # -- what clients ask for ------------------------------------------------------------------------------------------

    def open(self, name: str) -> int:
        """Return the epoch of a new producer: those before it are fenced, and their transaction is over."""
        held = self._names.setdefault(name, _Name())
        if (left := held.transaction) is not None and left.state == "open":
            self.mischief.injected[Fault.TRANSACTION_LEFT_OPEN] += 1
            left.state = "aborted"
        held.epoch, held.transaction = held.epoch + 1, None
        return held.epoch

    def present(self, name: str, epoch: int, timeout: float | None = None) -> Transaction:
        """Return the transaction of a producer; with a `timeout`, open one where there is none. Refuse one fenced."""
        held = self._names[name]
        if held.epoch != epoch:
            self.mischief.injected[Fault.PRODUCER_FENCED] += 1
            raise KafkaException(KafkaError(KafkaError._FENCED, "fenced by a newer producer"))
        if timeout is not None and (held.transaction is None or held.transaction.state != "open"):
            held.transaction = Transaction(name, self.clock() + timeout)
        if held.transaction is None:
            raise KafkaException(KafkaError(KafkaError._STATE, "there is no transaction"))
        return held.transaction

    def commit(self, name: str, epoch: int) -> None:
        """Commit a transaction; who asks again gets the same answer."""
        found = self.present(name, epoch)
        if found.state == "aborted":
            raise KafkaException(KafkaError(KafkaError._STATE, "the transaction was aborted"))
        if found.state == "open":
            found.state = "committed"
            self.groups.update(found.offsets)
            self.committed(found)

    def abort(self, name: str, epoch: int) -> None:
        """Abort a transaction."""
        found = self.present(name, epoch)
        if found.state == "committed":
            raise KafkaException(KafkaError(KafkaError._STATE, "the transaction was committed"))
        found.state = "aborted"

    # -- what happens --------------------------------------------------------------------------------------------------

    def go_on(self) -> None:
        """What is on its way arrives; transactions that are open for too long are aborted."""
        now = self.clock()
        for held in self._names.values():
            if held.transaction is not None and held.transaction.state == "open" and now >= held.transaction.until:
                self.mischief.injected[Fault.TRANSACTION_TIMED_OUT] += 1
                held.transaction.state = "aborted"
                held.epoch += 1
        for one in [one for one in self._late if self.draw.random() < ARRIVES]:
            self._late.remove(one)
            name, epoch, transaction = one
            held = self._names[name]
            if held.epoch == epoch and held.transaction is transaction and transaction.state == "open":
                self.mischief.injected[Fault.COMMIT_LATE] += 1
                self.commit(name, epoch)
        if not self.mischief.active:
            self.left.clear()
        if self.left and self.draw.random() < ARRIVES:
            self.mischief.injected[Fault.ATTEMPT_LEFT_BEHIND] += 1
            self.left.pop(self.draw.randrange(len(self.left)))()

    def comes_late(self, name: str, epoch: int) -> None:
        """A commit was given up, and may come yet."""
        held = self._names[name]
        if held.epoch == epoch and held.transaction is not None and self.draw.random() < COMES_LATE:
            self._late.append((name, epoch, held.transaction))

    def is_away(self) -> bool:
        """Whether the brokers do not answer now."""
        now = self.clock()
        if not self.mischief.active:
            return False
        if now >= self._away_until and self.draw.random() < AWAY:
            self._away_until = now + self.draw.uniform(2, 120)
            self.mischief.injected[Fault.BROKERS_AWAY] += 1
        return now < self._away_until

    def loses(self) -> bool:
        """Whether a request is lost, or its answer."""
        lost = self.mischief.active and self.draw.random() < LOST
        self.mischief.injected[Fault.BROKER_ANSWER_LOST] += lost
        return lost

    def drops(self) -> bool:
        """Whether a record is not delivered: its transaction has to be aborted."""
        dropped = self.mischief.active and self.draw.random() < NOT_DELIVERED
        self.mischief.injected[Fault.RECORD_NOT_DELIVERED] += dropped
        return dropped

    # -- what readers see ----------------------------------------------------------------------------------------------

    def read_committed(self, topic: str, after: float = 0.0) -> Iterator[Record]:
        """Yield what readers of committed records see in so many seconds, where nothing else happens."""
        for one in self.topics.get(topic, ()):
            if one.transaction.state == "open" and one.transaction.until > self.clock() + after:
                return
            if one.transaction.state == "committed":
                yield one


class Link:
    """The way from a driver's clients to the brokers."""

    def __init__(self, brokers: Brokers, touch: Callable[[str], None]) -> None:
        """`touch` is called around every request: the driver may die there, or wait while the world goes on."""
        self.brokers, self._touch = brokers, touch

    def ask(self, what: str, effect: Callable[[], T], lost: Callable[[], object] = lambda: None) -> T:
        """Make a request; `lost` is called where it did not reach the brokers."""
        brokers = self.brokers
        self._touch(f"before {what}")
        brokers.go_on()
        if brokers.is_away():
            lost()
            raise KafkaException(KafkaError(KafkaError._TRANSPORT, "the brokers do not answer", retriable=True))
        loses = brokers.loses()
        if loses and brokers.draw.random() < 0.5:
            lost()
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"{what} was lost", retriable=True))
        found = effect()
        if loses:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "the answer was lost", retriable=True))
        self._touch(f"after {what}")
        return found


class Producer:
    """See confluent_kafka.Producer."""

    def __init__(self, link: Link, configuration: Mapping[str, Any]) -> None:
        self._link, self._name = link, configuration["transactional.id"]
        self._timeout = configuration["transaction.timeout.ms"] / 1000
        self._epoch = -1
        self._undelivered: KafkaError | None = None
        self._begun = False

    def init_transactions(self, timeout: float) -> None:
        """See confluent_kafka.Producer."""
        self._epoch = self._link.ask("opening a producer", lambda: self._link.brokers.open(self._name))
        self._begun = False

    def begin_transaction(self) -> None:
        """See confluent_kafka.Producer: brokers know nothing of it yet; the one before must have ended."""
        if self._begun:
            raise KafkaException(KafkaError(KafkaError._STATE, "the transaction before has not ended"))
        self._undelivered, self._begun = None, True

    def produce(self, topic: str, value: bytes | None, key: bytes | None, headers: Any) -> None:
        """See confluent_kafka.Producer: what is not delivered is known at the end of the transaction."""
        brokers = self._link.brokers
        if self._undelivered is not None:
            return
        if brokers.is_away() or brokers.drops():
            self._undelivered = KafkaError(KafkaError._MSG_TIMED_OUT, "a record was not delivered", aborts=True)
            return
        try:
            transaction = brokers.present(self._name, self._epoch, self._timeout)
        except KafkaException as error:
            self._undelivered = error.args[0]
            return
        record = Record(transaction, key, value, dict(headers or ()))
        transaction.records.append(record)
        brokers.topics.setdefault(topic, []).append(record)

    def send_offsets_to_transaction(self, positions: list[TopicPartition], group: str, timeout: float) -> None:
        """See confluent_kafka.Producer."""

        def send() -> None:
            transaction = self._link.brokers.present(self._name, self._epoch, self._timeout)
            transaction.offsets.update({(group, one.topic): one for one in positions})

        self._link.ask("sending offsets to a transaction", send)

    def commit_transaction(self, timeout: float) -> None:
        """See confluent_kafka.Producer."""
        if self._undelivered is not None:
            raise KafkaException(self._undelivered)
        brokers = self._link.brokers
        self._link.ask(
            "committing a transaction",
            lambda: brokers.commit(self._name, self._epoch),
            lambda: brokers.comes_late(self._name, self._epoch),
        )
        self._begun = False

    def abort_transaction(self, timeout: float) -> None:
        """See confluent_kafka.Producer."""
        self._link.ask("aborting a transaction", lambda: self._link.brokers.abort(self._name, self._epoch))
        self._begun = False

    def poll(self, timeout: float) -> int:
        """See confluent_kafka.Producer."""
        return 1


class Consumer:
    """See confluent_kafka.Consumer: here it is asked for offsets of its group only."""

    def __init__(self, link: Link, configuration: Mapping[str, Any]) -> None:
        self._link, self._group = link, configuration["group.id"]

    def consumer_group_metadata(self) -> str:
        """See confluent_kafka.Consumer."""
        return str(self._group)

    def committed(self, places: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        """See confluent_kafka.Consumer."""
        groups = self._link.brokers.groups

        def look() -> list[TopicPartition]:
            return [groups.get((self._group, one.topic), one) for one in places]

        return self._link.ask("reading how far a group is", look)
