"""`holdfast bench throughput`: rows per second against Structured Streaming, side by side on one cluster."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.output import json_option, print_json, print_table, progress

if TYPE_CHECKING:
    from holdfast_lab.benches.streaming.cluster import Machine
    from holdfast_lab.benches.streaming.throughput import Comparison

NAMES = ("count", "traffic", "hashtags")


@click.command("throughput")
@click.option("--workloads", default=",".join(NAMES), show_default=True, metavar="NAME,…", help="Workloads to compare.")
@click.option("--rows", default=100_000, show_default=True, type=click.IntRange(1), help="Rows per batch.")
@click.option("--batches", default=4, show_default=True, type=click.IntRange(1), help="Batches of a turn.")
@click.option(
    "--rounds", default=5, show_default=True, type=click.IntRange(1), help="Rounds: runs of each side, in alternation."
)
@click.option("--nodes", default=4, show_default=True, type=click.IntRange(1, 50), help="Nodes of the cluster.")
@click.option("--files", type=click.IntRange(1), help="Files a batch comes in  [default: as many as nodes]")
@click.option(
    "--state-store",
    type=click.Choice(["memory", "rocksdb"]),
    default="memory",
    show_default=True,
    help="Structured Streaming's: Spark's default, in memory, or RocksDB.",
)
@click.option("--seed", default=1, show_default=True, help="Seed of the input.")
@click.option("--quick", is_flag=True, help="A small size, to check that it works: 2,000 rows, 2 batches, 2 rounds.")
@click.option(
    "--out",
    default=Path("out/bench-throughput"),
    show_default=True,
    type=click.Path(path_type=Path),
    help="Directory for the results.",
)
@json_option
def bench_throughput_command(
    workloads: str,
    rows: int,
    batches: int,
    rounds: int,
    nodes: int,
    files: int | None,
    state_store: str,
    seed: int,
    quick: bool,
    out: Path,
    as_json: bool,
) -> None:
    """Compare rows per second with Structured Streaming: the same outputs from the same files on the same cluster.

    Both sides read the same Parquet files as a stream, in batches of the same rows, and write Parquet. Both are warmed
    up, stay running and alternate; the result is the ratio within a round, with its median and spread. At the end
    every output is compared row by row; one that differs fails the bench. Structured Streaming gets one query for each
    output, as many shuffle partitions as cores, and JVMs with all compilers.

    \b
    Example:
      holdfast bench throughput --workloads count,traffic --rounds 7
    """
    from holdfast.cli.result_files import make_directory, write_csv, write_json
    from holdfast.errors import CheckFailed
    from holdfast_lab.benches.streaming.cluster import bench_cluster, this_machine
    from holdfast_lab.benches.streaming.throughput import compare
    from holdfast_lab.benches.streaming.workloads import WORKLOADS
    from holdfast_lab.commands.name_lists import read_names
    from holdfast_lab.plots.performance import draw_throughput

    wanted = read_names(workloads, WORKLOADS, "--workloads")
    if quick:
        rows, batches, rounds = 2000, 2, 2
    make_directory(out)
    machine = this_machine()
    found: list[Comparison] = []
    with progress() as bar, tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        task = bar.add_task("start the cluster", total=len(wanted))
        with bench_cluster(nodes) as (_, spark):
            for name in wanted:
                found.append(
                    compare(
                        WORKLOADS[name],
                        spark,
                        Path(folder) / name,
                        rows=rows,
                        batches=batches,
                        rounds=rounds,
                        files_per_batch=files or nodes,
                        state_store=state_store,
                        seed=seed,
                        progress=lambda text: bar.update(task, description=text),
                    )
                )
                bar.advance(task)
    given = {"rows": rows, "batches": batches, "rounds": rounds, "nodes": nodes, "files": files or nodes, "seed": seed}
    written = document(found, machine, {**given, "state_store": state_store})
    write_json(out / "result.json", written)
    write_csv(out / "rounds.csv", [turn for one in written["workloads"] for turn in one["rounds"]])
    draw_throughput(written["workloads"], out / "throughput.png", rows=rows)
    if as_json:
        print_json(written)
    else:
        print_comparisons(found, machine)
        click.echo(f"written to {out}: result.json, rounds.csv, throughput.png")
    for one in found:
        for output, problem in one.different.items():
            raise CheckFailed(f"output {output} differs: {problem}", where=f"bench throughput, {one.workload}")


def document(found: list[Comparison], machine: Machine, given: dict[str, Any]) -> dict[str, Any]:
    """Return what is written and printed as JSON."""
    return {
        "bench": "throughput",
        "machine": asdict(machine),
        **given,
        "workloads": [
            {
                "name": one.workload,
                "title": one.title,
                "structured_streaming_queries": one.queries,
                "ratio": one.ratio,
                "least_ratio": one.ratios[0],
                "greatest_ratio": one.ratios[1],
                "target": one.target,
                "holdfast_rows_per_second": one.holdfast_rows_per_second,
                "structured_streaming_rows_per_second": one.structured_streaming_rows_per_second,
                "output_rows": one.output_rows,
                "equal_outputs": not one.different,
                "different": one.different,
                "rounds": [{**asdict(turn), "ratio": turn.ratio} for turn in one.rounds],
            }
            for one in found
        ],
    }


def print_comparisons(found: list[Comparison], machine: Machine) -> None:
    """Print a table for people."""
    print_table(
        f"Rows per second, median of {len(found[0].rounds)} rounds; {machine.cores} cores, load {machine.load:.1f}",
        ["workload", "Holdfast", "Structured Streaming", "queries", "ratio (least-greatest)", "target", "rows equal"],
        [
            (
                one.workload,
                round(one.holdfast_rows_per_second),
                round(one.structured_streaming_rows_per_second),
                one.queries,
                f"{one.ratio:.1f} ({one.ratios[0]:.1f}-{one.ratios[1]:.1f})",
                one.target,
                f"{one.output_rows:,}" if not one.different else "NO",
            )
            for one in found
        ],
        right=(1, 2, 3, 4, 5, 6),
    )
