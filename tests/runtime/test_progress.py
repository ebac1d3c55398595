"""Claims and progress: what a killed, a second and a frozen driver find."""

from __future__ import annotations

from pathlib import Path
from threading import Thread

import pytest

from holdfast import Application
from holdfast.errors import BadInput, CheckFailed
from holdfast.ids import Epoch
from holdfast.recovery.events import Timer
from holdfast.runtime.coordinator.progress import KEPT, Progress, last_driver
from holdfast.runtime.in_process import InProcess
from holdfast.runtime.state.store import StaleEpoch
from holdfast.storage.files import FileStorage
from holdfast.storage.memory import MemoryStorage
from holdfast.storage.records import Records, Written

MACHINE = {"checkpoints": {"global": 7, "durable": 4}}
MEASURES = {"a[0]": {"cpu_seconds": 1.5, "rows_in": 20}}


def test_what_was_written_is_found(tmp_path: Path) -> None:
    first = Progress(FileStorage(tmp_path), "app")
    assert (first.claim, first.machine) == (1, None), "the run begins"
    first.write(Epoch.of(1, 3), MACHINE, MEASURES)
    assert (first.machine, first.measures) == (MACHINE, MEASURES)
    found = Progress(FileStorage(tmp_path), "app")
    assert (found.claim, found.machine, found.measures) == (2, MACHINE, MEASURES)
    assert found.run == first.run, "one name over all drivers: snapshots are found by it"
    assert found.run != Progress(MemoryStorage(), "app").run


def test_only_a_later_claim_ends_a_driver() -> None:
    storage = MemoryStorage()
    old = Progress(storage, "app")
    old.write(Epoch.of(1, 1), {"by": "old"}, {})
    old.write(Epoch.of(1, 9), {"by": "old, later"}, {})
    new = Progress(storage, "app")
    for number in (1, 9, 10):  # whatever epoch it is in
        with pytest.raises(StaleEpoch, match="claim 1 is over: another driver has taken a later one"):
            old.write(Epoch.of(1, number), {"by": "old"}, {})
    new.write(Epoch.of(2, 1), {"by": "new"}, {})
    assert Progress(storage, "app").machine == {"by": "new"}


