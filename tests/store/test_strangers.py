"""Strangers at a real peer's door: refused, logged without secrets, and nobody else is harmed."""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from holdfast.cli.main import run
from holdfast.erasure.encoding import describe
from holdfast.erasure.fragment import FragmentHeader, StateId
from holdfast.erasure.layout import Coding
from holdfast.errors import HoldfastError
from holdfast.ids import BatchId, Epoch
from holdfast.store.client.client import PeerStore, connect
from holdfast.store.wire.address import Address
from holdfast.store.wire.connection import Connection
from holdfast.store.wire.failures import BadRequest, NotTrusted, Unreachable
from holdfast.store.wire.handshake import ClientHandshake, key_from_secret, open_key
from holdfast.store.wire.messages import PREFIX, Frame, Kind, pack, read_prefix, unpack
from holdfast.store.wire.secret_files import keys_from_file
from holdfast_lab.testing.ring_of_peers import RingOfPeers
from store.certificates import make_certificates

SECRET = "the cluster's own secret, 0123456789"


@pytest.fixture(scope="module")
def secret_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("secret") / "secret"
    path.write_text(SECRET)
    path.chmod(0o600)
    return str(path)


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory, secret_file: str) -> Iterator[RingOfPeers]:
    with RingOfPeers(3, tmp_path_factory.mktemp("ring"), secret_file=secret_file) as running:
        yield running


@pytest.fixture(autouse=True)
def unharmed(ring: RingOfPeers, secret_file: str, request: pytest.FixtureRequest) -> Iterator[None]:
    """After every test of this file: the ring serves those who know the secret, and the logs do not hold it."""
    yield
    store = connect(ring.addresses, secret_file=secret_file)
    state = StateId("unharmed", "x" + "".join(c for c in request.node.name if c.isalnum())[:80])
    store.save(state, BatchId(0), Epoch(0), b"still here", coding=Coding(2, 1))
    assert bytes(store.load(state).joined()) == b"still here"
    store.close()
    key = key_from_secret(SECRET.encode()).key
    for peer in range(3):
        assert ring.alive(peer)
        text = ring.log(peer).read_text() + ring.output(peer).read_text()
        assert SECRET not in text
        assert key.hex() not in text
        assert "Traceback" not in text, text


