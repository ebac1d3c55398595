"""A run knows what it is, and says of every operator what a restart does to it."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast import Application, Stream, rows, session, sliding, tumbling
from holdfast.errors import BadInput
from holdfast.examples.registry import EXAMPLES
from holdfast.runtime.identity import Changes, Verdict, check_changes, compare, describe
from holdfast.runtime.program import Program

SAME, COMPATIBLE, ADDED, REMOVED, REFUSED = Verdict
SCHEMA = "segment string, lane string, speed double, n int, at timestamp, seen timestamp"
GOLDEN = Path(__file__).parent.parent / "data" / "identity"
STATE = {"segment": "string", "n": "bigint"}

Build = Callable[[Application], Any]


def cars(app: Application, name: str = "cars", **given_: Any) -> Stream:
    return app.source(name, **{"schema": SCHEMA, "event_time": "at", "lateness": 1, **given_})


def identity(build: Build, name: str = "x") -> dict[str, Any]:
    app = Application(name)
    build(app)
    return describe(Program(app))


def changes(before: Build, now: Build) -> Changes:
    """Compare two applications, the first as JSON has kept it."""
    return compare(json.loads(json.dumps(identity(before))), identity(now))


def one(found: Changes, operator: str = "o") -> Any:
    return next(change for change in found.operators if change.operator == operator)


def keep(rows_: pa.Table) -> pa.Table:
    return rows_


def keep_too(rows_: pa.Table) -> pa.Table:
    return rows_


def remember(state: pa.Table, inputs: tuple[pa.Table, ...], watermark: float) -> tuple[pa.Table, pa.Table]:
    return state, inputs[0]


class Halved:
    def __call__(self, rows_: pa.Table) -> pa.Table:
        return rows_


# -- describing --------------------------------------------------------------------------------------------------------


def test_a_description_names_everything_that_a_run_is() -> None:
    found = identity(
        lambda app: (
            cars(app, parallelism=2, key="segment")
            .key_by("segment")
            .window(sliding("10 s", every="1 s"))
            .agg(mean=hf.avg("speed"), kinds=hf.count_distinct("lane"), id="o", parallelism=4)
            .output("speeds", priority=[4, 2, 1, 1])
        )
    )
    assert found["format"] == 1
    assert (found["application"], found["holdfast"]) == ("x", hf.__version__)
    assert set(found["versions"]) == {"python", "pyarrow", "numpy"}
    assert found["outputs"] == {"o": "speeds"}
    source, operator = found["operators"]["cars"], found["operators"]["o"]
    assert (source["kind"], source["keys"], source["event_time"], source["lateness"]) == (
        "source",
        ["segment"],
        ["at"],
        1.0,
    )
    assert (source["inputs"], source["state"], source["priority"]) == ([], None, None)
    assert source["schema"][4] == ["at", "timestamp[us]"]
    assert operator["kind"] == "aggregate"
    assert operator["parallelism"] == 4
    assert operator["inputs"] == [
        {"from": "cars", "keys": ["segment"], "partitioning": "split", "schema": source["schema"]}
    ]
    assert operator["keys"] == ["segment"]
    assert operator["window"] == {"kind": "sliding", "size": 10_000_000, "every": 1_000_000}
    assert operator["event_time"] == ["at"]
    assert operator["computes"] == {
        "aggregates": [
            {"name": "mean", "function": "avg", "column": "speed", "type": "double"},
            {"name": "kinds", "function": "count_distinct", "column": "lane", "type": "int64"},
        ]
    }
    assert [name for name, _ in operator["schema"]] == ["segment", "window_start", "window_end", "mean", "kinds"]
    assert operator["deterministic"] is True
    assert operator["priority"] == [4, 2, 1, 1]
    assert operator["state"] == {
        "keys": ["segment"],
        "not_split": None,
        "kept": {},
        "tables": {
            "partials": [
                ["segment", "string"],
                ["@pane", "int64"],
                ["sum:speed", "double"],
                ["count:speed", "int64"],
            ],
            "distinct:lane": [["segment", "string"], ["@pane", "int64"], ["value:lane", "string"]],
        },
    }


def test_functions_are_known_by_their_names_alone() -> None:
    def inner(rows_: pa.Table) -> pa.Table:
        return rows_

    def names(*functions: Any) -> list[str]:
        found = identity(lambda app: [cars(app, f"s{i}").map(one_, id=f"m{i}") for i, one_ in enumerate(functions)])
        return [found["operators"][f"m{i}"]["computes"]["function"] for i in range(len(functions))]

    assert names(keep, inner, lambda t: t, functools.partial(functools.partial(keep)), Halved(), Halved().__call__) == [
        f"{__name__}.keep",
        f"{__name__}.test_functions_are_known_by_their_names_alone.<locals>.inner",
        f"{__name__}.test_functions_are_known_by_their_names_alone.<locals>.<lambda>",
        f"{__name__}.keep",
        f"{__name__}.Halved",
        f"{__name__}.Halved.__call__",
    ]
    found = identity(lambda app: cars(app).filter(pc.field("speed") > 3, id="f"))
    assert found["operators"]["f"]["computes"] == {"condition": "(speed > 3)"}


QUERIES: dict[str, Callable[[Stream], Stream]] = {
    "map": lambda s: s.map(keep, id="map"),
    "flat": lambda s: s.flat_map(keep, schema=SCHEMA, id="flat", parallelism=2),
    "kept": lambda s: s.key_by("lane").filter(pc.field("n") > 1, id="kept", parallelism=3),
    "busy": lambda s: s.key_by("segment").window(tumbling(5)).count(id="busy", parallelism=2).output("b", priority=3),
    "trips": lambda s: s.key_by("segment", "n").window(session(5)).agg(far=hf.max("speed"), id="trips"),
    "fast": lambda s: s.key_by("segment").window(rows(5)).top(2, by="speed", id="fast", parallelism=2),
    "lanes": lambda s: s.window(sliding(5, every=1)).distinct("lane", id="lanes"),
    "own": lambda s: s.key_by("segment").apply(remember, state=STATE, schema=SCHEMA, deterministic=False, id="own"),
}


def queries(names: list[str]) -> Build:
    def build(app: Application) -> None:
        stream, other = cars(app), cars(app, "others")
        for name in names:
            if name == "both":
                stream.join(other, on="segment", window=tumbling(1), id="both", parallelism=2).output()
            else:
                QUERIES[name](stream)
        other.key_by("n").window(rows(3)).count(id="always").output()
        stream.key_by("n").window(rows(3)).count(id="too").output()

    return build


@given(
    st.lists(st.sampled_from([*QUERIES, "both"]), unique=True).flatmap(
        lambda x: st.tuples(st.just(x), st.permutations(x))
    )
)
@settings(max_examples=40)
def test_the_order_in_which_operators_are_written_changes_nothing(orders: tuple[list[str], list[str]]) -> None:
    first, second = (identity(queries(names)) for names in orders)
    assert first == second
    assert json.dumps(first) == json.dumps(second), "also as a text"
    kept = json.loads(json.dumps(first))
    assert kept == first
    found = compare(kept, second)
    assert {change.verdict for change in found.operators} == {SAME}
    assert not found.layout_changed
    assert (found.refused, found.versions, found.cautions) == ([], (), ())
    check_changes(found)


@given(
    st.lists(st.sampled_from([*QUERIES, "both"]), unique=True),
    st.lists(st.sampled_from([*QUERIES, "both"]), unique=True),
)
@settings(max_examples=40)
def test_queries_come_and_go_and_the_others_are_the_same(before: list[str], now: list[str]) -> None:
    found = changes(queries(before), queries(now))
    for name in (*QUERIES, "both"):
        expected = {(True, True): SAME, (True, False): REMOVED, (False, True): ADDED, (False, False): None}
        assert found.verdict(name) is expected[name in before, name in now]
    assert (found.verdict("cars"), found.verdict("others"), found.verdict("always")) == (SAME, SAME, SAME)
    assert found.layout_changed == (set(before) != set(now))
    check_changes(found)


def test_another_process_describes_the_same() -> None:
    code = (
        "import json\n"
        "from holdfast.examples.registry import EXAMPLES\n"
        "from holdfast.runtime.identity import describe\n"
        "from holdfast.runtime.program import Program\n"
        "print(json.dumps([describe(Program(one.application())) for one in EXAMPLES.values()]))\n"
    )
    here = [describe(Program(example.application())) for example in EXAMPLES.values()]
    for seed in ("1", "77"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        assert done.stdout.strip() == json.dumps(here)


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.json")), ids=lambda path: path.stem)
def test_descriptions_of_earlier_versions_are_read_and_are_the_same(path: Path) -> None:
    """These files never change: a run that was described so must be able to go on."""
    kept = json.loads(path.read_text())
    found = compare(kept, describe(Program(EXAMPLES[path.stem].application())))
    assert found.lines() == [f"{name}: same" for name in sorted(kept["operators"])]
    assert not found.layout_changed


def test_there_are_descriptions_of_earlier_versions() -> None:
    assert {path.stem for path in GOLDEN.glob("*.json")} >= {"traffic", "incidents", "hot-pages"}


# -- comparing: what may change ----------------------------------------------------------------------------------------


def counted(**given_: Any) -> Build:
    """One keyed count; arguments of its parts may be given."""

    def build(app: Application) -> None:
        made = {"key": "segment", "window": tumbling(5), "parallelism": 4, "source": {}, **given_}
        stream = cars(app, **made["source"]).key_by(*made["key"].split())
        aggregates = made.get("aggregates", {"n": hf.count()})
        result = stream.window(made["window"]).agg(
            id=made.get("id", "o"), parallelism=made["parallelism"], **aggregates
        )
        result.output(made.get("name", "counts"), priority=made.get("priority", 1))

    return build


@pytest.mark.parametrize(("parallelism", "word"), [(2, "2"), (8, "8"), (1, "1")])
def test_another_parallelism_is_compatible(parallelism: int, word: str) -> None:
    found = changes(counted(), counted(parallelism=parallelism))
    assert f"parallelism 4 -> {word}" in one(found).what
    assert one(found).verdict is COMPATIBLE
    assert found.verdict("cars") is SAME
    assert found.layout_changed


def test_lines_are_for_people() -> None:
    assert changes(counted(), counted(parallelism=2)).lines() == ["cars: same", "o: compatible: parallelism 4 -> 2"]
    found = changes(counted(), counted(id="p", key="lane"))
    assert found.lines() == [
        "cars: same",
        "o: removed: its state is dropped",
        "p: added: begins at the restart, with empty state",
    ]
    assert changes(counted(), counted(key="lane")).lines() == [
        "cars: same",
        "o: refused: keys segment -> lane; give it another id: it then begins anew, as a new query",
    ]


@pytest.mark.parametrize(
    ("now", "operator", "what"),
    [
        (counted(priority=5), "o", "priority 1 -> 5"),
        (counted(priority=[4, 3, 2, 1]), "o", "priority 1 -> 4, 3, 2, 1"),
        (counted(source={"lateness": 2.5}), "cars", "lateness 1.0 -> 2.5"),
    ],
)
def test_priority_and_lateness_need_no_new_layout(now: Build, operator: str, what: str) -> None:
    found = changes(counted(), now)
    assert (one(found, operator).verdict, one(found, operator).what) == (COMPATIBLE, (what,))
    assert not found.layout_changed
    check_changes(found)


def test_an_output_of_another_name_is_another_layout() -> None:
    """After a crash, batches since the last checkpoint come out again: those of before go where they went before."""
    found = changes(counted(), counted(name="other"))
    assert one(found).what == ("output counts -> other",)
    assert one(found).verdict is COMPATIBLE
    assert found.layout_changed


def test_a_source_may_have_another_parallelism_and_key() -> None:
    found = changes(counted(), counted(source={"parallelism": 3, "key": "segment"}))
    assert one(found, "cars").what == ("parallelism 1 -> 3", "key none -> segment")
    assert one(found).what == ("exchange from cars split -> full",), "its state stays where it is"
    assert found.layout_changed
    assert not found.refused


def test_what_is_made_of_a_state_may_change_where_the_state_does_not() -> None:
    """Sums are kept by column, not by the name of the result: names may change, and an average has a sum already."""
    before = counted(aggregates={"mean": hf.avg("speed")})
    found = changes(before, counted(aggregates={"average": hf.avg("speed")}))
    assert one(found).verdict is COMPATIBLE
    assert one(found).what[0] == "aggregates mean=avg(speed) -> average=avg(speed)"
    assert changes(before, counted(aggregates={"mean": hf.avg("speed"), "all": hf.sum("speed")})).refused == []
    refused = changes(before, counted(aggregates={"mean": hf.avg("speed"), "most": hf.max("speed")})).refused
    assert "its state has other columns: max:speed double is new" in refused[0].because[0]
    swapped = changes(
        counted(aggregates={"a": hf.min("speed"), "b": hf.max("speed")}),
        counted(aggregates={"b": hf.max("speed"), "a": hf.min("speed")}),
    )
    assert "order segment, @pane, min:speed, max:speed -> segment, @pane, max:speed, min:speed" in str(one(swapped))


def test_count_windows_keep_rows_so_anything_may_be_computed_of_them() -> None:
    found = changes(
        counted(window=rows(9), aggregates={"n": hf.count()}),
        counted(window=rows(9), aggregates={"x": hf.max("speed")}),
    )
    assert one(found).verdict is COMPATIBLE


def test_functions_and_conditions_may_change() -> None:
    """A function is its name: changed code under it is the user's decision."""

    def build(function: Any, condition: Any) -> Build:
        def made(app: Application) -> None:
            stream = cars(app).map(function, schema=SCHEMA, id="m").filter(condition, id="f")
            stream.key_by("segment").window(tumbling(5)).count(id="o").output()

        return made

    found = changes(build(keep, pc.field("n") > 1), build(keep_too, pc.field("n") > 2))
    assert one(found, "m").what == (f"function {__name__}.keep -> {__name__}.keep_too",)
    assert one(found, "f").what == ("condition (n > 1) -> (n > 2)",)
    assert found.verdict("o") is SAME
    assert not found.refused
    again = changes(build(lambda t: t, keep), build(lambda t: t.slice(1), keep))
    assert {change.verdict for change in again.operators} == {SAME}
    kinds = changes(
        lambda app: cars(app).map(keep, schema=SCHEMA, id="m").output(),
        lambda app: cars(app).flat_map(keep, schema=SCHEMA, id="m").output(),
    )
    assert one(kinds, "m").what == ("kind map -> flat-map",)


