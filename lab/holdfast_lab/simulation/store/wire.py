"""An in-memory network: connections of clients, notes of the ring, cuts one way, silence and refusals. Runs anywhere.

`ConnectionPool` and the requests of `Connection` are real; connecting, sending and receiving frames are simulated.
Headers are written and read as on the wire. Handshakes, seals, TLS and sockets are not simulated.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import Random
from typing import Any, TypeVar, cast

from holdfast.errors import HoldfastError
from holdfast.store.ring.messages import Contact, Message
from holdfast.store.wire.address import Address
from holdfast.store.wire.connection import Connection, ConnectionPool
from holdfast.store.wire.failures import BadRequest, NotTrusted, Unreachable, code_of
from holdfast.store.wire.frames import ConnectionEnded
from holdfast.store.wire.handshake import open_key
from holdfast.store.wire.listener import Answer
from holdfast.store.wire.messages import BadFrame, Bytes, Frame, Kind, encode_header, read_header
from holdfast_lab.simulation.store.threads import Process, Scheduler, Task

T = TypeVar("T")
SHORTEST, LONGEST = 0.0005, 0.01
"""Seconds that a message takes."""


class Host:
    """A machine on the network."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.powered = True


class Listening:
    """A process that listens at an address."""

    def __init__(self, host: Host, process: Process) -> None:
        self.host, self.process = host, process
        self.refusal: type[HoldfastError] | None = None
        """`NotTrusted`: it has another secret; `BadRequest`: it serves none of these requests."""

    async def serve(self, protocol: ServerSide, frame: Frame) -> Answer:
        """Serve one request."""
        raise BadRequest("unknown operation")

    def take_note(self, sender: Contact, message: Message) -> None:
        """Take a message of the ring."""


class Channel:
    """One connection: frames in both directions."""

    def __init__(self, network: Network, client: Host, server: Host) -> None:
        self.network = network
        self.ends = (_End(self, client, server), _End(self, server, client))
        self.ends[0].other, self.ends[1].other = self.ends[1], self.ends[0]
        self.process: Process | None = None
        """Of the client."""
        self.serving = False


class _End:
    """One side of a connection."""

    other: _End

    def __init__(self, channel: Channel, here: Host, there: Host) -> None:
        self.channel, self.here, self.there = channel, here, there
        self.frames: deque[Frame] = deque()
        self.over = False
        self.waiter: Task | None = None
        self._last = 0.0

    def send(self, frame: Frame) -> None:
        self._deliver(lambda: self.other.take(frame))

    def close(self) -> None:
        if not self.over:
            self.over = True
            self._wake()
            self._deliver(self.other.end)

    def _deliver(self, call: Callable[[], None]) -> None:
        network = self.channel.network
        self._last = max(self._last, network.scheduler.now + network.delay())

        def arrive() -> None:
            if network.reaches(self.here, self.there):
                call()

        network.scheduler.at(self._last, arrive)

    def take(self, frame: Frame) -> None:
        if not self.over:
            self.frames.append(frame)
            self._wake()
        else:
            self._deliver(self.other.end)

    def end(self) -> None:
        self.over = True
        self._wake()

    def _wake(self) -> None:
        if self.waiter is not None:
            self.channel.network.scheduler.wake(self.waiter)

    def receive(self, deadline: float) -> Frame | None:
        """Wait for a frame; None: no more will come. `TimeoutError` where none comes in time."""
        scheduler = self.channel.network.scheduler
        self.waiter = scheduler.current
        while not self.frames:
            if self.over:
                return None
            if scheduler.now >= deadline:
                raise TimeoutError("timed out")
            scheduler.block(deadline)
        return self.frames.popleft()


