"""One suite for every store of states: memory, a folder, and a ring of real peer processes."""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from holdfast.erasure.fragment import StateId
from holdfast.errors import HoldfastError
from holdfast.ids import BatchId, Epoch
from holdfast.store.client.client import connect
from holdfast.store.client.local import FolderStore, MemoryStore
from holdfast.store.client.states import StateStore
from holdfast.store.wire.failures import StaleEpoch, StateMissing
from holdfast_lab.testing.ring_of_peers import RingOfPeers

KINDS = ("memory", "folder", "peers")


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RingOfPeers]:
    with RingOfPeers(5, tmp_path_factory.mktemp("ring")) as running:
        yield running


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StateStore]:
    made: StateStore
    if request.param == "memory":
        made = MemoryStore()
    elif request.param == "folder":
        made = FolderStore(tmp_path / "folder")
    else:
        made = connect(request.getfixturevalue("ring").addresses)
    yield made
    made.close()


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> str:
    """Every test its own: the peers are shared."""
    return "n" + "".join(c for c in request.node.name if c.isalnum())[-60:]


def contents(size: int, seed: int = 1) -> bytes:
    return Random(seed).randbytes(size)


@pytest.mark.parametrize("size", [0, 1, 100, 65_536, 65_537, 1_000_003])
def test_what_is_saved_is_read_back(store: StateStore, namespace: str, size: int) -> None:
    state, data = StateId(namespace, "O3[0]"), contents(size)
    saved = store.save(state, BatchId(7), Epoch(1), data)
    assert (saved.bytes, saved.version, saved.epoch) == (size, 7, 1)
    assert saved.stored == saved.coding.total
    loaded = store.load(state)
    assert bytes(loaded.joined()) == data
    assert loaded.version == 7


def test_bytearrays_and_views_are_contents_too(store: StateStore, namespace: str) -> None:
    data = contents(10_000)
    for number, given in enumerate((bytearray(data), memoryview(data), memoryview(bytearray(data))[10:9000])):
        state = StateId(namespace, f"s{number}")
        store.save(state, BatchId(0), Epoch(0), given)
        assert bytes(store.load(state).joined()) == bytes(given)


def test_a_state_never_saved_is_missing(store: StateStore, namespace: str) -> None:
    state = StateId(namespace, "nothing")
    assert store.versions(state) == []
    with pytest.raises(StateMissing, match="nothing"):
        store.load(state)


def test_versions_are_kept_until_released(store: StateStore, namespace: str) -> None:
    state = StateId(namespace, "O1[2]")
    for version in range(4):
        store.save(state, BatchId(version), Epoch(1), contents(1000, version))
    assert [one.version for one in store.versions(state)] == [0, 1, 2, 3]
    assert bytes(store.load(state, BatchId(1)).joined()) == contents(1000, 1)
    store.release(state, BatchId(2), Epoch(1))
    assert [one.version for one in store.versions(state)] == [2, 3]
    with pytest.raises(StateMissing, match="version 1"):
        store.load(state, BatchId(1))
    assert bytes(store.load(state).joined()) == contents(1000, 3)


def test_base_and_deltas_are_read_as_one(store: StateStore, namespace: str) -> None:
    state = StateId(namespace, "O2[0]")
    store.save(state, BatchId(10), Epoch(1), b"base")
    store.save(state, BatchId(11), Epoch(1), b"+one", follows=BatchId(10))
    store.save(state, BatchId(13), Epoch(1), b"+two", follows=BatchId(11))
    loaded = store.load(state)
    assert [(part.version, bytes(part.contents)) for part in loaded.parts] == [
        (10, b"base"),
        (11, b"+one"),
        (13, b"+two"),
    ]
    assert bytes(loaded.joined()) == b"base+one+two"
    assert bytes(store.load(state, BatchId(11)).joined()) == b"base+one"


def test_a_delta_without_its_base_is_no_state(store: StateStore, namespace: str) -> None:
    state = StateId(namespace, "O2[1]")
    store.save(state, BatchId(5), Epoch(1), b"lonely", follows=BatchId(4))
    assert store.versions(state) == []
    with pytest.raises(StateMissing):
        store.load(state)
    store.save(state, BatchId(4), Epoch(1), b"base ")
    assert bytes(store.load(state).joined()) == b"base lonely"


