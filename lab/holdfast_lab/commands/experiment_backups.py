"""`holdfast experiment backups`: FTC's Fig. 7, Fig. 8 and Table III with our figures beside them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.output import json_option, print_json, print_table, progress

if TYPE_CHECKING:
    from holdfast_lab.experiments.backups import BackupPoint, BackupSummary, PaperSetting


@click.command("backups")
@click.option("--repeat", default=3, show_default=True, type=click.IntRange(1, 100), help="Repetitions of each timing.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("out/backups"),
    show_default=True,
    help="Directory for result.json, CSV and plots.",
)
@json_option
def experiment_backups_command(repeat: int, out: Path, as_json: bool) -> None:
    """Count backups by required latency on the paper's topologies, with T(v) = 1 and from 1 to 10.

    R goes over every whole second from the largest T(v) to the longest path. Extra backups are over the optimum, which
    algorithm exact proves, also where the paper's exhaustive search does not end. Ends with status 1 when an optimum is
    not proven.

    \b
    Example:
      holdfast experiment backups --out out/backups
    """
    from holdfast.cli.result_files import write_csv, write_json
    from holdfast.errors import CheckFailed
    from holdfast_lab.experiments.backups import SETTINGS, measure_setting, summarise, too_slow

    points: list[BackupPoint] = []
    summaries: list[BackupSummary] = []
    with progress() as bar:
        task = bar.add_task("plan", total=len(SETTINGS))
        for setting in SETTINGS:
            found = list(measure_setting(setting, repeat))
            points += found
            summaries += summarise(setting, found)
            bar.advance(task)
    slow = too_slow(points)
    unproven = [point for point in points if not point.proven]
    document = {
        "experiment": "backups",
        "repeat": repeat,
        "summary": [asdict(one) for one in summaries],
        "printed": [{"setting": one.name, "extra": one.printed_extra, "ms": one.printed_ms} for one in SETTINGS],
        "every_optimum_proven": not unproven,
        "exact_slower_than_promised": [asdict(one) for one in slow],
        "points": [asdict(one) for one in points],
    }
    write_json(out / "result.json", document)
    write_csv(out / "points.csv", [asdict(one) for one in points])
    write_csv(out / "summary.csv", [asdict(one) for one in summaries])
    _plot(out, SETTINGS, points, summaries)
    if as_json:
        print_json(document)
    else:
        _print(SETTINGS, summaries, slow)
        click.echo(f"written to {out}: result.json, points.csv, summary.csv and five plots")
    if unproven:
        one = unproven[0]
        raise CheckFailed(
            f"no proof of the optimum of {one.setting} at R = {one.latency:g}", where="experiment backups"
        )


def _print(settings: tuple[PaperSetting, ...], summaries: list[BackupSummary], slow: list[BackupPoint]) -> None:
    printed = {setting.name: setting.printed_extra for setting in settings}
    print_table(
        "Extra backups over the optimum (Fig. 7 and 8): mean over R, and all backups together",
        ["setting", "algorithm", "R", "backups", "extra %", "pooled %", "most at one R", "paper"],
        [
            (
                one.setting,
                one.algorithm,
                one.latencies,
                one.backups,
                None if one.extra_percent is None else f"{one.extra_percent:.1f}",
                None if one.extra_pooled_percent is None else f"{one.extra_pooled_percent:.1f}",
                one.largest_extra,
                printed[one.setting] if one.algorithm == "exact" else None,
            )
            for one in summaries
        ],
        right=(2, 3, 4, 5, 6),
    )
    print_table(
        "Time to compute a plan (Table III), milliseconds",
        ["setting", "algorithm", "median over R", "greatest", "the paper's"],
        [
            (
                one.setting,
                one.algorithm,
                f"{one.median_ms:.3g}",
                f"{one.greatest_ms:.3g}",
                _printed_time(settings, one),
            )
            for one in summaries
        ],
        right=(2, 3, 4),
    )
    if slow:
        one = slow[0]
        click.echo(
            f"exact took longer than dag and than 0.2 s at {len(slow)} points, first {one.setting}, "
            f"R = {one.latency:g}: {one.seconds:.3f} s; was the machine busy?"
        )
    else:
        click.echo("exact proved every optimum, on SignalGuru and both Sentiment graphs within 0.2 s or dag's time")


def _printed_time(settings: tuple[PaperSetting, ...], one: BackupSummary) -> str | None:
    if one.printed_ms is not None:
        return f"{one.printed_ms:g}"
    exhaustive = next(setting for setting in settings if setting.name == one.setting).printed_ms.get("exhaustive")
    return f"{exhaustive:g} (exhaustive)" if one.algorithm == "exact" and exhaustive is not None else None


def _plot(
    out: Path, settings: tuple[PaperSetting, ...], points: list[BackupPoint], summaries: list[BackupSummary]
) -> None:
    from holdfast_lab.plots.backups import plot_by_latency, plot_times

    subtitle = {7: "lines and trees", 8: "general graphs"}
    aim = {False: "the optimum is proven by exact at every R", True: "no plan may exceed R"}
    for number in (7, 8):
        own = [setting for setting in settings if setting.figure == number]
        # Uniform weights in the upper row, unequal ones below.
        own.sort(key=lambda setting: setting.unequal)
        for latency in (False, True):
            panels = []
            for setting in own:
                curves: dict[str, list[tuple[float, float]]] = {}
                for point in points:
                    if point.setting == setting.name:
                        value = point.worst if latency else float(point.count)
                        curves.setdefault(point.algorithm, []).append((point.latency, value))
                weights = "T from 1 to 10" if setting.unequal else "T = 1"
                panels.append((f"{setting.topology.removesuffix('-unequal')}, {weights}", curves))
            what = "Longest recovery latency" if latency else "Backups"
            plot_by_latency(
                out / f"fig{number}-{'latency' if latency else 'backups'}.png",
                f"{what} by required latency (FTC, Fig. {number})",
                f"{subtitle[number]}; {aim[latency]}",
                panels,
                columns=len(own) // 2,
                latency=latency,
            )
    plot_times(
        out / "table3-times.png",
        [setting.name for setting in settings],
        [{one.algorithm: one.median_ms for one in summaries if one.setting == setting.name} for setting in settings],
        [setting.printed_ms for setting in settings],
    )
