"""Replica planners: plans pass the checker, dp and exact find the best, structure-aware is never below greedy."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import BadInput, CheckFailed
from holdfast.ids import OperatorId
from holdfast.planning.replicas import exact as replica_exact
from holdfast.planning.replicas.algorithms import ReplicaAlgorithm, plan_replicas
from holdfast.planning.replicas.completion import Completion, present
from holdfast.planning.replicas.dp import dp
from holdfast.planning.replicas.exact import exact, relaxed_bound
from holdfast.planning.replicas.fidelity import LossModel, Metric
from holdfast.planning.replicas.greedy import greedy
from holdfast.planning.replicas.plan import ReplicaPlan, checked, problems_of
from holdfast.planning.replicas.structure_aware import StructureAware, structure_aware
from holdfast.planning.replicas.units import units_of
from holdfast.topology import Input, Operator, Partitioning, Topology, smallest_mc_tree_size
from sizes import share
from topology.topology_strategies import topologies

FULL, MERGE, SPLIT, ONE = Partitioning.FULL, Partitioning.MERGE, Partitioning.SPLIT, Partitioning.ONE_TO_ONE
METRICS = st.sampled_from(list(Metric))
SMALL = topologies(most_operators=5, most_partitions=3)


def op(name: str, size: int = 1, *inputs: tuple[str, Partitioning], **values: object) -> Operator:
    feeds = tuple(Input(OperatorId(source), kind) for source, kind in inputs)
    return Operator(OperatorId(name), size, feeds, **values)  # type: ignore[arg-type]


def still() -> float:
    return 0.0


def value(model: LossModel, replicas: list[int] | tuple[int, ...]) -> float:
    alive = np.zeros(len(model.topology), bool)
    alive[list(replicas)] = True
    return model.value(alive)


def best_of_all(model: LossModel, budget: int) -> float:
    count = len(model.topology)
    return max(value(model, chosen) for chosen in combinations(range(count), min(budget, count)))


@settings(max_examples=share(40))
@given(SMALL, METRICS, st.integers(0, 15), st.sampled_from(list(ReplicaAlgorithm)))
def test_every_plan_passes_the_checker(
    topology: Topology, metric: Metric, budget: int, algorithm: ReplicaAlgorithm
) -> None:
    plan = plan_replicas(topology, budget, clock=still, algorithm=algorithm, metric=metric)
    assert problems_of(topology, plan) == []
    assert plan.algorithm == algorithm
    if budget >= len(topology):
        assert plan.value == pytest.approx(1.0)
        assert plan.optimal


@settings(max_examples=share(60))
@given(topologies(most_operators=4, most_partitions=3), METRICS, st.integers(0, 8))
def test_dp_and_exact_find_the_best_plan(topology: Topology, metric: Metric, budget: int) -> None:
    model = LossModel(topology, metric)
    best = best_of_all(model, budget)
    found = dp(model, min(budget, len(topology)), out_of_time=lambda: False)
    assert found.complete
    assert value(model, found.replicas) == pytest.approx(best, rel=1e-9)
    proven = exact(model, min(budget, len(topology)), 30.0, [])
    assert proven.optimal
    assert value(model, proven.replicas) == pytest.approx(best, rel=1e-9)


@settings(max_examples=share(30))
@given(topologies(most_operators=5, most_partitions=4), METRICS, st.integers(2, 8))
def test_the_program_agrees_with_dp_where_not_all_plans_are_tried(
    topology: Topology, metric: Metric, budget: int
) -> None:
    model = LossModel(topology, metric)
    limit = min(budget, len(topology) - 1)
    found = dp(model, limit, out_of_time=lambda: False)
    proven = replica_exact._solve(model, limit, 30.0, (), whole=True)
    best = value(model, found.replicas)
    assert value(model, proven.replicas) <= best + 1e-9
    assert proven.bound >= best - replica_exact.TOLERANCE
    if replica_exact.expanded_joins(model) is not None:
        assert proven.optimal
        assert value(model, proven.replicas) == pytest.approx(best, abs=2 * replica_exact.TOLERANCE)
    assert relaxed_bound(model, limit, 30.0) >= best - replica_exact.TOLERANCE
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replica_exact, "MOST_RELAXED", 0)
        assert relaxed_bound(model, limit, 30.0) >= best - 1e-9


@settings(max_examples=share(60))
@given(topologies(), METRICS, st.integers(0, 20))
def test_structure_aware_is_never_below_greedy(topology: Topology, metric: Metric, budget: int) -> None:
    model = LossModel(topology, metric)
    own, other = structure_aware(model, budget), greedy(model, budget)
    assert len(set(own)) == len(own) <= budget
    assert value(model, own) >= value(model, other) - 1e-12


@settings(max_examples=share(60))
@given(topologies(), METRICS, st.data())
def test_structure_aware_finds_a_tree_when_the_smallest_fits(
    topology: Topology, metric: Metric, data: st.DataObject
) -> None:
    model = LossModel(topology, metric)
    # Where branches of a join meet again the size is an upper bound, so this asks no more than it may.
    least = smallest_mc_tree_size(topology) if metric is Metric.FIDELITY else 1
    budget = data.draw(st.integers(least, len(topology)))
    assert value(model, StructureAware(model).extended([], budget)) > 0


@settings(max_examples=share(40))
@given(topologies(), METRICS, st.integers(0, 2**32 - 1))
def test_each_step_of_structure_aware_raises_the_metric_and_keeps_what_it_has(
    topology: Topology, metric: Metric, seed: int
) -> None:
    model = LossModel(topology, metric)
    random = np.random.default_rng(seed)
    start = random.permutation(len(topology))[: random.integers(0, 4)].tolist()
    more = StructureAware(model).extended(start, len(start) + 6)
    assert more[: len(start)] == start
    assert value(model, more) >= value(model, start)
    assert value(model, StructureAware(model).extended(start, len(topology))) == pytest.approx(1.0)


@settings(max_examples=share(60))
@given(topologies(), METRICS, st.booleans(), st.integers(0, 2**32 - 1))
def test_completions_make_partitions_count(topology: Topology, metric: Metric, cheapest: bool, seed: int) -> None:
    model = LossModel(topology, metric)
    alive = np.random.default_rng(seed).random(len(topology)) < 0.3
    now = present(model, alive)
    completion = Completion(model, now, cheapest=cheapest)
    for p in range(len(topology)):
        added: set[int] = set()
        completion.feed(p, added)
        completion.use(p, added)
        with_it = alive.copy()
        with_it[list(added)] = True
        after = present(model, with_it)
        assert after.kept[p] > 0
        assert after.slope[p] > 0
        if not model.joins.any():
            assert len(added) == completion.up_cost[p] + completion.down_cost[p]


def figure_3a() -> Topology:
    return Topology("3a", [op("O1", 4), op("O2", 2, ("O1", MERGE)), op("O3", 4, ("O2", SPLIT))])


def figure_3b() -> Topology:
    return Topology("3b", [op("O1", 4), op("O2", 2), op("O3", 2, ("O1", MERGE), ("O2", ONE), joins=True)])


def test_units_of_figure_3() -> None:
    units = units_of(LossModel(figure_3a()))
    assert units.units == ((0,), (1, 2))
    assert units.segments == ((0,), (1,), (2,), (3,), (4, 6), (4, 7), (5, 8), (5, 9))
    units = units_of(LossModel(figure_3b()))
    assert units.units == ((0,), (1, 2))
    assert units.segments == ((0,), (1,), (2,), (3,), (4, 6), (5, 7))


def test_a_merge_tree_is_one_unit_with_a_segment_per_leaf() -> None:
    tree = Topology("tree", [op("a", 8), op("b", 4, ("a", MERGE)), op("c", 1, ("b", MERGE))])
    units = units_of(LossModel(tree))
    assert units.units == ((0, 1, 2),)
    assert len(units.segments) == 8


def test_operators_joined_by_full_partitioning_are_units_of_single_partitions() -> None:
    chain = Topology("chain", [op("a", 3), op("b", 2, ("a", FULL)), op("c", 2, ("b", FULL))])
    units = units_of(LossModel(chain))
    assert sorted(units.units) == [(0,), (1,), (2,)]
    assert units.segments == tuple((p,) for p in range(7))


def test_a_unit_with_far_too_many_segments_is_cut_into_operators() -> None:
    operators = [op("s", 2)]
    for number in range(12):
        before = operators[-1].id
        operators += [op(f"l{number}", 2, (before, ONE)), op(f"r{number}", 2, (before, ONE))]
        operators.append(op(f"m{number}", 2, (f"l{number}", ONE), (f"r{number}", ONE)))
    diamonds = Topology("diamonds", operators)
    units = units_of(LossModel(diamonds))
    assert len(units.units) == len(operators)
    assert len(units.segments) == len(diamonds)
    plan = plan_replicas(diamonds, 25, clock=still)
    assert len(plan.replicas) == 25
    assert plan.fidelity == pytest.approx(0.5 * 0.5**12)


def test_a_budget_below_the_smallest_tree_plans_nothing() -> None:
    for algorithm in (ReplicaAlgorithm.STRUCTURE_AWARE, ReplicaAlgorithm.DP, ReplicaAlgorithm.EXACT):
        plan = plan_replicas(figure_3b(), 2, clock=still, algorithm=algorithm)
        assert plan.replicas == ()
        assert plan.fidelity == plan.bound == 0.0
        assert plan.optimal
    assert len(plan_replicas(figure_3b(), 2, clock=still, algorithm=ReplicaAlgorithm.GREEDY).replicas) == 2


def test_greedy_takes_the_partitions_whose_failure_costs_most() -> None:
    skewed = Topology("skewed", [op("a", 3, weights=(1, 5, 2)), op("b", 1, ("a", MERGE))])
    plan = plan_replicas(skewed, 3, clock=still, algorithm=ReplicaAlgorithm.GREEDY)
    assert [str(one) for one in plan.replicas] == ["b[0]", "a[1]", "a[2]"]
    assert plan.fidelity == pytest.approx(7 / 8)


def test_dp_out_of_time_says_so_and_keeps_its_best() -> None:
    wide = Topology("wide", [op("a", 12), op("b", 12, ("a", FULL)), op("c", 12, ("b", FULL))])
    model = LossModel(wide)
    calls = iter(range(10**9))
    found = dp(model, 18, out_of_time=lambda: next(calls) > 20)
    assert not found.complete
    assert 0 < value(model, found.replicas) < 1
    found = dp(model, 18, out_of_time=lambda: False, most_plans=5_000)
    assert not found.complete
    now = iter(range(10**9))
    plan = plan_replicas(wide, 18, clock=lambda: float(next(now)), algorithm=ReplicaAlgorithm.DP, seconds=3.0)
    assert not plan.optimal
    assert plan.bound >= plan.fidelity


def test_exact_out_of_time_keeps_the_start_and_gives_a_bound() -> None:
    wide = Topology(
        "wide",
        [
            op("a", 30, weights=tuple(range(1, 31))),
            op("b", 30, ("a", FULL)),
            op("c", 15, ("b", MERGE)),
            op("d", 20, ("c", FULL)),
        ],
    )
    model = LossModel(wide)
    start = structure_aware(model, 40)
    found = exact(model, 40, 0.2, start)
    assert value(model, found.replicas) >= value(model, start)
    assert found.bound >= value(model, found.replicas)


def test_rates_of_zero_do_not_stop_a_plan() -> None:
    silent = Topology("silent", [op("a", 3, rate=0.0), op("b", 3, ("a", ONE)), op("c", 1, ("b", FULL))])
    for algorithm in ReplicaAlgorithm:
        plan = plan_replicas(silent, 5, clock=still, algorithm=algorithm)
        assert plan.fidelity == pytest.approx(2 / 3 if algorithm is not ReplicaAlgorithm.GREEDY else 1 / 3)


def test_a_negative_budget_is_refused() -> None:
    with pytest.raises(BadInput, match="zero or more"):
        plan_replicas(figure_3a(), -1, clock=still)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"fidelity": 0.9}, "fidelity is"),
        ({"completeness": 0.1}, "completeness is"),
        ({"budget": 2}, "for a budget of 2"),
        ({"bound": 0.01}, "exceeds its bound"),
        ({"bound": 1.0, "optimal": True}, "marked optimal"),
    ],
)
def test_the_checker_refuses_a_plan_that_is_not_what_it_says(change: dict[str, object], said: str) -> None:
    plan = plan_replicas(figure_3a(), 4, clock=still)
    wrong: ReplicaPlan = replace(plan, **change)  # type: ignore[arg-type]
    assert any(said in one for one in problems_of(figure_3a(), wrong))
    with pytest.raises(CheckFailed):
        checked(figure_3a(), wrong)


def test_the_checker_refuses_twice_and_unknown() -> None:
    plan = plan_replicas(figure_3a(), 4, clock=still)
    twice = replace(plan, replicas=(*plan.replicas[:-1], plan.replicas[0]))
    assert "a partition has two replicas" in problems_of(figure_3a(), twice)
    assert problems_of(figure_3b(), plan_replicas(figure_3a(), 10, clock=still))[-1].endswith("is not in 3b")


def test_a_chain_of_thousands_of_operators_does_not_run_out_of_stack() -> None:
    operators = [op("o0", 2, weights=(2, 1))]
    operators += [op(f"o{number}", 2, (f"o{number - 1}", ONE)) for number in range(1, 1_500)]
    long = Topology("long", operators)
    model = LossModel(long)
    for replicas in (StructureAware(model).extended([], 1_500), dp(model, 1_500, out_of_time=lambda: False).replicas):
        assert sorted(replicas) == list(range(0, 3_000, 2))
        assert value(model, list(replicas)) == pytest.approx(2 / 3)
