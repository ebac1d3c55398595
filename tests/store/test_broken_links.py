"""Links whose threads meet what no protocol foresees: both sides learn that the link is over."""

from __future__ import annotations

import logging
import threading
from typing import Any, cast

import pytest

from holdfast.store.wire.handshake import SessionSeals
from holdfast.store.wire.link_session import Link
from holdfast.store.wire.messages import Bytes, Seals
from holdfast.store.wire.sockets import FrameSocket


class Socket:
    """A socket on which receiving or sending fails as if there were no memory; shutting it down ends both."""

    def __init__(self, broken: str) -> None:
        self.broken, self.shut = broken, threading.Event()

    def receive(self, *buffers: memoryview) -> bool:
        if self.broken == "receiving":
            raise MemoryError
        assert self.shut.wait(60)
        return False

    def send(self, parts: list[Bytes]) -> None:
        if self.broken == "sending" and parts:
            raise MemoryError

    def end_sending(self) -> None:
        pass

    def shut_down(self) -> None:
        self.shut.set()

    def close(self) -> None:
        assert self.shut.is_set()


@pytest.mark.parametrize("broken", ["receiving", "sending"])
def test_a_link_without_memory_for_a_message_ends(broken: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    seals = SessionSeals(Seals(b"in"), Seals(b"out"))
    link = Link(cast(FrameSocket, Socket(broken)), seals, "there", {}, 1 << 20)
    ended: list[str] = []

    def receive() -> None:
        link.receive_until_end(cast(Any, None), lambda _, why: ended.append(why))

    link.start([])
    link.send({"a": 1})
    thread = threading.Thread(target=receive, daemon=True)
    thread.start()
    thread.join(60)
    assert ended, "who waits for its messages would wait for ever"
    assert "MemoryError" in ended[0]
    assert link.ended
