"""Plots of the backup experiments: FTC's Fig. 7 and 8, and its Table III beside our times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from holdfast.pictures.style import BLACK, FAINT, figure, legend, save, seconds, series

Curves = Mapping[str, Sequence[tuple[float, float]]]
"""By algorithm: (R, value)."""

_ORDER = ("exact", "tree", "dag", "share")
_NAMES = {"exact": "optimum (exact)", "tree": "tree", "dag": "dag (the paper's)", "share": "share (its baseline)"}


def plot_by_latency(
    path: Path, title: str, subtitle: str, panels: Sequence[tuple[str, Curves]], *, columns: int, latency: bool
) -> None:
    """Write one panel per setting: backups, or the longest latency, over R."""
    rows = -(-len(panels) // columns)
    fig, axes = figure(
        title, subtitle=subtitle, rows=rows, columns=columns, width=4.6 * columns, height=3.3 * rows + 0.7
    )
    for number, (axis, (name, curves)) in enumerate(zip(axes, panels, strict=True)):
        axis.set_title(name)
        for place, algorithm in enumerate(_ORDER):
            if algorithm not in curves:
                continue
            points = curves[algorithm]
            look = series(place) | {"markersize": 4.0, "linewidth": 1.4}
            if algorithm == "exact":
                # Others often lie on it: a broad band stays visible below them.
                look |= {"linewidth": 6.0, "alpha": 0.4, "marker": ""}
            if algorithm == "tree":
                # It lies on the optimum: drawn as open marks over it.
                look |= {"linestyle": "none", "markerfacecolor": "none", "markersize": 8.0}
            if len(points) > 30:
                look["markevery"] = max(1, len(points) // 15)
            axis.plot([r for r, _ in points], [value for _, value in points], label=_NAMES[algorithm], **look)
        if latency:
            top = max(r for curve in curves.values() for r, _ in curve)
            axis.plot([0, top], [0, top], color=FAINT, linewidth=1.0, linestyle=(0, (4, 2)), marker="", label="R")
        axis.set_ylim(bottom=0)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.yaxis.set_major_locator(MaxNLocator(integer=True))
        if number >= len(panels) - columns:
            axis.set_xlabel("required latency R, s")
        if number % columns == 0:
            axis.set_ylabel("longest latency, s" if latency else "backups")
        if number == 0:
            legend(axis)
    save(fig, path)


def plot_times(
    path: Path, settings: Sequence[str], ours: Sequence[Mapping[str, float]], printed: Sequence[Mapping[str, float]]
) -> None:
    """Write milliseconds by setting and algorithm, ours filled and the paper's hollow."""
    fig, (axis,) = figure(
        "Time to compute a plan",
        subtitle="median over all R, beside FTC's Table III; exhaustive search of the general graphs is its own",
        width=9.5,
        height=4.8,
    )
    algorithms = ("exhaustive", "exact", "tree", "dag", "share")
    for place, algorithm in enumerate(algorithms):
        look = series(place)
        shift = 0.13 * (place - 2)
        for rows, hollow in ((ours, False), (printed, True)):
            points = [(at + shift, row[algorithm] / 1e3) for at, row in enumerate(rows) if algorithm in row]
            axis.plot(
                [x for x, _ in points],
                [y for _, y in points],
                linestyle="none",
                marker=look["marker"],
                color=look["color"],
                markersize=7,
                markerfacecolor="none" if hollow else look["color"],
                label=None if hollow else algorithm,
            )
    axis.set_yscale("log")
    seconds(axis.yaxis)
    axis.set_xticks(range(len(settings)), settings, rotation=20)
    axis.set_ylabel("time to plan")
    handles, labels = axis.get_legend_handles_labels()
    hollow_mark = Line2D([], [], linestyle="none", marker="o", color=BLACK, markerfacecolor="none", markersize=7)
    axis.legend([*handles, hollow_mark], [*labels, "hollow: the paper's"], loc="upper left", ncols=3, frameon=False)
    save(fig, path)
