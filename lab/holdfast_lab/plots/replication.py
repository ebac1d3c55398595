"""Plots of the experiment on replica plans (PPA, Fig. 13 and 14)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.pictures.style import figure, legend, save, series

Curve = tuple[str, Sequence[float], Sequence[float]]
"""Name, budgets, fidelity."""


def plot_queries(panels: Mapping[str, Sequence[Curve]], path: Path) -> None:
    """Draw Fig. 13: one panel per query, one line per algorithm."""
    fig, axes = figure(
        "Fidelity of replica plans for two queries",
        subtitle="every partition without a replica has failed; PPA, Fig. 13",
        columns=len(panels),
        share_y=True,
    )
    for panel, (title, curves) in zip(axes, panels.items(), strict=True):
        for number, (name, budgets, values) in enumerate(curves):
            # The best possible lies under the others: wide and pale, so that lines that meet it stay visible.
            look: dict[str, Any] = series(number)
            if name == "dp":
                look |= {"linewidth": 6, "alpha": 0.3, "markersize": 0}
            panel.plot(budgets, values, label=name, **look)
        panel.set_title(title, loc="left", fontsize=11, fontweight="bold")
        panel.set_xlabel("replicas")
        panel.set_ylim(-0.02, 1.04)
    axes[0].set_ylabel("output fidelity")
    legend(axes[0])
    save(fig, path)


def plot_random(panels: Mapping[str, Sequence[tuple[Curve, Curve]]], topologies: int, path: Path) -> None:
    """Draw Fig. 14: one panel per property, for each setting structure-aware (solid) and greedy (dashed)."""
    fig, axes = figure(
        "Structure-aware against greedy on random topologies",
        subtitle=f"mean fidelity of {topologies} topologies per setting; PPA, Fig. 14 a-d",
        rows=2,
        columns=2,
        share_x=True,
        share_y=True,
    )
    for panel, (title, pairs) in zip(axes, panels.items(), strict=True):
        for number, (own, other) in enumerate(pairs):
            panel.plot(own[1], own[2], label=own[0], **series(number))
            panel.plot(other[1], other[2], label=other[0], **series(number, dashed=True))
        panel.set_title(title, loc="left", fontsize=11, fontweight="bold")
        panel.set_ylim(-0.02, 1.0)
        legend(panel)
    for panel in axes[2:]:
        panel.set_xlabel("replicas, share of all partitions")
    for panel in axes[::2]:
        panel.set_ylabel("output fidelity")
    save(fig, path)
