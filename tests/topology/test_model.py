"""The model against slow, plain computations of the same things."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings

from holdfast.errors import BadInput
from holdfast.ids import OperatorId, PartitionId
from holdfast.topology import (
    Input,
    Operator,
    Partitioning,
    Queries,
    SubKind,
    Topology,
    count_mc_trees,
    decompose,
    distinct_mc_trees,
    mc_trees,
    rates_of,
    shapes_of,
    smallest_mc_tree_size,
)
from sizes import share
from topology.topology_strategies import topologies

FULL, MERGE, SPLIT, ONE = Partitioning.FULL, Partitioning.MERGE, Partitioning.SPLIT, Partitioning.ONE_TO_ONE


def op(name: str, size: int = 1, *inputs: tuple[str, Partitioning], **values: object) -> Operator:
    feeds = tuple(Input(OperatorId(source), kind) for source, kind in inputs)
    return Operator(OperatorId(name), size, feeds, **values)  # type: ignore[arg-type]


def chain(*sizes: int, kind: Partitioning = FULL) -> Topology:
    operators = [op("o0", sizes[0])]
    operators += [op(f"o{i}", size, (f"o{i - 1}", kind)) for i, size in enumerate(sizes) if i]
    return Topology("chain", operators)


def plain_edges(topology: Topology) -> list[tuple[int, int, int]]:
    """(upstream, downstream, input position), straight from the contract's words."""
    edges = []
    for number, operator in enumerate(topology.operators):
        for order, one in enumerate(operator.inputs):
            at = topology.position(one.source)
            n1, n2 = topology.operators[at].parallelism, operator.parallelism
            for i in range(n1):
                for j in range(n2):
                    joined = {ONE: i == j, SPLIT: i == j * n1 // n2, MERGE: j == i * n2 // n1, FULL: True}
                    if joined[one.partitioning]:
                        edges.append((int(topology.first[at]) + i, int(topology.first[number]) + j, order))
    return edges


@given(topologies())
def test_edges_are_those_of_the_contract(topology: Topology) -> None:
    order = topology.edge_stream - topology.stream_start[topology.edge_to]
    found = list(zip(topology.edge_from.tolist(), topology.edge_to.tolist(), order.tolist(), strict=True))
    assert sorted(found) == sorted(plain_edges(topology))
    assert found == sorted(found, key=lambda edge: (edge[1], edge[2], edge[0])), "sorted by downstream, input, upstream"
    for p in range(len(topology)):
        assert topology.upstream(p).tolist() == sorted({u for u, v, _ in found if v == p})
        assert topology.downstream(p).tolist() == sorted({v for u, v, _ in found if u == p})
        edges = topology.down_edges[topology.down_start[p] : topology.down_start[p + 1]]
        assert (topology.edge_from[edges] == p).all()
        assert (topology.edge_to[topology.up_start[p] : topology.up_start[p + 1]] == p).all()


@given(topologies())
def test_rates_are_those_of_the_contract(topology: Topology) -> None:
    rates = rates_of(topology)
    weights = topology.weights.tolist()
    sends: dict[tuple[int, int], list[int]] = {}
    edges = plain_edges(topology)
    for u, v, _ in edges:
        sends.setdefault((u, int(topology.operator_of[v])), []).append(v)
    entering = [0.0] * len(topology)
    leaving = [0.0] * len(topology)
    for number in topology.operator_order:
        operator = topology.operators[number]
        for p in topology.partitions_of(operator.id):
            if operator.is_source:
                total = sum(weights[q] for q in topology.partitions_of(operator.id))
                entering[p] = (1 if operator.rate is None else operator.rate) * weights[p] / total
            else:
                for u, v, _ in edges:
                    if v == p:
                        targets = sends[u, number]
                        entering[p] += leaving[u] * weights[p] / sum(weights[q] for q in targets)
            leaving[p] = entering[p] * operator.selectivity
    assert rates.input == pytest.approx(entering)
    assert rates.output == pytest.approx(leaving)
    into = np.bincount(topology.edge_to, rates.edge, minlength=len(topology))
    assert into[~topology.is_source] == pytest.approx(rates.input[~topology.is_source])
    assert rates.stream.sum() == pytest.approx(rates.edge.sum())


@given(topologies())
def test_output_goes_whole_to_every_consumer(topology: Topology) -> None:
    rates = rates_of(topology)
    link = topology.stream_link[topology.edge_stream]
    for number in range(len(topology.link_to)):
        upstream = topology.partitions_of(topology.operators[topology.link_from[number]].id)
        assert rates.edge[link == number].sum() == pytest.approx(rates.output[list(upstream)].sum())


@given(topologies())
def test_queries_are_upstream_closures(topology: Topology) -> None:
    queries = Queries(topology)
    matrix = queries.matrix()
    for number, head in enumerate(queries.heads.tolist()):
        closure, stack = {head}, [head]
        while stack:
            for upstream in topology.upstream(stack.pop()).tolist():
                if upstream not in closure:
                    closure.add(upstream)
                    stack.append(upstream)
        assert queries.members(number).tolist() == sorted(closure)
        assert np.flatnonzero(matrix[number]).tolist() == sorted(closure)
        assert queries.sizes()[number] == len(closure)
    for p in range(len(topology)):
        assert queries.containing(p).tolist() == np.flatnonzero(matrix[:, p]).tolist()
    assert queries.weight(topology.cost) == pytest.approx(matrix @ topology.cost)


@given(topologies(most_operators=5, most_partitions=3))
@settings(max_examples=share(60))
def test_mc_trees_are_counted_as_they_are_listed(topology: Topology) -> None:
    count = count_mc_trees(topology)
    if count > 20_000:
        return
    listed = list(mc_trees(topology))
    assert len(listed) == count
    assert sorted(set(listed)) == sorted(distinct_mc_trees(topology))
    assert smallest_mc_tree_size(topology) >= min(map(len, listed))
    for tree in listed[:50]:
        members = set(tree)
        assert members & set(topology.outputs.tolist())
        for p in tree:
            streams = range(topology.stream_start[p], topology.stream_start[p + 1])
            fed = [
                bool(members & set(topology.edge_from[topology.edge_start[s] : topology.edge_start[s + 1]].tolist()))
                for s in streams
            ]
            assert topology.is_source[p] or (all(fed) if topology.joins[p] else any(fed)), "a tree is complete"


def test_mc_trees_of_a_long_full_chain_are_counted_without_listing() -> None:
    assert count_mc_trees(chain(*[100] * 50)) == 100**50
    first = next(mc_trees(chain(*[100] * 50)))
    assert len(first) == 50


def test_mc_trees_of_a_very_long_chain_are_listed() -> None:
    assert next(mc_trees(chain(*[1] * 5000))) == tuple(range(5000))


def test_levels_and_orders() -> None:
    topology = Topology("diamond", [op("D", 1, ("B", FULL), ("A", FULL)), op("B", 2, ("A", FULL)), op("A")])
    assert topology.operator_level.tolist() == [2, 1, 0]
    assert [topology.operators[o].id for o in topology.operator_order] == ["A", "B", "D"]
    assert [part.tolist() for part in topology.partitions_by_level] == [[3], [1, 2], [0]]


def test_names_and_numbers() -> None:
    topology = chain(2, 3)
    assert topology.index("o1[2]") == 4
    assert topology.partition(4) == PartitionId(OperatorId("o1"), 2)
    assert topology.indices(["o0[1]", PartitionId(OperatorId("o1"), 0)]).tolist() == [1, 2]
    for wrong in ("o1[3]", "o9[0]", "o1", "o1[-1]", "o1[01]", "o1[0"):
        with pytest.raises(BadInput) as caught:
            topology.index(wrong)
        assert caught.value.remedy


def test_a_model_cannot_be_changed() -> None:
    topology = chain(2, 3)
    with pytest.raises(ValueError, match="read-only"):
        topology.edge_from[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        topology.weights[0] = 1


@pytest.mark.parametrize(
    ("topology", "shapes"),
    [
        (chain(1, 1, 1), {"lines", "tree-to-sink", "chain", "tree-from-root", "full"}),
        (chain(3, 3, kind=ONE), {"lines", "chain", "tree-from-root", "structured"}),
        (chain(4, 2, 1, kind=MERGE), {"tree-to-sink", "chain", "tree-from-root", "structured"}),
        (chain(1, 2, 4, kind=SPLIT), {"chain", "tree-from-root", "structured"}),
        (chain(2, 2), {"chain", "tree-from-root", "full"}),
        (
            Topology("two", [op("a"), op("b", 1, ("a", FULL)), op("c", 2, ("a", SPLIT))]),
            {"tree-from-root", "general"},
        ),
        (
            Topology("join", [op("a"), op("b"), op("c", 1, ("a", FULL), ("b", FULL))]),
            {"lines", "tree-to-sink", "full"},
        ),
        (Topology("one", [op("a")]), {"lines", "tree-to-sink", "chain", "tree-from-root", "structured", "full"}),
    ],
    ids=lambda value: value.name if isinstance(value, Topology) else "",
)
def test_shapes(topology: Topology, shapes: set[str]) -> None:
    assert set(shapes_of(topology).names()) == shapes


@given(topologies(most_operators=8))
def test_decomposition_holds_every_operator_once_and_keeps_its_kind(topology: Topology) -> None:
    subs = decompose(topology)
    assert sorted(one for sub in subs for one in sub.operators) == list(range(len(topology.operators)))
    full = topology.link_kind == list(Partitioning).index(FULL)
    for sub in subs:
        members = set(sub.operators)
        inside = [a in members and b in members for a, b in zip(topology.link_from, topology.link_to, strict=True)]
        assert set(full[inside]) <= {sub.kind is SubKind.FULL}


def test_decomposition_of_a_merge_tree_behind_a_full_exchange() -> None:
    topology = Topology(
        "fig1", [op("O1", 4), op("O2", 4), op("O3", 4, ("O1", ONE), ("O2", ONE)), op("O4", 2, ("O3", FULL))]
    )
    subs = decompose(topology)
    assert [[topology.operators[o].id for o in sub.operators] for sub in subs] == [["O4"], ["O1", "O2", "O3"]]
    assert count_mc_trees(topology) == 16


def test_decomposition_is_as_small_as_can_be_on_small_topologies() -> None:
    """Compare with every labelling of operators as full or structured, on all chains of four links."""
    from itertools import product

    for kinds in product([FULL, ONE], repeat=4):
        operators = [op("o0", 2)] + [op(f"o{i + 1}", 2, (f"o{i}", kind)) for i, kind in enumerate(kinds)]
        least = 5
        for labels in product([FULL, ONE], repeat=5):
            kept = sum(a == b == kind for a, b, kind in zip(labels[:-1], labels[1:], kinds, strict=True))
            least = min(least, 5 - kept)
        assert len(decompose(Topology("row", operators))) == least, kinds


@pytest.mark.parametrize("bad", [float("nan"), -1.0, float("inf"), True, "1"])
def test_the_model_refuses_bad_values_however_it_is_built(bad: object) -> None:
    with pytest.raises(BadInput) as caught:
        Topology("x", [op("a", 1, selectivity=bad)])
    assert caught.value.field == "operators[0].selectivity"


def test_weights_divide_a_split_within_its_group() -> None:
    topology = Topology("w", [op("a", 2, rate=8), op("b", 4, ("a", SPLIT), weights=(3, 1, 0, 5))])
    assert rates_of(topology).input.tolist() == [4, 4, 3, 1, 0, 4]
    assert Fraction(3, 4) == Fraction(topology.stream_share[0])
