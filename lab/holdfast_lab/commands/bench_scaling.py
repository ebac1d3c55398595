"""`holdfast bench scaling`: what a batch costs by size, and where the time goes."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.output import json_option, print_json, print_table, progress

if TYPE_CHECKING:
    from holdfast_lab.benches.streaming.cluster import Machine
    from holdfast_lab.benches.streaming.scaling import Cost, Point

EXCHANGES = ("resident", "shuffle")
NAMES = ("nodes", "levels", "partitions", "rows", "state")


@click.command("scaling")
@click.option("--vary", default=",".join(NAMES), show_default=True, metavar="NAME,…", help="Sizes to vary.")
@click.option("--nodes", default="1,2,4", show_default=True, metavar="N,…", help="Nodes; the largest for the rest.")
@click.option("--levels", default="1,2,4,8", show_default=True, metavar="N,…", help="Operators in a chain.")
@click.option("--partitions", default="4,16,64", show_default=True, metavar="N,…", help="Partitions of an operator.")
@click.option("--rows", default="1000,10000,100000,1000000", show_default=True, metavar="N,…", help="Rows per batch.")
@click.option("--state-mb", default="1,10,100,1000", show_default=True, metavar="MB,…", help="Sizes of the state.")
@click.option(
    "--exchanges",
    default=",".join(EXCHANGES),
    show_default=True,
    metavar="NAME,…",
    help="Exchanges to measure: tasks that stay, and Spark's shuffle.",
)
@click.option("--alone", default=9, show_default=True, type=click.IntRange(1), help="Batches measured one at a time.")
@click.option("--load", default=24, show_default=True, type=click.IntRange(1), help="Batches measured at once.")
@click.option("--seed", default=1, show_default=True, help="Seed of the input.")
@click.option("--quick", is_flag=True, help="Small sizes, to check that it works.")
@click.option(
    "--out",
    default=Path("out/bench-scaling"),
    show_default=True,
    type=click.Path(path_type=Path),
    help="Directory for the results.",
)
@json_option
def bench_scaling_command(
    vary: str,
    nodes: str,
    levels: str,
    partitions: str,
    rows: str,
    state_mb: str,
    exchanges: str,
    alone: int,
    load: int,
    seed: int,
    quick: bool,
    out: Path,
    as_json: bool,
) -> None:
    """Measure the cost of a batch by nodes, levels, partitions, rows and size of the state.

    One size is changed at a time; the others stay at the largest number of nodes with a partition for each, two levels
    and 10,000 rows. A batch is measured alone (latency without load) and among many (cost under load), with
    the time in operators, around them (Spark, connections, Python), and on the driver; with tasks that stay and through
    Spark's shuffle, in turns.

    \b
    Example:
      holdfast bench scaling --vary rows,state
    """
    from holdfast.cli.number_lists import read_numbers
    from holdfast.cli.result_files import make_directory, write_csv, write_json
    from holdfast_lab.benches.streaming.cluster import bench_cluster, this_machine
    from holdfast_lab.benches.streaming.scaling import measure_point, shapes
    from holdfast_lab.commands.name_lists import read_names
    from holdfast_lab.plots.performance import draw_scaling

    if quick:
        nodes, levels, partitions, rows, state_mb, alone, load = "2", "1,2", "2,4", "100,1000", "1", 1, 2
    wanted = read_names(vary, NAMES, "--vary")
    sides = read_names(exchanges, EXCHANGES, "--exchanges")
    sizes: dict[str, Any] = {
        name: [int(number) for number in read_numbers(text, f"--{name}")]
        for name, text in (("nodes", nodes), ("levels", levels), ("partitions", partitions), ("rows", rows))
    }
    points = [one for one in shapes(**sizes, state_mb=read_numbers(state_mb, "--state-mb")) if one.varied in wanted]
    make_directory(out)
    machine = this_machine()
    found: list[Point] = []
    with progress() as bar, tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        task = bar.add_task("start the cluster", total=len(points))
        for many, of_cluster in groupby(points, key=lambda one: one.nodes):
            with bench_cluster(many) as (cluster, spark):
                for shape in of_cluster:
                    found += measure_point(
                        shape,
                        spark,
                        Path(folder) / str(len(found)),
                        alone=alone,
                        load=load,
                        seed=seed,
                        secret_file=cluster.secret_file,
                        exchanges=sides,
                        progress=lambda text: bar.update(task, description=text),
                    )
                    bar.advance(task)
                    write_json(out / "result.json", scaling_document(found, machine, seed))
    written = scaling_document(found, machine, seed)
    write_json(out / "result.json", written)
    write_csv(out / "points.csv", written["points"])
    draw_scaling(written["points"], out / "scaling.png")
    if as_json:
        print_json(written)
        return
    print_points(found, machine)
    click.echo(f"written to {out}: result.json, points.csv, scaling.png")


def scaling_document(found: list[Point], machine: Machine, seed: int) -> dict[str, Any]:
    """Return what is written and printed as JSON."""
    points = [_fields(one) for one in found]
    rows = [
        {
            "workload": f"{one['varied']} {one['size']:g}",
            "side": one["side"],
            "rows_per_second": one["rows"] / one["load_seconds"],
            "p50_ms": 1000 * one["alone_seconds"],
            "p50_least_ms": 1000 * one["alone_low"],
            "p50_greatest_ms": 1000 * one["alone_high"],
            "load_ms": 1000 * one["load_seconds"],
            "ratio": one["ratio"],
            "least_ratio": one["least_ratio"],
            "greatest_ratio": one["greatest_ratio"],
        }
        for one in points
    ]
    return {"bench": "scaling", "machine": asdict(machine), "seed": seed, "rows": rows, "points": points}


def _fields(point: Point) -> dict[str, Any]:
    spread = point.alone_seconds
    return {
        **asdict(point.shape),
        "size": point.shape.size,
        "side": "holdfast" if point.exchange == "resident" else point.exchange,
        "ratio": point.ratio.median,
        "least_ratio": point.ratio.low,
        "greatest_ratio": point.ratio.high,
        **{f"alone_{name}": value for name, value in _parts(point.alone).items()},
        "alone_seconds": spread.median,
        "alone_low": spread.low,
        "alone_high": spread.high,
        **{f"load_{name}": value for name, value in _parts(point.load).items()},
        "state_bytes": point.state_bytes,
        "written_bytes_per_batch": point.written_bytes,
    }


def _parts(cost: Cost) -> dict[str, float]:
    return {
        "seconds": cost.seconds,
        "operators": cost.operators,
        "around": cost.around,
        "driver": cost.driver,
        "jobs": cost.cycles,
    }


def print_points(found: list[Point], machine: Machine) -> None:
    """Print a table for people."""

    def shown(cost: Cost) -> str:
        parts = "+".join(f"{1000 * part:,.0f}" for part in (cost.operators, cost.around, cost.driver))
        return f"{1000 * cost.seconds:,.0f} = {parts}"

    print_table(
        f"Milliseconds of a batch: operators + around them + driver; {machine.cores} cores, load {machine.load:.1f}",
        ["varied", "size", "side", "alone (median)", "x the other", "under load (mean)", "state MB", "written MB"],
        [
            (
                one.shape.varied,
                f"{one.shape.size:g}",
                "holdfast" if one.exchange == "resident" else one.exchange,
                shown(one.alone),
                f"{one.ratio.median:.1f} ({one.ratio.low:.1f}-{one.ratio.high:.1f})",
                shown(one.load),
                round(one.state_bytes / 1e6, 1),
                round(one.written_bytes / 1e6, 2),
            )
            for one in sorted(found, key=lambda point: (NAMES.index(point.shape.varied), point.shape.size))
        ],
        right=(1, 3, 4, 5, 6, 7),
    )
