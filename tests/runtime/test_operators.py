"""Every kind of operator gives, row for row, what plain Python gives: with skew, nulls, unicode, disorder, lateness."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import holdfast as hf
from holdfast import Application, Stream, count, rows, session, sliding, tumbling
from holdfast.runtime import InProcess, run_in_process
from holdfast.runtime.times import event_times
from runtime import oracle
from runtime.generated import SCHEMA, SECOND, batches, moments, table
from runtime.oracle import Row, bag

LATENESS = 1.5
SEEDS = range(3)
AGGREGATES = {
    "rows": count(),
    "known": count("n"),
    "sum": hf.sum("n"),
    "real": hf.sum("x"),
    "mean": hf.avg("n"),
    "low": hf.min("n"),
    "high": hf.max("x"),
    "first": hf.min("word"),
    "kinds": hf.count_distinct("word"),
}
SHAPES = [(1, 1, 1), (3, 2, 1), (2, 4, 3)]
"""Partitions of the source, of the operator, and nodes."""


def run(
    made: list[list[Row]], build: Callable[[Stream], Stream], shape: tuple[int, int, int] = (1, 1, 1)
) -> tuple[list[Row], InProcess]:
    """Run one operator over batches; return its rows."""
    app = Application("x")
    source = app.source("s", schema=SCHEMA, event_time="at", lateness=LATENESS, parallelism=shape[0])
    name = build(source).output().id
    done = run_in_process(app, [{"s": table(one)} for one in made], nodes=shape[2])
    return moments(done.rows(name).to_pylist()), done


def in_windows(made: list[list[Row]], size: float, every: float) -> tuple[dict[tuple[int, int], list[Row]], Any]:
    return oracle.sliding(made, int(LATENESS * SECOND), int(size * SECOND), int(every * SECOND))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("size", "every"), [(2, 2), (3, 1), (2.5, 1), (1, 0.4)])
@pytest.mark.parametrize("seed", SEEDS)
def test_aggregates_over_sliding_windows(seed: int, size: float, every: float, shape: tuple[int, int, int]) -> None:
    made = batches(seed)
    found, done = run(
        made,
        lambda s: s.key_by("word").window(sliding(size, every=every)).agg(parallelism=shape[1], **AGGREGATES),
        shape,
    )
    windows, missed = in_windows(made, size, every)
    expected = [
        {"word": word, "window_start": start, "window_end": end, **oracle.aggregated(members)}
        for (start, end), inside in windows.items()
        for (word,), members in oracle.by_key(inside, "word").items()
    ]
    assert bag(found) == bag(expected)
    aside = done.late("aggregate-1")
    late = [] if aside is None else moments(aside.to_pylist())
    wanted = [{**row, "late_reason": "late", "missed_windows": many} for row, many in missed]
    wanted += [
        {**row, "late_reason": "no event time", "missed_windows": 0} for one in made for row in one if row["at"] is None
    ]
    assert bag(late) == bag(wanted)
    assert sum(measures.late_rows for measures in done.measures().values()) == len(wanted)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", SEEDS)
def test_aggregates_over_sessions(seed: int, shape: tuple[int, int, int]) -> None:
    made = batches(seed, count=10, most=12)
    found, done = run(
        made, lambda s: s.key_by("word").window(session(gap=0.7)).agg(parallelism=shape[1], **AGGREGATES), shape
    )
    expected, late = oracle.sessions(made, int(LATENESS * SECOND), int(0.7 * SECOND), lambda row: row["word"])
    assert bag(found) == bag(
        {"word": word, "window_start": start, "window_end": end, **oracle.aggregated(members)}
        for word, start, end, members in expected
    )
    aside = done.late("aggregate-1")
    rows_late = [] if aside is None else [row for row in aside.to_pylist() if row["late_reason"] == "late"]
    assert len(rows_late) == len(late)


@pytest.mark.parametrize(("size", "every"), [(3, 3), (4, 1), (5, 3), (1, 1)])
@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_aggregates_over_count_windows(seed: int, keyed: bool, size: int, every: int) -> None:
    made = batches(seed)
    key = (lambda row: (row["word"],)) if keyed else (lambda row: ())

    def build(source: Stream) -> Stream:
        stream = source.key_by("word") if keyed else source
        return stream.window(rows(size, every=every)).agg(**AGGREGATES)

    found, _ = run(made, build)
    expected = oracle.counted([row for one in made for row in one], size, every, key)
    wanted = [{**({"word": name[0]} if keyed else {}), **oracle.aggregated(members)} for name, members in expected]
    assert found == wanted, "also in the order in which the windows fill"


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_top_rows(seed: int, keyed: bool, largest: bool, shape: tuple[int, int, int]) -> None:
    made = batches(seed)
    if not keyed:
        shape = (shape[0], 1, shape[2])

    def build(source: Stream) -> Stream:
        stream = source.key_by("word") if keyed else source
        return stream.window(sliding(3, every=1)).top(2, by="n", largest=largest, parallelism=shape[1])

    found, _ = run(made, build, shape)
    windows, _ = in_windows(made, 3, 1)
    expected = []
    for (start, end), inside in windows.items():
        for members in oracle.by_key(inside, *(["word"] if keyed else [])).values():
            best = oracle.top(members, 2, "n", largest=largest)
            expected += [{**row, "window_start": start, "window_end": end} for row in best]
    assert bag(found) == bag(expected)


@pytest.mark.parametrize("seed", SEEDS)
def test_top_rows_over_sessions_and_counts(seed: int) -> None:
    made = batches(seed)
    found, _ = run(made, lambda s: s.key_by("word").window(session(gap=0.7)).top(2, by="x"))
    parts, _ = oracle.sessions(made, int(LATENESS * SECOND), int(0.7 * SECOND), lambda row: row["word"])
    assert bag(found) == bag(
        {**row, "window_start": start, "window_end": end}
        for _, start, end, members in parts
        for row in oracle.top(members, 2, "x")
    )
    found, _ = run(made, lambda s: s.key_by("word").window(rows(4, every=2)).top(2, by="x"))
    windows = oracle.counted([row for one in made for row in one], 4, 2, lambda row: row["word"])
    assert found == [row for _, members in windows for row in oracle.top(members, 2, "x")]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", SEEDS)
def test_distinct_rows(seed: int, shape: tuple[int, int, int]) -> None:
    made = batches(seed)
    found, _ = run(made, lambda s: s.window(sliding(2, every=1)).distinct("word", "n", parallelism=shape[1]), shape)
    windows, _ = in_windows(made, 2, 1)
    expected = [
        {"word": word, "n": n, "window_start": start, "window_end": end}
        for (start, end), inside in windows.items()
        for word, n in oracle.by_key(inside, "word", "n")
    ]
    assert bag(found) == bag(expected)
    found, _ = run(made, lambda s: s.key_by("word").window(session(gap=0.5)).distinct("word", "n"))
    parts, _ = oracle.sessions(made, int(LATENESS * SECOND), SECOND // 2, lambda row: row["word"])
    assert bag(found) == bag(
        {"word": word, "n": n, "window_start": start, "window_end": end}
        for word, start, end, members in parts
        for (n,) in oracle.by_key(members, "n")
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("window", ["sliding", "session"])
@pytest.mark.parametrize("seed", SEEDS)
def test_joins(seed: int, window: str, shape: tuple[int, int, int]) -> None:
    left, right = batches(seed, most=15), batches(seed + 100, most=15, disorder=2 * SECOND)
    app = Application("x")
    streams = [
        app.source(name, schema=SCHEMA, event_time="at", lateness=LATENESS, parallelism=shape[0]) for name in ("l", "r")
    ]
    over = sliding(2, every=1) if window == "sliding" else session(gap=0.5)
    streams[0].join(streams[1], on="word", window=over, id="j", parallelism=shape[1]).output()
    given = [{"l": table(a), "r": table(b)} for a, b in zip(left, right, strict=True)]
    done = run_in_process(app, given, nodes=shape[2])
    found = moments(done.rows("j").to_pylist())

    lateness = int(LATENESS * SECOND)
    marks = [min(a, b) for a, b in zip(*(oracle.watermarks(one, lateness) for one in (left, right)), strict=True)]
    expected = []
    if window == "sliding":
        sides = [oracle.sliding(one, lateness, 2 * SECOND, SECOND, marks)[0] for one in (left, right)]
        pairs = [
            (a, b, start, end) for (start, end), inside in sides[0].items() for a in inside
            for b in sides[1].get((start, end), [])
        ]  # fmt: skip
    else:
        pairs = []
        tagged = [
            [{**row, "side": 0} for row in a] + [{**row, "side": 1} for row in b]
            for a, b in zip(left, right, strict=True)
        ]
        for _, start, end, members in sessions_with(tagged, marks, SECOND // 2):
            for a in members:
                pairs += [(a, b, start, end) for b in members if a["side"] == 0 and b["side"] == 1]
    for a, b, start, end in pairs:
        if a["word"] is not None and a["word"] == b["word"]:
            row = {name: a[name] for name in ("word", "n", "x", "at")}
            row.update({f"right_{name}": b[name] for name in ("n", "x", "at")})
            expected.append({**row, "window_start": start, "window_end": end})
    assert bag(found) == bag(expected)


def sessions_with(made: list[list[Row]], marks: list[float], gap: int) -> list[tuple[Any, int, int, list[Row]]]:
    """Sessions under given watermarks: the oracle's, told what they are."""
    original = oracle.watermarks
    try:
        oracle.watermarks = lambda *_: marks
        return oracle.sessions(made, 0, gap, lambda row: row["word"])[0]
    finally:
        oracle.watermarks = original


