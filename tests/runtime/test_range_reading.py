"""Ranges of files: every row once however a file is cut, bad rows aside, checksums, changed and lost files."""

from __future__ import annotations

import faulthandler
import gzip
import json
import os
import random
from datetime import UTC, date, datetime, time
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import holdfast as hf
from holdfast.errors import CheckFailed
from holdfast.ids import OperatorId
from holdfast.runtime.io.file_ranges import FileRange, HowRead
from holdfast.runtime.io.in_place import PartitionRows, read_ranges
from holdfast.runtime.io.json_rows import read_json
from holdfast.runtime.io.range_reading import _read_csv
from holdfast.runtime.io.range_rows import Rejected
from holdfast.runtime.program import SourceProgram
from holdfast.storage.source_files import LocalFiles, SourceFile

SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string()), ("at", pa.timestamp("us"))])
SOURCE = SourceProgram(OperatorId("s"), 1, SCHEMA, (), None, 0.0)


def seen(path: Path) -> SourceFile:
    return LocalFiles(path.parent, glob=path.name).list()[0]


def how(format_: str, **options: str) -> HowRead:
    made = hf.files("x", format_, **options)
    return HowRead(made.format, made.options, 0)


def read(path: Path, how: HowRead, cuts: list[int] | None = None, expected: list[int] | None = None) -> PartitionRows:
    file = seen(path)
    bounds = [0, *(cuts or []), file.size]
    ranges = [FileRange(0, file, low, high) for low, high in pairwise(bounds) if high > low]
    return read_ranges(SOURCE, ranges, how, expected)


def ids(found: PartitionRows) -> list[int]:
    return found.rows["id"].to_pylist()


def csv_lines(count: int) -> list[str]:
    draw = random.Random(1)
    return [f"{n},{'w' * draw.randrange(9)},2026-01-01T00:00:{n % 60:02d}.5" for n in range(count)]


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False], ids=["newline at the end", "none at the end"])
@pytest.mark.parametrize("header", [True, False])
def test_a_csv_file_has_each_row_once_however_it_is_cut(tmp_path: Path, ending: str, last: bool, header: bool) -> None:
    path = tmp_path / "a.csv"
    lines = (["id,word,at"] if header else []) + csv_lines(40)
    path.write_bytes((ending.join(lines) + (ending if last else "")).encode())
    size = path.stat().st_size
    reader = how("csv", header=str(header).lower())
    whole = read(path, reader)
    assert ids(whole) == list(range(40))
    assert whole.rows["word"][0].as_py() is None or whole.rows["word"][0].as_py() == "w" * len(lines[-40].split(",")[1])
    for cut in range(1, size, 11):
        assert ids(read(path, reader, [cut])) == list(range(40)), cut
    draw = random.Random(2)
    for _ in range(8):
        assert ids(read(path, reader, sorted(draw.sample(range(1, size), 5)))) == list(range(40))


def test_a_json_file_has_each_row_once_however_it_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    lines = [json.dumps({"id": n, "word": "é" * (n % 5), "at": f"2026-01-01T00:00:{n:02d}Z"}) for n in range(30)]
    path.write_text("\n".join(lines))
    for cut in range(1, path.stat().st_size, 37):
        found = read(path, how("json"), [cut])
        assert ids(found) == list(range(30)), cut
        assert not found.rejected
        assert found.rows.schema == SCHEMA
        assert found.rows["at"][3].as_py().isoformat() == "2026-01-01T00:00:03"


def test_a_parquet_file_is_cut_at_row_groups_and_gives_the_columns_that_are_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table(
        {
            "id": pa.array(range(100), pa.int32()),
            "other": ["x" * 50] * 100,
            "word": [None if n % 3 else f"w{n}" for n in range(100)],
        }
    )
    pq.write_table(table, path, row_group_size=10)
    size = path.stat().st_size
    for cut in range(1, size, 397):
        found = read(path, how("parquet"), [cut])
        assert ids(found) == list(range(100)), cut
        assert found.rows.schema == SCHEMA, "a column that is not there is null, another type is cast"
        assert found.rows["at"].null_count == 100


