"""A picture of a topology: operators as groups of partitions in columns, the partitioning visible. Runs on the driver.

    draw_topology(named_topology("traffic"), "traffic.svg")

Data flows from left to right. Between partitions run the task edges in the colour of their partitioning; where full
partitioning would be a thicket, a band stands for it. A long chain is folded into rows. The same topology gives the
same bytes. `topology_groups` decides what is drawn in an operator's box, `layered_layout` where the boxes go,
`topology_marks` what the marks look like.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path as FilePath
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from holdfast.errors import BadInput
from holdfast.pictures import style
from holdfast.pictures import topology_marks as marks
from holdfast.pictures.layered_layout import Box, Layout, compute_layout, fold, widen
from holdfast.pictures.topology_groups import (
    FACT,
    HEAD,
    JOIN_TAG,
    NAME_SIZE,
    PAD,
    PILL,
    TEXT_SIZE,
    Group,
    groups_of,
    text_width,
)
from holdfast.topology.model import Topology
from holdfast.topology.operators import Partitioning
from holdfast.wording import counted

MOST_OPERATORS: Final = 400
"""More operators are refused: the picture would be unreadable."""
_MOST_LINES: Final = 9
"""Above this many lines a full partitioning becomes a band."""
_WIDEST: Final = 5.0
"""Width over height above which a picture is folded into rows, where few links cross the folds."""
_FOLDED_LINKS: Final = 3
_NARROWEST: Final = 0.8
"""Width over height below which the gaps between columns are widened."""

_MARGIN: Final = 0.35
_TITLE: Final = 0.96
_LEGEND: Final = 0.80
_TITLE_SIZE: Final = 15.0
_FACTS_SIZE: Final = 9.5
_ROW_GAP: Final = 0.26
_FOLD_GAP: Final = 0.62
_LANE: Final = 0.05
"""Between the lines of one link where it passes a column."""

_KINDS: Final = tuple(Partitioning)


def draw_topology(
    topology: Topology,
    path: str | FilePath,
    *,
    format: str | None = None,  # noqa: A002
    title: str | None = None,
) -> None:
    """Draw a topology to a file: SVG, PNG or PDF, by `format` or by the ending of the path."""
    if len(topology.operators) > MOST_OPERATORS:
        raise BadInput(
            f"{len(topology.operators):,} operators are too many for a picture",
            remedy=f"draw a part of it: at most {MOST_OPERATORS} operators",
        )
    groups = groups_of(topology)
    layout = _layout(topology, groups)
    heading, facts = title or topology.name, _facts(topology)
    titles = (text_width(heading, _TITLE_SIZE, bold=True), text_width(facts, _FACTS_SIZE))
    inner = max(layout.width, *titles, 4.2)
    legend = marks.legend_rows(marks.legend_of(topology), inner)
    turning = 0.30 if len(layout.rows) > 1 else 0.0
    width = inner + 2 * _MARGIN + 0.25 + 2 * turning
    height = layout.height + _TITLE + _LEGEND + marks.LEGEND_ROW * (len(legend) - 1)
    fig, axes = style.sheet(width, height)
    marks.write(axes, _MARGIN, 0.40, heading, _TITLE_SIZE, fontweight="bold", ha="left")
    marks.write(axes, _MARGIN, 0.66, facts, _FACTS_SIZE, color=style.FAINT, ha="left")
    layout = _moved(layout, _MARGIN + 0.15 + turning + (inner - layout.width) / 2, _TITLE)
    for group, box in zip(groups, layout.boxes, strict=True):
        _draw_group(axes, group, box)
    arrivals = _arrivals(topology, layout)
    for link in range(len(topology.link_to)):
        _draw_link(axes, topology, groups, layout, link, arrivals[link])
    marks.draw_legend(axes, legend, _MARGIN, height - 0.30)
    style.save(fig, path, format=format)


def _facts(topology: Topology) -> str:
    return " · ".join(
        [
            counted(len(topology.operators), "operator"),
            counted(len(topology), "partition"),
            counted(topology.task_edges, "task edge"),
            counted(len(topology.outputs), "query", "queries"),
        ]
    )


# -- where everything goes ---------------------------------------------------------------------------------------------


def _layout(topology: Topology, groups: Sequence[Group]) -> Layout:
    columns = topology.operator_level.tolist()
    links = list(zip(topology.link_from.tolist(), topology.link_to.tolist(), strict=True))
    # A source stands just before the first operator that reads it: shorter lines, fewer crossings.
    first_reader: dict[int, int] = {}
    for start, end in links:
        first_reader[start] = min(first_reader.get(start, columns[end]), columns[end])
    for number, operator in enumerate(topology.operators):
        if operator.is_source and number in first_reader:
            columns[number] = first_reader[number] - 1
    count = max(columns) + 1
    busy = [0] * count
    for link, (start, end) in enumerate(links):
        lines = _line_count(topology, groups, link)
        for column in range(columns[start], columns[end]):
            busy[column] = max(busy[column], lines)
    heights = [0.0] * (count + 1)
    for group, column in zip(groups, columns, strict=True):
        heights[column] += group.height
    gaps = []
    for column in range(count):
        room = 0.45 if busy[column] <= 1 else 0.75
        room += 0.10 * max(heights[column], heights[column + 1]) + (0.25 if busy[column] > 8 else 0.0)
        gaps.append(min(2.2, room))
    sizes = [(group.width, group.height) for group in groups]
    thick = [0.10 + _LANE * (_lanes(topology, groups, link) - 1) for link in range(len(links))]
    layout = compute_layout(sizes, columns, links, link_heights=thick, column_gap=gaps, row_gap=_ROW_GAP)
    missing = _NARROWEST * layout.height - layout.width
    if missing > 0 and count > 1:
        # High and narrow: lines would be steep. Widen the gaps, each by at most twice itself.
        more = min(2.0, missing / sum(gaps[:-1]))
        layout = widen(layout, columns, links, column_gap=[gap * (1 + more) for gap in gaps])
    return _folded(layout, columns, links)


def _folded(layout: Layout, columns: list[int], links: list[tuple[int, int]]) -> Layout:
    """Fold what is far wider than high, if few links cross each fold; as near to a slide's shape as that goes."""
    if layout.width <= _WIDEST * (layout.height + _TITLE + _LEGEND):
        return layout
    best, nearest = layout, math.inf
    for rows in range(1, 7):
        per_row = -(-len(layout.columns) // rows)
        crossing = [
            sum(columns[start] < first <= columns[end] for start, end in links)
            for first in range(per_row, len(layout.columns), per_row)
        ]
        if max(crossing, default=0) > _FOLDED_LINKS:
            continue
        tried = fold(layout, columns, links, rows=rows, gap=_FOLD_GAP)
        away = abs(math.log(tried.width / (tried.height + _TITLE + _LEGEND) / 2.0))
        if away < nearest:
            best, nearest = tried, away
    return best


def _moved(layout: Layout, across: float, down: float) -> Layout:
    def move(box: Box) -> Box:
        return Box(box.x + across, box.y + down, box.width, box.height)

    return Layout(
        tuple(move(box) for box in layout.boxes),
        tuple(tuple(move(box) for box in way) for way in layout.ways),
        tuple((left + across, right + across) for left, right in layout.columns),
        layout.width,
        layout.height,
        tuple((top + down, bottom + down) for top, bottom in layout.rows),
    )


# -- links -------------------------------------------------------------------------------------------------------------


def _slot_edges(topology: Topology, groups: Sequence[Group], link: int) -> list[tuple[int, int]]:
    """Return which slots a link joins: its task edges, with partitions that are not shown taken together."""
    start, end = int(topology.link_from[link]), int(topology.link_to[link])
    up, down = groups[start], groups[end]
    if _KINDS[int(topology.link_kind[link])] is Partitioning.FULL:
        return [(a, b) for b in range(len(down.slots)) for a in range(len(up.slots))]
    order = link - int(topology.link_start[end])
    streams = topology.stream_start[topology.first[end] : topology.first[end + 1]] + order
    widths = topology.edge_start[streams + 1] - topology.edge_start[streams]
    receivers = np.repeat(np.asarray(down.slot_of), widths)
    edges = np.repeat(topology.edge_start[streams] - np.cumsum(widths) + widths, widths) + np.arange(widths.sum())
    senders = np.asarray(up.slot_of)[topology.edge_from[edges] - topology.first[start]]
    return sorted(set(zip(senders.tolist(), receivers.tolist(), strict=True)))


def _line_count(topology: Topology, groups: Sequence[Group], link: int) -> int:
    up, down = groups[int(topology.link_from[link])], groups[int(topology.link_to[link])]
    if _KINDS[int(topology.link_kind[link])] is Partitioning.FULL:
        return len(up.slots) * len(down.slots)
    return max(len(up.slots), len(down.slots))


def _lanes(topology: Topology, groups: Sequence[Group], link: int) -> int:
    """Return how many lines of a link stay apart where it passes a column: enough to see which partitions meet."""
    if _KINDS[int(topology.link_kind[link])] is Partitioning.FULL:
        return 1
    up, down = groups[int(topology.link_from[link])], groups[int(topology.link_to[link])]
    return min(len(up.slots), len(down.slots))


def _lane(kind: Partitioning, start: int, end: int) -> int:
    """Return the lane of one line: a split keeps apart where lines come from, a merge where they go."""
    if kind is Partitioning.FULL:
        return 0
    return start if kind is Partitioning.SPLIT else end


def _arrivals(topology: Topology, layout: Layout) -> list[float]:
    """Return how far from the middle each link arrives: an operator's inputs come in side by side, uncrossed."""
    away = [0.0] * len(topology.link_to)
    for end in range(len(topology.operators)):
        links = range(int(topology.link_start[end]), int(topology.link_start[end + 1]))
        before = {
            link: (layout.ways[link] or (layout.boxes[int(topology.link_from[link])],))[-1].middle for link in links
        }
        room = 0.6 * layout.boxes[end].height if topology.operators[end].parallelism == 1 else 0.7 * PILL
        step = min(0.10, room / max(1, len(links) - 1))
        for place, link in enumerate(sorted(links, key=before.__getitem__)):
            away[link] = step * (place - (len(links) - 1) / 2)
    return away


def _draw_link(
    axes: Axes, topology: Topology, groups: Sequence[Group], layout: Layout, link: int, arrival: float
) -> None:
    start, end = int(topology.link_from[link]), int(topology.link_to[link])
    kind = _KINDS[int(topology.link_kind[link])]
    colour = marks.COLOUR_OF[kind]
    up, down = groups[start], groups[end]
    source, target, way = layout.boxes[start], layout.boxes[end], layout.ways[link]
    forward = not way and target.x > source.x
    if kind is Partitioning.FULL and _line_count(topology, groups, link) > _MOST_LINES and forward:
        _draw_band(axes, up, source, down, target, colour)
        return
    edges = _slot_edges(topology, groups, link)
    ends = {}
    for slot in sorted({b for _, b in edges}):
        x, y = down.port(target, slot, right=False)
        ends[slot] = (x, y + arrival)
    stations = [source, *way, target]
    corridors = [
        next(bottom for top, bottom in layout.rows if top <= one.middle <= bottom) + _FOLD_GAP / 2
        for one, other in pairwise(stations)
        if other.x <= one.x
    ]
    lanes = _lanes(topology, groups, link)
    paths = []
    for a, b in edges:
        off = _LANE * (_lane(kind, a, b) - (lanes - 1) / 2)
        through = [point for box in way for point in ((box.x, box.middle + off), (box.x + box.width, box.middle + off))]
        points = [up.port(source, a, right=True), *through, ends[b]]
        paths.append(marks.curve(points, [corridor + off for corridor in corridors]))
    wide = 1.5 if len(edges) <= 12 else 1.0
    marks.lines(axes, paths, colour, width=wide, alpha=0.9, layer=2)
    marks.arrow_heads(axes, ends.values(), colour)


def _draw_band(axes: Axes, up: Group, start: Box, down: Group, end: Box, colour: str) -> None:
    """Draw a full partitioning of many partitions as one band, with how many meet how many."""
    (x0, top0), (_, bottom0) = up.port(start, 0, right=True), up.port(start, len(up.slots) - 1, right=True)
    (x1, top1), (_, bottom1) = down.port(end, 0, right=False), down.port(end, len(down.slots) - 1, right=False)
    edge, bend = PILL / 2, 0.5 * (x1 - x0)
    corners = [
        (x0, top0 - edge),
        (x0 + bend, top0 - edge),
        (x1 - bend, top1 - edge),
        (x1, top1 - edge),
        (x1, bottom1 + edge),
        (x1 - bend, bottom1 + edge),
        (x0 + bend, bottom0 + edge),
        (x0, bottom0 + edge),
        (x0, top0 - edge),
    ]
    side = [int(Path.CURVE4)] * 3
    outline = Path(corners, [int(Path.MOVETO), *side, int(Path.LINETO), *side, int(Path.CLOSEPOLY)])
    axes.add_artist(PathPatch(outline, facecolor=colour, alpha=0.18, linewidth=0, zorder=1.5))
    # Thin lines inside show that it stands for many: those of the outermost partitions, so that each one has some.
    starts = [up.port(start, slot, right=True) for slot in range(len(up.slots))]
    ends = [down.port(end, slot, right=False) for slot in range(len(down.slots))]
    outer = {starts[0], starts[-1], ends[0], ends[-1]}
    threads = [marks.curve([one, other]) for one in starts for other in ends if one in outer or other in outer]
    marks.lines(axes, threads, colour, width=0.7, alpha=0.5, layer=1.6)
    marks.arrow_heads(axes, ends, colour)
    marks.write(
        axes,
        (x0 + x1) / 2,
        (top0 + bottom0 + top1 + bottom1) / 4,
        f"{up.operator.parallelism:,} × {down.operator.parallelism:,}",
        TEXT_SIZE,
        color=colour,
        fontweight="bold",
        bbox={"boxstyle": "round,pad=0.25", "facecolor": style.PAPER, "edgecolor": colour, "linewidth": 0.8},
    )


# -- groups ------------------------------------------------------------------------------------------------------------


def _draw_group(axes: Axes, group: Group, box: Box) -> None:
    operator = group.operator
    fill, edge = (
        (marks.SOURCE_FILL, marks.SOURCE_EDGE) if operator.is_source else (marks.OPERATOR_FILL, marks.OPERATOR_EDGE)
    )
    if operator.joins:
        edge = marks.JOIN_EDGE
    marks.rounded_box(axes, box, fill, edge, line=1.8 if operator.joins else 1.1, corner=0.09, layer=1)
    middle, head = box.x + box.width / 2, box.y + HEAD / 2 + 0.05
    priority = group.slots[0].priority if group.single else None
    named_at = middle - (0.17 if priority is not None else 0.0)
    if operator.joins:
        named_at -= (text_width(JOIN_TAG, TEXT_SIZE, bold=True) + 0.12) / 2
        tag_at = named_at + text_width(operator.id, NAME_SIZE, bold=True) / 2 + 0.12
        marks.write(axes, tag_at, head, JOIN_TAG, TEXT_SIZE, fontweight="bold", color=marks.JOIN_EDGE, ha="left")
    marks.write(axes, named_at, head, operator.id, NAME_SIZE, fontweight="bold")
    if group.fact:
        marks.write(axes, middle, head + (HEAD + FACT) / 2 - 0.03, group.fact, TEXT_SIZE, color=style.FAINT)
    if operator.is_source:
        marks.arrow_into(axes, box)
    if priority is not None:
        marks.priority_disc(axes, box.x + box.width - PAD - 0.07, head, priority)
    if not group.single:
        for number in range(len(group.slots)):
            _draw_slot(axes, group, box, number)


def _draw_slot(axes: Axes, group: Group, box: Box, number: int) -> None:
    slot = group.slots[number]
    left, y = group.port(box, number, right=False)
    right, _ = group.port(box, number, right=True)
    pill = Box(left, y - PILL / 2, right - left, PILL)
    if slot.index is None:
        # Lines lead here too: it stands for the rest.
        marks.rounded_box(axes, pill, marks.REST_FILL, marks.REST_FILL, line=0.8, corner=PILL / 2, layer=3)
        marks.write(axes, (left + right) / 2, y, slot.text, TEXT_SIZE, color=style.FAINT)
        return
    marks.rounded_box(axes, pill, style.PAPER, marks.PILL_EDGE, line=0.9, corner=PILL / 2, layer=3)
    marks.write(axes, (left + right) / 2 - (0.12 if slot.priority is not None else 0.0), y, slot.text, TEXT_SIZE)
    if slot.priority is not None:
        marks.priority_disc(axes, right - PILL / 2, y, slot.priority)
