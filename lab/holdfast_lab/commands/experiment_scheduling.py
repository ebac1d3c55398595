"""`holdfast experiment scheduling`: recovery plans on random topologies (incremental recovery, Fig. 15, 2 and 6)."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import click

from holdfast.cli.output import json_option, print_json, print_table, progress


@click.command("scheduling")
@click.option(
    "--topologies",
    default=100,
    show_default=True,
    type=click.IntRange(1, 10_000),
    help="Random topologies per setting.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("out/scheduling"),
    show_default=True,
    help="Directory for result.json, CSV and plots.",
)
@click.option("--processes", default=2, show_default=True, type=click.IntRange(1, 256), help="Worker processes.")
@json_option
def scheduling(topologies: int, out: Path, processes: int, as_json: bool) -> None:
    """Compare DP, BestDensity, operator-centric and exact recovery plans (incremental recovery, Fig. 15 a-c).

    18 queries that share partitions, all failed; share frequency, skew and priorities vary. Also the cost of waiting
    for each strategy while eight nodes arrive within two to six minutes. Takes some minutes with 100 topologies.

    \b
    Example:
      holdfast experiment scheduling --topologies 10
    """
    from holdfast.cli.result_files import make_directory, write_csv, write_json
    from holdfast_lab.experiments.scheduling import (
        ALGORITHMS,
        PANEL_TITLES,
        PERCENTAGES,
        SETTINGS,
        gaps,
        mean_restored,
        run_arrivals,
        run_scheduling,
        scheduling_claims,
        scheduling_jobs,
    )
    from holdfast_lab.plots.scheduling import plot_scheduling, plot_unavailability

    make_directory(out)
    points, arrivals = [], []
    with progress() as bar:
        task = bar.add_task("plans", total=len(scheduling_jobs(topologies)))
        for found in run_scheduling(topologies, processes):
            points += found
            bar.advance(task)
        task = bar.add_task("arrivals", total=topologies + 1)
        for one in run_arrivals(topologies):
            arrivals.append(one)
            bar.advance(task)
    means = {
        (setting.panel, setting.label, name): mean_restored(points, setting.panel, setting.label, name)
        for setting in SETTINGS
        for name in ALGORITHMS
    }
    claims = scheduling_claims(points, arrivals)
    drawn = [one.unavailability for one in arrivals if one.topology != "incremental-fig2"]
    waiting = {name: fmean(one[name] for one in drawn) for name in drawn[0]}
    summary = [
        {"panel": panel, "setting": label, "algorithm": name, "percent": percent, "restored": value}
        for (panel, label, name), values in means.items()
        for percent, value in values.items()
    ]
    document = {
        "experiment": "scheduling",
        "paper": "incremental recovery, Fig. 15 a-c, 2 and 6",
        "topologies": topologies,
        "settings": [{"panel": one.panel, "setting": one.label, "queries": 18, **dict(one.recipe)} for one in SETTINGS],
        "mean_restored": summary,
        "best_density_below_exact": {"mean": fmean(gaps(points)), "greatest": max(gaps(points))},
        "proved": sum(one.optimal for one in points),
        "cases": len(points),
        "unavailability": {"figure_2": dict(arrivals[0].unavailability), "random_mean": waiting},
        "claims": [{"where": one.where, "paper": one.paper, "ours": one.ours, "holds": one.holds} for one in claims],
    }
    write_json(out / "result.json", document)
    write_csv(out / "mean_restored.csv", summary)
    write_csv(
        out / "points.csv",
        [
            {"panel": one.panel, "setting": one.label, "seed": one.seed, "percent": one.percent, **one.restored}
            for one in points
        ],
    )
    write_csv(
        out / "unavailability.csv",
        [{"topology": one.topology, "seed": one.seed, **one.unavailability} for one in arrivals],
    )
    panels = {
        panel: (
            title,
            {
                setting.label: {name: means[panel, setting.label, name] for name in ALGORITHMS}
                for setting in SETTINGS
                if setting.panel == panel
            },
        )
        for panel, title in PANEL_TITLES.items()
    }
    plot_scheduling(panels, topologies, out / "fig15.png")
    plot_unavailability(waiting, topologies, out / "unavailability.png")
    if as_json:
        print_json(document)
        return
    for panel, title in PANEL_TITLES.items():
        print_table(
            f"({panel}) {title}: priority restored, %, mean of {topologies} topologies",
            ["setting", "algorithm", *(f"{percent} %" for percent in PERCENTAGES)],
            [
                (label, name, *(f"{100 * values[percent]:.1f}" for percent in PERCENTAGES))
                for (where, label, name), values in means.items()
                if where == panel
            ],
            right=tuple(range(2, 2 + len(PERCENTAGES))),
        )
    print_table(
        "Unavailability: priority x seconds until back",
        ["strategy", "Fig. 2, a node a minute", "random, 2 to 6 minutes (mean)"],
        [(name, arrivals[0].unavailability[name], waiting[name]) for name in waiting],
        right=(1, 2),
    )
    print_table(
        "The paper's claims beside ours",
        ["where", "incremental recovery", "here", "holds"],
        [(one.where, one.paper, one.ours, one.holds) for one in claims],
    )
    click.echo(f"{document['proved']} of {len(points)} optima proved; files in {out}")
