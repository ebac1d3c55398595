"""A machine on which no thread can be started for a while: afterwards everything goes on."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.store.agent.durable_folder import DurableFolder
from holdfast.store.agent.spool import Spool
from holdfast.store.agent.spool_service import SpoolService


def test_orders_that_no_thread_could_take_are_taken_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = SpoolService(tmp_path / "spool", None, DurableFolder(tmp_path / "durable"))
    spool = Spool(tmp_path / "spool")
    names = [f"run-1/O1-{number}/c1.0-5.1" for number in range(3)]
    for name in names:
        spool.save(name, b"snapshot", epoch=1, durable=True)
    real = ThreadPoolExecutor._adjust_thread_count  # type: ignore[attr-defined]

    def no_thread(executor: ThreadPoolExecutor) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(ThreadPoolExecutor, "_adjust_thread_count", no_thread)
    with pytest.raises(RuntimeError):
        service._look()
    monkeypatch.setattr(ThreadPoolExecutor, "_adjust_thread_count", real)
    service._look()
    service._saving.shutdown(wait=True)
    assert all(answer is not None and answer.ok for answer in map(spool.saved, names))
