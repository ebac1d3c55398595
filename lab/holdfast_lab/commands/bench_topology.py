"""`holdfast bench topology`: load, check and rates for 10 to 10,000 partitions, time and memory."""

from __future__ import annotations

from dataclasses import asdict

import click

from holdfast.cli.output import json_option, print_json, print_table, progress


@click.command("topology")
@click.option("--repeat", default=5, show_default=True, type=click.IntRange(1, 100), help="Repetitions of each figure.")
@json_option
def bench_topology_command(repeat: int, as_json: bool) -> None:
    """Measure loading, checking, rates and queries of topologies by size.

    The sizes are 10, 1,000 and 10,000 partitions in operators joined fully (a million task edges at the largest), and
    10,000 operators of one partition each with a million inputs written out. Each size runs in a process of its own.

    \b
    Example:
      holdfast bench topology --repeat 10
    """
    from holdfast_lab.benches.topology import SIZES, bench_topology

    found = []
    with progress() as bar:
        task = bar.add_task("measure", total=len(SIZES))
        for figures in bench_topology(SIZES, repeat):
            found.append(figures)
            bar.advance(task)
    if as_json:
        print_json({"bench": "topology", "repeat": repeat, "sizes": [asdict(one) for one in found]})
        return

    def spread(values: tuple[float, float, float]) -> str:
        median, low, high = (1000 * value for value in values)
        digits = 0 if median >= 100 else 1
        return f"{median:,.{digits}f} ({low:,.{digits}f}-{high:,.{digits}f})"

    print_table(
        f"Milliseconds: median (least-greatest) of {repeat}; memory of the whole process",
        ["size", "partitions", "edges", "file MB", "load and check", "rates", "queries", "peak MB", "of that Python"],
        [
            (
                one.size,
                one.partitions,
                one.edges,
                round(one.file_mb, 3),
                *map(spread, (one.load_and_check, one.rates, one.queries)),
                round(one.peak_mb),
                round(one.start_mb),
            )
            for one in found
        ],
        right=(1, 2, 3, 4, 5, 6, 7, 8),
    )
