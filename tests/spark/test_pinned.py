"""Jobs pinned to nodes on a real cluster: tasks run where they should, or say that they do not."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import pytest

from holdfast.errors import BadInput
from holdfast.spark.pinned_jobs import Executor, PinnedSlots, Work, executors_of, is_on, own_host

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def executors(spark: SparkSession) -> list[Executor]:
    deadline = time.monotonic() + 300
    while len(found := executors_of(spark.sparkContext)) < 3:
        assert time.monotonic() < deadline, "executors did not register"
        time.sleep(0.1)
    return found


def works() -> tuple[Work, Work]:
    """Return what slots do; made in here so that they travel to the nodes by value, not as a module of the tests."""

    def send_skewed(slot: int, blocks: list[bytes]) -> Iterable[tuple[int, bytes]]:
        # Much to slot 0: the size that tempts Spark to move the next level's task.
        return [(target, bytes([slot]) * (500_000 if target == 0 else 10)) for target in range(3)]

    def tell(slot: int, blocks: list[bytes]) -> Iterable[tuple[int, bytes]]:
        from holdfast.spark.pinned_jobs import DRIVER, own_host

        senders = sorted(block[0] for block in blocks)
        return [(DRIVER, f"{own_host()} {senders} {sum(map(len, blocks))}".encode())]

    return send_skewed, tell


def test_every_level_stays_where_it_was_pinned(spark: SparkSession, executors: list[Executor]) -> None:
    send_skewed, tell = works()
    with PinnedSlots(spark.sparkContext, executors[:3]) as slots:
        for _ in range(3):
            outcome = slots.run([send_skewed, send_skewed, tell], name="batch 1")
            assert outcome.misplaced == ()
            told = dict(outcome.reports)
            for slot, executor in enumerate(executors[:3]):
                size = 3 * (500_000 if slot == 0 else 10)
                assert told[slot].decode() == f"{executor.host} [0, 1, 2] {size}"


def test_a_node_may_have_several_slots(spark: SparkSession, executors: list[Executor]) -> None:
    twice = [executors[0], executors[0], executors[1]]
    _, tell = works()
    with PinnedSlots(spark.sparkContext, twice) as slots:
        outcome = slots.run([tell])
        assert [block.decode().split()[0] for _, block in sorted(outcome.reports)] == [one.host for one in twice]


def test_a_task_on_a_wrong_host_says_so_and_does_nothing(spark: SparkSession, executors: list[Executor]) -> None:
    gone = Executor("99", "127.0.0.99")
    _, tell = works()
    with PinnedSlots(spark.sparkContext, [executors[0], gone]) as slots:
        outcome = slots.run([tell, tell])
        assert outcome.misplaced == (1,)
        assert {slot for slot, _ in outcome.reports} == {0}


def test_a_task_on_another_executor_of_its_host_says_so(spark: SparkSession, executors: list[Executor]) -> None:
    """Spark places it there where the one it was meant for is gone, or busy for longer than it waits."""
    _, tell = works()
    with PinnedSlots(spark.sparkContext, [Executor("99", executors[0].host), executors[1]]) as slots:
        outcome = slots.run([tell])
        assert outcome.misplaced == (0,)
        assert {slot for slot, _ in outcome.reports} == {1}


def test_nothing_to_pin_to_is_refused(spark: SparkSession) -> None:
    with pytest.raises(BadInput, match="no executor"):
        PinnedSlots(spark.sparkContext, [])


def test_a_process_knows_whether_it_is_on_a_host_by_name_or_address(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPARK_LOCAL_IP", "SPARK_LOCAL_HOSTNAME"):
        monkeypatch.delenv(name, raising=False)
    assert is_on(socket.gethostname())
    assert is_on("localhost")
    assert is_on(own_host())
    assert not is_on("192.0.2.55"), "an address that nobody has"
    assert not is_on("no-such-host.invalid")
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.5")
    assert own_host() == "127.0.0.5"
    assert is_on("127.0.0.5")
    assert not is_on("127.0.0.6"), "several nodes on one machine: each has an address of its own"
