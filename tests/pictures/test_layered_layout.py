from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.pictures.layered_layout import Layout, compute_layout, fold, widen


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[tuple[float, float]], list[int], list[tuple[int, int]]]:
    columns = sorted(draw(st.lists(st.integers(0, 5), min_size=1, max_size=14)))
    columns = [sorted(set(columns)).index(column) for column in columns]
    sizes = [draw(st.tuples(st.floats(0.3, 2), st.floats(0.3, 3))) for _ in columns]
    pairs = [(a, b) for a in range(len(columns)) for b in range(len(columns)) if columns[a] < columns[b]]
    links = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=25)) if pairs else []
    return sizes, columns, links


def place(sizes: list[tuple[float, float]], columns: list[int], links: list[tuple[int, int]]) -> Layout:
    return compute_layout(
        sizes, columns, links, link_heights=[0.1] * len(links), column_gap=[1.0] * (max(columns) + 1), row_gap=0.2
    )


@settings(derandomize=True, max_examples=60, deadline=None)
@given(graphs())
def test_nothing_overlaps_and_everything_is_inside(
    graph: tuple[list[tuple[float, float]], list[int], list[tuple[int, int]]],
) -> None:
    sizes, columns, links = graph
    layout = place(sizes, columns, links)
    passed = [box for way in layout.ways for box in way]
    everything = [*layout.boxes, *passed]
    for number, one in enumerate(everything):
        assert one.x >= -1e-9
        assert one.x + one.width <= layout.width + 1e-9
        assert one.y >= -1e-9
        assert one.y + one.height <= layout.height + 1e-9
        for before, other in enumerate(everything[:number]):
            gap = 0.2 * (1.0, 0.6, 0.3)[(number >= len(sizes)) + (before >= len(sizes))]
            apart = (
                one.x >= other.x + other.width
                or other.x >= one.x + one.width
                or one.y >= other.y + other.height + gap - 1e-9
                or other.y >= one.y + one.height + gap - 1e-9
            )
            assert apart, (one, other)
    for (start, end), way in zip(links, layout.ways, strict=True):
        assert len(way) == columns[end] - columns[start] - 1
        xs = [layout.boxes[start].x, *(box.x for box in way), layout.boxes[end].x]
        assert xs == sorted(xs)
    assert place(sizes, columns, links) == layout, "the same every time"


def test_a_tree_is_drawn_without_crossings() -> None:
    # A binary tree given in an order that crosses everywhere.
    columns = [0] + [1] * 2 + [2] * 4 + [3] * 8
    links = [(0, 1), (0, 2)]
    links += [(1, 3), (2, 4), (1, 5), (2, 6)]
    links += [(3 + child % 4, 7 + child) for child in range(8)]
    layout = place([(1.0, 0.5)] * 15, columns, links)
    for column in range(3):
        between = [(layout.boxes[a].middle, layout.boxes[b].middle) for a, b in links if columns[a] == column]
        crossings = sum((a - c) * (b - d) < -1e-9 for a, b in between for c, d in between)
        assert crossings == 0


def test_a_chain_stands_on_one_line() -> None:
    layout = place([(1.0, height) for height in (0.5, 2.0, 1.0, 0.7)], [0, 1, 2, 3], [(0, 1), (1, 2), (2, 3)])
    assert max(box.middle for box in layout.boxes) - min(box.middle for box in layout.boxes) < 1e-6


@settings(derandomize=True, max_examples=40, deadline=None)
@given(graphs(), st.integers(1, 4))
def test_folding_and_widening_keep_boxes_apart(
    graph: tuple[list[tuple[float, float]], list[int], list[tuple[int, int]]], rows: int
) -> None:
    sizes, columns, links = graph
    layout = place(sizes, columns, links)
    wide = widen(layout, columns, links, column_gap=[2.5] * (max(columns) + 1))
    assert wide.width == pytest.approx(layout.width + 1.5 * max(columns))
    folded = fold(wide, columns, links, rows=rows, gap=0.5)
    assert len(folded.rows) <= rows
    assert folded.width <= wide.width
    for made in (wide, folded):
        everything = [*made.boxes, *(box for way in made.ways for box in way)]
        assert [(box.width, box.height) for box in made.boxes] == [(box.width, box.height) for box in layout.boxes]
        for number, one in enumerate(everything):
            assert one.x >= -1e-9
            assert one.x + one.width <= made.width + 1e-9
            assert any(top - 1e-9 <= one.y and one.y + one.height <= bottom + 1e-9 for top, bottom in made.rows)
            for other in everything[:number]:
                beside = one.x >= other.x + other.width - 1e-9 or other.x >= one.x + one.width - 1e-9
                assert beside or one.y >= other.y + other.height - 1e-9 or other.y >= one.y + one.height - 1e-9
