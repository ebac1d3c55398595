"""`holdfast bench latency`: from a row's creation to visible at the sink, by phase, on both exchanges."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.output import json_option, print_json, print_table, progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast_lab.benches.streaming.cluster import Machine
    from holdfast_lab.benches.streaming.latency import Latency
    from holdfast_lab.benches.streaming.row_latency import RowLatency


def _numbers(context: click.Context, parameter: click.Parameter, text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(one) for one in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise click.BadParameter("give whole numbers above 0, like 2,8")
    return found


@click.command("latency")
@click.option("--nodes", default=4, show_default=True, type=click.IntRange(1, 16), help="Nodes of the cluster.")
@click.option("--levels", default="2,8", show_default=True, callback=_numbers, help="Levels of operators.")
@click.option("--rates", default="1000,10000,100000", show_default=True, callback=_numbers, help="Rows a second.")
@click.option("--turns", default=4, show_default=True, type=click.IntRange(1), help="Turns of each side.")
@click.option("--seconds", default=5.0, show_default=True, type=click.FloatRange(0.1), help="Seconds of a turn.")
@click.option("--ahead", default=2, show_default=True, type=click.IntRange(1), help="Batches in work at once.")
@click.option("--alone", is_flag=True, help="Batches one at a time instead, from logged to published.")
@click.option(
    "--rows", default="1000,10000,100000", show_default=True, callback=_numbers, help="With --alone: rows of a batch."
)
@click.option("--batches", default=60, show_default=True, type=click.IntRange(5), help="With --alone: batches.")
@click.option("--kafka", is_flag=True, help="From Kafka to Kafka instead, with and without checkpoints.")
@click.option("--quick", is_flag=True, help="A small size, to check that it works: two levels, one rate, two turns.")
@click.option(
    "--out",
    default=Path("out/bench-latency"),
    show_default=True,
    type=click.Path(path_type=Path),
    help="Directory for the results.",
)
@json_option
def bench_latency_command(
    nodes: int,
    levels: tuple[int, ...],
    rates: tuple[int, ...],
    turns: int,
    seconds: float,
    ahead: int,
    alone: bool,
    rows: tuple[int, ...],
    batches: int,
    kafka: bool,
    quick: bool,
    out: Path,
    as_json: bool,
) -> None:
    """Measure how long rows take from their creation until they are visible at the sink, on both exchanges in turns.

    Rows come at a rate that nobody delays and carry their creation time to the sink. Phases, for every row: the wait
    for the batch, logging, operators and exchange, publish. They add up; all are read from the machine's one monotonic
    clock. With --alone, batches come one at a time, each after the one before is published. With --kafka, rows come
    from a topic of a broker that is started for it, and are out when a reader of committed records has them.

    \b
    Example:
      holdfast bench latency --levels 2 --rates 10000
    """
    from holdfast.cli.result_files import make_directory, write_json
    from holdfast_lab.benches.streaming.cluster import bench_cluster, this_machine
    from holdfast_lab.benches.streaming.latency import measure_latency
    from holdfast_lab.benches.streaming.row_latency import measure_rows
    from holdfast_lab.plots.latency import draw_latency

    if quick:
        levels, rates, rows, turns, seconds, batches = (2,), (1000,), (10_000,), 2, 1.0, 20
    make_directory(out)
    machine = this_machine()
    if kafka:
        written = _from_kafka(nodes, rates, seconds, machine)
        write_json(out / "result.json", written)
        if as_json:
            print_json(written)
        else:
            _print_kafka(written, machine)
            click.echo(f"written to {out}: result.json")
        return
    of_batches: list[Latency] = []
    of_rows: list[RowLatency] = []
    points = [(level, many) for level in levels for many in (rows if alone else rates[:1])]
    with (
        progress() as bar,
        tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder,
        bench_cluster(nodes) as (cluster, spark),
    ):
        task = bar.add_task("measure", total=len(points))
        for number, (level, many) in enumerate(points):
            place, secret = Path(folder) / str(number), cluster.secret_file

            def show(text: str) -> None:
                bar.update(task, description=text)

            if alone:
                of_batches += measure_latency(
                    spark,
                    place,
                    nodes=nodes,
                    levels=level,
                    rows=many,
                    batches=batches,
                    secret_file=secret,
                    progress=show,
                )
            else:
                of_rows += measure_rows(
                    spark,
                    place,
                    nodes=nodes,
                    levels=level,
                    rates=rates,
                    turns=turns,
                    seconds=seconds,
                    ahead=ahead,
                    secret_file=secret,
                    sessions=[node.group for node in cluster.nodes.values()],
                    progress=show,
                )
                write_json(out / "result.json", rows_document(of_rows, machine, nodes))
            bar.update(task, completed=number + 1)
    written = batches_document(of_batches, machine, nodes) if alone else rows_document(of_rows, machine, nodes)
    write_json(out / "result.json", written)
    if not alone:
        draw_latency(written["rows"], out / "latency.png")
    if as_json:
        print_json(written)
        return
    (_print_batches if alone else print_rows)(written, machine)
    click.echo(f"written to {out}: result.json{'' if alone else ', latency.png'}")


def _from_kafka(nodes: int, rates: Sequence[int], seconds: float, machine: Machine) -> dict[str, Any]:
    from holdfast_lab.benches.streaming.cluster import bench_cluster
    from holdfast_lab.benches.streaming.kafka_latency import measure_kafka

    rows = []
    with (
        progress() as bar,
        tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder,
        bench_cluster(nodes) as (_, spark),
    ):
        task = bar.add_task("measure", total=len(rates))
        for rate in rates:
            found = measure_kafka(
                spark,
                Path(folder) / str(rate),
                rate=rate,
                seconds=seconds,
                progress=lambda text: bar.update(task, description=text),
            )
            rows += [
                {
                    "workload": f"Kafka to Kafka, {one.rate:g} rows a second",
                    "side": "with checkpoints" if one.checkpoints else "without checkpoints",
                    "rate": one.rate,
                    "rows": len(one.nanoseconds),
                    **{f"p{share}_ms": one.quantile(share / 100) for share in (50, 95, 99)},
                    "batches": one.phases.batches,
                    "transactions": len(one.phases.transactions),
                    "phases_ms": one.phases.medians(),
                }
                for one in found
            ]
            bar.advance(task)
    return {"bench": "latency", "kafka": True, "nodes": nodes, "machine": asdict(machine), "rows": rows}


def _print_kafka(written: dict[str, Any], machine: Machine) -> None:
    print_table(
        f"Milliseconds until a reader of committed records has a row; load {machine.load:.1f} on {machine.cores} cores",
        ["workload", "side", "rows", "p50", "p95", "p99"],
        [
            (
                one["workload"],
                one["side"],
                f"{one['rows']:,}",
                *(f"{one[key]:,.0f}" for key in ("p50_ms", "p95_ms", "p99_ms")),
            )
            for one in written["rows"]
        ],
        right=(2, 3, 4, 5),
    )
    phases = list(written["rows"][0]["phases_ms"])
    print_table(
        "Phases of a row: milliseconds from the end of the phase before, median",
        ["side", "batches", "transactions", *phases],
        [
            (
                one["side"],
                f"{one['batches']:,}",
                f"{one['transactions']:,}",
                *(f"{one['phases_ms'][phase]:,.0f}" for phase in phases),
            )
            for one in written["rows"]
        ],
        right=tuple(range(1, 3 + len(phases))),
    )


def _side(exchange: str) -> str:
    return "holdfast" if exchange == "resident" else exchange


def rows_document(found: Sequence[RowLatency], machine: Machine, nodes: int) -> dict[str, Any]:
    """Return what is written and printed as JSON; `ratio`: how many times sooner than the other side, turn by turn."""
    from holdfast_lab.benches.streaming.row_latency import PHASES
    from holdfast_lab.benches.streaming.spread import median_with_interval

    rows = []
    for one in found:
        others = [two for two in found if (two.levels, two.rate) == (one.levels, one.rate) and two is not one]
        other = others[0] if others else one
        ratios = [theirs / mine for mine, theirs in zip(one.medians, other.medians, strict=True)]
        spread = median_with_interval(one.medians)
        many = sum(turn.rows for turn in one.turns)
        rows.append(
            {
                "workload": f"{one.levels} levels, {one.rate:g} rows a second",
                "side": _side(one.exchange),
                "levels": one.levels,
                "rate": one.rate,
                "rows_per_second": many / sum(turn.seconds for turn in one.turns),
                "cpu_seconds_per_million_rows": 1e6 * sum(turn.cpu_seconds for turn in one.turns) / many,
                "p50_ms": 1000 * one.quantile(0.5),
                "p95_ms": 1000 * one.quantile(0.95),
                "p99_ms": 1000 * one.quantile(0.99),
                "p50_least_ms": 1000 * spread.low,
                "p50_greatest_ms": 1000 * spread.high,
                "logged_to_visible_p50_ms": 1000 * one.after_logging(0.5),
                "logged_to_visible_p95_ms": 1000 * one.after_logging(0.95),
                "ratio": sorted(ratios)[len(ratios) // 2],
                "least_ratio": min(ratios),
                "greatest_ratio": max(ratios),
                "rows_per_batch": many / sum(turn.batches for turn in one.turns),
                "phases": {
                    phase: {
                        "mean_ms": 1000 * one.mean(phase),
                        **{f"p{share}_ms": 1000 * one.quantile(share / 100, phase) for share in (50, 95, 99)},
                    }
                    for phase in PHASES
                },
            }
        )
    return {"bench": "latency", "nodes": nodes, "machine": asdict(machine), "rows": rows}


def print_rows(written: dict[str, Any], machine: Machine) -> None:
    """Print a table for people."""
    print_table(
        f"Milliseconds from a row's creation to visible; load {machine.load:.1f} on {machine.cores} cores at the start",
        ["workload", "side", "p50 (of turns)", "p95", "p99", "means: wait+log+operators+publish", "logged on", "x"],
        [
            (
                one["workload"],
                one["side"],
                f"{one['p50_ms']:,.0f} ({one['p50_least_ms']:,.0f}-{one['p50_greatest_ms']:,.0f})",
                f"{one['p95_ms']:,.0f}",
                f"{one['p99_ms']:,.0f}",
                "+".join(f"{phase['mean_ms']:,.0f}" for phase in one["phases"].values()),
                f"{one['logged_to_visible_p50_ms']:,.0f}",
                f"{one['ratio']:.1f} ({one['least_ratio']:.1f}-{one['greatest_ratio']:.1f})",
            )
            for one in written["rows"]
        ],
        right=(2, 3, 4, 5, 6, 7),
    )


def batches_document(found: Sequence[Latency], machine: Machine, nodes: int) -> dict[str, Any]:
    """Return what is written and printed as JSON for batches alone."""
    rows = []
    for one in found:
        other = next(two for two in found if (two.levels, two.rows) == (one.levels, one.rows) and two is not one)
        rows.append(
            {
                "workload": f"{one.levels} levels, {one.rows} rows",
                "side": _side(one.exchange),
                "batches": len(one.published),
                "logged_ms": 1000 * sorted(one.logged)[len(one.logged) // 2],
                "p50_ms": 1000 * one.quantile(0.5),
                "p95_ms": 1000 * one.quantile(0.95),
                "p99_ms": 1000 * one.quantile(0.99),
                "ratio": other.quantile(0.5) / one.quantile(0.5),
            }
        )
    return {"bench": "latency", "alone": True, "nodes": nodes, "machine": asdict(machine), "rows": rows}


def _print_batches(written: dict[str, Any], machine: Machine) -> None:
    print_table(
        f"A batch alone, milliseconds; load {machine.load:.1f} on {machine.cores} cores at the start",
        ["workload", "side", "logged", "published p50", "p95", "p99", "times the other"],
        [
            (
                one["workload"],
                one["side"],
                *(f"{one[key]:.1f}" for key in ("logged_ms", "p50_ms", "p95_ms", "p99_ms", "ratio")),
            )
            for one in written["rows"]
        ],
        right=(2, 3, 4, 5, 6),
    )
