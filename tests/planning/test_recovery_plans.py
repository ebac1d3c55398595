"""Recovery planners: every plan passes the checker, dp and exact are the best, best-density keeps its guarantee."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings

from holdfast.errors import BadInput
from holdfast.ids import OperatorId
from holdfast.planning.recovery.algorithms import RecoveryAlgorithm, planner_of
from holdfast.planning.recovery.best_density import best_density, grow_candidates, seeds_of
from holdfast.planning.recovery.dp import dp_frontier, recovery_dp
from holdfast.planning.recovery.exact import recovery_exact, relaxed
from holdfast.planning.recovery.operator_centric import operator_centric
from holdfast.planning.recovery.problem import CostUnits, RecoveryPlan, RecoveryProblem, plan_problems, share_bound
from holdfast.topology import Input, Operator, Partitioning, Topology
from holdfast_lab.random_topologies import generate
from holdfast_lab.topologies import named_topology
from planning.recovery_cases import brute_force, problems
from sizes import share


@settings(max_examples=share(150), deadline=None, derandomize=True)
@given(problem=problems())
def test_every_plan_passes_the_checker_and_dp_is_the_best(problem: RecoveryProblem) -> None:
    best = brute_force(problem)
    for algorithm in (RecoveryAlgorithm.BEST_DENSITY, RecoveryAlgorithm.DP, RecoveryAlgorithm.OPERATOR_CENTRIC):
        plan = planner_of(algorithm)(problem)
        assert not plan_problems(problem, plan)
        assert plan.priority <= best <= plan.bound
        if algorithm is RecoveryAlgorithm.DP:
            assert plan.priority == best
            assert plan.optimal
    shared = int(problem.sharing.max()) if len(problem.sharing) else 1
    assert best_density(problem).priority >= (1 - math.exp(-1 / max(1, shared))) * best - 1e-9
    assert best <= share_bound(problem)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(problem=problems())
def test_exact_equals_dp_and_the_relaxation_is_a_bound(problem: RecoveryProblem) -> None:
    exact, dp = recovery_exact(problem), recovery_dp(problem)
    assert not plan_problems(problem, exact)
    assert exact.optimal
    assert exact.priority == dp.priority <= relaxed(problem).bound


@settings(max_examples=40, deadline=None, derandomize=True)
@given(problem=problems())
def test_the_frontier_has_the_best_plan_for_every_capacity(problem: RecoveryProblem) -> None:
    frontier = dp_frontier(problem)
    for part in (0, 0.25, 0.5, 0.75, 1):
        smaller = problem.with_capacity(problem.units.value(int(problem.capacity * part)))
        place = frontier.best_within(smaller.capacity)
        assert frontier.priority[place] == brute_force(smaller)


def test_seeding_only_the_densest_query_would_break_the_guarantee() -> None:
    """Priorities 1 and 9, costs 1 and 10, capacity 10: the densest fills the plan so that the better no longer fits."""
    operators = [
        Operator(OperatorId("A"), cost=1.0, priority=1, output=True),
        Operator(OperatorId("B"), cost=10.0, priority=9, output=True),
    ]
    problem = RecoveryProblem(Topology("two", operators), np.arange(2), 10)
    assert best_density(problem).priority == 9


def test_partitions_already_back_cost_nothing() -> None:
    topology = named_topology("incremental-fig2")
    failed = topology.indices([f"p{n}[0]" for n in range(3, 13)])
    whole = RecoveryProblem(topology, failed, 2)
    assert best_density(whole).priority == 0
    back = topology.indices(["p3[0]", "p5[0]"])
    rest = RecoveryProblem(topology, np.setdiff1d(failed, back), 2)
    plan = best_density(rest)
    assert [str(one) for one in plan.recover] == ["p7[0]", "p9[0]"]
    assert [str(one) for one in plan.queries] == ["p9[0]"]


def test_leftover_goes_to_the_next_query_upstream_first() -> None:
    topology = named_topology("incremental-fig2")
    failed = topology.indices([f"p{n}[0]" for n in range(3, 13)])
    plan = best_density(RecoveryProblem(topology, failed, 2))
    assert [str(one) for one in plan.recover] == ["p3[0]", "p5[0]"]
    assert plan.partial == plan.recover
    assert plan.queries == ()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(problem=problems())
def test_what_is_recovered_can_run(problem: RecoveryProblem) -> None:
    """Whatever comes back has everything upstream of it back: leftovers and operator-centric plans too."""
    for planner in (best_density, operator_centric):
        back = ~problem.missing
        back[problem.topology.indices(planner(problem).recover)] = True
        came = back & problem.missing
        for partition in np.flatnonzero(came):
            assert back[problem.topology.upstream(int(partition))].all()


def test_operator_centric_recovers_level_by_level_cheapest_first() -> None:
    topology = named_topology("incremental-fig2")
    failed = topology.indices([f"p{n}[0]" for n in range(3, 13)])
    plan = operator_centric(RecoveryProblem(topology, failed, 6))
    assert [str(one) for one in plan.recover] == [f"p{n}[0]" for n in range(3, 9)]
    assert plan.priority == 0


def test_decimal_costs_fit_exactly() -> None:
    """0.1 + 0.2 is 0.30000000000000004 in floating point, and fits 0.3 all the same."""
    feed = (Input(OperatorId("A"), Partitioning.ONE_TO_ONE),)
    operators = [Operator(OperatorId("A"), cost=0.1), Operator(OperatorId("B"), inputs=feed, cost=0.2)]
    problem = RecoveryProblem(Topology("tenths", operators), np.arange(2), 0.3)
    for algorithm in RecoveryAlgorithm:
        plan = planner_of(algorithm)(problem)
        assert len(plan.recover) == 2, algorithm
        assert plan.cost == 0.3
        assert not plan_problems(problem, plan)


def test_units_are_exact_for_decimals_and_safe_for_the_rest() -> None:
    units = CostUnits.for_values(np.array([0.25, 3.0, 1.125]))
    assert units.exact
    assert units.costs(np.array([0.25, 3.0])).tolist() == [250, 3000]
    assert units.capacity(0.8 * 3) == 2400
    odd = CostUnits.for_values(np.array([1 / 3, 1e12]))
    assert not odd.exact
    assert Fraction(int(odd.costs(np.array([1 / 3]))[0])) / odd.per_one >= Fraction(1, 3) - Fraction(1, 10**16)
    assert CostUnits.for_values(np.array([1e18, 2e18])).costs(np.array([1e18])).tolist() == [1]
    assert CostUnits.for_values(np.zeros(3)).costs(np.zeros(3)).tolist() == [0, 0, 0]


def test_all_pairs_up_to_a_hundred_queries_and_a_reported_cap_beyond() -> None:
    for queries, capped in ((20, False), (120, True)):
        topology = generate("queries", 3, {"queries": queries})
        problem = RecoveryProblem(topology, np.arange(len(topology)), float(topology.cost.sum()) / 2)
        first, second = seeds_of(problem, 50)
        singles, pairs = np.count_nonzero(second < 0), np.count_nonzero(second >= 0)
        assert singles == queries
        assert pairs == (45 if capped else queries * (queries - 1) // 2)
        plan = best_density(problem, most_pairs=50)
        assert plan.seeds == len(first)
        assert not plan_problems(problem, plan)


def test_growing_many_candidates_is_growing_each() -> None:
    """The rows of the matrices against a plain loop over one candidate."""
    topology = generate("queries", 11, {"queries": 14, "most_shared": 6})
    problem = RecoveryProblem(topology, np.arange(len(topology)), float(topology.cost.sum()) * 0.45)
    best = 0
    first, second = seeds_of(problem, 10**6)
    for seed in zip(first.tolist(), second.tolist(), strict=True):
        chosen = {query for query in seed if query >= 0}
        while True:
            has = problem.groups_of(sorted(chosen))
            left = problem.capacity - int(problem.group_cost[has].sum())
            open_ = [
                query
                for query in range(len(problem.queries))
                if query not in chosen and int(problem.group_cost[problem.member[query] & ~has].sum()) <= left
            ]
            if not open_:
                break

            def density(query: int, has: np.ndarray = has) -> float:
                new = problem.member[query] & ~has
                share = float((problem.group_cost[new] / problem.sharing[new]).sum())
                return float(problem.priority[query]) / share if share else math.inf

            chosen.add(max(open_, key=lambda query: (density(query), -query)))
        best = max(best, int(problem.priority[sorted(chosen)].sum()))
    grown = grow_candidates(problem, keep=5)
    assert int(problem.priority[grown.restored[0]].sum()) == best
    values = [int(problem.priority[row].sum()) for row in grown.restored]
    assert values == sorted(values, reverse=True)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(problem=problems())
def test_exchanges_never_make_a_plan_worse_and_without_them_the_guarantee_holds(problem: RecoveryProblem) -> None:
    plain, better = best_density(problem, exchanges=0), best_density(problem)
    assert not plan_problems(problem, plain)
    assert better.priority >= plain.priority
    shared = int(problem.sharing.max()) if len(problem.sharing) else 1
    assert plain.priority >= (1 - math.exp(-1 / max(1, shared))) * brute_force(problem) - 1e-9


def test_exchanges_gain_where_much_is_shared() -> None:
    topology = generate("queries", 1, {"queries": 50, "most_shared": 20})
    problem = RecoveryProblem(topology, np.arange(len(topology)), float(topology.cost.sum()) * 0.4)
    plain, better = best_density(problem, exchanges=0), best_density(problem)
    assert better.priority > plain.priority
    assert not plan_problems(problem, better)


def test_dp_that_is_cut_short_says_so() -> None:
    topology = generate("queries", 2, {"queries": 12})
    problem = RecoveryProblem(topology, np.arange(len(topology)), float(topology.cost.sum()) * 0.6)
    plan = recovery_dp(problem, most_candidates=20)
    assert not plan_problems(problem, plan)
    assert "candidate plans" in plan.notes[0]
    assert plan.bound >= recovery_dp(problem).priority


def test_exact_out_of_time_has_a_bound_and_a_plan() -> None:
    topology = generate("queries", 1, {"queries": 120, "most_shared": 30})
    problem = RecoveryProblem(topology, np.arange(len(topology)), float(topology.cost.sum()) * 0.4)
    plan = recovery_exact(problem, time_limit=0.01)
    assert not plan_problems(problem, plan)
    assert plan.priority >= best_density(problem).priority
    assert plan.priority <= plan.bound


def test_nothing_failed_and_nothing_to_spend() -> None:
    topology = named_topology("hashtags")
    for failed, capacity in (([], 5), (range(len(topology)), 0)):
        problem = RecoveryProblem(topology, np.array(failed, np.int64), capacity)
        for algorithm in RecoveryAlgorithm:
            plan = planner_of(algorithm)(problem)
            assert (plan.recover, plan.priority, plan.optimal) == ((), 0, True)
            assert not plan_problems(problem, plan)
    with pytest.raises(BadInput, match="capacity"):
        RecoveryProblem(topology, np.arange(2), -1)


def test_the_checker_finds_what_is_wrong() -> None:
    topology = named_topology("incremental-fig2")
    failed = topology.indices([f"p{n}[0]" for n in range(3, 13)])
    problem = RecoveryProblem(topology, failed, 4)
    good = best_density(problem)
    assert good.priority == 1
    p1, p9 = topology.partitions(topology.indices(["p1[0]", "p9[0]"]))
    wrong: list[tuple[RecoveryPlan, str]] = [
        (replace(good, recover=(*good.recover, good.recover[0])), "twice"),
        (replace(good, recover=(*good.recover, p1)), "has not failed"),
        (replace(good, queries=()), "whole but not named"),
        (replace(good, recover=tuple(one for one in good.recover if one != p9)), "named but not whole"),
        (replace(good, priority=2, bound=2), "not the sum of the queries"),
        (replace(good, cost=1.0), "not the sum of the partitions"),
        (replace(good, bound=0), "contradict"),
        (replace(good, partial=(p1,)), "partial"),
    ]
    for plan, words in wrong:
        assert any(words in problem_found for problem_found in plan_problems(problem, plan)), words
    assert any("over 3" in one for one in plan_problems(problem.with_capacity(3), good))
