"""A durable snapshot is looked for on the ring first, then in the run's storage, then in both once more."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from holdfast.erasure.fragment import StateId
from holdfast.erasure.layout import Coding
from holdfast.ids import BatchId, Epoch
from holdfast.spark.snapshot_store import NodeSnapshotStore
from holdfast.storage.memory import MemoryStorage
from holdfast.store.agent.snapshot_names import key_of
from holdfast.store.agent.spool import Spool
from holdfast.store.agent.spool_files import FILES, SpoolFiles
from holdfast.store.agent.spool_orders import SpoolOrders, SpoolServiceSettings
from holdfast.store.client.retrieving import Progress
from holdfast.store.client.states import Contents, LoadedFile, Saved
from holdfast.store.wire.failures import StateMissing, Unreachable

NAME, BASE = "run/O1-0/c1.0-3.1", "run/O1-0/c1.0-3.1-d"
DATA = b"a state" * 100


class Ring:
    """A ring of peers that can lack everything, or answer to nobody."""

    def __init__(self) -> None:
        self.held: dict[StateId, bytes] = {}
        self.reachable, self.asked = True, 0
        self.between: Callable[[], None] = lambda: None
        """Called before each fragment comes."""

    def save(self, state: StateId, version: BatchId, epoch: Epoch, contents: Contents) -> Saved:
        self.held[state] = bytes(contents)
        return Saved(state, version, epoch, len(contents), Coding(2, 1), 3, holders=("a", "b", "c"), peers=3)

    def load_into(self, state: StateId, path: Path, version: BatchId | None, progress: Progress) -> LoadedFile:
        self.asked += 1
        if not self.reachable:
            raise Unreachable("no peer answered")
        if state not in self.held:
            raise StateMissing("too few fragments")
        for fetched in (1, 2):
            self.between()
            progress(fetched, 2)
        path.write_bytes(self.held[state])
        size = len(self.held[state])
        return LoadedFile(state, BatchId(0), path, (size,), 2, (), 0.5, 0.1, size + 10, 0.4, 0.3, Coding(2, 1))

    def forget(self, namespace: str, names: Sequence[str], epoch: Epoch) -> list[str]:
        return []

    def standing_epoch(self, namespace: str) -> Epoch:
        return Epoch(1)

    def close(self) -> None:
        pass


class Now:
    """Threads that do everything at once."""

    def submit(self, work: Any, *given: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(work(*given, **named))
        except OSError as error:
            done.set_exception(error)
        return done


class FailingStorage(MemoryStorage):
    """Storage that can be away."""

    away = False

    def read(self, name: str) -> pa.Buffer | None:
        if self.away:
            raise OSError("storage is away")
        return super().read(name)


class ClockFiles(SpoolFiles):
    """Files on a clock that a test moves on."""

    ahead = 0.0

    def now(self) -> float:
        return super().now() + self.ahead


class Node:
    """A node: spool, agent, ring, storage and a clock that the test moves."""

    def __init__(self, folder: Path) -> None:
        self.now, self.ring, self.storage = 0.0, Ring(), FailingStorage()
        self.files = ClockFiles()
        self.spool = Spool(folder, files=self.files)
        self.agent = SpoolOrders(folder, lambda: self.ring, None, SpoolServiceSettings(), lambda: self.now)
        self.store = NodeSnapshotStore(self.storage, self.spool, Now(), lambda: self.now)
        (folder / "heartbeat").touch()

    def work(self) -> None:
        for order in self.agent.take():
            self.agent.carry_out(order)

    def save(self, name: str) -> None:
        self.store.save(name, DATA, epoch=1, durable=True)
        self.work()
        answer = self.store.saved(name)
        assert answer is not None
        assert answer.problem is None

    def fetch(self, name: str) -> bytes | str | None:
        """Ask as a worker does, once."""
        found = self.store.fetched(name)
        if found is not None:
            return bytes(found)
        self.store.fetch(name)
        reason = self.store.lost(name)
        self.work()
        return reason

    def until(self, name: str, seconds: float = 60.0) -> bytes | str:
        until = self.now + seconds
        while self.now < until:
            if (found := self.fetch(name)) is not None:
                return found
            self.now += 0.5
        raise AssertionError("nothing came of it")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "spool")


@pytest.mark.parametrize("name", [NAME, BASE])
def test_bases_and_changes_come_from_peers(node: Node, name: str) -> None:
    node.save(name)
    assert node.until(name) == DATA
    origin = node.store.origin(name)
    assert origin.peer_bytes > len(DATA)
    assert (origin.folder_bytes, origin.node_bytes) == (0, 0)
    assert (origin.seconds, origin.predicted_seconds) == (0.4, 0.3)


def test_a_folder_that_is_gone_costs_nothing(node: Node) -> None:
    node.save(BASE)
    node.storage.delete([BASE])
    assert node.until(BASE) == DATA
    assert node.ring.asked == 1


def test_what_the_ring_lacks_is_read_from_the_folder_at_once(node: Node) -> None:
    node.save(BASE)
    node.ring.held.clear()
    assert node.until(BASE) == DATA
    assert node.now <= 1.0, "one look at the ring is enough where there is a copy"
    assert node.store.origin(BASE).folder_bytes == len(DATA)
    assert node.store.origin(BASE).peer_bytes == 0


def test_peers_that_do_not_answer_are_given_two_seconds_where_there_is_a_copy(node: Node) -> None:
    node.save(BASE)
    node.ring.reachable = False
    assert node.until(BASE) == DATA
    assert 2.0 <= node.now <= 5.0
    assert node.store.origin(BASE).folder_bytes == len(DATA)


def test_peers_that_come_back_have_what_the_folder_lacks(node: Node) -> None:
    node.save(BASE)
    node.storage.delete([BASE])
    held, node.ring.held = node.ring.held, {}
    for _ in range(5):
        assert node.fetch(BASE) is None
        node.now += 0.5
    node.ring.held = held
    assert node.until(BASE) == DATA
    assert node.store.origin(BASE).peer_bytes > 0


def test_what_neither_has_is_lost_and_says_why(node: Node) -> None:
    node.save(BASE)
    node.storage.delete([BASE])
    node.ring.held.clear()
    reason = node.until(BASE)
    assert isinstance(reason, str)
    assert "too few fragments" in reason
    assert "not in the run's storage" in reason
    assert node.now >= 5.0, "the ring may be repairing"


def test_a_storage_that_is_back_has_the_last_word(node: Node) -> None:
    node.save(BASE)
    held = node.storage.read(BASE)
    assert held is not None
    kept = held.to_pybytes()
    node.storage.delete([BASE])
    node.ring.held.clear()
    for _ in range(5):
        assert node.fetch(BASE) is None
        node.now += 0.5
    node.storage.create(BASE, kept)
    assert node.until(BASE) == DATA
    assert node.store.origin(BASE).folder_bytes == len(DATA)


@pytest.mark.parametrize("name", [NAME, BASE])
def test_who_looks_seldom_sees_every_answer_of_the_agent(node: Node, name: str) -> None:
    """A cycle may take longer than an answer is new: it was removed unseen, and asked for again, for ever."""
    node.save(name)
    node.ring.held.clear()
    found = None
    for _ in range(6):
        if (found := node.fetch(name)) is not None:
            break
        node.now += 10.0
        node.files.ahead += 10.0
        os.utime(node.spool.folder / "heartbeat", (node.files.now(), node.files.now()))
    assert found == DATA if name == BASE else "too few fragments" in str(found)


def test_storage_that_fails_is_no_storage_without_a_copy(node: Node) -> None:
    node.save(BASE)
    node.ring.held.clear()
    node.storage.away = True
    for _ in range(200):
        assert node.fetch(BASE) is None
        node.now += 0.5
    node.storage.away = False
    assert node.until(BASE) == DATA


def test_a_node_whose_agent_does_not_run_reads_the_folder(node: Node, tmp_path: Path) -> None:
    node.save(BASE)
    (node.spool.folder / "heartbeat").unlink()
    store = NodeSnapshotStore(node.storage, node.spool, Now(), lambda: node.now)
    while (found := store.fetched(BASE)) is None:
        store.fetch(BASE)
        assert store.lost(BASE) is None
        assert node.now < 60
        node.now += 1.0
    assert bytes(found) == DATA
    assert node.now >= 10.0, "an agent may just be starting"


class FullDisk:
    """The files of a node whose disk can be full."""

    def __init__(self) -> None:
        self.full = False

    def __getattr__(self, name: str) -> Any:
        return getattr(FILES, name)

    def write(self, path: Path, parts: Any) -> None:
        if self.full:
            raise OSError(28, "No space left on device")
        FILES.write(path, parts)


def test_a_full_disk_is_no_answer_of_the_ring(node: Node) -> None:
    node.save(BASE)
    node.storage.delete([BASE])
    disk = FullDisk()
    spool = Spool(node.spool.folder, files=cast("SpoolFiles", disk))
    node.store = NodeSnapshotStore(node.storage, spool, Now(), lambda: node.now)
    disk.full = True
    for _ in range(200):
        assert node.fetch(BASE) is None
        node.now += 0.5
    disk.full = False
    assert node.until(BASE) == DATA


def test_a_fetch_that_takes_a_while_says_how_far_it_is_and_a_quick_one_writes_nothing(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.save(NAME)
    seen: list[tuple[int, int] | None] = []

    def take_a_while() -> None:
        seen.append(node.store.progress(NAME))
        node.now += 1.0

    node.ring.between = take_a_while
    assert node.until(NAME) == DATA
    assert seen == [None, (1, 2)]
    assert node.store.progress(NAME) is None, "what is over is not under way"
    assert not list((tmp_path / "answers").glob("*.fetching"))
    (tmp_path / "snapshots" / key_of(NAME)).unlink()
    node.ring.between = lambda: seen.append(node.store.progress(NAME))
    assert node.until(NAME) == DATA
    assert seen[2:] == [None, None]