@pytest.mark.parametrize("seed", SEEDS)
def test_maps_filters_and_flat_maps(seed: int) -> None:
    made = batches(seed)
    plain = [row for one in made for row in one]
    found, _ = run(made, lambda s: s.map(lambda t: t.set_column(1, "n", pc.multiply(t["n"], 2)), schema=SCHEMA))
    assert found == [{**row, "n": None if row["n"] is None else 2 * row["n"]} for row in plain]
    for condition in (pc.field("n") > 0, lambda t: pc.greater(t["n"], 0)):
        found, _ = run(made, lambda s, c=condition: s.filter(c))
        assert found == [row for row in plain if row["n"] is not None and row["n"] > 0]

    def letters(t: pa.Table) -> pa.Table:
        return pa.table({"letter": [c for word in t["word"].to_pylist() for c in (word or "")]})

    found, _ = run(made, lambda s: s.flat_map(letters, schema={"letter": "string"}))
    assert [row["letter"] for row in found] == [c for row in plain for c in (row["word"] or "")]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_custom_operator_keeps_its_own_state(shape: tuple[int, int, int]) -> None:
    made = batches(3)

    def running_totals(state: pa.Table, inputs: tuple[pa.Table, ...], watermark: float) -> tuple[pa.Table, pa.Table]:
        totals = dict(zip(state["word"].to_pylist(), state["n"].to_pylist(), strict=True))
        out = []
        for word, n in zip(inputs[0]["word"].to_pylist(), inputs[0]["n"].to_pylist(), strict=True):
            totals[word] = totals.get(word, 0) + (n or 0)
            out.append({"word": word, "n": totals[word]})
        schema = pa.schema([("word", pa.string()), ("n", pa.int64())])
        new = pa.table({"word": list(totals), "n": list(totals.values())}, schema=schema)
        return new, pa.Table.from_pylist(out, schema)

    columns = {"word": "string", "n": "int64"}
    found, done = run(
        made,
        lambda s: s.key_by("word").apply(running_totals, state=columns, schema=columns, parallelism=shape[1]),
        (1, shape[1], shape[2]),
    )
    totals: dict[Any, int] = {}
    expected = []
    for row in (row for one in made for row in one):
        totals[row["word"]] = totals.get(row["word"], 0) + (row["n"] or 0)
        expected.append({"word": row["word"], "n": totals[row["word"]]})
    assert bag(found) == bag(expected)
    assert done.measures()[done.program.partitions[-1]].state_bytes > 0


