"""Corners: values that do not fit, NaN and two zeros, keys of several columns and types, rows from far away."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast import Application, count, rows, session, sliding, tumbling
from holdfast.application.windows import Sliding
from holdfast.runtime import run_in_process
from holdfast.runtime.messages import OperatorFailed
from holdfast.runtime.times import END_OF_TIME
from holdfast.runtime.worker.operators.panes import PaneWindows
from holdfast.runtime.worker.operators.summaries import Aggregates

NAN = float("nan")


def windowed(table: pa.Table, *keys: str, parallelism: int = 1, **aggregates: Any) -> list[dict[str, Any]]:
    """Aggregate one batch, all in one window, by key."""
    app = Application("x")
    schema = {field.name: str(field.type) for field in table.schema}
    source = app.source("s", schema={**schema, "at": "double"}, event_time="at")
    stream = source.key_by(*keys) if keys else source
    stream.window(tumbling(10)).agg(id="a", parallelism=parallelism, **aggregates).output()
    done = run_in_process(app, [{"s": table.append_column("at", pa.array([1.0] * len(table)))}])
    return done.rows("a").drop_columns(["window_start", "window_end"]).to_pylist()


def test_a_sum_that_does_not_fit_is_an_error_and_its_average_is_not() -> None:
    large = pa.table({"n": [2**62, 2**62, 2**62]})
    with pytest.raises(OperatorFailed, match="a sum of column 'n' does not fit into 64 bits; map it to double first"):
        windowed(large, n=hf.sum("n"))
    assert windowed(large, n=hf.avg("n")) == [{"n": float(2**62)}]
    assert windowed(pa.table({"n": [2**62, 2**62, -(2**62)]}), n=hf.sum("n")) == [{"n": 2**62}]
    assert windowed(pa.table({"n": pa.array([200, 100], pa.uint8())}), n=hf.sum("n")) == [{"n": 300}]


@pytest.mark.parametrize(
    "numbers",
    [
        [2**63 - 1],
        [-(2**63)],
        [2**62, 2**62 - 1],
        [2**62 - 257, 2**62 - 257, *[257] * 10],
        [-(2**62), -(2**62)],
        [-(2**62), -(2**62), -1],
        [2**63 - 1, -(2**63), 2**63 - 1],
    ],
)
def test_a_sum_of_whole_numbers_is_exact_or_refused(numbers: list[int]) -> None:
    app = hf.Application("sums")
    source = app.source("s", schema="k string, n bigint, at double", event_time="at")
    source.key_by("k").window(hf.tumbling(10)).agg(id="sums", total=hf.sum("n")).output()
    rows = {"k": ["a", *["b"] * len(numbers)], "n": [1, *numbers], "at": [1.0] * (len(numbers) + 1)}
    total = sum(numbers)
    if -(2**63) <= total < 2**63:
        done = run_in_process(app, [{"s": pa.table(rows)}])
        assert {row["k"]: row["total"] for row in done.rows("sums").to_pylist()} == {"a": 1, "b": total}
    else:
        with pytest.raises(OperatorFailed, match="a sum of column 'n' does not fit into 64 bits"):
            run_in_process(app, [{"s": pa.table(rows)}])


def test_a_sum_that_grows_too_large_over_batches_is_an_error() -> None:
    app = Application("x")
    source = app.source("s", schema={"n": "int64", "at": "double"}, event_time="at")
    source.window(tumbling(10)).agg(n=hf.sum("n"), id="a").output()
    batch = {"s": pa.table({"n": [2**62], "at": [1.0]})}
    with pytest.raises(OperatorFailed, match="does not fit"):
        run_in_process(app, [batch] * 3)


def test_only_nulls_give_null_and_count_nothing() -> None:
    table = pa.table({"n": pa.array([None, None], pa.int64())})
    found = windowed(
        table,
        all=count(),
        n=count("n"),
        sum=hf.sum("n"),
        mean=hf.avg("n"),
        low=hf.min("n"),
        kinds=hf.count_distinct("n"),
    )
    assert found == [{"all": 2, "n": 0, "sum": None, "mean": None, "low": None, "kinds": 0}]


def test_nan_and_two_zeros_are_one_value_each() -> None:
    table = pa.table({"k": [0.0, -0.0, NAN, -NAN], "x": [1.0, NAN, NAN, NAN]})
    found = windowed(
        table, "k", parallelism=3, n=count(), low=hf.min("x"), high=hf.max("x"), kinds=hf.count_distinct("x")
    )
    by_key = {str(row["k"]): row for row in found}
    assert set(by_key) == {"0.0", "nan"}
    assert by_key["0.0"] == {"k": 0.0, "n": 2, "low": 1.0, "high": 1.0, "kinds": 2}
    assert math.isnan(by_key["nan"]["low"])
    assert by_key["nan"]["kinds"] == 1


@pytest.mark.parametrize("parallelism", [1, 4])
def test_keys_of_several_columns_and_types(parallelism: int) -> None:
    table = pa.table(
        {
            "a": ["x", "x", None, None, "x"],
            "b": pa.array([1, 2, None, None, 1], pa.int32()),
            "c": pa.array([True, True, None, False, True]),
            "d": pa.array([b"\x00", b"", b"\x00", None, b"\x00"]),
            "e": pa.array([1, 1, 1, 1, 1], pa.date32()),
        }
    )
    found = windowed(table, *"abcde", parallelism=parallelism, n=count())
    assert sorted(row["n"] for row in found) == [1, 1, 1, 2]


@pytest.mark.parametrize(("left", "right"), [("int32", "int64"), ("int64", "double"), ("uint8", "float")])
def test_joins_of_different_number_types_meet(left: str, right: str) -> None:
    app = Application("x")
    streams = [
        app.source(name, schema={"k": kind, f"v{name}": "string", "at": "double"}, event_time="at", parallelism=2)
        for name, kind in (("l", left), ("r", right))
    ]
    streams[0].join(streams[1], on="k", window=tumbling(10), id="j", parallelism=3).output()
    batch = {
        name: pa.table({"k": pa.array([1, 2, 3, None]).cast(kind), f"v{name}": list("abcd"), "at": [1.0] * 4})
        for name, kind in (("l", left), ("r", right))
    }
    done = run_in_process(app, [batch])
    assert sorted((row["k"], row["vl"], row["vr"]) for row in done.rows("j").to_pylist()) == [
        *((1, "a", "a"), (2, "b", "b"), (3, "c", "c"))
    ]


def test_a_row_from_far_away_is_only_a_row() -> None:
    """A moment in another century: its window comes out alone, and nobody walks through the windows between."""
    app = Application("x")
    source = app.source("s", schema={"at": "double"}, event_time="at")
    source.window(sliding(10, every=1)).count(id="w").output()
    source.window(session(gap=1)).count(id="s2").output()
    far = 4e9
    done = run_in_process(
        app, [{"s": pa.table({"at": [0.0, float("inf"), 1e300, far]})}, {"s": pa.table({"at": [5.0]})}]
    )
    assert done.rows("w").num_rows == 20
    late = done.late("w")
    assert late is not None
    assert late["late_reason"].to_pylist() == ["no event time", "no event time", "late"]
    assert late["missed_windows"].to_pylist() == [0, 0, 10]
    assert done.rows("s2")["count"].to_pylist() == [1, 1]


def test_windows_without_a_key_and_without_rows() -> None:
    app = Application("x")
    source = app.source("s", schema={"n": "int64", "at": "double"}, event_time="at")
    source.window(tumbling(1)).agg(n=hf.sum("n"), id="a").output()
    source.window(rows(2)).agg(n=hf.sum("n"), id="b").output()
    empty = {"s": pa.table({"n": pa.array([], pa.int64()), "at": pa.array([], pa.float64())})}
    done = run_in_process(app, [empty, {}, {"s": pa.table({"n": [1, 2, 3], "at": [0.5, 0.6, 1.2]})}, empty])
    assert done.rows("a")["n"].to_pylist() == [3, 3]
    assert done.rows("b")["n"].to_pylist() == [3]


def test_columns_that_change_from_batch_to_batch_are_named() -> None:
    app = Application("x")
    source = app.source("s", schema={"n": "int64", "at": "double"}, event_time="at")

    def fickle(table: pa.Table) -> pa.Table:
        return table if table["n"][0].as_py() < 2 else table.set_column(0, "n", table["n"].cast(pa.string()))

    source.map(fickle, id="m").key_by("n").window(tumbling(10)).count(id="c").output()
    batches = [{"s": pa.table({"n": [number], "at": [1.0]})} for number in (1, 2)]
    with pytest.raises(OperatorFailed) as caught:
        run_in_process(app, batches)
    assert str(caught.value).startswith("operator c: partition c[0], batch 1: ")


def test_runs_of_a_pane_stay_few_and_rewriting_is_logarithmic() -> None:
    """A window as long as many batches: a pane has a logarithmic number of runs, and rows are rewritten as often."""
    kernel = PaneWindows(Sliding(1000.0, 1000.0), Aggregates(["k"], [("n", count())]), ["at"])
    state: Any = {}
    written = 0
    for batch in range(256):
        rows_in = pa.table({"k": [batch * 4 + i for i in range(4)], "at": [1.0] * 4})  # every key is new
        before = {id(run) for runs in state.values() for run in runs}
        state = kernel.step(state, [rows_in], None, 0).state
        written += sum(run.num_rows for runs in state.values() for run in runs if id(run) not in before)
        assert len(state["partials"]) <= 10
    assert sum(run.num_rows for run in state["partials"]) == 1024
    assert written <= 1024 * 10
    last = kernel.step(state, [None], 0, END_OF_TIME)
    assert last.output is not None
    assert last.output.num_rows == 1024
    assert last.state == {}


def test_a_run_that_is_not_touched_is_not_written_again() -> None:
    kernel = PaneWindows(Sliding(1.0, 1.0), Aggregates(["k"], [("n", count())]), ["at"])
    first = kernel.step({}, [pa.table({"k": [1, 2, 3], "at": [0.1, 1.1, 2.1]})], None, 0).state
    second = kernel.step(first, [pa.table({"k": [1], "at": [2.2]})], 0, 1_000_000).state
    assert len(first["partials"]) == 3
    assert second["partials"][0] is first["partials"][1], "the pane of second 1 is the very object"
    assert len(second["partials"]) == 2, "second 0 is gone with its window, second 2 was merged"


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize(
    ("left", "right", "pairs"),
    [
        (
            pa.array([1, 2**53 + 1, 2**60, 2**63 - 1], pa.int64()),
            pa.array([1.0, 2.0**53, 2.0**60, 2.0**63]),
            [1, 2**60],
        ),
        (pa.array([1.0, 2.0**53]), pa.array([1, 2**53 + 1, -(2**63)], pa.int64()), [1.0]),
        (pa.array([1, 2**63, 2**64 - 1], pa.uint64()), pa.array([1, -(2**63), -1], pa.int64()), [1]),
    ],
)
def test_a_key_that_the_other_side_cannot_have_pairs_with_nothing(
    left: pa.Array, right: pa.Array, pairs: list[float], parallelism: int
) -> None:
    app = Application("x")
    sides = [
        app.source(name, schema={"k": str(keys.type), "at": "double"}, event_time="at")
        for name, keys in (("a", left), ("b", right))
    ]
    sides[0].join(sides[1], on="k", window=tumbling(10), id="j", parallelism=parallelism).output()
    done = run_in_process(
        app, [{name: pa.table({"k": keys, "at": [1.0] * len(keys)}) for name, keys in (("a", left), ("b", right))}]
    )
    assert sorted(done.rows("j")["k"].to_pylist()) == pairs
