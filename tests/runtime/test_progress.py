"""The batch log: what a killed, a second and an old driver find."""

from __future__ import annotations

import fcntl
import threading
from pathlib import Path

import pytest

from holdfast.errors import BadInput, CheckFailed
from holdfast.ids import Epoch
from holdfast.runtime.coordinator.progress import MemoryProgress, ProgressFile, ProgressRecord
from holdfast.runtime.state.store import StaleEpoch

MACHINE = {
    "checkpoints": {"global": 7, "durable": 4, "snapshots": {"a[0]": [[7, 2, None, None, False, 0]]}},
}
MEASURES = {"a[0]": {"cpu_seconds": 1.5, "rows_in": 20}}


def test_what_was_written_is_found(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    first = ProgressFile(path, "app")
    assert (first.claim, first.machine) == (1, None), "the run begins"
    first.write(Epoch.of(1, 3), MACHINE, MEASURES)
    assert (first.machine, first.measures) == (MACHINE, MEASURES)
    found = ProgressFile(path, "app")
    assert (found.claim, found.machine, found.measures) == (2, MACHINE, MEASURES)
    assert found.run == first.run, "one name over all drivers: snapshots are found by it"
    assert sorted(tmp_path.iterdir()) == [tmp_path / ".progress.json.lock", path], "nothing else is left beside it"


def test_two_runs_have_two_names(tmp_path: Path) -> None:
    assert ProgressFile(tmp_path / "one", "app").run != ProgressFile(tmp_path / "two", "app").run


def test_only_a_higher_claim_ends_a_driver(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    old = ProgressFile(path, "app")
    old.write(Epoch.of(1, 1), {"by": "old"}, {})
    old.write(Epoch.of(1, 9), {"by": "old, later"}, {})
    new = ProgressFile(path, "app")
    for number in (1, 9, 10):  # whatever epoch it is in
        with pytest.raises(StaleEpoch, match="another driver has taken claim 2"):
            old.write(Epoch.of(1, number), {"by": "old"}, {})
    new.write(Epoch.of(2, 1), {"by": "new"}, {})
    assert ProgressFile(path, "app").machine == {"by": "new"}


def test_a_claim_is_taken_over_what_is_written_at_that_moment(tmp_path: Path) -> None:
    """A driver that starts while another one makes a checkpoint has either none of it, or ends the other first.

    Before claims, the second could read, be overtaken by the first's checkpoint, and turn progress back.
    """
    path = tmp_path / "progress.json"
    old = ProgressFile(path, "app")
    old.write(Epoch.of(1, 1), {"checkpoint": 1}, {})
    new = ProgressFile(path, "app")
    with pytest.raises(StaleEpoch):
        old.write(Epoch.of(1, 1), {"checkpoint": 2}, {})
    assert new.machine == {"checkpoint": 1}
    new.write(Epoch.of(2, 1), dict(new.machine), {})
    assert ProgressFile(path, "app").machine == {"checkpoint": 1}


def test_a_driver_looks_and_writes_in_one_step(tmp_path: Path) -> None:
    """While another one writes it waits; one that is frozen in the middle is named, and nothing is written."""
    path = tmp_path / "progress.json"
    mine = ProgressFile(path, "app", lock_seconds=0.05)
    before = path.read_bytes()
    with (tmp_path / ".progress.json.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(CheckFailed, match="another driver has been writing"):
            mine.write(Epoch.of(1, 1), {"by": "mine"}, {})
        with pytest.raises(CheckFailed, match="another driver has been writing"):
            ProgressFile(path, "app", lock_seconds=0.05)
        claims: list[int] = []
        waits = threading.Thread(target=lambda: claims.append(ProgressFile(path, "app").claim))
        waits.start()
        waits.join(0.1)
        assert waits.is_alive()
        assert path.read_bytes() == before
    waits.join()
    assert claims == [2]
    with pytest.raises(StaleEpoch):
        mine.write(Epoch.of(1, 1), {"by": "mine"}, {})


def test_memory_keeps_to_the_same() -> None:
    record = ProgressRecord()
    old = MemoryProgress(record=record)
    assert (old.claim, old.machine) == (1, None)
    old.write(Epoch.of(1, 2), MACHINE, MEASURES)
    assert old.machine == MACHINE
    new = MemoryProgress(record=record)
    assert (new.claim, new.machine) == (2, MACHINE)
    with pytest.raises(StaleEpoch, match="another driver has taken claim 2"):
        old.write(Epoch.of(1, 3), {}, {})
    new.write(Epoch.of(2, 1), {"by": "new"}, MEASURES)
    assert MemoryProgress(record=record).machine == {"by": "new"}


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", '{"application": "app"}', '{"application": "app", "run": "r", "claim": "x", "machine": {}}'),
        '{"application": "app", "run": "r", "claim": 1, "machine": []}',
    ],
)
def test_a_damaged_file_is_named(text: str, tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    path.write_text(text)
    with pytest.raises(CheckFailed, match="damaged"):
        ProgressFile(path, "app")
    assert path.read_text() == text


def test_a_file_of_another_version_says_so(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    path.write_text('{"holdfast-progress": 2, "application": "app", "run": "r", "epoch": 4, "machine": {}}')
    with pytest.raises(BadInput, match="has format 2, and this version of Holdfast reads 3"):
        ProgressFile(path, "app")


def test_another_application_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    ProgressFile(path, "one")
    with pytest.raises(BadInput, match="belongs to application"):
        ProgressFile(path, "two")


@pytest.mark.parametrize("name", ["/home/me/x", "../../x", "..", "straße 7", "a/b", "x" * 300])
def test_a_run_is_named_so_that_it_is_one_folder_wherever_it_stands(name: str, tmp_path: Path) -> None:
    run = ProgressFile(tmp_path / "progress.json", name).run
    assert Path(run).name == run
    assert (tmp_path / run).parent == tmp_path
    (tmp_path / run).mkdir()
