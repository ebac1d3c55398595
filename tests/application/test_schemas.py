"""Schemas as users write them, columns that are known only at the start, files, and names of outputs."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast as hf
from holdfast.application.columns import SPARK_TYPES, read_schema, spark_ddl
from holdfast.application.resolving import unresolved_sources, with_columns
from holdfast.runtime import run_in_process
from holdfast.runtime.program import Program


def test_a_ddl_string_means_what_spark_means_by_it() -> None:
    text = "ts timestamp, user STRING NOT NULL, `odd name, with ``ticks``` int, n: bigint COMMENT 'a, b', ok boolean"
    assert read_schema(text, field="schema") == {
        "ts": "timestamp[us]",
        "user": "string",
        "odd name, with `ticks`": "int32",
        "n": "int64",
        "ok": "bool",
    }
    assert read_schema(
        "a tinyint, b smallint, c float, d date, e binary, f varchar(10), g timestamp_ntz", field="s"
    ) == {
        "a": "int8",
        "b": "int16",
        "c": "float",
        "d": "date32[day]",
        "e": "binary",
        "f": "string",
        "g": "timestamp[us]",
    }


@given(st.dictionaries(st.text("ab` ,:", min_size=1, max_size=5), st.sampled_from(sorted(SPARK_TYPES)), min_size=1))
def test_what_is_written_as_ddl_is_read_again(columns: dict[str, str]) -> None:
    schema = read_schema(columns, field="schema")
    assert read_schema(spark_ddl(schema), field="schema") == schema


def test_a_struct_type_a_pyarrow_schema_and_a_dict_say_the_same() -> None:
    from pyspark.sql.types import DoubleType, StringType, StructType, TimestampType

    struct = StructType().add("word", StringType()).add("x", DoubleType()).add("at", TimestampType())
    arrow = pa.schema([("word", pa.string()), ("x", pa.float64()), ("at", pa.timestamp("us", "UTC"))])
    expected = {"word": "string", "x": "double", "at": "timestamp[us]"}
    for given_ in (
        struct,
        arrow,
        {"word": "string", "x": "double", "at": "timestamp"},
        "word string, x double, at timestamp",
    ):
        assert read_schema(given_, field="schema") == expected


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("tags array<string>", r"t\.schema\.tags: type array<string> is not supported.*cast"),
        ("a struct<b: int, c: string>, d int", r"type struct<b: int, c: string> is not supported"),
        ("price decimal(10, 2)", r"type decimal\(10, 2\) is not supported.*decimal to double"),
        ("word strnig", r"'strnig' is not a column type; did you mean 'string'"),
        ("word", r"'word' is not a column name and a type"),
        ("", r"is not a column name and a type"),
        ("a int, a int", r"column 'a' is there twice"),
        ("a array<int", r"open bracket"),
        ({}, r"names no column"),
        (3, r"is not a schema"),
    ],
)
def test_schemas_that_cannot_be_are_refused_in_one_line(schema: object, said: str) -> None:
    with pytest.raises(hf.BadInput, match=said) as caught:
        hf.Application("x").source("t", schema=schema)
    assert "\n" not in str(caught.value)


def unknown() -> hf.Application:
    app = hf.Application("late")
    source = app.source("s", lambda spark: None, event_time="at")
    kept = source.filter(lambda rows: rows["n"].is_valid(), id="kept")
    sums = kept.key_by("word").window(hf.tumbling(10)).agg(n=hf.sum("n"), id="sums")
    sums.window(hf.tumbling(10)).top(3, by="n", id="top").output("best")
    source.map(lambda rows: rows, id="mapped").output("mapped")
    return app


def test_columns_that_come_at_the_start_go_through_the_operators() -> None:
    app = unknown()
    assert unresolved_sources(app) == ["s"]
    assert len(app.topology()) == 5, "planning needs no columns"
    with pytest.raises(hf.BadInput, match=r"s\.schema: the columns of this source are not known yet.*declare them"):
        Program(app)
    known = with_columns(app, {"s": {"word": "string", "n": "int32", "at": "timestamp[us]"}})
    windows = {"window_start": "timestamp[us]", "window_end": "timestamp[us]"}
    assert known.columns["sums"] == {"word": "string", **windows, "n": "int64"}  # type: ignore[index]
    assert known.columns["top"] == known.columns["sums"]  # type: ignore[index]
    assert known.columns["mapped"] is None, "the function decides"  # type: ignore[index]
    assert unresolved_sources(app) == ["s"], "the application itself is as it was"
    rows = pa.table({"word": ["a", "a"], "n": pa.array([1, 2], pa.int32()), "at": pa.array([0, 1], pa.timestamp("us"))})
    done = run_in_process(known, [{"s": rows}])
    assert [(row["word"], row["n"]) for row in done.rows("best").to_pylist()] == [("a", 3)]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"word": "string", "at": "timestamp[us]"}, r"application late: sums\.n: there is no column 'n'"),
        ({"word": "string", "n": "string", "at": "timestamp[us]"}, r"column 'n' is string, not a number"),
        ({"n": "int64", "at": "timestamp[us]"}, r"sums: there is no column 'word'"),
        ({"word": "string", "n": "int64", "at": "string"}, r"s\.event_time: column 'at' is string, not a time"),
    ],
)
def test_columns_that_do_not_fit_are_refused_at_the_start(columns: dict[str, str], said: str) -> None:
    with pytest.raises(hf.BadInput, match=said):
        with_columns(unknown(), {"s": columns})


def test_a_condition_is_checked_once_the_columns_are_known() -> None:
    app = hf.Application("late")
    app.source("s", hf.files("in/")).filter(pc.field("amount") > 0, id="paid")
    with pytest.raises(hf.BadInput, match=r"application late: paid: there is no column 'amount'"):
        with_columns(app, {"s": {"word": "string"}})
    assert with_columns(app, {"s": {"amount": "double"}}).columns["paid"]  # type: ignore[index]


def test_files_are_a_plain_value() -> None:
    read = hf.files("in", format="csv", header=True, maxFilesPerTrigger=2)
    assert read == hf.Files("in", "csv", (("header", "true"), ("maxFilesPerTrigger", "2")))
    app = hf.Application("x")
    app.source("parquet", hf.files("in"))
    for format_ in ("json", "csv"):
        with pytest.raises(hf.BadInput, match=rf"s\.schema: {format_} files do not say the types"):
            app.source("s", hf.files("in", format=format_))
    with pytest.raises(hf.BadInput, match="did you mean 'json'"):
        hf.files("in", format="jsonl")
    with pytest.raises(hf.BadInput, match=r"files\.path: is empty"):
        hf.files(" ")


def two_outputs(first: str | None, second: str | None) -> hf.Application:
    app = hf.Application("x")
    source = app.source("s", schema="a bigint")
    source.map(lambda rows: rows, id="m").output(first)
    source.map(lambda rows: rows, id="n").output(second)
    return app


def test_outputs_have_names_of_their_own() -> None:
    app = two_outputs("left", None)
    assert app.output_names() == {"m": "left", "n": "n"}
    for first, second, said in (
        ("left", "left", r"n\.output: 'left' is the output of m"),
        ("a b", None, "'a b' is not a name for an output"),
        ("n", None, r"n\.output: 'n' is the output of m"),
    ):
        with pytest.raises(hf.BadInput, match=said):
            two_outputs(first, second)
    bare = hf.Application("y")
    source = bare.source("s", schema="a bigint")
    source.map(lambda rows: rows, id="m").output("n")
    source.map(lambda rows: rows, id="n")  # nothing consumes it: it is an output too
    with pytest.raises(hf.BadInput, match="m and n are both published as 'n'"):
        bare.topology()


def test_rows_and_sinks_go_by_the_outputs_names() -> None:
    from holdfast.runtime import InProcess

    kept = hf.memory()
    running = InProcess(two_outputs("left", "right"), sinks={"right": kept})
    running.feed({"s": pa.table({"a": [1, 2]})})
    rows = kept.rows()
    assert rows is not None
    assert rows.num_rows == running.rows("left").num_rows == 2
    with pytest.raises(hf.BadInput, match="'m' is not an output; there are left, right"):
        running.rows("m")
    with pytest.raises(hf.BadInput, match="'middle' is not an output"):
        InProcess(two_outputs("left", "right"), sinks={"middle": kept})
