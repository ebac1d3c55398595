"""Plots of the benches of running applications: throughput, overhead, scaling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.pictures.style import BLACK, FAINT, bars, figure, legend, save, series

Rows = Sequence[Mapping[str, Any]]


def draw_throughput(result: Mapping[str, Any], path: Path) -> Path:
    """Rows per second of every side, and its ratio to Structured Streaming in every round beside the target."""
    fig, (left, right) = figure(
        "Holdfast and Structured Streaming, side by side",
        subtitle="same outputs, same files, same cluster; median and every round",
        columns=2,
        width=max(12.0, 3.4 * len(result["workloads"])),
        height=4.8,
    )
    workloads = result["workloads"]
    names = [one["name"] for one in workloads]
    sides = workloads[0]["sides"]
    labels = {
        "holdfast": "Holdfast, tasks that stay",
        "logged": "Holdfast, rows that are logged",
        "shuffle": "Holdfast, shuffle",
        "structured-streaming": "Structured Streaming",
        "pyarrow": "operators alone, one core",
    }
    medians = {(one["workload"], one["side"]): one for one in result["rows"]}
    width = 0.8 / len(sides)
    for number, side in enumerate(sides):
        at = [place + (number - (len(sides) - 1) / 2) * width for place in range(len(names))]
        heights = [medians[name, side]["rows_per_second"] for name in names]
        shown = left.bar(at, heights, width * 0.94, label=labels.get(side, side), **bars(number))
        shown_on = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
        shown_as = [f"{height / 1000:,.0f}k" if height >= 10_000 else f"{height:,.0f}" for height in heights]
        left.bar_label(shown, shown_as, fontsize=7, label_type="center", bbox=shown_on)
        for place, one in zip(at, workloads, strict=True):
            points = [turn["rows"] / turn["seconds"][side] for turn in one["rounds"]]
            left.plot([place] * len(points), points, color=BLACK, markersize=4, linestyle="none", marker=".")
        if side == "structured-streaming":
            continue
        for place, one in zip(at, workloads, strict=True):
            points = [turn["seconds"]["structured-streaming"] / turn["seconds"][side] for turn in one["rounds"]]
            median = medians[one["name"], side]["ratio"]
            right.plot([place] * len(points), points, linestyle="none", **_dots())
            right.plot([place - 0.1, place + 0.1], [median] * 2, color=BLACK, marker="none", linewidth=2)
            right.annotate(
                f"{side}\n{median:.1f}×",
                (place, max(points)),
                xytext=(0, 4),
                textcoords="offset points",
                ha="center",
                va="bottom",
                fontsize=7,
            )
    left.set_yscale("log")
    left.set_ylabel("rows per second (log scale)")
    wrapped = [name.replace(", ", "\n") for name in names]
    left.set_xticks(range(len(names)), wrapped)
    left.margins(y=0.12)
    left.set_title("throughput; points: rounds")
    legend(left, below=True)
    for place, one in enumerate(workloads):
        right.plot(
            [place - 0.42, place + 0.42],
            [one["target"]] * 2,
            color=FAINT,
            marker="none",
            linestyle=(0, (4, 2)),
            label="target of Holdfast" if place == 0 else None,
        )
    right.set_yscale("log")
    right.margins(y=0.2)
    right.set_ylabel("× Structured Streaming")
    right.set_xticks(range(len(names)), wrapped)
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
    ("around", "around them: Spark, connections, Python"),
    ("driver", "driver: planning, publishing"),
)


def draw_scaling(points: Rows, path: Path) -> Path:
    """For each size that is changed a panel: a batch alone and under load, each cut into where the time went.

    The bars of one size: alone and under load with each exchange, in this order.
    """
    sides = list(dict.fromkeys(point["side"] for point in points))
    varied = list(dict.fromkeys(point["varied"] for point in points))
    columns = min(3, len(varied))
    fig, panels = figure(
        "What a batch costs, and where the time goes",
        subtitle="bars of a size: " + ", ".join(f"{side} alone (median), {side} among many (mean)" for side in sides),
        rows=-(-len(varied) // columns),
        columns=columns,
        width=4.8 * columns + 0.6,
        height=3.9 * -(-len(varied) // columns) + 0.8,
    )
    for number, (axes, name) in enumerate(zip(panels, varied, strict=False)):
        mine = sorted((point for point in points if point["varied"] == name), key=lambda point: point["size"])
        sizes = list(dict.fromkeys(point["size"] for point in mine))
        width = 0.8 / (2 * len(sides))
        for point in mine:
            place = sizes.index(point["size"])
            for turn, kind in enumerate(("alone", "load"), start=2 * sides.index(point["side"])):
                base = 0.0
                at = place + (turn - len(sides) + 0.5) * width
                for part, (key, label) in enumerate(PARTS):
                    height = 1000 * point[f"{kind}_{key}"]
                    named = label if number == place == turn == 0 else None
                    axes.bar([at], [height], 0.9 * width, bottom=base, label=named, **bars(part))
                    base += height
                axes.annotate(f"{base:,.0f}", (at, base), ha="center", va="bottom", fontsize=7)
        unit = {"state": "state, MB", "rows": "rows of a batch"}.get(name, name)
        axes.set_xticks(range(len(sizes)), [f"{size:,g}" for size in sizes])
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
