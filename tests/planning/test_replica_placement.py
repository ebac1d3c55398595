"""Placing replicas: the rules always hold, and with equal costs as many are placed as can be."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadInput
from holdfast.ids import NodeId, OperatorId, PartitionId
from holdfast.planning.replicas.placement import (
    LeftOut,
    Replica,
    ReplicaNode,
    ReplicaPlacement,
    allowed,
    place_replicas,
    placement_problems,
)

ONE = st.just(1.0)
DOMAINS = st.sampled_from([None, "a", "b", "c"])


def partition(index: int) -> PartitionId:
    return PartitionId(OperatorId("o"), index)


def node(name: str, room: float = 1.0, domain: str | None = None) -> ReplicaNode:
    return ReplicaNode(NodeId(name), room, domain)


def replica(index: int, primary: str | None = None, domain: str | None = None, cost: float = 1.0) -> Replica:
    return Replica(partition(index), None if primary is None else NodeId(primary), domain, cost)


@st.composite
def cases(draw: st.DrawFn, costs: st.SearchStrategy[float] = ONE) -> tuple[list[Replica], list[ReplicaNode]]:
    nodes = [node(f"n{number}", draw(st.integers(0, 3)), draw(DOMAINS)) for number in range(draw(st.integers(0, 4)))]
    primaries = st.sampled_from([None, "elsewhere", *(one.id for one in nodes)])
    count = draw(st.integers(0, 6))
    return [replica(i, draw(primaries), draw(DOMAINS), draw(costs)) for i in range(count)], nodes


@given(cases(costs=st.sampled_from([0.0, 0.5, 1.0, 1.7, 3.0])))
def test_every_placement_keeps_the_rules(case: tuple[list[Replica], list[ReplicaNode]]) -> None:
    replicas, nodes = case
    found = place_replicas(replicas, nodes)
    assert placement_problems(found, replicas, nodes) == []
    assert all(one.reason for one in found.left_out)


@given(cases())
def test_with_equal_costs_the_first_ones_that_can_all_be_placed_are(
    case: tuple[list[Replica], list[ReplicaNode]],
) -> None:
    replicas, nodes = case
    domain_of = {one.id: one.domain for one in nodes}

    def all_fit(chosen: list[Replica]) -> bool:
        options = [[n for n in nodes if allowed(r, n, domain_of)] for r in chosen]
        return any(all(sum(n.id == one.id for one in ways) <= n.room for n in nodes) for ways in product(*options))

    # The plain rule: go through the replicas in order, keep each that fits together with those kept.
    kept: list[Replica] = []
    for one in replicas:
        if all_fit([*kept, one]):
            kept.append(one)
    assert set(place_replicas(replicas, nodes).nodes) == {one.partition for one in kept}


def test_replicas_move_on_to_make_room() -> None:
    # o[0] may go to both nodes and takes the roomier; o[1] may only go there.
    nodes = [node("big", 1.0, "x"), node("small", 1.0, "y")]
    found = place_replicas([replica(0), replica(1, domain="y")], nodes)
    assert found.nodes == {partition(0): "small", partition(1): "big"}


def test_reasons_name_what_stands_in_the_way() -> None:
    nodes = [node("n1", 1.0, "rack-1"), node("n2", 1.0, "rack-1")]
    said = place_replicas([replica(0, "n1"), replica(1, "other", "rack-1")], nodes).left_out
    assert said[0].reason == said[1].reason == "every other node is in the failure domain of its primary (rack-1)"
    assert place_replicas([replica(0)], []).left_out[0].reason == "there are no nodes for replicas"
    assert place_replicas([replica(0, "n")], [node("n")]).left_out[0].reason.startswith("the only node is n")
    assert place_replicas([replica(0, cost=2.0)], [node("n")]).left_out[0].reason.startswith("it needs 2, and no")
    full = place_replicas([replica(0), replica(1)], [node("n")])
    assert full.left_out == (LeftOut(partition(1), "the 1 nodes it may run on are full"),)


def test_the_domain_of_a_node_that_only_holds_primaries_counts() -> None:
    found = place_replicas([replica(0, "p")], [node("n", 1.0, "rack-1")], domain_of={NodeId("p"): "rack-1"})
    assert found.nodes == {}


def test_names_twice_are_refused() -> None:
    with pytest.raises(BadInput):
        place_replicas([replica(0)], [node("n"), node("n")])
    with pytest.raises(BadInput):
        place_replicas([replica(0), replica(0)], [node("n")])


def test_the_checker_finds_every_broken_rule() -> None:
    nodes = [node("n1", 1.0, "x"), node("n2", 1.0, "y"), node("n3", 1.0)]
    replicas = [replica(0, "n1"), replica(1, "n2")]
    good = place_replicas(replicas, nodes)
    assert placement_problems(good, replicas, nodes) == []

    def said(at: dict[int, str], left: tuple[LeftOut, ...] = ()) -> str:
        placement = ReplicaPlacement({partition(i): NodeId(n) for i, n in at.items()}, left)
        return "; ".join(placement_problems(placement, replicas, nodes))

    assert "with its primary" in said({0: "n1", 1: "n3"})
    assert "not among the nodes" in said({0: "n9", 1: "n3"})
    assert "n3 holds 2 and has room for 1" in said({0: "n3", 1: "n3"})
    assert "neither placed nor left out" in said({0: "n3"})
    assert "placed and left out" in said({0: "n3", 1: "n1"}, (LeftOut(partition(1), "?"),))
    assert "was not to be" in said({0: "n3", 1: "n1", 2: "n2"})
    nodes[1] = replace(nodes[1], domain="x")
    assert "in the failure domain" in said({0: "n2", 1: "n3"})
