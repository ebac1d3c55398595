"""Certificates on real sockets: members of a run, and everybody who is not, each refused with one line."""

from __future__ import annotations

import datetime
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import BadInput
from holdfast.spark.certificates import RunAuthority, RunTls, tls_mode
from holdfast.spark.settings import Settings
from holdfast.store.wire.address import Address
from holdfast.store.wire.connection import Connection
from holdfast.store.wire.failures import NotTrusted, StoreError
from holdfast.store.wire.handshake import key_from_random
from holdfast.store.wire.link import Link, LinkListener, dial
from holdfast.store.wire.tls import TlsFiles, TlsMaterial

KEY = key_from_random(b"the run's own random secret bytes")
RUN = RunAuthority()


def on_link(link: Link) -> tuple[Any, Any]:
    return (lambda link, header, body: link.send({"echo": bytes(body).decode()})), (lambda link, why: None)


@pytest.fixture(scope="module")
def listener() -> Iterator[LinkListener]:
    tls = RUN.issue(["127.0.0.1"]).context(serving=True)
    listening = LinkListener("127.0.0.1", 0, KEY, on_link, tls=tls)
    yield listening
    listening.close()


def linked(listener: LinkListener, tls: TlsMaterial | TlsFiles | None, **options: Any) -> Link:
    context = None if tls is None else tls.context(serving=False)
    address = Address(options.pop("host", "127.0.0.1"), listener.address.port)
    return dial(address, KEY, {}, lambda *given: None, lambda *given: None, tls=context, **options)


def test_members_of_a_run_are_linked(listener: LinkListener) -> None:
    linked(listener, RUN.issue(["127.0.0.5"])).close()


def test_another_authority_is_refused_by_who_connects(listener: LinkListener) -> None:
    """With the right secret, and a certificate of another run."""
    with pytest.raises(NotTrusted, match="of another authority") as refused:
        linked(listener, RunAuthority().issue(["127.0.0.1"]))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("refused_before_the_first_frame", [False, True])
def test_another_authority_is_refused_by_who_listens(
    listener: LinkListener,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    refused_before_the_first_frame: bool,
) -> None:
    """A stranger that trusts the run's authority, and has a certificate of its own."""
    other, ours = RunAuthority().issue(["127.0.0.1"]), RUN.issue(["127.0.0.1"])
    before = listener.counts["strangers"]
    if refused_before_the_first_frame:
        send = Connection.send

        def late(connection: Connection, *given: Any) -> None:
            until(lambda: listener.counts["strangers"] > before, "the refusal")
            send(connection, *given)

        monkeypatch.setattr(Connection, "send", late)
    with pytest.raises(NotTrusted, match="refused this side's certificate: it is of another authority"):
        linked(listener, TlsMaterial(other.certificate, other.key, ours.authority))

    def refused() -> int:
        return sum("of another authority" in line for line in caplog.messages)

    # Who dials may dial again before it knows why it was refused.
    until(lambda: listener.counts["strangers"] - before == refused() >= 1, "a count and a line for each refusal")
    assert "PRIVATE KEY" not in caplog.text


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.01)


def test_an_expired_certificate_is_refused() -> None:
    past = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=30)
    expired = RunAuthority(valid=datetime.timedelta(days=1), began=past)
    tls = expired.issue(["127.0.0.1"]).context(serving=True)
    listening = LinkListener("127.0.0.1", 0, KEY, on_link, tls=tls)
    try:
        with pytest.raises(NotTrusted, match="has expired"):
            linked(listening, expired.issue(["127.0.0.1"]))
    finally:
        listening.close()


def test_a_certificate_for_another_name_is_refused() -> None:
    """A node of the run that listens where another one should."""
    tls = RUN.issue(["127.0.0.9", "other.example"]).context(serving=True)
    listening = LinkListener("127.0.0.1", 0, KEY, on_link, tls=tls)
    try:
        with pytest.raises(NotTrusted, match="for another name"):
            linked(listening, RUN.issue(["127.0.0.1"]))
    finally:
        listening.close()


def test_without_a_certificate_or_without_tls_nobody_gets_in(listener: LinkListener) -> None:
    with pytest.raises(StoreError):
        linked(listener, None, connect_seconds=30.0)
    with socket.create_connection(("127.0.0.1", listener.address.port), 120) as stranger:
        stranger.sendall(b"HF" + bytes(200))
        stranger.settimeout(120)
        while stranger.recv(4096):
            pass


def test_a_side_with_tls_does_not_talk_to_one_without() -> None:
    plain = LinkListener("127.0.0.1", 0, KEY, on_link)
    try:
        with pytest.raises(StoreError):
            linked(plain, RUN.issue(["127.0.0.1"]))
    finally:
        plain.close()


def test_tls_does_not_replace_the_secret(listener: LinkListener) -> None:
    context = RUN.issue(["127.0.0.1"]).context(serving=False)
    with pytest.raises(NotTrusted, match="secret"):
        dial(listener.address, key_from_random(os.urandom(32)), {}, lambda *g: None, lambda *g: None, tls=context)


def test_keys_are_in_no_text_and_a_users_key_must_be_private(tmp_path: Path) -> None:
    material = RUN.issue(["127.0.0.1"])
    assert "PRIVATE" not in repr(material) + str(material)
    paths = [tmp_path / name for name in ("cert.pem", "key.pem", "ca.pem")]
    for path, data in zip(paths, (material.certificate, material.key, material.authority), strict=True):
        path.write_bytes(data)
        path.chmod(0o644)
    files = TlsFiles(*map(str, paths), names=True)
    with pytest.raises(BadInput, match="chmod 600"):
        files.context(serving=True)
    paths[1].chmod(0o600)
    files.context(serving=True)


def test_the_mode_follows_the_host_unless_it_is_set() -> None:
    assert tls_mode(Settings(), "127.0.0.1") == "off"
    assert tls_mode(Settings(), "10.0.0.5") == "run"
    assert tls_mode(Settings(tls_mode="off"), "10.0.0.5") == "off"
    assert RunTls(Settings(), ("127.0.0.1", "127.0.0.1")).driver is None
    assert isinstance(RunTls(Settings(tls_mode="run"), ("127.0.0.1", "driver.example")).driver, TlsMaterial)
    with pytest.raises(BadInput, match=r"tls\.cert"):
        RunTls(Settings(tls_mode="files"), ("127.0.0.1",))
