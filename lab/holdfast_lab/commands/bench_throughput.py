"""`holdfast bench throughput`: rows per second and CPU against Structured Streaming, side by side on one cluster."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.output import json_option, print_json, print_table, progress

if TYPE_CHECKING:
    from holdfast_lab.benches.streaming.cluster import Machine
    from holdfast_lab.benches.streaming.flink_count import FlinkCount
    from holdfast_lab.benches.streaming.throughput import Comparison

NAMES = ("count", "traffic", "hashtags")
SIDES = ("holdfast", "logged", "shuffle", "structured-streaming", "pyarrow")
IN_PLACE = ("in-place", "in-place-csv", "in-place-json", "in-place-kafka")


@click.command("throughput")
@click.option("--workloads", default=",".join(NAMES), show_default=True, metavar="NAME,…", help="Workloads to compare.")
@click.option("--sides", default=",".join(SIDES), show_default=True, metavar="NAME,…", help="Sides to compare.")
@click.option("--rows", default="100000,1000000", show_default=True, metavar="N,…", help="Rows per batch.")
@click.option(
    "--batches",
    default=4,
    show_default=True,
    type=click.IntRange(1),
    help="Batches of a turn of the first size; larger ones have fewer.",
)
@click.option(
    "--marginal",
    default="6,24",
    show_default=True,
    metavar="SMALL,LARGE",
    help="Sizes in million rows between which CPU per row is measured, on the first workload; none: not measured.",
)
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
@click.option(
    "--flink", is_flag=True, help="Beside it, the first workload (count) on Flink 2.3, for the --marginal sizes."
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
    sides: str,
    rows: str,
    batches: int,
    marginal: str,
    rounds: int,
    nodes: int,
    files: int | None,
    state_store: str,
    flink: bool,
    seed: int,
    quick: bool,
    out: Path,
    as_json: bool,
) -> None:
    """Compare rows per second with Structured Streaming: the same outputs from the same files on the same cluster.

    All sides read the same Parquet files, in batches of the same rows, and write Parquet: Holdfast with tasks that stay
    (holdfast), the same from rows that are logged already (logged), Holdfast through Spark's shuffle (shuffle),
    Structured Streaming, and the operators alone in one process without any engine (pyarrow). They are warmed up, stay
    running and alternate; the result is the ratio within a round, with its median and spread, and CPU seconds of
    cluster and driver. At the end every output is compared row by row; one that differs fails the bench. Structured
    Streaming gets one query for each output, as many shuffle partitions as nodes, and JVMs with all compilers.

    Ratios and rows are against Structured Streaming, or, where it is not among the sides, against the first one.

    Further sides are Holdfast with sources that its partitions read in place: in-place (the same Parquet files),
    in-place-csv, in-place-json and in-place-kafka (the same rows; a broker is started for the last).

    With --flink, Flink SQL (apache-flink from PyPI, in an environment of its own that is made on demand) counts the
    same rows from CSV files, warm, with checkpoints every 10 s: one TaskManager with two slots, and four with one.

    Marginal CPU seconds, by kind of process, are what a million rows more cost each side: the CPU of a large size less
    that of a small one, by the rows between them.

    \b
    Example:
      holdfast bench throughput --workloads count,traffic --rounds 7
    """
    from holdfast.cli.number_lists import read_numbers
    from holdfast.cli.result_files import make_directory, write_csv, write_json
    from holdfast.errors import BadInput, CheckFailed
    from holdfast_lab.benches.streaming.cluster import bench_cluster, this_machine
    from holdfast_lab.benches.streaming.flink_count import measure_flink
    from holdfast_lab.benches.streaming.throughput import AGAINST, compare
    from holdfast_lab.benches.streaming.workloads import WORKLOADS
    from holdfast_lab.commands.name_lists import read_names
    from holdfast_lab.kafka_broker import KafkaBroker
    from holdfast_lab.plots.performance import draw_throughput

    wanted = read_names(workloads, WORKLOADS, "--workloads")
    compared = read_names(sides, (*SIDES, *IN_PLACE), "--sides")
    if quick:
        rows, batches, rounds, marginal = "2000", 2, 2, "0.004,0.012"
    sizes = [int(number) for number in read_numbers(rows, "--rows")]
    between = None if marginal == "none" else [int(1e6 * number) for number in read_numbers(marginal, "--marginal")]
    if between is not None and (len(between) != 2 or between[0] >= between[1]):
        raise BadInput(
            f"{marginal!r} is not two sizes", field="--marginal", remedy="write the smaller first, like 6,24"
        )
    # Every run of tasks that stay holds a core of each executor, and jobs that read sources need one.
    cores = max(2, 1 + len({"holdfast", "logged", *IN_PLACE} & set(compared)))
    make_directory(out)
    machine = this_machine()
    found: list[Comparison] = []
    of_flink: list[FlinkCount] = []
    with ExitStack() as held, progress() as bar, tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        servers = held.enter_context(KafkaBroker()).servers if "in-place-kafka" in compared else ""
        points = [(name, size) for name in wanted for size in sizes]
        task = bar.add_task("start the cluster", total=len(points))
        with bench_cluster(nodes, cores=cores) as (cluster, spark):
            for number, (name, size) in enumerate(points):
                found.append(
                    compare(
                        WORKLOADS[name],
                        spark,
                        Path(folder) / str(number),
                        rows=size,
                        batches=max(1, batches * sizes[0] // size),
                        rounds=rounds,
                        files_per_batch=files or nodes,
                        state_store=state_store,
                        seed=seed,
                        sides=compared,
                        sessions=[node.group for node in cluster.nodes.values()],
                        secret_file=cluster.secret_file,
                        marginal=(between[0], between[1]) if between is not None and number == 0 else None,
                        servers=servers,
                        progress=lambda text: bar.update(task, description=text),
                    )
                )
                bar.advance(task)
                write_json(out / "result.json", document(found, machine, {}))
        if flink and between is not None:
            of_flink = measure_flink(
                Path(folder),
                between[0],
                between[1],
                batch_rows=sizes[0],
                seed=seed,
                progress=lambda text: bar.update(task, description=text),
            )
    given = {
        "batch_rows": sizes,
        "batches": batches,
        "rounds": rounds,
        "nodes": nodes,
        "files": files or nodes,
        "seed": seed,
    }
    written = document(
        found, machine, {**given, "state_store": state_store, "flink": [_flink(one) for one in of_flink]}
    )
    write_json(out / "result.json", written)
    write_csv(out / "rounds.csv", turns_of(found))
    if AGAINST in compared:
        draw_throughput(written, out / "throughput.png")
    if as_json:
        print_json(written)
    else:
        print_comparisons(found, machine)
        if of_flink:
            _print_flink(of_flink)
        click.echo(f"written to {out}: result.json, rounds.csv{', throughput.png' if AGAINST in compared else ''}")
    for one in found:
        for output, problem in one.different.items():
            raise CheckFailed(f"output {output} differs: {problem}", where=f"bench throughput, {one.workload}")


def document(found: list[Comparison], machine: Machine, given: dict[str, Any]) -> dict[str, Any]:
    """Return what is written and printed as JSON."""
    return {
        "bench": "throughput",
        "machine": asdict(machine),
        **given,
        "rows": [
            {
                "workload": _named(one),
                "side": side,
                "batch_rows": one.batch_rows,
                "rows_per_second": one.rows_per_second(side),
                "cpu_seconds_per_million_rows": one.cpu_per_million(side),
                "ratio": one.ratio(side),
                "least_ratio": one.ratios(side)[0],
                "greatest_ratio": one.ratios(side)[1],
            }
            for one in found
            for side in one.sides
        ],
        "marginal": [
            {
                "workload": _named(one),
                "side": side,
                "small_rows": more.small,
                "large_rows": more.large,
                "cpu_seconds_per_million_rows": more.seconds,
                "low": more.chunks.low,
                "high": more.chunks.high,
                "turns": more.chunks.count,
                "times_pyarrow": _times(
                    more.seconds, one.marginal["pyarrow"].seconds if "pyarrow" in one.marginal else 0.0
                ),
                "kinds": dict(more.kinds),
            }
            for one in found
            for side, more in one.marginal.items()
        ],
        "workloads": [
            {
                "name": _named(one),
                "title": one.title,
                "structured_streaming_queries": one.queries,
                "sides": list(one.sides),
                "target": one.target,
                "output_rows": one.output_rows,
                "equal_outputs": not one.different,
                "different": one.different,
                "rounds": [asdict(turn) for turn in one.rounds],
            }
            for one in found
        ],
    }


def _flink(one: FlinkCount) -> dict[str, Any]:
    return {
        "name": one.name,
        "small_rows": one.small,
        "large_rows": one.large,
        "rows_per_second": one.rows_per_second,
        "marginal_rows_per_second": one.marginal_rows_per_second,
        "cpu_seconds_per_million_rows": one.cpu_per_million,
        "jobs": [asdict(job) for job in one.jobs],
    }


def _print_flink(found: list[FlinkCount]) -> None:
    print_table(
        f"Flink SQL, the windowed count over CSV: {found[0].small:,} and {found[0].large:,} rows, all counts right",
        ["TaskManagers x slots", "rows/s", "marginal rows/s", "marginal CPU s per million rows"],
        [
            (
                one.name,
                f"{one.rows_per_second:,.0f}",
                f"{one.marginal_rows_per_second:,.0f}",
                f"{one.cpu_per_million:.2f}",
            )
            for one in found
        ],
        right=(1, 2, 3),
    )


def _times(seconds: float, other: float) -> float | None:
    """Return how many times as much CPU one side took; None where the other took too little for the clock."""
    return seconds / other if other > 0 else None


def _named(one: Comparison) -> str:
    return f"{one.workload}, batches of {one.batch_rows:,}"


def turns_of(found: list[Comparison]) -> list[dict[str, Any]]:
    """Return one line for each turn of each side."""
    return [
        {
            "workload": one.workload,
            "batch_rows": one.batch_rows,
            "round": turn.number,
            "side": side,
            "rows": turn.rows,
            "batches": turn.batches,
            "seconds": turn.seconds[side],
            "cpu_seconds": turn.cpu[side],
            "ratio": turn.ratio(side),
            "first": turn.first == side,
        }
        for one in found
        for turn in one.rounds
        for side in one.sides
    ]


def print_comparisons(found: list[Comparison], machine: Machine) -> None:
    """Print a table for people."""
    from holdfast_lab.benches.streaming.throughput import AGAINST

    print_table(
        f"Median of {len(found[0].rounds)} rounds; {machine.cores} cores, load {machine.load:.1f}",
        ["workload", "side", "rows/s", f"x {found[0].against}", "target", "CPU s per million rows", "rows equal"],
        [
            (
                _named(one),
                side,
                f"{one.rows_per_second(side):,.0f}",
                f"{one.ratio(side):.1f} ({one.ratios(side)[0]:.1f}-{one.ratios(side)[1]:.1f})",
                one.target if side == "holdfast" and one.against == AGAINST else "",
                f"{one.cpu_per_million(side):.1f}",
                f"{one.output_rows:,}" if not one.different else "NO",
            )
            for one in found
            for side in one.sides
        ],
        right=(2, 3, 4, 5, 6),
    )
    for one in found:
        if one.marginal:
            kinds = list(dict.fromkeys(kind for more in one.marginal.values() for kind in more.kinds))
            first = next(iter(one.marginal.values()))
            print_table(
                f"Marginal CPU seconds per million rows, {_named(one)}: {first.small:,} to {first.large:,} rows",
                ["side", "all", "turns", *kinds],
                [
                    (
                        side,
                        f"{more.seconds:.2f}",
                        f"{more.chunks.low:.2f}-{more.chunks.high:.2f}",
                        *(f"{more.kinds.get(kind, 0.0):.2f}" for kind in kinds),
                    )
                    for side, more in one.marginal.items()
                ],
                right=tuple(range(1, 3 + len(kinds))),
            )