def test_a_file_s_functions_are_the_same_whatever_starts_it() -> None:
    """`python my_app.py` and spark-submit call its module `__main__`, `holdfast run my_app.py` does not."""

    def build(module: str, name: str = "f") -> Build:
        def function(rows_: pa.Table) -> pa.Table:
            return rows_

        function.__module__, function.__qualname__ = module, name
        return lambda app: cars(app).map(function, schema=SCHEMA, id="o").output()

    assert changes(build("__main__"), build("holdfast_application")).verdict("o") is SAME
    assert changes(build("holdfast_application"), build("__main__")).verdict("o") is SAME
    assert changes(build("__main__"), build("holdfast_application", "g")).verdict("o") is COMPATIBLE
    assert changes(build("__main__"), build("package.module")).verdict("o") is COMPATIBLE


def mapped(columns: str | None, key: str = "segment", **given_: Any) -> Build:
    def build(app: Application) -> None:
        stream = cars(app).map(keep, schema=columns, id="m")
        windowed = stream.key_by(key).window(given_.get("window", tumbling(5)))
        given_.get("make", lambda w: w.agg(s=hf.sum("speed"), id="o"))(windowed).output()

    return build


COLUMNS = "segment string, speed double, at timestamp"


def test_columns_of_stateless_operators_may_change_where_no_state_holds_them() -> None:
    found = changes(mapped(COLUMNS), mapped(f"{COLUMNS}, colour string"))
    assert one(found, "m").verdict is COMPATIBLE
    assert one(found, "m").what == ("columns: colour string is new",)
    assert one(found, "o").what == ("columns of m: colour string is new",), "a sum keeps none of it"
    assert not found.refused


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ("segment string, speed float, at timestamp", None),
        ("segment bigint, speed double, at timestamp", "segment string -> int64"),
        ("segment string, speed bigint, at timestamp", "sum:speed double -> int64"),
    ],
)
def test_columns_that_a_state_holds_stay(columns: str, why: str | None) -> None:
    """What counts is what is kept: the sum of floats is a double, as that of doubles."""
    found = changes(mapped(COLUMNS), mapped(columns))
    assert one(found, "m").verdict is COMPATIBLE, "the state decides, not the map"
    if why is None:
        assert one(found).verdict is COMPATIBLE
    else:
        assert one(found).because == (f"its state has other columns: {why}",)


