"""The Kafka sink over simulated brokers: open transactions left behind, crashes before a report, producers fenced."""

from __future__ import annotations

import random
from collections.abc import Callable

import pyarrow as pa
import pytest

from holdfast.errors import CheckFailed
from holdfast.ids import BatchId, Epoch, OperatorId, PartitionId
from holdfast.runtime.io.kafka_sink import KafkaSink, read_committed
from holdfast.runtime.io.sinks import Output, OutputKey
from holdfast.runtime.state.store import StaleEpoch
from holdfast_lab.simulation.recovery.broker import Brokers
from holdfast_lab.simulation.recovery.faults import Fault, Mischief

QUERY = PartitionId(OperatorId("pages"), 0)


class Died(BaseException):
    """The driver is killed."""


class Driver(KafkaSink):
    """The sink of a driver, which something may happen to at a request."""

    def __init__(self, brokers: Brokers, claim: int, *, tentative: bool = False) -> None:
        super().__init__("simulated:9092", "out", timeout=1.0, tentative=tentative)
        self._epoch = Epoch.of(claim, 1)
        self.at: dict[str, Callable[[], object]] = {}
        self._simulated = brokers.library(self._touch)

    @property
    def _library(self) -> object:
        return self._simulated

    def _attempt(self, work: Callable[[], int]) -> int:
        return work()

    def _touch(self, where: str) -> None:
        if (happens := self.at.pop(where, None)) is not None:
            happens()

    def write(self, *batches: int) -> None:
        self.publish_all([Output(key(batch), rows(batch)) for batch in batches], self._epoch)

    def write_tentative(self, batch: int) -> bool:
        return self.publish_tentative(key(batch), rows(batch, 7), 0.5, self._epoch)

    def write_nothing(self, batch: int) -> None:
        self.retract(key(batch), rows(batch).slice(0, 0), self._epoch)


def key(batch: int) -> OutputKey:
    return OutputKey(QUERY, BatchId(batch), run="run")


def rows(batch: int, n: int = 1) -> pa.Table:
    return pa.table({"batch": [batch, batch], "n": [n, n + 1]})


def die() -> None:
    raise Died


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def brokers(clock: Clock) -> Brokers:
    return Brokers(0, Mischief(random.Random(0), {}, active=False), clock)


def readers_see(brokers: Brokers) -> list[str]:
    return [one.value.decode() for one in brokers.read_committed("out") if one.value is not None]


def wanted(*batches: int) -> list[str]:
    return [f'{{"batch":{batch},"n":{n}}}' for batch in batches for n in (1, 2)]


def test_a_transaction_that_a_killed_driver_left_open_is_ended_by_the_next_and_its_rows_come_once(
    brokers: Brokers,
) -> None:
    first, second = Driver(brokers, 1), Driver(brokers, 2)
    first.write(0)
    first.at["before committing a transaction"] = die
    with pytest.raises(Died):
        first.write(1)
    assert len(brokers.topics["out"]) == 4, "the rows of batch 1 are in the topic"
    assert readers_see(brokers) == wanted(0)
    second.write(1)
    assert brokers.mischief.injected[Fault.TRANSACTION_LEFT_OPEN] == 1
    assert readers_see(brokers) == wanted(0, 1)


@pytest.mark.parametrize("step", ["opening a producer", "sending offsets to a transaction", "committing a transaction"])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_driver_dies_at_any_request_and_the_next_gives_the_batch_again(
    brokers: Brokers, step: str, moment: str
) -> None:
    first, second = Driver(brokers, 1), Driver(brokers, 2)
    first.at[f"{moment} {step}"] = die
    with pytest.raises(Died):
        first.write(0, 1)
    second.write(0, 1)
    second.write(2)
    assert readers_see(brokers) == wanted(0, 1, 2)


@pytest.mark.parametrize("step", ["sending offsets to a transaction", "committing a transaction"])
def test_a_driver_that_wakes_up_in_a_transaction_is_fenced_and_over(brokers: Brokers, step: str) -> None:
    zombie, present = Driver(brokers, 1), Driver(brokers, 2)
    zombie.at[f"before {step}"] = lambda: present.write(0, 1)
    with pytest.raises(CheckFailed, match="another producer of this run has been opened, and this one is over"):
        zombie.write(0)
    with pytest.raises(StaleEpoch, match="claim 1 is over: the topic has seen claim 2"):
        zombie.write(0)
    with pytest.raises(CheckFailed, match="another producer"):
        present.write(2)  # the zombie's look has fenced it, once
    present.write(2)
    assert readers_see(brokers) == wanted(0, 1, 2)


def test_a_driver_that_is_frozen_between_its_look_and_its_transaction_writes_nothing(brokers: Brokers) -> None:
    zombie, present = Driver(brokers, 1), Driver(brokers, 2)
    zombie.at["after reading how far a group is"] = lambda: present.write(0)
    with pytest.raises(CheckFailed):
        zombie.write(0)
    assert readers_see(brokers) == wanted(0)


def test_a_driver_that_stops_in_a_transaction_finds_it_aborted_and_gives_the_batch_again(
    brokers: Brokers, clock: Clock
) -> None:
    driver = Driver(brokers, 1)
    driver.write(0)
    driver.at["before committing a transaction"] = lambda: setattr(clock, "now", 60.0)
    with pytest.raises(CheckFailed, match="the transaction was not committed"):
        driver.write(1)
    assert brokers.mischief.injected[Fault.TRANSACTION_TIMED_OUT] == 1
    assert readers_see(brokers) == wanted(0)
    driver.write(1)
    assert readers_see(brokers) == wanted(0, 1)


def test_readers_of_committed_records_wait_no_longer_than_an_open_transaction_may_take(
    brokers: Brokers, clock: Clock
) -> None:
    driver = Driver(brokers, 1)
    driver.at["before committing a transaction"] = die
    with pytest.raises(Died):
        driver.write(0)
    other = Brokers(0, brokers.mischief, clock)  # another producer writes behind it
    other.topics = brokers.topics
    Driver(other, 1).write(5)
    assert readers_see(brokers) == []
    clock.now = 60.0
    brokers.go_on()
    assert readers_see(brokers) == wanted(5)


def test_what_is_committed_says_claim_generation_batch_and_revision(brokers: Brokers) -> None:
    Driver(brokers, 3).write(0, 1, 2)
    (place,) = brokers.groups.values()
    held = read_committed(place.metadata)
    assert (held.claim, held.queries) == (3, {0: (0, 2, 0)})


def test_final_rows_count_over_tentative_ones_whoever_wrote_these(brokers: Brokers) -> None:
    first, second = Driver(brokers, 1, tentative=True), Driver(brokers, 2, tentative=True)
    assert first.write_tentative(0)
    first.at["before committing a transaction"] = die
    with pytest.raises(Died):
        first.write_tentative(1)
    assert not second.write_tentative(0)
    assert second.write_tentative(1)
    second.write(0)
    second.write_nothing(1)
    assert not second.write_tentative(1)
    revisions = [
        (one.headers["holdfast-batch"], one.headers["holdfast-revision"], "holdfast-empty" in one.headers)
        for one in brokers.read_committed("out")
    ]
    tentative = [(b"0", b"0", False)] * 2 + [(b"1", b"0", False)] * 2
    assert revisions == [*tentative, *([(b"0", b"1", False)] * 2), (b"1", b"1", True)]