class Network:
    """Who listens where, and which way is cut."""

    def __init__(self, scheduler: Scheduler, random: Random) -> None:
        self.scheduler, self.random = scheduler, random
        self.listening: dict[str, Listening] = {}
        self.hosts: dict[str, Host] = {}
        """Whose address it is, or was last."""
        self.cut: set[tuple[str, str]] = set()
        """From host, to host: what is sent does not arrive."""
        self.channels: list[Channel] = []
        self.unexpected: list[BaseException] = []

    def delay(self) -> float:
        """Draw how long a message takes."""
        return self.random.uniform(SHORTEST, LONGEST)

    def reaches(self, one: Host, other: Host) -> bool:
        """Whether what one host sends arrives at another."""
        return one.powered and other.powered and (one.name, other.name) not in self.cut

    def connect(self, client: Host, process: Process, address: Address, seconds: float) -> Channel:
        """Connect and shake hands."""
        where = str(address)
        self.scheduler.sleep(self.delay())
        host = self.hosts.get(where)
        if host is None or not (self.reaches(client, host) and self.reaches(host, client)):
            self.scheduler.sleep(seconds)
            raise Unreachable("cannot connect: timed out", where=where)
        listening = self.listening.get(where)
        if listening is None:
            raise Unreachable("cannot connect: connection refused", where=where)
        if listening.process.frozen:
            self.scheduler.sleep(seconds)
            raise Unreachable("connection lost while waiting for the response: timed out", where=where)
        if listening.refusal is NotTrusted:
            raise NotTrusted("the two sides do not have the same secret", where=where)
        channel = Channel(self, client, host)
        channel.process = process
        self.channels = [one for one in self.channels if not (one.ends[0].over and one.ends[1].over)]
        self.channels.append(channel)
        side = ServerSide(channel)
        self.scheduler.spawn(listening.process, lambda: self._converse(listening, side), f"serve {where}")
        return channel

    def _converse(self, listening: Listening, side: ServerSide) -> None:
        """Serve a connection, as `Listener` does."""
        channel = side.channel
        with contextlib.suppress(ConnectionEnded, BadFrame, TimeoutError):
            while True:
                frame = channel.ends[1].receive(self.scheduler.now + side.idle_seconds)
                if frame is None:
                    break
                channel.serving = True
                try:
                    answer = ran(listening.serve(side, frame))
                    side.write(Kind.ANSWER, answer.header, answer.body)
                except (ConnectionEnded, BadFrame):
                    raise
                except HoldfastError as error:
                    side.write(Kind.FAILURE, {"code": code_of(error), "line": str(error)}, ())
                except Exception as error:
                    self.unexpected.append(error)
                    break
                finally:
                    channel.serving = False
        channel.ends[1].close()

    def drop_connections(self, process: Process, host: Host) -> None:
        """Close what a killed process had open, as its system does; without power nothing is sent."""
        for channel in self.channels:
            if channel.process is process:
                channel.ends[0].close()
            if channel.ends[1].here is host:
                channel.ends[1].close()

    def note(self, sender: Host, contact: Contact, address: str, message: Message, lost: Callable[[], None]) -> None:
        """Send a message of the ring; `lost` is called where the address refuses it."""
        host = self.hosts.get(address)
        if host is None:
            return

        def arrive() -> None:
            if not self.reaches(sender, host):
                return
            listening = self.listening.get(address)
            if listening is None or listening.refusal is not None:
                if self.reaches(host, sender):
                    lost()
            elif listening.process.frozen:
                self.scheduler.at(self.scheduler.now + 0.5, arrive)  # its system keeps it until it goes on
            else:
                listening.take_note(contact, message)

        self.scheduler.at(self.scheduler.now + self.delay(), arrive)


class ServerSide:
    """Stands for `FrameProtocol` at the peer."""

    namespace: str | None = None

    def __init__(self, channel: Channel, idle_seconds: float = 40.0) -> None:
        self.channel = channel
        self.idle_seconds = idle_seconds

    async def next(self) -> Frame:
        """Return the next frame."""
        frame = self.channel.ends[1].receive(self.channel.network.scheduler.current.deadline)
        if frame is None:
            raise ConnectionEnded("closed")
        return frame

    async def send(self, kind: Kind, header: Mapping[str, Any], body: Sequence[Bytes] = ()) -> None:
        """Send a frame."""
        self.write(kind, header, body)

    def write(self, kind: Kind, header: Mapping[str, Any], body: Sequence[Bytes]) -> None:
        """Send a frame."""
        self.channel.network.scheduler.pause()
        if self.channel.ends[1].over:
            raise ConnectionEnded("closed")
        self.channel.ends[1].send(_frame(kind, header, body))


class SimulatedConnection(Connection):
    """A connection whose frames travel in memory."""

    def __init__(self, network: Network, host: Host, process: Process, address: Address, seconds: float) -> None:
        self.address, self.closed, self.reused = address, False, False
        self.valid_keys = (open_key(),)
        self.answer_seconds = seconds
        self.bytes_out = self.bytes_in = 0
        self._scheduler = network.scheduler
        self._end = network.connect(host, process, address, seconds=1.0).ends[0]

    def send(self, kind: Kind, header: Mapping[str, Any], body: Sequence[Bytes] = ()) -> None:
        """See Connection."""
        self._scheduler.pause()
        if self.closed or self._end.over:
            self.close()
            raise Unreachable("connection lost while sending: reset", where=str(self.address))
        self._end.send(_frame(kind, header, body))

    def receive(self, seconds: float) -> Frame:
        """See Connection."""
        try:
            frame = self._end.receive(self._scheduler.now + seconds)
        except TimeoutError:
            frame = None
        if frame is None:
            self.close()
            raise Unreachable("connection lost while waiting for the response", where=str(self.address))
        return frame

    def close(self) -> None:
        """See Connection."""
        self.closed = True
        process = self._end.channel.process
        if process is not None and not process.dead:
            self._end.close()


class SimulatedPool(ConnectionPool):
    """The real pool, of simulated connections."""

    def __init__(self, network: Network, host: Host, process: Process, seconds: float = 5.0) -> None:
        super().__init__(open_key(), answer_seconds=seconds)
        self._network, self._host, self._owner = network, host, process

    def _connected(self, address: Address) -> Connection:
        return SimulatedConnection(self._network, self._host, self._owner, address, self._answer_seconds)

    def close_idle(self) -> None:
        """Close what nobody uses."""
        for some in self._idle.values():
            for one in some:
                one.close()
        self._idle.clear()


def _frame(kind: Kind, header: Mapping[str, Any], body: Sequence[Bytes]) -> Frame:
    return Frame(kind, read_header(encode_header(header)), b"".join(bytes(piece) for piece in body))


def ran(work: Awaitable[T]) -> T:
    """Run a coroutine that never gives way to an event loop: what it awaits waits as a simulated thread."""
    try:
        cast(Any, work).send(None)
    except StopIteration as end:
        return cast(T, end.value)
    raise AssertionError("a simulated coroutine waits for an event loop")
