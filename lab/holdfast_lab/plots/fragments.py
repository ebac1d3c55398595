"""Plots of the fragments experiment: A-FP4S, Fig. 7, 8, 10 and 11, and the tuner at work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.ticker import MaxNLocator

from holdfast.pictures.style import BLACK, BLUE, FAINT, GREEN, ORANGE, RED, figure, legend, save, series

Line = tuple[Sequence[float], Sequence[float]]


def plot_success(panels: Mapping[int, Mapping[float, Line]], path: Path) -> None:
    """Fig. 7: one panel per m, one line per p."""
    fig, axes = figure(
        "Probability that a state survives",
        subtitle="A-FP4S, Fig. 7 (eq. 3): n fragments, any m rebuild the state, each holder is down with p",
        columns=len(panels),
        width=13.0,
        height=4.6,
        share_y=True,
    )
    for ax, (data, lines) in zip(axes, panels.items(), strict=True):
        for number, (p, (x, y)) in enumerate(lines.items()):
            ax.plot(x, y, label=f"p = {p:g}", **series(number))
        ax.set_title(f"m = {data}")
        ax.set_xlabel("fragments n")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0].set_ylabel("success")
    legend(axes[-1])
    save(fig, path)


def plot_file_limit(lines: Mapping[float, Line], paper: tuple[float, float], path: Path) -> None:
    """Fig. 8: file system bandwidth up to which fragments are faster, by recompute rate."""
    fig, (ax,) = figure(
        "Where fragments beat a file system",
        subtitle="A-FP4S, Fig. 8 (eq. 4): below a line, recovering from fragments is faster",
    )
    for number, (bandwidth, (x, y)) in enumerate(lines.items()):
        ax.plot(
            [one / 1e6 for one in x],
            [one / 1e6 for one in y],
            label=f"network {bandwidth / 1e6:g} MB/s",
            **series(number),
        )
    ax.plot([paper[0] / 1e6], [paper[1] / 1e6], marker="*", markersize=13, linestyle="none", color=BLACK,
            label="the paper's cluster")  # fmt: skip
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("recompute rate c, MB/s")
    ax.set_ylabel("file system bandwidth h, MB/s")
    legend(ax)
    save(fig, path)


def plot_recovery(
    sizes: Sequence[float],
    retrieval: Sequence[float],
    paper: Sequence[float],
    model: Sequence[float],
    measured: Sequence[float],
    path: Path,
) -> None:
    """Fig. 10: retrieval, recomputing, and both, by state size."""
    fig, axes = figure(
        "Recovery time by state size",
        subtitle="A-FP4S, Fig. 10 (eq. 2): retrieval at 73.5 Mbit/s; recomputing with m = 10, n = 20, one lost",
        columns=3,
        width=13.0,
        height=4.6,
    )
    axes[0].plot(sizes, retrieval, label="model", **series(0))
    axes[0].set_title("(a) retrieve")
    axes[1].plot(sizes, paper, label="model at the paper's 65 MB/s", **series(1, dashed=True))
    axes[1].plot(sizes, model, label="model at our fitted rate", **series(0))
    axes[1].plot(sizes, measured, label="measured here", linestyle="none", marker="x", markersize=8, color=BLACK)
    axes[1].set_title("(b) recompute")
    axes[1].set_yscale("log")
    axes[2].plot(sizes, [a + b for a, b in zip(retrieval, paper, strict=True)], label="model, the paper's rates",
                 **series(1, dashed=True))  # fmt: skip
    axes[2].plot(sizes, [a + b for a, b in zip(retrieval, measured, strict=True)], label="with our recomputing",
                 **series(0))  # fmt: skip
    axes[2].set_title("(c) both")
    for ax in (axes[0], axes[2]):
        ax.set_ylim(bottom=0)
    for ax in axes:
        ax.set_xlabel("state, MB")
        ax.set_ylabel("seconds")
        legend(ax)
    save(fig, path)


def plot_parameters(panels: Sequence[tuple[str, str, Line, Line | None]], subtitle: str, path: Path) -> None:
    """Fig. 11: measured times by m, k and e; where the paper gives a formula, its shape is drawn through the mean."""
    fig, axes = figure("Fragments and the time of coding", subtitle=subtitle, rows=2, columns=2, width=11.0, height=7.6)
    for ax, (title, label, (x, y), formula) in zip(axes, panels, strict=True):
        ax.plot(x, [1000 * one for one in y], label="measured here", **series(0))
        scale = 0.0
        if formula is not None:
            scale = 1000 * (sum(y) / len(y)) / (sum(formula[1]) / len(formula[1]))
            ax.plot(formula[0], [scale * one for one in formula[1]], label="shape of m B / (m + k - 1), B given",
                    **series(1, dashed=True))  # fmt: skip
            legend(ax)
        ax.set_title(title)
        ax.set_xlabel(label)
        ax.set_ylabel("milliseconds")
        ax.set_ylim(0, 1100 * max(*y, *([] if formula is None else [scale * one / 1000 for one in formula[1]])))
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    save(fig, path)


def plot_tuner(
    rounds: Sequence[int],
    data: Sequence[int],
    parity: Sequence[int],
    bandwidth: tuple[Sequence[float], Sequence[float]],
    failure: tuple[Sequence[float], Sequence[float]],
    path: Path,
) -> None:
    """The tuner over rounds: the world and its estimates above, m and k below."""
    fig, axes = figure(
        "The tuner at work",
        subtitle="noisy measurements; the bandwidth falls to a tenth, later ten times as many holders are down",
        rows=3,
        width=9.0,
        height=8.0,
        share_x=True,
    )
    look: dict[str, Any] = {"marker": "", "linewidth": 1.8}
    axes[0].plot(rounds, [one / 1e6 for one in bandwidth[0]], color=FAINT, label="true", **look)
    axes[0].plot(rounds, [one / 1e6 for one in bandwidth[1]], color=BLUE, label="estimated", **look)
    axes[0].set_yscale("log")
    axes[0].set_ylabel("bandwidth, MB/s")
    axes[1].plot(rounds, failure[0], color=FAINT, label="true", **look)
    axes[1].plot(rounds, failure[1], color=RED, label="estimated", **look)
    axes[1].set_ylabel("holders down")
    axes[2].step(rounds, data, where="post", color=GREEN, label="data m", **look)
    axes[2].step(rounds, parity, where="post", color=ORANGE, label="parity k", **look)
    axes[2].set_ylabel("fragments")
    axes[2].set_xlabel("round")
    for ax in axes:
        legend(ax)
    save(fig, path)
