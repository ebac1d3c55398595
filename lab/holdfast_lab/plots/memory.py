"""Plots of `holdfast bench memory`: memory and disk by kind over the phases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.pictures.style import FAINT, figure, legend, save, series


def draw_memory(samples: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """For each side a panel: bytes of every kind over time, and where phases begin."""
    sides = list(dict.fromkeys(one["side"] for one in samples))
    fig, panels = figure(
        "Memory and disk under a slow sink and a burst",
        subtitle="resident memory by kind of process, files of nodes and of the run; every sample",
        columns=len(sides),
        width=8.0 * len(sides),
        height=5.2,
    )
    for axes, side in zip(panels, sides, strict=True):
        mine = [one for one in samples if one["side"] == side]
        for number, kind in enumerate(dict.fromkeys(one["kind"] for one in mine)):
            points = [(one["at"], max(1.0, one["bytes"] / 1e6)) for one in mine if one["kind"] == kind]
            on_disk = kind in ("nodes' state files", "batch log")
            look = {**series(number), "marker": "none", "linestyle": (0, (4, 2)) if on_disk else "-"}
            axes.plot([at for at, _ in points], [size for _, size in points], label=kind, **look)
        for phase in dict.fromkeys(one["phase"] for one in mine):
            at = min(one["at"] for one in mine if one["phase"] == phase)
            axes.axvline(at, color=FAINT, linewidth=1.0, linestyle=(0, (4, 2)))
            axes.annotate(phase, (at, 1.0), xycoords=("data", "axes fraction"), va="bottom", fontsize=8)
        axes.set_xlabel("seconds")
        axes.set_ylabel("MB (log scale); dashed: on disk")
        axes.set_yscale("log")
        axes.set_title(side, pad=16)
        legend(axes, below=True)
    save(fig, path)
    return path
