"""Where boxes of a directed graph go when it is drawn in columns from left to right. Runs anywhere; pure geometry.

The steps are Sugiyama's: a link over several columns gets a stand-in in each column it passes; the order within columns
is improved by barycentres and swaps of neighbours until no sweep has fewer crossings; then heights are settled so that
linked boxes stand side by side and none overlap. What is far wider than high can be folded into rows. Deterministic.
Units are the caller's (inches).
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass

_SWEEPS = 16
_SETTLING = 24


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle; x and y are its left and top."""

    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> float:
        """Return the height of its middle."""
        return self.y + self.height / 2


@dataclass(frozen=True, slots=True)
class Layout:
    """Boxes in the order given, the way of each link, and the size of it all."""

    boxes: tuple[Box, ...]
    ways: tuple[tuple[Box, ...], ...]
    """For each link the (flat) boxes it passes between its ends, left to right; empty between neighbouring columns."""
    columns: tuple[tuple[float, float], ...]
    """Left and right of each column."""
    width: float
    height: float
    rows: tuple[tuple[float, float], ...]
    """Top and bottom of each row; one, unless it was folded."""


def compute_layout(
    sizes: Sequence[tuple[float, float]],
    columns: Sequence[int],
    links: Sequence[tuple[int, int]],
    *,
    link_heights: Sequence[float],
    column_gap: Sequence[float],
    row_gap: float,
) -> Layout:
    """Place boxes of these widths and heights, each in its column; every link leads to a later column.

    `link_heights` is how thick each link is where it passes a column, `column_gap` the room after each column.
    """
    graph = _Graph(len(sizes), columns, links)
    orders = _fewest_crossings(graph)
    heights = [height for _, height in sizes]
    heights += [thick for thick, way in zip(link_heights, graph.ways, strict=True) for _ in way]
    middles = _settle(graph, orders, heights, row_gap)
    top = min(middle - height / 2 for middle, height in zip(middles, heights, strict=True))
    bottom = max(middle + height / 2 for middle, height in zip(middles, heights, strict=True))
    spans = []
    x = 0.0
    for number in range(graph.columns):
        wide = max((width for (width, _), column in zip(sizes, columns, strict=True) if column == number), default=0.0)
        spans.append((x, x + wide))
        x += wide + (column_gap[number] if number + 1 < graph.columns else 0.0)
    boxes = []
    for node, column in enumerate(graph.column):
        left, right = spans[column]
        width = sizes[node][0] if node < len(sizes) else right - left
        boxes.append(
            Box(left + (right - left - width) / 2, middles[node] - heights[node] / 2 - top, width, heights[node])
        )
    ways = tuple(tuple(boxes[node] for node in way) for way in graph.ways)
    return Layout(tuple(boxes[: len(sizes)]), ways, tuple(spans), x, bottom - top, ((0.0, bottom - top),))


def widen(
    layout: Layout, columns: Sequence[int], links: Sequence[tuple[int, int]], *, column_gap: Sequence[float]
) -> Layout:
    """Give the same layout other gaps between its columns."""
    shift, x, spans = [], 0.0, []
    for number, (left, right) in enumerate(layout.columns):
        shift.append(x - left)
        spans.append((x, x + right - left))
        x = spans[-1][1] + (column_gap[number] if number + 1 < len(layout.columns) else 0.0)

    def move(box: Box, column: int) -> Box:
        return Box(box.x + shift[column], box.y, box.width, box.height)

    return Layout(
        tuple(move(box, column) for box, column in zip(layout.boxes, columns, strict=True)),
        tuple(
            tuple(move(box, columns[start] + 1 + step) for step, box in enumerate(way))
            for (start, _), way in zip(links, layout.ways, strict=True)
        ),
        tuple(spans),
        x,
        layout.height,
        layout.rows,
    )


