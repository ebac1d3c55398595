"""`holdfast bench isolation`: what a bad operator of the lowest query does to the highest."""

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
    from holdfast_lab.benches.streaming.isolation import Isolation

CASES = ("poison", "segfault", "memory", "gil")


@click.command("isolation")
@click.option("--cases", default=",".join(CASES), show_default=True, metavar="NAME,…", help="What goes wrong.")
@click.option("--nodes", default=2, show_default=True, type=click.IntRange(1, 16), help="Nodes of the cluster.")
@click.option("--turns", default=3, show_default=True, type=click.IntRange(1), help="Turns with harm, and without.")
@click.option("--seconds", default=20.0, show_default=True, type=click.FloatRange(1), help="Seconds of a turn.")
@click.option("--batches", default=10.0, show_default=True, type=click.FloatRange(0.1), help="Batches a second.")
@click.option("--rows", default=100, show_default=True, type=click.IntRange(1), help="Rows of a batch.")
@click.option("--hold", default=10.0, show_default=True, type=click.FloatRange(0), help="Seconds in the global lock.")
@click.option("--quick", is_flag=True, help="Small sizes, to check that it works.")
@click.option(
    "--out",
    default=Path("out/bench-isolation"),
    show_default=True,
    type=click.Path(path_type=Path),
    help="Directory for the results.",
)
@json_option
def bench_isolation_command(
    cases: str,
    nodes: int,
    turns: int,
    seconds: float,
    batches: float,
    rows: int,
    hold: float,
    quick: bool,
    out: Path,
    as_json: bool,
) -> None:
    """Measure the highest query while an operator of the lowest one misbehaves.

    One source, two queries, on an embedded cluster with two operator processes a node. In every second turn the lower
    query's operator meets a row that it raises on (`poison`), that crashes its process (`segfault`), that eats memory
    until its task ends it (`memory`), or on which it holds Python's global lock (`gil`). Latency is from when a batch
    was due until the highest query's output is published. Status 1 where a query is not exact.

    \b
    Example:
      holdfast bench isolation --cases poison,segfault
    """
    from holdfast.cli.result_files import make_directory, write_json
    from holdfast.errors import CheckFailed
    from holdfast_lab.benches.streaming.cluster import bench_cluster, this_machine
    from holdfast_lab.benches.streaming.isolation import measure_isolation
    from holdfast_lab.commands.name_lists import read_names

    wanted = read_names(cases, CASES, "--cases")
    if quick:
        turns, seconds, batches, rows, hold = 1, 3.0, 5.0, 20, 1.0
    make_directory(out)
    machine = this_machine()
    with progress() as bar, tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        task = bar.add_task("start the cluster", total=None)
        with bench_cluster(nodes) as (cluster, spark):
            found = measure_isolation(
                spark,
                Path(folder),
                nodes=nodes,
                cases=wanted,
                turns=turns,
                seconds=seconds,
                batches_a_second=batches,
                rows=rows,
                hold_seconds=hold,
                secret_file=cluster.secret_file,
                progress=lambda text: bar.update(task, description=text),
            )
    given = {"nodes": nodes, "turns": turns, "seconds": seconds, "batches": batches, "rows": rows, "hold": hold}
    written = isolation_document(found, machine, given)
    write_json(out / "result.json", written)
    if as_json:
        print_json(written)
    else:
        print_isolation(written, machine)
        click.echo(f"written to {out}: result.json")
    if bad := [one.case for one in found if not (one.exact and one.low_exact)]:
        raise CheckFailed(f"a query is not exact: {', '.join(bad)}", where="bench isolation")


def isolation_document(found: Sequence[Isolation], machine: Machine, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is written and printed as JSON; times in milliseconds."""

    def quantiles(one: Isolation, *, harmed: bool) -> dict[str, Any]:
        p50, p99 = one.spread(0.5, harmed=harmed), one.spread(0.99, harmed=harmed)
        return {"p50_ms": p50.median * 1e3, "p99_ms": p99.median * 1e3, "p99_range_ms": [p99.low * 1e3, p99.high * 1e3]}

    return {
        "machine": asdict(machine),
        "given": dict(given),
        "cases": [
            {
                "case": one.case,
                "without": quantiles(one, harmed=False),
                "with": quantiles(one, harmed=True),
                "within_spread": one.within,
                "highest_exact": one.exact,
                "lowest_exact": one.low_exact,
                "processes_apart": one.apart,
                "quarantined": one.quarantined,
                "parked": one.parked,
                "nodes_lost": one.lost_nodes,
            }
            for one in found
        ],
    }


def print_isolation(written: Mapping[str, Any], machine: Machine) -> None:
    """Print a line for each case."""
    given = written["given"]
    click.echo(
        f"{machine.cores} cores, load {machine.load:.1f}, {given['nodes']} nodes; {given['batches']:g} batches a "
        f"second of {given['rows']} rows, {given['turns']} turns of {given['seconds']:g} s each way; highest query, ms"
    )

    def range_of(one: Mapping[str, Any]) -> str:
        low, high = one["p99_range_ms"]
        return f"{one['p99_ms']:.0f} ({low:.0f} to {high:.0f})"

    print_table(
        None,
        ["case", "p50", "p99", "p50 with it", "p99 with it", "within", "exact", "lowest", "quarantined", "nodes lost"],
        [
            [
                one["case"],
                f"{one['without']['p50_ms']:.0f}",
                range_of(one["without"]),
                f"{one['with']['p50_ms']:.0f}",
                range_of(one["with"]),
                "yes" if one["within_spread"] else "no",
                "yes" if one["highest_exact"] else "NO",
                "exact" if one["lowest_exact"] else "NOT EXACT",
                str(one["quarantined"]),
                str(one["nodes_lost"]),
            ]
            for one in written["cases"]
        ],
    )
    if not all(one["processes_apart"] for one in written["cases"]):
        click.echo("the two queries shared an operator process: what holds it, holds both")
