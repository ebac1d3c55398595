"""A spool on a disk that is full, cannot be read or was torn by a crash: the node has a problem, and says so."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.erasure.fragment import StateId
from holdfast.ids import BatchId
from holdfast.store.agent.spool import Spool
from holdfast.store.agent.spool_files import SpoolFiles
from holdfast.store.agent.spool_orders import SpoolOrders, SpoolServiceSettings
from holdfast.store.client.states import LoadedFile
from holdfast.store.wire.failures import StaleEpoch

NAME = "run/O3-0/c1.0-4.7"


class BadDisk(SpoolFiles):
    """Fails to write, or to read, on request."""

    def __init__(self) -> None:
        self.full = self.unreadable = False

    def write(self, path: Path, pieces: Sequence[bytes | memoryview]) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(path, pieces)

    def read(self, path: Path, most: int | None = None) -> bytes:
        if self.unreadable:
            raise OSError(errno.EIO, "Input/output error")
        return super().read(path, most)

    def touch(self, path: Path) -> None:
        if self.unreadable:
            raise OSError(errno.EIO, "Input/output error")
        super().touch(path)


@pytest.fixture
def disk() -> BadDisk:
    return BadDisk()


@pytest.fixture
def spool(tmp_path: Path, disk: BadDisk) -> Spool:
    return Spool(tmp_path / "spool", files=disk)


def test_an_answer_that_cannot_be_read_is_a_problem_of_the_save(spool: Spool, disk: BadDisk) -> None:
    """Found by the simulator, seed 75: it ended the run."""
    spool.save(NAME, b"state", epoch=1, durable=False)
    disk.unreadable = True
    answer = spool.saved(NAME)
    assert answer is not None
    assert "Input/output error" in str(answer.problem)
    spool.save("run/O3-1/c1.0-4.7", b"state", epoch=1, durable=False)


def test_a_snapshot_that_cannot_be_read_is_fetched_again(spool: Spool, disk: BadDisk) -> None:
    disk.unreadable = True
    spool.fetch(NAME)
    assert spool.fetched(NAME) is None
    assert "Input/output error" in str(spool.lost(NAME))
    disk.unreadable = False
    spool.fetch(NAME)
    assert spool.lost(NAME) is None


def test_a_full_disk_is_told_and_tried_again(spool: Spool, disk: BadDisk) -> None:
    disk.full = True
    spool.save(NAME, b"state", epoch=1, durable=False)
    answer = spool.saved(NAME)
    assert answer is not None
    assert "No space left" in str(answer.problem)
    disk.full = False
    spool.save(NAME, b"state", epoch=1, durable=False)
    assert (spool.folder / "orders").is_dir()
    assert [path.suffix for path in (spool.folder / "orders").iterdir()] == [".save"]


class Fenced:
    """A ring in which a later epoch has begun."""

    def save(self, *given: Any) -> Any:
        raise StaleEpoch("epoch 1 of 'run' is fenced: epoch 2 has started")

    load_into = forget = standing_epoch = save

    def close(self) -> None:
        pass


def test_an_order_that_is_refused_stays_until_its_answer_can_be_written(spool: Spool, disk: BadDisk) -> None:
    """Found by the simulator, seed 97868923083: removed without an answer, nobody saved the snapshot any more."""
    now = 0.0
    settings = SpoolServiceSettings()
    orders = SpoolOrders(spool.folder, Fenced, None, settings, lambda: now, disk)
    spool.save(NAME, b"state", epoch=1, durable=False)
    disk.full = True
    for order in orders.take():
        orders.carry_out(order)
    assert list((spool.folder / "orders").iterdir()), "it is tried again"
    disk.full = False
    now += settings.retry_most
    for order in orders.take():
        orders.carry_out(order)
    answer = spool.saved(NAME)
    assert answer is not None
    assert answer.final
    assert not list((spool.folder / "orders").iterdir())


class DamagedOnce:
    """A ring that has enough fragments: what is rebuilt from them is short by a byte the first time."""

    def __init__(self, whole: bytes) -> None:
        self._whole, self.looks = whole, 0

    def load_into(self, state: StateId, path: Path, *rest: Any) -> LoadedFile:
        self.looks += 1
        data = self._whole[: -1 if self.looks == 1 else None]
        path.write_bytes(data)
        return LoadedFile(state, BatchId(0), path, (len(data),), 1)

    def close(self) -> None:
        pass


def test_a_rebuilt_snapshot_that_is_damaged_is_rebuilt_again_and_not_given_up(tmp_path: Path, disk: BadDisk) -> None:
    """Found by the simulator, seed 213247036511: the node that restored it gave it up after one look."""
    saving = Spool(tmp_path / "saving", files=disk)
    saving.save(NAME, b"state", epoch=1, durable=False)
    (order,) = (tmp_path / "saving" / "orders").iterdir()
    ring, now = DamagedOnce(order.read_bytes()), 0.0
    spool = Spool(tmp_path / "restoring", files=disk)
    orders = SpoolOrders(spool.folder, lambda: ring, None, SpoolServiceSettings(), lambda: now, disk)  # type: ignore[arg-type, return-value]
    spool.fetch(NAME, quick=True)
    for _ in range(3):
        for one in orders.take():
            orders.carry_out(one)
        assert spool.lost(NAME) is None
        now += 1.0
    data = spool.fetched(NAME)
    assert data is not None
    assert data.to_pybytes() == b"state"
    assert ring.looks == 2
