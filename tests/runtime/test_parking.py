"""Operators, rows and sinks that fail: attempts, pauses, parked queries, requests to go on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast import Application
from holdfast.errors import BadInput
from holdfast.ids import BatchId, PartitionId
from holdfast.recovery.cluster_state import ClusterState, ParkedQuery
from holdfast.recovery.events import QueriesResumed
from holdfast.recovery.graph import PartitionGraph
from holdfast.runtime.coordinator.parking import ErrorSettings, Parking, Step
from holdfast.runtime.coordinator.requests import ResumeRequests
from holdfast.runtime.in_process import InProcess, LoopBackend
from holdfast.runtime.io.sinks import FunctionSink, OutputKey
from holdfast.runtime.messages import Failed
from holdfast.runtime.program import Program
from holdfast.storage.files import FileStorage
from holdfast.storage.memory import MemoryStorage

SCHEMA = {"n": "int64"}
NOW = ErrorSettings(retries=0)


class Trouble:
    """What an operator or a sink looks at."""

    on = True
    calls = 0

    def look(self, rows: pa.Table) -> pa.Table:
        if 13 in rows["n"].to_pylist():
            self.calls += 1
            if self.on:
                raise ValueError("thirteen")
        return rows


def two_queries(trouble: Trouble) -> Application:
    app = Application("two")
    source = app.source("s", schema=SCHEMA)
    source.map(lambda rows: rows, schema=SCHEMA, id="good").output()
    source.map(trouble.look, schema=SCHEMA, id="bad").map(lambda rows: rows, schema=SCHEMA, id="after").output()
    return app


def numbers(*given: int) -> dict[str, pa.Table]:
    return {"s": pa.table({"n": list(given)})}


def found(running: InProcess, output: str) -> list[int]:
    return list(running.rows(output)["n"].to_pylist())


def test_a_poison_row_parks_its_query_and_all_others_go_on() -> None:
    trouble = Trouble()
    running = InProcess(two_queries(trouble), errors=NOW, nodes=2)
    for first in (1, 13):
        running.feed(numbers(first, first + 1))
    tried = trouble.calls
    for first in (20, 30):
        running.feed(numbers(first, first + 1))
    assert found(running, "good") == [1, 2, 13, 14, 20, 21, 30, 31]
    assert found(running, "after") == [1, 2]
    ((query, why),) = running.parked.items()
    assert (str(query), str(why.partition), why.batch, why.attempts) == ("after[0]", "bad[0]", 1, 1)
    assert why.error == "ValueError: thirteen"
    assert why.row == 's: {"n": 13}', "people can see what it cannot take"
    assert trouble.calls == tried, "it is not tried again before somebody says so"
    running.resume("after[0]")
    assert trouble.calls == tried + 1, "it fails again, and is parked again; its rows are searched once"
    assert running.parked
    trouble.on = False
    running.resume("after")
    assert found(running, "after") == found(running, "good")
    assert not running.parked
    with pytest.raises(BadInput, match="no query 'after' is parked; no query of the run is"):
        running.resume("after")


def test_a_parked_query_is_parked_after_a_restart_and_a_request_made_meanwhile_holds(tmp_path: Path) -> None:
    trouble = Trouble()
    running = InProcess(two_queries(trouble), directory=tmp_path, errors=NOW)
    for first in (1, 13, 20):
        running.feed(numbers(first))
    again = InProcess(two_queries(trouble), directory=tmp_path, errors=NOW)
    assert [str(one) for one in again.parked] == ["after[0]"]
    again.feed(numbers(30))
    calls = trouble.calls
    trouble.on = False
    ResumeRequests(FileStorage(tmp_path)).add("after[0]")
    last = InProcess(two_queries(trouble), directory=tmp_path, errors=NOW)
    last.feed(numbers(40))
    assert trouble.calls == calls + 1
    assert found(last, "after") == found(last, "good") == [1, 13, 20, 30, 40]


def test_a_parked_query_that_is_lost_comes_back_parked_and_loses_nothing() -> None:
    trouble = Trouble()
    running = InProcess(two_queries(trouble), errors=NOW, nodes=2)
    running.feed(numbers(1))
    running.checkpoint()
    for first in (13, 20, 30):
        running.feed(numbers(first))
    with pytest.raises(BadInput, match=r"after\[0\] is parked: there is no checkpoint of everything"):
        running.checkpoint()
    running.fail("bad[0]", "good[0]", "s[0]")
    running.recover()
    assert found(running, "good") == [1, 13, 20, 30]
    assert running.parked
    trouble.on = False
    running.resume("after")
    assert found(running, "after") == [1, 13, 20, 30]


def test_a_sink_that_fails_parks_the_query_of_its_partition() -> None:
    away = {"now": True}
    seen: list[tuple[int, list[Any]]] = []

    def write(rows: pa.Table, key: OutputKey) -> None:
        if away["now"] and key.batch == 1:
            raise ConnectionError("gone")
        seen.append((int(key.batch), rows["n"].to_pylist()))

    app = Application("x")
    source = app.source("s", schema=SCHEMA)
    through = source.map(lambda rows: rows, schema=SCHEMA, id="first")
    through.output(sink=FunctionSink(write))
    through.map(lambda rows: rows, schema=SCHEMA, id="second").output()
    running = InProcess(app, errors=NOW)
    for first in (1, 2, 3):
        running.feed(numbers(first))
    assert [str(one) for one in running.parked] == ["first[0]"]
    assert found(running, "second") == [1, 2, 3], "what needs its partition goes on"
    assert seen == [(0, [1])]
    away["now"] = False
    running.resume("first")
    assert seen == [(0, [1]), (1, [2]), (2, [3])], "in order, and once"


def test_late_rows_of_a_partition_whose_sink_fails_do_not_hold_other_queries_back() -> None:
    """Its own query is parked, and it serves another one: what it keeps aside is written as before."""
    away = {"now": True}

    def write(rows: pa.Table, key: OutputKey) -> None:
        if away["now"]:
            raise ConnectionError("gone")

    app = Application("x")
    source = app.source("s", schema={"n": "int64", "at": "float64"}, event_time="at")
    counts = source.key_by("n").window(hf.tumbling(10)).count(id="counts")
    counts.output(sink=FunctionSink(write))
    counts.map(lambda rows: rows.select(["n"]), schema=SCHEMA, id="second").output()
    running = InProcess(app, errors=NOW)
    for at in (5.0, 15.0, 1.0, 25.0, 2.0, 35.0, 45.0):  # 1.0 and 2.0 are late
        running.feed({"s": pa.table({"n": [int(at)], "at": [at]})})
    assert [str(one) for one in running.parked] == ["counts[0]"]
    assert found(running, "second") == [5, 15, 25, 35]
    late = running.late("counts", "s")
    assert late is not None
    assert late["n"].to_pylist() == [1, 2]
    away["now"] = False
    running.resume("counts")
    assert found(running, "second") == [5, 15, 25, 35]
    late = running.late("counts", "s")
    assert late is not None
    assert late["n"].to_pylist() == [1, 2], "once"


def test_attempts_are_counted_once_each_with_pauses_that_double() -> None:
    state = ClusterState(PartitionGraph(Program(two_queries(Trouble())).topology))
    now = {"now": 0.0}
    parking = Parking(state, ErrorSettings(retries=2, backoff=1.0), clock=lambda: now["now"], now=lambda: 7.0)
    bad = PartitionId.parse("bad[0]")

    def fails(attempt: int) -> tuple[list[float | None], bool]:
        attempts, event = parking.failed([(Step.OPERATOR, Failed(bad, BatchId(4), "x\ny", attempt))])
        return [one.wait for one in attempts], event is not None

    assert fails(0) == ([1.0], False)
    assert fails(0) == ([], False), "reported again"
    assert (parking.waiting(), parking.has_update, parking.attempt(bad)) == ({bad}, False, 0)
    now["now"] = 1.0
    assert (parking.waiting(), parking.has_update, parking.attempt(bad)) == (set(), True, 1)
    assert not parking.has_update
    assert fails(0) == ([], False), "late"
    assert fails(1) == ([2.0], False)
    now["now"] = 3.0
    assert parking.attempt(bad) == 2
    attempts, event = parking.failed([(Step.OPERATOR, Failed(bad, BatchId(4), "x\ny", 2))])
    assert attempts[0].wait is None
    assert event is not None
    ((query, why),) = event.queries.items()
    assert (str(query), why.error, why.attempts, why.since) == ("after[0]", "x y", 3, 7.0)


def test_what_comes_through_begins_to_count_anew() -> None:
    state = ClusterState(PartitionGraph(Program(two_queries(Trouble())).topology))
    parking = Parking(state, ErrorSettings(retries=1, backoff=0.0), clock=lambda: 0.0, now=lambda: 0.0)
    bad = PartitionId.parse("bad[0]")
    assert parking.failed([(Step.OPERATOR, Failed(bad, BatchId(4), "x"))])[1] is None
    assert parking.attempt(bad) == 1
    parking.took({bad: BatchId(4)}, {}, ())
    assert not parking.failing
    assert parking.failed([(Step.OPERATOR, Failed(bad, BatchId(5), "x", 1))])[1] is None


def test_a_batch_that_does_not_end_is_tried_twice() -> None:
    """All partitions of its process wait for each attempt."""
    state = ClusterState(PartitionGraph(Program(two_queries(Trouble())).topology))
    parking = Parking(state, ErrorSettings(retries=3, backoff=0.0), clock=lambda: 0.0, now=lambda: 0.0)
    bad = PartitionId.parse("bad[0]")
    assert parking.failed([(Step.OPERATOR, Failed(bad, BatchId(4), "x", stalled=True))])[1] is None
    assert parking.attempt(bad) == 1
    attempts, event = parking.failed([(Step.OPERATOR, Failed(bad, BatchId(4), "x", 1, stalled=True))])
    assert attempts[0].wait is None
    assert event is not None
    once = Parking(state, ErrorSettings(retries=0), clock=lambda: 0.0, now=lambda: 0.0)
    assert once.failed([(Step.OPERATOR, Failed(bad, BatchId(4), "x", stalled=True))])[1] is not None


@pytest.mark.parametrize("end", ["stalled", "out_of_memory"])
def test_a_first_end_of_its_kind_after_ordinary_failures_has_a_second_attempt(end: str) -> None:
    """One stall after an ordinary failure parked at once: all failures were counted for the two attempts."""
    state = ClusterState(PartitionGraph(Program(two_queries(Trouble())).topology))
    bad = PartitionId.parse("bad[0]")
    ended: dict[str, bool] = {end: True}

    def waits(retries: int, *ends: dict[str, bool]) -> list[bool]:
        parking = Parking(state, ErrorSettings(retries, backoff=0.0), clock=lambda: 0.0, now=lambda: 0.0)
        found = []
        for number, one in enumerate(ends):
            ((attempt,), _) = parking.failed([(Step.OPERATOR, Failed(bad, BatchId(4), "x", number, **one))])  # type: ignore[arg-type]
            found.append(attempt.wait is not None)
            assert parking.attempt(bad) == number + found[-1]
        return found

    assert waits(3, {}, ended, ended) == [True, True, False]
    assert waits(3, ended, {}, ended) == [True, True, False]
    assert waits(3, ended, {}, {}, {}) == [True, True, True, False]
    assert waits(3, {}, {}, {}, ended) == [True, True, True, False], "no more than all have together"


def test_requests_have_numbers_that_go_on() -> None:
    requests = ResumeRequests(MemoryStorage())
    assert [requests.add("a[0]"), requests.add("b[0]")] == [0, 1]
    requests.drop_before(1)
    assert requests.after(-1) == [(1, "b[0]")]
    assert requests.add("c[0]") == 2
    assert requests.after(1) == [(2, "c[0]")]


@pytest.mark.parametrize("data", [b"", b"half a reco", b"holdfast-resume 2 0 00000000\n{}"])
def test_a_request_that_cannot_be_read_ends_no_run_and_later_ones_hold(tmp_path: Path, data: bytes) -> None:
    """It is damaged, or a command of another version wrote it."""
    trouble = Trouble()
    running = InProcess(two_queries(trouble), directory=tmp_path, errors=NOW)
    for first in (1, 13, 20):
        running.feed(numbers(first))
    trouble.on = False
    storage = FileStorage(tmp_path)
    assert storage.create("resume/000000000000", data)
    again = InProcess(two_queries(trouble), directory=tmp_path, errors=NOW)
    again.feed(numbers(30))
    assert [str(one) for one in again.parked] == ["after[0]"]
    (line,) = again._coordinator.asked._logged
    assert "resume/000000000000" in line
    assert ResumeRequests(storage).add("after[0]") == 1
    last = InProcess(two_queries(trouble), directory=tmp_path, errors=NOW)
    last.feed(numbers(40))
    assert found(last, "after") == found(last, "good") == [1, 13, 20, 30, 40]


class AwayAtFirst(ResumeRequests):
    """Requests in a storage that is away when they are read for the first time."""

    away = True

    def after(self, number: int) -> list[tuple[int, str]]:
        if self.away:
            self.away = False
            raise OSError("away")
        return super().after(number)


def test_what_was_asked_for_in_the_process_outlasts_a_storage_that_is_away() -> None:
    """Requests in the storage are read again; what `run.resume` has asked for is in memory alone."""
    after = PartitionId.parse("after[0]")
    why = ParkedQuery(PartitionId.parse("bad[0]"), BatchId(4), "x", 0.0, 1)
    state = ClusterState(PartitionGraph(Program(two_queries(Trouble())).topology), parked={after: why})
    clock, requests = {"now": 0.0}, AwayAtFirst(MemoryStorage())
    parking = Parking(state, NOW, clock=lambda: clock["now"], now=lambda: 0.0, requests=requests)
    number = requests.add("after")
    parking.ask("after")
    with pytest.raises(OSError, match="away"):
        parking.resumed()
    assert parking.resumed() == [QueriesResumed((after,))]
    clock["now"] = 10.0
    assert parking.resumed() == [QueriesResumed((after,), number)], "and what was asked for by a command"


def test_outboxes_of_partitions_that_have_left_a_node_hold_nobody_back(tmp_path: Path) -> None:
    """Their files stay, and nobody trims them: where they counted, a bound once reached was reached for good."""
    running = InProcess(two_queries(Trouble()), directory=tmp_path, nodes=1)
    for number in range(3):
        running.feed(numbers(number))
    backend = running._coordinator.backend
    assert isinstance(backend, LoopBackend)
    (worker,) = backend.nodes.values()
    desired = replace(running._coordinator.desired_state(), report_outbox_bytes=True)
    held = worker.reconcile(desired, 0, ()).outbox_bytes
    rest = {p: one for p, one in desired.assignments.items() if p.operator != "s"}
    less = worker.reconcile(replace(desired, assignments=rest), 0, ()).outbox_bytes
    assert 0 < less < held
    assert worker.reconcile(replace(desired, assignments={}), 0, ()).outbox_bytes == 0
