"""A peer's listener: accepts connections, authenticates them, runs requests, and limits what strangers can do.

Runs in peers, on their event loop. Requests of one connection are served one after the other; connections side by
side. Whatever a caller sends, the worst that happens is that its own connection ends: faults are counted, logged in
one line without anything the caller sent in secret, and never reach another connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from holdfast.errors import HoldfastError, one_line
from holdfast.store.peer.limits import Limits
from holdfast.store.wire.bandwidth import Bandwidth
from holdfast.store.wire.failures import BadRequest, NotTrusted, code_of
from holdfast.store.wire.frames import ConnectionEnded, FrameProtocol
from holdfast.store.wire.handshake import Keys, PeerHandshake, SessionSeals
from holdfast.store.wire.messages import BadFrame, Bytes, Frame, Header, Kind
from holdfast.store.wire.ports import NEXT, none_free

log = logging.getLogger("holdfast.store.door")
REVOKE_SECONDS = 1.0
"""Between two looks whether connections rest on a secret that is no longer valid."""
GRACE_SECONDS = 10.0
"""How long such a connection may last: the other side connects anew with the new secret meanwhile."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request gives back."""

    header: Header = field(default_factory=dict)
    body: Sequence[Bytes] = ()


Serve = Callable[[FrameProtocol, Frame], Awaitable[Answer]]
"""Serves one request; it may take further frames (chunks) from the connection."""


