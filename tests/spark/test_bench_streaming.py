"""The benches of running applications, in tiny sizes: they run, both sides agree, and what they write can be read."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from holdfast.cli.result_files import write_json
from holdfast.errors import CheckFailed
from holdfast.loading import find_application
from holdfast.runtime import run_in_process
from holdfast_lab.benches.streaming.cluster import this_machine
from holdfast_lab.benches.streaming.cpu import cpu_seconds
from holdfast_lab.benches.streaming.memory import measure_memory
from holdfast_lab.benches.streaming.overhead import measure_overhead
from holdfast_lab.benches.streaming.row_latency import measure_rows
from holdfast_lab.benches.streaming.scaling import Shape, measure_point, shapes
from holdfast_lab.benches.streaming.sides import same_rows
from holdfast_lab.benches.streaming.spread import median_with_interval
from holdfast_lab.benches.streaming.start import Timed, read_phases, summarize, write_input
from holdfast_lab.benches.streaming.throughput import SIDES, compare
from holdfast_lab.benches.streaming.workloads import WORKLOADS, in_our_days
from holdfast_lab.commands.bench_latency import rows_document
from holdfast_lab.commands.bench_memory import memory_document
from holdfast_lab.commands.bench_overhead import overhead_document
from holdfast_lab.commands.bench_scaling import scaling_document
from holdfast_lab.commands.bench_throughput import document
from holdfast_lab.plots.latency import draw_latency
from holdfast_lab.plots.performance import draw_overhead, draw_scaling, draw_throughput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast.spark.cluster import EmbeddedCluster


@pytest.mark.cluster
@pytest.mark.long
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
    options = {"rows": 100, "interval": 10.0, "alternations": 3, "batches": 4, "secret_file": cluster.secret_file}
    # Three runs at once: with tasks that stay, each would hold a core of the shared executors, which have two. Before
    # other runs have left Python workers behind: cycles would take turns in them, and a save is in the memory of one.
    found = measure_overhead(
        WORKLOADS["count"],
        unhurried,
        tmp_path / "work",
        sessions=groups,
        exchange="shuffle",
        progress=all_is_saved,
        **options,  # type: ignore[arg-type]
    )
    assert [(turn.policy, turn.alternation) for turn in found.turns] == [
        *(("none", 0), ("sources", 0), ("all", 0)),
        *(("sources", 1), ("all", 1), ("none", 1)),
        *(("all", 2), ("none", 2), ("sources", 2)),
    ], "the order moves on"
    assert all(turn.cpu_seconds > 0 for turn in found.turns)
    assert sum(turn.checkpoints for turn in found.turns if turn.policy == "none") == 0
    for policy in ("sources", "all"):
        assert sum(turn.checkpoints for turn in found.turns if turn.policy == policy) >= 1
    assert [one.policy for one in found.prices] == ["sources", "all"]
    draw_overhead(overhead_document(found, this_machine(), {}), tmp_path / "overhead.png")
    assert (tmp_path / "overhead.png").stat().st_size > 10_000


@pytest.mark.cluster
def test_throughput_compares_all_sides(cluster: EmbeddedCluster, unhurried: SparkSession, tmp_path: Path) -> None:
    options = {"rows": 400, "batches": 2, "rounds": 1, "files_per_batch": 2, "seed": 3}
    given = {**options, "state_store": "memory", "secret_file": cluster.secret_file}
    # Not `logged`: a second run of tasks that stay would take the core that reads sources on the shared executors.
    # Nor `shuffle`: the bench of scaling runs it.
    sides = [side for side in SIDES if side not in ("logged", "shuffle")]
    groups = [node.group for node in cluster.nodes.values()]
    given |= {"sides": sides, "marginal": (400, 800), "sessions": groups}
    found = compare(WORKLOADS["count"], unhurried, tmp_path / "work", **given)  # type: ignore[arg-type]
    assert found.different == {}
    for side in sides:
        more = found.marginal[side]
        assert (more.small, more.large) == (400, 800)
        assert more.seconds == pytest.approx(sum(more.kinds.values()))
    assert set(found.marginal["pyarrow"].kinds) >= {"driver's Python", "executors' JVMs", "operator processes"}
    assert found.output_rows > 100
    assert [one.rows for one in found.rounds] == [800]
    written = document([found], this_machine(), dict(options))
    write_json(tmp_path / "result.json", written)
    read = json.loads((tmp_path / "result.json").read_text())
    assert [one["side"] for one in read["rows"]] == ["holdfast", "structured-streaming", "pyarrow"]
    assert [one["ratio"] for one in read["rows"]] == pytest.approx([found.rounds[0].ratio(one) for one in sides])
    assert read["workloads"][0]["equal_outputs"] is True
    draw_throughput(written, tmp_path / "throughput.png")
    assert (tmp_path / "throughput.png").stat().st_size > 10_000


@pytest.mark.cluster
@pytest.mark.long
def test_scaling_says_where_the_time_goes(cluster: EmbeddedCluster, unhurried: SparkSession, tmp_path: Path) -> None:
    shapes = (Shape("levels", nodes=3, levels=2, partitions=3, rows=50), Shape("state", nodes=3, rows=50, state_mb=0.1))
    found = [
        point
        for number, shape in enumerate(shapes)
        for point in measure_point(
            shape, unhurried, tmp_path / str(number), alone=1, load=2, secret_file=cluster.secret_file
        )
    ]
    assert [point.exchange for point in found] == ["resident", "shuffle"] * 2
    for point in found:
        for cost in (point.alone, point.load):
            assert 0 < cost.operators <= cost.job <= cost.seconds
            assert cost.operators + cost.around + cost.driver == pytest.approx(cost.seconds)
    assert all(point.state_bytes > 50_000 for point in found[2:]), "the state was filled"
    written = scaling_document(found, this_machine(), 1)
    assert written["rows"][0]["ratio"] == pytest.approx(1 / written["rows"][1]["ratio"])
    draw_scaling(written["points"], tmp_path / "scaling.png")
    assert (tmp_path / "scaling.png").stat().st_size > 10_000


@pytest.mark.cluster
@pytest.mark.long
def test_rows_are_followed_from_their_creation_to_the_sink(
    cluster: EmbeddedCluster, unhurried: SparkSession, tmp_path: Path
) -> None:
    """That every row came out, once, and that phases add up, the measurement checks itself."""
    groups = [node.group for node in cluster.nodes.values()]
    found = measure_rows(
        unhurried,
        tmp_path,
        nodes=3,
        levels=2,
        rates=(400,),
        turns=1,
        seconds=0.5,
        ahead=1,
        secret_file=cluster.secret_file,
        sessions=groups,
    )
    assert [one.exchange for one in found] == ["resident", "shuffle"]
    for one in found:
        assert [turn.rows for turn in one.turns] == [200]
        assert all(values.min() >= 0 for turn in one.turns for values in turn.phases.values())
    draw_latency(rows_document(found, this_machine(), 3)["rows"], tmp_path / "latency.png")
    assert (tmp_path / "latency.png").stat().st_size > 10_000


@pytest.mark.cluster
@pytest.mark.long
def test_memory_is_read_under_a_slow_sink_and_a_burst(
    cluster: EmbeddedCluster, unhurried: SparkSession, tmp_path: Path
) -> None:
    sizes = {"rate": 200, "seconds": 1.5, "slower": 2.0, "burst": 4, "burst_seconds": 1.0}
    found = measure_memory(cluster, unhurried, tmp_path, **sizes)  # type: ignore[arg-type]
    assert [one.name for one in found] == ["steady", "slow sink", "burst"]
    for phase in found:
        assert {"driver's Python", "driver's JVM", "operator processes", "executors' JVMs"} <= set(phase.kinds)
        assert phase.peak("nodes' state files") > 0
    written = memory_document({"resident": found}, this_machine(), sizes)
    assert (written["rows"][0]["workload"], written["rows"][0]["ratio"]) == ("steady", 1.0)


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


def test_the_phases_of_a_start_are_read_from_its_events() -> None:
    started = {"at": 9.0, "event": "started", "began": 1.5, "phases": {"command": 0.5, "nodes": 5.0, "output": 7.0}}
    arrived = {"at": 6.0, "event": "node-arrived", "nodes": ["a"]}
    empty = {"at": 7.0, "event": "published", "partition": "p[0]", "batch": 0, "rows": 0}
    published = {"at": 8.5, "event": "published", "partition": "p[0]", "batch": 1, "rows": 3}
    lines = [json.dumps(one) for one in (arrived, empty, published, started)]
    assert read_phases(lines, began=1.0) == {"command": 1.0, "nodes": 5.5, "output": 7.5}
    assert read_phases(lines[:-1], began=1.0) == {"nodes": 5.0, "output": 7.5}, "a version without that event"
    with pytest.raises(CheckFailed, match="no output was published"):
        read_phases(lines[:2], began=1.0)


def test_starts_are_summarized_by_cluster_and_side() -> None:
    timed = [
        Timed("embedded", side, {"nodes": at, "output": 2 * at}, {"agents": at, "driver's JVM": 1.0})
        for side, times in (("resident", (3.0, 1.0, 2.0)), ("shuffle", (4.0, 6.0, 5.0)))
        for at in times
    ]
    first, second = summarize(timed)
    assert (first["workload"], first["side"], first["seconds"], first["ratio"]) == (
        "embedded cluster",
        "resident",
        4.0,
        1.0,
    )
    assert (second["side"], second["seconds"], second["ratio"]) == ("shuffle", 10.0, 2.5)
    assert (second["cpu_seconds"], second["cpu_seconds_by_kind"]) == (6.0, {"driver's JVM": 1.0, "agents": 5.0})
    assert second["phases"] == {
        "nodes": {"seconds": 5.0, "low": 4.0, "high": 6.0},
        "output": {"seconds": 10.0, "low": 8.0, "high": 12.0},
    }


def test_the_input_of_a_start_has_its_rows_and_loads(tmp_path: Path) -> None:
    application = write_input(tmp_path, rows=10)
    lines = [line for file in sorted((tmp_path / "rows").iterdir()) for line in file.read_text().splitlines()]
    assert len(lines) == 10
    assert find_application(str(application)).name == "start"
