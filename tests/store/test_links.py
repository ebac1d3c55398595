"""Links on real sockets: order, size, both directions at once, strangers, damage, and every way to end."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from holdfast.errors import BadInput, CheckFailed
from holdfast.store.wire import link_session
from holdfast.store.wire.address import Address
from holdfast.store.wire.failures import BadRequest, Busy, NotTrusted, Unreachable
from holdfast.store.wire.handshake import (
    ClientHandshake,
    SessionSeals,
    key_from_random,
    key_from_secret,
    open_key,
)
from holdfast.store.wire.link import Link, LinkListener, dial
from holdfast.store.wire.messages import (
    LARGEST_BODY,
    LARGEST_HEADER,
    PREFIX,
    BadFrame,
    Bytes,
    Header,
    Kind,
    Seals,
    pack,
    read_prefix,
    unpack,
)
from store.certificates import make_certificates

KEY = key_from_random(b"the run's own random secret bytes")
DEADLINE = 120.0


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, f"not in {DEADLINE:g} s: {what}"
        time.sleep(0.005)


class End:
    """What one side of a link has received."""

    def __init__(self) -> None:
        self.messages: list[tuple[Header, bytes]] = []
        self.ends: list[str] = []
        self.link: Link | None = None
        self.over = threading.Event()
        self.on_message: Callable[[Link, Header, memoryview], None] | None = None

    def handle(self, link: Link, header: Header, body: memoryview) -> None:
        assert not self.ends, "a message after the end"
        self.link = link
        if self.on_message is not None:
            self.on_message(link, header, body)
        self.messages.append((header, bytes(body)))

    def handle_end(self, link: Link, why: str) -> None:
        assert link.ended
        self.ends.append(why)
        self.over.set()

    def wait_for(self, count: int) -> None:
        until(lambda: len(self.messages) >= count or bool(self.ends), f"{count} messages")
        assert len(self.messages) >= count, self.ends

    def ended(self) -> str:
        assert self.over.wait(DEADLINE), "the link did not end"
        return self.ends[0]


class Place:
    """A listener that keeps the links it gets, and links to it."""

    def __init__(self, **options: Any) -> None:
        self.accepted: list[tuple[Link, End]] = []
        self.refuse: Exception | None = None
        self.prepare: Callable[[End], None] = lambda end: None
        self.listener = LinkListener("127.0.0.1", 0, options.pop("key", KEY), self._on_link, **options)
        self.dialled: list[tuple[Link, End]] = []

    def _on_link(self, link: Link) -> tuple[Any, Any]:
        if self.refuse is not None:
            raise self.refuse
        end = End()
        end.link = link
        self.prepare(end)
        self.accepted.append((link, end))
        return end.handle, end.handle_end

    def dial(
        self, introduction: dict[str, Any] | None = None, end: End | None = None, **options: Any
    ) -> tuple[Link, End]:
        end = end or End()
        link = dial(
            self.listener.address,
            options.pop("key", KEY),
            introduction or {},
            end.handle,
            end.handle_end,
            connect_seconds=DEADLINE,
            **options,
        )
        self.dialled.append((link, end))
        return link, end

    def pair(self, **options: Any) -> tuple[Link, End, Link, End]:
        """A link from both sides: who dialled, who listens."""
        near, near_end = self.dial(**options)
        # The other side has called `on_link` before it answers.
        far, far_end = self.accepted[-1]
        return near, near_end, far, far_end

    def close(self) -> None:
        for link, _ in (*self.dialled, *self.accepted):
            link.close()
        self.listener.close()
        for _, end in (*self.dialled, *self.accepted):
            end.ended()
            assert len(end.ends) == 1


@pytest.fixture
def place() -> Iterator[Place]:
    """A listener; after the test both its sides of all links end, each once, and it still makes links."""
    made = Place()
    yield made
    made.refuse = None
    near, _, _, far_end = made.pair()
    near.send({"still": "here"})
    far_end.wait_for(1)
    made.close()


# -- messages ----------------------------------------------------------------------------------------------------------


def test_both_sides_introduce_themselves() -> None:
    place = Place(introduction={"node": "driver"})
    near, _, far, _ = place.pair(introduction={"node": "node-3", "cores": 2})
    assert near.hello == {"node": "driver"}
    assert far.hello == {"node": "node-3", "cores": 2}
    assert near.name == str(place.listener.address)
    assert far.name.startswith("127.0.0.1:")
    assert not near.ended
    place.close()


def test_messages_arrive_in_order(place: Place) -> None:
    near, near_end, far, far_end = place.pair()
    for number in range(2000):
        near.send({"n": number}, [b"x" * (number % 50), b"", bytearray(b"y")])
        far.send({"n": -number})
    far_end.wait_for(2000)
    near_end.wait_for(2000)
    assert [header["n"] for header, _ in far_end.messages] == list(range(2000))
    assert [body for _, body in far_end.messages] == [b"x" * (n % 50) + b"y" for n in range(2000)]
    assert [header["n"] for header, _ in near_end.messages] == [-n for n in range(2000)]
    assert all(body == b"" for _, body in near_end.messages)
    until(lambda: near.queued_bytes == 0, "everything was sent")


SIZES = [
    (0, LARGEST_BODY),
    (0, LARGEST_BODY + 1),
    (0, 3 * LARGEST_BODY + 12345),
    (LARGEST_HEADER + 1, 0),
    (3 << 20, 5),
    (LARGEST_HEADER + 1, LARGEST_BODY + 1),
]


@pytest.mark.parametrize(("header_bytes", "body_bytes"), SIZES)
def test_large_messages_arrive_whole(place: Place, header_bytes: int, body_bytes: int) -> None:
    near, _, _, far_end = place.pair()
    body = Random(body_bytes).randbytes(body_bytes)
    header = {"text": "é" * (header_bytes // 2)}
    third = body_bytes // 3
    near.send({"before": 1})
    near.send(header, [body[:third], memoryview(body)[third : 2 * third], bytearray(body[2 * third :])])
    near.send({"after": 1})
    far_end.wait_for(3)
    assert [found for found, _ in far_end.messages] == [{"before": 1}, header, {"after": 1}]
    assert far_end.messages[1][1] == body


def test_a_body_is_a_buffer_of_its_own(place: Place) -> None:
    near, _, _, far_end = place.pair()
    kept: list[tuple[pa.Buffer, memoryview]] = []
    far_end.on_message = lambda link, header, body: kept.append((pa.py_buffer(body), body))
    for number in range(5):
        near.send({"header": "x" * number}, [pa.py_buffer(bytes([number]) * 100_000)])
    near.send({})
    far_end.wait_for(6)
    for number, (buffer, body) in enumerate(kept[:5]):
        assert body.readonly
        assert buffer.to_pybytes() == bytes([number]) * 100_000
        assert buffer.address % 8 == 0, "tables are read from it in place"
        with pytest.raises(TypeError):
            body[0] = 1
    assert kept[5][0].size == 0


def test_a_message_over_the_limit_is_not_sent(place: Place) -> None:
    near, _, _, far_end = place.pair(largest_message=1000)
    with pytest.raises(BadFrame, match="will not send a message this large"):
        near.send({}, [bytes(1001)])
    near.send({}, [bytes(1000)])
    far_end.wait_for(1)


@pytest.mark.parametrize("size", [1001, LARGEST_BODY + 1])
def test_a_message_over_the_limit_ends_the_link(size: int) -> None:
    place = Place(largest_message=1000)
    near, near_end, _, far_end = place.pair()
    near.send({"n": 1})
    near.send({}, [bytes(size)])
    assert "too large" in far_end.ended()
    near_end.ended()
    assert [header for header, _ in far_end.messages] == [{"n": 1}]
    place.close()


def test_what_is_no_json_is_refused_where_it_is_sent(place: Place) -> None:
    near, _, _, far_end = place.pair()
    with pytest.raises(TypeError):
        near.send({"x": object()})
    near.send({"x": 1})
    far_end.wait_for(1)


def test_both_directions_at_once_under_load(place: Place) -> None:
    """Neither side waits until the other one reads: both send far more than the kernel holds, from several threads."""
    near, near_end, far, far_end = place.pair()
    body = Random(5).randbytes(700_000)
    per_thread, threads = 12, 3

    def send(link: Link, sender: int) -> None:
        for number in range(per_thread):
            link.send({"sender": sender, "n": number}, [body, number.to_bytes(4, "big")])

    senders = [threading.Thread(target=send, args=(link, sender)) for link in (near, far) for sender in range(threads)]
    for thread in senders:
        thread.start()
    for thread in senders:
        thread.join()
    wanted = hashlib.sha256(body).digest()
    for end in (near_end, far_end):
        end.wait_for(per_thread * threads)
        for sender in range(threads):
            mine = [(header["n"], found) for header, found in end.messages if header["sender"] == sender]
            assert [n for n, _ in mine] == list(range(per_thread))
            assert all(found[-4:] == n.to_bytes(4, "big") for n, found in mine)
            assert all(hashlib.sha256(found[:-4]).digest() == wanted for _, found in mine)


def test_messages_may_be_answered_by_the_thread_that_handles_them(place: Place) -> None:
    place.prepare = lambda end: setattr(end, "on_message", lambda link, header, body: link.send(header, [body]))
    near, near_end, _, _ = place.pair()
    for number in range(200):
        near.send({"n": number}, [b"%d" % number])
        near_end.wait_for(number + 1)
    assert near_end.messages == [({"n": n}, b"%d" % n) for n in range(200)]


def test_what_on_link_sends_arrives_first(place: Place) -> None:
    def prepare(end: End) -> None:
        assert end.link is not None
        end.link.send({"welcome": 1})

    place.prepare = prepare
    _, near_end, far, _ = place.pair()
    far.send({"second": 2})
    near_end.wait_for(2)
    assert [header for header, _ in near_end.messages] == [{"welcome": 1}, {"second": 2}]


# -- ends --------------------------------------------------------------------------------------------------------------


def test_close_sends_what_is_queued(place: Place) -> None:
    near, near_end, _, far_end = place.pair()
    for number in range(500):
        near.send({"n": number}, [bytes(1000)])
    near.close()
    assert near.ended
    near.send({"n": "dropped"})
    near.close()
    assert far_end.ended() == "closed by the other side"
    assert near_end.ended() == "closed"
    assert [header["n"] for header, _ in far_end.messages] == list(range(500))


def test_close_takes_nothing_from_a_side_that_reads_and_sends(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the other side still sends meets a socket that is open until it has read everything: no reset on the way."""
    monkeypatch.setattr(link_session, "LINGER_SECONDS", DEADLINE)
    near, near_end, far, far_end = place.pair()
    reads = threading.Event()
    far_end.on_message = lambda link, header, body: reads.wait(DEADLINE) and None
    for number in range(200):
        near.send({"n": number}, [bytes(50_000)])
    for _ in range(64):
        far.send({}, [bytes(1 << 20)])
    near_end.wait_for(1)
    closing = threading.Thread(target=near.close)
    closing.start()
    until(lambda: near.ended, "it is closed")
    reads.set()
    closing.join()
    assert far_end.ended() == "closed by the other side"
    assert [header["n"] for header, _ in far_end.messages] == list(range(200))


