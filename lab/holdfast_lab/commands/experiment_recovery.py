"""`holdfast experiment recovery`: every strategy under the same failures (incremental recovery, Fig. 9-14)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.output import json_option, print_json, print_table, progress

if TYPE_CHECKING:
    from holdfast_lab.experiments.recovery.calibration import Comparison
    from holdfast_lab.experiments.recovery.drills import PlannedDrill


@click.command("recovery")
@click.option(
    "--figures", default="9,10,11,12,14", show_default=True, help="Which figures of incremental recovery to run."
)
@click.option(
    "--seed", default=1, show_default=True, type=click.IntRange(0), help="Seed of the input and of all faults."
)
@click.option("--spacing", default=15.0, show_default=True, help="Seconds between two replacement nodes.")
@click.option("--reuse/--again", default=True, show_default=True, help="Reuse the results of earlier drills in --out.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("out/recovery"),
    show_default=True,
    help="Directory for result.json, report.html, junit.xml, CSV, plots and the drills' own files.",
)
@json_option
def recovery(figures: str, seed: int, spacing: float, reuse: bool, out: Path, as_json: bool) -> None:
    """Compare strategies of recovery under the same failures on a cluster (incremental recovery, Fig. 9 to 14).

    Each figure is a few drills of two to three minutes; all of them take about fifty minutes. Fig. 13 comes from the
    drills of Fig. 12. Results of earlier drills in the directory are used again unless --again is given.

    \b
    Example:
      holdfast experiment recovery --figures 11
    """
    from holdfast.cli.result_files import make_directory, write_csv, write_json
    from holdfast.drill.cluster_pool import ClusterPool
    from holdfast.durable_files import replace_atomically
    from holdfast.errors import BadInput
    from holdfast.reports.junit import make_junit
    from holdfast.reports.page import make_page
    from holdfast_lab.experiments.recovery.drills import planned_drills
    from holdfast_lab.experiments.recovery.findings import find_claims, summary
    from holdfast_lab.experiments.recovery.report import experiment_report
    from holdfast_lab.experiments.recovery.reuse import run_or_reuse

    known = {9, 10, 11, 12, 13, 14}
    words = [word.strip() for word in figures.split(",") if word.strip()]
    if not words or any(not word.isdigit() or int(word) not in known for word in words):
        raise BadInput(f"{figures!r} is not a list of figures", field="--figures", remedy="name some of 9,10,11,12,14")
    wanted = {12 if word == "13" else int(word) for word in words}
    make_directory(out)
    planned = [one for one in planned_drills(seed, spacing) if one.figure in wanted]
    results: dict[str, dict[str, Any]] = {}
    with progress() as bar, ClusterPool() as clusters:
        task = bar.add_task("drills", total=len(planned))
        for one in planned:
            bar.update(task, description=one.name)
            results[one.name] = run_or_reuse(one.settings, out / one.name, clusters, reuse=reuse)
            bar.advance(task)
    rows = [summary(one.name, one.label, results[one.name]) for one in planned]
    claims = find_claims(results)
    constants, comparisons = calibrate(results, out)
    if constants is not None:
        write_json(out / "constants.json", constants)
    document = {
        "experiment": "recovery",
        "paper": "incremental recovery, Fig. 9 to 14",
        "seed": seed,
        "drills": rows,
        "constants": constants,
        "simulated": [
            {"drill": one.drill, "measured": one.measured, "simulated": one.simulated, "ratio": one.ratio}
            for one in comparisons
        ],
        "claims": [{"where": one.where, "paper": one.paper, "ours": one.ours, "holds": one.holds} for one in claims],
    }
    write_json(out / "result.json", document)
    write_csv(out / "drills.csv", rows)
    command = [
        "holdfast",
        "experiment",
        "recovery",
        "--figures",
        figures,
        "--seed",
        str(seed),
        "--spacing",
        f"{spacing:g}",
    ]
    made = experiment_report(planned, results, rows, claims, command)
    replace_atomically(out / "report.html", make_page(made).encode())
    replace_atomically(out / "junit.xml", make_junit([(made.title, made)]).encode())
    draw(planned, results, out)
    if as_json:
        print_json(document)
        return
    print_table(
        "Drills",
        [
            "drill",
            "verdict",
            "unavailability",
            "predicted",
            "late",
            "down, median s",
            "detected",
            "planned",
            "restored",
            "first output",
            "all back",
            "all level",
        ],
        [
            (
                row["drill"],
                row["verdict"],
                row["unavailability"],
                row["predicted"],
                row["late"],
                row["median_down_seconds"],
                row["detected_after"],
                row["planned_after"],
                row["first_restore_after"],
                row["first_output_after"],
                row["all_back_after"],
                row["level_after"],
            )
            for row in rows
        ],
        right=range(2, 12),
    )
    print_table(
        "Incremental recovery's claims, and ours",
        ["where", "paper", "here", "holds"],
        [(one.where, one.paper, one.ours, one.holds) for one in claims],
    )
    if comparisons:
        print_table(
            "The simulator beside the drills: priority x seconds without outputs",
            ["drill", "measured", "simulated", "ratio"],
            [
                (
                    f"{one.drill} (its constants)" if one.calibrated else one.drill,
                    one.measured,
                    one.simulated,
                    one.ratio,
                )
                for one in comparisons
            ],
            right=(1, 2, 3),
        )
        click.echo(f"Larger clusters: holdfast simulate recovery --nodes 100 --constants {out / 'constants.json'}")
    click.echo(f"Files in {out}")


def calibrate(results: dict[str, dict[str, Any]], out: Path) -> tuple[dict[str, float] | None, list[Comparison]]:
    """Take the simulator's constants from the incremental drill, and hold it beside all of Fig. 11 and 12."""
    from holdfast.drill.history import read_history
    from holdfast.drill.scenarios import find_scenario
    from holdfast_lab.experiments.recovery.calibration import (
        Comparison,
        constants_document,
        measure_constants,
        simulate_drill,
    )

    source = "fig11-incremental"
    if source not in results:
        return None, []
    histories = {}
    for name in results:
        path = out / name / "history.jsonl"
        if name.startswith(("fig11-", "fig12-")) and path.exists():
            with path.open(encoding="utf-8") as lines:
                histories[name] = read_history(lines, str(path))
    constants = measure_constants(results[source], histories[source])
    found = []
    for name, history in histories.items():
        topology = find_scenario(results[name]["scenario"]).application().topology()
        times = simulate_drill(results[name], history, topology, constants)
        if times is not None:
            measured = float(results[name]["unavailability"])
            found.append(Comparison(name, measured, times.unavailability, calibrated=name == source))
    return constants_document(constants), found


