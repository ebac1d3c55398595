"""`holdfast bench limits`: operators, exchange and state against plain Arrow, a copy in memory and a plain write."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.output import json_option, print_json, print_table, steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast_lab.benches.limits.sides import Measured
    from holdfast_lab.benches.streaming.cluster import Machine


@click.command("limits")
@click.option("--turns", default=7, show_default=True, type=click.IntRange(1), help="Turns of each side.")
@click.option("--rows", default="10000,100000", show_default=True, metavar="N,…", help="Rows of a batch of operators.")
@click.option("--batches", default=20, show_default=True, type=click.IntRange(12), help="Batches of a turn.")
@click.option("--kilobytes", default="10,1000,10000", show_default=True, metavar="N,…", help="Sizes of a message.")
@click.option("--commits", default="10,1000,100000", show_default=True, metavar="N,…", help="Rows of a commit.")
@click.option("--quick", is_flag=True, help="Small sizes, to check that it works.")
@click.option(
    "--out",
    default=Path("out/bench-limits"),
    show_default=True,
    type=click.Path(path_type=Path),
    help="Directory for the results.",
)
@json_option
def bench_limits_command(
    turns: int, rows: str, batches: int, kilobytes: str, commits: str, quick: bool, out: Path, as_json: bool
) -> None:
    """Measure how far operators, exchange and state are from what the machine can do, without a cluster.

    Operators against plain pyarrow on the same rows, with outputs compared; blocks over an authenticated link against a
    copy in memory; a commit to the journal against a plain write of the same bytes. Figures are CPU seconds of one
    process; a ratio is within a turn, with the median over the turns and its interval.

    \b
    Example:
      holdfast bench limits --turns 5
    """
    from holdfast.cli.number_lists import read_numbers
    from holdfast.cli.result_files import make_directory, write_json
    from holdfast_lab.benches.limits.exchange import measure_exchange
    from holdfast_lab.benches.limits.operators import measure_operators
    from holdfast_lab.benches.limits.state import measure_state
    from holdfast_lab.benches.streaming.cluster import this_machine

    megabytes, most = 40, 64
    if quick:
        turns, rows, batches, kilobytes, commits, megabytes, most = 2, "1000", 12, "10,100", "10,100", 2, 8
    sizes = [
        [int(number) for number in read_numbers(text, option)]
        for text, option in ((rows, "--rows"), (kilobytes, "--kilobytes"), (commits, "--commits"))
    ]
    make_directory(out)
    machine = this_machine()
    found: list[Measured] = []
    with steps([str(size) for some in sizes for size in some], quiet=as_json) as done:
        for size in sizes[0]:
            found.append(measure_operators(size, batches, turns))
            done()
        for size in sizes[1]:
            found.append(measure_exchange(size, megabytes, turns))
            done()
        for size in sizes[2]:
            found.append(measure_state(size, 8, most, turns))
            done()
    written = limits_document(found, machine, turns)
    write_json(out / "result.json", written)
    if as_json:
        print_json(written)
        return
    print_table(
        f"CPU time; median of {turns} turns and its interval; {machine.cores} cores, load {machine.load:.1f}",
        ["part", "workload", "side", "microseconds", "x plain", "interval"],
        [
            (
                one["part"],
                one["workload"],
                one["side"],
                f"{one['microseconds']:,.0f} a {one['unit']}",
                f"{one['ratio']:,.2f}",
                f"{one['least_ratio']:,.2f}-{one['greatest_ratio']:,.2f}",
            )
            for one in written["rows"]
        ],
        right=(3, 4, 5),
    )
    click.echo(f"written to {out}: result.json")


def limits_document(found: Sequence[Measured], machine: Machine, turns: int) -> dict[str, Any]:
    """Return what is written and printed as JSON; `ratio`: how many times the plain side's CPU."""
    rows = []
    for one in found:
        for side in one.seconds:
            seconds, ratio = one.median(side), one.ratio(side)
            rows.append(
                {
                    "part": one.part,
                    "workload": one.workload,
                    "side": side,
                    "against": one.plain,
                    "unit": one.unit,
                    "microseconds": 1e6 * seconds,
                    "rows_per_second": None if one.rows is None else one.rows / seconds,
                    "cpu_seconds_per_million_rows": None if one.rows is None else 1e6 * seconds / one.rows,
                    "megabytes_per_second": None if one.size is None else one.size / seconds / 1e6,
                    "ratio": ratio.median,
                    "least_ratio": ratio.low,
                    "greatest_ratio": ratio.high,
                }
            )
    return {"bench": "limits", "machine": asdict(machine), "turns": turns, "rows": rows}
