"""`holdfast experiment tentative`: how good tentative outputs are, how soon they begin, what it costs (PPA)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from holdfast.cli.output import json_option, print_json, print_table, progress

KNOWN = ("headline", "7", "8", "9", "10", "12", "13")


@click.command("tentative")
@click.option("--figures", default=",".join(KNOWN), show_default=True, help="Which figures to run; 12 runs 13 too.")
@click.option("--quick", is_flag=True, help="Fewer budgets, shorter inputs, and one window, rate and interval each.")
@click.option("--seed", default=1, show_default=True, type=click.IntRange(0), help="Seed of inputs and faults.")
@click.option(
    "--rows",
    default="800,1600",
    show_default=True,
    help="Input rates of the tree of merges in rows a second, for Fig. 7 to 10.",
)
@click.option(
    "--most", default=1000, show_default=True, type=click.IntRange(1), help="New drills after which the command ends."
)
@click.option("--reuse/--again", default=True, show_default=True, help="Reuse what earlier runs left in --out.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("out/tentative"),
    show_default=True,
    help="Directory for result.json, CSV, plots and the drills' own files.",
)
@json_option
def tentative(
    figures: str, quick: bool, seed: int, rows: str, most: int, reuse: bool, out: Path, as_json: bool
) -> None:
    """Measure tentative outputs, recovery and checkpoints as PPA does: Fig. 7 to 10, 12 and 13, and its headline.

    Fig. 12 and 13 (fidelity and completeness against measured accuracy) and Fig. 9 (what checkpoints cost) run in one
    process. Fig. 7, 8, 10 and the headline are drills of one to two minutes on an embedded cluster. Finished
    drills stay in --out: the same command continues where it was interrupted, and --most ends it after that many new
    drills.

    \b
    Example:
      holdfast experiment tentative --figures 12,13 --quick
    """
    from holdfast.cli.result_files import make_directory, write_csv, write_json
    from holdfast.errors import BadInput

    wanted = {word.strip() for word in figures.split(",") if word.strip()}
    if not wanted or not wanted <= set(KNOWN):
        raise BadInput(
            f"{figures!r} is not a list of figures", field="--figures", remedy=f"name some of {','.join(KNOWN)}"
        )
    try:
        rates = tuple(int(word) for word in rows.split(","))
        if not rates or min(rates) < 1:
            raise ValueError
    except ValueError:
        raise BadInput(f"{rows!r} is not a list of rates", field="--rows", remedy="write like 800,1600") from None
    make_directory(out)
    claims: list[dict[str, Any]] = []
    document: dict[str, Any] = {"experiment": "tentative", "paper": "PPA, Fig. 7 to 10, 12, 13", "seed": seed}
    if wanted & {"12", "13"}:
        found = _accuracy(out, seed, quick=quick, reuse=reuse)
        document["accuracy"] = found["points"]
        claims += found["claims"]
        write_csv(out / "accuracy.csv", [{**one, "replicas": len(one["replicas"])} for one in found["points"]])
    if "9" in wanted:
        document["price"] = _price(out, seed, rates[0], quick=quick, reuse=reuse)
        from holdfast_lab.experiments.tentative.price import findings as price_findings

        claims += price_findings(document["price"])
    drills = _drills(out, seed, rates, wanted, quick=quick, reuse=reuse, most=most)
    if drills:
        from holdfast_lab.experiments.tentative.latency import findings as latency_findings

        document["drills"] = drills
        claims += latency_findings(drills)
        write_csv(out / "drills.csv", drills)
    document["claims"] = claims
    write_json(out / "result.json", document)
    _plot(document, out)
    if as_json:
        print_json(document)
    else:
        _print(document)
        click.echo(f"written to {out}/: result.json, CSV and plots")


def _held(path: Path, settings: Mapping[str, Any], *, reuse: bool) -> dict[str, Any] | None:
    """Return what an earlier run with the same settings left."""
    if not reuse or not path.exists():
        return None
    found: dict[str, Any] = json.loads(path.read_text())
    return found if found.get("settings") == settings else None


def _accuracy(out: Path, seed: int, *, quick: bool, reuse: bool) -> dict[str, Any]:
    from holdfast.cli.result_files import write_json
    from holdfast.cli.solver_output import solver_messages_on_stderr
    from holdfast_lab.experiments.tentative.accuracy import (
        PLANNERS,
        QUERIES,
        QUICK_SHARES,
        SHARES,
        Point,
        findings,
        points,
        workload,
    )

    shares = QUICK_SHARES if quick else SHARES
    sizes = {"Q1": (60, 4000), "Q2": (420, 1500)} if quick else {"Q1": (120, 20_000), "Q2": (600, 5000)}
    found: list[Point] = []
    for query in QUERIES:
        seconds, rows = sizes[query]
        settings = {"seed": seed, "seconds": seconds, "rows": rows, "shares": list(shares), "planners": list(PLANNERS)}
        place = out / f"accuracy-{query}.json"
        held = _held(place, settings, reuse=reuse)
        if held is None:
            with progress() as bar, solver_messages_on_stderr():
                task = bar.add_task(f"{query}: plans", total=len(shares) * len(PLANNERS))
                mine = []
                for one in points(workload(query, seed, seconds, rows), shares, list(PLANNERS)):
                    mine.append(one)
                    bar.advance(task)
            held = {"settings": settings, "points": [one.document() for one in mine]}
            write_json(place, held)
        found += [Point(**{**one, "replicas": tuple(one["replicas"])}) for one in held["points"]]
    return {"points": [one.document() for one in found], "claims": findings(found)}


def _price(out: Path, seed: int, rows: int, *, quick: bool, reuse: bool) -> list[dict[str, Any]]:
    from holdfast.cli.result_files import write_json
    from holdfast_lab.experiments.tentative.price import measure

    seconds, repeats = (40, 3) if quick else (90, 5)
    settings = {"seed": seed, "rows": rows, "seconds": seconds, "repeats": repeats}
    place = out / "price.json"
    held = _held(place, settings, reuse=reuse)
    if held is None:
        held = {"settings": settings, "price": measure(seed, rows, seconds, repeats)}
        write_json(place, held)
    found: list[dict[str, Any]] = held["price"]
    return found


def _drills(
    out: Path, seed: int, rates: Sequence[int], wanted: set[str], *, quick: bool, reuse: bool, most: int
) -> list[dict[str, Any]]:
    from holdfast.drill.cluster_pool import ClusterPool
    from holdfast_lab.experiments.recovery.reuse import is_there, run_or_reuse
    from holdfast_lab.experiments.tentative.latency import cells, summary

    asked = [
        one for one in cells(seed, rates, quick=quick) if (str(one.figure) if one.figure else "headline") in wanted
    ]
    found = []
    if not asked:
        return []
    with progress() as bar, ClusterPool() as clusters:
        task = bar.add_task("drills", total=len(asked))
        for one in asked:
            bar.update(task, description=one.name)
            there = reuse and is_there(one.settings, out / one.name)
            if there or most > 0:
                most -= not there
                found.append(summary(one, run_or_reuse(one.settings, out / one.name, clusters, reuse=reuse)))
            bar.advance(task)
    return found


def _plot(document: Mapping[str, Any], out: Path) -> None:
    from holdfast_lab.plots.tentative import plot_accuracy, plot_latency, plot_price

    if points := document.get("accuracy"):

        def line(query: str, planner: str, value: str, name: str) -> tuple[str, list[float], list[float]]:
            mine = [one for one in points if (one["query"], one["planner"]) == (query, planner)]
            return name, [one["budget"] for one in mine], [one[value] for one in mine]

        queries = list(dict.fromkeys(one["query"] for one in points))
        plot_accuracy(
            "Fidelity and completeness against accuracy",
            "PPA, Fig. 12",
            {
                query: [
                    (
                        line(query, "structure-aware", "accuracy", "accuracy of plans for fidelity"),
                        line(query, "structure-aware", "fidelity", "fidelity"),
                    ),
                    (
                        line(query, "completeness", "accuracy", "accuracy of plans for completeness"),
                        line(query, "completeness", "completeness", "completeness"),
                    ),
                ]
                for query in queries
            },
            out / "fig12.png",
        )
        plot_accuracy(
            "Accuracy of replica plans by planner",
            "PPA, Fig. 13",
            {
                query: [
                    (line(query, name, "accuracy", name), line(query, name, "fidelity", f"{name}, fidelity"))
                    for name in ("structure-aware", "dp", "greedy", "exact")
                ]
                for query in queries
            },
            out / "fig13.png",
        )
    if price := document.get("price"):
        plot_price(price, out / "fig9.png")
    if drills := document.get("drills"):
        plot_latency(drills, out / "recovery.png")


def _print(document: Mapping[str, Any]) -> None:
    if points := document.get("accuracy"):
        print_table(
            "Fig. 12 and 13: predicted and measured",
            ("query", "planner", "replicas", "fidelity", "completeness", "accuracy"),
            [
                (one["query"], one["planner"], one["budget"], one["fidelity"], one["completeness"], one["accuracy"])
                for one in points
            ],
            right=(2, 3, 4, 5),
        )
    if price := document.get("price"):
        print_table(
            "Fig. 9: CPU of checkpoints",
            ("interval s", "CPU s", "without", "ratio"),
            [(one["interval"], one["cpu_seconds"], one["without"], one["ratio"]) for one in price],
            right=(0, 1, 2, 3),
        )
    if drills := document.get("drills"):
        times = ["detected_after", "tentative_after", "recovered_after", "sooner"]
        names = ["cell", "verdict", *times, "fidelity_predicted", "accuracy"]
        print_table("Drills", names, [tuple(one[name] for name in names) for one in drills], right=(2, 3, 4, 5, 6, 7))
    print_table(
        "The paper's claims beside ours",
        ("figure", "paper", "ours", "agrees"),
        [(one["figure"], one["paper"], one["ours"], one["agrees"]) for one in document["claims"]],
    )