def test_close_ends_a_link_whose_other_side_does_not_read(place: Place) -> None:
    near, near_end, _, far_end = place.pair()
    stuck = threading.Event()
    far_end.on_message = lambda link, header, body: stuck.wait(DEADLINE) and None
    for _ in range(64):
        near.send({}, [bytes(1 << 20)])
    until(lambda: 0 < near.queued_bytes < 64 << 20, "some is sent, some is queued")
    near.close()
    assert near_end.ended() == "closed"
    assert near.queued_bytes == 0
    stuck.set()
    far_end.ended()


def test_close_while_others_send(place: Place) -> None:
    near, near_end, _, far_end = place.pair()
    stop = threading.Event()

    def send() -> None:
        number = 0
        while not stop.is_set():
            if near.queued_bytes < 1 << 20:
                near.send({"n": number}, [bytes(5000)])
                number += 1

    senders = [threading.Thread(target=send) for _ in range(2)]
    for thread in senders:
        thread.start()
    far_end.wait_for(100)
    near.close()
    assert near_end.ended() == "closed"
    stop.set()
    for thread in senders:
        thread.join()
    assert far_end.ended() == "closed by the other side"


def test_close_from_where_messages_and_ends_are_handled(place: Place) -> None:
    near, near_end, _, far_end = place.pair()

    def answer_and_close(link: Link, header: Header, body: memoryview) -> None:
        link.send({"last": True})
        link.close()

    far_end.on_message = answer_and_close
    near.send({"n": 1})
    near.send({"n": 2})
    assert far_end.ended() == "closed"
    assert near_end.ended() == "closed by the other side"
    assert [header for header, _ in near_end.messages] == [{"last": True}]
    assert [header for header, _ in far_end.messages] == [{"n": 1}], "nothing is handed over after close"


