"""A poison row in the lowest query, with tasks that stay: only that query is parked, and it goes on when resumed."""

from __future__ import annotations

import os
import signal
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from holdfast import Application
from holdfast.cli.main import run as command
from holdfast.errors import BadInput
from holdfast.runtime import run_in_process
from holdfast.runtime.messages import OperatorFailed
from holdfast.spark.run import SparkRun
from holdfast.spark.settings import Settings

SCHEMA = {"n": "int64"}


def poisoned(cause: Path, how: str, *, good: int = 2, bad: bool = True) -> Application:
    """A query of priority 9 that takes every row, one of priority 1 that fails at a row while the cause is there."""

    def look(rows: pa.Table) -> pa.Table:
        if 13 in rows["n"].to_pylist() and cause.exists():
            if how == "dies":
                os.kill(os.getpid(), signal.SIGSEGV)
            raise ValueError("thirteen")
        return rows

    app = Application("poisoned")
    source = app.source("s", schema=SCHEMA, parallelism=2)
    source.map(lambda rows: rows, schema=SCHEMA, id="good", parallelism=good).output("good", priority=9)
    if bad:
        source.map(look, schema=SCHEMA, id="bad", parallelism=2).output("bad", priority=1)
    return app


def as_numbers(rows: pa.Table) -> list[int]:
    return sorted(rows["n"].to_pylist())


@pytest.mark.cluster
@pytest.mark.parametrize("how", ["raises", "dies"])
def test_a_poison_row_parks_its_query_alone(unhurried: SparkSession, tmp_path: Path, how: str) -> None:
    cause = tmp_path / "cause"
    cause.touch()
    given = [{"s": pa.table({"n": [10 * batch + one for one in range(10)]})} for batch in range(6)]
    events: list[Any] = []
    settings = replace(Settings.read(unhurried), exchange="resident", errors_retries=1, errors_backoff=0.1)
    app = poisoned(cause, how)
    run = SparkRun(app, unhurried, tmp_path / "run", settings=settings, emit=events.append)
    try:
        for batch in given:
            run.log(batch)
        named = r"bad\[\d\], batch 1: .*parked: bad\[\d\]; remove the cause"
        with pytest.raises(OperatorFailed, match=named) as caught:
            run.run()
        assert ("SIGSEGV" if how == "dies" else "ValueError: thirteen") in str(caught.value)
        (query,) = run.coordinator.state.parked
        whole = list(range(60))
        assert as_numbers(run.rows("good")) == whole, "the highest query is complete"
        left = len(whole) - len(as_numbers(run.rows("bad")))
        assert 0 < left < len(whole), "the other partition of the output goes on"
        kinds = [seen.kind for seen in events]
        assert kinds.count("parked") == 1
        assert kinds.count("failed") == 2, "it was tried again"
        assert not {"node-lost", "node-silent", "rolled-back", "recovery-ended"} & set(kinds)
        with pytest.raises(BadInput, match="no query 'good' is parked; parked are bad"):
            run.resume("good")
        cause.unlink()
        run.resume(str(query))
        run.coordinator.step(0.1)
        run.run()
        assert as_numbers(run.rows("bad")) == whole, "every row once"
        run.checkpoint()
        assert not run.coordinator.state.recovering
    finally:
        run.close()
    expected = run_in_process(app, given, close=False)
    assert as_numbers(expected.rows("bad")) == whole
    assert "node-lost" not in [seen.kind for seen in events]


@pytest.mark.cluster
def test_a_change_of_layout_tries_parked_queries_once_more_and_gives_up_removed_ones(
    unhurried: SparkSession, tmp_path: Path
) -> None:
    cause = tmp_path / "cause"
    cause.touch()
    settings = replace(Settings.read(unhurried), exchange="resident", errors_retries=0)
    sinks = {name: str(tmp_path / "out" / name) for name in ("good", "bad")}
    with closing(
        SparkRun(poisoned(cause, "raises"), unhurried, tmp_path / "run", settings=settings, sinks=sinks)
    ) as run:
        for batch in range(3):
            run.log({"s": pa.table({"n": [10 * batch + one for one in range(10)]})})
        with pytest.raises(OperatorFailed, match="thirteen"):
            run.run()
    changed = poisoned(cause, "raises", good=1)
    with pytest.raises(OperatorFailed, match=r"thirteen; parked: bad\[\d\]; remove the cause"):
        SparkRun(changed, unhurried, tmp_path / "run", settings=settings, sinks=sinks)
    copytree(tmp_path / "run", tmp_path / "copy")
    copytree(tmp_path / "out" / "good", tmp_path / "copied")
    cause.unlink()
    with closing(SparkRun(changed, unhurried, tmp_path / "run", settings=settings, sinks=sinks)) as again:
        again.log({"s": pa.table({"n": [30, 31]})})
        again.run()
        for name in sinks:
            assert as_numbers(again.rows(name)) == list(range(32)), f"{name}: every row once"
    cause.touch()
    lines: list[str] = []
    left = poisoned(cause, "raises", good=1, bad=False)
    kept = {"good": str(tmp_path / "copied")}
    with closing(
        SparkRun(left, unhurried, tmp_path / "copy", settings=settings, sinks=kept, log=lines.append)
    ) as without:
        without.log({"s": pa.table({"n": [30, 31]})})
        without.run()
        assert as_numbers(without.rows("good")) == list(range(32)), "every row once"
    (line,) = [line for line in lines if "is given up" in line]
    assert line.startswith("output bad is given up: it is parked by bad["), line


