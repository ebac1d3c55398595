"""One side of a link after its beginning (`link`): messages out from any thread, messages in by a thread of its own.

Runs in workers, in the driver and wherever else two processes of a run talk without an event loop. A message is

    a NOTE frame: the header, the body                                 where both fit into one frame; otherwise
    a CHUNK frame with the lengths of header text and body, CHUNK frames with pieces of them, the last one a NOTE frame

A reader thread receives and calls `on_message` in order, then `on_end` once; a writer thread seals and sends what is
queued. Whatever arrives that does not belong there ends this link and no other.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from holdfast.errors import one_line
from holdfast.store.wire.handshake import SessionSeals
from holdfast.store.wire.messages import (
    LARGEST_BODY,
    LARGEST_HEADER,
    PREFIX,
    SEAL_BYTES,
    BadFrame,
    Bytes,
    Header,
    Kind,
    Prefix,
    encode_header,
    pack,
    pack_encoded,
    read_header,
    read_prefix,
    verify,
)
from holdfast.store.wire.sockets import FrameSocket, reason

log = logging.getLogger("holdfast.store.links")

LARGEST_MESSAGE = 1 << 30
"""Bytes of a message's header and body together, unless a link is made with another limit."""
LINGER_SECONDS = 1.0
"""How long a link that is closed goes on trying to send what is queued."""
_CHUNK = 1 << 20
"""A long message's frames: one is sealed while the one before it is on its way."""
_SEND_AT = 256 << 10
"""So many bytes are given to the kernel at once, at least, while more is queued."""

OnMessage: TypeAlias = "Callable[[Link, Header, memoryview], None]"
OnEnd: TypeAlias = "Callable[[Link, str], None]"


class _Message(NamedTuple):
    text: bytes
    body: list[memoryview]
    size: int


