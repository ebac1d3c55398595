"""A machine on which no thread can be started for a while: afterwards everything goes on."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.errors import HoldfastError
from holdfast.store.agent.durable_folder import DurableFolder
from holdfast.store.agent.spool import Spool
from holdfast.store.agent.spool_service import SpoolService
from holdfast.store.wire.handshake import open_key
from holdfast.store.wire.link import LinkListener, dial


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