def quarantining(how: str) -> Application:
    """As `poisoned`, for good; the lower query leaves out the rows that it cannot take."""

    def look(rows: pa.Table) -> pa.Table:
        if 13 in rows["n"].to_pylist():
            if how == "dies":
                os.kill(os.getpid(), signal.SIGSEGV)
            raise ValueError("thirteen")
        return rows

    app = Application("quarantining", on_error="quarantine")
    source = app.source("s", schema=SCHEMA)
    source.map(lambda rows: rows, schema=SCHEMA, id="good").output("good", priority=9)
    source.map(look, schema=SCHEMA, id="bad").output("bad", priority=1)
    return app


@pytest.mark.cluster
@pytest.mark.parametrize("how", ["raises", "dies"])
def test_a_poison_row_is_quarantined_and_stays_so_over_a_restart(
    unhurried: SparkSession, tmp_path: Path, how: str
) -> None:
    events: list[Any] = []
    settings = replace(Settings.read(unhurried), exchange="resident", errors_retries=1, errors_backoff=0.1)
    run = SparkRun(quarantining(how), unhurried, tmp_path / "run", settings=settings, emit=events.append)
    try:
        for batch in range(4):
            run.log({"s": pa.table({"n": [10 * batch + one for one in range(10)]})})
        run.run()
        without = [n for n in range(40) if n != 13]
        assert as_numbers(run.rows("bad")) == without
        assert as_numbers(run.rows("good")) == list(range(40)), "the highest query is complete"
        (seen,) = [one for one in events if one.kind == "quarantined"]
        assert (seen.fields["partition"], seen.fields["batch"], seen.fields["rows"]) == ("bad[0]", 1, 1)
        assert not {"node-lost", "node-silent", "rolled-back", "parked"} & {one.kind for one in events}
    finally:
        run.close()
    again = SparkRun(quarantining(how), unhurried, tmp_path / "run", settings=settings, emit=events.append)
    try:
        again.log({"s": pa.table({"n": [40, 41]})})
        again.run()
        assert as_numbers(again.rows("bad")) == [*without, 40, 41]
        assert len([one for one in events if one.kind == "quarantined"]) == 1, "the decision held"
    finally:
        again.close()
    letters = pq.read_table(tmp_path / "run" / "dead-letters" / "bad").to_pylist()
    assert [(one["batch"], one["input"], one["position"], one["row"]) for one in letters] == [(1, "s", 3, '{"n": 13}')]
    assert ("SIGSEGV" if how == "dies" else "ValueError: thirteen") in letters[0]["error"]


@pytest.mark.cluster
def test_a_query_that_is_parked_when_its_driver_ends_goes_on_with_the_next_if_asked(
    unhurried: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cause = tmp_path / "cause"
    cause.touch()
    settings = replace(Settings.read(unhurried), exchange="resident", errors_retries=0)
    run = SparkRun(poisoned(cause, "raises"), unhurried, tmp_path / "run", settings=settings)
    run.log({"s": pa.table({"n": list(range(20))})})
    with pytest.raises(OperatorFailed):
        run.run()
    (query,) = run.coordinator.state.parked
    run.close()
    cause.unlink()
    assert command(["resume", str(tmp_path), "nothing"]) == 2
    assert command(["resume", str(tmp_path), str(query)]) == 0
    assert "the next start resumes it" in capsys.readouterr().out
    again = SparkRun(poisoned(cause, "raises"), unhurried, tmp_path / "run", settings=settings)
    try:
        assert set(again.coordinator.state.parked) == {query}, "it is parked until its request is read"
        while again.coordinator.state.parked:
            again.coordinator.step(0.1)
        again.run()
        assert as_numbers(again.rows("bad")) == list(range(20))
    finally:
        again.close()
