"""Spark reads gathered outputs: folders for values of columns, rows that wait, and tentative rows beside them."""

from __future__ import annotations

import datetime
import math
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.errors import BadInput
from holdfast.ids import BatchId, Epoch, PartitionId
from holdfast.runtime.io.gathered_delta import GatheredDeltaSink
from holdfast.runtime.io.gathered_parquet import GatheredParquetSink
from holdfast.runtime.io.sinks import Gathered, OutputKey
from holdfast.spark.gathered import _schema
from holdfast.storage.memory import MemoryStorage

Q = PartitionId.parse("q[0]")


def test_spark_reads_a_folder_of_gathered_outputs(spark: SparkSession, tmp_path: Path) -> None:
    sink = GatheredParquetSink(tmp_path, 60, partition_by=["day", "code"])
    sink.begin("run", Epoch(1))
    with pytest.raises(BadInput, match="there are no rows yet"):
        hf.read(spark, tmp_path)
    days = [datetime.date(2026, 1, 1), datetime.date(2026, 1, 2), None]
    codes = ["007", "a/b=c d%", "Zürich"]

    def table(batch: int) -> pa.Table:
        return pa.table({"day": days, "n": [batch, batch + 10, batch + 20], "code": codes})

    for batch in (1, 2):
        sink.publish_tentative(OutputKey(Q, BatchId(batch)), table(-batch), 0.5, Epoch(1))
    for batch in (0, 1):
        sink.publish(OutputKey(Q, BatchId(batch)), table(batch), Epoch(1))
    assert hf.read(spark, tmp_path).count() == 6, "they wait"
    sink.flush(Gathered({Q: BatchId(1)}, 0, math.inf), Epoch(1))
    plain = spark.read.parquet(str(tmp_path))
    expected = {(row["day"], row["n"], row["code"]) for batch in (0, 1) for row in table(batch).to_pylist()}
    assert {(row["day"], row["n"]) for row in plain.collect()} == {(day, n) for day, n, _ in expected}
    assert plain.where("code = 'Zürich'").count() == 2
    assert plain.where("code = 'a/b=c d%'").count() == 2
    ours = hf.read(spark, tmp_path)
    assert ours.columns == ["day", "n", "code"]
    assert {tuple(row) for row in ours.collect()} == expected, "texts stay texts"
    sink.publish(OutputKey(Q, BatchId(3)), table(3), Epoch(1))
    assert hf.read(spark, tmp_path).count() == 9
    rows = hf.read(spark, tmp_path, tentative=True).where("code = '007'").orderBy("n").collect()
    found = [(row["n"], row["tentative"], row["revision"]) for row in rows]
    assert found == [(-2, True, 0), (0, False, 0), (1, False, 1), (3, False, 0)]


def test_the_columns_of_a_partitioned_table_are_those_of_its_newest_group() -> None:
    """Whatever its query is called: that of an earlier layout, z, comes last in an order of names."""
    storage = MemoryStorage()
    queries = [PartitionId.parse(name) for name in ("z[0]", "a[0]", "b[0]")]
    given = [(queries[0], 0, 5, ["n"]), (queries[1], 1, 7, ["n", "x"]), (queries[2], 1, 6, ["n", "y"])]
    for query, generation, batch, names in given:
        sink = GatheredParquetSink(storage, 60, partition_by=["day"])
        sink.begin("run", Epoch(1))
        rows = pa.table({"day": ["a"], **{name: [1] for name in names}})
        sink.publish(OutputKey(query, BatchId(batch), generation=generation), rows, Epoch(1))
        sink.flush(Gathered({query: BatchId(batch)}, generation, math.inf), Epoch(1))
    found = _schema(storage)
    assert found is not None
    assert found.names == ["day", "n", "x"]


def test_rows_of_a_table_that_wait_for_their_commit_are_read_too(spark: SparkSession, tmp_path: Path) -> None:
    sink = GatheredDeltaSink(tmp_path, 60, partition_by=["day"])
    sink.begin("run", Epoch(1))
    days = [datetime.date(2026, 1, 1), None]
    for batch in (0, 1, 2):
        rows = pa.table({"day": pa.array(days, pa.date32()), "n": [batch, batch + 10]})
        sink.publish(OutputKey(Q, BatchId(batch), run="run"), rows, Epoch(1))
        if batch == 1:
            assert hf.read(spark, tmp_path).count() == 4, "they wait"
            sink.flush(Gathered({Q: BatchId(1)}, 0, math.inf), Epoch(1))
    found = hf.read(spark, tmp_path)
    assert found.columns == ["day", "n"]
    assert {tuple(row) for row in found.collect()} == {(days[n >= 10], n) for n in (0, 1, 2, 10, 11, 12)}
    assert found.count() == 6


@pytest.mark.parametrize("partition_by", [(), ("day",)], ids=["one file", "partitioned"])
def test_a_column_that_a_new_version_has_added_is_null_in_earlier_rows(
    spark: SparkSession, tmp_path: Path, partition_by: tuple[str, ...]
) -> None:
    """Spark took the columns of one file or another, and refused staged rows that had one more."""
    sink = GatheredParquetSink(tmp_path, 60, partition_by=partition_by)
    sink.begin("run", Epoch(1))
    at = datetime.datetime(2026, 1, 1)
    given = {
        0: pa.table({"day": ["a", "b"], "old": [1, 2], "n": pa.array([0, 1], pa.int32())}),
        1: pa.table({"day": ["a", "b"], "old": [3, 4], "n": pa.array([2, 3], pa.int32())}),
        2: pa.table({"n": pa.array([4, 5], pa.int64()), "at": [at, at], "day": ["a", "c"]}),
        3: pa.table({"n": pa.array([6, 7], pa.int64()), "at": [at, None], "day": ["a", "c"]}),
    }
    sink.publish_tentative(OutputKey(Q, BatchId(1)), given[1], 0.5, Epoch(1))
    sink.publish_tentative(OutputKey(Q, BatchId(9)), given[0], 0.5, Epoch(1))

    def expected(through: int) -> set[tuple[object, ...]]:
        rows = [row for batch in range(through + 1) for row in given[batch].to_pylist()]
        return {(row["n"], row.get("at"), row["day"]) for row in rows}

    for batch, rows in given.items():
        sink.publish(OutputKey(Q, BatchId(batch)), rows, Epoch(1))
        if batch == 1:
            sink.flush(Gathered({Q: BatchId(1)}, 0, math.inf), Epoch(1))
            assert set(hf.read(spark, tmp_path).columns) == {"day", "old", "n"}
        if batch == 2:  # it is staged, beside a file of the earlier version
            found = hf.read(spark, tmp_path)
            assert found.columns == ["n", "at", "day"]
            assert {tuple(row) for row in found.collect()} == expected(2)
    both = hf.read(spark, tmp_path, tentative=True)
    assert {tuple(row)[:3] for row in both.where("not tentative").collect()} == expected(3)
    assert sorted(row["n"] for row in both.where("tentative").collect()) == [0, 1]
    sink.flush(Gathered({Q: BatchId(3)}, 0, math.inf), Epoch(1))
    assert {tuple(row) for row in hf.read(spark, tmp_path).collect()} == expected(3), "all are in files"
