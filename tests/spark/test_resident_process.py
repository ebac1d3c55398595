"""The operator process of a node, without a cluster: how it ends where another one has taken its files over."""

from __future__ import annotations

import itertools
import math
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pytest

from holdfast.ids import BatchId, Epoch, NodeId, PartitionId
from holdfast.runtime.blocks import Block, Edge, Header, encode_blocks
from holdfast.runtime.state.journal_store import JournalStore
from holdfast.runtime.state.versions import Pointer
from holdfast.runtime.worker.lease import DriverLease
from holdfast.runtime.worker.resident import Standing
from holdfast.runtime.worker.sender_links import SenderLinks
from holdfast.runtime.worker.spill import InboxSpill
from holdfast.runtime.worker.step_guard import NoGuard
from holdfast.runtime.worker.subscriptions import Subscriptions
from holdfast.spark import resident_node
from holdfast.spark.resident_node import NodeIdentity, ResidentNode
from holdfast.store.wire.address import Address
from holdfast.store.wire.failures import Unreachable
from holdfast.store.wire.handshake import ClusterKey
from holdfast.store.wire.link import Link, OnEnd, OnMessage
from holdfast.store.wire.messages import Header as MessageHeader


def test_a_process_whose_files_were_taken_over_ends_in_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is not started again: two tasks of one node would take the files from each other for ever."""
    old = JournalStore(tmp_path)
    JournalStore(tmp_path)
    node = object.__new__(ResidentNode)
    node._identity = NodeIdentity(NodeId("n1"), "1", "127.0.0.1", "token", "127.0.0.1:1")
    node._name, node._index, node._guard, node._tls = NodeId("n1"), 0, NoGuard(), None
    node._ends, node._events, node._senders, node._driver = False, queue.SimpleQueue(), Mock(), None
    node._listener = Mock()

    def work() -> float:
        old.point(PartitionId.parse("O3[0]"), Pointer(Epoch(1), None))
        raise AssertionError("it went on")

    node._turn = work  # type: ignore[method-assign]
    node.run()
    node._listener.close.assert_called_once()
    assert "operator process of n1 ends: process 2 of the node has taken over from process 1" in capsys.readouterr().err


def test_a_process_that_dials_the_driver_again_reports_everything_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was reported by the connection before may be lost with it."""
    node = object.__new__(ResidentNode)
    node._identity = NodeIdentity(NodeId("n1"), "1", "127.0.0.1", "token", "127.0.0.1:1")
    node._name, node._index, node._guard, node._tls = NodeId("n1"), 0, NoGuard(), None
    node._listener, node._key, node._agent, node._worker = Mock(), Mock(), None, Mock()
    node._standing, node._lease, node._lease_lock = Standing(), DriverLease(2.5), threading.Lock()
    monkeypatch.setattr(resident_node, "dial", Mock())
    assert node._dial_driver()
    node._worker.driver_connected.assert_called_once()


def test_a_process_without_a_lease_does_nothing_until_the_driver_has_heard_of_it() -> None:
    """It was frozen, or the network is cut: others may have its partitions."""
    node = object.__new__(ResidentNode)
    node._driver, node._worker, node._lease, node._lease_lock = Mock(), Mock(), DriverLease(2.5), threading.Lock()
    node._senders = SenderLinks(Subscriptions(), Mock())
    node._functions = Mock()
    assert node._turn() > 0
    node._worker.work.assert_not_called()
    link = Mock()
    node._from_driver(link, {"do": "ping", "number": 1, "received": -1}, b"")
    assert node._turn() > 0
    node._worker.work.assert_not_called()
    link.send.assert_called_once_with({"do": "pong", "number": 1})
    node._from_driver(link, {"do": "ping", "number": 2, "received": 1}, b"")
    node._agent_at, node._worker.sender_nodes.return_value = math.inf, []
    node._worker.work.side_effect = InterruptedError
    node._functions.work.assert_not_called()
    with pytest.raises(InterruptedError):
        node._turn()
    node._functions.work.assert_called_once()


def test_blocks_that_come_to_full_inboxes_are_taken_from_disk(tmp_path: Path) -> None:
    node, link, spill = object.__new__(ResidentNode), Mock(), InboxSpill(tmp_path, most=-1)
    node._events, node._worker, node._spill, node._handed = queue.SimpleQueue(), Mock(), spill, 0
    sender, receiver = PartitionId.parse("a[0]"), PartitionId.parse("b[0]")
    head = Header(Edge(sender.operator, receiver.operator), sender, receiver, BatchId(0), Epoch(1), None)
    rows = pa.table({"word": ["x"] * 100})
    body = encode_blocks([Block(head, rows)])
    node._from_sender(link, {"do": "blocks"}, body)
    node._take_events(0.0)
    (taken,) = node._worker.take_blocks.call_args.args
    assert taken[0].rows.equals(rows)
    assert (spill.spilled, node._handed) == (len(body), len(body))
    node._from_sender(link, {"do": "blocks"}, body[:40] + b"?" + body[41:])
    node._take_events(0.0)
    link.close.assert_called_once_with()
    assert node._handed == 2 * len(body), "what was of no use does not count for ever"


