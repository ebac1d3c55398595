"""`holdfast experiment replication`: replica plans for two queries and random topologies (PPA, Fig. 13, 14)."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.output import json_option, print_json, print_table, progress

if TYPE_CHECKING:
    from holdfast_lab.experiments.replication import Claim, QueryPoint, RandomPoint, Summary


@click.command("replication")
@click.option(
    "--topologies",
    default=100,
    show_default=True,
    type=click.IntRange(1, 10_000),
    help="Random topologies per setting.",
)
@click.option(
    "--proven",
    default=0,
    show_default=True,
    type=click.IntRange(0, 10_000),
    help="Topologies per setting that are also planned exactly; slow.",
)
@click.option("--processes", default=2, show_default=True, type=click.IntRange(1, 256), help="Worker processes.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("out/replication"),
    show_default=True,
    help="Directory for result.json, CSV and plots.",
)
@json_option
def replication(topologies: int, proven: int, processes: int, out: Path, as_json: bool) -> None:
    """Compare structure-aware, greedy and DP replica plans (PPA, Fig. 13 and 14 a-d).

    Fig. 13: the queries Q1 (hot-pages) and Q2 (incidents) at every budget. Fig. 14: random topologies that differ in
    workload, parallelism, partitioning and joins. Takes some minutes with 100 topologies.

    \b
    Example:
      holdfast experiment replication --topologies 10
    """
    from holdfast.cli.result_files import make_directory, write_csv, write_json
    from holdfast_lab.experiments.replication import (
        SETTINGS,
        claims,
        distinct_settings,
        run_queries,
        run_random,
        summaries,
    )

    make_directory(out)
    queries = run_queries()
    points: list[RandomPoint] = []
    with progress() as bar:
        task = bar.add_task("topologies", total=topologies * distinct_settings())
        for found in run_random(topologies, processes, proven):
            points += found
            bar.advance(task)
    curves = summaries(points)
    compared = claims(queries, curves)
    document = {
        "experiment": "replication",
        "paper": "PPA, Fig. 13 and 14 a-d",
        "topologies": topologies,
        "settings": [{"panel": one.panel, "setting": one.label, **dict(one.recipe)} for one in SETTINGS],
        "claims": [asdict(one) for one in compared],
        "queries": [asdict(one) for one in queries],
        "random": [asdict(one) for one in curves],
    }
    write_json(out / "result.json", document)
    write_csv(out / "fig13.csv", [_flat(one) for one in queries])
    write_csv(out / "fig14.csv", [_flat(one) for one in points])
    write_csv(out / "fig14-means.csv", [_flat(one) for one in curves])
    _plot(queries, curves, topologies, out)
    if as_json:
        print_json(document)
    else:
        _print(queries, curves, compared)
        click.echo(f"written to {out}/: result.json, fig13.csv, fig14.csv, fig14-means.csv, fig13.png, fig14.png")


def _flat(point: QueryPoint | RandomPoint | Summary) -> dict[str, object]:
    """Write what is given by algorithm as one column each."""
    row: dict[str, object] = {}
    for name, value in asdict(point).items():
        row |= value if isinstance(value, dict) else {name: value}
    return row


def _plot(queries: list[QueryPoint], curves: list[Summary], topologies: int, out: Path) -> None:
    from holdfast_lab.experiments.replication import PANELS, QUERIES, SETTINGS
    from holdfast_lab.plots.replication import plot_queries, plot_random

    names = {"dp": "dp", "structure-aware": "structure-aware", "greedy": "greedy"}
    plot_queries(
        {
            f"{query}: {name}": [
                (
                    label,
                    [p.budget for p in queries if p.query == query],
                    [p.fidelity[a] for p in queries if p.query == query],
                )
                for a, label in names.items()
            ]
            for query, name in QUERIES.items()
        },
        out / "fig13.png",
    )
    panels = {}
    for panel, title in PANELS.items():
        pairs = []
        for setting in (one.label for one in SETTINGS if one.panel == panel):
            those = [one for one in curves if (one.panel, one.setting) == (panel, setting)]
            ratios = [one.ratio for one in those]
            pairs.append(
                (
                    (f"{setting}: structure-aware", ratios, [one.mean["structure-aware"] for one in those]),
                    (f"{setting}: greedy", ratios, [one.mean["greedy"] for one in those]),
                )
            )
        panels[f"{panel}: {title}"] = pairs
    plot_random(panels, topologies, out / "fig14.png")


def _print(queries: list[QueryPoint], curves: list[Summary], compared: list[Claim]) -> None:
    print_table(
        "Fig. 13: fidelity by budget",
        ("query", "replicas", "dp", "structure-aware", "as printed", "greedy"),
        [
            (one.query, one.budget, *(one.fidelity[name] for name in ("dp", "structure-aware", "printed", "greedy")))
            for one in queries
        ],
        right=(1, 2, 3, 4, 5),
    )
    print_table(
        "Fig. 14: mean fidelity by share of partitions replicated",
        ("", "setting", "share", "structure-aware", "as printed", "greedy", "times greedy", "greedy 0", "below exact"),
        [
            (
                one.panel,
                one.setting,
                one.ratio,
                one.mean["structure-aware"],
                one.mean["printed"],
                one.mean["greedy"],
                one.ratio_of_means,
                f"{one.greedy_nothing}/{one.topologies}",
                None if one.below_exact is None else f"{one.below_exact:.2%}",
            )
            for one in curves
        ],
        right=(2, 3, 4, 5, 6, 7, 8),
    )
    print_table(
        "The paper's claims beside ours",
        ("figure", "paper", "ours", "agrees"),
        [(one.figure, one.paper, one.ours, one.agrees) for one in compared],
    )