def test_operators_that_keep_rows_keep_all_their_columns() -> None:
    def top(windowed: Any) -> Stream:
        return windowed.top(3, by="speed", id="o")

    for window in (tumbling(5), session(5), rows(5)):
        found = changes(
            mapped(COLUMNS, make=top, window=window), mapped(f"{COLUMNS}, colour string", make=top, window=window)
        )
        assert one(found).because == ("its state has other columns: colour string is new",)


def test_columns_that_are_not_declared_are_the_users_affair_and_stay_so() -> None:
    """Without columns nobody can compare a state's: then what is computed must be the same."""
    assert changes(mapped(None), mapped(None)).lines() == ["cars: same", "m: same", "o: same"]
    assert "were declared and are not declared" in one(changes(mapped(COLUMNS), mapped(None))).because[0]
    assert "were not declared and are declared" in one(changes(mapped(None), mapped(COLUMNS))).because[0]
    other = mapped(None, make=lambda w: w.agg(s=hf.max("speed"), id="o"))
    assert one(changes(mapped(None), other)).because == ("aggregates s=sum(speed) -> s=max(speed)",)


# -- comparing: what is refused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "now", "why"),
    [
        (counted(), counted(key="lane"), "keys segment -> lane"),
        (counted(), counted(key="segment lane"), "keys segment -> segment, lane"),
        (counted(key="segment lane"), counted(key="lane segment"), "keys segment, lane -> lane, segment"),
        (counted(), counted(window=tumbling(6)), "window sliding(size=5 s, every=5 s) -> sliding(size=6 s, every=6 s)"),
        (counted(), counted(window=session(5)), "window sliding(size=5 s, every=5 s) -> session(gap=5 s)"),
        (counted(window=rows(5)), counted(window=rows(5, every=2)), "window rows(size=5, every=5) -> rows(size=5, eve"),
        (counted(), counted(aggregates={"n": hf.count("speed")}), "aggregates n=count() -> n=count(speed): its state"),
    ],
)
def test_keys_windows_and_the_columns_of_a_state_stay(before: Build, now: Build, why: str) -> None:
    """Rows of one key would find the state of another; panes are cut for their window; tables have their columns."""
    found = changes(before, now)
    assert one(found).because[0].startswith(why)
    assert one(found).remedy == "give it another id: it then begins anew, as a new query"
    assert found.layout_changed
    assert found.verdict("cars") is SAME


