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


def draw_overhead(result: Mapping[str, Any], path: Path) -> Path:
    """The price of each policy on the clock and in CPU seconds: every alternation, the median and its interval."""
    fig, (axes,) = figure(
        "The price of being ready",
        subtitle=f"{result['workload']}, a checkpoint every {result['interval_seconds']:.1f} s, against none; "
        "points: alternations; bars: median and its interval",
        width=8.4,
    )
    plain = {turn["alternation"]: turn for turn in result["turns"] if turn["policy"] == "none"}
    ticks = []
    for number, (kind, key) in enumerate((("clock", "seconds"), ("cpu", "cpu_seconds"))):
        for place, one in enumerate(result["prices"]):
            at = place * 2 + number * 0.8
            mine = [turn for turn in result["turns"] if turn["policy"] == one["policy"]]
            values = [100 * (turn[key] / plain[turn["alternation"]][key] - 1) for turn in mine]
            look = {name: value for name, value in series(number).items() if name != "linewidth"}
            axes.plot([at] * len(values), values, linestyle="none", alpha=0.55, **look)
            median, low, high = (100 * one[kind][name] for name in ("median", "low", "high"))
            axes.errorbar(
                [at + 0.22],
                [median],
                [[median - low], [high - median]],
                color=BLACK,
                marker="_",
                markersize=14,
                capsize=4,
                linewidth=1.6,
            )
            axes.annotate(f"{median:+.1f} %", (at + 0.3, median), va="bottom", fontsize=9)
            ticks.append((at, f"{one['policy']}\n{'on the clock' if kind == 'clock' else 'CPU'}"))
    axes.axhline(0, color=FAINT, linewidth=0.8)
    axes.axhline(
        100 * result["target"], color=FAINT, linewidth=1.2, linestyle=(0, (4, 2)), label="target, sources only"
    )
    axes.set_xticks([at for at, _ in ticks], [text for _, text in ticks])
    axes.set_xlim(-0.5, max(at for at, _ in ticks) + 0.9)
    axes.set_ylabel("more than without checkpoints, %")
    legend(axes)
    save(fig, path)
    return path


PARTS = (
    ("operators", "operators, on the busiest node"),
    ("around", "Spark and Python around them"),
    ("driver", "driver: planning, publishing"),
)


def draw_scaling(points: Rows, path: Path) -> Path:
    """For each size that is changed a panel: a batch alone and under load, each cut into where the time went."""
    varied = list(dict.fromkeys(point["varied"] for point in points))
    columns = min(3, len(varied))
    fig, panels = figure(
        "What a batch costs, and where the time goes",
        subtitle="left bar of a pair: a batch alone (median); right bar: a batch among many (mean)",
        rows=-(-len(varied) // columns),
        columns=columns,
        width=4.8 * columns + 0.6,
        height=3.9 * -(-len(varied) // columns) + 0.8,
    )
    for number, (axes, name) in enumerate(zip(panels, varied, strict=False)):
        mine = sorted((point for point in points if point["varied"] == name), key=lambda point: point["size"])
        for place, point in enumerate(mine):
            for turn, kind in enumerate(("alone", "load")):
                base = 0.0
                for part, (key, label) in enumerate(PARTS):
                    height = 1000 * point[f"{kind}_{key}"]
                    named = label if number == place == turn == 0 else None
                    axes.bar([place + (turn - 0.5) * 0.4], [height], 0.36, bottom=base, label=named, **bars(part))
                    base += height
                axes.annotate(f"{base:,.0f}", (place + (turn - 0.5) * 0.4, base), ha="center", va="bottom", fontsize=8)
        unit = {"state": "state, MB", "rows": "rows of a batch"}.get(name, name)
        axes.set_xticks(range(len(mine)), [f"{point['size']:,g}" for point in mine])
        axes.set_xlabel(unit)
        axes.set_ylabel("ms of a batch")
        axes.set_title(f"by {name}")
        axes.margins(y=0.12)
    for axes in panels[len(varied) :]:
        axes.set_axis_off()
    if len(panels) > len(varied):
        handles, labels = panels[0].get_legend_handles_labels()
        panels[-1].legend(handles, labels, loc="center", frameon=False)
    else:
        legend(panels[0])
    save(fig, path)
    return path


def _dots() -> dict[str, Any]:
    return {name: value for name, value in series(0).items() if name != "linewidth"}
