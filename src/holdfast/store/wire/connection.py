"""A client's connection to one peer: blocking, one request at a time, usable from any thread that owns it.

Runs wherever a client does: Spark's Python workers, the driver, the command line, and inside peers when they repair or
restore. Plain sockets, because a worker has no event loop and must not need one; many peers at once are many threads,
which sleep in the kernel and hold no lock while bytes move.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.store.wire.address import Address
from holdfast.store.wire.bandwidth import Bandwidth
from holdfast.store.wire.failures import Busy, NotTrusted, Unreachable, raised_again
from holdfast.store.wire.handshake import ClientHandshake, ClusterKey, Keys, SessionSeals
from holdfast.store.wire.messages import PREFIX, BadFrame, Bytes, Frame, Kind, pack, read_prefix, unpack
from holdfast.store.wire.sockets import MOST_BUFFERS, reason
from holdfast.store.wire.tls import Tls, server_name

CONNECT_SECONDS = 3.0
ANSWER_SECONDS = 30.0
TLS_REMEDY = "check the certificates of both sides, their authority and their names"
RETRIES = (0.05, 0.2, 0.6)
"""Seconds to wait, about, before trying again at a door that turned us away."""


class SharedBandwidth:
    """One limit for all connections of a client, each direction on its own; those who exceed it sleep. Thread-safe."""

    def __init__(self, rate: float | None) -> None:
        """Limit to `rate` bytes per second; None: no limit."""
        self._lock = threading.Lock()
        self._incoming, self._outgoing = Bandwidth(rate), Bandwidth(rate)

    def received(self, amount: int) -> None:
        """Account for received bytes."""
        self._spend(self._incoming, amount)

    def sent(self, amount: int) -> None:
        """Account for sent bytes."""
        self._spend(self._outgoing, amount)

    def _spend(self, bandwidth: Bandwidth, amount: int) -> None:
        with self._lock:
            wait = bandwidth.delay(amount, time.monotonic())
        if wait > 0:
            time.sleep(wait)


class Connection:
    """An authenticated connection. After any error it is closed and must be thrown away."""

    def __init__(
        self,
        address: Address,
        key: ClusterKey,
        *,
        tls: ssl.SSLContext | None = None,
        connect_seconds: float = CONNECT_SECONDS,
        answer_seconds: float = ANSWER_SECONDS,
        bandwidth: SharedBandwidth | None = None,
    ) -> None:
        """Connect and shake hands."""
        self._bandwidth = bandwidth
        self.address = address
        self.closed = False
        self._reset = False
        self.reused = False
        self.valid_keys: tuple[ClusterKey, ...] = (key,)
        """The keys that were valid when it was made."""
        self.answer_seconds = answer_seconds
        self.bytes_out = self.bytes_in = 0
        try:
            self._socket: socket.socket = socket.create_connection((address.host, address.port), connect_seconds)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                self._socket = tls.wrap_socket(self._socket, server_hostname=server_name(tls, address.host))
        except ssl.SSLError as error:
            self.close()
            raise NotTrusted(reason(error), where=str(address), remedy=TLS_REMEDY) from None
        except (OSError, UnicodeError) as error:  # UnicodeError: what cannot be the name of a host
            raise Unreachable(f"cannot connect: {reason(error)}", where=str(address)) from None
        handshake = ClientHandshake(key)
        self._seals = SessionSeals(handshake.greeting.incoming, handshake.greeting.outgoing)
        self._trusted = False
        try:
            self.send(Kind.HELLO, handshake.hello())
            self.send(Kind.PROOF, handshake.prove(self.receive(connect_seconds)))
            self._seals = handshake.finish(self.receive(connect_seconds))
        except Unreachable as error:
            if self._reset:
                # It listens, but has too many at the door at this moment (or is just ending): worth another try.
                raise Busy(
                    "the peer refused the connection: it has too many", where=str(address), remedy="try again later"
                ) from error
            raise
        except BaseException:
            self.close()
            raise
        self._trusted = True

    def request(self, operation: str, header: Mapping[str, Any], body: Sequence[Bytes] = ()) -> Frame:
        """Ask one thing and return its answer; a failure at the peer is raised here as what it was there."""
        self.send(Kind.REQUEST, {"do": operation, **header}, body)
        return self.answer()

    def answer(self, seconds: float | None = None) -> Frame:
        """Wait for the answer to what was sent."""
        frame = self.receive(self.answer_seconds if seconds is None else seconds)
        if frame.kind is Kind.FAILURE:
            code, line = frame.header.get("code"), frame.header.get("line")
            raise raised_again(str(code), str(line), where=str(self.address))
        if frame.kind is not Kind.ANSWER:
            self.close()
            raise Unreachable(f"received a {frame.kind.name} frame instead of a response", where=str(self.address))
        return frame

    def send(self, kind: Kind, header: Mapping[str, Any], body: Sequence[Bytes] = ()) -> None:
        """Send one frame, waiting no longer than the time limit for room."""
        parts = pack(kind, header, body, self._seals.outgoing)
        try:
            self._socket.settimeout(self.answer_seconds)
            self._send_all(parts)
            if self._bandwidth is not None:
                self._bandwidth.sent(sum(map(len, parts)))
        except OSError as error:
            self._reset = isinstance(error, ConnectionError)
            refusal = None if self._trusted else self._refusal(error)
            self.close()
            if refusal is not None:
                raise NotTrusted(reason(refusal), where=str(self.address), remedy=TLS_REMEDY) from None
            raise Unreachable(f"connection lost while sending: {reason(error)}", where=str(self.address)) from None

    def receive(self, seconds: float) -> Frame:
        """Receive one frame; silence beyond `seconds` ends the connection."""
        try:
            self._socket.settimeout(seconds)
            head = self._exactly(PREFIX.size)
            prefix = read_prefix(head, trusted=self._trusted)
            return unpack(prefix, head, self._exactly(prefix.rest), self._seals.incoming)
        except (OSError, BadFrame) as error:
            self._reset = isinstance(error, ConnectionError)
            self.close()
            if isinstance(error, ssl.SSLError) and not self._trusted:
                raise NotTrusted(reason(error), where=str(self.address), remedy=TLS_REMEDY) from None
            raise Unreachable(
                f"connection lost while waiting for the response: {reason(error)}", where=str(self.address)
            ) from None

    def close(self) -> None:
        """Close the socket; doing it twice, or from another thread, is fine and wakes a thread that waits on it."""
        self.closed = True
        if not hasattr(self, "_socket"):
            return
        with contextlib.suppress(OSError):  # Already gone at the other end: closing is all that is left to do.
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def abandon(self) -> None:
        """Let go of a socket that a fork copied: the parent goes on using it, so it must not be shut down."""
        self.closed = True
        os.close(self._socket.detach())

    def hand_over(self) -> tuple[socket.socket, SessionSeals]:
        """Give the socket and the session away; this connection is over, the session goes on."""
        self.closed = True
        return self._socket, self._seals

    def _refusal(self, error: OSError) -> ssl.SSLError | None:
        """Return why the other side ended TLS, where a first frame could not be sent.

        With TLS 1.3 the side that connects is done before its certificate is judged. A refusal that is faster than the
        first frame makes sending fail, and stands in what has been received.
        """
        if not isinstance(self._socket, ssl.SSLSocket):
            return None
        try:
            self._socket.settimeout(1.0)
            self._socket.recv(1)
        except ssl.SSLError as refusal:
            return refusal
        except OSError:
            pass  # Nothing stands there: what sending found is all there is.
        return error if isinstance(error, ssl.SSLError) else None

    def _send_all(self, parts: list[Bytes]) -> None:
        size = sum(map(len, parts))
        self.bytes_out += size
        if size < 1 << 14:
            self._socket.sendall(b"".join(parts))
            return
        if isinstance(self._socket, ssl.SSLSocket):
            for part in parts:
                self._socket.sendall(part)
            return
        views = [memoryview(part) for part in parts if len(part)]
        while views:
            sent = self._socket.sendmsg(views[:MOST_BUFFERS])
            while views and sent >= len(views[0]):
                sent -= len(views.pop(0))
            if sent:
                views[0] = views[0][sent:]

    def _exactly(self, size: int) -> bytearray:
        buffer = bytearray(size)
        view, filled = memoryview(buffer), 0
        while filled < size:
            count = self._socket.recv_into(view[filled:])
            if count == 0:
                raise ConnectionResetError("closed by the peer")
            filled += count
            if self._bandwidth is not None:
                self._bandwidth.received(count)
        self.bytes_in += size
        return buffer


class ConnectionPool:
    """Idle connections by address, for one process. Safe in threads; a forked child starts with an empty one."""

    def __init__(
        self,
        keys: Keys,
        tls: Tls | None = None,
        *,
        connect_seconds: float = CONNECT_SECONDS,
        answer_seconds: float = ANSWER_SECONDS,
        bandwidth: float | None = None,
        idle: int = 4,
    ) -> None:
        """Keep at most `idle` unused connections to a peer; all together keep within `bandwidth` bytes per second."""
        self._bandwidth = SharedBandwidth(bandwidth) if bandwidth is not None else None
        self._keys = keys
        self._tls = tls.context(serving=False) if tls is not None else None
        self._connect_seconds = connect_seconds
        self._answer_seconds = answer_seconds
        self._most_idle = idle
        self._start_empty()

    def _start_empty(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._closed = False
        self._idle: dict[Address, list[Connection]] = {}
        self.bytes_out = self.bytes_in = 0

    def take(self, address: Address, *, fresh: bool = False) -> Connection:
        """Return a connection for exclusive use; `fresh` skips idle ones."""
        if self._process != os.getpid():
            inherited = self._idle
            self._start_empty()
            for connections in inherited.values():
                for connection in connections:
                    connection.abandon()
        idle = None if fresh else self._idle_one(address)
        if idle is not None:
            return idle
        for wait in RETRIES:
            try:
                return self._connected(address)
            except Busy:
                time.sleep(wait * (0.5 + random.random()))
        return self._connected(address)

    def _idle_one(self, address: Address) -> Connection | None:
        valid, stale = self._keys.valid(), list[Connection]()
        with self._lock:
            idle = self._idle.get(address, [])
            stale += [one for one in idle if one.valid_keys != valid]  # the secret is being replaced
            idle[:] = [one for one in idle if one.valid_keys == valid]
            found = idle.pop() if idle else None
        for one in stale:
            one.close()
        if found is not None:
            found.reused = True
        return found

    def _connected(self, address: Address) -> Connection:
        valid = self._keys.valid()
        for number, key in enumerate(valid, 1):
            try:
                made = Connection(
                    address,
                    key,
                    tls=self._tls,
                    connect_seconds=self._connect_seconds,
                    answer_seconds=self._answer_seconds,
                    bandwidth=self._bandwidth,
                )
            except NotTrusted:
                if number == len(valid):
                    raise
            else:
                made.valid_keys = valid
                return made
        raise AssertionError("unreachable")

    def give_back(self, connection: Connection) -> None:
        """Keep a connection for the next use, if it is sound and there is room."""
        with self._lock:
            self.bytes_out += connection.bytes_out
            self.bytes_in += connection.bytes_in
            connection.bytes_out = connection.bytes_in = 0
            idle = self._idle.setdefault(connection.address, [])
            if not (connection.closed or self._closed) and len(idle) < self._most_idle:
                idle.append(connection)
                return
        connection.close()

    def request(self, address: Address, operation: str, header: Mapping[str, Any], body: Sequence[Bytes] = ()) -> Frame:
        """Send one request to a peer. An idle connection that turns out closed is replaced once: peers restart."""
        connection = self.take(address)
        try:
            try:
                return connection.request(operation, header, body)
            except Unreachable:
                if not connection.reused:
                    raise
                connection = self.take(address, fresh=True)
                return connection.request(operation, header, body)
        finally:
            self.give_back(connection)

    def close(self) -> None:
        """Close what is idle now, and what is still in use when it is given back."""
        with self._lock:
            self._closed = True
            connections = [one for idle in self._idle.values() for one in idle]
            self._idle.clear()
        for connection in connections:
            connection.close()
