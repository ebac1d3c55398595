"""Plots of the benches of running applications: throughput, overhead, scaling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.pictures.style import BLACK, FAINT, bars, figure, legend, save, series

Rows = Sequence[Mapping[str, Any]]


def draw_throughput(workloads: Rows, path: Path, *, rows: int) -> Path:
    """Rows per second of both sides, and the ratio of every round beside its target."""
    fig, (left, right) = figure(
        "Holdfast and Structured Streaming, side by side",
        subtitle=f"same outputs, same files, same cluster; batches of {rows:,} rows; median and every round",
        columns=2,
        width=12.0,
        height=4.8,
    )
    names = [one["name"] for one in workloads]
    sides = (("holdfast", "Holdfast"), ("structured_streaming", "Structured Streaming"))
    for number, (key, label) in enumerate(sides):
        at = [place + (number - 0.5) * 0.38 for place in range(len(names))]
        heights = [one[f"{key}_rows_per_second"] for one in workloads]
        shown = left.bar(at, heights, 0.36, label=label, **bars(number))
        shown_on = {"facecolor": "white", "edgecolor": "none", "pad": 1.2}
        left.bar_label(shown, [f"{height:,.0f}" for height in heights], fontsize=8, label_type="center", bbox=shown_on)
        for place, one in zip(at, workloads, strict=True):
            points = [turn["rows"] / turn[f"{key}_seconds"] for turn in one["rounds"]]
            left.plot([place] * len(points), points, color=BLACK, markersize=4, linestyle="none", marker=".")
    left.set_yscale("log")
    left.set_ylabel("rows per second (log scale)")
    left.set_xticks(range(len(names)), names)
    left.margins(y=0.12)
    left.set_title("throughput; points: rounds")
    legend(left, below=True)
    for place, one in enumerate(workloads):
        points = [turn["ratio"] for turn in one["rounds"]]
        first = "a round" if place == 0 else None
        right.plot([place] * len(points), points, linestyle="none", label=first, **_dots())
        right.plot([place - 0.2, place + 0.2], [one["ratio"]] * 2, color=BLACK, marker="none", linewidth=2)
        right.plot(
            [place - 0.3, place + 0.3],
            [one["target"]] * 2,
            color=FAINT,
            marker="none",
            linestyle=(0, (4, 2)),
            label="target" if place == 0 else None,
        )
        right.annotate(f"{one['ratio']:.1f}×", (place + 0.22, one["ratio"]), va="center", fontsize=9)
    right.set_yscale("log")
    right.set_ylabel("× Structured Streaming")
    right.set_xticks(range(len(names)), names)
    right.set_xlim(-0.6, len(names) - 0.4)
    for axis in (right.yaxis.set_major_formatter, right.yaxis.set_minor_formatter):
        axis(lambda value, _: f"{value:g}×" if f"{value:e}"[0] in "125" else "")
    right.set_title("ratio within a round; bar: median")
    legend(right, below=True)
    save(fig, path)
    return path


def _dots() -> dict[str, Any]:
    return {name: value for name, value in series(0).items() if name != "linewidth"}