def test_both_sides_close_at_once(place: Place) -> None:
    for _ in range(20):
        near, near_end, far, far_end = place.pair()
        closers = [threading.Thread(target=link.close) for link in (near, far, near, far)]
        for thread in closers:
            thread.start()
        for thread in closers:
            thread.join()
        near_end.ended()
        far_end.ended()


def test_a_link_that_is_closed_as_it_is_made(place: Place) -> None:
    def prepare(end: End) -> None:
        assert end.link is not None
        end.link.send({"go": "away"})
        end.link.close()

    place.prepare = prepare
    _, near_end, _, far_end = place.pair()
    assert near_end.ended() == "closed by the other side"
    assert [header for header, _ in near_end.messages] == [{"go": "away"}]
    assert far_end.ended() == "closed"
    place.prepare = lambda end: None


def test_an_error_where_a_message_is_handled_ends_the_link(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    near, near_end, _, far_end = place.pair()

    def fail(link: Link, header: Header, body: memoryview) -> None:
        raise RuntimeError("planted")

    far_end.on_message = fail
    near.send({})
    assert far_end.ended() == "a message was not handled: RuntimeError: planted"
    assert near_end.ended()
    assert "planted" in caplog.text


CHILD = """
import sys, time
from holdfast.store.wire.address import Address
from holdfast.store.wire.handshake import key_from_random
from holdfast.store.wire.link import dial
link = dial(
    Address("127.0.0.1", int(sys.argv[1])), key_from_random(sys.stdin.buffer.read()), {},
    lambda link, header, body: None, lambda link, why: None, connect_seconds=100,
)
number = 0
while True:
    if link.queued_bytes < 1 << 20:
        link.send({"n": number}, [bytes(3000)])
        number += 1
"""


def test_a_killed_process_ends_its_links(place: Place) -> None:
    near, _, _, far_end = place.pair()
    secret = b"the run's own random secret bytes"
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(place.listener.address.port)],
        stdin=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        assert child.stdin is not None
        child.stdin.write(secret)
        child.stdin.close()
        until(lambda: len(place.accepted) == 2 or child.poll() is not None, "the child has a link")
        assert child.poll() is None
        link, end = place.accepted[1]
        end.wait_for(50)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert end.ended()
    assert link.ended
    assert [header["n"] for header, _ in end.messages] == list(range(len(end.messages)))
    link.send({"dropped": 1})
    near.send({"unharmed": 1})
    far_end.wait_for(1)


