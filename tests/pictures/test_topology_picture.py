from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.image import imread

from holdfast.errors import BadInput
from holdfast.ids import OperatorId
from holdfast.pictures import topology_picture
from holdfast.pictures.topology_groups import groups_of
from holdfast.pictures.topology_marks import COLOUR_OF
from holdfast.pictures.topology_picture import draw_topology
from holdfast.topology import Input, Operator, Partitioning, Topology
from holdfast_lab.random_topologies import generate
from holdfast_lab.topologies import named_topology


def svg_of(topology: Topology, path: Path) -> str:
    draw_topology(topology, path)
    text = path.read_text()
    ElementTree.fromstring(text)
    return text


def words(svg: str) -> set[str]:
    """The texts of a picture: matplotlib writes each into a comment beside its outlines."""
    return {word.strip() for word in re.findall(r"<!-- (.*?) -->", svg)}


def test_traffic_shows_what_a_reader_needs(tmp_path: Path) -> None:
    svg = svg_of(named_topology("traffic"), tmp_path / "traffic.svg")
    shown = words(svg)
    assert {"traffic", "5 operators · 10 partitions · 12 task edges · 8 queries"} <= shown
    assert {"locations", "incidents", "speeds", "reports", "jams", "⋈ join"} <= shown
    assert {f"[{index}]" for index in range(4)} <= shown
    assert {"20,000/s", "20,000 → 1,000/s"} <= shown
    assert {"one-to-one", "split", "merge", "source", "joins its inputs", "output, with priority"} <= shown
    assert "full" not in shown, "the legend names only what occurs"
    assert {"5", "4", "3"} <= shown, "priorities"
    for kind in (Partitioning.ONE_TO_ONE, Partitioning.SPLIT, Partitioning.MERGE):
        assert COLOUR_OF[kind].lower() in svg
    assert COLOUR_OF[Partitioning.FULL].lower() not in svg


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_the_same_topology_gives_the_same_bytes(tmp_path: Path, ending: str) -> None:
    for name in ("a", "b"):
        draw_topology(named_topology("traffic"), tmp_path / name, format=ending)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert b"matplotlib" not in (tmp_path / "a").read_bytes()[:600].lower()


def test_a_png_is_a_picture_of_some_size(tmp_path: Path) -> None:
    draw_topology(named_topology("hashtags"), tmp_path / "hashtags.png")
    pixels = imread(tmp_path / "hashtags.png")
    assert pixels.shape[1] > 1000
    assert pixels.shape[0] > 500
    assert (pixels[:8] == 1).all(), "white at the border"
    assert (pixels[-8:] == 1).all()


def test_large_fans_are_bundled_and_long_operators_collapsed(tmp_path: Path) -> None:
    svg = svg_of(named_topology("sentiment-50-20-20"), tmp_path / "s.svg")
    shown = words(svg)
    assert "… 44 more" in shown
    assert "20 × 20" in shown
    assert "[49]" in shown
    assert "[30]" not in shown
    assert svg.count("<path") < 1500


def test_hundreds_of_partitions_make_no_larger_picture(tmp_path: Path) -> None:
    def wide(count: int) -> Topology:
        one_to_one = (Input(OperatorId("a"), Partitioning.ONE_TO_ONE),)
        return Topology("wide", [Operator(OperatorId("a"), count), Operator(OperatorId("b"), count, one_to_one)])

    svg_of(wide(20), tmp_path / "20.svg")
    svg_of(wide(2000), tmp_path / "2000.svg")
    assert (tmp_path / "2000.svg").stat().st_size < 1.2 * (tmp_path / "20.svg").stat().st_size


def test_slots_keep_every_edge_of_the_shown_partitions() -> None:
    topology = generate("dag", 1)
    groups = groups_of(topology)
    for link in range(len(topology.link_to)):
        drawn = set(topology_picture._slot_edges(topology, groups, link))
        start, end = int(topology.link_from[link]), int(topology.link_to[link])
        up, down = (topology.partitions_of(topology.operators[number].id) for number in (start, end))
        real = {
            (groups[start].slot_of[int(sender) - up[0]], groups[end].slot_of[receiver - down[0]])
            for receiver in down
            for sender in topology.upstream(receiver)
            if sender in up
        }
        assert drawn == real


def test_odd_topologies_are_drawn(tmp_path: Path) -> None:
    svg_of(Topology("one", [Operator(OperatorId("x" * 100), 1, priority=123_456_789)]), tmp_path / "one.svg")
    svg_of(Topology("a < b & $c$ \\alpha _x^2", [Operator(OperatorId("a"), 3, rate=0)]), tmp_path / "odd.svg")


def test_too_many_operators_are_refused(tmp_path: Path) -> None:
    many = Topology("many", [Operator(OperatorId(f"o{number}")) for number in range(401)])
    with pytest.raises(BadInput, match="too many for a picture"):
        draw_topology(many, tmp_path / "many.svg")