@pytest.mark.parametrize("format_", ["csv", "json"])
def test_compressed_files_are_read_whole(tmp_path: Path, format_: str) -> None:
    lines = csv_lines(5) if format_ == "csv" else [json.dumps({"id": n}) for n in range(5)]
    path = tmp_path / f"a.{format_}.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    assert ids(read(path, how(format_))) == list(range(5))


def test_rows_that_do_not_parse_are_aside_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("0,a,2026-01-01T00:00:00\n1,b\nx,c,2026-01-01T00:00:00\n3,d,yesterday\n4,e,2026-01-01T00:00:00Z\n")
    found = read(path, how("csv"))
    assert ids(found) == [0, 4]
    said = [(row.position, row.record, row.reason) for _, row in found.rejected]
    assert said == [
        (1, "1,b", "has 2 columns, and 3 are declared"),
        (2, "x,c,2026-01-01T00:00:00", "column 'id': 'x' is not int64"),
        (3, "3,d,yesterday", "column 'at': 'yesterday' is not timestamp[us]"),
    ]
    path = tmp_path / "a.json"
    path.write_text('{"id": 0}\n{"id": 1\n{"id": "x"}\n[3]\n{"id": 4, "word": 5, "at": 1767225600}\n')
    found = read(path, how("json"))
    assert ids(found) == [0, 4]
    assert found.rows["word"].to_pylist() == [None, "5"]
    assert found.rows["at"][1].as_py().isoformat() == "2026-01-01T00:00:00"
    assert [row.position for _, row in found.rejected] == [1, 2, 3]
    assert "column 'id': \"x\" is not int64" in found.rejected[1][1].reason


def test_one_bad_line_among_many_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    lines = [json.dumps({"id": n, "word": "w" * 20}) for n in range(20_000)]
    lines[12_345] = "{broken"
    path.write_text("\n".join(lines))
    found = read(path, how("json"))
    assert ids(found) == [n for n in range(20_000) if n != 12_345]
    assert [row.position for _, row in found.rejected] == [12_345]


def test_csv_options_are_those_of_pyspark(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("word;id\n'a;b';1\nNA;2\n;3\n")
    found = read(path, how("csv", header="true", sep=";", quote="'", nullValue="NA"))
    assert ids(found) == [1, 2, 3], "columns are found by their names"
    assert found.rows["word"].to_pylist() == ["a;b", None, None]
    assert found.rows["at"].null_count == 3


def test_bytes_decide_where_they_are_known_and_the_version_where_they_are_not(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("1,a,2026-01-01T00:00:00\n")
    reader, file = how("csv"), seen(path)
    part = [FileRange(0, file, 0, file.size)]
    first = read_ranges(SOURCE, part, reader, None)
    os.utime(path, (1, 1))
    with pytest.raises(CheckFailed, match=r"a\.csv: has changed since its batch was logged .* bytes 0 to 24"):
        read_ranges(SOURCE, part, reader, None)
    assert read_ranges(SOURCE, part, reader, first.read.checks).rows.equals(first.rows), "brought back from a copy"
    path.write_text("2,a,2026-01-01T00:00:00\n")
    os.utime(path, ns=(file.modified, file.modified))
    with pytest.raises(CheckFailed, match="has other bytes than when it was first read"):
        read_ranges(SOURCE, part, reader, first.read.checks)
    path.unlink()
    with pytest.raises(CheckFailed, match=r"is not there any more.*nothing is published"):
        read_ranges(SOURCE, part, reader, None)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"nonsense" * 20])