# -- those who do not belong here --------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [open_key(), key_from_secret(b"a guess"), key_from_random(bytes(32))])
def test_a_wrong_secret(place: Place, key: Any) -> None:
    near, _, _, far_end = place.pair()
    with pytest.raises(NotTrusted):
        place.dial(key=key)
    until(lambda: place.listener.counts["strangers"] == 1, "it is counted")
    near.send({"unharmed": 1})
    far_end.wait_for(1)
    assert len(place.accepted) == 1


def test_a_listener_with_another_secret_is_not_trusted() -> None:
    other = Place(key=key_from_random(bytes(32)))
    with pytest.raises(NotTrusted):
        other.dial()
    assert not other.accepted
    other.close()


def test_without_a_secret_on_this_machine_only() -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.org"):
        with pytest.raises(BadInput, match="without a secret"):
            LinkListener(host, 0, open_key(), lambda link: (End().handle, End().handle_end))
    place = Place(key=open_key())
    near, _, _, far_end = place.pair(key=open_key())
    near.send({})
    far_end.wait_for(1)
    place.close()


def test_short_random_secrets_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 32 bytes"):
        key_from_random(b"short")


def test_nobody_listens() -> None:
    place = Place()
    place.close()
    with pytest.raises(Unreachable, match="cannot connect"):
        place.dial()


def test_a_port_that_is_taken_is_named() -> None:
    place = Place()
    with pytest.raises(BadInput, match=str(place.listener.address.port)):
        LinkListener("127.0.0.1", place.listener.address.port, KEY, lambda link: (End().handle, End().handle_end))
    place.close()