def test_a_connection_that_ends_before_it_is_known_is_dialled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of the sender dies just after it has answered: no other event will tell of that end."""
    node, sender, dialled = object.__new__(ResidentNode), NodeId("n2"), []
    node._name, node._key, node._tls, node._events = NodeId("n1"), Mock(), None, queue.SimpleQueue()
    node._worker = Mock(subscriptions=Subscriptions())
    node._worker.sender_nodes.return_value = {sender}
    node._senders = SenderLinks(node._worker.subscriptions, node._replaced)
    node._senders.met({sender: "127.0.0.1:2"})
    assert node._senders.due(0.0, {sender}) == [(sender, "127.0.0.1:2")]

    def dial(
        address: Address, key: ClusterKey, me: MessageHeader, message: OnMessage, end: OnEnd, *, tls: None
    ) -> Link:
        dialled.append(link := Mock(spec=Link, ended=not dialled, received_bytes=0))
        if link.ended:
            end(link, "closed by the other side")
        return link

    monkeypatch.setattr(resident_node, "dial", dial)
    node._dial_sender(sender, "127.0.0.1:2")
    node._take_events(0.0)
    assert sender not in node._senders.held
    assert not node._worker.subscriptions.is_connected(sender), "nothing that is requested there would arrive"
    assert node._senders.due(math.inf, {sender}), "it is due again before long"
    node._dial_sender(sender, "127.0.0.1:2")
    node._take_events(0.0)
    assert node._senders.link(sender) is dialled[1]
    assert node._worker.subscriptions.is_connected(sender)


def test_a_sender_is_dialled_again_whatever_kept_it_from_being_dialled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a container may have no more threads, a link cannot start its own: the stream must not wait for good."""
    node, sender = object.__new__(ResidentNode), NodeId("n2")
    node._name, node._key, node._tls, node._events = NodeId("n1"), Mock(), None, queue.SimpleQueue()
    node._senders = SenderLinks(Subscriptions(), Mock())
    node._senders.met({sender: "127.0.0.1:2"})
    assert node._senders.due(0.0, {sender})
    monkeypatch.setattr(resident_node, "dial", Mock(side_effect=RuntimeError("can't start new thread")))
    node._dial_sender(sender, "127.0.0.1:2")
    node._take_events(0.0)
    assert node._senders.due(math.inf, {sender})


class Dialling:
    """A process that dials the node of its senders by threads that run at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.node, self.sender, self.links, self.takes = object.__new__(ResidentNode), NodeId("n2"), [], [True] * 9  # type: ignore[var-annotated]
        node, self.now = self.node, 0.0
        node._name, node._key, node._tls, node._events = NodeId("n1"), Mock(), None, queue.SimpleQueue()
        node._worker = Mock(subscriptions=Subscriptions())
        node._senders = SenderLinks(node._worker.subscriptions, node._replaced)
        node._senders.met({self.sender: "127.0.0.1:2"})
        node._worker.sender_nodes.return_value = {self.sender}
        monkeypatch.setattr(resident_node, "dial", self._dial)
        monkeypatch.setattr(resident_node.threading, "Thread", self._thread)
        monkeypatch.setattr(resident_node.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(resident_node.time, "time_ns", lambda: len(self.links))

    def _dial(self, *_: object, tls: None) -> Link:
        if not self.takes.pop(0):
            raise Unreachable("no answer")
        self.links.append(Mock(spec=Link, ended=False, received_bytes=100))
        return self.links[-1]

    def _thread(self, target: Callable[..., None], args: tuple[object, ...], daemon: bool) -> Mock:
        return Mock(start=lambda: target(*args))

    def goes_on(self, seconds: float) -> None:
        """Turn once a second."""
        until = self.now + seconds
        while self.now < until:
            self.now += 1.0
            self.node._dial_senders(self.now)
            self.node._take_events(0.0)

    @property
    def current(self) -> int:
        """Which of the connections counts."""
        return self.links.index(self.node._senders.held[self.sender].link)


def test_a_connection_that_a_firewall_has_forgotten_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel gives it up after a quarter of an hour; requests that are repeated over it reach no process."""
    dialling = Dialling(monkeypatch)
    node, sender = dialling.node, dialling.sender
    dialling.goes_on(100)
    assert len(dialling.links) == 1, "a connection that owes no answer may be quiet"
    node._senders.asked(sender)
    dialling.goes_on(20)
    first, second = dialling.links
    assert dialling.current == 1
    first.close.assert_called_once_with()
    second.close.assert_not_called()
    node._senders.lost(sender, 0)
    assert dialling.current == 1, "the end of the first is no end of the second"
    assert node._worker.subscriptions.is_connected(sender)
    dialling.goes_on(100)
    assert len(dialling.links) == 2