@pytest.mark.parametrize("seed", SEEDS)
def test_windows_of_windows(seed: int) -> None:
    """A result happened in the last microsecond of its window, so it falls into the larger window that holds it."""
    made = batches(seed)

    def build(source: Stream) -> Stream:
        small = source.key_by("word").window(tumbling(1)).count(id="small", parallelism=2)
        return small.key_by("word").window(tumbling(4)).agg(rows=hf.sum("count"), id="large", parallelism=2)

    found, done = run(made, build)
    assert done.late("large") is None, "results are never late"
    windows, _ = in_windows(made, 1, 1)
    sums: dict[tuple[Any, int], int] = {}
    for (start, _), inside in windows.items():
        for (word,), members in oracle.by_key(inside, "word").items():
            large = start // (4 * SECOND) * 4 * SECOND
            sums[word, large] = sums.get((word, large), 0) + len(members)
    assert bag(found) == bag(
        {"word": word, "window_start": start, "window_end": start + 4 * SECOND, "rows": many}
        for (word, start), many in sums.items()
    )


def test_event_times_in_seconds_and_in_other_units() -> None:
    made = [[row for row in one if row["at"] is not None] for one in batches(1)]
    wanted, _ = run(made, lambda s: s.window(tumbling(1)).count())
    for kind, cast in (
        ("double", lambda t: pc.divide(t.cast(pa.int64()).cast(pa.float64()), 1e6)),
        ("timestamp[ns]", lambda t: t.cast(pa.timestamp("ns"))),
    ):
        app = Application("x")
        source = app.source("s", schema={"at": kind}, event_time="at", lateness=LATENESS)
        source.window(tumbling(1)).count(id="c").output()
        done = run_in_process(app, [{"s": pa.table({"at": cast(table(one)["at"])})} for one in made])
        assert moments(done.rows("c").to_pylist()) == wanted


@pytest.mark.parametrize(
    "times",
    [
        pa.array([5, 2**62, -(2**62), 2**45], pa.int64()),
        pa.array([5, 2**64 - 1, 2**63, 2**45], pa.uint64()),
        pa.array([5, 2**62, -(2**62), 2**45], pa.timestamp("s")),
        pa.array([5000, 2**62, -(2**62), 2**62 - 1], pa.timestamp("ms")),
    ],
)
def test_times_too_large_for_microseconds_are_no_times(times: pa.Array) -> None:
    found, known = event_times(pa.table({"at": times}), "at")
    assert known.tolist() == [True, False, False, False]
    assert found[0] == 5 * SECOND