def test_a_driver_whose_files_are_gone_sees_whether_it_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next driver has dropped a checkpoint that this one still counts on: no folder is to be brought back."""
    app = Application("x")
    app.source("s", schema={"n": "int64"}).output("out")
    run = InProcess(app, directory=tmp_path)

    def lost(event: object) -> None:
        raise CheckFailed("the durable checkpoint at batch 1 is lost")

    monkeypatch.setattr(run._coordinator.machine, "handle", lost)
    with pytest.raises(CheckFailed, match="is lost"):
        run._coordinator.handle(Timer())
    Progress(FileStorage(tmp_path), "x")
    with pytest.raises(StaleEpoch, match="claim 1 is over: another driver has taken a later one"):
        run._coordinator.handle(Timer())


def test_a_driver_that_starts_cannot_turn_progress_back() -> None:
    """Finding 1: B reads, A makes a durable checkpoint and trims its log, B writes what it has read."""

    class FreezesAfterReading(MemoryStorage):
        frozen = False

        def read(self, name: str):  # type: ignore[no-untyped-def]
            found = super().read(name)
            if self.frozen:
                self.frozen = False
                old.write(Epoch.of(1, 1), {"checkpoint": 2}, {})  # B is frozen here
            return found

    storage = FreezesAfterReading()
    old = Progress(storage, "app")
    old.write(Epoch.of(1, 1), {"checkpoint": 1}, {})
    storage.frozen = True
    new = Progress(storage, "app")
    assert new.machine == {"checkpoint": 2}, "its number was taken: it reads again"
    with pytest.raises(StaleEpoch):
        old.write(Epoch.of(1, 1), {"checkpoint": 3}, {})


def test_a_driver_that_was_frozen_for_long_finds_its_number_free_and_is_over_all_the_same() -> None:
    storage = MemoryStorage()
    old = Progress(storage, "app")
    new = Progress(storage, "app")
    for number in range(4 * KEPT):
        new.write(Epoch.of(2, 1), {"checkpoint": number}, {})
    assert len(storage.list("progress/")) <= 2 * KEPT, "old records are dropped"
    with pytest.raises(StaleEpoch):
        old.write(Epoch.of(1, 1), {"by": "old"}, {})
    new.write(Epoch.of(2, 1), {"checkpoint": "last"}, {})
    assert Progress(storage, "app").machine == {"checkpoint": "last"}


def test_a_write_whose_answer_was_lost_counts_when_it_is_repeated() -> None:
    class LosesAnswers(MemoryStorage):
        loses = True

        def create(self, name: str, data):  # type: ignore[no-untyped-def]
            new = super().create(name, data)
            if self.loses:
                self.loses = False
                raise OSError("timed out")
            return new

    records = Records(LosesAnswers(), "progress", version=1)
    with pytest.raises(OSError, match="timed out"):
        records.create(0, {"by": "me"})
    assert records.create(0, {"by": "me"}) is Written.CREATED
    assert records.create(0, {"by": "another"}) is Written.TAKEN


def test_of_many_drivers_each_has_a_claim_of_its_own(tmp_path: Path) -> None:
    claims: list[int] = []
    drivers = [
        Thread(target=lambda: claims.append(Progress(FileStorage(tmp_path), "app", run="r").claim)) for _ in range(8)
    ]
    for one in drivers:
        one.start()
    for one in drivers:
        one.join()
    assert len(set(claims)) == 8


def test_a_driver_that_ended_in_order_says_so() -> None:
    storage = MemoryStorage()
    assert last_driver(storage) is None
    progress = Progress(storage, "app", driver={"pid": 7})
    last = last_driver(storage)
    assert last is not None
    assert (last["ended"], last["driver"]["pid"]) == (False, 7)
    progress.end()
    assert (last_driver(storage) or {})["ended"]


@pytest.mark.parametrize(
    "text", [b"", b"{", b"holdfast-progress 4 0 00000000\n{}", b"holdfast-progress 4 9 a505df1b\n{}"]
)
def test_a_damaged_record_is_named(text: bytes) -> None:
    storage = MemoryStorage()
    storage.create("progress/000000000000", text)
    with pytest.raises(CheckFailed, match=r"progress/000000000000: is damaged"):
        Progress(storage, "app")


def test_a_record_of_another_version_says_so() -> None:
    storage = MemoryStorage()
    storage.create("progress/000000000000", b"holdfast-progress 99 0 00000000\n{}")
    with pytest.raises(BadInput, match="has format 99, and this version of Holdfast reads 4"):
        Progress(storage, "app")


def test_another_application_is_refused() -> None:
    storage = MemoryStorage()
    Progress(storage, "one")
    with pytest.raises(BadInput, match="belongs to application 'one', not 'two'"):
        Progress(storage, "two")


@pytest.mark.parametrize("name", ["/home/me/x", "../../x", "..", "straße 7", "a/b", "x" * 300])
def test_a_run_is_named_so_that_it_is_one_folder_wherever_it_stands(name: str, tmp_path: Path) -> None:
    run = Progress(MemoryStorage(), name).run
    assert Path(run).name == run
    assert (tmp_path / run).parent == tmp_path
    (tmp_path / run).mkdir()


def test_a_driver_whose_directory_was_deleted_does_not_end_the_run_that_has_begun_there() -> None:
    storage = MemoryStorage()
    frozen = Progress(storage, "app")
    for number in range(5):
        frozen.write(Epoch.of(1, 1), {"checkpoint": number}, {})
    storage.delete(storage.list())  # by hand; then another run begins
    new = Progress(storage, "app")
    with pytest.raises(StaleEpoch):
        frozen.write(Epoch.of(1, 1), {"checkpoint": 9}, {})
    new.write(Epoch.of(1, 1), {"checkpoint": 0}, {})
    assert Progress(storage, "app").machine == {"checkpoint": 0}
    assert Progress(storage, "app").run == new.run != frozen.run
