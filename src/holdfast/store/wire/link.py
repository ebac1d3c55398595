"""Links: authenticated connections over which both sides send messages at any time; blocking sockets and threads.

Runs in workers, in the driver and wherever else two processes of a run talk without an event loop. Frames, seals and
handshake are the store's (`messages`, `handshake`). After the handshake the side that dials sends a REQUEST "link" with
its introduction, the side that listens an ANSWER with its own (or a FAILURE); from then on both send messages
(`link_session`). What strangers can do is limited: their number, how long a handshake takes, and that each can end
only its own connection.

A link whose other side has gone without a word (no FIN) does not end by itself before the kernel's keep-alive notices;
who needs to know earlier sends messages and counts answers. Make links and listeners after forks only: a fork copies
their sockets but not their threads.
"""

from __future__ import annotations

import logging
import select
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from holdfast.errors import BadInput, HoldfastError, one_line
from holdfast.store.wire.address import Address, is_loopback
from holdfast.store.wire.connection import CONNECT_SECONDS, Connection
from holdfast.store.wire.failures import BadRequest, Busy, NotTrusted, Unreachable, code_of
from holdfast.store.wire.handshake import ClusterKey, PeerHandshake, SessionSeals
from holdfast.store.wire.link_session import LARGEST_MESSAGE, Link, OnEnd, OnMessage
from holdfast.store.wire.messages import BadFrame, Frame, Header, Kind, pack
from holdfast.store.wire.ports import listen_at_first_free
from holdfast.store.wire.sockets import FrameSocket, reason

__all__ = ["LARGEST_MESSAGE", "Link", "LinkListener", "OnEnd", "OnMessage", "dial"]

log = logging.getLogger("holdfast.store.links")

GREETING_SECONDS = 10.0
"""A handshake that takes longer is ended."""
STRANGERS = 64
"""Connections still in the handshake; one more pushes the oldest of them out."""
LINKS = 1024
"""Links of a listener at once; one more is refused as busy."""
_OPERATION = "link"
_LOG_LINES = 20.0
_LOG_LINES_PER_SECOND = 5.0


def dial(
    address: Address,
    key: ClusterKey,
    introduction: Mapping[str, Any],
    on_message: OnMessage,
    on_end: OnEnd,
    *,
    tls: ssl.SSLContext | None = None,
    connect_seconds: float = CONNECT_SECONDS,
    largest_message: int = LARGEST_MESSAGE,
) -> Link:
    """Connect to a listener, introduce this side, and return the link; messages may be handled before it returns.

    Where there is no link, an error of the store's closed set says why: `Unreachable`, `NotTrusted`, `Busy`, or what
    the other side's `on_link` raised. `on_end` is called for links that were made, once.
    """
    connection = Connection(address, key, tls=tls, connect_seconds=connect_seconds, answer_seconds=connect_seconds)
    try:
        answer = connection.request(_OPERATION, {"introduction": dict(introduction)})
        hello = answer.header.get("introduction")
        if not isinstance(hello, dict):
            raise Unreachable("the other side makes no links", where=str(address))
    except BaseException:
        connection.close()
        raise
    connected, seals = connection.hand_over()
    link = Link(FrameSocket(connected), seals, str(address), hello, largest_message)
    try:
        link.start([])
        threading.Thread(
            target=link.receive_until_end, args=(on_message, on_end), name=f"link {link.name} receives", daemon=True
        ).start()
    except RuntimeError as error:  # no thread is left in this process
        link.abandon()
        raise Unreachable(f"a link could not be begun: {error}", where=str(address)) from None
    return link