def test_a_file_that_is_no_parquet_file_is_an_error_or_aside(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(content)
    part = [FileRange(0, seen(path), 0, max(1, len(content)))]
    with pytest.raises(CheckFailed, match=r"a\.parquet: .*ignoreCorruptFiles"):
        read_ranges(SOURCE, part, how("parquet"), None)
    found = read_ranges(SOURCE, part, how("parquet", ignoreCorruptFiles="true"), None)
    assert (found.rows.num_rows, len(found.rejected)) == (0, 1)


def test_a_torn_parquet_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": range(1000)}), path)
    data = bytearray(path.read_bytes())
    data[20:200] = bytes(180)
    path.write_bytes(data)
    with pytest.raises(CheckFailed, match="ignoreCorruptFiles"):
        read(path, how("parquet"))


def test_what_is_no_option_is_refused() -> None:
    with pytest.raises(hf.BadInput, match=r"'headr' is not an option of csv files.*did you mean 'header'"):
        hf.files("in", "csv", headr=True)
    with pytest.raises(hf.BadInput, match="'header' is not an option of parquet files"):
        hf.files("in", header=True)
    with pytest.raises(hf.BadInput, match=r"files\.sep: 'ab' is not one character"):
        hf.files("in", "csv", sep="ab")
    assert not hf.files("hdfs://host/in", "csv", anything=1).in_place
    assert not hf.files("in/*.csv", "csv").in_place
    assert hf.files("s3://bucket/in", "csv").in_place


JSON_VALUES = [
    (pa.float64(), "9007199254740993", 9007199254740992.0),
    (pa.float64(), "1" + "0" * 20, 1e20),
    (pa.float64(), "-1" + "0" * 400, float("-inf")),
    (pa.float32(), "16777217", 16777216.0),
    (pa.date32(), '"1970-01-06"', date(1970, 1, 6)),
    (pa.string(), r'"cut \ud83d"', "cut ?"),
    (pa.string(), r'{"a":"\ud83d"}', r'{"a":"\ud83d"}'),
]


def json_rows(lines: list[str], kind: pa.DataType) -> tuple[list[dict[str, Any]], list[Rejected]]:
    rows, rejected = read_json(pa.py_buffer("\n".join(lines).encode()), pa.schema([("id", pa.int64()), ("v", kind)]))
    return rows.to_pylist(), rejected


@pytest.mark.parametrize(("kind", "text", "value"), JSON_VALUES)
@pytest.mark.parametrize("beside", [[], ['{"id":"no number"}']], ids=["alone", "beside a line that does not parse"])
def test_a_line_of_json_gives_its_row_whatever_is_beside_it(
    kind: pa.DataType, text: str, value: object, beside: list[str]
) -> None:
    rows, rejected = json_rows([f'{{"id":1,"v":{text}}}', *beside], kind)
    assert rows == [{"id": 1, "v": value}]
    assert len(rejected) == len(beside)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.int64(), "[" * 3000 + "]" * 3000),
        (pa.timestamp("us"), "1e18"),
        (pa.timestamp("ns"), "99999999999"),
    ],
)
def test_a_line_of_json_that_cannot_be_taken_is_aside_and_stops_nothing(kind: pa.DataType, text: str) -> None:
    rows, rejected = json_rows([f'{{"id":1,"v":{text}}}', '{"id":2}'], kind)
    assert rows == [{"id": 2, "v": None}]
    assert [one.position for one in rejected] == [0]


def test_json_that_is_not_utf8_is_aside() -> None:
    data = b'{"id":1,"v":"\xff"}\n{"id":2,"v":"ok"}\n'
    rows, rejected = read_json(pa.py_buffer(data), pa.schema([("id", pa.int64()), ("v", pa.string())]))
    assert rows.to_pylist() == [{"id": 2, "v": "ok"}]
    assert "utf-8" in rejected[0].reason


NO_OBJECTS = [
    b"null",
    b"[1]",
    b"5",
    b'"x"',
    b'{"id":2} null',
    b'{"id":2}{"id":3}',
    b'{"id":',
    b"2}",
    b"\xef\xbb\xbf null",
]


@pytest.mark.parametrize("line", NO_OBJECTS)
@pytest.mark.parametrize("before", [b"", b"\n", b'{"id":1}\n', b'{"id":1}\r\n', b'{"id":1}{"id":\n'])
@pytest.mark.parametrize("after", [b"", b"\n", b'\n{"id":4}\n', b"\nnull\n"])
def test_a_line_that_is_not_one_object_is_aside_wherever_a_range_begins(
    before: bytes, line: bytes, after: bytes
) -> None:
    """In a process of its own: pyarrow 26 ends it at a `null` that is the first value."""
    schema = pa.schema([("id", pa.int64())])
    data = before + line + after
    found, gives = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover
        faulthandler.disable()
        rows, rejected = read_json(pa.py_buffer(data), schema)
        os.write(gives, json.dumps([rows["id"].to_pylist(), [one.position for one in rejected]]).encode())
        os._exit(0)
    _, status = os.waitpid(child, 0)
    os.close(gives)
    with open(found, "rb") as held:
        assert status == 0
        rows, rejected = json.loads(held.read())
    wanted = dict(enumerate(one for one in data.splitlines() if one.strip()))
    good = {b'{"id":1}': 1, b'{"id":4}': 4}
    assert rows == [good[one] for one in wanted.values() if one in good]
    assert rejected == [number for number, one in wanted.items() if one not in good]