class Link:
    """One side of a link; `dial` and `LinkListener` make them. Every method may be called from any thread."""

    def __init__(
        self, connected: FrameSocket, seals: SessionSeals, name: str, hello: Header, largest_message: int
    ) -> None:
        self.name = name
        """The other side's address, for errors."""
        self.hello = hello
        """What the other side introduced itself with."""
        self._connected, self._seals, self._largest = connected, seals, largest_message
        self._changed = threading.Condition()
        self._queue: deque[_Message] = deque()
        self._queued_bytes = 0
        self._closing = self._ended = False
        self._fault: str | None = None
        self._all_sent, self._all_read = threading.Event(), threading.Event()
        self._writer: threading.Thread | None = None

    def __repr__(self) -> str:
        return f"Link({self.name})"

    def send(self, header: Mapping[str, Any], body: Sequence[Bytes] = ()) -> None:
        """Queue a message; once the link has ended, drop it. The body is sent as it is then: do not change it."""
        text = encode_header(header)
        views = [memoryview(part).cast("B") for part in body]
        size = len(text) + sum(map(len, views))
        if size > self._largest:
            raise BadFrame(f"will not send a message this large: {size} bytes; the limit is {self._largest}")
        with self._changed:
            if not self.ended:
                self._queue.append(_Message(text, views, size))
                self._queued_bytes += size
                self._changed.notify()

    @property
    def queued_bytes(self) -> int:
        """Bytes of messages that were not yet given to the kernel: who sends more than is taken sees it here."""
        return self._queued_bytes

    @property
    def received_bytes(self) -> int:
        """Bytes that have come, also of a message that has not come whole: a link that brings some lives."""
        return self._connected.received_bytes

    @property
    def ended(self) -> bool:
        """Whether the link is over, or was closed here."""
        return self._ended or self._closing

    def close(self) -> None:
        """End the link: what is queued is still sent, for at most a second; nothing is handed to `on_message` any more.

        It returns when that is done; `on_end` is called by the link's own thread, soon after.
        """
        with self._changed:
            self._closing = True
            self._changed.notify()
            begun = self._writer is not None
        if begun and not self._all_sent.wait(LINGER_SECONDS):
            self._connected.shut_down()

    # What `dial` and the listener call, once, one after the other.

    def start(self, first: list[Bytes]) -> None:
        """Start to send: first these buffers, then what is queued."""
        with self._changed:
            writer = threading.Thread(target=self._write, args=(first,), name=f"link {self.name} sends", daemon=True)
            writer.start()
            self._writer = writer

    def abandon(self) -> None:
        """End a link whose threads could not all be started; `on_end` is not called."""
        with self._changed:
            self._ended = True
            self._drop_queued()
            self._changed.notify()
        self._all_read.set()
        self._connected.shut_down()
        if self._writer is not None:
            self._writer.join()
        self._connected.close()

    def receive_until_end(self, on_message: OnMessage, on_end: OnEnd) -> None:
        """Receive, in the calling thread, until the link ends."""
        assert self._writer is not None
        why = self._read(on_message)
        with self._changed:
            self._ended = True
            self._drop_queued()
            self._changed.notify()
        self._all_read.set()
        self._connected.shut_down()
        self._writer.join()
        self._connected.close()
        try:
            on_end(self, "closed" if self._closing else self._fault or why)
        except Exception:
            log.exception("the end of a link was not handled")

    # Receiving.

    def _read(self, on_message: OnMessage) -> str:
        while True:
            try:
                message = self._receive()
            except BadFrame as bad:
                return str(bad)
            except OSError as error:
                return f"connection lost: {reason(error)}"
            except Exception as error:  # no memory for a message, for one: a link that is not read must not look alive
                log.exception("a message was not received")
                return one_line(f"a message was not received: {type(error).__name__}: {error}")
            if message is None:
                return "closed by the other side"
            if self._closing:
                continue
            try:
                on_message(self, *message)
            except Exception as error:
                log.exception("a message was not handled")
                return one_line(f"a message was not handled: {type(error).__name__}: {error}")
            del message  # What was received is not held on to while the next one is waited for.

    def _receive(self) -> tuple[Header, memoryview] | None:
        head = bytearray(PREFIX.size)
        if not self._connected.receive(memoryview(head)):
            return None
        prefix = read_prefix(head, trusted=True)
        self._check_size(prefix.header_bytes + prefix.body_bytes)
        text, body = bytearray(prefix.header_bytes), bytearray(prefix.body_bytes)
        self._receive_rest(head, text, memoryview(body))
        if prefix.kind is Kind.CHUNK and not body:
            return self._receive_long(read_header(text))
        if prefix.kind is not Kind.NOTE:
            raise BadFrame(f"{prefix.kind.name} where a message was due")
        return read_header(text), memoryview(body).toreadonly()

    def _receive_long(self, announced: Header) -> tuple[Header, memoryview]:
        lengths = announced.get("header"), announced.get("body")
        if not all(type(length) is int and length >= 0 for length in lengths) or not any(lengths):
            raise BadFrame("a long message without its lengths")
        left = sum(lengths)  # type: ignore[arg-type]
        self._check_size(left)
        text, body = map(bytearray, lengths)  # type: ignore[arg-type]
        for target in (memoryview(text), memoryview(body)):
            while len(target):
                head = bytearray(PREFIX.size)
                self._connected.receive_rest(memoryview(head))
                piece = read_prefix(head, trusted=True)
                left -= piece.body_bytes
                if not _continues(piece, len(target), last=left == 0):
                    raise BadFrame(f"{piece.kind.name} of {piece.rest} bytes where a piece of a message was due")
                self._receive_rest(head, b"", target[: piece.body_bytes])
                target = target[piece.body_bytes :]  # noqa: PLW2901
        return read_header(text), memoryview(body).toreadonly()

    def _check_size(self, size: int) -> None:
        if size > self._largest:
            raise BadFrame(f"a message too large: {size} bytes; the limit is {self._largest}")

    def _receive_rest(self, head: Bytes, text: bytearray | bytes, body: memoryview) -> None:
        seal = bytearray(SEAL_BYTES)
        self._connected.receive_rest(memoryview(text), body, memoryview(seal))
        verify(self._seals.incoming, seal, head, text, body)

    # Sending.

    def _write(self, first: list[Bytes]) -> None:
        try:
            self._connected.send(first)
            while messages := self._next():
                self._send(messages)
                with self._changed:
                    self._queued_bytes = max(0, self._queued_bytes - sum(message.size for message in messages))
                del messages
        except Exception as error:
            if not isinstance(error, OSError):
                log.exception("a message was not sent")
            with self._changed:
                if not self._ended:
                    self._fault = f"connection lost while sending: {reason(error)}"
                self._ended = True
                self._drop_queued()
        else:
            # The other side reads to the end, then ends too: closing at once could take from it what is on its way.
            self._connected.end_sending()
            self._all_sent.set()
            self._all_read.wait(LINGER_SECONDS)
        self._all_sent.set()
        self._connected.shut_down()

    def _next(self) -> list[_Message]:
        """Wait for messages; take as many as go to the kernel at once. None: the link is over."""
        with self._changed:
            while not self._queue and not self.ended:
                self._changed.wait()
            taken: list[_Message] = []
            size = 0
            while self._queue and size < _SEND_AT:
                taken.append(self._queue.popleft())
                size += taken[-1].size
            return taken

    def _send(self, messages: Sequence[_Message]) -> None:
        parts: list[Bytes] = []
        size = 0
        for message in messages:
            for frame in self._frames(message):
                parts += frame
                size += sum(map(len, frame))
                if size >= _SEND_AT:
                    self._connected.send(parts)
                    parts, size = [], 0
        self._connected.send(parts)

    def _frames(self, message: _Message) -> Iterator[list[Bytes]]:
        text, body, size = message
        seals = self._seals.outgoing
        if len(text) <= LARGEST_HEADER and size - len(text) <= LARGEST_BODY:
            yield pack_encoded(Kind.NOTE, text, body, seals)
            return
        yield pack(Kind.CHUNK, {"header": len(text), "body": size - len(text)}, [], seals)
        for piece in (memoryview(text), *body):
            for start in range(0, len(piece), _CHUNK):
                part = piece[start : start + _CHUNK]
                size -= len(part)
                yield pack_encoded(Kind.CHUNK if size else Kind.NOTE, b"", [part], seals)

    def _drop_queued(self) -> None:
        self._queue.clear()
        self._queued_bytes = 0


def _continues(piece: Prefix, room: int, *, last: bool) -> bool:
    """Whether a frame may be the next piece of a long message."""
    return piece.kind is (Kind.NOTE if last else Kind.CHUNK) and not piece.header_bytes and 0 < piece.body_bytes <= room
