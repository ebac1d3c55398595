"""Measure Arrow Flight against framed asyncio for bulk bytes on loopback (decision record 0015).

Servers are processes of their own; the client is this process. For every size and number of peers it prints MB/s in
each direction and CPU seconds per GB, client and servers together. Run: `python tools/measure_transport.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import socket
import statistics
import struct
import sys
import threading
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection

CHUNK = 1 << 20
HEAD = struct.Struct("!cQ")  # direction, bytes


class Stopwatch:
    """Wall time and CPU time of this process."""

    def __init__(self) -> None:
        self.wall, self.cpu = time.perf_counter(), cpu_seconds()

    def stop(self) -> tuple[float, float]:
        """Return wall and CPU seconds since the start."""
        return time.perf_counter() - self.wall, cpu_seconds() - self.cpu


def cpu_seconds() -> float:
    """Return the CPU time of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Buffered(asyncio.BufferedProtocol):
    """The asyncio server as a buffered protocol: the socket fills our buffer, nothing is copied on the way."""

    def __init__(self) -> None:
        self.buffer = memoryview(bytearray(CHUNK))
        self.filled = 0
        self.left = -1
        self.sending: asyncio.Task[None] | None = None
        self.room = asyncio.Event()
        self.room.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go."""
        return self.buffer[self.filled : HEAD.size] if self.left < 0 else self.buffer[: min(self.left, CHUNK)]

    def buffer_updated(self, count: int) -> None:
        """Take what arrived."""
        if self.left < 0:
            self.filled += count
            if self.filled < HEAD.size:
                return
            direction, size = HEAD.unpack(self.buffer[: HEAD.size])
            self.filled = 0
            if direction == b"g":
                self.sending = asyncio.create_task(self.send(size))
                return
            self.left = size
        else:
            self.left -= count
        if self.left == 0:
            self.left = -1
            self.transport.write(b"k")

    def pause_writing(self) -> None:
        """Wait with sending."""
        self.room.clear()

    def resume_writing(self) -> None:
        """Go on sending."""
        self.room.set()

    async def send(self, size: int) -> None:
        """Send so many bytes."""
        chunk = memoryview(bytearray(CHUNK))
        while size:
            await self.room.wait()
            part = min(size, CHUNK)
            self.transport.write(chunk[:part])
            size -= part


async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The asyncio server with streams."""
    chunk = bytes(CHUNK)
    try:
        while True:
            direction, size = HEAD.unpack(await reader.readexactly(HEAD.size))
            while size:
                part = min(size, CHUNK)
                if direction == b"p":
                    await reader.readexactly(part)
                else:
                    writer.write(memoryview(chunk)[:part])
                    await writer.drain()
                size -= part
            if direction == b"p":
                writer.write(b"k")
                await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


def answer_cpu(pipe: Connection) -> None:
    """Tell the CPU time of this server when asked."""
    while pipe.recv():
        pipe.send(cpu_seconds())
    os._exit(0)


