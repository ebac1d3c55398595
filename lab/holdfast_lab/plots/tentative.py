"""Plots of the experiment on tentative outputs (PPA, Fig. 7 to 10, 12 and 13)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.pictures.style import figure, legend, save, series

Line = tuple[str, Sequence[float], Sequence[float]]
"""Name, budgets, values."""

_BELOW = {
    "dp": {"linewidth": 9, "alpha": 0.3, "markersize": 0},
    "structure-aware": {"linewidth": 5, "alpha": 0.5, "markersize": 0},
}


def plot_accuracy(title: str, place: str, panels: Mapping[str, Sequence[tuple[Line, Line]]], path: Path) -> None:
    """Draw predicted (dashed) and measured (solid) values by budget, one panel for each query."""
    fig, axes = figure(
        title,
        subtitle=f"every partition without a replica has failed; solid: measured accuracy, dashed: predicted; {place}",
        columns=len(panels),
        share_y=True,
    )
    for panel, (name, pairs) in zip(axes, panels.items(), strict=True):
        for number, (measured, predicted) in enumerate(pairs):
            wide: dict[str, Any] = _BELOW.get(measured[0], {})  # lines that meet others stay visible
            panel.plot(measured[1], measured[2], label=measured[0], **series(number) | wide)
            panel.plot(predicted[1], predicted[2], label=predicted[0], **series(number, dashed=True) | wide)
        panel.set_title(name, loc="left", fontsize=11, fontweight="bold")
        panel.set_xlabel("replicas")
        panel.set_ylim(-0.02, 1.04)
        legend(panel)
    axes[0].set_ylabel("accuracy, or what predicts it")
    save(fig, path)


def plot_latency(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw how long after a failure outputs are back, a bar for each drill, one panel for each figure."""
    figures = list(dict.fromkeys(str(one["figure"]) for one in rows))
    fig, axes = figure(
        "From a failure to the first complete outputs",
        subtitle="tree of merges, 16-8-4-2-1; all capacity present; narrow: until tentative outputs",
        columns=1,
        rows=len(figures),
    )
    for panel, name in zip(axes, figures, strict=True):
        mine = [one for one in rows if str(one["figure"]) == name]
        labels = [
            f"{one['technique']}, window {one['window']} s, {one['rows_per_second']} rows/s, "
            f"checkpoint {one['checkpoint_seconds']} s"
            for one in mine
        ]
        places = list(range(len(mine)))[::-1]
        panel.barh(places, [float(one["recovered_after"] or 0.0) for one in mine], height=0.6, color="#4477aa")
        panel.barh(places, [float(one["tentative_after"] or 0.0) for one in mine], height=0.3, color="#ee8866")
        panel.set_yticks(places, labels, fontsize=8)
        title = "tentative, then full recovery" if name == "headline" else f"Fig. {name}"
        panel.set_title(title, loc="left", fontsize=11, fontweight="bold")
        panel.set_xlim(left=0)
    axes[-1].set_xlabel("seconds after the failure")
    save(fig, path)


def plot_price(found: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw what checkpoints cost by their interval."""
    fig, axes = figure(
        "CPU of checkpoints beside that of the computation",
        subtitle="tree of merges, windows of 30 s; PPA, Fig. 9",
        columns=1,
    )
    axes[0].plot(
        [one["interval"] for one in found], [100 * one["ratio"] for one in found], label="checkpoints", **series(0)
    )
    axes[0].set_xlabel("seconds between checkpoints")
    axes[0].set_ylabel("% of the computation's CPU")
    axes[0].set_ylim(bottom=0)
    save(fig, path)
