"""The batch log: what a killed, a second and an old driver find."""

from __future__ import annotations

import fcntl
import threading
from pathlib import Path

import pytest

from holdfast.errors import BadInput, CheckFailed
from holdfast.ids import Epoch
from holdfast.runtime.coordinator.progress import NO_EPOCH, MemoryProgress, ProgressFile, ProgressShelf
from holdfast.runtime.state.store import StaleEpoch

MACHINE = {
    "epoch": 3,
    "checkpoints": {"global": 7, "durable": 4, "snapshots": {"a[0]": [[7, 2, None, None, False, 0]]}},
}
MEASURES = {"a[0]": {"cpu_seconds": 1.5, "rows_in": 20}}


def test_what_was_written_is_found(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    first = ProgressFile(path, "app")
    assert (first.epoch, first.machine) == (NO_EPOCH, None), "the run begins"
    first.write(Epoch(3), MACHINE, MEASURES)
    assert (first.epoch, first.machine, first.measures) == (3, MACHINE, MEASURES)
    found = ProgressFile(path, "app")
    assert (found.epoch, found.machine, found.measures) == (3, MACHINE, MEASURES)
    assert found.run == first.run, "one name over all drivers: snapshots are found by it"
    assert sorted(tmp_path.iterdir()) == [tmp_path / ".progress.json.lock", path], "nothing else is left beside it"


def test_two_runs_have_two_names(tmp_path: Path) -> None:
    assert ProgressFile(tmp_path / "one", "app").run != ProgressFile(tmp_path / "two", "app").run


def test_an_old_driver_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    old = ProgressFile(path, "app")
    old.write(Epoch(1), {"by": "old"}, {})
    new = ProgressFile(path, "app")
    new.write(Epoch(2), {"by": "new"}, {})
    for epoch in (1, 2, 3):  # an old driver counts on
        with pytest.raises(StaleEpoch, match="another driver has begun 2"):
            old.write(Epoch(epoch), {"by": "old"}, {})
    assert ProgressFile(path, "app").machine == {"by": "new"}


def test_a_driver_looks_and_writes_in_one_step(tmp_path: Path) -> None:
    """While another one writes it waits; one that is frozen in the middle is named, and nothing is written."""
    path = tmp_path / "progress.json"
    old, new = ProgressFile(path, "app"), ProgressFile(path, "app", patience=0.05)
    with (tmp_path / ".progress.json.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(CheckFailed, match="another driver is in the middle of writing"):
            new.write(Epoch(1), {"by": "new"}, {})
        waits = threading.Thread(target=old.write, args=(Epoch(1), {"by": "old"}, {}))
        waits.start()
        waits.join(0.1)
        assert waits.is_alive()
        assert not path.exists()
    waits.join()
    assert ProgressFile(path, "app").machine == {"by": "old"}
    with pytest.raises(StaleEpoch):
        new.write(Epoch(1), {"by": "new"}, {})


def test_memory_keeps_to_the_same() -> None:
    shelf = ProgressShelf()
    old = MemoryProgress(shelf=shelf)
    assert (old.epoch, old.machine) == (NO_EPOCH, None)
    old.write(Epoch(2), MACHINE, MEASURES)
    assert (old.epoch, old.machine) == (2, MACHINE)
    new = MemoryProgress(shelf=shelf)
    assert (new.epoch, new.machine) == (2, MACHINE)
    new.write(Epoch(3), {"by": "new"}, MEASURES)
    for epoch in (2, 3, 4):
        with pytest.raises(StaleEpoch, match="another driver has begun 3"):
            old.write(Epoch(epoch), {}, {})
    assert MemoryProgress(shelf=shelf).machine == {"by": "new"}


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", '{"application": "app"}', '{"application": "app", "run": "r", "epoch": "x", "machine": {}}'),
        '{"application": "app", "run": "r", "epoch": 1, "machine": []}',
    ],
)
def test_a_damaged_file_is_named(text: str, tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    path.write_text(text)
    with pytest.raises(CheckFailed, match="damaged"):
        ProgressFile(path, "app")
    assert path.read_text() == text


def test_another_application_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    ProgressFile(path, "one").write(Epoch(1), {}, {})
    with pytest.raises(BadInput, match="belongs to application"):
        ProgressFile(path, "two")


@pytest.mark.parametrize("name", ["/home/me/x", "../../x", "..", "straße 7", "a/b", "x" * 300])
def test_a_run_is_named_so_that_it_is_one_folder_wherever_it_stands(name: str, tmp_path: Path) -> None:
    run = ProgressFile(tmp_path / "progress.json", name).run
    assert Path(run).name == run
    assert (tmp_path / run).parent == tmp_path
    (tmp_path / run).mkdir()
