"""Rows that an operator cannot take: found, logged, left out in every execution, and kept as dead letters."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import holdfast as hf
from holdfast.errors import BadInput
from holdfast.ids import BatchId, OperatorId, PartitionId
from holdfast.recovery.quarantine import PoisonRow, Quarantined, read_decisions, without_old, written_decisions
from holdfast.runtime import in_process
from holdfast.runtime.coordinator.parking import ErrorSettings
from holdfast.runtime.in_process import InProcess
from holdfast.runtime.io import range_reading
from holdfast.runtime.io.range_rows import Rejected
from holdfast.runtime.messages import OperatorFailed
from holdfast.runtime.program import Program
from holdfast.runtime.worker.row_search import TryFailed, find_poison, first_poison
from holdfast.runtime.worker.step_guard import READING, Death, NoGuard, SharedGuard
from holdfast.runtime.worker.worker import NodeWorker

N = {"n": "int64"}


def numbers(*values: int) -> dict[str, pa.Table]:
    return {"s": pa.table({"n": pa.array(values, pa.int64())})}


def no_thirteen(rows: pa.Table) -> pa.Table:
    for one in rows["n"].to_pylist():
        if one % 100 == 13:
            raise ValueError(f"{one} is unlucky")
    return rows


HEALED: list[bool] = []


def heals(rows: pa.Table) -> pa.Table:
    return rows if HEALED else no_thirteen(rows)


def mapped(function: Callable[[pa.Table], pa.Table] = no_thirteen, on_error: str = "quarantine") -> hf.Application:
    app = hf.Application("q")
    source = app.source("s", schema=N)
    source.map(lambda rows: rows, schema=N, id="good").output("good", priority=9)
    source.map(function, schema=N, id="bad", on_error=on_error).output("bad")
    return app


def values(rows: pa.Table) -> list[int]:
    found: list[int] = rows["n"].to_pylist()
    return found


# -- the search --------------------------------------------------------------------------------------------------------


def searched(rows: int, bad: set[int], most: int = 100) -> tuple[Any, list[tuple[int, tuple[int, ...]]]]:
    tries: list[tuple[int, tuple[int, ...]]] = []

    def attempt(many: int, left_out: Sequence[int]) -> TryFailed | None:
        tries.append((many, tuple(left_out)))
        met = [n for n in range(many) if n in bad and n not in left_out]
        return TryFailed(f"row {met[0]}") if met else None

    return find_poison(rows, attempt, most=most), tries


def test_one_row_among_a_hundred_thousand_costs_a_handful_of_tries() -> None:
    result, tries = searched(100_000, {77_777})
    assert result.found == ((77_777, "row 77777"),)
    assert len(tries) <= 21
    assert tries[-1] == (100_000, (77_777,)), "the rest passes together"


def test_exactly_the_rows_to_blame_are_found() -> None:
    draw = Random(1)
    for _ in range(300):
        rows = draw.randint(1, 40)
        bad = {n for n in range(rows) if draw.random() < draw.choice((0.05, 0.5, 1.0))} or {draw.randrange(rows)}
        result, tries = searched(rows, bad)
        assert {number for number, _ in result.found} == bad
        assert all(error == f"row {number}" for number, error in result.found)
        assert len(tries) == len(set(tries)), "nothing is tried twice"


def test_a_row_is_judged_in_the_company_of_those_before_it() -> None:
    """Two rows that fail together only: the second is to blame, whatever halves there are."""

    def attempt(many: int, left_out: Sequence[int]) -> TryFailed | None:
        return TryFailed("both") if {3, 9} <= set(range(many)) - set(left_out) else None

    assert find_poison(16, attempt, most=5).found == ((9, "both"),)


def test_more_rows_than_may_be_left_out_are_not_looked_for() -> None:
    result, tries = searched(10_000, set(range(10_000)), most=3)
    assert result.found == ()
    assert "fails on more than 3 rows of the batch, at first: row 0" in str(result.problem)
    assert len(tries) < 60


def test_a_step_that_fails_without_any_row_has_no_row_to_blame() -> None:
    result = find_poison(5, lambda many, left_out: TryFailed("window"), most=5)
    assert result.problem == "it fails without any row: window"


def test_a_failure_that_does_not_come_again_blames_nobody() -> None:
    assert find_poison(5, lambda many, left_out: None, most=5).problem == "it failed, and with the same rows it passes"


def test_a_search_gives_up_where_every_try_costs_a_process() -> None:
    result = find_poison(1 << 40, lambda many, left_out: TryFailed("dead", died=True) if many else None, most=5)
    assert "its process died 25 times in search of the rows" in str(result.problem)


def test_a_search_goes_on_after_each_death_from_where_it_was() -> None:
    """Each try in which the process dies is known to the next process, which gets to the same rows."""
    guard, bad, processes = SharedGuard(), {5, 90}, 0
    p, batch = PartitionId(OperatorId("a"), 0), BatchId(3)

    class Died(Exception):
        pass

    def attempt(many: int, left_out: Sequence[int]) -> TryFailed | None:
        known = guard.begin(p, batch, 0, f"{many} {list(left_out)}")
        if known is not None:
            return TryFailed(str(known), died=True)
        if bad & set(range(many)) - set(left_out):
            raise Died
        guard.end()
        return None

    while True:
        processes += 1
        try:
            result = find_poison(128, attempt, most=10)
            break
        except Died:
            guard.died(-11)
    assert [number for number, _ in result.found] == [5, 90]
    assert "was ended in this batch by SIGSEGV" in result.found[0][1]
    assert processes <= 2 + 2 * 7 + 2


def test_a_death_counts_for_its_piece_alone_and_until_the_next_attempt() -> None:
    guard, p = SharedGuard(), PartitionId(OperatorId("a"), 0)
    assert guard.begin(p, BatchId(1), 0, "5 rows") is None
    assert guard.died(-9, "by its task", out_of_memory=True) == (p, 1)
    assert guard.begin(p, BatchId(1), 0, "5 rows") == Death(0, "by its task", out_of_memory=True)
    assert guard.begin(p, BatchId(1), 0, "4 rows") is None
    assert guard.begin(p, BatchId(1), 1, "5 rows") is None


def test_a_search_ends_with_the_first_try_that_does_not_end() -> None:
    """Each costs what a hanging step costs, and the other partitions of the process wait for it."""
    tries: list[int] = []

    def attempt(many: int, left_out: Sequence[int]) -> TryFailed | None:
        tries.append(many)
        if many == 1000:
            return TryFailed("ValueError")
        return TryFailed("dead", died=True, stalled=True) if many > 300 else None

    result = find_poison(1000, attempt, most=5)
    assert result.stalled
    assert not result.found
    assert result.problem == "a try of some of its rows did not end: dead"
    assert tries == [0, 1000, 500]


def test_rows_of_a_step_that_stalled_are_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where rows may be left out: up to 24 tries took five minutes each."""
    pieces: list[str] = []

    class Guard(NoGuard):
        def begin(self, partition: PartitionId, batch: BatchId, attempt: int, piece: str = "") -> Death | None:
            if partition.operator != "bad":
                return None
            pieces.append(piece)
            return Death(attempt, "by its task", stalled=True)

    monkeypatch.setattr(in_process, "NodeWorker", partial(NodeWorker, guard=Guard()))
    run = InProcess(mapped(), errors=ErrorSettings(backoff=0.0))
    run.feed(numbers(1, 2))
    assert pieces == ["", ""]
    assert [str(one) for one in run.parked] == ["bad[0]"]


