"""Pings over real connections: a node that is frozen, one that comes back, leases; and what a driver asks of itself."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.ids import NodeId
from holdfast.runtime.detection import Detection, SelfCheck
from holdfast.spark import self_check as checking
from holdfast.spark.beacon import answer_pings
from holdfast.spark.link_keepalive import KeepAliveNews, LinkKeepAlive
from holdfast.spark.resident_node import NodeIdentity
from holdfast.spark.self_check import addresses, self_check
from holdfast.spark.supervisor import ENDED, supervise
from holdfast.storage.files import FileStorage
from holdfast.store.wire.address import Address
from holdfast.store.wire.handshake import key_from_random
from holdfast.store.wire.link import Link, LinkListener

KEY = key_from_random(b"k" * 32)
SECONDS = 0.5


def until(reached: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(0.01)


class Driver:
    """A driver's end: it pings whoever dials, and collects what there is to know."""

    def __init__(self, check: SelfCheck) -> None:
        self.pings = LinkKeepAlive(SECONDS, check=lambda: check)
        self.listener = LinkListener("127.0.0.1", 0, KEY, self._on_link)
        self.links: list[Link] = []
        self.news = KeepAliveNews()

    def _on_link(self, link: Link) -> tuple[Callable[..., None], Callable[..., None]]:
        node = NodeId(str(link.hello["node"]))

        def message(link: Link, header: dict[str, Any], body: Any) -> None:
            self.pings.pong(node, link, header["number"])

        self.pings.add(node, link)
        self.links.append(link)
        return message, lambda link, why: None

    def look(self) -> KeepAliveNews:
        found = self.pings.take()
        self.news.silent += found.silent
        self.news.answered += found.answered
        self.news.suspicions += found.suspicions
        return self.news

    def close(self) -> None:
        self.pings.stop()
        self.listener.close()
        for link in self.links:
            link.close()


@contextmanager
def nodes(driver: Driver, count: int) -> Iterator[list[int]]:
    """Processes that answer pings, by their numbers."""
    found = []
    for number in range(count):
        pid = os.fork()
        if pid == 0:
            try:
                me = NodeIdentity(NodeId(f"n{number}"), "1", "127.0.0.1", "t", str(driver.listener.address))
                answer_pings(me, KEY, seconds=60.0)
            finally:
                os._exit(1)
        found.append(pid)
    try:
        yield found
    finally:
        for pid in found:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


@pytest.mark.parametrize(
    ("check", "declared"), [(SelfCheck(storage=True, master=True), True), (SelfCheck(storage=False), False)]
)
def test_nodes_that_are_frozen_are_silent_unless_the_driver_is_cut_off(check: SelfCheck, declared: bool) -> None:
    """No secret of a store is needed. What comes too late is a false alarm."""
    driver = Driver(check)
    with nodes(driver, 3) as processes:
        names = [NodeId(f"n{number}") for number in range(3)]
        driver.pings.watch(names)
        until(lambda: all(driver.pings.is_answering(name) for name in names))
        for pid in processes:
            os.kill(pid, signal.SIGSTOP)
        until(lambda: bool(driver.look().suspicions))
        if declared:
            until(lambda: len(driver.look().silent) == 3)
        for pid in processes:
            os.kill(pid, signal.SIGCONT)
        if declared:
            until(lambda: len(driver.look().answered) == 3)
            assert driver.pings.false_alarms == 3
        else:
            until(lambda: all(driver.pings.is_answering(name) for name in names))
            assert not driver.look().silent
    driver.close()


