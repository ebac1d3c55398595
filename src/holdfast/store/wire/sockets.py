"""A connected socket for frames, blocking: one thread receives while another sends, any thread ends it.

Runs wherever connections are used without an event loop: Spark's Python workers, the driver, clients. Below TLS the
socket itself does not block: OpenSSL does not let two threads use one session at once, so a lock is held while bytes
are moved, and never while a thread waits for them.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable

from holdfast.store.wire.messages import PREFIX, Bytes, Frame, Seals, read_prefix, unpack
from holdfast.store.wire.tls import explained

MOST_BUFFERS = 512
"""Buffers given to the kernel at once; it takes up to 1024."""
_LOOK_AGAIN = 1000
"""Milliseconds after which a thread that waits under TLS tries again, whatever the other thread has taken."""


class FrameSocket:
    """A connected socket. Its owner closes it once no thread uses it; `shut_down` makes them stop."""

    def __init__(self, connected: socket.socket, deadline: float | None = None) -> None:
        """Take a socket over; nothing lasts beyond the deadline (monotonic seconds) until `no_deadline`."""
        self._socket = connected
        self._deadline = deadline
        self.received_bytes = 0
        """What has come, also of a message that has not come whole."""
        self._lock = threading.Lock() if isinstance(connected, ssl.SSLSocket) else None
        connected.settimeout(None if self._lock is None else 0)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def no_deadline(self) -> None:
        """Let everything take its time from here on."""
        self._deadline = None
        if self._lock is None:
            self._socket.settimeout(None)

    def tls_handshake(self) -> None:
        """Do what TLS needs before its first byte; without TLS, nothing."""
        if isinstance(self._socket, ssl.SSLSocket):
            self._moved(self._socket.do_handshake)

    def send(self, parts: list[Bytes]) -> None:
        """Send buffers one after the other; large ones are not copied."""
        views = [memoryview(part) for part in parts if len(part)]
        first = 0
        while first < len(views):
            if self._lock is None:
                self._wait_no_longer()
                sent = self._socket.sendmsg(views[first : first + MOST_BUFFERS])
            else:
                piece = views[first]
                sent = self._moved(lambda piece=piece: self._socket.send(piece))  # type: ignore[misc]
            while first < len(views) and sent >= len(views[first]):
                sent -= len(views[first])
                first += 1
            if sent:
                views[first] = views[first][sent:]

    def receive(self, *buffers: memoryview) -> bool:
        """Fill buffers one after the other; False: the other side has ended, and nothing of them has come."""
        views = [view for view in buffers if len(view)]
        first, begun = 0, False
        while first < len(views):
            if self._lock is None:
                self._wait_no_longer()
                count = self._socket.recvmsg_into(views[first:])[0]
            else:
                target = views[first]
                count = self._moved(lambda target=target: self._socket.recv_into(target))  # type: ignore[misc]
            if count == 0:
                if begun:
                    raise ConnectionResetError("cut in the middle of a frame")
                return False
            begun = True
            self.received_bytes += count
            while first < len(views) and count >= len(views[first]):
                count -= len(views[first])
                first += 1
            if count:
                views[first] = views[first][count:]
        return True

    def receive_frame(self, seals: Seals, *, trusted: bool) -> Frame:
        """Receive one frame, whole and verified."""
        head = bytearray(PREFIX.size)
        if not self.receive(memoryview(head)):
            raise ConnectionResetError("closed by the other side")
        prefix = read_prefix(head, trusted=trusted)
        rest = bytearray(prefix.rest)
        self.receive_rest(memoryview(rest))
        return unpack(prefix, head, rest, seals)

    def receive_rest(self, *buffers: memoryview) -> None:
        """Fill buffers; the other side must not end before."""
        if not self.receive(*buffers):
            raise ConnectionResetError("cut in the middle of a frame")

    def end_sending(self) -> None:
        """Let the other side see the end of what was sent; what it sends can still be received."""
        self._shut(socket.SHUT_WR)

    def shut_down(self) -> None:
        """End both directions and wake the threads that wait; what has arrived can still be received."""
        self._shut(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give the descriptor back; no thread may use it any more."""
        self._socket.close()

    def _shut(self, how: int) -> None:
        # A TLS socket's own method would drop the session that another thread is using.
        with contextlib.suppress(OSError):  # Already gone at the other end: nothing is left to do.
            socket.socket.shutdown(self._socket, how)

    def _left(self) -> float | None:
        if self._deadline is None:
            return None
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        return left

    def _wait_no_longer(self) -> None:
        if self._deadline is not None:
            self._socket.settimeout(self._left())

    def _moved(self, move: Callable[[], int | None]) -> int:
        assert self._lock is not None
        while True:
            left = self._left()
            try:
                with self._lock:
                    return move() or 0
            except ssl.SSLWantReadError:
                wanted = select.POLLIN
            except ssl.SSLWantWriteError:
                wanted = select.POLLOUT
            poll = select.poll()
            poll.register(self._socket, wanted)
            poll.poll(_LOOK_AGAIN if left is None else min(_LOOK_AGAIN, left * 1000))


def reason(error: BaseException) -> str:
    """Return what an error of a socket says, in a few words."""
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, ssl.SSLError):
        return explained(error)
    text = getattr(error, "strerror", None)
    return text if isinstance(text, str) and text else str(error) or type(error).__name__