def test_on_link_may_refuse(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.refuse = CheckFailed("this run is over", remedy="end")
    with pytest.raises(CheckFailed, match="this run is over; end"):
        place.dial()
    place.refuse = RuntimeError("planted")
    with pytest.raises(Unreachable):
        place.dial()
    assert "planted" in caplog.text
    assert not place.accepted


def test_a_limit_on_links() -> None:
    place = Place(links=2)
    place.pair()
    near, near_end, _, _ = place.pair()
    with pytest.raises(Busy, match="too many links"):
        place.dial()
    near.close()
    near_end.ended()

    def room() -> bool:
        try:
            place.dial()
        except Busy:
            return False
        return True

    until(room, "a link that has ended makes room")
    place.close()


class Stranger:
    """A connection made by hand: it can send anything, and be one that knows the secret."""

    def __init__(self, address: Address) -> None:
        self.socket = socket.create_connection((address.host, address.port), DEADLINE)
        self.sent: list[bytes] = []

    def greet(self) -> SessionSeals:
        handshake = ClientHandshake(KEY)
        incoming, outgoing = handshake.greeting.incoming, handshake.greeting.outgoing
        self.send(pack(Kind.HELLO, handshake.hello(), [], outgoing))
        self.send(pack(Kind.PROOF, handshake.prove(self.receive(incoming, trusted=False)), [], outgoing))
        return handshake.finish(self.receive(incoming, trusted=False))

    def link(self) -> SessionSeals:
        seals = self.greet()
        self.send(pack(Kind.REQUEST, {"do": "link", "introduction": {}}, [], seals.outgoing))
        assert self.receive(seals.incoming, trusted=True).kind is Kind.ANSWER
        return seals

    def send(self, parts: list[Bytes]) -> None:
        self.sent.append(b"".join(parts))
        self.socket.sendall(self.sent[-1])

    def receive(self, seals: Seals, *, trusted: bool) -> Any:
        head = self.exactly(PREFIX.size)
        prefix = read_prefix(head, trusted=trusted)
        return unpack(prefix, head, self.exactly(prefix.rest), seals)

    def exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            assert more, "ended"
            data += more
        return data

    def is_sent_away(self) -> bool:
        """Whether the other side ends the connection; what it sends before does not matter."""
        try:
            while self.socket.recv(4096):
                pass
        except ConnectionError:
            return True
        except TimeoutError:
            return False
        finally:
            self.socket.close()
        return True


@pytest.mark.parametrize("seed", range(12))
def test_noise_ends_only_its_own_connection(place: Place, seed: int) -> None:
    near, _, _, far_end = place.pair()
    chance = Random(seed)
    stranger = Stranger(place.listener.address)
    nonce = json.dumps({"nonce": "00" * 32}).encode()
    noise = [
        chance.randbytes(chance.randrange(12, 5000)),
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        struct.pack("!2sBBII", b"HF", 1, chance.choice([1, 16, 19, 20]), 2**31, 2**31),
        struct.pack("!2sBBII", b"HF", 1, 1, len(nonce), 0) + nonce + chance.randbytes(16),
        struct.pack("!2sBBII", b"HF", 2, 1, len(nonce), 0) + nonce + chance.randbytes(16),
        b"".join(pack(Kind.PROOF, {"proof": "00"}, [], ClientHandshake(KEY).greeting.outgoing)),
    ][seed % 6]
    stranger.socket.sendall(noise)
    assert stranger.is_sent_away()
    assert len(place.accepted) == 1
    near.send({"unharmed": 1})
    far_end.wait_for(1)


def test_slow_strangers_are_ended() -> None:
    place = Place(greeting_seconds=0.2)
    silent, slow = Stranger(place.listener.address), Stranger(place.listener.address)
    slow.socket.sendall(b"HF")
    assert silent.is_sent_away()
    assert slow.is_sent_away()
    until(lambda: place.listener.counts["slow"] == 2, "both are counted")
    place.close()


def test_more_strangers_than_the_limit_push_the_oldest_out() -> None:
    place = Place(strangers=3, greeting_seconds=DEADLINE)
    strangers = [Stranger(place.listener.address) for _ in range(5)]
    for pushed_out in strangers[:2]:
        assert pushed_out.is_sent_away()
    # The place is full of strangers, and those who know the secret still come in.
    near, _, _, far_end = place.pair()
    near.send({})
    far_end.wait_for(1)
    assert place.listener.counts["too many strangers"] == 3
    place.close()
    for stranger in strangers[2:]:
        assert stranger.is_sent_away()


def test_a_frame_cut_short_ends_the_link(place: Place) -> None:
    stranger = Stranger(place.listener.address)
    seals = stranger.link()
    _, end = place.accepted[0]
    stranger.send(pack(Kind.NOTE, {"n": 1}, [b"whole"], seals.outgoing))
    whole = b"".join(pack(Kind.NOTE, {"n": 2}, [b"cut"], seals.outgoing))
    stranger.socket.sendall(whole[:-3])
    stranger.socket.shutdown(socket.SHUT_WR)
    assert "cut in the middle" in end.ended()
    assert stranger.is_sent_away()
    assert end.messages == [({"n": 1}, b"whole")]


def test_a_long_message_cut_between_its_frames_ends_the_link(place: Place) -> None:
    stranger = Stranger(place.listener.address)
    seals = stranger.link()
    _, end = place.accepted[0]
    stranger.send(pack(Kind.CHUNK, {"header": 0, "body": 10}, [], seals.outgoing))
    stranger.send(pack(Kind.CHUNK, {}, [b"five."], seals.outgoing))
    stranger.socket.shutdown(socket.SHUT_WR)
    assert "cut in the middle" in end.ended()
    assert stranger.is_sent_away()
    assert end.messages == []


def test_a_repeated_frame_ends_the_link(place: Place) -> None:
    stranger = Stranger(place.listener.address)
    seals = stranger.link()
    _, end = place.accepted[0]
    frame = pack(Kind.NOTE, {"n": 1}, [], seals.outgoing)
    stranger.send(frame)
    stranger.send(frame)
    assert "seal does not fit" in end.ended()
    assert stranger.is_sent_away()
    assert end.messages == [({"n": 1}, b"")]


def test_a_recorded_session_is_of_no_use(place: Place) -> None:
    first = Stranger(place.listener.address)
    seals = first.link()
    first.send(pack(Kind.NOTE, {"n": 1}, [], seals.outgoing))
    place.accepted[0][1].wait_for(1)
    again = Stranger(place.listener.address)
    again.socket.sendall(b"".join(first.sent))
    assert again.is_sent_away()
    assert len(place.accepted) == 1, "a replayed handshake makes no link"
    # Its messages do not belong to another session either.
    other = Stranger(place.listener.address)
    other.link()
    other.socket.sendall(first.sent[-1])
    assert "seal does not fit" in place.accepted[1][1].ended()
    assert other.is_sent_away()
    assert not place.accepted[1][1].messages
    first.socket.close()


@pytest.mark.parametrize("seed", range(8))
def test_a_changed_byte_ends_the_link(place: Place, seed: int) -> None:
    stranger = Stranger(place.listener.address)
    seals = stranger.link()
    _, end = place.accepted[0]
    frame = bytearray(b"".join(pack(Kind.NOTE, {"n": 1}, [b"body"], seals.outgoing)))
    chance = Random(seed)
    at = chance.randrange(PREFIX.size, len(frame))
    frame[at] ^= chance.randrange(1, 256)
    stranger.socket.sendall(frame)
    assert "seal does not fit" in end.ended()
    assert stranger.is_sent_away()
    assert not end.messages


WRONG: dict[str, list[tuple[Kind, dict[str, Any], bytes]]] = {
    "a request": [(Kind.REQUEST, {"do": "link", "introduction": {}}, b"")],
    "a greeting": [(Kind.HELLO, {}, b"")],
    "lengths that are none": [(Kind.CHUNK, {"header": "1", "body": 1}, b"")],
    "negative lengths": [(Kind.CHUNK, {"header": -1, "body": 5}, b"")],
    "no lengths": [(Kind.CHUNK, {}, b"")],
    "a message of nothing in pieces": [(Kind.CHUNK, {"header": 0, "body": 0}, b"")],
    "more than the limit": [(Kind.CHUNK, {"header": 1 << 29, "body": 1 << 40}, b"")],
    "a piece before its message": [(Kind.CHUNK, {}, b"piece")],
    "a piece too large": [(Kind.CHUNK, {"header": 0, "body": 4}, b""), (Kind.CHUNK, {}, b"large")],
    "an empty piece": [(Kind.CHUNK, {"header": 0, "body": 4}, b""), (Kind.CHUNK, {}, b"")],
    "the last piece too early": [(Kind.CHUNK, {"header": 0, "body": 4}, b""), (Kind.NOTE, {}, b"1")],
    "no last piece": [(Kind.CHUNK, {"header": 0, "body": 4}, b""), (Kind.CHUNK, {}, b"1234")],
    "a piece with a header": [(Kind.CHUNK, {"header": 0, "body": 4}, b""), (Kind.NOTE, {"x": 1}, b"1234")],
    "a header in pieces that is no JSON": [(Kind.CHUNK, {"header": 4, "body": 0}, b""), (Kind.NOTE, {}, b"{{{{")],
}


@pytest.mark.parametrize("frames", WRONG.values(), ids=WRONG)
def test_frames_that_are_no_messages_end_the_link(
    place: Place, frames: list[tuple[Kind, dict[str, Any], bytes]]
) -> None:
    stranger = Stranger(place.listener.address)
    seals = stranger.link()
    _, end = place.accepted[0]
    for kind, header, body in frames:
        stranger.send(pack(kind, header, [body] if body else [], seals.outgoing))
    assert "\n" not in end.ended()
    assert stranger.is_sent_away()
    assert not end.messages


@pytest.mark.parametrize(
    "header", [{"do": "put"}, {}, {"do": "link"}, {"do": "link", "introduction": 7}, {"do": "link", "introduction": []}]
)
def test_what_asks_for_no_link_is_refused(place: Place, header: dict[str, Any]) -> None:
    stranger = Stranger(place.listener.address)
    seals = stranger.greet()
    stranger.send(pack(Kind.REQUEST, header, [], seals.outgoing))
    failure = stranger.receive(seals.incoming, trusted=True)
    assert failure.kind is Kind.FAILURE
    assert failure.header["code"] == BadRequest.code
    assert stranger.is_sent_away()
    assert not place.accepted


# -- closing the listener ----------------------------------------------------------------------------------------------


def test_links_outlive_their_listener() -> None:
    place = Place()
    near, near_end, far, far_end = place.pair()
    stranger = Stranger(place.listener.address)
    place.listener.close()
    place.listener.close()
    assert stranger.is_sent_away()
    with pytest.raises(Unreachable):
        place.dial()
    near.send({"n": 1})
    far.send({"n": 2})
    far_end.wait_for(1)
    near_end.wait_for(1)
    place.close()


def test_a_listener_may_be_closed_by_on_link() -> None:
    place = Place()
    place.prepare = lambda end: place.listener.close()
    near, _, _, far_end = place.pair()
    near.send({"n": 1})
    far_end.wait_for(1)
    place.close()


# -- TLS ---------------------------------------------------------------------------------------------------------------


def test_links_below_tls(tmp_path: Path) -> None:
    tls = make_certificates(tmp_path)
    place = Place(tls=tls.context(serving=True))
    near, near_end, far, far_end = place.pair(tls=tls.context(serving=False))
    body = Random(1).randbytes(LARGEST_BODY + 17)
    for number in range(6):
        near.send({"n": number}, [body])
        far.send({"n": number}, [body])
    for end in (near_end, far_end):
        end.wait_for(6)
        assert [header["n"] for header, _ in end.messages] == list(range(6))
        assert all(found == body for _, found in end.messages)
    plain = Stranger(place.listener.address)
    plain.socket.sendall(b"".join(pack(Kind.HELLO, {"nonce": "00" * 32}, [], ClientHandshake(KEY).greeting.outgoing)))
    assert plain.is_sent_away()
    near.send({"last": 1})
    near.close()
    assert far_end.ended() == "closed by the other side"
    assert far_end.messages[-1][0] == {"last": 1}
    place.close()


def test_close_ends_a_tls_link_whose_other_side_does_not_read(tmp_path: Path) -> None:
    tls = make_certificates(tmp_path)
    place = Place(tls=tls.context(serving=True))
    near, near_end, _, far_end = place.pair(tls=tls.context(serving=False))
    stuck = threading.Event()
    far_end.on_message = lambda link, header, body: stuck.wait(DEADLINE) and None
    for _ in range(64):
        near.send({}, [bytes(1 << 20)])
    near.close()
    assert near_end.ended() == "closed"
    stuck.set()
    place.close()
