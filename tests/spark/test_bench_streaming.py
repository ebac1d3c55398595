"""The benches of running applications, in tiny sizes: they run, both sides agree, and what they write can be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from holdfast.cli.bench_throughput import document
from holdfast.cli.result_files import write_json
from holdfast.experiments.bench_streaming.cluster import this_machine
from holdfast.experiments.bench_streaming.sides import same_rows
from holdfast.experiments.bench_streaming.throughput import compare
from holdfast.experiments.bench_streaming.workloads import WORKLOADS, in_our_days
from holdfast.pictures.performance import draw_throughput
from holdfast.runtime import run_in_process

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.cluster
def test_throughput_compares_both_sides(spark: SparkSession, tmp_path: Path) -> None:
    options = {"rows": 400, "batches": 2, "rounds": 1, "files_per_batch": 2, "seed": 3}
    found = compare(WORKLOADS["count"], spark, tmp_path / "work", state_store="memory", **options)  # type: ignore[arg-type]
    assert found.different == {}
    assert found.output_rows > 100
    assert [one.rows for one in found.rounds] == [800]
    written = document([found], this_machine(), dict(options))
    write_json(tmp_path / "result.json", written)
    (workload,) = json.loads((tmp_path / "result.json").read_text())["workloads"]
    assert workload["ratio"] == pytest.approx(found.rounds[0].ratio)
    assert workload["equal_outputs"] is True
    draw_throughput(written["workloads"], tmp_path / "throughput.png", rows=400)
    assert (tmp_path / "throughput.png").stat().st_size > 10_000


@pytest.mark.cluster
@pytest.mark.parametrize(("name", "outputs"), [("traffic", ["O3", "O5"]), ("hashtags", ["O3", "O8", "O13"])])
def test_the_sql_of_a_workload_says_what_its_application_computes(
    spark: SparkSession, name: str, outputs: list[str]
) -> None:
    """As a batch: every window of the input, against the application with its windows closed."""
    workload = WORKLOADS[name]
    made = list(in_our_days(workload.batches(5, 3, 120)))
    ours = run_in_process(workload.application(), made)
    for source in made[0]:
        rows = pa.concat_tables([batch[source] for batch in made])
        instants = rows["at"].cast(pa.timestamp("us", tz="UTC"))
        spark.createDataFrame(rows.set_column(rows.column_names.index("at"), "at", instants)).createOrReplaceTempView(
            source
        )
    for output in outputs:
        assert same_rows(ours.rows(output), spark.sql(workload.sql[output]).toArrow()) is None, output


def test_rows_that_differ_are_told() -> None:
    table = pa.table({"tag": ["b", "a"], "count": [1, 2]})
    assert same_rows(table, pa.table({"tag": ["a", "b"], "count": pa.array([2, 1], pa.int32())})) is None
    assert same_rows(table, pa.table({"tag": ["a", "b"], "count": [2, 2]})) == "column count differs"
    assert same_rows(table, table.slice(1)) == "2 rows against 1"
    assert same_rows(table, pa.table({})) == "2 rows against none"