def until(condition: Callable[[], bool], what: str, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not in {seconds:g} s: {what}"
        time.sleep(0.02)


def where(ring: RingOfPeers) -> Address:
    return Address.parse(ring.address(0))


def refused(ring: RingOfPeers, what: str) -> int:
    connection = Connection(where(ring), key_from_secret(SECRET.encode()))
    counts = connection.request("status", {}).header["refused"]
    connection.close()
    return int(counts.get(what, 0))


def test_without_the_secret(ring: RingOfPeers) -> None:
    before = refused(ring, "strangers")
    with pytest.raises(NotTrusted, match="this cluster has a secret"):
        Connection(where(ring), open_key())
    assert refused(ring, "strangers") == before + 1


def test_with_a_wrong_secret(ring: RingOfPeers) -> None:
    with pytest.raises(NotTrusted, match="not the cluster's"):
        Connection(where(ring), key_from_secret(b"a guess"))


def test_commands_end_with_one_line(ring: RingOfPeers, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("wrong")
    wrong.chmod(0o600)
    for extra in ([], ["--secret-file", str(wrong)]):
        assert run(["store", "status", "--peer", ring.address(0), *extra]) == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1
        assert "--secret-file" in err


def test_a_client_with_a_secret_does_not_talk_to_a_peer_without(tmp_path: Path, secret_file: str) -> None:
    with RingOfPeers(1, tmp_path / "open") as open_ring, pytest.raises(NotTrusted):
        Connection(Address.parse(open_ring.address(0)), keys_from_file(secret_file).valid()[0])


def test_no_secret_no_service_beyond_loopback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for host in ("0.0.0.0", "192.0.2.1", "::", "example.org"):
        assert run(["store", "serve", "--data", str(tmp_path / "d"), "--port", "0", "--host", host]) == 2
        assert "without a secret" in capsys.readouterr().err


def greeted(ring: RingOfPeers) -> socket.socket:
    return socket.create_connection(("127.0.0.1", where(ring).port), 120)


def ends(stranger: socket.socket) -> bool:
    """Return whether the peer closes the connection; whatever it says before is ignored."""
    stranger.settimeout(120)
    try:
        while stranger.recv(4096):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize("seed", range(30))
def test_noise_ends_only_its_own_connection(ring: RingOfPeers, seed: int) -> None:
    chance = Random(seed)
    with greeted(ring) as stranger:
        kind = seed % 6
        if kind == 0:
            noise = chance.randbytes(chance.randrange(12, 5000))
        elif kind == 1:
            noise = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
        elif kind == 2:
            noise = struct.pack("!2sBBII", b"HF", 1, chance.choice([1, 16, 19, 20]), 2**31, 2**31)
        elif kind == 3:
            head = json.dumps({"nonce": "00" * 32}).encode()
            noise = struct.pack("!2sBBII", b"HF", 1, 1, len(head), 0) + head + chance.randbytes(16)
        elif kind == 4:
            noise = b"".join(pack(Kind.HELLO, {"nonce": chance.choice([7, None, "x", []])}, [], open_greeting()))
        else:
            noise = b"".join(pack(Kind.PROOF, {"proof": "0" * 64}, [], open_greeting()))
        stranger.sendall(noise)
        assert ends(stranger)


def open_greeting():  # type: ignore[no-untyped-def]
    return ClientHandshake(open_key()).greeting.outgoing


def test_a_recorded_session_cannot_be_played_again(ring: RingOfPeers) -> None:
    """Everything a trusted client ever sent, byte by byte, on a new connection."""
    key = key_from_secret(SECRET.encode())
    sent: list[bytes] = []
    with greeted(ring) as client:
        shake = ClientHandshake(key)

        def send(kind: Kind, header: dict[str, object]) -> None:
            sent.append(b"".join(pack(kind, header, [], shake.greeting.outgoing)))
            client.sendall(sent[-1])

        def receive() -> Frame:
            head = client.recv(PREFIX.size, socket.MSG_WAITALL)
            prefix = read_prefix(head, trusted=False)
            return unpack(prefix, head, client.recv(prefix.rest, socket.MSG_WAITALL), shake.greeting.incoming)

        send(Kind.HELLO, shake.hello())
        send(Kind.PROOF, shake.prove(receive()))
        session = shake.finish(receive())
        sent.append(
            b"".join(pack(Kind.REQUEST, {"do": "fence", "namespace": "replayed", "epoch": 77}, [], session.outgoing))
        )
        client.sendall(sent[-1])
        assert client.recv(PREFIX.size, socket.MSG_WAITALL)
        # The last frame once more on the same connection: its number has passed.
        client.sendall(sent[-1])
        assert ends(client)
    before = refused(ring, "strangers")
    with greeted(ring) as thief:
        for data in sent:
            thief.sendall(data)
        assert ends(thief)
    assert refused(ring, "strangers") == before + 1


def test_half_a_greeting_is_not_waited_for_for_ever(ring: RingOfPeers) -> None:
    before = refused(ring, "slow greetings")
    with greeted(ring) as slow:
        slow.sendall(b"HF")
        assert ends(slow)
    assert refused(ring, "slow greetings") == before + 1


def test_a_crowd_of_strangers_does_not_lock_members_out(ring: RingOfPeers, secret_file: str) -> None:
    crowd = [greeted(ring) for _ in range(300)]
    try:
        store = connect(ring.addresses, secret_file=secret_file)
        store.save(StateId("crowd", "x"), BatchId(0), Epoch(0), b"let in", coding=Coding(2, 1))
        store.close()
    finally:
        for stranger in crowd:
            stranger.close()


@pytest.fixture
def member(ring: RingOfPeers) -> Iterator[Connection]:
    connection = Connection(where(ring), key_from_secret(SECRET.encode()))
    yield connection
    connection.close()


BAD_REQUESTS: list[tuple[str, dict[str, object]]] = [
    ("no-such-thing", {}),
    ("find", {}),
    ("find", {"namespace": "a", "name": 7}),
    ("find", {"namespace": "a", "name": "../../../etc/passwd"}),
    ("find", {"namespace": "..", "name": "x"}),
    ("find", {"namespace": "a", "name": "x/../../y"}),
    ("find", {"namespace": "a", "name": "x" * 5000}),
    ("find", {"namespace": "a\0", "name": "x"}),
    ("locate", {"namespace": "a"}),
    ("fence", {"namespace": "a", "epoch": -1}),
    ("fence", {"namespace": "a", "epoch": 2**63}),
    ("fence", {"namespace": "a", "epoch": "9"}),
    ("fence", {"namespace": "../a", "epoch": 9}),
    ("fence", {"namespace": "a", "epoch": True}),
    ("release", {"namespace": "a", "name": "x", "before": 1}),
    ("read", {"first": 0, "count": 1}),
    ("put", {}),
    ("drop", {}),
    ("inventory", {"first": "xyz", "last": "0", "skip": 0}),
    ("inventory", {"first": "f" * 40, "last": "0", "skip": 0}),
    ("restore", {"namespace": "a", "name": "x", "version": None, "file": "../../../tmp/owned"}),
    ("restore", {"namespace": "a", "name": "x", "version": None, "file": "/tmp/owned"}),
    ("restore", {"namespace": "a", "name": "x", "version": None, "file": ".hidden"}),
    ("restore", {"namespace": "a", "name": "x", "version": "1", "file": "f"}),
]


@pytest.mark.parametrize(("operation", "header"), BAD_REQUESTS)
def test_members_cannot_ask_for_anything_odd(member: Connection, operation: str, header: dict[str, object]) -> None:
    with pytest.raises(BadRequest):
        member.request(operation, header)
    assert "address" in member.request("status", {}).header, "the connection goes on"


@pytest.mark.parametrize("seed", range(20))
def test_fuzzed_requests_of_a_member_do_no_harm(ring: RingOfPeers, seed: int) -> None:
    chance = Random(seed)
    values: list[object] = [0, 1, -1, 2**70, "", "x", "..", None, True, [], {}, 1.5, "0" * 32]
    fields = [
        "namespace",
        "name",
        "epoch",
        "before",
        "first",
        "last",
        "skip",
        "count",
        "file",
        "ticket",
        "version",
        "end",
    ]
    operations = ["put", "read", "find", "inventory", "locate", "members", "release", "drop", "fence", "fences"]
    operations += ["restore", "restored", "status"]
    header = FragmentHeader(describe(b"x" * 500, StateId("fuzz", "x"), BatchId(1), Epoch(0), Coding(2, 1)), 0).pack()
    connection = Connection(where(ring), key_from_secret(SECRET.encode()), answer_seconds=3)
    try:
        for _ in range(12):
            asked = {chance.choice(fields): chance.choice(values) for _ in range(chance.randrange(5))}
            body = bytearray(chance.choice([b"", header, header * 2, chance.randbytes(100)]))
            if body and chance.random() < 0.5:
                body[chance.randrange(len(body))] ^= 1 << chance.randrange(8)
            operation = chance.choice(operations)
            kind = chance.choice([Kind.REQUEST] * 8 + [Kind.CHUNK, Kind.NOTE, Kind.ANSWER, Kind.WELCOME])
            connection.send(kind, {"do": operation, **asked}, [body])
            if kind is Kind.REQUEST:
                answer = connection.receive(3)
                if answer.kind is Kind.ANSWER and operation == "put" and not answer.header.get("here"):
                    connection.send(Kind.CHUNK, {}, [chance.randbytes(chance.randrange(2000))])
                    connection.send(Kind.CHUNK, {"end": True})
                    connection.receive(3)
    except (HoldfastError, Unreachable):
        pass  # It was sent away: right so.
    finally:
        connection.close()


def test_a_put_that_breaks_off_leaves_nothing(ring: RingOfPeers) -> None:
    state = describe(bytes(500_000), StateId("broken", "off"), BatchId(1), Epoch(0), Coding(2, 1))
    incoming = ring.data(0) / "incoming"
    until(lambda: not list(incoming.iterdir()), "what others broke off is gone")
    connection = Connection(where(ring), key_from_secret(SECRET.encode()))
    connection.request("put", {}, [FragmentHeader(state, 0).pack()])
    connection.send(Kind.CHUNK, {}, [bytes(10)])
    assert len(list(incoming.iterdir())) == 1
    connection.close()
    until(lambda: not list(incoming.iterdir()), "nothing is left")


def test_nothing_was_written_outside_the_data_folders(ring: RingOfPeers) -> None:
    assert {path.name for path in ring.folder.iterdir()} == {
        f"peer{n}{end}" for n in range(3) for end in ("", ".log", ".out")
    }
    assert not os.path.exists("/tmp/owned")


def test_tls_hides_what_is_sent_and_still_asks_for_the_secret(tmp_path: Path, secret_file: str) -> None:
    files = make_certificates(tmp_path)
    tls = ["--tls-cert", files.certificate, "--tls-key", files.key, "--tls-authority", files.authority]
    with RingOfPeers(3, tmp_path / "ring", tls, secret_file=secret_file, joined=False) as ring:
        put = tmp_path / "in"
        put.write_bytes(Random(1).randbytes(300_000))
        common = ["--peer", ring.address(0), *tls]
        until(lambda: len(members(ring, common, secret_file, tmp_path)) == 3, "three peers")
        assert run(["store", "put", "x", str(put), *common, "--secret-file", secret_file]) == 0
        assert run(["store", "get", "x", str(tmp_path / "out"), *common, "--secret-file", secret_file]) == 0
        assert (tmp_path / "out").read_bytes() == put.read_bytes()
        assert run(["store", "get", "x", str(tmp_path / "no"), *common]) == 1, "TLS does not replace the secret"
        assert run(["store", "status", "--peer", ring.address(0), "--secret-file", secret_file]) == 1, (
            "nor the other way"
        )
        with greeted_port(ring.address(0)) as stranger:
            stranger.sendall(b"HF" + bytes(50))
            assert ends(stranger)


def members(ring: RingOfPeers, common: list[str], secret_file: str, tmp_path: Path) -> list[str]:
    from holdfast.store.client.client import ClientSettings
    from holdfast.store.wire.tls import TlsFiles

    store = PeerStore(ClientSettings((common[1],), secret_file, TlsFiles(common[3], common[5], common[7])))
    found = [one.address for one in store.members()]
    store.close()
    return found


def greeted_port(address: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", Address.parse(address).port), 120)
