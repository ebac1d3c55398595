"""`holdfast bench recovery`: from a kill to detected, to the first output, to everything back, on both exchanges."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.output import json_option, print_json, print_table, progress

if TYPE_CHECKING:
    from holdfast_lab.benches.streaming.recovery import Drilled


@click.command("recovery")
@click.option(
    "--scenarios", default="traffic,chain", show_default=True, metavar="NAME,…", help="Scenarios, as drills have them."
)
@click.option("--seed", default=1, show_default=True, type=click.IntRange(0), help="Seed of the first failures.")
@click.option(
    "--failures",
    default=3,
    show_default=True,
    type=click.IntRange(1),
    help="Failures of each scenario, with consecutive seeds.",
)
@click.option("--nodes", default=6, show_default=True, type=click.IntRange(2, 50), help="Nodes of the cluster.")
@click.option("--kill", default=3, show_default=True, type=click.IntRange(1), help="Nodes ended with kill -9.")
@click.option(
    "--capacity",
    type=click.FloatRange(0, min_open=True),
    help="What a node can carry, in partitions' costs. Default: everything.",
)
@click.option(
    "--batch-seconds", default=0.25, show_default=True, type=click.FloatRange(0.01), help="Seconds between two batches."
)
@click.option(
    "--fail-at",
    default=15.0,
    show_default=True,
    type=click.FloatRange(0.0, min_open=True),
    help="Seconds from the start of the stream to the kill.",
)
@click.option("--reuse/--again", default=True, show_default=True, help="Reuse the results of earlier drills in --out.")
@click.option("--quick", is_flag=True, help="One failure of one scenario, to check that it works.")
@click.option(
    "--out",
    default=Path("out/bench-recovery"),
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for the results, and for the drills' own files.",
)
@json_option
def bench_recovery_command(
    scenarios: str,
    seed: int,
    failures: int,
    nodes: int,
    kill: int,
    capacity: float | None,
    batch_seconds: float,
    fail_at: float,
    reuse: bool,
    quick: bool,
    out: Path,
    as_json: bool,
) -> None:
    """Time what comes after a kill: detected, planned, the first restore, the first output, everything back.

    Each failure is a drill on each exchange with the same seed: the same batches, nodes and moment. Where --capacity
    is not given, the nodes that are left have room for everything. A query that is back shows it with its next batch,
    so outputs are timed no finer than --batch-seconds. Every output row must come once. Ratios are within a failure;
    medians have the interval that holds the true one with 95 % confidence, or the range where there are too few.

    \b
    Example:
      holdfast bench recovery --scenarios traffic --failures 5
    """
    from holdfast.cli.result_files import make_directory, write_csv, write_json
    from holdfast.drill.cluster_pool import ClusterPool
    from holdfast.drill.scenarios import SCENARIOS
    from holdfast.drill.settings import check_settings
    from holdfast.errors import CheckFailed
    from holdfast_lab.benches.streaming.cluster import this_machine
    from holdfast_lab.benches.streaming.recovery import EXCHANGES, STEPS, Failure, drilled, in_turns, summarize
    from holdfast_lab.commands.name_lists import read_names
    from holdfast_lab.experiments.recovery.reuse import run_or_reuse

    names = read_names(scenarios, SCENARIOS, "--scenarios")
    if quick:
        names, failures = names[:1], 1
    planned = [
        Failure(name, seed + number, nodes, kill, capacity, batch_seconds, fail_at)
        for number in range(failures)
        for name in names
    ]
    check_settings(planned[0].settings(EXCHANGES[0]))
    make_directory(out)
    machine, found = this_machine(), []
    with progress() as bar, ClusterPool() as clusters:
        task = bar.add_task("drills", total=len(planned) * len(EXCHANGES))
        for failure, exchange in in_turns(planned):
            name = f"{failure.scenario}-{failure.seed}-{exchange}"
            bar.update(task, description=name)
            result = run_or_reuse(failure.settings(exchange), out / name, clusters, reuse=reuse)
            found.append(drilled(failure, exchange, result))
            bar.advance(task)
    document = {
        "bench": "recovery",
        "machine": asdict(machine),
        "nodes": nodes,
        "batch_seconds": batch_seconds,
        "fail_at": fail_at,
        "capacity": capacity,
        "rows": summarize(found),
        "drills": [asdict(one) for one in found],
    }
    write_json(out / "result.json", document)
    write_csv(
        out / "drills.csv",
        [{**asdict(one), **{step: one.after[step] for step in STEPS}, "after": None} for one in found],
    )
    if as_json:
        print_json(document)
    else:
        print_drills(found, f"{machine.cores} cores, load {machine.load:.1f}, a batch each {batch_seconds:g} s")
        click.echo(f"written to {out}: result.json, drills.csv, and a directory for each drill")
    for one in found:
        if one.verdict != "ok":
            raise CheckFailed(
                f"a drill of {one.scenario}, seed {one.seed}, is not ok: {one.verdict}",
                where="bench recovery",
                remedy=f"see {out / f'{one.scenario}-{one.seed}-{one.exchange}' / 'report.html'}",
            )


def print_drills(found: list[Drilled], where: str) -> None:
    """Print a line for each drill, and one for each exchange."""
    from holdfast_lab.benches.streaming.recovery import STEPS, summarize

    def text(seconds: float | None) -> str:
        return "-" if seconds is None else f"{seconds:.2f}"

    def spread(one: dict[str, float] | None) -> str:
        return "-" if one is None else f"{one['median']:.2f} ({one['low']:.2f}-{one['high']:.2f})"

    heads = [step.replace("_", " ") for step in STEPS]
    print_table(
        f"Seconds from the kill; {where}",
        ["scenario", "seed", "exchange", "killed", "verdict", "rows", "latency before", *heads],
        [
            (
                one.scenario,
                one.seed,
                one.exchange,
                one.killed,
                one.verdict,
                f"{one.rows:,}",
                text(one.latency_before),
                *(text(one.after[step]) for step in STEPS),
            )
            for one in found
        ],
        right=(1, 3, *range(5, 7 + len(STEPS))),
    )
    print_table(
        "Medians, with their interval",
        ["exchange", *heads, "first output, times sooner"],
        [
            (
                row["side"],
                *(spread(row[f"{step}_seconds"]) for step in STEPS),
                spread(row["first_output_times_sooner"]),
            )
            for row in summarize(found)
        ],
        right=range(1, 2 + len(STEPS)),
    )