def fold(layout: Layout, columns: Sequence[int], links: Sequence[tuple[int, int]], *, rows: int, gap: float) -> Layout:
    """Break a layout into rows of columns, one below the other, each starting at the left."""
    count = len(layout.columns)
    per_row = -(-count // rows)
    breaks = [range(first, min(first + per_row, count)) for first in range(0, count, per_row)]
    placed: list[tuple[Box, int]] = [(box, column) for box, column in zip(layout.boxes, columns, strict=True)]
    for (start, _), way in zip(links, layout.ways, strict=True):
        placed += [(box, columns[start] + 1 + step) for step, box in enumerate(way)]
    moved = [box for box, _ in placed]
    spans = list(layout.columns)
    extents = []
    y = width = 0.0
    for row in breaks:
        left, right = layout.columns[row[0]][0], layout.columns[row[-1]][1]
        inside = [number for number, (_, column) in enumerate(placed) if column in row]
        top = min(placed[number][0].y for number in inside)
        bottom = max(placed[number][0].y + placed[number][0].height for number in inside)
        for number in inside:
            box = placed[number][0]
            moved[number] = Box(box.x - left, box.y - top + y, box.width, box.height)
        for column in row:
            spans[column] = (spans[column][0] - left, spans[column][1] - left)
        extents.append((y, y + bottom - top))
        y += bottom - top + gap
        width = max(width, right - left)
    boxes, rest = moved[: len(layout.boxes)], iter(moved[len(layout.boxes) :])
    ways = tuple(tuple(next(rest) for _ in way) for way in layout.ways)
    return Layout(tuple(boxes), ways, tuple(spans), width, y - gap, tuple(extents))


class _Graph:
    """The boxes, and a stand-in for each column a link passes; edges join neighbouring columns only."""

    def __init__(self, count: int, columns: Sequence[int], links: Sequence[tuple[int, int]]) -> None:
        self.real = count
        self.column = list(columns)
        self.columns = max(columns) + 1
        self.ways: list[list[int]] = []
        self.left: list[list[int]] = [[] for _ in range(count)]
        self.right: list[list[int]] = [[] for _ in range(count)]
        for start, end in links:
            way = []
            before = start
            for column in range(columns[start] + 1, columns[end]):
                node = len(self.column)
                self.column.append(column)
                self.left.append([])
                self.right.append([])
                self._join(before, node)
                way.append(node)
                before = node
            self._join(before, end)
            self.ways.append(way)

    def _join(self, start: int, end: int) -> None:
        self.right[start].append(end)
        self.left[end].append(start)

    def weight(self, one: int, other: int) -> float:
        """Return how much it matters that these two stand at one height: long links should be straight."""
        stand_ins = (one >= self.real) + (other >= self.real)
        return (1.0, 2.0, 8.0)[stand_ins]


# -- order within columns -------------------------------------------------------------------------------------------


def _fewest_crossings(graph: _Graph) -> list[list[int]]:
    best: list[list[int]] = []
    fewest = -1
    for start in (_file_order(graph), _walked_order(graph)):
        orders = [list(order) for order in start]
        for sweep in range(_SWEEPS):
            forward = sweep % 2 == 0
            _sort_by_barycentre(graph, orders, forward)
            _swap_neighbours(graph, orders)
            crossings = _crossings(graph, orders)
            if fewest < 0 or crossings < fewest:
                best, fewest = [list(order) for order in orders], crossings
            if fewest == 0:
                return best
    return best


def _file_order(graph: _Graph) -> list[list[int]]:
    orders: list[list[int]] = [[] for _ in range(graph.columns)]
    for node, column in enumerate(graph.column):
        orders[column].append(node)
    return orders


def _walked_order(graph: _Graph) -> list[list[int]]:
    """Order by a walk from the first boxes on, so that what hangs together stands together."""
    orders: list[list[int]] = [[] for _ in range(graph.columns)]
    seen = [False] * len(graph.column)
    for root in range(len(graph.column)):
        stack = [root]
        while stack:
            node = stack.pop()
            if seen[node]:
                continue
            seen[node] = True
            orders[graph.column[node]].append(node)
            stack += [*reversed(graph.left[node]), *reversed(graph.right[node])]
    return orders


def _sort_by_barycentre(graph: _Graph, orders: list[list[int]], forward: bool) -> None:
    sequence = range(1, graph.columns) if forward else range(graph.columns - 2, -1, -1)
    beside = graph.left if forward else graph.right
    for column in sequence:
        fixed = {node: place for place, node in enumerate(orders[column - 1 if forward else column + 1])}
        place = {node: index for index, node in enumerate(orders[column])}
        key = {
            node: sum(fixed[other] for other in beside[node]) / len(beside[node])
            if beside[node]
            else place[node] * len(fixed) / max(1, len(place))
            for node in orders[column]
        }
        orders[column].sort(key=lambda node: key[node])


def _swap_neighbours(graph: _Graph, orders: list[list[int]]) -> None:
    place = {node: index for order in orders for index, node in enumerate(order)}
    changed, rounds = True, 0
    while changed and rounds < 8:
        changed, rounds = False, rounds + 1
        for order in orders:
            for upper in range(len(order) - 1):
                one, other = order[upper], order[upper + 1]
                kept = swapped = 0
                for beside in (graph.left, graph.right):
                    a, b = [place[n] for n in beside[one]], [place[n] for n in beside[other]]
                    kept += sum(x > y for x in a for y in b)
                    swapped += sum(x < y for x in a for y in b)
                if swapped < kept:
                    order[upper], order[upper + 1] = other, one
                    place[one], place[other] = upper + 1, upper
                    changed = True


def _crossings(graph: _Graph, orders: list[list[int]]) -> int:
    total = 0
    for column in range(graph.columns - 1):
        place = {node: index for index, node in enumerate(orders[column + 1])}
        ends: list[int] = []
        for node in orders[column]:
            mine = sorted(place[other] for other in graph.right[node])
            total += sum(len(ends) - bisect_right(ends, end) for end in mine)
            for end in mine:
                insort(ends, end)
    return total


# -- heights --------------------------------------------------------------------------------------------------------


def _settle(graph: _Graph, orders: list[list[int]], heights: list[float], row_gap: float) -> list[float]:
    """Return the middle of each box: near the middles of those it is linked to, in order, never overlapping."""
    middle = [0.0] * len(heights)
    for order in orders:
        _spread(order, [0.0] * len(order), [1.0] * len(order), heights, row_gap, graph.real, middle)
    for sweep in range(_SETTLING):
        last = sweep >= _SETTLING - 4
        sequence = orders if sweep % 2 == 0 else orders[::-1]
        for order in sequence:
            wanted, weights = [], []
            for node in order:
                sides = graph.left[node] if sweep % 2 == 0 else graph.right[node]
                others = [*graph.left[node], *graph.right[node]] if last or not sides else sides
                total = sum(graph.weight(node, other) for other in others)
                pull = sum(graph.weight(node, other) * middle[other] for other in others)
                wanted.append(pull / total if total else middle[node])
                weights.append(total or 0.1)
            _spread(order, wanted, weights, heights, row_gap, graph.real, middle)
    return middle


def _share_of_gap(one: int, other: int, real: int) -> float:
    """Return how much of the gap between rows two neighbours need: links that pass may run closer than boxes."""
    return (1.0, 0.6, 0.3)[(one >= real) + (other >= real)]


def _spread(
    order: list[int],
    wanted: list[float],
    weights: list[float],
    heights: list[float],
    row_gap: float,
    real: int,
    middle: list[float],
) -> None:
    """Set middles as near as possible to where they are wanted, keeping order and gaps (pool adjacent violators)."""
    offset, offsets = 0.0, []
    for index, node in enumerate(order):
        if index:
            before = order[index - 1]
            offset += (heights[before] + heights[node]) / 2 + row_gap * _share_of_gap(before, node, real)
        offsets.append(offset)
    pools: list[tuple[float, float, int]] = []  # mean, weight, how many
    for want, weight, away in zip(wanted, weights, offsets, strict=True):
        mean, heavy, many = want - away, weight, 1
        while pools and pools[-1][0] > mean:
            other, more, count = pools.pop()
            mean = (mean * heavy + other * more) / (heavy + more)
            heavy, many = heavy + more, many + count
        pools.append((mean, heavy, many))
    index = 0
    for mean, _, many in pools:
        for _ in range(many):
            middle[order[index]] = mean + offsets[index]
            index += 1
