"""`holdfast bench latency`: from logged to published, with tasks that stay beside Spark's shuffle."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path

import click

from holdfast.cli.output import json_option, print_json, print_table, progress


def _numbers(context: click.Context, parameter: click.Parameter, text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(one) for one in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise click.BadParameter("give whole numbers above 0, like 2,8")
    return found


@click.command("latency")
@click.option("--nodes", default=4, show_default=True, type=click.IntRange(1, 16), help="Nodes of the cluster.")
@click.option("--levels", default="2,8", show_default=True, callback=_numbers, help="Levels of operators.")
@click.option("--rows", default="1000,10000,100000", show_default=True, callback=_numbers, help="Rows of a batch.")
@click.option("--batches", default=60, show_default=True, type=click.IntRange(5), help="Batches of each side and size.")
@click.option("--quick", is_flag=True, help="Two levels, 10,000 rows, 20 batches.")
@json_option
def bench_latency_command(
    nodes: int, levels: tuple[int, ...], rows: tuple[int, ...], batches: int, quick: bool, as_json: bool
) -> None:
    """Measure how long a batch alone takes from logged to published, on both exchanges in turns.

    \b
    Example:
      holdfast bench latency --quick
    """
    from holdfast_lab.benches.streaming.cluster import bench_cluster, this_machine
    from holdfast_lab.benches.streaming.latency import measure_latency

    if quick:
        levels, rows, batches = (2,), (10_000,), 20
    machine, found = this_machine(), []
    points = [(level, many) for level in levels for many in rows]
    with (
        progress() as bar,
        tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder,
        bench_cluster(nodes) as (cluster, spark),
    ):
        task = bar.add_task("measure", total=len(points))
        for number, (level, many) in enumerate(points):
            found += measure_latency(
                spark,
                Path(folder) / str(number),
                nodes=nodes,
                levels=level,
                rows=many,
                batches=batches,
                secret_file=cluster.secret_file,
                progress=lambda text: bar.update(task, description=text),
            )
            bar.update(task, completed=number + 1)
    rows_out = []
    for one in found:
        other = next(two for two in found if (two.levels, two.rows) == (one.levels, one.rows) and two is not one)
        rows_out.append(
            {
                "workload": f"{one.levels} levels, {one.rows} rows",
                "side": "holdfast" if one.exchange == "resident" else one.exchange,
                "batches": len(one.published),
                "logged_ms": 1000 * sorted(one.logged)[len(one.logged) // 2],
                "p50_ms": 1000 * one.quantile(0.5),
                "p95_ms": 1000 * one.quantile(0.95),
                "p99_ms": 1000 * one.quantile(0.99),
                "ratio": other.quantile(0.5) / one.quantile(0.5),
            }
        )
    if as_json:
        print_json({"bench": "latency", "nodes": nodes, "machine": asdict(machine), "rows": rows_out})
        return
    print_table(
        f"A batch alone on {nodes} nodes, milliseconds; load {machine.load:.1f} on {machine.cores} cores at the start",
        ["workload", "side", "logged", "published p50", "p95", "p99", "times the other"],
        [
            (
                str(one["workload"]),
                str(one["side"]),
                *(f"{float(str(one[key])):.1f}" for key in ("logged_ms", "p50_ms", "p95_ms", "p99_ms", "ratio")),
            )
            for one in rows_out
        ],
        right=(2, 3, 4, 5, 6),
    )
