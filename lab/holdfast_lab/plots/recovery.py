"""Plots of the recovery experiment: available queries and latencies over time (incremental recovery, Fig. 9 to 14)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from holdfast.pictures.style import COLOURS, bars, figure, save

Series = Sequence[Sequence[float]]
"""Pairs of a moment and a value."""


def plot_available(
    counts: Mapping[str, Series], queries: int, fault_at: float, ends: Mapping[str, float], path: Path
) -> None:
    """Draw how many queries are available over time, a line for each strategy (Fig. 11)."""
    fig, (ax,) = figure(
        "Available queries after a correlated failure",
        subtitle="incremental recovery, Fig. 11, on this machine: 4 of 6 nodes killed, replacements one by one",
        width=9.0,
    )
    for number, (name, series) in enumerate(counts.items()):
        # Lines that would lie on each other are set apart a little.
        shift = 0.06 * (number - (len(counts) - 1) / 2)
        times = [at - fault_at for at, _ in series] + [ends[name] - fault_at]
        values = [value + shift for _, value in series] + [series[-1][1] + shift]
        ax.step(times, values, where="post", color=COLOURS[number], marker="", label=name)
    _fault(ax)
    ax.set_ylim(-0.4, queries + 0.6)
    ax.set_xlabel("seconds after the failure")
    ax.set_ylabel("available queries")
    ax.legend(loc="lower right", fontsize=8)
    save(fig, path)


def plot_over_time(
    title: str,
    subtitle: str,
    panels: Mapping[str, Mapping[str, Series]],
    fault_at: float,
    label: str,
    path: Path,
    *,
    log: bool = True,
    level: float | None = 1.2,
) -> None:
    """Draw lines over the seconds after the failure, one panel for each group of them."""
    fig, axes = figure(
        title, subtitle=subtitle, columns=len(panels), width=7.2 if len(panels) == 1 else 12.5, share_y=True
    )
    for ax, (name, lines) in zip(axes, panels.items(), strict=True):
        for number, (line, series) in enumerate(lines.items()):
            ax.plot(
                [at - fault_at for at, _ in series],
                [value for _, value in series],
                color=COLOURS[number],
                marker="",
                label=line,
            )
        _fault(ax)
        if level is not None:
            ax.axhline(level, color="#9AA1AC", linewidth=0.9, linestyle=":")
        if log:
            ax.set_yscale("log")
        if len(panels) > 1:
            ax.set_title(name)
        ax.set_xlabel("seconds after the failure")
        ax.legend(loc="upper right", fontsize=8)
    axes[0].set_ylabel(label)
    save(fig, path)


def plot_strategies(measured: Mapping[str, float], predicted: Mapping[str, float], path: Path) -> None:
    """Draw each strategy's unavailability beside what the planner's schedule predicted for it."""
    fig, (ax,) = figure(
        "Unavailability by strategy",
        subtitle="sum over failed queries of priority x seconds until back; dashes: what the planner predicts",
        width=9.0,
    )
    for number, (name, value) in enumerate(measured.items()):
        ax.bar([number], [value], width=0.6, **bars(number))
        ax.annotate(
            f"{value:,.0f}", (number, value), ha="center", va="bottom", xytext=(0, 2), textcoords="offset points"
        )
        if predicted.get(name):
            ax.plot([number - 0.36, number + 0.36], [predicted[name]] * 2, color="#222222", linestyle="--", marker="")
    ax.set_xticks(range(len(measured)), list(measured))
    ax.grid(axis="x", visible=False)
    ax.set_ylabel("priority x seconds")
    save(fig, path)


def _fault(ax: object) -> None:
    ax.axvline(0, color="#D55E00", linewidth=1.0, linestyle="--")  # type: ignore[attr-defined]