def draw(planned: list[PlannedDrill], results: dict[str, dict[str, Any]], out: Path) -> None:
    """Draw the figures whose drills were run."""
    from holdfast_lab.experiments.recovery.findings import latencies, mean_relative
    from holdfast_lab.plots.recovery import plot_available, plot_over_time, plot_strategies

    fault = planned[0].settings.fail_at
    by_figure: dict[int, list[PlannedDrill]] = {}
    for one in planned:
        by_figure.setdefault(one.figure, []).append(one)
    if 11 in by_figure:
        chosen = {one.label: results[one.name] for one in by_figure[11]}
        queries = len(next(iter(chosen.values()))["queries"])
        ends = {name: result["ended_at"] - 5.0 for name, result in chosen.items()}
        counts = {name: result["available"] for name, result in chosen.items()}
        plot_available(counts, queries, fault, ends, out / "fig11-available.png")
        plot_over_time(
            "Relative latency after a correlated failure",
            "incremental recovery, Fig. 11, on this machine: mean over the failed queries of those that had an output",
            {"": {name: mean_relative(result, failed=True) for name, result in chosen.items()}},
            fault,
            "relative latency",
            out / "fig11-latency.png",
        )
        plot_strategies(
            {name: result["unavailability"] for name, result in chosen.items()},
            {name: result.get("predicted_unavailability") or 0.0 for name, result in chosen.items()},
            out / "fig11-unavailability.png",
        )
    if 12 in by_figure:
        panels: dict[str, dict[str, Any]] = {"upstream": {}, "downstream": {}}
        normal: dict[str, dict[str, Any]] = {}
        for one in by_figure[12]:
            where = one.label.partition(", ")[2]
            panels[where][one.label.partition(",")[0]] = mean_relative(results[one.name], failed=True)
            if one.label.startswith("incremental"):
                normal[where] = {
                    "failed queries": mean_relative(results[one.name], failed=True),
                    "live queries": mean_relative(results[one.name], failed=False),
                }
        plot_over_time(
            "Failed queries after two nodes are killed",
            "incremental recovery, Fig. 12: nodes with the first operators, and nodes with the last",
            panels,
            fault,
            "relative latency",
            out / "fig12.png",
        )
        plot_over_time(
            "Live and failed queries, incremental recovery",
            "incremental recovery, Fig. 13: two nodes killed",
            normal,
            fault,
            "relative latency",
            out / "fig13.png",
        )
    if 14 in by_figure:
        orders: dict[str, dict[str, Any]] = {}
        for one in by_figure[14]:
            few, _, order = one.label.partition(", ")
            orders.setdefault(f"{order} order", {})[few] = mean_relative(results[one.name], failed=True)
        plot_over_time(
            "Failed queries after more nodes are killed, incremental recovery",
            "incremental recovery, Fig. 14: nodes with the last operators first, and with the first operators first",
            orders,
            fault,
            "relative latency",
            out / "fig14.png",
        )
    for figure, title in (
        (9, "Source replay after one failure or several"),
        (10, "Structured Streaming, and Holdfast, under the same kills"),
    ):
        if figure in by_figure:
            lines = {one.label: latencies(results[one.name]) for one in by_figure[figure]}
            plot_over_time(
                title,
                f"incremental recovery, Fig. {figure}, on this machine: the slowest output of each batch",
                {"": lines},
                fault,
                "latency, s",
                out / f"fig{figure}.png",
                log=False,
                level=None,
            )
