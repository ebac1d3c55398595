"""Secrets on real sockets: replaced without a stop, one namespace only, and in files that others cannot read."""

from __future__ import annotations

import asyncio
import os
import pickle
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.cli.main import run
from holdfast.erasure.fragment import StateId
from holdfast.erasure.layout import Coding
from holdfast.errors import BadInput
from holdfast.ids import BatchId, Epoch
from holdfast.store.client.client import connect
from holdfast.store.peer.limits import Limits
from holdfast.store.wire.address import Address
from holdfast.store.wire.connection import Connection, ConnectionPool
from holdfast.store.wire.failures import NotTrusted, Unreachable
from holdfast.store.wire.frames import FrameProtocol
from holdfast.store.wire.handshake import key_from_secret, namespace_key
from holdfast.store.wire.listener import Answer, Listener
from holdfast.store.wire.messages import Frame, Kind
from holdfast.store.wire.secret_files import SecretFile, check_private, keys_from_file
from holdfast_lab.testing.ring_of_peers import RingOfPeers

OLD, NEW = "the old secret of this cluster", "the new secret of this cluster"
DEADLINE = 120.0


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, f"not in {DEADLINE:g} s: {what}"
        time.sleep(0.02)


def write(path: Path, *lines: str) -> Path:
    """Replace a secret's file as an operator does: at once."""
    part = path.with_suffix(".new")
    part.write_text("".join(f"{line}\n" for line in lines))
    part.chmod(0o600)
    part.replace(path)
    return path


# The file


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660, 0o602, 0o620])
def test_a_file_that_others_may_use_is_refused_with_the_remedy(tmp_path: Path, mode: int) -> None:
    path = write(tmp_path / "secret", OLD)
    path.chmod(mode)
    if os.geteuid() != path.stat().st_uid:
        pytest.skip("the file belongs to another user")
    with pytest.raises(BadInput, match=f"mode {mode:o}.*chmod 600"):
        keys_from_file(path)
    assert run(["store", "status", "--peer", "127.0.0.1:1", "--secret-file", str(path)]) == 2


def test_a_file_of_root_may_be_read_by_its_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "secret", OLD)
    path.chmod(0o440)
    if path.stat().st_uid != 0:
        pytest.skip("only root can make a file of root")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    check_private(path, "the secret")
    path.chmod(0o444)
    with pytest.raises(BadInput, match="chmod 600"):
        check_private(path, "the secret")


@pytest.mark.parametrize("data", [b"a\nb\nc\n", b"\x00\x01\x02", b"\xff\xfe\xfd" * 9, b"with\ta tab\x07"])
def test_what_is_no_line_of_text_is_refused(tmp_path: Path, data: bytes) -> None:
    """Random bytes may hold a line break: taken as two secrets, each would be short."""
    path = write(tmp_path / "secret")
    path.write_bytes(data)
    with pytest.raises(BadInput, match="one line of text"):
        keys_from_file(path)


def test_a_changed_file_is_read_again_and_a_bad_one_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "secret", OLD)
    keys = SecretFile(path)
    old, new = key_from_secret(OLD.encode()), key_from_secret(NEW.encode())
    assert keys.valid() == (old,)
    write(path, NEW, OLD)
    assert keys.valid() == (new, old)
    write(path)
    assert keys.valid() == (new, old), "an empty file does not lock everybody out"
    path.chmod(0o644)
    assert keys.valid() == (new, old)
    path.unlink()
    assert keys.valid() == (new, old)
    write(path, NEW)
    assert keys.valid() == (new,)
    assert OLD not in caplog.text + repr(keys)
    assert NEW not in caplog.text
    assert "the secret is empty" in caplog.text
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(keys)


# Replacing it