def test_a_sender_that_cannot_run_for_a_while_keeps_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes no second connection meanwhile; and when it does, it answers over the first one too."""
    dialling = Dialling(monkeypatch)
    dialling.takes = [True, *[False] * 30, True]
    dialling.goes_on(2)
    dialling.node._senders.asked(dialling.sender)
    dialling.goes_on(40)
    assert len(dialling.links) in (1, 2)
    while len(dialling.links) < 2:
        dialling.goes_on(1)
    dialling.links[0].received_bytes += 1
    dialling.goes_on(100)
    assert dialling.current == 0
    dialling.links[0].close.assert_not_called()
    dialling.links[1].close.assert_called_once_with()


def test_where_the_first_connection_ends_after_all_the_second_takes_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    dialling = Dialling(monkeypatch)
    dialling.goes_on(2)
    dialling.node._senders.asked(dialling.sender)
    while dialling.sender not in dialling.node._senders.beside:
        dialling.goes_on(1)
    dialling.node._senders.lost(dialling.sender, dialling.node._senders.held[dialling.sender].number)
    dialling.goes_on(1)
    assert dialling.current == 1
    assert not dialling.node._senders.beside


def test_requests_are_answered_at_once_whatever_the_process_does() -> None:
    node, link = object.__new__(ResidentNode), Mock()
    node._events, node._numbers = queue.SimpleQueue(), itertools.count(1)
    message, _ = node._on_subscriber(link)
    message(link, {"do": "requests"}, resident_node.encode_requests([]))
    link.send.assert_called_once_with({"do": "requested"})


@pytest.mark.parametrize("answers", [True, False])
def test_a_process_without_a_lease_for_long_dials_the_driver_beside_the_connection_there_is(
    monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    """A firewall forgets connections without ending them; the task dials anew, and so its node is never silent."""
    node, old, new = object.__new__(ResidentNode), Mock(), Mock()
    node._identity = NodeIdentity(NodeId("n1"), "1", "127.0.0.1", "token", "127.0.0.1:1")
    node._name, node._index, node._guard, node._tls = NodeId("n1"), 0, NoGuard(), None
    node._listener, node._key, node._agent, node._worker = Mock(), Mock(), None, Mock()
    node._standing, node._lease, node._lease_lock = Standing(), DriverLease(2.5), threading.Lock()
    node._driver, node._leased_at, node._redial_seconds, node._functions = old, -math.inf, 5.0, Mock()
    monkeypatch.setattr(resident_node, "dial", Mock(side_effect=[new] if answers else Unreachable("no answer")))
    assert node._turn() > 0
    node._worker.work.assert_not_called()
    assert node._driver is (new if answers else old), "a driver that is frozen goes on with the connection there is"
    assert old.close.called == node._functions.driver_left.called == answers
    assert node._worker.driver_connected.called == answers, "what was reported last may be lost"
    if not answers:
        node._turn()
    assert resident_node.dial.call_count == 1, "and not again at once"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("told", "replaced", "stays"), [(True, False, False), (True, True, True), (False, False, True)]
)
def test_a_process_that_is_needed_no_more_leaves_nothing_on_the_disk(
    tmp_path: Path, told: bool, replaced: bool, stays: bool
) -> None:
    """A session may outlive many runs. What a process that lost its driver, or was replaced, has may be needed."""
    node, folder = object.__new__(ResidentNode), tmp_path / "start" / "n1"
    node._store, node._folder, node._name, node._guard = JournalStore(folder), folder, NodeId("n1"), NoGuard()
    node._store.point(PartitionId.parse("O3[0]"), Pointer(Epoch(1), None))
    for kind in ("snapshots", "regenerating", "spill"):
        folder.with_name(f"n1.{kind}").mkdir()
    node._ends, node._events, node._senders, node._driver = False, queue.SimpleQueue(), Mock(), None
    node._listener = Mock()

    def turn() -> float:
        if replaced:
            JournalStore(folder)
        if told:
            node._from_driver(Mock(), {"do": "end"}, b"")
        else:
            node._ends = True
        return 0.0

    node._turn = turn  # type: ignore[method-assign]
    node.run()
    assert [one.name for one in (tmp_path / "start").iterdir() if one.name == "n1"] == (["n1"] if stays else [])
    assert stays or not list((tmp_path / "start").iterdir())