MORE_JSON_VALUES = [
    (pa.decimal128(10, 2), "0.1e1", Decimal("1.00")),
    (pa.decimal128(20, 2), "123456789012345678.25", Decimal("123456789012345678.25")),
    (pa.decimal128(10, 2), '"1.50"', Decimal("1.50")),
    (pa.timestamp("us", "UTC"), '"1900-01-01"', datetime(1900, 1, 1, tzinfo=UTC)),
    (pa.date64(), '"1970-01-02"', date(1970, 1, 2)),
    (pa.map_(pa.string(), pa.int64()), '{"a":1}', [("a", 1)]),
    (pa.map_(pa.string(), pa.int64()), '[{"key":"a","value":1}]', [("a", 1)]),
]


@pytest.mark.parametrize(("kind", "text", "value"), MORE_JSON_VALUES)
def test_values_of_rare_types_are_the_same_beside_a_line_that_does_not_parse(
    kind: pa.DataType, text: str, value: object
) -> None:
    line = f'{{"id":1,"v":{text}}}'
    assert json_rows([line], kind) == ([{"id": 1, "v": value}], [])
    rows, rejected = json_rows([line, "bad"], kind)
    assert (rows, len(rejected)) == ([{"id": 1, "v": value}], 1)


def test_the_sign_of_a_zero_stays_beside_a_line_that_does_not_parse() -> None:
    for beside in ([], ["bad"]):
        rows, _ = json_rows(['{"id":-0,"v":-0}', *beside], pa.float64())
        assert str(rows) == "[{'id': 0, 'v': -0.0}]"


@pytest.mark.parametrize("text", ["[null]", "[1]", '[{"key":null,"value":1}]', '"a"'])
def test_what_is_no_map_is_aside(text: str) -> None:
    """A map that is `[null]` ends the process in pyarrow 26, in its parser and in its scalars."""
    rows, rejected = json_rows([f'{{"id":1,"v":{text}}}', '{"id":2}'], pa.map_(pa.string(), pa.int64()))
    assert (rows, len(rejected)) == ([{"id": 2, "v": None}], 1)