def test_a_secret_is_replaced_while_a_ring_serves(tmp_path: Path) -> None:
    """Every peer and the client have files of their own, which change one after the other, in any order."""
    files = [write(tmp_path / f"secret{number}", OLD) for number in range(4)]
    options = {number: ["--secret-file", str(files[number])] for number in range(3)}
    with RingOfPeers(3, tmp_path / "ring", options_of=options, joined=False) as ring:
        store = connect(ring.addresses, secret_file=str(files[3]))
        until(lambda: all(len(connect_members(ring, one, files[3])) == 3 for one in range(3)), "three peers")
        saved: list[str] = []
        stop = threading.Event()
        failures: list[Exception] = []

        def save_all_the_time() -> None:
            while not stop.is_set():
                name = f"s{len(saved)}"
                try:
                    store.save(StateId("run", name), BatchId(0), Epoch(0), name.encode(), coding=Coding(2, 1))
                    saved.append(name)
                except Exception as error:
                    failures.append(error)
                    return

        def goes_on() -> None:
            count = len(saved)
            until(lambda: len(saved) > count + 3 or bool(failures), "more is saved")
            assert not failures, failures

        saver = threading.Thread(target=save_all_the_time)
        saver.start()
        try:
            goes_on()
            for file in (files[1], files[3], files[0], files[2]):
                write(file, NEW, OLD)
                goes_on()
            for file in (files[2], files[0], files[3], files[1]):
                write(file, NEW)
                goes_on()
        finally:
            stop.set()
            saver.join()
        assert not failures, failures
        for name in saved:
            assert bytes(store.load(StateId("run", name)).joined()) == name.encode()
        for peer in range(3):
            with pytest.raises(NotTrusted):
                Connection(Address.parse(ring.address(peer)), key_from_secret(OLD.encode()))
            assert len(connect_members(ring, peer, files[3])) == 3, "no peer was lost over it"
        store.close()


def connect_members(ring: RingOfPeers, peer: int, secret_file: Path) -> list[str]:
    store = connect(ring.address(peer), secret_file=str(secret_file))
    try:
        return [one.address for one in store.members()]
    finally:
        store.close()


class Door:
    """A listener of this process that answers pings."""

    def __init__(self, secret: Path, grace: float) -> None:
        self.port = 0
        self.listener: Listener | None = None
        self._ready, self._done = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(secret, grace)))
        self._thread.start()
        assert self._ready.wait(DEADLINE)

    async def _serve(self, secret: Path, grace: float) -> None:
        async def answer(protocol: FrameProtocol, frame: Frame) -> Answer:
            return Answer({"namespace": protocol.namespace})

        self.listener = Listener(SecretFile(secret), Limits(), answer, lambda note: None, grace_seconds=grace)
        self.port = await self.listener.open("127.0.0.1", 0)
        self._ready.set()
        while not self._done.is_set():
            await asyncio.sleep(0.02)
        await self.listener.close()

    def close(self) -> None:
        self._done.set()
        self._thread.join()


def test_connections_by_a_secret_that_was_removed_are_ended(tmp_path: Path) -> None:
    path = write(tmp_path / "secret", OLD)
    door = Door(path, grace=0.2)
    try:
        thief = Connection(Address("127.0.0.1", door.port), key_from_secret(OLD.encode()))
        thief.request("ping", {})
        pool = ConnectionPool(SecretFile(path))
        pool.request(Address("127.0.0.1", door.port), "ping", {})
        write(path, NEW, OLD)
        thief.request("ping", {})
        write(path, NEW)

        def is_ended() -> bool:
            try:
                thief.request("ping", {})
            except Unreachable:
                return True
            return False

        until(is_ended, "the thief's connection ends")
        pool.request(Address("127.0.0.1", door.port), "ping", {})
        pool.close()
    finally:
        door.close()


# One namespace


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RingOfPeers, Path, Path]]:
    """Return a ring, the cluster's secret, and the secret of namespace `mine`."""
    folder = tmp_path_factory.mktemp("namespaces")
    secret, mine = write(folder / "secret", NEW, OLD), folder / "mine"
    assert run(["store", "namespace-secret", "mine", str(mine), "--secret-file", str(secret)]) == 0
    with RingOfPeers(3, folder / "ring", secret_file=str(secret)) as ring:
        yield ring, secret, mine


