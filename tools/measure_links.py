"""Measure links (decision record 0099) on loopback, beside an Arrow Flight stream of the same messages.

The receiver is a process of its own; both send and receive one stream of messages. Printed are medians of several
rounds, all kinds in turn: MB/s, messages per second, CPU seconds per GB of each side; for links, the round trip of a
message of 100 bytes. A link seals and verifies every message, which Flight has from TLS only; both are also measured
without. On a busy machine only the CPU seconds mean something. Run: `python tools/measure_links.py` (needs openssl).
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.flight

from holdfast.store.wire.address import Address
from holdfast.store.wire.handshake import key_from_random
from holdfast.store.wire.link import Link, LinkListener, dial
from holdfast.store.wire.messages import SEAL_BYTES, Header, Seals

SECRET = b"a secret for measurements on loopback"
MOST_QUEUED = 32 << 20
PINGS = 1000


def link_receiver(pipe: Connection) -> None:
    """Count messages; answer those that ask for it; say at the end what it took."""
    key, over = key_from_random(SECRET), threading.Event()

    def handle(link: Link, header: Header, body: memoryview) -> None:
        if header.get("answer"):
            link.send({"cpu": time.process_time()})

    def on_link(link: Link) -> tuple[Any, Any]:
        return handle, lambda link, why: over.set()

    listener = LinkListener("127.0.0.1", 0, key, on_link)
    pipe.send(listener.address.port)
    over.wait()


def measure_link(port: int, size: int, count: int) -> tuple[float, float, float, float]:
    """Return wall seconds, CPU seconds of sender and receiver, and the median of a round trip."""
    arrived: list[float] = []
    answered = threading.Semaphore(0)

    def handle(link: Link, header: Header, body: memoryview) -> None:
        arrived.append(header["cpu"])
        answered.release()

    link = dial(
        Address("127.0.0.1", port), key_from_random(SECRET), {}, handle, lambda link, why: None, connect_seconds=60
    )
    body = os.urandom(size)

    def ping() -> float:
        start = time.perf_counter()
        link.send({"answer": True}, [body[:100]])
        answered.acquire()
        return time.perf_counter() - start

    ping()
    wall, cpu, theirs = time.perf_counter(), time.process_time(), arrived[-1]
    for number in range(count):
        while link.queued_bytes > MOST_QUEUED:
            time.sleep(0.0005)
        link.send({"n": number}, [body])
    ping()
    measured = time.perf_counter() - wall, time.process_time() - cpu, arrived[-1] - theirs
    trips = [ping() for _ in range(PINGS)]
    link.close()
    return *measured, statistics.median(trips)


class Sink(pa.flight.FlightServerBase):  # type: ignore[misc]
    """A Flight server that takes a stream and answers with its CPU time at the end."""

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Take every batch."""
        for _ in reader:
            pass
        writer.write(repr(time.process_time()).encode())


def flight_receiver(pipe: Connection, certificate: tuple[str, str] | None = None) -> None:
    """Serve until the pipe closes."""
    if certificate is None:
        server = Sink("grpc://127.0.0.1:0")
    else:
        server = Sink("grpc+tls://127.0.0.1:0", tls_certificates=[certificate])
    threading.Thread(target=server.serve, daemon=True).start()
    pipe.send(server.port)
    pipe.recv()


def measure_flight(
    port: int, size: int, count: int, certificate: tuple[str, str] | None = None
) -> tuple[float, float, float, float]:
    """Return wall seconds, CPU seconds of sender and receiver; no round trip."""
    if certificate is None:
        client = pa.flight.connect(f"grpc://127.0.0.1:{port}")
    else:
        client = pa.flight.connect(f"grpc+tls://127.0.0.1:{port}", tls_root_certs=certificate[0])
    batch = pa.record_batch({"body": pa.array([os.urandom(size)], pa.large_binary())})

    def put(many: int) -> float:
        writer, answer = client.do_put(pa.flight.FlightDescriptor.for_path("x"), batch.schema)
        for _ in range(many):
            writer.write_batch(batch)
        writer.done_writing()
        theirs = float(answer.read().to_pybytes())
        writer.close()
        return theirs

    theirs = put(1)
    wall, cpu = time.perf_counter(), time.process_time()
    used = put(count) - theirs
    return time.perf_counter() - wall, time.process_time() - cpu, used, float("nan")


def without_seals() -> Any:
    """Let seals cost nothing, in this process: what is left is what moving the bytes costs."""
    return mock.patch.object(Seals, "next", return_value=bytes(SEAL_BYTES))


def unsealed_receiver(pipe: Connection) -> None:
    """Receive without verifying."""
    with without_seals():
        link_receiver(pipe)


def measure_unsealed(port: int, size: int, count: int) -> tuple[float, float, float, float]:
    """Send without sealing."""
    with without_seals():
        return measure_link(port, size, count)


def new_certificate() -> tuple[str, str]:
    """Return a certificate for loopback and its key."""
    with tempfile.TemporaryDirectory() as folder:
        key, certificate = Path(folder, "key.pem"), Path(folder, "cert.pem")
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        command += ["-days", "2", "-keyout", str(key), "-out", str(certificate), "-subj", "/CN=localhost"]
        subprocess.run([*command, "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
        return certificate.read_text(), key.read_text()


CERTIFIED = "flight, TLS"
KINDS: dict[str, tuple[Callable[..., None], Callable[..., tuple[float, float, float, float]]]] = {
    "link": (link_receiver, measure_link),
    CERTIFIED: (flight_receiver, measure_flight),
    "link, no seals": (unsealed_receiver, measure_unsealed),
    "flight": (flight_receiver, measure_flight),
}


def one_round(kind: str, size: int, count: int) -> tuple[float, float, float, float]:
    """Start a receiver, measure, end it."""
    receive, measure = KINDS[kind]
    more = [new_certificate()] if kind == CERTIFIED else []
    here, there = get_context("spawn").Pipe()
    process = get_context("spawn").Process(target=receive, args=(there, *more))
    process.start()
    try:
        return measure(here.recv(), size, count, *more)
    finally:
        here.send(None)
        process.join()


def main() -> None:
    """Measure and print one line for each size and kind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 10_000, 1_000_000, 64_000_000])
    parser.add_argument("--megabytes", type=int, default=500, help="sent per round, at most")
    parser.add_argument("--most", type=int, default=20_000, help="messages per round, at most")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print(f"{'bytes':>10} {'':>14} {'MB/s':>7} {'messages/s':>10} {'send s/GB':>9} {'take s/GB':>9} {'round trip':>10}")
    for size in options.sizes:
        count = max(1, min(options.most, options.megabytes * 1_000_000 // size))
        rounds: dict[str, list[tuple[float, float, float, float]]] = {kind: [] for kind in KINDS}
        for _ in range(options.rounds):
            for kind, found in rounds.items():
                found.append(one_round(kind, size, count))
        for kind, found in rounds.items():
            wall, ours, theirs, trip = map(statistics.median, zip(*found, strict=True))
            gigabytes = size * count / 1e9
            rates = f"{gigabytes / wall * 1000:>7.0f} {count / wall:>10.0f}"
            spent = f"{ours / gigabytes:>9.2f} {theirs / gigabytes:>9.2f}"
            print(f"{size:>10} {kind:>14} {rates} {spent} {trip * 1e6:>7.0f} us", flush=True)


if __name__ == "__main__":
    main()