def serve_asyncio(pipe: Connection, kind: str) -> None:
    """Run an asyncio server."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        if kind == "streams":
            server = await asyncio.start_server(stream, "127.0.0.1", 0, limit=2 * CHUNK)
        else:
            server = await loop.create_server(Buffered, "127.0.0.1", 0)
        pipe.send(server.sockets[0].getsockname()[1])
        threading.Thread(target=answer_cpu, args=(pipe,), daemon=True).start()
        await server.serve_forever()

    asyncio.run(run())


def serve_flight(pipe: Connection, _: str) -> None:
    """Run an Arrow Flight server."""
    import pyarrow as pa
    from pyarrow import flight

    schema = pa.schema([("b", pa.binary())])
    batch = pa.record_batch([pa.array([bytes(CHUNK)])], schema)

    class Server(flight.FlightServerBase):  # type: ignore[misc]
        def do_put(self, context, descriptor, reader, writer):  # type: ignore[no-untyped-def]
            """Read and forget."""
            for _chunk in reader:
                pass

        def do_get(self, context, ticket):  # type: ignore[no-untyped-def]
            """Send so many chunks."""
            chunks = int(ticket.ticket) // CHUNK
            return flight.GeneratorStream(schema, (batch for _ in range(chunks)))

    server = Server("grpc://127.0.0.1:0")
    pipe.send(server.port)
    threading.Thread(target=answer_cpu, args=(pipe,), daemon=True).start()
    server.serve()


class Peer:
    """One server process and how to move bytes to and from it."""

    def __init__(self, kind: str) -> None:
        context = get_context("spawn")
        self.kind = kind
        self.pipe, far = context.Pipe()
        target = serve_flight if kind == "flight" else serve_asyncio
        self.process = context.Process(target=target, args=(far, kind), daemon=True)
        self.process.start()
        self.port = self.pipe.recv()
        if kind == "flight":
            import pyarrow as pa
            from pyarrow import flight

            self.flight = flight
            self.client = flight.FlightClient(f"grpc://127.0.0.1:{self.port}")
            self.schema = pa.schema([("b", pa.binary())])
            self.batch = pa.record_batch([pa.array([bytes(CHUNK)])], self.schema)
        else:
            self.socket = socket.create_connection(("127.0.0.1", self.port))
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def cpu(self) -> float:
        """Return the server's CPU time."""
        self.pipe.send(True)
        return float(self.pipe.recv())

    def put(self, size: int) -> None:
        """Send so many bytes."""
        if self.kind == "flight":
            writer, _ = self.client.do_put(self.flight.FlightDescriptor.for_path("x"), self.schema)
            for _ in range(size // CHUNK):
                writer.write_batch(self.batch)
            writer.close()
            return
        self.socket.sendall(HEAD.pack(b"p", size))
        chunk = memoryview(bytes(CHUNK))
        while size:
            part = min(size, CHUNK)
            self.socket.sendall(chunk[:part])
            size -= part
        assert self.socket.recv(1) == b"k"

    def get(self, size: int) -> None:
        """Receive so many bytes."""
        if self.kind == "flight":
            for _chunk in self.client.do_get(self.flight.Ticket(str(size).encode())):
                pass
            return
        self.socket.sendall(HEAD.pack(b"g", size))
        buffer = memoryview(bytearray(CHUNK))
        while size:
            size -= self.socket.recv_into(buffer[: min(size, CHUNK)])


def together(peers: list[Peer], direction: str, size: int) -> tuple[float, float]:
    """Move `size` bytes in all, evenly over the peers at the same time: seconds, CPU seconds of everybody."""
    before = sum(peer.cpu() for peer in peers)
    watch = Stopwatch()
    share = max(CHUNK, size // len(peers) // CHUNK * CHUNK)
    threads = [threading.Thread(target=getattr(peer, direction), args=(share,)) for peer in peers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wall, cpu = watch.stop()
    moved = share * len(peers)
    return wall * size / moved, (cpu + sum(peer.cpu() for peer in peers) - before) * size / moved


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", default="1,16,64,256", help="MB")
    parser.add_argument("--peers", default="1,4")
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    head = f"{'transport':10} {'peers':>5} {'MB':>4} {'put MB/s':>9} {'get MB/s':>9}"
    print(f"{head} {'put CPU s/GB':>13} {'get CPU s/GB':>13}")
    for count in map(int, options.peers.split(",")):
        for kind in ("flight", "streams", "buffered"):
            started = time.perf_counter()
            peers = [Peer(kind) for _ in range(count)]
            started = time.perf_counter() - started
            for megabytes in map(int, options.sizes.split(",")):
                size = megabytes << 20
                row = {}
                for direction in ("put", "get"):
                    together(peers, direction, size)
                    runs = [together(peers, direction, size) for _ in range(options.repeat)]
                    row[direction] = (
                        megabytes / statistics.median(wall for wall, _ in runs),
                        statistics.median(cpu for _, cpu in runs) / megabytes * 1024,
                    )
                print(
                    f"{kind:10} {count:5} {megabytes:4} {row['put'][0]:9.0f} {row['get'][0]:9.0f} "
                    f"{row['put'][1]:13.2f} {row['get'][1]:13.2f}",
                    flush=True,
                )
            print(f"# {kind}: {count} servers ready after {started:.2f} s", file=sys.stderr)
            for peer in peers:
                peer.process.kill()


if __name__ == "__main__":
    main()