class LinkListener:
    """Listens on one address; every connection that knows the secret becomes a link."""

    def __init__(
        self,
        host: str,
        port: int | Sequence[int],
        key: ClusterKey,
        on_link: Callable[[Link], tuple[OnMessage, OnEnd]],
        *,
        reached_at: str | None = None,
        introduction: Mapping[str, Any] | None = None,
        tls: ssl.SSLContext | None = None,
        largest_message: int = LARGEST_MESSAGE,
        greeting_seconds: float = GREETING_SECONDS,
        strangers: int = STRANGERS,
        links: int = LINKS,
    ) -> None:
        """Listen from now on (port 0: any; of several, the first that is free).

        `on_link` gives what handles a link's messages and its end. `reached_at`: the host by which others dial it.

        It is called by the link's own thread and may send; a `HoldfastError` that it raises refuses the link, and is
        raised at the other side.
        """
        if not key.secret and not is_loopback(host):
            raise BadInput(f"will not listen on {host} without a secret", remedy="set a secret, or listen on 127.0.0.1")
        self._key, self._on_link, self._tls = key, on_link, tls
        self._introduction: Header = dict(introduction or {})
        self._largest, self._greeting_seconds = largest_message, greeting_seconds
        self._most_strangers, self._most_links = strangers, links
        self.counts: Counter[str] = Counter()
        """Refused connections, by why."""
        self._lock = threading.Lock()
        self._strangers: dict[FrameSocket, None] = {}
        self._linking: dict[threading.Thread, threading.Event] = {}
        """The threads that are in `on_link`."""
        self._links: set[Link] = set()
        self._closed = False
        self._log_room, self._logged_at = _LOG_LINES, time.monotonic()
        ports = (port,) if isinstance(port, int) else port
        self._socket = listen_at_first_free(ports, host, lambda one: _listening(host, one))
        self.address = Address(reached_at or host, self._socket.getsockname()[1])
        self._woken, self._wake = socket.socketpair()
        self._thread = threading.Thread(target=self._accept, name=f"links at {self.address}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Make no more links; those that were made go on. After it, `on_link` is not called any more."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for stranger in self._strangers:
                stranger.shut_down()
            linking = dict(self._linking)
        self._wake.close()
        self._thread.join()
        for thread, made in linking.items():
            if thread is not threading.current_thread():
                made.wait()

    def _accept(self) -> None:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        while not self._closed:
            poll.poll()
            try:
                connected, remote = self._socket.accept()
            except BlockingIOError:
                continue
            except OSError as error:  # Gone again, or no descriptor is free: those who wait are taken later.
                self._refuse("not accepted", "?", reason(error))
                time.sleep(0.05)
                continue
            self._take(connected, Address(remote[0], remote[1]))
        self._socket.close()
        self._woken.close()

    def _take(self, connected: socket.socket, remote: Address) -> None:
        """Greet a connection in a thread of its own, which becomes the link's."""
        try:
            if self._tls is not None:
                connected = self._tls.wrap_socket(connected, server_side=True, do_handshake_on_connect=False)
            stranger = FrameSocket(connected, time.monotonic() + self._greeting_seconds)
        except OSError as error:
            connected.close()
            self._refuse("bad frames", str(remote), reason(error))
            return
        thread = threading.Thread(
            target=self._converse, args=(stranger, str(remote)), name=f"link {remote} receives", daemon=True
        )
        with self._lock:
            pushed_out = next(iter(self._strangers)) if len(self._strangers) >= self._most_strangers else None
            if pushed_out is not None:
                del self._strangers[pushed_out]
                pushed_out.shut_down()
            self._strangers[stranger] = None
            if self._closed:
                stranger.shut_down()
        if pushed_out is not None:
            self._refuse("too many strangers", "?", "others wait for the handshake")
        try:
            thread.start()
        except RuntimeError as error:  # no thread is left: it costs this connection, and not the listener
            with self._lock:
                self._strangers.pop(stranger, None)
            stranger.shut_down()
            stranger.close()
            self._refuse("not accepted", str(remote), str(error))

    def _converse(self, stranger: FrameSocket, remote: str) -> None:
        made: tuple[Link, OnMessage, OnEnd] | None = None
        try:
            stranger.tls_handshake()
            seals = self._greet(stranger)
            request = stranger.receive_frame(seals.incoming, trusted=True)
            try:
                made = self._made(stranger, request, seals, remote)
            except HoldfastError as error:
                failure: Header = {"code": code_of(error), "line": one_line(str(error))}
                stranger.send(pack(Kind.FAILURE, failure, [], seals.outgoing))
                raise
        except NotTrusted as refused:
            self._refuse("strangers", remote, str(refused))
        except BadFrame as bad:
            self._refuse("bad frames", remote, str(bad))
        except HoldfastError as error:
            self._refuse("refused", remote, str(error))
        except ssl.SSLError as error:
            self._refuse("strangers", remote, reason(error))
        except OSError as error:
            self._refuse("slow" if isinstance(error, TimeoutError) else "cut", remote, reason(error))
        except Exception:
            # An error of this side: it ends this connection, and others are served.
            self.counts["faults"] += 1
            log.exception("a link could not be made")
        finally:
            with self._lock:
                self._strangers.pop(stranger, None)
            if made is None:
                stranger.shut_down()
                stranger.close()
        if made is not None:
            link, on_message, on_end = made
            try:
                link.start(pack(Kind.ANSWER, {"introduction": self._introduction}, [], seals.outgoing))
            except RuntimeError as error:  # no thread is left: who knows of the link must learn that it has ended
                self._refuse("not accepted", remote, str(error))
                link.abandon()
                with suppress(Exception):
                    on_end(link, f"it could not be begun: {error}")
            else:
                link.receive_until_end(on_message, on_end)
            with self._lock:
                self._links.discard(link)

    def _greet(self, stranger: FrameSocket) -> SessionSeals:
        handshake = PeerHandshake(self._key)
        incoming, outgoing = handshake.greeting.incoming, handshake.greeting.outgoing
        hello = stranger.receive_frame(incoming, trusted=False)
        stranger.send(pack(Kind.CHALLENGE, handshake.challenge(hello), [], outgoing))
        proof = stranger.receive_frame(incoming, trusted=False)
        try:
            header, seals = handshake.welcome(proof)
        except NotTrusted:
            stranger.send(pack(Kind.REFUSED, {}, [], outgoing))
            raise
        stranger.send(pack(Kind.WELCOME, header, [], outgoing))
        return seals

    def _made(
        self, connected: FrameSocket, request: Frame, seals: SessionSeals, remote: str
    ) -> tuple[Link, OnMessage, OnEnd]:
        introduction = request.header.get("introduction")
        if request.kind is not Kind.REQUEST or request.header.get("do") != _OPERATION:
            raise BadRequest("only links are made here", remedy="check the address")
        if not isinstance(introduction, dict):
            raise BadRequest("a link without an introduction")
        connected.no_deadline()
        link = Link(connected, seals, remote, introduction, self._largest)
        thread, made = threading.current_thread(), threading.Event()
        with self._lock:
            if self._closed:
                raise Busy("the listener is closed", remedy="try again later")
            if len(self._links) >= self._most_links:
                raise Busy("too many links", remedy="try again later")
            if self._strangers.pop(connected, connected) is not None:
                raise ConnectionResetError("pushed out by other strangers")
            self._links.add(link)
            self._linking[thread] = made
        try:
            return link, *self._on_link(link)
        except BaseException:
            with self._lock:
                self._links.discard(link)
            raise
        finally:
            with self._lock:
                del self._linking[thread]
            made.set()

    def _refuse(self, what: str, remote: str, why: str) -> None:
        """Count, and log a few lines per second at most: a flood of strangers must not fill the disk."""
        with self._lock:
            self.counts[what] += 1
            now = time.monotonic()
            self._log_room = min(_LOG_LINES, self._log_room + (now - self._logged_at) * _LOG_LINES_PER_SECOND)
            self._logged_at = now
            logged = self._log_room >= 1
            self._log_room -= logged
        if logged:
            log.warning("refused a connection from %s: %s", remote, one_line(why, 200))


def _listening(host: str, port: int) -> socket.socket:
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    listening = socket.create_server((host, port), family=family, backlog=256)
    listening.setblocking(False)
    return listening
