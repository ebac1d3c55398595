"""`holdfast bench start`: from the command to the first output row, by phase."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path

import click

from holdfast.cli.output import json_option, print_json, print_table, progress


@click.command("start")
@click.option("--rows", default=120_000, show_default=True, type=click.IntRange(100), help="Rows of the input.")
@click.option("--nodes", default=3, show_default=True, type=click.IntRange(1, 16), help="Nodes of the cluster.")
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1), help="Starts of each side, in turns.")
@click.option(
    "--cluster",
    type=click.Choice(["both", "embedded", "running"]),
    default="both",
    show_default=True,
    help="Where: a cluster that the command starts, a standalone one that runs already, or both.",
)
@click.option(
    "--exchange",
    type=click.Choice(["both", "resident", "shuffle"]),
    default="both",
    show_default=True,
    help="Exchanges to time.",
)
@click.option(
    "--beside",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="The src directory of another checkout of Holdfast, timed in the same run.",
)
@click.option("--quick", is_flag=True, help="One start of each side, to check that it works.")
@click.option(
    "--out",
    default=Path("out/bench-start"),
    show_default=True,
    type=click.Path(path_type=Path),
    help="Directory for the results.",
)
@json_option
def bench_start_command(
    rows: int,
    nodes: int,
    rounds: int,
    cluster: str,
    exchange: str,
    beside: Path | None,
    quick: bool,
    out: Path,
    as_json: bool,
) -> None:
    """Time `holdfast run` from the command to the first output row, by phase.

    The input is there before the start: the windowed count of it takes a fraction of a second. Each phase is given in
    seconds since the command: median, and the interval that has the true median with 95 % confidence, or the range
    where there are too few starts for it. Below them are the CPU seconds of all processes up to the first output, by
    kind: what other work on the machine hardly changes, and what bounds a start on few cores.

    \b
    Examples:
      holdfast bench start
      holdfast bench start --cluster embedded --beside ../before/src
    """
    from holdfast.cli.result_files import write_json
    from holdfast.spark.start_progress import PHASES
    from holdfast_lab.benches.streaming.cluster import this_machine
    from holdfast_lab.benches.streaming.processes import KINDS
    from holdfast_lab.benches.streaming.start import Side, summarize, time_starts

    exchanges = ["resident", "shuffle"] if exchange == "both" else [exchange]
    sides = [Side(one, one) for one in exchanges]
    if beside is not None:
        sides += [Side(f"{one}, beside", one, beside.absolute()) for one in exchanges]
    kinds = ["embedded", "running"] if cluster == "both" else [cluster]
    rounds, machine = 1 if quick else rounds, this_machine()
    with progress() as bar, tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        task = bar.add_task("start", total=len(sides) * len(kinds) * rounds)

        def show(text: str) -> None:
            bar.update(task, description=text, advance=1)

        timed = time_starts(Path(folder), sides, kinds, rows=rows, nodes=nodes, rounds=rounds, progress=show)
    result = {
        "bench": "start",
        "input_rows": rows,
        "nodes": nodes,
        "machine": asdict(machine),
        "rows": summarize(timed),
        "starts": [asdict(one) for one in timed],
    }
    write_json(out / "result.json", result)
    if as_json:
        print_json(result)
        return
    for kind in kinds:
        found = {str(row["side"]): row for row in summarize(timed) if row["workload"] == f"{kind} cluster"}
        title = f"{kind} cluster, {nodes} nodes: seconds from the command; load {machine.load:.1f} at the beginning"
        print_table(
            title,
            ["phase", *found],
            [
                (phase, *(_cell(row["phases"].get(phase)) for row in found.values()))  # type: ignore[attr-defined]
                for phase in PHASES
            ]
            + [
                (f"CPU: {kind}", *(f"{row['cpu_seconds_by_kind'].get(kind, 0.0):.1f}" for row in found.values()))  # type: ignore[attr-defined]
                for kind in KINDS
                if any(kind in row["cpu_seconds_by_kind"] for row in found.values())  # type: ignore[operator]
            ]
            + [("CPU, all", *(f"{row['cpu_seconds']:.1f}" for row in found.values()))],
            right=tuple(range(1, len(found) + 1)),
        )
    click.echo(f"results: {out / 'result.json'}")


def _cell(phase: dict[str, float] | None) -> str:
    return "-" if phase is None else f"{phase['seconds']:.1f} ({phase['low']:.1f} to {phase['high']:.1f})"
