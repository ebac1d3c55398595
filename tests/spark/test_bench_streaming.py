"""The benches of running applications, in tiny sizes: they run, both sides agree, and what they write can be read."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from holdfast.cli.result_files import write_json
from holdfast.runtime import run_in_process
from holdfast_lab.benches.streaming.cluster import this_machine
from holdfast_lab.benches.streaming.cpu import cpu_seconds
from holdfast_lab.benches.streaming.overhead import measure_overhead
from holdfast_lab.benches.streaming.scaling import Shape, measure_point, shapes
from holdfast_lab.benches.streaming.sides import same_rows
from holdfast_lab.benches.streaming.spread import median_with_interval
from holdfast_lab.benches.streaming.throughput import compare
from holdfast_lab.benches.streaming.workloads import WORKLOADS, in_our_days
from holdfast_lab.commands.bench_overhead import overhead_document
from holdfast_lab.commands.bench_scaling import scaling_document
from holdfast_lab.commands.bench_throughput import document
from holdfast_lab.plots.performance import draw_overhead, draw_scaling, draw_throughput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast.spark.cluster import EmbeddedCluster


@pytest.mark.cluster
def test_throughput_compares_both_sides(cluster: EmbeddedCluster, unhurried: SparkSession, tmp_path: Path) -> None:
    options = {"rows": 400, "batches": 2, "rounds": 1, "files_per_batch": 2, "seed": 3}
    given = {**options, "state_store": "memory", "secret_file": cluster.secret_file}
    found = compare(WORKLOADS["count"], unhurried, tmp_path / "work", **given)  # type: ignore[arg-type]
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
def test_overhead_takes_turns_with_one_checkpoint_each(
    cluster: EmbeddedCluster, unhurried: SparkSession, tmp_path: Path
) -> None:
    def all_is_saved(turn: str) -> None:
        """Wait until agents have nothing left to save: what one turn began, the run hears of in its next."""
        deadline = time.monotonic() + 300
        orders = [node.spool / "orders" for node in cluster.nodes.values()]
        while any(path.suffix in (".save", ".durable") for folder in orders for path in folder.iterdir()):
            assert time.monotonic() < deadline, f"before {turn}: checkpoints are still being saved"
            time.sleep(0.05)

    groups = [node.group for node in cluster.nodes.values()]
    options = {"rows": 100, "interval": 10.0, "alternations": 2, "batches": 4, "secret_file": cluster.secret_file}
    found = measure_overhead(
        WORKLOADS["count"],
        unhurried,
        tmp_path / "work",
        sessions=groups,
        progress=all_is_saved,
        **options,  # type: ignore[arg-type]
    )
    assert [(turn.policy, turn.alternation) for turn in found.turns] == [
        *(("none", 0), ("sources", 0), ("all", 0)),
        *(("sources", 1), ("all", 1), ("none", 1)),
    ], "the order moves on"
    assert all(turn.cpu_seconds > 0 for turn in found.turns)
    assert sum(turn.checkpoints for turn in found.turns if turn.policy == "none") == 0
    for policy in ("sources", "all"):
        assert sum(turn.checkpoints for turn in found.turns if turn.policy == policy) >= 1
    assert [one.policy for one in found.prices] == ["sources", "all"]
    draw_overhead(overhead_document(found, this_machine(), {}), tmp_path / "overhead.png")
    assert (tmp_path / "overhead.png").stat().st_size > 10_000


@pytest.mark.cluster
def test_scaling_says_where_the_time_goes(cluster: EmbeddedCluster, unhurried: SparkSession, tmp_path: Path) -> None:
    found = [
        measure_point(shape, unhurried, tmp_path / str(number), alone=1, load=2, secret_file=cluster.secret_file)
        for number, shape in enumerate(
            (Shape("levels", nodes=3, levels=2, partitions=3, rows=50), Shape("state", nodes=3, rows=50, state_mb=0.1))
        )
    ]
    for point in found:
        for cost in (point.alone, point.load):
            assert 0 < cost.operators <= cost.job <= cost.seconds
            assert cost.operators + cost.around + cost.driver == pytest.approx(cost.seconds)
    assert found[1].state_bytes > 50_000, "the state was filled"
    written = scaling_document(found, this_machine(), 1)
    draw_scaling(written["points"], tmp_path / "scaling.png")
    assert (tmp_path / "scaling.png").stat().st_size > 10_000


def test_shapes_change_one_size_at_a_time() -> None:
    found = shapes(nodes=(1, 2), levels=(1,), partitions=(4,), rows=(10,), state_mb=(1,))
    assert [shape.varied for shape in found] == ["nodes", "nodes", "levels", "partitions", "rows", "state"]
    assert [shape.nodes for shape in found] == [1, 2, 2, 2, 2, 2]
    assert [shape.size for shape in found] == [1, 2, 1, 4, 10, 1]


def test_the_interval_of_a_median_comes_from_the_order_of_the_values() -> None:
    ten = median_with_interval([float(number) for number in range(10)])
    assert (ten.median, ten.low, ten.high) == (4.5, 1.0, 8.0), "second smallest to second greatest"
    assert ten.confidence == pytest.approx(1 - 22 / 1024)
    few = median_with_interval([3.0, 1.0, 2.0])
    assert (few.median, few.low, few.high, few.confidence) == (2.0, 1.0, 3.0, 0.75)
    assert median_with_interval([7.0]).confidence == 0.0


def test_cpu_seconds_count_this_process_and_what_it_started() -> None:
    before = cpu_seconds(())
    deadline = before + 0.05
    while cpu_seconds(()) < deadline:
        sum(range(10_000))
    assert cpu_seconds(()) >= deadline


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("name", "outputs"), [("traffic", ["speeds", "jams"]), ("hashtags", ["count-3", "sum-8", "top-13"])]
)
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
