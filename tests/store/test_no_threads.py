"""A machine on which no thread can be started for a while: afterwards everything goes on."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.erasure.encoding import encode
from holdfast.erasure.fragment import FragmentHeader, StateId
from holdfast.erasure.layout import Coding
from holdfast.errors import HoldfastError
from holdfast.ids import BatchId, Epoch
from holdfast.store.agent.durable_folder import DurableFolder
from holdfast.store.agent.spool import Spool
from holdfast.store.agent.spool_service import SpoolService
from holdfast.store.client.saving import save_fragments
from holdfast.store.wire.connection import ConnectionPool
from holdfast.store.wire.failures import NotSaved, Unreachable
from holdfast.store.wire.handshake import open_key
from holdfast.store.wire.link import Link, LinkListener, dial


def test_orders_that_no_thread_could_take_are_taken_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = SpoolService(tmp_path / "spool", None, DurableFolder(tmp_path / "durable"))
    spool = Spool(tmp_path / "spool")
    names = [f"run-1/O1-{number}/c1.0-5.1" for number in range(3)]
    for name in names:
        spool.save(name, b"snapshot", epoch=1, durable=True)
    real = ThreadPoolExecutor._adjust_thread_count

    def no_thread(executor: ThreadPoolExecutor) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(ThreadPoolExecutor, "_adjust_thread_count", no_thread)
    with pytest.raises(RuntimeError):
        service._look()
    monkeypatch.setattr(ThreadPoolExecutor, "_adjust_thread_count", real)
    service._look()
    service._saving.shutdown(wait=True)
    assert all(answer is not None and answer.ok for answer in map(spool.saved, names))


def test_a_listener_outlives_a_connection_for_which_there_is_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    listener = LinkListener("127.0.0.1", 0, open_key(), lambda link: (lambda *_: None, lambda *_: None))
    start, refusals = threading.Thread.start, [1]

    def started(thread: threading.Thread) -> None:
        if "receives" in thread.name and refusals and refusals.pop():
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", started)
    with pytest.raises(HoldfastError):
        dial(listener.address, open_key(), {}, lambda *_: None, lambda *_: None)
    deadline = time.monotonic() + 60
    while not listener.counts["not accepted"] and time.monotonic() < deadline:
        time.sleep(0.01)
    link = dial(listener.address, open_key(), {}, lambda *_: None, lambda *_: None)
    link.close()
    listener.close()


def no_thread_named(monkeypatch: pytest.MonkeyPatch, *, begins: str = "", ends: str = "") -> None:
    """Let threads with such names not be started."""
    start = threading.Thread.start

    def started(thread: threading.Thread) -> None:
        if thread.name.startswith(begins) and thread.name.endswith(ends):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", started)


def test_a_save_that_gets_no_thread_for_a_fragment_leaves_no_sender_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    state = b"state" * 100
    header = FragmentHeader.unpack(encode(state, StateId("a", "b"), BatchId(1), Epoch(1), Coding(1, 1))[0]).state
    no_thread_named(monkeypatch, begins="holdfast-save-1")
    with pytest.raises(NotSaved, match="can't start new thread"):
        save_fragments(ConnectionPool(open_key()), header, state, ["127.0.0.1:1", "127.0.0.1:1"])
    assert not [one for one in threading.enumerate() if one.name.startswith("holdfast-save-")]


def test_a_link_that_gets_no_thread_to_send_ends_for_those_who_know_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Link] = []
    ended = threading.Event()

    def on_link(link: Link) -> tuple[object, object]:
        made.append(link)
        return lambda *_: None, lambda link, why: ended.set()

    listener = LinkListener("127.0.0.1", 0, open_key(), on_link)  # type: ignore[arg-type]
    with monkeypatch.context() as patched:
        no_thread_named(patched, ends=" sends")
        with pytest.raises(Unreachable):
            dial(listener.address, open_key(), {}, lambda *_: None, lambda *_: None)
        assert ended.wait(60)
    assert made[0].ended
    deadline = time.monotonic() + 60
    while listener._links and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not listener._links
    listener.close()


def test_a_link_that_gets_no_thread_to_receive_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    listener = LinkListener("127.0.0.1", 0, open_key(), lambda link: (lambda *_: None, lambda *_: ended.set()))
    with monkeypatch.context() as patched:
        no_thread_named(patched, begins=f"link {listener.address}", ends=" receives")
        with pytest.raises(Unreachable, match="can't start new thread"):
            dial(listener.address, open_key(), {}, lambda *_: None, lambda *_: None)
    assert ended.wait(60), "the other side sees the end"
    listener.close()
