"""Recipes: the same seed gives the same topology, and each has what its paper asks for."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import BadInput
from holdfast.topology import Partitioning, Queries, Topology, count_mc_trees, parse, shapes_of, to_json, to_yaml
from holdfast_lab.random_topologies import RECIPES, generate, recipe

seeds = st.integers(0, 10**9)
few = settings(derandomize=True, max_examples=25, deadline=None)

# What a seed gives must never change by accident: people cite it. A change needs a line in the changelog.
GOLDEN: dict[tuple[str, int], str] = {
    ("queries", 0): "f9ed63635875caf2",
    ("queries", 1): "7539084c009e8d10",
    ("queries", 2026): "599ceda4335c4bfc",
    ("replication", 0): "3788a7b3c990f32f",
    ("replication", 1): "a80ae9e5412149ec",
    ("replication", 2026): "a12dfc8389286bfa",
    ("lines", 0): "193f4e1857ec048d",
    ("lines", 1): "12132f77db9e91c0",
    ("lines", 2026): "36becbf3a25a9dbd",
    ("tree", 0): "2cc1cefd3a320b63",
    ("tree", 1): "39301db3b2d0fae7",
    ("tree", 2026): "a7bd47c8afc21941",
    ("dag", 0): "b1cd97809dcd0ddf",
    ("dag", 1): "87e7cdaf22f01f0b",
    ("dag", 2026): "4b8cf60c5b9e88b9",
    ("chain", 0): "2492a47bb1d2cfac",
    ("chain", 1): "730c074b61970eef",
    ("chain", 2026): "a5322d451d64674e",
    ("root-tree", 0): "b143476a31b5a942",
    ("root-tree", 1): "202a4ea95838affa",
    ("root-tree", 2026): "b518042c92b95816",
}


@pytest.mark.parametrize(("name", "seed"), GOLDEN)
def test_the_same_seed_gives_the_same_topology_on_any_machine(name: str, seed: int) -> None:
    assert hashlib.sha256(to_json(generate(name, seed)).encode()).hexdigest()[:16] == GOLDEN[name, seed]


def test_every_recipe_has_golden_topologies() -> None:
    assert {name for name, _ in GOLDEN} == set(RECIPES)


@few
@given(seed=seeds, name=st.sampled_from(sorted(RECIPES)))
def test_every_topology_round_trips(seed: int, name: str) -> None:
    topology = generate(name, seed)
    assert parse(to_json(topology), "x.json") == topology
    assert parse(to_yaml(topology), "x.yaml") == topology
    assert topology.name.endswith(f"-seed-{seed}")


@few
@given(
    seed=seeds,
    queries=st.integers(2, 30),
    sizes=st.tuples(st.integers(2, 12), st.integers(2, 12)),
    most_shared=st.integers(1, 8),
    skew=st.sampled_from([0.0, 0.2, 0.5, 2.0]),
    priority=st.sampled_from(["random", "linear"]),
)
def test_queries_have_the_sharing_asked_for(
    seed: int, queries: int, sizes: tuple[int, int], most_shared: int, skew: float, priority: str
) -> None:
    smallest, largest = sorted(sizes)
    most_shared = min(most_shared, queries)
    topology = generate(
        "queries",
        seed,
        {
            "queries": queries,
            "smallest": smallest,
            "largest": largest,
            "most_shared": most_shared,
            "skew": skew,
            "priority": priority,
        },
    )
    found = Queries(topology)
    assert len(found) == queries
    assert found.sizes().min() >= smallest
    assert found.sizes().max() <= largest
    assert found.matrix().sum(axis=0).max() == most_shared
    assert (topology.parallelism == 1).all()
    assert found.priority.min() >= 1
    assert found.priority.max() <= 10
    if priority == "linear":
        work = found.weight(topology.cost)
        assert (np.diff(found.priority[np.argsort(work, kind="stable")]) >= 0).all()
        assert work.min() == work.max() or (found.priority.min() == 1 and found.priority.max() == 10)


def test_skew_moves_share_frequencies_down() -> None:
    def mean(skew: float) -> float:
        settings = {"most_shared": 6, "skew": skew}
        return float(
            np.mean([Queries(generate("queries", s, settings)).matrix().sum(axis=0).mean() for s in range(20)])
        )

    assert mean(0.0) > mean(0.5) > mean(2.0)


def test_queries_are_deep_enough_for_topological_order_to_matter() -> None:
    depths = [int(generate("queries", seed).operator_level.max()) for seed in range(20)]
    assert min(depths) >= 2
    assert max(generate("queries", 1, {"depth": 0}).operator_level) == 1


@few
@given(
    seed=seeds,
    kind=st.sampled_from(["structured", "full", "general"]),
    weights=st.sampled_from(["uniform", "zipf"]),
    join_share=st.sampled_from([0.0, 0.5, 1.0]),
    parallelism=st.tuples(st.integers(1, 12), st.integers(1, 12)),
)
def test_replication_topologies_are_as_asked(
    seed: int, kind: str, weights: str, join_share: float, parallelism: tuple[int, int]
) -> None:
    low, high = sorted(parallelism)
    topology = generate(
        "replication",
        seed,
        {
            "kind": kind,
            "weights": weights,
            "join_share": join_share,
            "least_parallelism": low,
            "most_parallelism": high,
        },
    )
    assert 5 <= len(topology.operators) <= 10
    assert kind in shapes_of(topology).names()
    assert topology.operator_outputs.sum() == 1, "one sink"
    assert topology.parallelism.min() >= low
    assert topology.parallelism.max() <= high
    several = [one for one in topology.operators if len(one.inputs) > 1]
    assert sum(one.joins for one in topology.operators) == round(join_share * len(several))
    assert all(one.joins <= (len(one.inputs) > 1) for one in topology.operators)
    for one in topology.operators:
        assert (one.weights is not None) == (weights == "zipf")
        if one.weights:
            assert max(one.weights) == 1
            assert min(one.weights) == pytest.approx(one.parallelism**-0.1, rel=1e-5)
        if not one.inputs:
            assert one.rate == 1000 * one.parallelism


def test_settings_of_replication_change_only_what_they_name() -> None:
    def skeleton(topology: Topology) -> list[tuple[Any, ...]]:
        return [(o.id, o.parallelism, tuple(i.source for i in o.inputs)) for o in topology.operators]

    for seed in range(5):
        plain = generate("replication", seed)
        for changed in ({"kind": "full"}, {"weights": "zipf"}, {"join_share": 0.5}):
            assert skeleton(generate("replication", seed, changed)) == skeleton(plain)


@few
@given(seed=seeds, times=st.sampled_from(["uniform", "unequal"]))
def test_lines_trees_and_dags_have_their_shapes(seed: int, times: str) -> None:
    lines, tree, dag = (generate(name, seed, {"times": times}) for name in ("lines", "tree", "dag"))
    assert shapes_of(lines).lines
    assert count_mc_trees(lines) == 3
    assert shapes_of(tree).tree_to_sink
    assert len(tree) == 20
    assert [str(tree.partition(int(p))) for p in tree.outputs] == ["v1[0]"]
    assert int(np.diff(tree.up_start).max()) <= 3
    assert len(dag.partitions_by_level) == 9
    assert len(dag.outputs) == 1
    for topology in (lines, tree, dag):
        longest = 10 if times == "unequal" else 1
        assert set(topology.reprocess_seconds.tolist()) <= set(range(1, longest + 1))
        if times == "unequal":
            same = generate(topology.name.split("-seed-")[0].removesuffix("-to-sink"), seed)
            assert np.array_equal(same.edge_from, topology.edge_from), "times do not change the graph"


@few
@given(seed=seeds, operators=st.integers(1, 40))
def test_chains_and_root_trees_have_the_papers_attributes(seed: int, operators: int) -> None:
    chain = generate("chain", seed, {"operators": operators})
    tree = generate("root-tree", seed, {"operators": operators})
    assert shapes_of(chain).chain
    assert shapes_of(tree).tree_from_root
    assert np.bincount(tree.link_from, minlength=operators).max(initial=0) <= 3
    assert chain.source_rate.sum() == pytest.approx(50)
    assert tree.source_rate.sum() == pytest.approx(1000 / 60, rel=1e-5)
    for topology in (chain, tree):
        assert len(topology.operators) == operators
        for one in topology.operators:
            assert 2 <= one.parallelism <= 6
            assert 0.1 <= one.selectivity <= 1
            assert 10e6 <= one.state_bytes <= 20e6
            assert (one.tuple_seconds, one.tuple_bytes) == (0.0006, 1000)
            assert one.failure_rate > 0
            assert all(i.partitioning is Partitioning.FULL for i in one.inputs)


def test_failure_frequencies_have_the_printed_mean_and_grow_with_parallelism() -> None:
    operators = [one for seed in range(200) for one in generate("chain", seed).operators]
    per_minute = np.array([one.failure_rate * 60 for one in operators])
    sizes = np.array([one.parallelism for one in operators])
    assert per_minute.mean() == pytest.approx(0.1, rel=0.03)
    assert (per_minute / sizes * 4).std() == pytest.approx(0.03, rel=0.05)
    assert per_minute[sizes == 6].mean() == pytest.approx(3 * per_minute[sizes == 2].mean(), rel=0.05)


def test_texts_are_read_as_a_command_gives_them() -> None:
    assert generate("queries", 1, {"queries": "5", "skew": "0.5", "priority": "linear"}) == generate(
        "queries", 1, {"queries": 5, "skew": 0.5, "priority": "linear"}
    )
    setting = {one.name: one for one in recipe("replication").settings}
    assert setting["kind"].choices == ("structured", "full", "general")
    assert setting["skew"].default == 0.1
    assert all(one.help for name in RECIPES for one in recipe(name).settings)


@pytest.mark.parametrize(
    ("name", "wrong", "said"),
    [
        ("querys", {}, "did you mean 'queries'"),
        ("queries", {"size": "3"}, "has no setting 'size'"),
        ("queries", {"queries": "many"}, "queries: 'many' is not a whole number"),
        ("queries", {"queries": "1.5"}, "queries: '1.5' is not a whole number"),
        ("queries", {"queries": 0}, "queries: must be 1 or more"),
        ("queries", {"queries": 10**9}, "queries: 1,000,000,000 is too many"),
        ("queries", {"most_shared": 19}, "most_shared: 19 is above the number of queries"),
        ("queries", {"smallest": 13}, "smallest: 13 is above largest 12"),
        ("queries", {"smallest": 1}, "smallest: a query of one partition"),
        ("queries", {"skew": "nan"}, "skew: 'nan' is not a number"),
        ("queries", {"skew": -1}, "skew: must be 0 or more"),
        ("queries", {"priority": "high"}, "priority: 'high' is not a choice; use random or linear"),
        ("replication", {"join_share": 2}, "join_share: must be from 0 to 1"),
        ("replication", {"kind": "general", "least_operators": 2}, "least_operators: a general topology"),
        ("chain", {"operators": True}, "operators: true is not a whole number"),
        ("chain", {"operators": 2.5}, "operators: 2.5 is not a whole number"),
        ("chain", {"least_selectivity": 1.5}, "least_selectivity: 1.5 is above most_selectivity 1"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_would(name: str, wrong: dict[str, object], said: str) -> None:
    with pytest.raises(BadInput) as refused:
        generate(name, 0, wrong)
    assert said in str(refused.value)


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(BadInput, match="seed: must be 0 or more"):
        generate("chain", -1)
