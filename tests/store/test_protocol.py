"""Frames and handshake without I/O: what fits is read, everything else is refused."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import BadInput, HoldfastError
from holdfast.store.wire.failures import NotTrusted, StaleEpoch, code_of, raised_again
from holdfast.store.wire.handshake import (
    ClientHandshake,
    ClusterKey,
    PeerHandshake,
    SessionSeals,
    key_from_secret,
    open_key,
)
from holdfast.store.wire.messages import (
    LARGEST_BODY,
    LARGEST_HEADER,
    PREFIX,
    SEAL_BYTES,
    BadFrame,
    Frame,
    Kind,
    Seals,
    pack,
    read_header,
    read_prefix,
    unpack,
)
from holdfast.store.wire.secret_files import keys_from_file, weakness

KEY = key_from_secret(b"a secret of the cluster")


def read(data: bytes, seals: Seals, *, trusted: bool = True) -> Frame:
    prefix = read_prefix(data[: PREFIX.size], trusted=trusted)
    if len(data) != PREFIX.size + prefix.rest:
        raise BadFrame("cut")
    return unpack(prefix, data[: PREFIX.size], data[PREFIX.size :], seals)


def written(kind: Kind, header: dict[str, object], body: list[bytes], seals: Seals) -> bytes:
    return b"".join(pack(kind, header, body, seals))


def shaken(client_key: ClusterKey, peer_key: ClusterKey) -> tuple[SessionSeals, SessionSeals]:
    client, peer = ClientHandshake(client_key), PeerHandshake(peer_key)
    challenge = peer.challenge(Frame(Kind.HELLO, client.hello(), b""))
    proof = client.prove(Frame(Kind.CHALLENGE, challenge, b""))
    welcome, peer_session = peer.welcome(Frame(Kind.PROOF, proof, b""))
    return client.finish(Frame(Kind.WELCOME, welcome, b"")), peer_session


@given(
    header=st.dictionaries(st.text(max_size=8), st.one_of(st.integers(), st.text(max_size=20), st.booleans())),
    body=st.lists(st.binary(max_size=200), max_size=4),
)
def test_a_frame_is_read_as_it_was_written(header: dict[str, object], body: list[bytes]) -> None:
    frame = read(written(Kind.CHUNK, header, body, Seals(b"k")), Seals(b"k"))
    assert (frame.kind, frame.header, bytes(frame.body)) == (Kind.CHUNK, header, b"".join(body))


@given(place=st.floats(0, 0.99999), bit=st.integers(0, 7))
@settings(max_examples=300)
def test_every_flipped_bit_on_the_wire_is_found(place: float, bit: int) -> None:
    data = bytearray(written(Kind.REQUEST, {"do": "find", "name": "x"}, [b"body" * 50], Seals(b"k")))
    data[int(place * len(data))] ^= 1 << bit
    with pytest.raises(BadFrame):
        read(bytes(data), Seals(b"k"))


@given(st.binary(max_size=400))
@settings(max_examples=300)
def test_noise_is_no_frame(noise: bytes) -> None:
    with pytest.raises((BadFrame, Exception)) as caught:
        read(noise.ljust(PREFIX.size, b"\0"), Seals(b"k"))
    assert isinstance(caught.value, BadFrame)


def test_replayed_reordered_and_foreign_frames_do_not_fit() -> None:
    client, peer = shaken(KEY, KEY)
    first = written(Kind.NOTE, {}, [b"1"], client.outgoing)
    read(first, peer.incoming)
    with pytest.raises(BadFrame, match="repeated"):
        read(first, peer.incoming)
    other_client, other_peer = shaken(KEY, KEY)
    with pytest.raises(BadFrame):
        read(first, other_peer.incoming)
    # What a client sent cannot be turned back on it.
    echoed = written(Kind.NOTE, {}, [b"1"], other_client.outgoing)
    with pytest.raises(BadFrame):
        read(echoed, other_client.incoming)
    fresh_client, fresh_peer = shaken(KEY, KEY)
    one, two = (written(Kind.NOTE, {}, [body], fresh_client.outgoing) for body in (b"1", b"2"))
    assert one != two
    with pytest.raises(BadFrame, match="out of order"):
        read(two, fresh_peer.incoming)


@pytest.mark.parametrize(
    ("header_bytes", "body_bytes", "trusted"),
    [
        (LARGEST_HEADER + 1, 0, True),
        (0, LARGEST_BODY + 1, True),
        (2**32 - 1, 2**32 - 1, True),
        (5000, 0, False),
        (0, 1, False),
    ],
)
def test_sizes_are_refused_before_anything_is_allocated(header_bytes: int, body_bytes: int, trusted: bool) -> None:
    with pytest.raises(BadFrame):
        read_prefix(PREFIX.pack(b"HF", 1, Kind.HELLO, header_bytes, body_bytes), trusted=trusted)


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind >= Kind.REQUEST])
def test_strangers_may_only_greet(kind: Kind) -> None:
    with pytest.raises(BadFrame, match="before the handshake"):
        read_prefix(PREFIX.pack(b"HF", 1, kind, 10, 0), trusted=False)


@pytest.mark.parametrize(("magic", "version", "kind"), [(b"HT", 1, 16), (b"HF", 2, 16), (b"HF", 0, 16), (b"HF", 1, 99)])
def test_other_protocols_are_refused(magic: bytes, version: int, kind: int) -> None:
    with pytest.raises(BadFrame):
        read_prefix(PREFIX.pack(magic, version, kind, 0, 0), trusted=True)


def test_a_frame_too_large_is_not_sent() -> None:
    with pytest.raises(BadFrame):
        pack(Kind.CHUNK, {}, [bytes(LARGEST_BODY), b"x"], Seals(b"k"))
    with pytest.raises(BadFrame):
        pack(Kind.CHUNK, {"x": "y" * LARGEST_HEADER}, [], Seals(b"k"))


@pytest.mark.parametrize("header", [b"[1]", b"7", b"{", b"\xff\xfe", b'{"a":' + b"[" * 40_000, b"null"])
def test_headers_that_are_no_objects_are_refused(header: bytes) -> None:
    with pytest.raises(BadFrame):
        read_header(header)


def test_both_sides_must_know_the_secret() -> None:
    client, peer = shaken(KEY, KEY)
    assert read(written(Kind.NOTE, {"a": 1}, [], client.outgoing), peer.incoming).header == {"a": 1}
    assert read(written(Kind.NOTE, {"b": 2}, [], peer.outgoing), client.incoming).header == {"b": 2}
    for client_key, peer_key in ((open_key(), KEY), (KEY, open_key()), (key_from_secret(b"other"), KEY)):
        with pytest.raises(NotTrusted):
            shaken(client_key, peer_key)


def test_a_false_peer_is_found_out() -> None:
    client, false = ClientHandshake(KEY), PeerHandshake(key_from_secret(b"guess"))
    challenge = false.challenge(Frame(Kind.HELLO, client.hello(), b""))
    proof = client.prove(Frame(Kind.CHALLENGE, challenge, b""))
    # It may send back what it got, or what its guess gives: neither is the peer's proof.
    for answer in (
        proof,
        {"proof": false.greeting.proof(key_from_secret(b"guess"), b"peer")},
        {"proof": ""},
        {"proof": 7},
        {},
    ):
        with pytest.raises(NotTrusted, match="does not know"):
            client.finish(Frame(Kind.WELCOME, answer, b""))


def test_a_recorded_proof_is_of_no_use() -> None:
    client, peer = ClientHandshake(KEY), PeerHandshake(KEY)
    hello = client.hello()
    proof = client.prove(Frame(Kind.CHALLENGE, peer.challenge(Frame(Kind.HELLO, hello, b"")), b""))
    peer.welcome(Frame(Kind.PROOF, proof, b""))
    later = PeerHandshake(KEY)
    later.challenge(Frame(Kind.HELLO, hello, b""))
    with pytest.raises(NotTrusted):
        later.welcome(Frame(Kind.PROOF, proof, b""))


@pytest.mark.parametrize("nonce", [None, 7, "", "00", "zz" * 32, "00" * 31, "00" * 33, ["00" * 32]])
def test_nonces_are_checked(nonce: object) -> None:
    with pytest.raises(BadFrame, match="nonce"):
        PeerHandshake(KEY).challenge(Frame(Kind.HELLO, {"nonce": nonce}, b""))


def test_secrets_stay_where_they_are(tmp_path: Path) -> None:
    assert "secret of" not in repr(KEY) + str(KEY)
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(KEY)
    path = tmp_path / "secret"
    with pytest.raises(BadInput, match="cannot read"):
        keys_from_file(path)
    path.write_text("  \n")
    path.chmod(0o600)
    with pytest.raises(BadInput, match="empty"):
        keys_from_file(path)
    path.write_text("short\n")
    assert keys_from_file(path).valid() == (key_from_secret(b"short"),)
    assert "shorter" in str(weakness(path))
    path.write_text("long enough for anybody to be safe")
    assert weakness(path) is None
    assert not keys_from_file(None).secret


def test_errors_travel_as_what_they_are() -> None:
    again = raised_again(code_of(StaleEpoch("x")), "epoch 1 is over", "here:1")
    assert isinstance(again, StaleEpoch)
    assert str(again) == "here:1: epoch 1 is over"
    assert isinstance(raised_again("never heard of", "x"), HoldfastError)


def test_the_seal_covers_all_and_nothing_else() -> None:
    """Golden: the format is written down; another version must not change it by accident."""
    data = written(Kind.REQUEST, {"do": "status"}, [b"ab", b"c"], Seals(bytes(32)))
    assert data[: PREFIX.size].hex() == "48460110" + "0000000f" + "00000003"
    assert json.loads(data[PREFIX.size : PREFIX.size + 15]) == {"do": "status"}
    assert data[-SEAL_BYTES - 3 : -SEAL_BYTES] == b"abc"
    assert data[-SEAL_BYTES:].hex() == "f3d762a8a8d2a4a51bc57ff54c26f9d7"
    assert data == written(Kind.REQUEST, {"do": "status"}, [b"abc"], Seals(bytes(32)))
