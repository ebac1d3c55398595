"""The marks of a topology's picture, and the legend that explains them. Runs on the driver.

Colours stand for partitionings, fill for sources, a thick border for joins, a disc with the priority for outputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.collections import PathCollection, PolyCollection
from matplotlib.patches import Circle, FancyBboxPatch, Polygon
from matplotlib.path import Path

from holdfast.pictures import style
from holdfast.pictures.layered_layout import Box
from holdfast.pictures.topology_groups import text_width
from holdfast.topology.model import Topology
from holdfast.topology.operators import Partitioning

Point = tuple[float, float]

COLOUR_OF: Final = {
    Partitioning.ONE_TO_ONE: style.BLUE,
    Partitioning.SPLIT: style.GREEN,
    Partitioning.MERGE: style.RED,
    Partitioning.FULL: "#9B5FA5",
}
OPERATOR_FILL: Final = "#F2F5F9"
OPERATOR_EDGE: Final = "#AEB8C6"
SOURCE_FILL: Final = "#E3F3EC"
SOURCE_EDGE: Final = "#5BB592"
JOIN_EDGE: Final = "#B87700"
PILL_EDGE: Final = "#8A96A8"
REST_FILL: Final = "#E4E9F0"

LEGEND_ROW: Final = 0.26
_GLYPH: Final = 0.40
_TURN: Final = 0.55
"""How far a line swings out where it turns around."""
_LEGEND_SIZE: Final = 9.0


def write(axes: Axes, x: float, y: float, text: str, size: float, **look: Any) -> None:
    """Write text as it is (a dollar sign is a dollar sign), centred by default."""
    usual: dict[str, Any] = {"color": style.INK, "ha": "center", "va": "center", "zorder": 4}
    axes.text(x, y, text, fontsize=size, parse_math=False, **(usual | look))


def rounded_box(axes: Axes, box: Box, fill: str, edge: str, *, line: float, corner: float, layer: float) -> None:
    """Draw a box with round corners."""
    axes.add_artist(
        FancyBboxPatch(
            (box.x, box.y),
            box.width,
            box.height,
            boxstyle=f"round,pad=0,rounding_size={corner}",
            facecolor=fill,
            edgecolor=edge,
            linewidth=line,
            zorder=layer,
        )
    )


def priority_disc(axes: Axes, x: float, y: float, priority: int) -> None:
    """Mark an output with the priority of its query."""
    text = f"{priority}" if priority < 10_000 else f"{priority:.0e}".replace("e+0", "e").replace("e+", "e")
    size = {1: 8.0, 2: 7.5, 3: 5.6}.get(len(text), 4.4)
    axes.add_artist(Circle((x, y), 0.105, facecolor=style.ORANGE, edgecolor=style.PAPER, linewidth=0.6, zorder=3.5))
    write(axes, x, y + 0.003, text, size, fontweight="bold", zorder=5)


def arrow_heads(axes: Axes, points: Iterable[Point], colour: str) -> None:
    """End lines at these points, pointing right."""
    heads = [[(x, y), (x - 0.085, y - 0.045), (x - 0.085, y + 0.045)] for x, y in points]
    axes.add_collection(PolyCollection(heads, facecolors=colour, linewidths=0, zorder=3), autolim=False)


def lines(axes: Axes, paths: Sequence[Path], colour: str, *, width: float, alpha: float, layer: float) -> None:
    """Draw lines of one colour."""
    axes.add_collection(
        PathCollection(paths, facecolors="none", edgecolors=colour, linewidths=width, alpha=alpha, zorder=layer),
        autolim=False,
    )


def arrow_into(axes: Axes, box: Box) -> None:
    """Mark a source: data comes in from outside."""
    y, tip = box.middle, box.x - 0.02
    half = [(tip, 0.0), (tip - 0.11, 0.075), (tip - 0.11, 0.022), (tip - 0.27, 0.022)]
    outline = [(x, y - up) for x, up in half] + [(x, y + down) for x, down in reversed(half)]
    axes.add_artist(Polygon(outline, facecolor=SOURCE_EDGE, linewidth=0, zorder=3))


def curve(points: Sequence[Point], corridors: Sequence[float] = ()) -> Path:
    """Join points by curves that leave and arrive level.

    A step that leads back to the left, from the end of a row to the start of the next, turns around and runs along the
    corridor between the two; there is one corridor for each such step, in order.
    """
    vertices, codes = [points[0]], [int(Path.MOVETO)]
    left = list(corridors)
    bend = [int(Path.CURVE4)] * 3
    for (x0, y0), (x1, y1) in pairwise(points):
        if x1 <= x0 and left:
            y, out, back = left.pop(0), x0 + _TURN, x1 - _TURN
            vertices += [(out, y0), (out, y), (x0, y), (x1, y), (back, y), (back, y1), (x1, y1)]
            codes += [*bend, int(Path.LINETO), *bend]
        else:
            half = 0.5 * (x1 - x0)
            vertices += [(x0 + half, y0), (x1 - half, y1), (x1, y1)]
            codes += bend
    return Path(vertices, codes)


# -- legend ------------------------------------------------------------------------------------------------------------

Entry = tuple[str, str]
"""What it is (a partitioning, or source, join, output), and the words for it."""


def legend_of(topology: Topology) -> list[Entry]:
    """Return what occurs in a topology and needs explaining."""
    entries = [("source", "source")]
    if any(operator.joins for operator in topology.operators):
        entries.append(("join", "joins its inputs"))
    entries.append(("output", "output, with priority"))
    present = set(topology.link_kind.tolist())
    return entries + [(kind.value, kind.value) for number, kind in enumerate(Partitioning) if number in present]


def legend_rows(entries: Sequence[Entry], width: float) -> list[list[tuple[float, Entry]]]:
    """Break a legend into rows that fit; each entry comes with its distance from the left."""
    rows: list[list[tuple[float, Entry]]] = [[]]
    x = 0.0
    for entry in entries:
        wide = _GLYPH + 0.08 + text_width(entry[1], _LEGEND_SIZE)
        if x + wide > width and rows[-1]:
            rows.append([])
            x = 0.0
        rows[-1].append((x, entry))
        x += wide + 0.32
    return rows


def draw_legend(axes: Axes, rows: Sequence[Sequence[tuple[float, Entry]]], left: float, bottom: float) -> None:
    """Draw a legend whose last row is at this height."""
    for number, row in enumerate(rows):
        y = bottom - LEGEND_ROW * (len(rows) - 1 - number)
        for away, (what, words) in row:
            x = left + away
            write(axes, x + _GLYPH + 0.08, y, words, _LEGEND_SIZE, ha="left")
            small = Box(x + 0.06, y - 0.08, _GLYPH - 0.08, 0.16)
            if what == "output":
                priority_disc(axes, x + _GLYPH - 0.12, y, 1)
            elif what == "source":
                rounded_box(axes, small, SOURCE_FILL, SOURCE_EDGE, line=1.1, corner=0.05, layer=1)
            elif what == "join":
                rounded_box(axes, small, OPERATOR_FILL, JOIN_EDGE, line=1.8, corner=0.05, layer=1)
            else:
                _draw_glyph(axes, x, y, Partitioning(what))


_GLYPH_LINES: Final = {
    Partitioning.ONE_TO_ONE: ((-1, -1), (1, 1)),
    Partitioning.SPLIT: ((0, -1), (0, 1)),
    Partitioning.MERGE: ((-1, 0), (1, 0)),
    Partitioning.FULL: ((-1, -1), (-1, 1), (1, -1), (1, 1)),
}


def _draw_glyph(axes: Axes, x: float, y: float, kind: Partitioning) -> None:
    pattern, colour = _GLYPH_LINES[kind], COLOUR_OF[kind]
    left, right, step = x + 0.04, x + _GLYPH - 0.04, 0.065
    paths = [curve([(left, y + step * start), (right, y + step * end)]) for start, end in pattern]
    lines(axes, paths, colour, width=1.4, alpha=1.0, layer=2)
    for side, at in ((0, left), (1, right)):
        for end in sorted({line[side] for line in pattern}):
            axes.add_artist(Circle((at, y + step * end), 0.032, facecolor=colour, linewidth=0, zorder=3))