def test_a_run_uses_its_own_namespace_and_no_other(place: tuple[RingOfPeers, Path, Path]) -> None:
    ring, secret, mine = place
    owner, member = connect(ring.addresses, secret_file=str(secret)), connect(ring.addresses, secret_file=str(mine))
    ours, theirs = StateId("mine", "state"), StateId("theirs", "state")
    owner.save(theirs, BatchId(0), Epoch(3), b"of another run", coding=Coding(2, 1))
    member.save(ours, BatchId(0), Epoch(1), b"my own", coding=Coding(2, 1))
    assert bytes(member.load(ours).joined()) == b"my own"
    assert bytes(owner.load(ours).joined()) == b"my own", "who has the cluster's secret reads all"
    member.fence("mine", Epoch(2))
    assert member.standing_epoch("mine") == 2
    assert member.standing_epoch("theirs") == 0, "what other runs do is not told"
    for wrong in (
        lambda: member.load(theirs),
        lambda: member.save(theirs, BatchId(1), Epoch(9), b"overwritten", coding=Coding(2, 1)),
        lambda: member.release(theirs, BatchId(9), Epoch(9)),
        lambda: member.forget("theirs", ["state"], Epoch(9)),
        lambda: member.fence("theirs", Epoch(9)),
    ):
        with pytest.raises(Exception, match="opens namespace 'mine'"):
            wrong()
    assert bytes(owner.load(theirs).joined()) == b"of another run"
    run_of_mine = StateId("mine-0123456789ab", "state")
    member.save(run_of_mine, BatchId(0), Epoch(1), b"of a run of mine", coding=Coding(2, 1))
    with pytest.raises(Exception, match="opens namespace 'mine'"):
        member.load(StateId("mine-or-theirs", "state"))
    owner.close()
    member.close()


@pytest.mark.parametrize("operation", ["inventory", "drop", "repair", "status", "restore", "restored"])
def test_what_concerns_all_runs_needs_the_clusters_secret(
    place: tuple[RingOfPeers, Path, Path], operation: str
) -> None:
    ring, _, mine = place
    connection = Connection(Address.parse(ring.address(0)), SecretFile(mine).valid()[0])
    with pytest.raises(NotTrusted, match="needs the cluster's secret"):
        connection.request(operation, {"namespace": "mine", "name": "x", "file": "f", "version": None})
    connection.close()


def test_a_member_of_one_namespace_is_no_peer(place: tuple[RingOfPeers, Path, Path]) -> None:
    ring, _, mine = place
    connection = Connection(Address.parse(ring.address(0)), SecretFile(mine).valid()[0])
    connection.send(Kind.NOTE, {}, [b"{}"])
    with pytest.raises(Unreachable):
        connection.request("ping", {})


def test_the_key_of_one_namespace_does_not_open_another(place: tuple[RingOfPeers, Path, Path]) -> None:
    ring, _, mine = place
    key = SecretFile(mine).valid()[0]
    stolen = type(key)(key.key, secret=True, namespace="theirs")
    with pytest.raises(NotTrusted):
        Connection(Address.parse(ring.address(0)), stolen)
    with pytest.raises(NotTrusted):
        Connection(Address.parse(ring.address(0)), type(key)(key.key, secret=True))
    Connection(Address.parse(ring.address(0)), namespace_key(key_from_secret(OLD.encode()), "theirs")).close()


def test_a_ring_may_have_the_secret_of_a_namespace(place: tuple[RingOfPeers, Path, Path], tmp_path: Path) -> None:
    """Agents of a run that has no other secret are full members of their own ring; strangers are those without it."""
    _, secret, mine = place
    with RingOfPeers(2, tmp_path / "ring", secret_file=str(mine)) as own:
        store = connect(own.addresses, secret_file=str(mine))
        store.save(StateId("mine", "x"), BatchId(0), Epoch(0), b"here", coding=Coding(1, 1))
        store.close()
        with pytest.raises(NotTrusted):
            Connection(Address.parse(own.address(0)), SecretFile(secret).valid()[0])


def test_the_file_of_a_namespace_is_private_and_of_no_further_use(
    place: tuple[RingOfPeers, Path, Path], tmp_path: Path
) -> None:
    _, secret, mine = place
    assert stat.S_IMODE(mine.stat().st_mode) == 0o600
    assert NEW not in mine.read_text()
    assert len(SecretFile(mine).valid()) == len(SecretFile(secret).valid()) == 2
    assert run(["store", "namespace-secret", "theirs", str(tmp_path / "x"), "--secret-file", str(mine)]) == 2
    with pytest.raises(BadInput, match="copy it whole"):
        SecretFile(write(tmp_path / "cut", mine.read_text().splitlines()[0][:-2]))
