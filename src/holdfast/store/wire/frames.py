"""Frames over asyncio: a buffered protocol that fills a frame's own buffer and hands it on whole. Runs in peers.

The socket writes straight into the frame's buffer; nothing is joined or copied on the way (decision record 0015 has
the figures). Reading stops while the reader is behind, while the bandwidth limit requires it, and after any fault.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.store.wire.bandwidth import Bandwidth
from holdfast.store.wire.handshake import ClusterKey, SessionSeals
from holdfast.store.wire.messages import PREFIX, BadFrame, Bytes, Frame, Kind, Prefix, pack, read_prefix, unpack


class ConnectionEnded(Exception):
    """The other side has gone, or was sent away."""


class FrameProtocol(asyncio.BufferedProtocol):
    """One connection as a queue of verified frames in, and frames out."""

    def __init__(
        self,
        seals: SessionSeals,
        incoming: Bandwidth,
        outgoing: Bandwidth,
        *,
        unread_bytes: int,
        on_ready: Callable[[FrameProtocol], None] | None = None,
        on_end: Callable[[], None] | None = None,
        on_note: Callable[[Frame], None] | None = None,
    ) -> None:
        """Start with the greeting's seals; `trust` changes them for the session's."""
        self.seals = seals
        self.trusted = False
        self.remote = "?"
        self.fault: str | None = None
        self.serving = False
        self.key: ClusterKey | None = None
        """The key by which the two sides trust each other."""
        self.namespace: str | None = None
        """The one namespace that the other side may use; None: everything."""
        self.last_frame = asyncio.get_running_loop().time()
        self._loop = asyncio.get_running_loop()
        self._in, self._out = incoming, outgoing
        self._unread_limit = unread_bytes
        self._on_ready = on_ready
        self._on_end = on_end
        self._on_note = on_note
        self._head = memoryview(bytearray(PREFIX.size))
        self._prefix: Prefix | None = None
        self._rest = memoryview(b"")
        self._filled = 0
        self._frames: deque[Frame] = deque()
        self._unread = 0
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._ended = False
        self._held_back = False
        self._transport: asyncio.Transport | None = None

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; wake the coroutine that waits for the connection."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        name = transport.get_extra_info("peername")
        self.remote = f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "?"
        transport.set_write_buffer_limits(high=1 << 20)
        if self._on_ready is not None:
            self._on_ready(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go: into the prefix or into the rest of the frame."""
        return self._head[self._filled :] if self._prefix is None else self._rest[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Take what arrived; a fault ends the connection."""
        wait = self._in.delay(nbytes, self._loop.time())
        if wait > 0.001:
            self._hold_back(wait)
        self._filled += nbytes
        try:
            if self._prefix is None and self._filled == PREFIX.size:
                self._prefix = read_prefix(self._head, trusted=self.trusted)
                self._rest = memoryview(bytearray(self._prefix.rest))
                self._filled = 0
            if self._prefix is not None and self._filled == self._prefix.rest:
                frame = unpack(self._prefix, self._head, self._rest, self.seals.incoming)
                self._prefix, self._rest, self._filled = None, memoryview(b""), 0
                self._keep(frame)
        except BadFrame as bad:
            self.end(str(bad))

    def eof_received(self) -> bool:
        """Close when the other side closes."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Wake all waiting coroutines."""
        self._ended = True
        self._arrived.set()
        self._room.set()
        if self._on_end is not None:
            self._on_end()

    def pause_writing(self) -> None:
        """Make senders wait: the other side reads slowly."""
        self._room.clear()

    def resume_writing(self) -> None:
        """Let senders go on."""
        self._room.set()

    # What peers call.

    @property
    def ended(self) -> bool:
        """Whether the connection is over; frames that had arrived may still be read."""
        return self._ended

    def trust(self, seals: SessionSeals) -> None:
        """Go from greeting to session; nothing may be waiting that was sealed as a greeting."""
        if self._frames or self._filled or self._prefix is not None:
            raise BadFrame("frames sent before the handshake was over")
        self.seals = seals
        self.trusted = True

    async def next(self) -> Frame:
        """Return the next frame; `ConnectionEnded` when no more will come."""
        while not self._frames:
            if self._ended:
                raise ConnectionEnded(self.fault or "closed")
            self._arrived.clear()
            await self._arrived.wait()
        frame = self._frames.popleft()
        self._unread -= len(frame.body)
        self._read_on()
        return frame

    async def send(self, kind: Kind, header: Mapping[str, Any], body: Sequence[Bytes] = ()) -> None:
        """Send a frame when there is room and the bandwidth allows."""
        await self._room.wait()
        wait = self._out.delay(self._write(kind, header, body), self._loop.time())
        if wait > 0.001:
            await asyncio.sleep(wait)

    def send_note(self, body: Bytes) -> bool:
        """Send a note at once, or not at all when the other side does not keep up; False when it was dropped."""
        if not self._room.is_set():
            return False
        self._out.delay(self._write(Kind.NOTE, {}, [body]), self._loop.time())
        return True

    def _write(self, kind: Kind, header: Mapping[str, Any], body: Sequence[Bytes]) -> int:
        if self._ended or self._transport is None:
            raise ConnectionEnded(self.fault or "closed")
        parts = pack(kind, header, body, self.seals.outgoing)
        size = sum(map(len, parts))
        if size < 1 << 14:
            self._transport.write(b"".join(parts))
        else:
            for part in parts:
                self._transport.write(part)
        return size

    def end(self, fault: str | None = None, *, at_once: bool = True) -> None:
        """Close the connection; what was received but not read is dropped when it ends by a fault."""
        if fault is not None and self.fault is None:
            self.fault = fault
            self._frames.clear()
        self._ended = True
        self._arrived.set()
        self._room.set()
        if self._transport is not None:
            if at_once and fault is not None:
                self._transport.abort()
            else:
                self._transport.close()

    def _keep(self, frame: Frame) -> None:
        self.last_frame = self._loop.time()
        if frame.kind is Kind.NOTE and self._on_note is not None:
            # Notes are one-way messages: they are handled here, without waking the coroutine of the requests.
            if self.namespace is not None:
                raise BadFrame(f"a message of the ring from a client of namespace {self.namespace!r}")
            self._on_note(frame)
            return
        self._frames.append(frame)
        self._unread += len(frame.body)
        if self._unread > self._unread_limit and self._transport is not None:
            self._transport.pause_reading()
        self._arrived.set()

    def _hold_back(self, seconds: float) -> None:
        if self._held_back or self._transport is None:
            return
        self._held_back = True
        self._transport.pause_reading()
        self._loop.call_later(seconds, self._let_go)

    def _let_go(self) -> None:
        self._held_back = False
        self._read_on()

    def _read_on(self) -> None:
        if self._held_back or self._ended or self._unread > self._unread_limit or self._transport is None:
            return
        self._transport.resume_reading()
