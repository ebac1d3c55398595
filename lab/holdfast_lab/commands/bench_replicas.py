"""`holdfast bench replicas`: throughput, CPU and gaps for shares of replicated partitions."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.output import json_option, print_json, print_table, progress

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast_lab.benches.streaming.cluster import Machine
    from holdfast_lab.benches.streaming.replicas import Replicas
    from holdfast_lab.benches.streaming.spread import Spread


@click.command("replicas")
@click.option(
    "--workload",
    type=click.Choice(["count", "traffic", "hashtags"]),
    default="hashtags",
    show_default=True,
    help="Application to run.",
)
@click.option("--nodes", default=4, show_default=True, type=click.IntRange(2, 50), help="Nodes of the cluster.")
@click.option("--rows", default=20_000, show_default=True, type=click.IntRange(1), help="Rows of a batch.")
@click.option("--batches", default=20, show_default=True, type=click.IntRange(1), help="Batches of a turn.")
@click.option("--turns", default=6, show_default=True, type=click.IntRange(1), help="Turns of each share.")
@click.option("--kills", default=4, show_default=True, type=click.IntRange(0), help="Kills under each share.")
@click.option(
    "--interval", default=0.5, show_default=True, type=click.FloatRange(0.01), help="Seconds between batches at a kill."
)
@click.option("--paced", default=20, show_default=True, type=click.IntRange(2), help="Batches before and after a kill.")
@click.option("--seed", default=1, show_default=True, help="Seed of the input.")
@click.option("--quick", is_flag=True, help="Small sizes, to check that it works.")
@click.option(
    "--out",
    default=Path("out/bench-replicas"),
    show_default=True,
    type=click.Path(path_type=Path),
    help="Directory for the results.",
)
@json_option
def bench_replicas_command(
    workload: str,
    nodes: int,
    rows: int,
    batches: int,
    turns: int,
    kills: int,
    interval: float,
    paced: int,
    seed: int,
    quick: bool,
    out: Path,
    as_json: bool,
) -> None:
    """Measure replicas of no, half and all partitions: rows per second, CPU seconds, and the gap after a kill.

    Three runs of one application take turns with the same batches on one cluster; ratios are against the run without
    replicas, within a turn. Then batches come on a schedule, a node is killed, and a query's gap is the longest time
    between two of its publications from then on.

    \b
    Example:
      holdfast bench replicas --workload traffic --kills 8
    """
    from holdfast.cli.result_files import make_directory, write_csv, write_json
    from holdfast_lab.benches.streaming.cluster import bench_cluster, this_machine
    from holdfast_lab.benches.streaming.replicas import SHARES, measure_replicas
    from holdfast_lab.benches.streaming.workloads import WORKLOADS

    if quick:
        rows, batches, turns, kills, paced = 500, 4, 2, 1, 6
    make_directory(out)
    machine = this_machine()
    with progress() as bar, tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        task = bar.add_task("start the cluster", total=None)
        with bench_cluster(nodes, cores=len(SHARES) + 1) as (cluster, spark):
            found = measure_replicas(
                WORKLOADS[workload],
                spark,
                cluster,
                Path(folder),
                nodes=nodes,
                rows=rows,
                batches=batches,
                turns=turns,
                kills=kills,
                interval=interval,
                paced=paced,
                seed=seed,
                progress=lambda text: bar.update(task, description=text),
            )
    given = {"nodes": nodes, "rows_per_batch": rows, "batches": batches, "turns": turns, "kills": kills, "seed": seed}
    written = replicas_document(found, machine, given)
    write_json(out / "result.json", written)
    write_csv(out / "turns.csv", [asdict(one) for one in found.turns])
    write_csv(out / "gaps.csv", [asdict(one) for one in found.gaps])
    if as_json:
        print_json(written)
        return
    print_replicas(written, machine)
    click.echo(f"written to {out}: result.json, turns.csv, gaps.csv")


def replicas_document(found: Replicas, machine: Machine, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is written and printed as JSON."""

    def spread(one: Spread | None) -> dict[str, Any] | None:
        return None if one is None else asdict(one)

    return {
        "bench": "replicas",
        "machine": asdict(machine),
        **given,
        "interval_seconds": found.interval,
        "partitions": found.partitions,
        "rows": [
            {
                "workload": found.workload,
                "side": f"replicas-{one.share:g}",
                "replicas": one.partitions,
                "rows_per_second": one.rows_per_second.median,
                "ratio": one.throughput.median,
                "throughput_ratio": spread(one.throughput),
                "cpu_ratio": spread(one.cpu),
                "gap_seconds": {
                    "not_hit": spread(found.gap(one.share, hit=False)),
                    "replicated": spread(found.gap(one.share, hit=True, replicated=True)),
                    "not_replicated": spread(found.gap(one.share, hit=True, replicated=False)),
                },
            }
            for one in found.costs
        ],
    }


def print_replicas(written: Mapping[str, Any], machine: Machine) -> None:
    """Print a line for each share."""
    machine_text = f"{machine.cores} cores, load {machine.load:.1f}, {written['nodes']} nodes"
    click.echo(
        f"{machine_text}; {written['partitions']} partitions, "
        f"{written['turns']} turns, {written['kills']} kills; medians with their interval, gaps in seconds with a "
        f"batch each {written['interval_seconds']:g} s"
    )

    def text(one: Mapping[str, Any] | None) -> str:
        return "-" if one is None else f"{one['median']:.2f} ({one['low']:.2f} to {one['high']:.2f})"

    print_table(
        None,
        ["replicas", "rows/s", "throughput", "CPU", "gap, not hit", "gap, replicated", "gap, not replicated"],
        [
            [
                str(one["replicas"]),
                f"{one['rows_per_second']:,.0f}",
                text(one["throughput_ratio"]),
                text(one["cpu_ratio"]),
                text(one["gap_seconds"]["not_hit"]),
                text(one["gap_seconds"]["replicated"]),
                text(one["gap_seconds"]["not_replicated"]),
            ]
            for one in written["rows"]
        ],
    )
