"""The exchange against a copy in memory: blocks encoded, sent over an authenticated link on loopback, decoded.

Sides, for the same rows, all in CPU seconds of this process (both ends of a connection are in it):

- copy: the bytes copied once in memory;
- encoding: blocks to bytes and back, without a connection (decoding maps, it copies nothing);
- socket: the bytes through a plain TCP connection on loopback;
- link: what nodes do: encode, seal, send, receive, verify, decode.
"""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.ids import BatchId, Epoch, OperatorId, PartitionId
from holdfast.runtime.blocks import Block, Edge, Header, decode_blocks, encode_blocks
from holdfast.store.wire.handshake import key_from_random
from holdfast.store.wire.link import Link, LinkListener, dial
from holdfast_lab.benches.limits.sides import Measured, take_turns

WAIT_SECONDS = 60.0


def blocks_of(rows: pa.Table) -> list[Block]:
    """Return what one batch of a partition sends to one consumer."""
    sender, receiver = PartitionId(OperatorId("a"), 0), PartitionId(OperatorId("b"), 0)
    head = Header(Edge(sender.operator, receiver.operator), sender, receiver, BatchId(0), Epoch(1), 0)
    return [Block(head, rows)]


class _Count:
    """Waits until so many have come."""

    def __init__(self) -> None:
        self._many, self._changed = 0, threading.Condition()

    def add(self, count: int) -> None:
        with self._changed:
            self._many += count
            self._changed.notify_all()

    def until(self, count: int) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: self._many >= count, WAIT_SECONDS):
                raise TimeoutError("not everything came")
            self._many -= count


@contextmanager
def _link() -> Iterator[Callable[[list[Block], int], None]]:
    """Give what sends blocks so many times over a link, and waits until they are decoded at the other end."""
    came = _Count()

    def message(link: Link, header: Any, body: Any) -> None:
        decode_blocks(pa.py_buffer(body))
        came.add(1)

    key = key_from_random(secrets.token_bytes(32))
    listener = LinkListener("127.0.0.1", 0, key, lambda link: (message, lambda link, why: None))
    link = dial(listener.address, key, {"node": "a"}, lambda link, header, body: None, lambda link, why: None)

    def send(blocks: list[Block], count: int) -> None:
        for _ in range(count):
            link.send({"do": "blocks"}, [encode_blocks(blocks)])
        came.until(count)

    try:
        yield send
    finally:
        link.close()
        listener.close()


@contextmanager
def _socket() -> Iterator[Callable[[bytes, int], None]]:
    """Give what sends bytes so many times over a plain connection, and waits until they are at the other end."""
    came = _Count()
    listening = socket.create_server(("127.0.0.1", 0))
    out = socket.create_connection(listening.getsockname())
    into, _ = listening.accept()
    listening.close()

    def receive() -> None:
        room = bytearray(1 << 20)
        with suppress(OSError):
            while count := into.recv_into(room):
                came.add(count)

    thread = threading.Thread(target=receive, daemon=True)
    thread.start()

    def send(data: bytes, count: int) -> None:
        for _ in range(count):
            out.sendall(data)
        came.until(count * len(data))

    try:
        yield send
    finally:
        out.close()
        thread.join()
        into.close()


def measure_exchange(kilobytes: int, total_mb: int, turns: int) -> Measured:
    """Measure messages of so many kilobytes of rows, so many megabytes of them in a turn."""
    draw = np.random.default_rng(1)
    many = max(1, kilobytes * 1000 // 16)
    rows = pa.table({"key": draw.integers(0, 1000, many), "n": draw.random(many)})
    blocks, data = blocks_of(rows), bytes(encode_blocks(blocks_of(rows)))
    count = max(4, total_mb * 1_000_000 // len(data))
    source, target = np.frombuffer(data, np.uint8), np.empty(len(data), np.uint8)

    def timed(work: Callable[[], object]) -> float:
        began = time.process_time()
        work()
        return (time.process_time() - began) / count

    def copy() -> None:
        for _ in range(count):
            np.copyto(target, source)

    def encoding() -> None:
        for _ in range(count):
            decode_blocks(pa.py_buffer(encode_blocks(blocks)))

    with _link() as by_link, _socket() as by_socket:
        sides: dict[str, Callable[[], float]] = {
            "copy": lambda: timed(copy),
            "encoding": lambda: timed(encoding),
            "socket": lambda: timed(lambda: by_socket(data, count)),
            "link": lambda: timed(lambda: by_link(blocks, count)),
        }
        found = take_turns(sides, turns)
    return Measured("exchange", f"blocks of {kilobytes:,} kB", "copy", "message", found, rows=many, size=len(data))
