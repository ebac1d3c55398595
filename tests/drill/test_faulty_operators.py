"""Operators that raise and hang on command, in one process: one query is parked, all others are exact, then all are."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.application import Application
from holdfast.drill.checkers import compare_rows
from holdfast.drill.driver import DriverJob, read_job
from holdfast.drill.faulty_operators import (
    HANG,
    POISON,
    FaultyStep,
    aimed_query,
    is_hang_untaken,
    with_faulty_operators,
)
from holdfast.drill.reference import output_names
from holdfast.drill.resuming import parked_queries, resume_queries
from holdfast.drill.scenarios import SCENARIOS
from holdfast.drill.settings import DrillSettings
from holdfast.runtime import InProcess
from holdfast.runtime.coordinator.parking import ErrorSettings
from holdfast.storage.files import FileStorage


def job(folder: Path, **asked: bool) -> DriverJob:
    settings = DrillSettings("traffic", **asked)  # type: ignore[arg-type]
    return DriverJob(settings, "", "", "", -1, 1, faults_folder=str(folder))


@pytest.mark.parametrize(("scenario", "query"), [("traffic", "jams[1]"), ("hashtags", "top-12[0]"), ("chain", "O8[2]")])
def test_the_least_valuable_query_that_no_other_needs_is_aimed_at(scenario: str, query: str) -> None:
    topology = SCENARIOS[scenario].application().topology()
    assert str(aimed_query(topology)) == query


def test_a_hang_waits_for_rows_and_the_drill_sees_whether_it_came(tmp_path: Path) -> None:
    aimed = aimed_query(SCENARIOS["traffic"].application().topology())
    step = FaultyStep(aimed, str(tmp_path))
    rows = pa.table({"n": [1]})
    assert not is_hang_untaken(tmp_path)
    (tmp_path / HANG).write_text("0.0")
    step(aimed, 3, [rows.slice(0, 0), None])
    assert is_hang_untaken(tmp_path)
    step(aimed, 4, [rows])
    assert not is_hang_untaken(tmp_path)


def test_a_poisoned_query_is_parked_alone_and_comes_back_exact(tmp_path: Path) -> None:
    scenario = SCENARIOS["traffic"]
    faults = tmp_path / "faults"
    faults.mkdir()
    app = with_faulty_operators(scenario.application(), job(faults, poison=True))
    aimed = aimed_query(app.topology())
    run = InProcess(app, directory=tmp_path / "run", errors=ErrorSettings(retries=0))
    storage = FileStorage(tmp_path / "run")
    expected = InProcess(scenario.application())
    for number, batch in enumerate(scenario.batches(3, 12, 60)):
        if number == 4:
            (faults / POISON).touch()
        run.feed(batch)
        expected.feed(batch)
    assert set(run.parked) == {aimed}
    assert "PoisonRow: a poisoned row in batch" in run.parked[aimed].error
    assert parked_queries(storage) == (str(aimed),)
    (faults / POISON).unlink()
    assert resume_queries(storage) == (str(aimed),)
    deadline = time.monotonic() + 60.0
    while run.parked and time.monotonic() < deadline:  # requests are read once a second
        run.run()
    run.close()
    expected.close()
    assert not run.parked
    for name in output_names(app):
        assert compare_rows(expected.rows(name), run.rows(name)).holds, name


def test_a_hang_is_taken_once_and_by_the_aimed_partition_with_rows(tmp_path: Path) -> None:
    app = SCENARIOS["chain"].application()
    aimed = aimed_query(app.topology())
    rows = next(iter(SCENARIOS["chain"].batches(1, 1, 5)))["S"]
    step = FaultyStep(aimed, str(tmp_path))
    (tmp_path / HANG).write_text("0.05")
    step(aimed, 0, [None])
    step(type(aimed)(aimed.operator, aimed.index - 1), 0, [rows])
    assert (tmp_path / HANG).exists(), "without rows, and in another partition, nothing happens"
    began = time.monotonic()
    step(aimed, 0, [rows])
    assert time.monotonic() - began >= 0.05
    assert not (tmp_path / HANG).exists()
    step(aimed, 1, [rows])


def test_a_drill_without_such_faults_runs_the_application_as_it_is(tmp_path: Path) -> None:
    app: Application = SCENARIOS["traffic"].application()
    assert with_faulty_operators(app, job(tmp_path)) is app
    with_faulty_operators(app, job(tmp_path, hang=True))
    assert app.before_steps == {}, "a user's application is not changed"


def test_a_driver_reads_the_job_that_was_written(tmp_path: Path) -> None:
    given = DriverJob(
        DrillSettings("traffic", poison=True),
        "spark://somewhere:7077",
        "place",
        "out",
        5,
        3,
        take_over=True,
        input_folder="in",
        faults_folder="faults",
        conf={"spark.holdfast.exchange": "shuffle"},
        session={"spark.cores.max": "4"},
    )
    given.write(tmp_path / "job.json")
    assert read_job(tmp_path / "job.json") == given