def csv_rows(text: str, kind: pa.DataType, **options: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Read lines of CSV with the columns `id` and `v`; return the rows, and what was kept aside."""
    schema = pa.schema([("id", pa.int64()), ("v", kind)])
    names, made = ["id", "v"], how("csv", **options).file_options
    rows, rejected = _read_csv(pa.py_buffer(text.encode()), names, made, schema)
    return rows.to_pylist(), [one.reason for one in rejected]


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (pa.int64(), " 5\t", 5),
        (pa.float64(), " 1.5 ", 1.5),
        (pa.date32(), " 1970-01-06", date(1970, 1, 6)),
        (pa.int64(), '""', None),
        (pa.float64(), '"NA"', None),
        (pa.bool_(), '""', None),
        (pa.timestamp("us"), '""', None),
        (pa.string(), '""', ""),
        (pa.string(), " a", " a"),
    ],
)
@pytest.mark.parametrize("beside", ["", "no number,\n"], ids=["alone", "beside a line that does not parse"])
def test_a_line_of_csv_gives_its_row_whatever_is_beside_it(
    kind: pa.DataType, text: str, value: object, beside: str
) -> None:
    rows, rejected = csv_rows(f"1,{text}\n{beside}", kind, nullValue="NA")
    assert rows == [{"id": 1, "v": value}]
    assert len(rejected) == bool(beside)


@pytest.mark.parametrize("name", ["007", "true", "NA", "1e3", "größe"])
def test_names_of_columns_are_texts_whatever_they_look_like(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"id,{name}\n1,x\n")
    source = SourceProgram(OperatorId("s"), 1, pa.schema([("id", pa.int64()), (name, pa.string())]), (), None, 0.0)
    file = seen(path)
    found = read_ranges(source, [FileRange(0, file, 0, file.size)], how("csv", header="true"), None)
    assert found.rows.to_pylist() == [{"id": 1, name: "x"}]


def test_a_quote_that_is_not_closed_swallows_no_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    lines = csv_lines(12)
    lines[2] = '2,"5 inch,2026-01-01T00:00:00'
    lines[7] = '7,5" wide,2026-01-01T00:00:00'
    lines[9] = '9,"a ""b""",2026-01-01T00:00:00'
    path.write_text("\n".join(lines) + "\n")
    for cut in range(1, path.stat().st_size):
        found = read(path, how("csv"), [cut])
        assert ids(found) == [0, 1, *range(3, 12)]
        assert [one.reason for _, one in found.rejected] == ["has a quote that is not closed"]


def test_a_quoted_value_over_lines_needs_multi_line(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('0,"a\n\nb",2026-01-01T00:00:00\n1,c,2026-01-01T00:00:00\n')
    assert ids(read(path, how("csv", multiLine="true"))) == [0, 1]
    for cut in range(1, path.stat().st_size):
        found = read(path, how("csv"), [cut])
        assert (ids(found), len(found.rejected)) == ([1], 2)


def test_times_that_spark_wrote_are_read_beyond_the_year_2262(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    times = [datetime(9999, 12, 31), datetime(1, 1, 1), datetime(2026, 1, 1, 0, 0, 0, 5), None]
    table = pa.table({"id": [0, 1, 2, 3], "word": ["a"] * 4, "at": pa.array(times, pa.timestamp("us"))})
    pq.write_table(table, path, use_deprecated_int96_timestamps=True)
    assert read(path, how("parquet")).rows["at"].to_pylist() == times


@pytest.mark.parametrize("zone", ["", "Z", "+00:00"])
def test_digits_of_a_second_beyond_microseconds_are_cut_off(zone: str) -> None:
    time, wanted = f"2026-01-01T00:00:00.123456789{zone}", datetime(2026, 1, 1, 0, 0, 0, 123456)
    assert json_rows([f'{{"id":1,"v":"{time}"}}'], pa.timestamp("us")) == ([{"id": 1, "v": wanted}], [])
    assert csv_rows(f"1,{time}\n", pa.timestamp("us")) == ([{"id": 1, "v": wanted}], [])


def test_a_byte_order_mark_in_the_middle_of_a_file_is_text_wherever_a_range_begins(tmp_path: Path) -> None:
    """As in files that were put together with `cat`."""
    path = tmp_path / "a.csv"
    path.write_bytes("a,1\n\ufeffb,2\n".encode())
    schema, names = pa.schema([("w", pa.string()), ("n", pa.int64())]), ["w", "n"]
    options = how("csv").file_options
    whole, _ = _read_csv(pa.py_buffer(path.read_bytes()), names, options, schema)
    rest, _ = _read_csv(pa.py_buffer(path.read_bytes()[4:]), names, options, schema)
    assert whole["w"].to_pylist() == ["a", "\ufeffb"]
    assert rest["w"].to_pylist() == ["\ufeffb"]


MORE_CSV_VALUES = [
    (pa.decimal128(10, 2), " 1.5 ", Decimal("1.50")),
    (pa.time64("us"), "12:00:01", time(12, 0, 1)),
    (pa.time64("us"), "", None),
    (pa.null(), "", None),
    (pa.dictionary(pa.int32(), pa.string()), '""', ""),
]


@pytest.mark.parametrize(("kind", "text", "value"), MORE_CSV_VALUES)
def test_values_of_rare_types_in_csv_are_the_same_beside_a_line_that_does_not_parse(
    kind: pa.DataType, text: str, value: object
) -> None:
    assert csv_rows(f"1,{text}\n", kind) == ([{"id": 1, "v": value}], [])
    rows, reasons = csv_rows(f"1,{text}\n2,3,4\n", kind)
    assert (rows, len(reasons)) == ([{"id": 1, "v": value}], 1)
