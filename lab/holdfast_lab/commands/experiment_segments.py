"""`holdfast experiment segments`: the statements of FastRecover, chapter 4, beside our figures."""

from __future__ import annotations

from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.output import json_option, print_json, print_table, progress

if TYPE_CHECKING:
    from holdfast_lab.experiments.segments.run import Result


@click.command("segments")
@click.option(
    "--topologies",
    type=click.IntRange(1, 10_000),
    default=20,
    show_default=True,
    help="Random topologies a point; the paper has 1,000.",
)
@click.option("--only", multiple=True, metavar="SWEEP", help="Only this sweep, like chain-bandwidth; repeatable.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("out/segments"),
    show_default=True,
    help="Directory for result.json, CSV files and plots.",
)
@json_option
def segments(topologies: int, only: tuple[str, ...], out: Path, as_json: bool) -> None:
    """Compare segment planners on random chains and trees (FastRecover, Fig. 4.1 to 4.14, and beyond them).

    FastRecover, NSegments and 1Segment plan on the same grid, our planners without a grid. Every parameter of the paper
    is varied, and the bandwidth, which the paper does not print. Takes a few minutes.

    \b
    Examples:
      holdfast experiment segments
      holdfast experiment segments --topologies 200 --only chain-bandwidth
    """
    from holdfast.cli.result_files import make_directory, write_csv, write_json
    from holdfast_lab.experiments.segments.run import chosen_sweeps, run, steps_of
    from holdfast_lab.plots.segments import draw_segments

    sweeps = chosen_sweeps(only)
    make_directory(out)
    with progress() as bar:
        task = bar.add_task("plan", total=steps_of(sweeps, topologies, whole=not only))
        result = run(topologies, only, lambda: bar.advance(task))
    document = result.document()
    write_json(out / "result.json", document)
    write_csv(
        out / "points.csv",
        [
            {"sweep": sweep["name"], "figure": sweep["figure"], **_flat(point)}
            for sweep in document["sweeps"]
            for point in sweep["points"]
        ],
    )
    for name in ("claims", "running_times", "dag_search"):
        if document[name]:
            write_csv(out / f"{name.replace('_', '-')}.csv", document[name])
    pictures = draw_segments(document, out)
    if as_json:
        print_json(document)
        return
    _print(result)
    click.echo(f"written to {out}: result.json, CSV files, {', '.join(path.name for path in pictures) or 'no plots'}")


def _flat(point: dict[str, Any]) -> dict[str, Any]:
    """Write ranges as low-high, so that a line of CSV has one value a column."""
    return {key: f"{value[0]:g}-{value[1]:g}" if isinstance(value, tuple) else value for key, value in point.items()}


def _print(result: Result) -> None:
    for sweep in result.sweeps:
        print_table(
            f"{sweep.name} ({sweep.figure}), {result.topologies} topologies a point",
            (
                sweep.label, "FR", "NSeg", "no NSeg", "1Seg", "FR<NSeg", "FR<1Seg", "auto", "refined", "printed",
                "compute", "latency",
            ),
            [
                (
                    f"{value[0]:g}-{value[1]:g}" if isinstance(value, tuple) else f"{value:g}",
                    _number(point.fast_recover), _number(point.n_segments), _share(point.n_infeasible),
                    _number(point.one_segment), _share(point.less_than_n), _share(point.less_than_one),
                    _number(point.auto), _share(-point.refined_gain), _share(point.printed_gap),
                    _number(point.computing), _number(point.latency),
                )
                for value, point in zip(sweep.values, result.points[sweep.name], strict=True)
            ],
            right=range(12),
        )  # fmt: skip
    if result.timings:
        print_table(
            "Time to plan one topology (Fig. 4.13 and 4.14), milliseconds",
            ("figure", "varied", "value", "as printed", "ours", "times as fast"),
            [
                (t.figure, t.varied, t.value, 1000 * t.transcription, 1000 * t.ours, round(t.ratio))
                for t in result.timings
            ],
            right=(2, 3, 4, 5),
        )
        print_table(
            "dag: its search beside all sets of anchors",
            ("topologies", "operators", "cases", "best found", "mean gap", "largest gap"),
            [(g.kind, g.operators, g.cases, _share(g.exact), f"{g.mean:.3%}", f"{g.most:.2%}") for g in result.search],
            right=(1, 2, 3, 4, 5),
        )
        print_table(
            "The paper's statements",
            ("where", "statement", "paper", "ours"),
            [(c.where, c.statement, c.paper, c.ours) for c in result.claims],
        )


def _share(value: float) -> str:
    return "" if isnan(value) else f"{round(value, 4) + 0.0:.1%}"


def _number(value: float) -> str:
    return "" if isnan(value) else f"{value:.3g}"
