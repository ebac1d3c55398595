"""A run that an earlier version began goes on: what it wrote stays readable.

- `tests/data/runs/MONTH` is the directory of a run as it was written then: seven batches, a checkpoint after five, no
  files of nodes.
- `tests/data/changed-runs/MONTH.tar.gz` has all that a run can have without Spark (`golden.py`): records of progress
  and of batches, pieces, snapshots of every kind of operator, with outboxes and without, a layout that has changed,
  late rows, outputs, files of nodes. In `MONTH-marks.tar.gz` batches are marked in their records.
- `tests/data/spark-runs/MONTH` has what Spark adds: positions and files of a reader (`tests/spark/test_golden_run.py`).

A version that cannot continue them must keep a reader for their formats, and add a directory of its own. Fragments
(`tests/data/fragments`), descriptions (`tests/data/identity`) and events (`tests/data/events`) have tests of their own.
"""

from __future__ import annotations

import shutil
import tarfile
from functools import cache
from pathlib import Path

import pytest

from holdfast.ids import BatchId
from holdfast.runtime.in_process import run_in_process
from holdfast.runtime.io.logged_marks import ALL_PARTITIONS
from runtime import golden
from runtime.test_layout import app, batches, never_changed, rows, start

DATA = Path(__file__).parent.parent / "data"
RUNS = sorted((DATA / "runs").iterdir())
CHANGED = sorted((DATA / "changed-runs").iterdir())
MARKS = {1: True, 3: False, 5: True, 7: False, 9: False}
"""The marks of the run that has some, and whether they are durable; batch 4 is the fence between its layouts."""


@pytest.mark.parametrize("parallelism", [2, 4])
@pytest.mark.parametrize("run", RUNS, ids=lambda path: path.name)
def test_a_run_of_an_earlier_version_goes_on(run: Path, parallelism: int, tmp_path: Path) -> None:
    place, given = tmp_path / "run", batches(11, 12)
    shutil.copytree(run, place)
    goes_on = start(place, app(2))
    assert goes_on.frontier == 6
    goes_on.checkpoint()
    goes_on = start(place, app(parallelism))
    for batch in given[7:]:
        goes_on.feed(batch)
    goes_on.close()
    for name in ("totals", "threes"):
        assert rows(goes_on, name) == never_changed(given, name)


@cache
def golden_rows() -> dict[str, list[str]]:
    """Return the outputs and late rows of the golden application in a run that never changed or stopped."""
    run = run_in_process(golden.application(3), map(golden.batch, range(golden.BATCHES)))
    run.checkpoint()
    found = {name: rows(run, name) for name in run.program.output_names.values()}
    for operator in run.program.operators:
        late = run.late(operator)
        found[f"late {operator}"] = sorted(map(str, [] if late is None else late.to_pylist()))
    return found


@pytest.mark.parametrize("files_of_nodes", [True, False])
@pytest.mark.parametrize("parallelism", [2, 8])
@pytest.mark.parametrize("run", CHANGED, ids=lambda path: path.name)
def test_a_run_with_all_there_is_goes_on(run: Path, parallelism: int, files_of_nodes: bool, tmp_path: Path) -> None:
    with tarfile.open(run) as packed:
        packed.extractall(tmp_path, filter="data")
    if not files_of_nodes:
        for path in tmp_path.glob("node-*"):
            shutil.rmtree(path)
    goes_on = golden.start(tmp_path, 2)
    assert goes_on.frontier == golden.WRITTEN, "one more than batches were fed: a change of layout is one"
    goes_on.checkpoint()
    goes_on = golden.start(tmp_path, parallelism)
    for number in range(golden.WRITTEN, golden.BATCHES):
        goes_on.feed(golden.batch(number))
    goes_on.close()
    goes_on.checkpoint()
    expected = golden_rows()
    assert any(expected[name] for name in expected if name.startswith("late "))
    for name in goes_on.program.output_names.values():
        assert rows(goes_on, name) == expected[name] != []
    for operator in goes_on.program.operators:
        late = goes_on.late(operator)
        assert sorted(map(str, [] if late is None else late.to_pylist())) == expected[f"late {operator}"]


@pytest.mark.parametrize(("name", "durable"), [("2026-11", {}), ("2026-11-marks", MARKS)])
def test_marks_are_read_where_a_version_wrote_them(name: str, durable: dict[int, bool], tmp_path: Path) -> None:
    with tarfile.open(DATA / "changed-runs" / f"{name}.tar.gz") as packed:
        packed.extractall(tmp_path, filter="data")
    log = golden.start(tmp_path, 2).batch_log
    records = [record for number in range(golden.WRITTEN + 1) if (record := log.record(BatchId(number))) is not None]
    assert {one.batch: one.marks[ALL_PARTITIONS].durable for one in records if one.marks} == durable
    assert {one.logged_at is not None for one in records} == {bool(durable)}


@pytest.mark.parametrize("run", CHANGED, ids=lambda path: path.name)
def test_what_nodes_have_of_an_earlier_version_is_used(run: Path, tmp_path: Path) -> None:
    """Partitions stand where their files are: nothing is restored and nothing processed again."""
    with tarfile.open(run) as packed:
        packed.extractall(tmp_path, filter="data")
    assert sum(one.rows_in for one in golden.start(tmp_path, 2).measures().values()) == 0