class Listener:
    """Listens on one address until closed."""

    def __init__(
        self,
        keys: Keys,
        limits: Limits,
        serve: Serve,
        on_note: Callable[[Frame], None],
        tls: ssl.SSLContext | None = None,
        *,
        grace_seconds: float = GRACE_SECONDS,
    ) -> None:
        """Serve requests with `serve`; hand one-way notes to `on_note`."""
        self._grace = grace_seconds
        self.incoming = Bandwidth(limits.bandwidth)
        self.outgoing = Bandwidth(limits.bandwidth)
        self.counts: Counter[str] = Counter()
        self.lose: Callable[[], bool] = lambda: False
        """Whether to lose the next message, as a bad network would: drills and tests set it."""
        self._keys, self._limits, self._serve, self._on_note, self._tls = keys, limits, serve, on_note, tls
        self._strangers: dict[FrameProtocol, None] = {}
        self._trusted: set[FrameProtocol] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._notes = Bandwidth(limits.notes_per_second, burst=limits.notes_per_second)
        self._log_room = 20.0
        self._logged_at = 0.0

    async def open(self, host: str, port: int | Sequence[int]) -> int:
        """Start to listen at the port (of several, the first that is free); return it."""
        loop = asyncio.get_running_loop()
        ports = (port,) if isinstance(port, int) else port
        for one in ports:
            try:
                self._server = await loop.create_server(self._accept, host, one, ssl=self._tls, backlog=256)
                break
            except OSError as error:
                if error.errno not in NEXT or one == ports[-1]:
                    raise none_free(ports, one, host, error) from None
        assert self._server is not None
        found: int = self._server.sockets[0].getsockname()[1]
        self._tasks.add(asyncio.create_task(self._sweep()))
        self._tasks.add(asyncio.create_task(self._revoke()))
        return found

    async def close(self, timeout: float = 5.0) -> None:
        """Take no more connections, let running requests end within `timeout` seconds, then close everything."""
        if self._server is not None:
            self._server.close()
        deadline = asyncio.get_running_loop().time() + timeout
        while any(protocol.serving for protocol in self._trusted) and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)
        for protocol in (*self._strangers, *self._trusted):
            protocol.end()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def connections(self) -> int:
        """Trusted connections now."""
        return len(self._trusted)

    def _accept(self) -> FrameProtocol:
        handshake = PeerHandshake(self._keys)
        seals = SessionSeals(handshake.greeting.incoming, handshake.greeting.outgoing)

        def ready(protocol: FrameProtocol) -> None:
            self._strangers[protocol] = None
            if len(self._strangers) > self._limits.strangers:
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
                oldest.end("too many strangers at the door")
            task = asyncio.create_task(self._converse(protocol, handshake))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        return FrameProtocol(
            seals,
            self.incoming,
            self.outgoing,
            unread_bytes=self._limits.unread_bytes,
            on_ready=ready,
            on_note=self._handle_note,
        )

    async def _converse(self, protocol: FrameProtocol, handshake: PeerHandshake) -> None:
        try:
            async with asyncio.timeout(self._limits.greeting_seconds):
                await self._greet(protocol, handshake)
            self._strangers.pop(protocol, None)
            self._trusted.add(protocol)
            await self._requests(protocol)
        except ConnectionEnded:
            if protocol.fault is not None:
                self._refuse("bad frames", protocol, protocol.fault)
        except NotTrusted as refused:
            self._refuse("strangers", protocol, str(refused))
            with contextlib.suppress(ConnectionEnded):
                await protocol.send(Kind.REFUSED, {})
        except BadFrame as bad:
            self._refuse("bad frames", protocol, str(bad))
        except TimeoutError:
            self._refuse("slow greetings", protocol, "no handshake in time")
        except Exception:
            # An error of this peer: it closes this connection and serves the others.
            self.counts["faults"] += 1
            log.exception("a request failed with an unexpected error")
        finally:
            self._strangers.pop(protocol, None)
            self._trusted.discard(protocol)
            protocol.end(at_once=False)

    async def _greet(self, protocol: FrameProtocol, handshake: PeerHandshake) -> None:
        await protocol.send(Kind.CHALLENGE, handshake.challenge(await protocol.next()))
        header, seals = handshake.welcome(await protocol.next())
        if len(self._trusted) >= self._limits.connections:
            self._refuse("busy", protocol, "too many connections")
            protocol.end("too many connections")
            raise ConnectionEnded
        protocol.key, protocol.namespace = handshake.accepted, handshake.namespace
        await protocol.send(Kind.WELCOME, header)
        protocol.trust(seals)

    async def _requests(self, protocol: FrameProtocol) -> None:
        rate = Bandwidth(self._limits.requests_per_second, burst=self._limits.requests_per_second)
        clock = asyncio.get_running_loop().time
        while True:
            frame = await protocol.next()
            wait = rate.delay(1, clock())
            if wait > 0.001:
                self.counts["delayed requests"] += 1
                await asyncio.sleep(wait)
            if frame.kind is not Kind.REQUEST:
                raise BadFrame(f"{frame.kind.name} where a request was due")
            if self.lose():
                # What follows a request may belong to it: with the request the connection is lost.
                self.counts["lost"] += 1
                protocol.end("lost")
                raise ConnectionEnded
            await self._answer(protocol, frame)

    def _handle_note(self, note: Frame) -> None:
        """Pass a note on; more of them than the limit are dropped: those who send notes expect some to get lost."""
        if self._notes.delay(1, asyncio.get_running_loop().time()) > 0.5:
            self.counts["dropped notes"] += 1
            return
        if self.lose():
            self.counts["lost"] += 1
            return
        self._on_note(note)

    async def _answer(self, protocol: FrameProtocol, frame: Frame) -> None:
        protocol.serving = True
        self.counts["requests"] += 1
        try:
            answer = await self._serve(protocol, frame)
        except (ConnectionEnded, BadFrame):
            raise
        except HoldfastError as error:
            if isinstance(error, BadRequest):
                self._refuse("bad requests", protocol, str(error))
            await protocol.send(Kind.FAILURE, {"code": code_of(error), "line": one_line(str(error))})
        else:
            await protocol.send(Kind.ANSWER, answer.header, answer.body)
        finally:
            protocol.serving = False

    async def _sweep(self) -> None:
        """Close connections that have been silent for too long."""
        clock = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(min(30.0, self._limits.idle_seconds / 4))
            for protocol in list(self._trusted):
                if not protocol.serving and clock() - protocol.last_frame > self._limits.idle_seconds:
                    protocol.end()

    async def _revoke(self) -> None:
        """Close connections that rest on a secret which is no longer valid, after a while: members connect anew."""
        clock = asyncio.get_running_loop().time
        overdue: dict[FrameProtocol, float] = {}
        while True:
            await asyncio.sleep(min(REVOKE_SECONDS, self._grace / 4))
            valid = self._keys.valid()
            old = [one for one in self._trusted if one.key is not None and one.key not in valid]
            overdue = {one: overdue.get(one, clock() + self._grace) for one in old}
            for protocol, until in overdue.items():
                if clock() >= until:
                    self.counts["revoked"] += 1
                    protocol.end()

    def _refuse(self, what: str, protocol: FrameProtocol, why: str) -> None:
        """Count, and log a few lines per second at most: a flood of strangers must not fill the disk."""
        self.counts[what] += 1
        now = asyncio.get_running_loop().time()
        self._log_room = min(20.0, self._log_room + (now - self._logged_at) * 5)
        self._logged_at = now
        if self._log_room >= 1:
            self._log_room -= 1
            log.warning("refused a connection from %s: %s", protocol.remote, one_line(why, 200))