def test_a_kind_with_state_stays() -> None:
    def top(app: Application) -> None:
        cars(app).key_by("segment").window(tumbling(5)).top(3, by="speed", id="o", parallelism=4).output("counts")

    assert one(changes(counted(), top)).because == ("kind aggregate -> top",)
    found = changes(counted(), lambda app: cars(app).filter(keep, id="o").output("counts"))
    assert one(found).because == ("kind aggregate -> filter",), "the state would be lost"
    found = changes(
        lambda app: (cars(app), cars(app, "o").output()),
        lambda app: cars(app).map(keep, id="o", schema=SCHEMA).output(),
    )
    assert one(found).because == ("kind source -> map",), "the log would be lost"


@pytest.mark.parametrize("window", [tumbling(5), session(5)])
def test_the_best_rows_are_among_the_best_of_more(window: Any) -> None:
    """A lower k finds all rows it needs; a higher one, and another order, does not."""

    def top(k: int, by: str = "speed", *, largest: bool = True, over: Any = window) -> Build:
        return lambda app: cars(app).key_by("segment").window(over).top(k, by=by, largest=largest, id="o").output()

    assert one(changes(top(5), top(3))).what == ("k 5 -> 3",)
    assert one(changes(top(5), top(3))).verdict is COMPATIBLE
    assert one(changes(top(3), top(5))).because == ("k 3 -> 5",)
    assert one(changes(top(3), top(3, "n"))).because == ("by speed -> n",)
    assert one(changes(top(3), top(3, largest=False))).because == ("largest yes -> no",)
    assert one(changes(top(3, over=rows(9)), top(5, over=rows(9)))).verdict is COMPATIBLE, "all rows are kept"


