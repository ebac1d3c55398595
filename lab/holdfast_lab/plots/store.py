"""Plots of `holdfast bench store` (A-FP4S, Fig. 9a): time saved against a remote file, with the paper's ranges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.ticker import PercentFormatter

from holdfast.pictures.style import FAINT, ORANGE, bars, figure, legend, save

PAPER = {"less_to_save": (0.362, 0.508), "less_to_restore": (0.403, 0.871), "less_in_all": (0.318, 0.505)}
_TITLES = {"less_to_save": "less time to save", "less_to_restore": "less time to restore", "less_in_all": "less in all"}


def draw_bench(rows: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """One row of panels for each table: save, restore, both; bars by state size and coding."""
    tables = [limited for limited in (False, True) if any(row["client_limited"] is limited for row in rows)]
    fig, panels = figure(
        "Fragments against one remote file peer",
        subtitle="part of the file's time that is saved; shaded: the paper's range; dashes: what the model predicts",
        rows=len(tables),
        columns=3,
        width=13.5,
        height=0.8 + 3.7 * len(tables),
    )
    for place, (limited, name) in enumerate((limited, name) for limited in tables for name in _TITLES):
        axes = panels[place]
        mine = [row for row in rows if row["client_limited"] is limited]
        _panel(axes, mine, name, limited)
        if place == 0:
            legend(axes)
    save(fig, path)
    return path


def _panel(axes: Any, rows: Sequence[Mapping[str, Any]], name: str, limited: bool) -> None:
    sizes = list(dict.fromkeys(row["state_mb"] for row in rows))
    codings = list(dict.fromkeys((row["data"], row["parity"]) for row in rows))
    width = 0.8 / max(1, len(codings))
    if not limited:
        low, high = PAPER[name]
        axes.axhspan(low, high, color=ORANGE, alpha=0.18, linewidth=0, label="paper's range")
    for number, (data, parity) in enumerate(codings):
        mine = {row["state_mb"]: row for row in rows if (row["data"], row["parity"]) == (data, parity)}
        at = [place + (number - (len(codings) - 1) / 2) * width for place in range(len(sizes))]
        axes.bar(at, [mine[size][name] for size in sizes], width * 0.92, label=f"{data}+{parity}", **bars(number))
        predicted = f"predicted_{name}"
        if predicted in next(iter(mine.values())):
            for x, size in zip(at, sizes, strict=True):
                axes.plot(
                    [x - width * 0.46, x + width * 0.46],
                    [mine[size][predicted]] * 2,
                    color="#222222",
                    linewidth=1.4,
                    linestyle=(0, (2, 1)),
                    marker="none",
                )
    axes.axhline(0, color=FAINT, linewidth=0.8)
    axes.set_xticks(range(len(sizes)), [f"{size:,.0f} MB" for size in sizes])
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_title(f"{_TITLES[name]}: {'client limited too' if limited else 'peers limited'}")
    if not limited:
        axes.set_ylim(top=1.0)
