"""Values of files that are not what their column is declared as: what Spark's reader gives, or a rejection.

What Spark gives was taken from its JSON and Parquet readers with the same schema;
`tests/spark/test_values_of_readers.py` asks them again.
"""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.errors import CheckFailed
from holdfast.ids import OperatorId
from holdfast.runtime.io.file_ranges import FileRange, HowRead
from holdfast.runtime.io.in_place import read_ranges
from holdfast.runtime.io.json_rows import read_json
from holdfast.runtime.io.kafka_records import Records, record_rows
from holdfast.runtime.program import SourceProgram
from holdfast.storage.source_files import LocalFiles

INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
FRACTIONS = ["1.5", "0.1", "-2.25", "1.0", "-0.0", "1e2", "1E2", "1.5e1", "1e-400", "123456789012345678.25"]
TIMES = [pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")]
REJECTED = [
    *((kind, text) for kind in INTEGERS for text in [*FRACTIONS, '"5"', '"1.5"', "true", '""']),
    *((kind, text) for kind in TIMES for text in [*FRACTIONS, "1767225600.5", '"1767225600"', "true", '""']),
    *((kind, text) for kind in (pa.date32(), pa.date64()) for text in ["0", "-0", "86400000", "1.5", '"x"', '""']),
    *((kind, text) for kind in (pa.float32(), pa.float64()) for text in ['"1.5"', '"5"', "true", '""']),
    *((pa.bool_(), text) for text in ["0", "1", "1.0", '"true"', '""']),
    *((pa.binary(), text) for text in ['"x"', '"YQ"', '"Y Q="', '"é"', '"YQ==YQ=="', "5", "[1]"]),
]
READ = [
    (pa.string(), "1.50", "1.50"),
    (pa.string(), "1e2", "1e2"),
    (pa.string(), "-0", "-0"),
    (pa.string(), "1e-400", "1e-400"),
    (pa.string(), "123456789012345678.25", "123456789012345678.25"),
    (pa.string(), '{"a": 1.50, "b" : "x"}', '{"a": 1.50, "b" : "x"}'),
    (pa.string(), r'[ 1,{"b":"\u00e9"} ]', r'[ 1,{"b":"\u00e9"} ]'),
    (pa.string(), "true", "true"),
    (pa.binary(), '"YQ=="', b"a"),
    (pa.binary(), '"YWJj"', b"abc"),
    (pa.binary(), '""', b""),
    (pa.timestamp("us"), "1767225600", datetime(2026, 1, 1)),
    (pa.timestamp("us"), "-1", datetime(1969, 12, 31, 23, 59, 59)),
    (pa.date32(), '"2026-01-01"', date(2026, 1, 1)),
    (pa.float64(), "1e400", float("inf")),
    (pa.int64(), "-0", 0),
]


def rows_of(text: str, kind: pa.DataType, beside: list[str]) -> tuple[list[Any], list[str]]:
    lines = [f'{{"id":1,"v":{text}}}', *beside]
    rows, rejected = read_json(pa.py_buffer("\n".join(lines).encode()), pa.schema([("id", pa.int64()), ("v", kind)]))
    return rows["v"].to_pylist(), [one.reason for one in rejected]


@pytest.mark.parametrize("beside", [[], ["bad"]], ids=["alone", "beside a line that does not parse"])
@pytest.mark.parametrize(("kind", "text"), REJECTED, ids=str)
def test_a_json_value_that_spark_does_not_read_is_rejected(kind: pa.DataType, text: str, beside: list[str]) -> None:
    rows, reasons = rows_of(text, kind, beside)
    assert rows == []
    assert len(reasons) == 1 + len(beside)
    assert "column 'v'" in reasons[0]
    assert str(kind) in reasons[0]


@pytest.mark.parametrize("beside", [[], ["bad"]], ids=["alone", "beside a line that does not parse"])
@pytest.mark.parametrize(("kind", "text", "value"), READ, ids=str)
def test_a_json_value_that_spark_reads_is_the_same(
    kind: pa.DataType, text: str, value: object, beside: list[str]
) -> None:
    rows, reasons = rows_of(text, kind, beside)
    assert rows == [value]
    assert len(reasons) == len(beside)


@pytest.mark.parametrize(("kind", "text"), [(pa.int64(), "1.5"), (pa.date32(), "5"), (pa.binary(), '"x"')], ids=str)
def test_nested_values_are_read_as_plain_ones(kind: pa.DataType, text: str) -> None:
    for nested, written in [
        (pa.list_(kind), f"[{text}]"),
        (pa.struct([("a", kind)]), f'{{"a":{text}}}'),
        (pa.map_(pa.string(), kind), f'{{"a":{text}}}'),
    ]:
        assert rows_of(written, nested, [])[0] == []
    assert rows_of('["YQ=="]', pa.list_(pa.binary()), [])[0] == [[b"a"]]
    assert rows_of('{"a":["2026-01-01"]}', pa.struct([("a", pa.list_(pa.date32()))]), [])[0] == [
        {"a": [date(2026, 1, 1)]}
    ]
    assert rows_of('{"a":{"b" : 1.50}}', pa.struct([("a", pa.string())]), [])[0] == [{"a": '{"b" : 1.50}'}]


def test_a_record_of_kafka_is_read_as_a_line_of_a_file() -> None:
    values = ['{"v":1}', '{"v":1.5}', '{"v":"5"}', '{"v":2}']
    records = Records(
        pa.array(range(4)).to_numpy(),
        pa.array([0] * 4).to_numpy(),
        [None] * 4,
        [one.encode() for one in values],
        [None] * 4,
    )
    found = record_rows(records, HowRead("json", (), 0), pa.schema([("v", pa.int64())]))
    assert found.rows["v"].to_pylist() == [1, 2]
    assert [one.position for one in found.rejected] == [1, 2]


AVRO = [
    ("double", 1.5, pa.int64()),
    ("double", 1.0, pa.int64()),
    ("long", 5, pa.timestamp("us")),
    ("long", 5, pa.date32()),
    ("double", 5.5, pa.timestamp("us")),
    ("boolean", True, pa.float64()),
    ({"type": "long", "logicalType": "timestamp-micros"}, datetime(2026, 1, 1, 3, tzinfo=UTC), pa.date32()),
]


@pytest.mark.parametrize(("written", "value", "kind"), AVRO, ids=str)
def test_an_avro_value_of_another_kind_is_rejected(written: Any, value: Any, kind: pa.DataType) -> None:
    """pyarrow makes whole numbers of fractions, and times of numbers."""
    fastavro = pytest.importorskip("fastavro")
    schema = {"type": "record", "name": "r", "fields": [{"name": "v", "type": ["null", written]}]}
    values = []
    for one in (None, value):
        sink = io.BytesIO()
        fastavro.schemaless_writer(sink, fastavro.parse_schema(schema), {"v": one})
        values.append(sink.getvalue())
    numbers = pa.array(range(2)).to_numpy()
    records = Records(numbers, numbers, [None] * 2, values, [None] * 2)
    how = HowRead("avro", (("avro_schema", json.dumps(schema)),), 0)
    found = record_rows(records, how, pa.schema([("v", kind)]))
    assert found.rows["v"].to_pylist() == [None]
    assert [one.position for one in found.rejected] == [1]
    assert f"is not {kind}" in found.rejected[0].reason


# -- Parquet -----------------------------------------------------------------------------------------------------------


def read_parquet_as(folder: Path, values: pa.Array, kind: pa.DataType, **options: Any) -> list[Any]:
    path = folder / "a.parquet"
    pq.write_table(pa.table({"v": values}), path, **options)
    file = LocalFiles(folder, glob="a.parquet").list()[0]
    source = SourceProgram(OperatorId("s"), 1, pa.schema([("v", kind)]), (), None, 0.0)
    found = read_ranges(source, [FileRange(0, file, 0, file.size)], HowRead("parquet", (), 0), None)
    return found.rows["v"].to_pylist()


NOON = datetime(2026, 1, 1, 12)
REFUSED_PARQUET = [
    *((pa.array([1767225600]), kind) for kind in TIMES),
    (pa.array([1]), pa.date64()),
    (pa.array([1]), pa.bool_()),
    (pa.array([1]), pa.string()),
    (pa.array([1.0]), pa.int64()),
    (pa.array([1.0]), pa.bool_()),
    (pa.array([0.1]), pa.float32()),
    (pa.array([0.5]), pa.string()),
    (pa.array([True]), pa.int64()),
    (pa.array([True]), pa.float64()),
    (pa.array([True]), pa.string()),
    (pa.array(["1"]), pa.int64()),
    (pa.array(["1.5"]), pa.float64()),
    (pa.array(["true"]), pa.bool_()),
    (pa.array(["2026-01-01"]), pa.timestamp("us")),
    (pa.array(["2026-01-01"]), pa.date32()),
    (pa.array([b"1"]), pa.int64()),
    (pa.array([NOON]), pa.date32()),
    (pa.array([NOON]), pa.string()),
    (pa.array([date(2026, 1, 1)]), pa.timestamp("us")),
    (pa.array([date(2026, 1, 1)]), pa.string()),
    (pa.array([Decimal("1.10")], pa.decimal128(10, 2)), pa.float64()),
    (pa.array([Decimal("1")], pa.decimal128(9, 0)), pa.int64()),
    (pa.array([Decimal("1.10")], pa.decimal128(10, 2)), pa.string()),
    (pa.array([time(1)]), pa.string()),
    (pa.array([[1]]), pa.list_(pa.timestamp("us"))),
    (pa.array([{"a": 1.0}]), pa.struct([("a", pa.int64())])),
]


@pytest.mark.parametrize(("values", "kind"), REFUSED_PARQUET, ids=lambda one: str(getattr(one, "type", one)))
def test_a_parquet_column_that_spark_does_not_read_as_declared_is_an_error(
    tmp_path: Path, values: pa.Array, kind: pa.DataType
) -> None:
    with pytest.raises(CheckFailed, match=r"a\.parquet: .*column 'v' .* declared as .*(declare|read)"):
        read_parquet_as(tmp_path, values, kind)


def test_old_times_of_spark_are_no_numbers(tmp_path: Path) -> None:
    values = pa.array([NOON], pa.timestamp("us"))
    with pytest.raises(CheckFailed, match="column 'v'"):
        read_parquet_as(tmp_path, values, pa.int64(), use_deprecated_int96_timestamps=True)
    assert read_parquet_as(tmp_path, values, pa.timestamp("us"), use_deprecated_int96_timestamps=True) == [NOON]


READ_PARQUET = [
    (pa.array([1, None], pa.int8()), pa.int64(), [1, None]),
    (pa.array([1, None], pa.int32()), pa.float64(), [1.0, None]),
    (pa.array([5], pa.uint64()), pa.int64(), [5]),
    (pa.array([1.5], pa.float32()), pa.float64(), [1.5]),
    (pa.array([b"a"]), pa.string(), ["a"]),
    (pa.array(["a"]), pa.binary(), [b"a"]),
    (pa.array(["a"]).dictionary_encode(), pa.string(), ["a"]),
    (pa.array([None]), pa.timestamp("us"), [None]),
    (pa.array([NOON], pa.timestamp("ms", "UTC")), pa.timestamp("us"), [NOON]),
    (pa.array([date(2026, 1, 1)]), pa.int32(), [20454]),
    (pa.array([datetime(1970, 1, 1, 0, 0, 1)], pa.timestamp("us")), pa.int64(), [1_000_000]),
    (pa.array([[1]], pa.list_(pa.int32())), pa.list_(pa.int64()), [[1]]),
]


@pytest.mark.parametrize(("values", "kind", "wanted"), READ_PARQUET, ids=lambda one: str(getattr(one, "type", one)))
def test_a_parquet_column_that_spark_reads_as_declared_has_its_values(
    tmp_path: Path, values: pa.Array, kind: pa.DataType, wanted: list[Any]
) -> None:
    assert read_parquet_as(tmp_path, values, kind) == wanted
