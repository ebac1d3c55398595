"""`holdfast bench overhead`: the price of checkpoints and of kept outboxes."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.output import json_option, print_json, print_table, progress

if TYPE_CHECKING:
    from holdfast_lab.benches.streaming.cluster import Machine
    from holdfast_lab.benches.streaming.outbox_bytes import OutboxBytes
    from holdfast_lab.benches.streaming.overhead import Overhead
    from holdfast_lab.benches.streaming.spread import Spread

TARGET = 0.05
DISK_BATCHES, DISK_INTERVAL = 60, 20
"""Batches, and batches between checkpoints, by which bytes on disk are counted."""


@click.command("overhead")
@click.option(
    "--workload",
    type=click.Choice(["count", "traffic", "hashtags"]),
    default="hashtags",
    show_default=True,
    help="Application to run.",
)
@click.option("--rows", default=20_000, show_default=True, type=click.IntRange(1), help="Rows per batch.")
@click.option("--interval", default=10.0, show_default=True, help="Seconds between checkpoints.")
@click.option(
    "--alternations", default=10, show_default=True, type=click.IntRange(1), help="Runs of each policy, in alternation."
)
@click.option("--nodes", default=4, show_default=True, type=click.IntRange(1, 50), help="Nodes of the cluster.")
@click.option("--batches", type=click.IntRange(2), help="Batches of a turn  [default: as many as fill the interval]")
@click.option("--seed", default=1, show_default=True, help="Seed of the input.")
@click.option("--disk-only", is_flag=True, help="Count bytes of outboxes on disk only: in this process, no cluster.")
@click.option(
    "--quick", is_flag=True, help="A small size, to check that it works: 500 rows, 4 batches, 3 alternations."
)
@click.option(
    "--out",
    default=Path("out/bench-overhead"),
    show_default=True,
    type=click.Path(path_type=Path),
    help="Directory for the results.",
)
@json_option
def bench_overhead_command(
    workload: str,
    rows: int,
    interval: float,
    alternations: int,
    nodes: int,
    batches: int | None,
    seed: int,
    disk_only: bool,
    quick: bool,
    out: Path,
    as_json: bool,
) -> None:
    """Measure the overhead of fault tolerance: checkpoints, and retained outboxes, against neither.

    Three runs of one application take turns with the same batches on one cluster: without checkpoints; with a
    checkpoint each interval and only the sources' log kept; with every outbox retained back to the checkpoint as well.
    The overhead is a ratio within an alternation; its median comes with an interval of at least 95 % confidence, on the
    clock and in CPU seconds of the whole cluster.

    Before that, the same policies run in this process, and the bytes are counted that outboxes take on disk.

    \b
    Examples:
      holdfast bench overhead --workload hashtags --alternations 15
      holdfast bench overhead --workload hashtags --disk-only
    """
    from holdfast.cli.result_files import make_directory, write_csv, write_json
    from holdfast_lab.benches.streaming.cluster import bench_cluster, this_machine
    from holdfast_lab.benches.streaming.overhead import measure_overhead
    from holdfast_lab.benches.streaming.workloads import WORKLOADS
    from holdfast_lab.plots.performance import draw_overhead

    if quick:
        rows, alternations, batches = 500, 3, 4
    make_directory(out)
    machine = this_machine()
    disk = count_outboxes(workload, rows, nodes, seed)
    if disk_only:
        document = {"bench": "overhead", "workload": workload, "rows": rows, "nodes": nodes, "seed": seed}
        document |= {"disk": [asdict(one) for one in disk]}
        write_json(out / "result.json", document)
        if as_json:
            print_json(document)
        else:
            print_outboxes(disk, workload, rows)
        return
    with progress() as bar, tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        task = bar.add_task("start the cluster", total=None)
        with bench_cluster(nodes, cores=5) as (cluster, spark):
            found = measure_overhead(
                WORKLOADS[workload],
                spark,
                Path(folder),
                sessions=[node.group for node in cluster.nodes.values()],
                rows=rows,
                interval=interval,
                alternations=alternations,
                batches=batches,
                seed=seed,
                progress=lambda text: bar.update(task, description=text),
            )
    written = overhead_document(found, machine, {"nodes": nodes, "seed": seed})
    written["disk"] = [asdict(one) for one in disk]
    write_json(out / "result.json", written)
    write_csv(out / "turns.csv", [asdict(turn) for turn in found.turns])
    draw_overhead(written, out / "overhead.png")
    if as_json:
        print_json(written)
        return
    print_prices(found, machine)
    print_outboxes(disk, workload, rows)
    click.echo(f"written to {out}: result.json, turns.csv, overhead.png")


def count_outboxes(workload: str, rows: int, nodes: int, seed: int) -> list[OutboxBytes]:
    """Return what outboxes take on disk under each policy."""
    from holdfast_lab.benches.streaming.outbox_bytes import outbox_bytes
    from holdfast_lab.benches.streaming.overhead import POLICIES
    from holdfast_lab.benches.streaming.workloads import WORKLOADS

    one = WORKLOADS[workload]
    found = []
    for policy in POLICIES:
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
            batches = one.batches(seed, DISK_BATCHES, rows)
            found.append(
                outbox_bytes(one.application(), batches, Path(folder), policy, every=DISK_INTERVAL, nodes=nodes)
            )
    return found


def print_outboxes(found: list[OutboxBytes], workload: str, rows: int) -> None:
    """Print a table for people."""
    print_table(
        f"Outboxes on disk, {workload}: {rows:,} rows in a batch, a checkpoint every {DISK_INTERVAL} batches",
        ["policy", "rows sent, bytes a batch", "outboxes written", "all that journals wrote", "kept, at most"],
        [(one.policy, *(f"{value:,.0f}" for value in (one.rows, one.outbox, one.journal, one.kept))) for one in found],
        right=(1, 2, 3, 4),
    )


def overhead_document(found: Overhead, machine: Machine, given: dict[str, Any]) -> dict[str, Any]:
    """Return what is written and printed as JSON."""
    return {
        "bench": "overhead",
        "machine": asdict(machine),
        **given,
        "workload": found.workload,
        "rows": found.rows,
        "batches_per_turn": found.batches_per_turn,
        "interval_seconds": found.interval_seconds,
        "target": TARGET,
        "prices": [
            {
                "policy": one.policy,
                "clock": asdict(one.clock),
                "cpu": asdict(one.cpu),
                "cpu_seconds_per_checkpoint": asdict(one.cpu_seconds),
                "within_target": one.within(TARGET),
            }
            for one in found.prices
        ],
        "turns": [asdict(turn) for turn in found.turns],
    }


def print_prices(found: Overhead, machine: Machine) -> None:
    """Print a table for people."""

    def shown(spread: Spread) -> str:
        return f"{spread.median:+.1%} ({spread.low:+.1%} to {spread.high:+.1%})"

    from holdfast_lab.benches.streaming.overhead import POLICIES

    print_table(
        f"Price of being ready, {found.workload}: a checkpoint every {found.interval_seconds:.1f} s "
        f"({found.batches_per_turn} batches of {found.rows:,} rows); {machine.cores} cores, load {machine.load:.1f}",
        ["policy", "what", "on the clock (interval)", "CPU (interval)", "CPU s a checkpoint", f"within {TARGET:.0%}"],
        [
            (
                one.policy,
                POLICIES[one.policy],
                shown(one.clock),
                shown(one.cpu),
                f"{one.cpu_seconds.median:.2f} ({one.cpu_seconds.low:.2f} to {one.cpu_seconds.high:.2f})",
                {True: "yes", False: "no", None: "undecided"}[one.within(TARGET)],
            )
            for one in found.prices
        ],
        right=(2, 3, 4),
    )