def test_distinct_columns_stay() -> None:
    def lanes(*columns: str) -> Build:
        return lambda app: cars(app).key_by("lane").window(tumbling(5)).distinct(*columns, id="o").output()

    assert one(changes(lanes("lane"), lanes("lane", "segment"))).because == (
        "columns lane -> lane, segment: its state has other columns: segment string is new",
    )


@pytest.mark.parametrize(
    ("given_", "why"),
    [
        ({"schema": f"{SCHEMA}, colour string"}, "columns: colour string is new"),
        ({"schema": SCHEMA.replace("n int", "n bigint")}, "columns: n int32 -> int64"),
        ({"schema": SCHEMA.replace("n int, ", "")}, "columns: n is gone"),
        ({"event_time": "seen"}, "event time at -> seen"),
    ],
)
def test_columns_and_event_time_of_a_source_stay(given_: dict[str, Any], why: str) -> None:
    """Its log has rows of the columns of before, and a watermark of the event time of before."""
    found = changes(counted(), counted(source=given_))
    assert one(found, "cars").because == (why,)
    assert "give it another id, and o, which reads its rows: they then begin anew" in str(one(found, "cars").remedy)


def test_the_event_time_of_a_window_stays() -> None:
    def build(event_time: str) -> Build:
        def made(app: Application) -> None:
            stream = cars(app).map(keep, schema=SCHEMA, event_time=event_time, id="m")
            stream.key_by("segment").window(tumbling(5)).count(id="o").output()

        return made

    assert one(changes(build("at"), build("seen"))).because == ("event time at -> seen",)


