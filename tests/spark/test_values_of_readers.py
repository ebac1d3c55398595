"""Spark's readers of JSON and Parquet say what `tests/runtime/test_values_as_spark_reads_them.py` holds ours to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from holdfast.application.columns import read_schema, spark_ddl
from holdfast.runtime.io.json_rows import read_json
from holdfast.runtime.schemas import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NUMBERS = ["0", "-7", "127", "1.0", "1.5", "0.1", "1e2", "-2.25", "9007199254740993", "1767225600", "1767225600.5"]
TEXTS = ['"5"', '"1.5"', '""', '"x"', '"YQ=="', '"YQ"', '"true"', '"2026-01-01"', '"2026-01-01T03:00:00.5Z"']
VALUES = [*NUMBERS, *TEXTS, "true", "null", '{"a": 1.50, "b" : "x"}', "[ 1]"]
KINDS = ["tinyint", "int", "bigint", "float", "double", "boolean", "string", "timestamp", "date", "binary"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_json_value_is_what_spark_reads_or_rejected(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    declared = read_schema({"id": "bigint", "v": kind}, field="schema")
    lines = [f'{{"id":{number},"v":{text}}}' for number, text in enumerate(VALUES)]
    (tmp_path / "a.json").write_text("\n".join(lines))
    reader = spark.read.schema(f"{spark_ddl(declared)}, bad string").option("columnNameOfCorruptRecord", "bad")
    value = {"timestamp": "unix_micros(v)", "date": "unix_date(v)", "binary": "base64(v)"}.get(kind, "v")
    theirs = {row.id: row for row in reader.json(str(tmp_path)).selectExpr("id", f"{value} AS v", "bad").collect()}
    schema = arrow_schema(declared)
    assert schema is not None
    read = 0
    for number, line in enumerate(lines):
        for data in (line, f"{line}\nbad"):
            rows, rejected = read_json(pa.py_buffer(data.encode()), schema)
            if not rows.num_rows:
                assert rejected, line
                continue
            assert theirs[number].bad is None, (line, rows.to_pylist())
            assert _plain(rows["v"][0]) == theirs[number].v, line
            read += 1
    assert read >= 4, "null and a value of its own, alone and beside a bad line"


def _plain(value: pa.Scalar) -> Any:
    from base64 import b64encode

    if pa.types.is_timestamp(value.type):
        return value.value
    if pa.types.is_date(value.type):
        return value.cast(pa.int32()).as_py()
    found = value.as_py()
    return b64encode(found).decode() if isinstance(found, bytes) else found


def test_whole_numbers_of_parquet_are_no_times_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"v": [1767225600]}), tmp_path / "a.parquet")
    with pytest.raises(Exception, match=r"PARQUET_COLUMN_DATA_TYPE_MISMATCH|cannot be converted|FAILED_READ_FILE"):
        spark.read.schema("v timestamp").parquet(str(tmp_path)).collect()
    assert spark.read.schema("v bigint").parquet(str(tmp_path)).collect()[0].v == 1767225600