def test_lower_epochs_are_refused(store: StateStore, namespace: str) -> None:
    state = StateId(namespace, "O4[0]")
    store.save(state, BatchId(1), Epoch(3), b"new")
    with pytest.raises(StaleEpoch, match="epoch 2"):
        store.save(state, BatchId(2), Epoch(2), b"zombie")
    with pytest.raises(StaleEpoch):
        store.save(StateId(namespace, "another"), BatchId(2), Epoch(2), b"zombie")
    with pytest.raises(StaleEpoch):
        store.release(state, BatchId(9), Epoch(2))
    assert bytes(store.load(state).joined()) == b"new"
    assert store.fence(namespace, Epoch(5)) == 5
    assert store.fence(namespace, Epoch(4)) == 5
    with pytest.raises(StaleEpoch):
        store.save(state, BatchId(2), Epoch(4), b"late")


def test_epochs_are_per_namespace(store: StateStore, namespace: str) -> None:
    store.fence(namespace, Epoch(9))
    store.save(StateId(namespace + "2", "x"), BatchId(0), Epoch(0), b"other application")


def test_a_higher_epoch_replaces_the_same_version(store: StateStore, namespace: str) -> None:
    state = StateId(namespace, "O5[0]")
    store.save(state, BatchId(6), Epoch(1), b"before the rollback")
    store.save(state, BatchId(7), Epoch(1), b"rolled back")
    store.save(state, BatchId(6), Epoch(2), b"after the rollback")
    assert bytes(store.load(state, BatchId(6)).joined()) == b"after the rollback"
    assert bytes(store.load(state).joined()) == b"after the rollback"


def test_saving_the_same_twice_is_fine(store: StateStore, namespace: str) -> None:
    state, data = StateId(namespace, "again"), contents(5000)
    for _ in range(2):
        saved = store.save(state, BatchId(1), Epoch(1), data)
        assert saved.stored == saved.coding.total
    assert bytes(store.load(state).joined()) == data


def test_into_a_file_or_not_at_all(store: StateStore, namespace: str, tmp_path: Path) -> None:
    state, data = StateId(namespace, "file"), contents(300_000)
    store.save(state, BatchId(1), Epoch(1), data)
    store.save(state, BatchId(2), Epoch(1), b"tail", follows=BatchId(1))
    loaded = store.load_into(state, tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == data + b"tail"
    assert loaded.part_bytes == (300_000, 4)
    (tmp_path / "kept").write_bytes(b"old")
    with pytest.raises(StateMissing):
        store.load_into(state, tmp_path / "kept", BatchId(99))
    assert (tmp_path / "kept").read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["back", "kept"]


def test_from_many_threads_at_once(store: StateStore, namespace: str) -> None:
    faults: list[BaseException] = []

    def work(number: int) -> None:
        try:
            state = StateId(namespace, f"t{number}")
            for version in range(3):
                store.save(state, BatchId(version), Epoch(1), contents(20_000, number * 10 + version))
                assert bytes(store.load(state).joined()) == contents(20_000, number * 10 + version)
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults, faults


@pytest.mark.parametrize("name", ["", "..", "../../etc/passwd", "/etc/passwd", "a/b", "a\0b", "x" * 201, "-rf", "ä"])
def test_names_that_could_be_paths_are_refused(name: str) -> None:
    with pytest.raises(HoldfastError):
        StateId("app", name)
    with pytest.raises(HoldfastError):
        StateId(name, "app")


def in_a_child(work: Callable[[], None]) -> int:
    """Run in a forked process; return its exit status."""
    child = os.fork()
    if child == 0:
        status = 1
        with contextlib.suppress(BaseException):
            work()
            status = 0
        os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_client_works_after_a_fork_and_in_its_parent(ring: RingOfPeers, namespace: str) -> None:
    """Spark's Python workers are forked from a daemon that may have imported and used anything."""
    store = connect(ring.addresses)
    state = StateId(namespace, "fork")
    store.save(state, BatchId(1), Epoch(1), contents(50_000))

    def child() -> None:
        assert bytes(store.load(state).joined()) == contents(50_000)
        store.save(state, BatchId(2), Epoch(1), contents(60_000))

    assert in_a_child(child) == 0
    assert bytes(store.load(state).joined()) == contents(60_000)
    store.save(state, BatchId(3), Epoch(1), contents(70_000))
    assert bytes(store.load(state).joined()) == contents(70_000)
    store.close()


def test_a_client_travels_without_its_secret(ring: RingOfPeers, tmp_path: Path, namespace: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text("never in a pickle, never in a log")
    secret.chmod(0o600)
    packed = pickle.dumps(connect(ring.addresses, secret_file=str(secret)))
    assert b"never in a pickle" not in packed
    store = pickle.loads(pickle.dumps(connect(ring.addresses)))
    store.save(StateId(namespace, "x"), BatchId(0), Epoch(0), b"travelled")
    assert bytes(store.load(StateId(namespace, "x")).joined()) == b"travelled"
    store.close()