def test_inputs_of_a_state_stay() -> None:
    """What it has of an input that is gone meets no rows any more; a new input finds none of its rows."""

    def joined(*names: str) -> Build:
        def made(app: Application) -> None:
            streams = {name: cars(app, name) for name in ("a", "b", "c")}
            left, right = (streams[name] for name in names)
            left.join(right, on="segment", window=tumbling(5), id="o").output()

        return made

    assert one(changes(joined("a", "b"), joined("a", "c"))).because == ("inputs a, b -> a, c",)
    assert one(changes(joined("a", "b"), joined("b", "a"))).because == ("inputs a, b -> b, a",), "sides are by order"

    def applied(*names: str) -> Build:
        def made(app: Application) -> None:
            streams = [cars(app, name).key_by("segment") for name in ("a", "b")]
            first, *others = [streams["ab".index(name)] for name in names]
            first.apply(remember, *others, state=STATE, schema=SCHEMA, id="o").output()

        return made

    assert one(changes(applied("a", "b"), applied("a"))).because == ("inputs a, b -> a",)
    assert one(changes(applied("a"), applied("a", "b"))).because == ("inputs a -> a, b",)


def test_a_removed_operator_leaves_readers_with_other_inputs() -> None:
    def between(name: str | None) -> Build:
        def made(app: Application) -> None:
            stream = cars(app)
            if name is not None:
                stream = stream.filter(keep, id=name)
            stream.key_by("segment").window(tumbling(5)).count(id="o").output()

        return made

    found = changes(between("f"), between(None))
    assert found.verdict("f") is REMOVED
    assert one(found).because == ("inputs f -> cars",)
    found = changes(between(None), between("f"))
    assert found.verdict("f") is ADDED
    assert one(found).because == ("inputs cars -> f",)
    found = changes(between("f"), between("g"))
    assert [found.verdict(name) for name in ("f", "g", "o")] == [REMOVED, ADDED, REFUSED], "a renamed id is both"


def rerouted(of: str, *, through: bool = False, state: str | None = "o") -> Build:
    """A filter that reads one of two sources, perhaps through another, and perhaps a count behind it."""

    def made(app: Application) -> None:
        streams = {name: cars(app, name) for name in ("a", "b")}
        stream = streams[of].map(keep, schema=SCHEMA, id="m") if through else streams[of]
        stream = stream.filter(keep, id="f")
        if state is not None:
            stream.map(keep, schema=SCHEMA, id="last").key_by("segment").window(tumbling(5)).count(id=state).output()
        else:
            stream.output()

    return made


def test_a_state_goes_on_with_rows_from_where_they_came_from() -> None:
    """Stateless operators may come and go on the way; another origin is another stream."""
    assert not changes(rerouted("a"), rerouted("a", through=True)).refused
    assert not changes(rerouted("a", through=True), rerouted("a")).refused
    found = changes(rerouted("a"), rerouted("b"))
    assert [change.operator for change in found.refused] == ["f"]
    assert one(found, "f").because == ("its rows come from b, not from a, and o has state of those",)
    assert one(found, "f").remedy == "give o another id, to begin anew"
    assert not changes(rerouted("a"), rerouted("b", state="p")).refused, "as the remedy says"
    assert not changes(rerouted("a", state=None), rerouted("b", state=None)).refused, "there is no state"