@pytest.mark.parametrize("how", [{"stalled": True}, {"out_of_memory": True}])
def test_a_read_that_stalls_or_takes_too_much_memory_is_tried_twice(
    how: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker said only that the process had died: it was tried four times, as after an ordinary failure."""
    tried: list[int] = []

    class Guard(NoGuard):
        def begin(self, partition: PartitionId, batch: BatchId, attempt: int, piece: str = "") -> Death | None:
            if piece != READING or partition.operator != "s":
                return None
            tried.append(attempt)
            return Death(attempt, "by its task", **how)

    monkeypatch.setattr(in_process, "NodeWorker", partial(NodeWorker, guard=Guard()))
    run = InProcess(mapped(), errors=ErrorSettings(backoff=0.0))
    run.feed(numbers(1, 2))
    assert tried == [0, 1]
    assert run.parked


# -- decisions ---------------------------------------------------------------------------------------------------------


def test_a_decision_is_read_back_as_it_was_written() -> None:
    rows = (PoisonRow(OperatorId("a"), 3, "x"), PoisonRow(OperatorId("a"), 9, "y"), PoisonRow(OperatorId("b"), 0, "x"))
    decisions = {PartitionId(OperatorId("m"), 1): {BatchId(7): Quarantined(rows, 12.5)}}
    written = json.loads(json.dumps(written_decisions(decisions)))
    assert read_decisions(written) == decisions
    assert written["m[1]"]["7"][1] == ["x", "y"], "each error once"


def test_decisions_grow_and_are_dropped_with_their_batches() -> None:
    p = PartitionId(OperatorId("m"), 0)
    first = Quarantined((PoisonRow(OperatorId("a"), 3, "x"),), 1.0)
    more = first.plus([PoisonRow(OperatorId("a"), 1, "y"), PoisonRow(OperatorId("a"), 3, "other")])
    assert [(one.position, one.error) for one in more.rows] == [(1, "y"), (3, "x")]
    assert more.at == 1.0
    decisions = {p: {BatchId(4): first, BatchId(9): more}}
    assert without_old(decisions, BatchId(4)) == {p: {BatchId(9): more}}
    assert without_old(decisions, BatchId(9)) == {}


# -- a run -------------------------------------------------------------------------------------------------------------


def test_the_others_go_on_without_the_poison_row() -> None:
    run = InProcess(mapped())
    run.feed(numbers(1, 2, 13, 4, 113, 5))
    run.feed(numbers(6, 7))
    assert values(run.rows("bad")) == [1, 2, 4, 5, 6, 7]
    assert values(run.rows("good")) == [1, 2, 13, 4, 113, 5, 6, 7]
    letters = run.dead_letters("bad")
    assert letters is not None
    assert letters.drop_columns("decided_at").to_pylist() == [
        {
            "operator": "bad",
            "partition": 0,
            "batch": 0,
            "input": "s",
            "position": place,
            "error": f"ValueError: {n} is unlucky",
            "row": json.dumps({"n": n}),
        }
        for place, n in ((2, 13), (4, 113))
    ]
    assert run.parked == {}
    assert run.late("bad") is None
    assert run.dead_letters("good") is None


def test_a_lost_partition_leaves_the_same_rows_out_though_the_cause_is_gone() -> None:
    healthy: list[bool] = []

    def look(rows: pa.Table) -> pa.Table:
        return rows if healthy else no_thirteen(rows)

    run = InProcess(mapped(look))
    run.feed(numbers(1, 13, 2))
    healthy.append(True)
    run.fail("bad[0]")
    run.recover()
    run.feed(numbers(13))
    assert values(run.rows("bad")) == [1, 2, 13]
    letters = run.dead_letters("bad")
    assert letters is not None
    assert letters.num_rows == 1


def test_the_next_driver_leaves_the_same_rows_out_also_where_on_error_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = InProcess(mapped(heals), directory=tmp_path)
    first.feed(numbers(1, 13, 2))
    first.feed(numbers(3, 113))
    monkeypatch.setattr(f"{__name__}.HEALED", [True])
    again = InProcess(mapped(heals, "park"), directory=tmp_path)
    again.feed(numbers(4))
    assert values(again.rows("bad")) == [1, 2, 3, 4], "it made everything again, from no checkpoint"
    letters = again.dead_letters("bad")
    assert letters is not None
    assert letters["position"].to_pylist() == [1, 1]
    files = sorted((tmp_path / "dead-letters" / "bad").glob("*.parquet"))
    assert [pq.read_table(file)["row"].to_pylist() for file in files] == [['{"n": 13}'], ['{"n": 113}']]
    again.checkpoint()
    assert set(again._coordinator.state.quarantined), "a batch may be processed again from the durable one before"
    again.feed(numbers(5))
    again.checkpoint()
    assert again._coordinator.state.quarantined == {}, "dropped with their batches"


def test_a_failed_try_leaves_no_trace_in_state() -> None:
    def total(state: pa.Table, inputs: tuple[pa.Table, ...], watermark: float) -> tuple[pa.Table, pa.Table]:
        no_thirteen(inputs[0])
        before = state["sum"][0].as_py() if state.num_rows else 0
        now = before + (pc.sum(inputs[0]["n"]).as_py() or 0)
        made = pa.table({"sum": pa.array([now], pa.int64())})
        return made, made

    app = hf.Application("sums", on_error="quarantine")
    app.source("s", schema=N).apply(total, state={"sum": "int64"}, schema={"sum": "int64"}, id="t").output("t")
    run = InProcess(app)
    for batch in ((1, 2), (3, 13, 4), (213, 5), (6,)):
        run.feed(numbers(*batch))
    assert run.rows("t")["sum"].to_pylist() == [3, 10, 15, 21]


def test_rows_of_both_sides_of_a_join_are_told_apart() -> None:
    def pair(state: pa.Table, inputs: tuple[pa.Table, ...], watermark: float) -> tuple[pa.Table, pa.Table]:
        for table in inputs:
            no_thirteen(table)
        return state, pa.concat_tables(inputs)

    app = hf.Application("two", on_error="quarantine")
    left, right = app.source("l", schema=N), app.source("r", schema=N)
    left.apply(pair, right, state={"x": "int64"}, schema=N, id="both").output("both")
    run = InProcess(app)
    table = pa.table({"n": pa.array([1, 13, 3], pa.int64())})
    run.feed({"l": table, "r": pa.table({"n": pa.array([13, 5], pa.int64())})})
    assert values(run.rows("both")) == [1, 3, 5]
    letters = run.dead_letters("both")
    assert letters is not None
    assert list(zip(letters["input"].to_pylist(), letters["position"].to_pylist(), strict=True)) == [("l", 1), ("r", 0)]


def test_where_all_rows_fail_it_is_tried_again_before_they_are_left_out() -> None:
    """A service that is away fails on every row: that is no reason to give the rows up at once."""
    calls: list[int] = []

    def away(rows: pa.Table) -> pa.Table:
        calls.append(rows.num_rows)
        if len(calls) < 5:
            raise OSError("the service is away")
        return rows

    run = InProcess(mapped(away), errors=ErrorSettings(retries=1, backoff=0.0))
    run.feed(numbers(1, 2))
    assert values(run.rows("bad")) == [1, 2]
    assert run.dead_letters("bad") is None


def test_a_row_alone_is_left_out_after_the_last_attempt() -> None:
    run = InProcess(mapped(), errors=ErrorSettings(retries=1, backoff=0.0))
    run.feed(numbers(13))
    run.feed(numbers(1))
    assert values(run.rows("bad")) == [1]
    letters = run.dead_letters("bad")
    assert letters is not None
    assert letters.num_rows == 1


def test_with_too_many_poison_rows_the_query_is_parked() -> None:
    run = InProcess(mapped(), errors=ErrorSettings(retries=0))
    run.feed(numbers(*[13] * 101, 1))
    assert [str(query) for query in run.parked] == ["bad[0]"]
    (why,) = run.parked.values()
    assert "fails on more than 100 rows of the batch" in why.error
    assert run.dead_letters("bad") is None


def test_an_operator_that_fails_without_rows_parks_its_query() -> None:
    def step(state: pa.Table, inputs: tuple[pa.Table, ...], watermark: float) -> tuple[pa.Table, pa.Table]:
        raise RuntimeError("always")

    app = hf.Application("always", on_error="quarantine")
    app.source("s", schema=N).apply(step, state=N, schema=N, id="a").output("a")
    with pytest.raises(OperatorFailed, match=r"always \(no row is quarantined: it fails without any row"):
        InProcess(app).feed(numbers(1))


def test_park_is_the_default() -> None:
    with pytest.raises(OperatorFailed, match="13 is unlucky"):
        InProcess(mapped(on_error="park")).feed(numbers(1, 13))


# -- what users write --------------------------------------------------------------------------------------------------


def test_a_word_that_is_neither_is_refused_in_one_line() -> None:
    with pytest.raises(BadInput, match=r"on_error: 'drop' is not known.*\"park\" or \"quarantine\""):
        hf.Application("a", on_error="drop")
    source = hf.Application("a").source("s", schema=N)
    with pytest.raises(BadInput, match=r"f\.on_error: 'skip' is not known"):
        source.filter(pc.field("n") > 1, id="f", on_error="skip")


def test_an_operator_that_is_not_deterministic_parks() -> None:
    app = hf.Application("a", on_error="quarantine")
    stream = app.source("s", schema=N)

    def step(state: pa.Table, inputs: tuple[pa.Table, ...], watermark: float) -> tuple[pa.Table, pa.Table]:
        return state, inputs[0]

    with pytest.raises(BadInput, match="not deterministic cannot quarantine rows"):
        stream.apply(step, state=N, schema=N, deterministic=False, on_error="quarantine", id="x")
    stream.apply(step, state=N, schema=N, deterministic=False, id="y").map(no_thirteen, schema=N, id="z").output("z")
    stream.map(no_thirteen, schema=N, id="m").output("m")
    operators = Program(app).operators
    assert [name for name, one in operators.items() if one.quarantines] == ["s", "m"]


def test_an_operator_may_differ_from_its_application() -> None:
    app = hf.Application("a", on_error="quarantine")
    stream = app.source("s", schema="n bigint, at timestamp", event_time="at")
    stream.key_by("n").window(hf.tumbling("1 s")).agg(id="agg", on_error="park", x=hf.count()).output("agg")
    stream.window(hf.rows(3)).top(1, by="n", id="top").output("top")
    operators = Program(app).operators
    assert not operators[OperatorId("agg")].quarantines
    assert operators[OperatorId("top")].quarantines


def test_the_first_row_that_people_are_shown_is_the_end_of_the_shortest_beginning_that_fails() -> None:
    for rows in (1, 2, 7, 100):
        for bad in range(rows):
            assert first_poison(rows, lambda many, bad=bad: many > bad) == bad  # type: ignore[misc]
    assert first_poison(0, lambda many: True) is None
    assert first_poison(5, lambda many: True) is None, "it fails without any row"
    left = iter((False, True, None))
    assert first_poison(100, lambda many: next(left)) is None, "the time is over"


# -- reading -----------------------------------------------------------------------------------------------------------


def test_a_reader_that_ends_its_process_parks_its_query_and_all_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reading of a source's rows is a piece of its step: it is not tried for ever, in one process after another."""
    read = range_reading.read_json

    def dies(data: pa.Buffer, schema: pa.Schema) -> tuple[pa.Table, list[Rejected]]:
        if b"13" in data.to_pybytes():
            os.kill(os.getpid(), signal.SIGSEGV)
        return read(data, schema)

    app = hf.Application("q")
    for name, rows in (("bad", [1, 13]), ("good", [2, 3])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rows.json").write_text("".join(f'{{"n": {one}}}\n' for one in rows))
        source = app.source(name, hf.files(str(tmp_path / name), "json", settle=0), schema=N)
        source.map(lambda rows: rows, schema=N, id=f"{name}_out").output(f"{name}_out")
    guard = SharedGuard()
    monkeypatch.setattr(range_reading, "read_json", dies)
    monkeypatch.setattr(in_process, "NodeWorker", partial(NodeWorker, guard=guard))
    running = InProcess(app, errors=ErrorSettings(retries=0))
    child = os.fork()
    if child == 0:  # pragma: no cover
        faulthandler.disable()
        running.read()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    p = PartitionId(OperatorId("bad"), 0)
    assert guard.died(os.waitstatus_to_exitcode(status)) == (p, 0)
    running.read()
    assert running.rows("good_out")["n"].to_pylist() == [2, 3]
    (parked,) = running.parked.values()
    assert (parked.partition, parked.batch) == (p, 0)
    assert parked.error == "the operator process was ended while it read the batch's rows, by SIGSEGV"


def test_a_death_in_reading_ahead_does_not_forget_one_in_the_step() -> None:
    """A source's rows are read some batches ahead: forgetting one for the other would have both again for ever."""
    guard, p = SharedGuard(), PartitionId(OperatorId("s"), 0)
    for batch, piece in ((BatchId(4), ""), (BatchId(6), READING)):
        assert guard.begin(p, batch, 0, piece) is None
        guard.died(-11)
    assert guard.begin(p, BatchId(4), 0) is not None
    assert guard.begin(p, BatchId(6), 0, READING) is not None
