"""Plots of the scheduling experiment: Fig. 15 a-c, and unavailability by strategy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from holdfast.pictures.style import COLOURS, MARKERS, bars, figure, save

Panel = Mapping[str, Mapping[str, Mapping[int, float]]]
"""Setting -> algorithm -> percent of capacity -> mean part of priority restored."""

LINES = (("dp", "DP"), ("best-density", "BestDensity"), ("operator-centric", "OC"))


def plot_scheduling(panels: Mapping[str, tuple[str, Panel]], topologies: int, path: Path) -> None:
    """Draw the three panels of Fig. 15; exact lies on DP where both end, so it is drawn as crosses."""
    fig, axes = figure(
        "Priority restored by recovery plans",
        subtitle=f"incremental recovery, Fig. 15: 18 queries, mean of {topologies} random topologies; "
        "dashed: the second setting",
        columns=3,
        width=14.0,
        height=5.0,
        share_y=True,
    )
    for ax, (name, (title, settings)) in zip(axes, panels.items(), strict=True):
        for which, (label, algorithms) in enumerate(settings.items()):
            for number, (algorithm, shown) in enumerate(LINES):
                percent = list(algorithms[algorithm])
                ax.plot(
                    percent,
                    [100 * value for value in algorithms[algorithm].values()],
                    color=COLOURS[number],
                    marker=MARKERS[number],
                    linestyle="-" if which == 0 else (0, (4, 2)),
                    markerfacecolor=COLOURS[number] if which == 0 else "white",
                    # DP lies under BestDensity: broad and pale, so that both are seen.
                    linewidth=6 if algorithm == "dp" else 1.6,
                    alpha=0.35 if algorithm == "dp" else 1.0,
                    markersize=0 if algorithm == "dp" else 5,
                    label=f"{shown}, {label}",
                )
            exact = algorithms["exact"]
            ax.plot(
                list(exact),
                [100 * value for value in exact.values()],
                linestyle="none",
                marker="x",
                color="#222222",
                markersize=6,
                label="exact" if which == 0 else None,
            )
        ax.set_title(f"({name}) {title}")
        ax.set_xlabel("capacity, % of what all failed partitions cost")
        ax.set_xlim(5, 95)
        ax.set_ylim(0, 100)
        ax.legend(loc="upper left", fontsize=8)
    axes[0].set_ylabel("priority restored, %")
    save(fig, path)


def plot_unavailability(means: Mapping[str, float], topologies: int, path: Path) -> None:
    """Draw mean unavailability per strategy."""
    fig, (ax,) = figure(
        "Unavailability while nodes arrive",
        subtitle=f"8 nodes come after 2 to 6 minutes (incremental recovery, Fig. 6); mean of {topologies} random "
        "topologies",
    )
    names: Sequence[str] = list(means)
    for number, name in enumerate(names):
        ax.bar([number], [means[name] / 60], width=0.6, **bars(number))
        ax.annotate(
            f"{means[name] / 60:,.0f}",
            (number, means[name] / 60),
            ha="center",
            va="bottom",
            xytext=(0, 2),
            textcoords="offset points",
        )
    ax.set_xticks(range(len(names)), names)
    ax.grid(axis="x", visible=False)
    ax.set_ylabel("priority x minutes until back")
    save(fig, path)