def test_a_remedy_works_when_it_is_followed() -> None:
    """Under another id, readers with state have another input: the remedy names them, all of them."""

    def chain(key: str = "segment", first: str = "speeds", second: str = "jams", third: str = "days") -> Build:
        def made(app: Application) -> None:
            small = cars(app).key_by(key).window(tumbling(1)).agg(n=hf.count(), id=first)
            some = small.filter(keep, id="some")
            large = some.key_by(key).window(tumbling(60)).agg(n=hf.sum("n"), id=second)
            large.window(tumbling(600)).agg(n=hf.sum("n"), id=third).output()
            small.window(rows(3)).count(id="plain").output()

        return made

    found = changes(chain(), chain("lane"))
    assert found.verdict("some") is COMPATIBLE
    assert "and days, jams, plain, which read its rows: they then begin anew" in str(one(found, "speeds").remedy)
    again = changes(chain(), chain("lane", "speeds2", "jams2", "days2"))
    assert [change.operator for change in again.refused] == ["plain"], "the one that was not renamed"


def applied(parallelism: int, *, keyed: bool = True, state: dict[str, str] | None = None) -> Build:
    def made(app: Application) -> None:
        stream = cars(app).key_by("segment") if keyed else cars(app)
        stream.apply(remember, state=state or STATE, schema=SCHEMA, id="o", parallelism=parallelism).output()

    return made


def test_parallelism_stays_where_a_state_has_no_key() -> None:
    """Without a key, a state is of its partition: nobody knows how to cut it."""
    assert not changes(applied(4), applied(2)).refused
    found = changes(applied(4, keyed=False), applied(2, keyed=False))
    assert one(found).because == (
        "parallelism 4 -> 2, but it takes rows without a key, so a row of its state belongs to a partition, "
        "not to a key",
    )
    assert str(one(found).remedy).startswith("keep parallelism=4, or give it another id")
    bare = {"n": "bigint"}
    assert "its state has no column 'segment'" in str(one(changes(applied(4, state=bare), applied(2, state=bare))))
    assert not changes(applied(4, keyed=False), applied(4, keyed=False)).refused
    totals = [lambda app, p=p: cars(app).window(tumbling(5)).count(id="o", parallelism=p).output() for p in (4, 2)]
    assert "but it has no key: a window holds the rows of a partition" in str(one(changes(*totals)))


def test_the_columns_of_an_own_state_stay() -> None:
    assert one(changes(applied(2), applied(2, state={**STATE, "m": "bigint"}))).because == (
        "its state has other columns: m int64 is new",
    )
    assert one(changes(applied(2), applied(2, keyed=False))).because == ("keys segment -> none",)


def own(kind: str | None) -> Build:
    """An operator with its own state behind a map that gives its key this type; None: not declared."""

    def made(app: Application) -> None:
        columns = None if kind is None else f"segment {kind}, at timestamp"
        stream = cars(app).map(keep, schema=columns, id="m").key_by("segment")
        stream.apply(remember, state={"segment": "string"}, schema=SCHEMA, id="o", parallelism=4).output()

    return made


@pytest.mark.parametrize(
    ("before", "now", "why"),
    [
        ("long", "string", "key segment int64 -> string"),
        ("string", "long", "key segment string -> int64"),
        ("float", "double", "key segment float -> double"),
        ("string", None, "key segment string -> not declared"),
        (None, "string", "key segment not declared -> string"),
        ("int", "long", None),  # the same value has the same hash
        (None, None, None),
    ],
)
def test_the_type_of_a_key_stays_where_the_state_does_not_hold_it(
    before: str | None, now: str | None, why: str | None
) -> None:
    """Its hash would be another: rows would come to other partitions than those with the state of their key."""
    found = one(changes(own(before), own(now)))
    assert found.because == (() if why is None else (f"{why}: its rows would not find their state",))


def spread(key: str | None, many: int = 4, through: str | None = None, parallelism: int = 4) -> Build:
    """An operator without a key, behind a source, or a map, that spreads rows by one."""

    def made(app: Application) -> None:
        stream = cars(app, parallelism=many, key=key)
        if through is not None:
            stream = stream.key_by(through).map(keep, schema=SCHEMA, id="m", parallelism=many)
        stream.apply(remember, state=STATE, schema=SCHEMA, id="o", parallelism=parallelism).output()

    return made


