"""One look for every picture Holdfast makes: colours, fonts, sizes, and files that come out the same every time.

Runs where matplotlib is; needs no display and changes no global setting, so it is safe inside a notebook.

    fig, (axes,) = figure("Recovery time by failed tasks", subtitle="median of five runs")
    axes.plot(sizes, ours, label="Holdfast")          # colour and marker come from the shared cycle
    axes.plot(sizes, paper, label="FTC, Fig. 9", **series(1, dashed=True))
    axes.set_xlabel("failed tasks")
    axes.set_ylabel("seconds")
    legend(axes)
    save(fig, path / "recovery.png")

The colours are Okabe and Ito's, which people with any of the common colour blindnesses tell apart; series differ by
marker too, so that a plot survives a black-and-white printer.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import matplotlib
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from holdfast.errors import BadInput

BLUE: Final = "#0072B2"
ORANGE: Final = "#E69F00"
GREEN: Final = "#009E73"
RED: Final = "#D55E00"
PURPLE: Final = "#CC79A7"
SKY: Final = "#56B4E9"
YELLOW: Final = "#F0E442"
BLACK: Final = "#222222"

COLOURS: Final = (BLUE, RED, GREEN, ORANGE, PURPLE, SKY, BLACK, YELLOW)
"""Colours of the first, second, … series."""
MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "*")
HATCHES: Final = ("", "//", "..", "xx", "\\\\", "++", "oo", "--")
"""For bars, beside their colours."""

INK: Final = "#222222"
"""Text and axes."""
FAINT: Final = "#6B7280"
"""Subtitles and notes."""
GRID: Final = "#D9DDE3"
PAPER: Final = "#FFFFFF"

WIDTH: Final = 7.2
HEIGHT: Final = 4.4
"""Inches of one panel; fits a column of text and a slide."""
DOTS_PER_INCH: Final = 150
MOST_DOTS: Final = 10_000
"""Of the longer side: what is larger still is drawn with fewer dots to the inch."""

_SETTINGS: Final[dict[str, Any]] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same everywhere
    "font.size": 10.0,
    "axes.titlesize": 11.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 10.0,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#9AA1AC",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.facecolor": PAPER,
    "axes.prop_cycle": cycler(color=COLOURS)
    + cycler(marker=MARKERS)
    + cycler(linewidth=[1.8] * len(COLOURS))
    + cycler(markersize=[5.5] * len(COLOURS)),
    "figure.facecolor": PAPER,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 9.0,
    "ytick.labelsize": 9.0,
    "legend.frameon": False,
    "legend.fontsize": 9.0,
    "svg.fonttype": "path",  # looks the same where the font is missing
    "svg.hashsalt": "holdfast",  # ids inside an SVG do not change from run to run
    "path.simplify": True,
}


def figure(
    title: str,
    *,
    subtitle: str = "",
    rows: int = 1,
    columns: int = 1,
    width: float | None = None,
    height: float | None = None,
    share_x: bool = False,
    share_y: bool = False,
) -> tuple[Figure, list[Axes]]:
    """Make a figure with a title and its panels, row by row. Width and height are inches of the whole figure."""
    with matplotlib.rc_context(_SETTINGS):
        wide = width or (WIDTH if columns == 1 else 5.0 * columns)
        tall = height or (HEIGHT if rows == 1 else 3.6 * rows)
        head = 0.62 if subtitle else 0.40
        layout = ConstrainedLayoutEngine(rect=(0.0, 0.0, 1.0, 1.0 - head / tall), w_pad=0.09, h_pad=0.07)
        made = Figure(figsize=(wide, tall), dpi=DOTS_PER_INCH, layout=layout)
        FigureCanvasAgg(made)
        panels = made.subplots(rows, columns, squeeze=False, sharex=share_x, sharey=share_y)
        made.text(0.09 / wide, 1 - 0.10 / tall, title, ha="left", va="top", fontsize=13, fontweight="bold", color=INK)
        if subtitle:
            made.text(0.09 / wide, 1 - 0.38 / tall, subtitle, ha="left", va="top", fontsize=9.5, color=FAINT)
        return made, [panel for row in panels for panel in row]


def sheet(width: float, height: float) -> tuple[Figure, Axes]:
    """Make a blank sheet of so many inches to draw on: one unit is one inch, (0, 0) is the top left corner."""
    with matplotlib.rc_context(_SETTINGS):
        made = Figure(figsize=(width, height), dpi=DOTS_PER_INCH)
        FigureCanvasAgg(made)
        axes = made.add_axes((0.0, 0.0, 1.0, 1.0))
        axes.set_axis_off()
        axes.set_xlim(0, width)
        axes.set_ylim(height, 0)
        return made, axes


def series(number: int, *, dashed: bool = False) -> dict[str, Any]:
    """Return colour, marker and line of the n-th series, for `axes.plot`; dashed for what a paper printed."""
    place = number % len(COLOURS)
    look: dict[str, Any] = {"color": COLOURS[place], "marker": MARKERS[place], "linewidth": 1.8, "markersize": 5.5}
    if dashed:
        look |= {"linestyle": (0, (4, 2)), "markerfacecolor": PAPER}
    return look


def bars(number: int) -> dict[str, Any]:
    """Return colour and hatching of the n-th series, for `axes.bar`."""
    place = number % len(COLOURS)
    return {"color": COLOURS[place], "hatch": HATCHES[place], "edgecolor": PAPER, "linewidth": 0.8}


def legend(axes: Axes, *, below: bool = False, columns: int = 1, title: str = "") -> None:
    """Add the legend: inside where it fits best, or in a row below the panel."""
    with matplotlib.rc_context(_SETTINGS):
        if below:
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=max(columns, 2), title=title or None)
        else:
            axes.legend(loc="best", ncols=columns, title=title or None)


def seconds(axis: Any) -> None:
    """Write an axis of seconds the way people read it: 500 ms, 2 s, 5 min."""
    from matplotlib.ticker import FuncFormatter

    written: Callable[[float, object], str] = lambda value, _: duration(value)  # noqa: E731
    axis.set_major_formatter(FuncFormatter(written))


def duration(value: float) -> str:
    """Write a number of seconds the way people read it."""
    size = abs(value)
    if size == 0:
        return "0"
    for limit, factor, unit in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (120.0, 1.0, "s"), (7200.0, 1 / 60, "min")):
        if size < limit:
            return f"{value * factor:.3g} {unit}"
    return f"{value / 3600:.3g} h"


def save(fig: Figure, path: str | Path, *, format: str | None = None) -> None:  # noqa: A002
    """Write a figure in the format of its path (.png, .svg, .pdf) or in `format`. Same input, same bytes."""
    kind = (format or Path(path).suffix.removeprefix(".") or "png").lower()
    # Without these a file carries the time it was made and matplotlib's version.
    unstamped: dict[str, dict[str, Any]] = {
        "svg": {"Date": None, "Creator": "holdfast"},
        "pdf": {"CreationDate": None, "Producer": "holdfast", "Creator": "holdfast"},
        "png": {"Software": "holdfast"},
    }
    if kind not in unstamped:
        raise BadInput(f"{kind!r} is not an image format", where=str(path), remedy=f"use {', '.join(unstamped)}")
    try:
        with matplotlib.rc_context(_SETTINGS):
            dots = min(float(DOTS_PER_INCH), MOST_DOTS / max(fig.get_size_inches()))
            fig.savefig(path, format=kind, dpi=dots, metadata=unstamped[kind], facecolor=PAPER)
    except OSError as error:
        reason = error.strerror or str(error)
        raise BadInput(f"cannot be written: {reason}", where=str(path), remedy="give a path you may write") from None
