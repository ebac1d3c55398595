"""One fragment to one peer, in a thread of its own. Runs in clients and in repairing peers; loads no code."""

from __future__ import annotations

import queue
import threading
import time

from holdfast.erasure.fragment import FragmentHeader
from holdfast.errors import HoldfastError
from holdfast.store.wire.address import Address
from holdfast.store.wire.connection import Connection, ConnectionPool
from holdfast.store.wire.failures import Unreachable
from holdfast.store.wire.messages import Bytes, Kind

QUEUE_CHUNKS = 2


class FragmentSender:
    """A thread that sends one fragment to one peer: `feed` it pieces, then None, then ask whether it `finished`."""

    def __init__(
        self,
        pool: ConnectionPool,
        header: FragmentHeader,
        address: str,
        acknowledge_seconds: float,
        *,
        repairing: bool = False,
    ) -> None:
        """Start to send; `repairing`: the fragment was acknowledged before, so fenced epochs are accepted."""
        self.header = header
        self.address = address
        self.error: HoldfastError | None = None
        self.progress = time.monotonic()
        self.busy_seconds = 0.0
        """Spent in sending, and in waiting for the peer's acknowledgement."""
        self.sent_bytes = 0
        self._pool = pool
        self._seconds = acknowledge_seconds
        self._request = {"do": "put", "repairing": repairing}
        self._chunks: queue.Queue[list[Bytes] | None] = queue.Queue(QUEUE_CHUNKS)
        self._connection: Connection | None = None
        self._thread = threading.Thread(target=self._run, name=f"holdfast-save-{header.index}", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # no thread is left: the fragment is not stored, and the other senders go on
            self.error = HoldfastError(f"sending failed: {error}", where=address)

    def feed(self, pieces: list[Bytes] | None, stall_seconds: float) -> None:
        """Pass on the next pieces, None at the end; a peer that makes no progress is given up."""
        while self.error is None:
            try:
                self._chunks.put(pieces, timeout=0.2)
                return
            except queue.Full:
                if time.monotonic() - self.progress > stall_seconds:
                    self.give_up(Unreachable(f"no progress for {stall_seconds:g} s", where=self.address))

    def finished(self, deadline: float) -> bool:
        """Wait until the peer has stored the fragment or failed; False when it did neither in time."""
        if self._thread.ident is None:  # it was never started
            return False
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            self.give_up(Unreachable("the peer did not acknowledge the fragment in time", where=self.address))
        return self.error is None

    def give_up(self, error: HoldfastError) -> None:
        """Stop sending, from any thread."""
        self.error = error
        connection = self._connection
        if connection is not None:
            connection.close()

    def _run(self) -> None:
        try:
            self._connection = self._pool.take(Address.parse(self.address))
            try:
                self._send(self._connection)
            finally:
                self._pool.give_back(self._connection)
        except HoldfastError as error:
            self.error = self.error or error
        except BaseException as error:
            # A thread that ends without an error has stored the fragment: this one has not.
            self.error = self.error or HoldfastError(f"sending failed: {type(error).__name__}: {error}")

    def _send(self, connection: Connection) -> None:
        try:
            connection.send(Kind.REQUEST, self._request, [self.header.pack()])
            # The peer accepts or refuses the fragment before its contents are sent.
            taken = connection.answer(self._seconds)
        except Unreachable:
            if not connection.reused:
                raise
            connection = self._connection = self._pool.take(connection.address, fresh=True)
            connection.send(Kind.REQUEST, self._request, [self.header.pack()])
            taken = connection.answer(self._seconds)
        here = bool(taken.header.get("here"))
        while self.error is None:
            try:
                pieces = self._chunks.get(timeout=0.2)
            except queue.Empty:
                continue
            if pieces is None:
                break
            if not here:
                before = time.monotonic()
                connection.send(Kind.CHUNK, {}, pieces)
                self.busy_seconds += time.monotonic() - before
                self.sent_bytes += sum(len(piece) for piece in pieces)
            self.progress = time.monotonic()
        if self.error is None and not here:
            before = time.monotonic()
            connection.send(Kind.CHUNK, {"end": True})
            connection.answer(self._seconds)
            self.busy_seconds += time.monotonic() - before