def test_a_state_without_a_key_keeps_the_key_by_which_its_rows_come() -> None:
    """A source or a map may bring the rows of a key together: a state that counts on it is of its partitions."""
    found = one(changes(spread("segment"), spread("lane")))
    assert found.because == (
        "rows of cars came spread by segment in 4, and come spread by lane in 4: its state is of its partitions",
    )
    assert "came spread by segment in 4, and come as they are" in str(one(changes(spread("segment"), spread(None))))
    assert "come as they are" in str(one(changes(spread("segment"), spread("segment", 2)))), "two are cut into four"
    through = changes(spread(None, through="segment"), spread(None, through="lane"))
    assert "rows of m came spread by segment in 4, and come spread by lane in 4" in str(one(through))
    assert not changes(spread("segment"), spread("segment", 8)).refused, "ranges nest"
    assert changes(spread("segment"), spread("segment", 6)).refused, "ranges do not nest"
    assert not changes(spread(None), spread("lane")).refused, "rows came as they were"
    assert not changes(spread("segment", 2, parallelism=1), spread("lane", parallelism=1)).refused, "there is only one"


def test_deterministic_may_change_and_what_reads_it_changes_too() -> None:
    def build(sure: bool) -> Build:
        def made(app: Application) -> None:
            stream = cars(app).apply(remember, state=STATE, schema=SCHEMA, deterministic=sure, id="o")
            stream.map(keep, id="m").output()

        return made

    found = changes(build(True), build(False))
    assert one(found).what == one(found, "m").what == ("deterministic yes -> no",)
    assert not found.refused


def test_an_output_that_comes_or_goes_is_another_layout() -> None:
    """What nobody reads is an output, also where nobody said so: a query that reads it ends that output."""

    def build(*names: str) -> Build:
        def made(app: Application) -> None:
            kept = cars(app).filter(keep, id="f")
            for name in names:
                kept.map(keep, id=name).output()

        return made

    found = changes(build(), build("m"))
    assert one(found, "f").what == ("output f -> none",)
    assert one(found, "f").layout
    assert changes(build("m"), build("m", "n")).verdict("f") is SAME


# -- the whole ---------------------------------------------------------------------------------------------------------


def test_all_refusals_come_in_one_line_with_what_to_do() -> None:
    found = changes(counted(), counted(key="lane", source={"event_time": "seen"}))
    with pytest.raises(BadInput) as caught:
        check_changes(found, "/runs/x")
    line = str(caught.value)
    assert "\n" not in line
    assert line.startswith("/runs/x: cannot go on with this application: cars: event time at -> seen; o: keys segment")
    assert "; cars: give it another id, and o, which reads its rows" in line
    with pytest.raises(BadInput, match=r"application x: cannot go on .* o: keys segment -> lane; give it another id"):
        check_changes(changes(counted(), counted(key="lane")))


def test_another_application_and_another_format_are_refused() -> None:
    before = identity(counted())
    with pytest.raises(BadInput, match="a run of application 'x', not of 'y'; give every application a directory"):
        compare(before, identity(counted(), "y"))
    with pytest.raises(BadInput, match=r"format 2, and this Holdfast .* reads up to 1; use Holdfast 9.9 or later"):
        compare({**before, "format": 2, "holdfast": "9.9"}, before)
    for strange in ({}, {"format": "1"}, {"format": 0}):
        with pytest.raises(BadInput, match="not the description of a run"):
            compare(strange, before)


def test_versions_are_information() -> None:
    before = identity(counted())
    older = {**before, "holdfast": "0.0.1", "versions": {**before["versions"], "pyarrow": "18.0"}}
    found = compare(older, before)
    assert found.versions == (f"holdfast 0.0.1 -> {hf.__version__}", f"pyarrow 18.0 -> {pa.__version__}")
    assert not found.layout_changed
    assert not found.refused


def test_a_rename_is_accepted_with_a_caution() -> None:
    found = changes(counted(), counted(id="p"))
    assert found.cautions == ("p is what o was: under another id it begins anew, and the state of o is dropped",)
    assert changes(counted(), counted(id="p", key="lane")).cautions == ()


def test_ids_made_by_number_are_cautioned_of_when_operators_come_or_go() -> None:
    def build(many: int, **given_: Any) -> Build:
        def made(app: Application) -> None:
            stream = cars(app)
            for number in range(many):
                stream.key_by("segment").window(tumbling(number + 1)).count(**given_).output()

        return made

    (caution,) = changes(build(1), build(2)).cautions
    assert caution.startswith("aggregate-1: ids made by number, and others of the kind came or went")
    assert changes(build(2), build(2)).cautions == ()
    assert changes(build(1, id="own"), build(1, id="other")).cautions[0].startswith("other is what own was")
