"""Files arrive one per interval, the run decides what a batch holds, and the expected rows follow its batches."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from holdfast.application import Application, Files, steps
from holdfast.drill.arriving import COMPLETE, ArrivingInput
from holdfast.drill.checkers import Verdict, check_live_queries, compare_rows
from holdfast.drill.fault_checkers import (
    check_hang,
    check_input,
    check_old_driver,
    check_parked,
    parked_periods,
)
from holdfast.drill.feeds import SourceFeed, feeds_of, with_feeds
from holdfast.drill.history import Event
from holdfast.drill.logged import due_intervals, logged_input
from holdfast.drill.measures import measure
from holdfast.drill.reference import make_reference, reference_of_batches
from holdfast.drill.scenarios import SCENARIOS
from holdfast.drill.settings import DrillFeed, DrillSettings, DrillStrategy

from .made_up import event, one_node_killed


def logged(number: int, through: dict[str, int], rows: dict[str, int], *, closes: bool = False) -> Event:
    return event(float(number), "logged", batch=number, through=through, rows=rows, closes=closes)


ROWS = {"a": [10, 10, 10], "b": [1, 0, 2]}
GOOD = [
    logged(0, {"a": 0, "b": -1}, {"a": 10, "b": 0}),
    logged(1, {"a": 0, "b": 1}, {"a": 0, "b": 1}),
    logged(2, {"a": 2, "b": 2}, {"a": 20, "b": 2}),
    logged(3, {"a": 2, "b": 2}, {"a": 0, "b": 0}, closes=True),
]


def test_batches_are_the_runs_own() -> None:
    found = logged_input(GOOD, ROWS)
    assert found.problems == ()
    assert [dict(batch.files) for batch in found.batches] == [
        {"a": range(1), "b": range(0)},
        {"a": range(1, 1), "b": range(2)},
        {"a": range(1, 3), "b": range(2, 3)},
        {"a": range(3, 3), "b": range(3, 3)},
    ]
    assert [batch.due for batch in found.batches] == [0, 1, 2, 3]
    assert due_intervals(GOOD) == {0: 0, 1: 1, 2: 2, 3: 3}
    assert check_input(found).reason == "33 rows read, each once, in 4 batches"
    assert logged_input([*GOOD, GOOD[2]], ROWS) == found, "a driver that starts again emits what it finds"


@pytest.mark.parametrize(
    ("history", "said"),
    [
        (GOOD[:2], "a: 1 of 3 files are in batches"),
        ([GOOD[0], *GOOD[2:]], "batch 1 is not in the history"),
        ([*GOOD[:2], logged(2, {"a": 2, "b": 2}, {"a": 19, "b": 2})], "batch 2 has 19 rows of a"),
        ([*GOOD, logged(2, {"a": 1, "b": 2}, {"a": 10, "b": 2})], "batch 2 was logged twice"),
        ([*GOOD[:2], logged(2, {"a": 3, "b": 2}, {"a": 40, "b": 2})], "batch 2 has 40 rows of a"),
        ([], "no batch was logged"),
    ],
)
def test_files_that_are_missing_or_come_twice_are_found(history: list[Event], said: str) -> None:
    found = check_input(logged_input(history, ROWS))
    assert found.verdict is Verdict.FAILED
    assert said in found.reason


def test_outputs_that_depend_on_batches_are_compared_in_the_runs_own() -> None:
    scenario = SCENARIOS["chain"]
    asked = DrillSettings("chain", batches=6, rows=40)
    given = list(scenario.batches(1, 6, 40))
    sizes = {"S": [40] * 6}
    one_each = [logged(n, {"S": n}, {"S": 40}) for n in range(6)] + [logged(6, {"S": 5}, {"S": 0}, closes=True)]
    twos = [logged(n, {"S": 2 * n + 1}, {"S": 80}) for n in range(3)] + [logged(3, {"S": 5}, {"S": 0}, closes=True)]
    plain = make_reference(scenario, asked, twice=False)
    app = scenario.application()
    same = reference_of_batches(app, given, logged_input(one_each, sizes).batches, None)
    other = reference_of_batches(app, given, logged_input(twos, sizes).batches, None)
    for name, rows in plain.rows.items():
        assert compare_rows(rows, same.rows[name]).holds, name
        assert not compare_rows(rows, other.rows[name]).holds, "the chain shows where batches end"


def by_spark(name: str) -> tuple[DrillSettings, Application, dict[str, SourceFeed]]:
    asked = DrillSettings(name, feed=DrillFeed.SPARK)
    app = SCENARIOS[name].application()
    return asked, app, feeds_of(app, asked)


def test_sparks_file_stream_reads_a_file_per_interval(tmp_path: Path) -> None:
    given = list(SCENARIOS["traffic"].batches(1, 3, 50))
    _, app, feeds = by_spark("traffic")
    arriving = ArrivingInput(tmp_path, given, feeds)
    app = with_feeds(app, feeds, tmp_path)
    for name in ("locations", "incidents"):
        step = app.steps[name]  # type: ignore[index]
        assert isinstance(step, steps.Source)
        assert isinstance(step.reader, Files)
        assert (step.reader.path, step.reader.format) == (str(tmp_path / name), "parquet")
        assert step.reader.options == (("maxFilesPerTrigger", "1"),), "file n is micro-batch n"
        assert step.reader.by_spark
        assert os.listdir(tmp_path / name) == []
    deliver(arriving)
    files = sorted((tmp_path / "locations").glob("*.parquet"))
    assert [path.name for path in files] == ["00000000.parquet", "00000001.parquet", "00000002.parquet"]
    assert sorted(files, key=lambda path: path.stat().st_mtime) == files, "Spark reads in the order of these times"
    read = pq.read_table(files[1])
    assert str(read.schema.field("at").type) == "timestamp[us, tz=UTC]"
    assert read["speed"].equals(given[1]["locations"]["speed"])


def deliver(arriving: ArrivingInput) -> None:
    arriving.start(time.time() - 60.0, 0.01)
    deadline = time.monotonic() + 60.0
    while not (arriving.folder / COMPLETE).exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    arriving.stop()
    assert arriving.problem is None


def test_arriving_stops_when_the_drill_is_over(tmp_path: Path) -> None:
    _, _, feeds = by_spark("chain")
    arriving = ArrivingInput(tmp_path, list(SCENARIOS["chain"].batches(1, 3, 5)), feeds)
    arriving.start(time.time() + 3600.0, 1.0)
    arriving.stop()
    assert arriving.delivered == {"S": 0}
    assert not (tmp_path / COMPLETE).exists()


# -- checks of single faults -------------------------------------------------------------------------------------------


def parked(at: float, query: str) -> Event:
    return event(at, "parked", query=query, partition=query, batch=4, error="PoisonRow: no")


def resumed(at: float, query: str) -> Event:
    return event(at, "resumed", query=query)


def test_only_the_poisoned_query_may_be_parked() -> None:
    good = [parked(5.0, "B[1]"), parked(9.0, "B[1]"), resumed(12.5, "B[1]")]
    assert check_parked(good, "B[1]").reason == "B[1] was parked for 7.5 s, no other query was"
    assert parked_periods(good) == [
        {"query": "B[1]", "at": 5.0, "partition": "B[1]", "batch": 4, "error": "PoisonRow: no", "resumed_at": 12.5}
    ]
    assert check_parked(good[:2], "B[1]").verdict is Verdict.FAILED, "it must come back"
    assert check_parked([], "B[1]").verdict is Verdict.UNKNOWN
    assert check_parked([*good, parked(14.0, "A[0]")], "B[1]").verdict is Verdict.FAILED
    assert check_parked(good, None).verdict is Verdict.FAILED, "nothing was poisoned"


def hang(*more: Event) -> list[Event]:
    placed = event(0.0, "placed", placement={"B[1]": "127.0.0.3-0"})
    started = event(0.0, "node-started", node="node-2", host="127.0.0.3")
    return sorted([placed, started, event(5.0, "fault", what="hang", value=8.0), *more], key=lambda one: one.at)


def test_a_node_is_not_lost_because_an_operator_hangs() -> None:
    lost = event(8.0, "node-silent", nodes=["127.0.0.3-0"])
    assert check_hang(hang(), "B[1]", 8.0).verdict is Verdict.OK
    assert check_hang(hang(lost), "B[1]", 8.0).verdict is Verdict.FAILED
    assert check_hang(hang(lost, event(6.0, "fault", what="kill", node="node-2")), "B[1]", 8.0).verdict is Verdict.OK
    other = event(8.0, "node-silent", nodes=["127.0.0.4-0"])
    assert check_hang(hang(other), "B[1]", 8.0).verdict is Verdict.OK
    assert check_hang([], "B[1]", 8.0).verdict is Verdict.UNKNOWN


def test_a_hang_that_never_came_shows_nothing() -> None:
    check = check_hang(hang(event(60.0, "hang-not-taken", why="the operator had no rows")), "B[1]", 8.0)
    assert check.verdict is Verdict.UNKNOWN
    assert "had no rows" in check.reason
    assert check_hang(hang(), "C[0]", 8.0).verdict is Verdict.UNKNOWN, "the history does not say where it was"


@pytest.mark.parametrize(
    ("status", "verdict"), [(1, Verdict.OK), (0, Verdict.FAILED), (None, Verdict.FAILED), ("none", Verdict.UNKNOWN)]
)
def test_a_superseded_driver_must_end_by_itself(status: Any, verdict: Verdict) -> None:
    over = [] if status == "none" else [event(30.0, "driver-over", status=status, after=2.5, why="claim 1 is over")]
    assert check_old_driver(over).verdict is verdict


def test_live_queries_are_judged_by_batches_that_were_logged_after_the_fault() -> None:
    """Sources that are read may be behind: a batch that was due after the fault may not have been logged before."""
    history = one_node_killed()
    measures = measure(history)
    assert check_live_queries(measures, DrillStrategy.INCREMENTAL, history).verdict is Verdict.OK
    behind = [event(50.0, "logged", batch=number, through={"S": number}, rows={}, closes=False) for number in range(60)]
    slow = sorted([*history, *behind], key=lambda one: one.at)
    found = check_live_queries(measure(slow), DrillStrategy.INCREMENTAL, slow)
    assert found.reason == "no batch was logged before a query that waited for a node was back"
