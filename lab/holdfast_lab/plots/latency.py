"""Plots of `holdfast bench latency`: phases from a row's creation to visible at the sink."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.pictures.style import BLACK, bars, figure, legend, save

PHASES = {
    "wait": "wait for the batch",
    "logging": "logging",
    "operators": "operators and exchange",
    "publish": "publish",
}


def draw_latency(rows: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """For each number of levels a panel: means of the phases as bars for each rate and side, p50, p95, p99 as marks."""
    levels = list(dict.fromkeys(one["levels"] for one in rows))
    fig, panels = figure(
        "From a row's creation to visible at the sink",
        subtitle="bars: means of the phases, which add up; marks: p50, p95 and p99 of all rows",
        columns=len(levels),
        width=6.0 * len(levels) + 0.6,
        height=4.8,
    )
    for number, (axes, level) in enumerate(zip(panels, levels, strict=True)):
        mine = [one for one in rows if one["levels"] == level]
        rates = list(dict.fromkeys(one["rate"] for one in mine))
        ticks: list[tuple[float, str]] = []
        for one in mine:
            sides = [two["side"] for two in mine if two["rate"] == one["rate"]]
            at = rates.index(one["rate"]) * (len(sides) + 0.6) + sides.index(one["side"])
            base = 0.0
            for part, (phase, label) in enumerate(PHASES.items()):
                height = one["phases"][phase]["mean_ms"]
                named = label if number == 0 and not ticks else None
                axes.bar([at], [height], 0.6, bottom=base, label=named, **bars(part))
                base += height
            for key, mark in (("p50_ms", "o"), ("p95_ms", "^"), ("p99_ms", "x")):
                named = key.removesuffix("_ms") if number == 0 and not ticks else None
                axes.plot([at + 0.4], [one[key]], color=BLACK, marker=mark, markersize=5, linestyle="none", label=named)
            ticks.append((at, f"{one['side']}\n{one['rate']:,g}/s"))
        axes.set_xticks([at for at, _ in ticks], [text for _, text in ticks], fontsize=7)
        axes.set_ylabel("ms")
        axes.margins(y=0.1)
        axes.set_title(f"{level} levels")
    legend(panels[0], below=True)
    save(fig, path)
    return path