def test_a_driver_that_cannot_check_itself_pings_on_and_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a thread left for a while, or with a check that raises, its nodes would all look silent."""
    found: list[object] = [OSError("no descriptor is left"), SelfCheck(storage=True, master=True)]
    refusals = [True]
    start = threading.Thread.start

    def check() -> SelfCheck:
        one = found.pop(0)
        if isinstance(one, Exception):
            raise one
        assert isinstance(one, SelfCheck)
        return one

    clock = [0.0]
    pings = LinkKeepAlive(SECONDS, check=check, clock=lambda: clock[0])
    pings._stop.set()
    pings._thread.join()

    def started(thread: threading.Thread) -> None:
        if refusals:
            refusals.pop()
            raise RuntimeError("can't start new thread")
        thread.run()

    monkeypatch.setattr(threading.Thread, "start", started)
    monkeypatch.setattr(pings._detector, "look", lambda: Detection((), 1, (NodeId("n0"), NodeId("n1"))))
    for now in (10.0, 12.0, 14.0, 16.0):
        pings._look(now)
    monkeypatch.setattr(threading.Thread, "start", start)
    assert not refusals
    assert not found
    assert len(pings.take().suspicions) == 1, "the third time it could ask, and once is enough"


def test_pings_outlive_what_goes_wrong_beside_them(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []

    def look(pings: LinkKeepAlive, now: float) -> None:
        looks.append(now)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(LinkKeepAlive, "_look", look)
    pings = LinkKeepAlive(0.01, check=lambda: SelfCheck(storage=True))
    until(lambda: len(looks) > 2)
    pings.stop()


def test_who_answers_pings_dials_again_where_none_come() -> None:
    """After a cut of the network a new connection is there sooner than the old one recovers."""
    dialled = []

    def on_link(link: Link) -> tuple[Callable[..., None], Callable[..., None]]:
        dialled.append(link)
        return lambda *given: None, lambda *given: None

    listener, stop = LinkListener("127.0.0.1", 0, KEY, on_link), threading.Event()
    me = NodeIdentity(NodeId("n1"), "1", "127.0.0.1", "t", str(listener.address))
    beacon = threading.Thread(target=lambda: answer_pings(me, KEY, seconds=0.1, stop=stop))
    beacon.start()
    until(lambda: len(dialled) >= 3)
    stop.set()
    beacon.join(30)
    listener.close()


def test_what_runs_beside_operators_is_started_again_and_ends_with_them(tmp_path: Path) -> None:
    def beside() -> None:
        (tmp_path / str(os.getpid())).touch()
        if len(os.listdir(tmp_path)) < 2:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600)

    def operate(index: int, guard: Any) -> None:
        until(lambda: len(os.listdir(tmp_path)) == 2)

    assert supervise(operate, beside=beside) == ENDED
    for name in os.listdir(tmp_path):
        with pytest.raises(ProcessLookupError):
            os.kill(int(name), 0)


# -- what a driver asks of itself --------------------------------------------------------------------------------------


class Away:
    """A storage that does not answer."""

    def list(self, prefix: str) -> list[str]:
        raise OSError("no route to host")


def test_storage_and_master_are_asked(tmp_path: Path) -> None:
    storage = FileStorage(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        there = Address("127.0.0.1", listening.getsockname()[1])
        assert self_check(storage, [there], 30.0) == SelfCheck(storage=True, master=True)
        assert self_check(storage, [], 30.0) == SelfCheck(storage=True, master=None)
        assert self_check(Away(), [there], 30.0) == SelfCheck(storage=False, master=True)  # type: ignore[arg-type]
    assert self_check(storage, [there], 30.0) == SelfCheck(storage=True, master=False)
    with socket.create_server(("127.0.0.1", 0)) as standby:
        other = Address("127.0.0.1", standby.getsockname()[1])
        assert self_check(storage, [there, other], 30.0).master, "one of several masters is enough"


def test_one_that_hangs_does_not_answer(tmp_path: Path) -> None:
    never = threading.Event()
    assert checking._all_of([never.wait, lambda: None], 0.2) == [False, True]
    never.set()


@pytest.mark.parametrize(
    ("master", "found"),
    [
        ("spark://host-a:7077", ["host-a:7077"]),
        ("spark://host-a:7077,host-b:7077", ["host-a:7077", "host-b:7077"]),
        ("k8s://https://api.cluster:6443", ["api.cluster:6443"]),
        ("k8s://api.cluster", ["api.cluster:443"]),
        ("local-cluster[2,1,1024]", []),
        ("yarn", []),
    ],
)
def test_masters_are_found_in_their_url(master: str, found: list[str]) -> None:
    assert [str(one) for one in addresses(master)] == found
