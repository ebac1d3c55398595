"""`holdfast bench memory`: memory and disk of a run under a slow sink and under a burst."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.output import json_option, print_json, print_table, progress

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast_lab.benches.streaming.cluster import Machine
    from holdfast_lab.benches.streaming.memory import Phase

EXCHANGES = ("resident", "shuffle")


@click.command("memory")
@click.option("--exchanges", default="resident", show_default=True, metavar="NAME,…", help="Exchanges to measure.")
@click.option("--nodes", default=3, show_default=True, type=click.IntRange(1, 16), help="Nodes of the cluster.")
@click.option("--rate", default=10_000, show_default=True, type=click.IntRange(2), help="Rows a second.")
@click.option("--seconds", default=30.0, show_default=True, type=click.FloatRange(1), help="Seconds of a phase.")
@click.option("--slower", default=3.0, show_default=True, type=click.FloatRange(1), help="Slow sink: times too slow.")
@click.option("--burst", default=50, show_default=True, type=click.IntRange(1), help="Times the rate in the burst.")
@click.option("--burst-seconds", default=4.0, show_default=True, type=click.FloatRange(0.5), help="Seconds of it.")
@click.option("--quick", is_flag=True, help="Small sizes, to check that it works.")
@click.option(
    "--out",
    default=Path("out/bench-memory"),
    show_default=True,
    type=click.Path(path_type=Path),
    help="Directory for the results.",
)
@json_option
def bench_memory_command(
    exchanges: str,
    nodes: int,
    rate: int,
    seconds: float,
    slower: float,
    burst: int,
    burst_seconds: float,
    quick: bool,
    out: Path,
    as_json: bool,
) -> None:
    """Measure memory and disk under a slow sink and under a burst, against the steady state.

    Rows of about 110 bytes go from files through two exchanges to a function on the driver. Peaks are given by kind of
    process (RSS: forks and mapped files count in each) and for state files and batch log; beside the peak of the second
    half of a phase, that of the first: what is bounded does not grow while the sink stays slow. Every row must come
    out once.

    \b
    Example:
      holdfast bench memory --seconds 60
    """
    from holdfast.cli.result_files import make_directory, write_csv, write_json
    from holdfast_lab.benches.streaming.cluster import bench_cluster, this_machine
    from holdfast_lab.benches.streaming.memory import measure_memory
    from holdfast_lab.commands.name_lists import read_names
    from holdfast_lab.plots.memory import draw_memory

    wanted = read_names(exchanges, EXCHANGES, "--exchanges")
    if quick:
        nodes, rate, seconds, burst_seconds = 2, 1000, 4.0, 0.5
    make_directory(out)
    machine = this_machine()
    found: dict[str, list[Phase]] = {}
    with progress() as bar, tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        task = bar.add_task("start the cluster", total=len(wanted))
        for exchange in wanted:  # a cluster each: what a run leaves in its processes is not the next one's
            with bench_cluster(nodes) as (cluster, spark):
                found[exchange] = measure_memory(
                    cluster,
                    spark,
                    Path(folder) / exchange,
                    rate=rate,
                    seconds=seconds,
                    slower=slower,
                    burst=burst,
                    burst_seconds=burst_seconds,
                    exchange=exchange,
                    progress=lambda text: bar.update(task, description=text),
                )
            bar.advance(task)
    given = {"nodes": nodes, "rate": rate, "seconds": seconds, "slower": slower, "burst": burst}
    written = memory_document(found, machine, {**given, "burst_seconds": burst_seconds})
    write_json(out / "result.json", written)
    write_csv(out / "samples.csv", _samples(found))
    draw_memory(_samples(found), out / "memory.png")
    if as_json:
        print_json(written)
        return
    print_memory(written, machine)
    click.echo(f"written to {out}: result.json, samples.csv, memory.png")


def _side(exchange: str) -> str:
    return "holdfast" if exchange == "resident" else exchange


def memory_document(found: Mapping[str, Sequence[Phase]], machine: Machine, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is written and printed as JSON; `ratio`: the peak of all memory to that of the steady phase."""
    from holdfast_lab.benches.streaming.memory import RUN_FILES, STATE_FILES

    rows = []
    for exchange, phases in found.items():
        steady = {kind: phases[0].peak(kind) for kind in phases[0].kinds}
        for one in phases:
            parts = {}
            for kind in one.kinds:
                first, second = one.halves(kind)
                parts[kind] = {
                    "peak_mb": one.peak(kind) / 1e6,
                    "first_half_mb": first / 1e6,
                    "second_half_mb": second / 1e6,
                    "ratio": one.peak(kind) / max(1, steady.get(kind, 0)),
                }
            in_memory = [kind for kind in one.kinds if kind not in (STATE_FILES, RUN_FILES)]
            peak = max(sum(sample.sizes.get(kind, 0) for kind in in_memory) for sample in one.samples)
            usual = max(sum(sample.sizes.get(kind, 0) for kind in in_memory) for sample in phases[0].samples)
            rows.append(
                {
                    "workload": one.name,
                    "side": _side(exchange),
                    "rows_per_second": one.rows / one.seconds,
                    "peak_mb": peak / 1e6,
                    "ratio": peak / usual,
                    "seconds": one.seconds,
                    "kinds": parts,
                }
            )
    return {"bench": "memory", "machine": asdict(machine), **given, "rows": rows}


def _samples(found: Mapping[str, Sequence[Phase]]) -> list[dict[str, Any]]:
    """Return one line for each sample and kind; times go on over the phases."""
    lines = []
    for exchange, phases in found.items():
        base = 0.0
        for one in phases:
            for sample in one.samples:
                lines += [
                    {"side": _side(exchange), "phase": one.name, "at": base + sample.at, "kind": kind, "bytes": size}
                    for kind, size in sample.sizes.items()
                ]
            base += one.seconds
    return lines


def print_memory(written: Mapping[str, Any], machine: Machine) -> None:
    """Print a table for people."""
    print_table(
        f"Peaks in MB (first half of the phase, second half); {machine.cores} cores, load {machine.load:.1f}",
        ["phase", "side", "what", "peak MB", "first half", "second half", "x steady"],
        [
            (
                one["workload"],
                one["side"],
                kind,
                f"{part['peak_mb']:,.1f}",
                f"{part['first_half_mb']:,.1f}",
                f"{part['second_half_mb']:,.1f}",
                f"{part['ratio']:.2f}",
            )
            for one in written["rows"]
            for kind, part in one["kinds"].items()
        ],
        right=(3, 4, 5, 6),
    )
