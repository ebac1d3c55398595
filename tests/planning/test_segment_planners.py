"""Planners of segments against brute force, against the printed algorithms, and against each other."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import NoPlan, Undecided
from holdfast.planning.segments import min_plus
from holdfast.planning.segments.baselines import plan_n_segments, plan_one_segment
from holdfast.planning.segments.chain import plan_chain
from holdfast.planning.segments.dag import plan_dag
from holdfast.planning.segments.grid import FrequencyGrid
from holdfast.planning.segments.model import SegmentModel, SegmentPlan, check_plan
from holdfast.planning.segments.refine import refine
from holdfast.planning.segments.tree import plan_tree
from holdfast_lab.transcriptions.segment_chain import algorithm_1, algorithm_2
from holdfast_lab.transcriptions.segment_tree import plan_printed_tree
from planning.segment_cases import brute_chain, brute_tree, drawn, model, models
from sizes import share


def value(case: SegmentModel, overhead: float, limit: float, make) -> float:
    """Return a planner's RT_all after the checker has passed the plan, or infinity where there is none."""
    try:
        plan = make()
    except NoPlan:
        return inf
    return check_plan(case, plan, overhead, limit).recovery_time


@settings(max_examples=share(120), deadline=None, derandomize=True)
@given(models("chain", 4), st.floats(0.05, 1), st.integers(1, 6), st.sampled_from([0.5, 1e6]))
def test_chain_plans_equal_brute_force(case, overhead, steps, limit) -> None:
    ours = value(case, overhead, limit, lambda: plan_chain(case, overhead, steps=steps, max_frequency=limit))
    assert ours == pytest.approx(brute_chain(case, overhead, steps, limit), rel=1e-9)


@settings(max_examples=share(150), deadline=None, derandomize=True)
@given(models("tree", 5), st.floats(0.05, 2), st.integers(1, 12), st.integers(1, 4), st.floats(0.1, 4))
def test_tree_plans_equal_brute_force(case, overhead, steps, count, limit) -> None:
    grid = FrequencyGrid(steps, count, limit)
    ours = value(case, overhead, limit, lambda: plan_tree(case, overhead, grid))
    assert ours == pytest.approx(brute_tree(case, overhead, steps, grid.frequencies.tolist()), rel=1e-9)


@pytest.mark.parametrize("seed", range(40))
def test_ordinary_trees_equal_brute_force(seed: int) -> None:
    case = drawn("tree", 6, seed)
    grid = FrequencyGrid(14, 3, 0.25)
    ours = value(case, 1.5, 0.25, lambda: plan_tree(case, 1.5, grid))
    assert ours == pytest.approx(brute_tree(case, 1.5, 14, grid.frequencies.tolist()), rel=1e-9)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("steps", [7, 40])
def test_the_fast_chain_gives_what_algorithm_1_gives(seed: int, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    case = drawn("chain", 2 + seed % 9, seed)
    printed = algorithm_1(case, 0.6, steps)
    for dense in (min_plus.DENSE_CELLS, 0):
        monkeypatch.setattr(min_plus, "DENSE_CELLS", dense)  # 0: always the search that uses convexity
        ours = value(case, 0.6, 10 / 3, lambda: plan_chain(case, 0.6, steps=steps))
        assert ours == pytest.approx(inf if printed is None else printed.recovery_time, rel=1e-9)


@settings(max_examples=share(200), deadline=None, derandomize=True)
@given(st.data())
def test_sharing_with_a_convex_cost_is_sharing(data) -> None:
    rows, size = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 40))
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    a = -np.sort(-rng.integers(0, 30, (rows, size)), axis=1).astype(float)
    falls = np.sort(rng.integers(0, 9, (rows, size)), axis=1)[:, ::-1].astype(float)
    b = 100 - np.cumsum(falls, axis=1)
    for row in range(rows):
        a[row, : data.draw(st.integers(0, size))] = inf
        b[row, : data.draw(st.integers(0, size))] = inf
    plain = np.array(
        [[min(a[r, c - j] + b[r, j] for j in range(c + 1)) for c in range(size)] for r in range(rows)], float
    )
    assert np.array_equal(min_plus.share(a, b), plain)
    dense = min_plus.ConvexSharing(rows + 1, size)
    assert dense.dense
    assert np.array_equal(dense(a, b), plain)
    assert np.array_equal(dense(a[:1], b[:1]), plain[:1])
    assert np.array_equal(min_plus._monotone(a, b), plain)


@pytest.mark.parametrize("seed", range(15))
def test_the_merged_printed_tree_chooses_as_algorithm_2_does(seed: int) -> None:
    case = drawn("tree", 3 + seed % 4, seed)
    grid = FrequencyGrid(8 + seed % 3, 4, 0.4)
    printed = algorithm_2(case, 1.2, grid)
    merged = value(case, 1.2, 0.4, lambda: plan_printed_tree(case, 1.2, grid))
    assert merged == pytest.approx(inf if printed is None else printed.recovery_time, rel=1e-9)


def test_the_printed_tree_is_never_better_and_sometimes_worse() -> None:
    gaps = []
    for seed in range(150):
        case = drawn("tree", 6, seed)
        case.input_seconds[:] *= 3
        case.state_seconds[:] = np.random.default_rng(seed).uniform(0.1, 5, 6)
        grid = FrequencyGrid(14, 6, 0.25)
        ours = value(case, 1.5, 0.25, lambda case=case, grid=grid: plan_tree(case, 1.5, grid))
        theirs = value(case, 1.5, 0.25, lambda case=case, grid=grid: plan_printed_tree(case, 1.5, grid))
        assert ours <= theirs * (1 + 1e-12)
        if ours < inf:
            gaps.append(theirs / ours - 1)
    assert len(gaps) > 100
    assert max(gaps) > 0.01


@settings(max_examples=share(100), deadline=None, derandomize=True)
@given(st.sampled_from(["chain", "tree", "dag"]).flatmap(lambda shape: models(shape, 8)), st.floats(0.05, 2))
def test_dag_is_never_worse_than_any_other(case, overhead) -> None:
    grid = FrequencyGrid(20, 10)
    for free in (12, 0):
        dag = value(case, overhead, 10 / 3, lambda free=free: plan_dag(case, overhead, grid=grid, exhaustive_free=free))
        # Operators that never fail still get a thousandth of a share: see NEVER_FAILS.
        slack = 1e-9 if (case.failure_rate > 0).all() else 0.02
        others = [lambda: plan_one_segment(case, overhead)]
        if free:
            others.append(lambda: plan_n_segments(case, overhead))
        if case.is_chain:
            others.append(lambda: plan_chain(case, overhead, steps=20))
        if case.is_tree:
            others.append(lambda: plan_tree(case, overhead, grid))
        for other in others:
            assert dag <= value(case, overhead, 10 / 3, other) * (1 + slack)


def test_the_search_of_dag_comes_near_the_best() -> None:
    """The decision record gives the figures of a larger run: docs/decisions/0046."""
    gaps = []
    for seed in range(60):
        case = drawn("dag", 5 + seed % 6, seed)
        overhead = float(case.input_seconds.sum()) * (0.7 + seed % 5 * 0.3)
        try:
            best = plan_dag(case, overhead)
        except NoPlan:
            continue
        found = plan_dag(case, overhead, exhaustive_free=0)
        gaps.append(found.recovery_time / best.recovery_time - 1)
    assert len(gaps) > 40
    assert min(gaps) > -1e-9
    assert float(np.mean(gaps)) < 0.005
    assert max(gaps) < 0.1


@settings(max_examples=share(150), deadline=None, derandomize=True)
@given(st.sampled_from(["chain", "tree", "dag"]).flatmap(lambda shape: models(shape, 8)), st.floats(0.05, 2))
def test_refining_never_worsens_and_stays_within_the_overhead(case, overhead) -> None:
    def plans() -> list[SegmentPlan]:
        made = [plan_one_segment(case, overhead), plan_dag(case, overhead)]
        if case.is_tree:
            made.append(plan_tree(case, overhead, FrequencyGrid(20, 10)))
        return made

    try:
        before = plans()
    except NoPlan:
        return
    for plan in before:
        refined = refine(case, plan, overhead)
        totals = check_plan(case, refined, overhead)
        assert totals.recovery_time <= plan.recovery_time * (1 + 1e-12)
        assert np.array_equal(refined.anchors, plan.anchors)


def test_refining_gains_where_operators_of_one_segment_differ() -> None:
    """The first operator fails often and has little state, the last one never does and has much: they should differ."""
    case = drawn("chain", 3, 5)
    case.state_seconds[:] = (0.1, 1.0, 4.0)
    case.failure_rate[:] = (0.01, 0.001, 0.0001)
    case.input_seconds[:] = (0.1, 0.4, 0.4)
    plan = plan_one_segment(case, 0.5)
    refined = refine(case, plan, 0.5)
    check_plan(case, refined, 0.5)
    assert refined.recovery_time < 0.8 * plan.recovery_time
    assert refined.frequency[0] > refined.frequency[2]


@pytest.mark.parametrize("busy", [0.0, 0.2])
def test_segments_with_nothing_to_replay_checkpoint_at_all(busy: float) -> None:
    """A source without rows, as a profile measures it: rate 0, and state from before."""
    case = model([(), (0,), (1,)], [(0.0, 0.5, 0.0, 0.01), (0.0, 1.0, busy, 0.01), (0.0, 0.3, 0.0, 0.0)])
    for make in (plan_dag, plan_one_segment, plan_n_segments):
        plan = make(case, 0.1)
        totals = check_plan(case, plan, 0.1)
        assert (plan.frequency > 0).all()
        assert np.isfinite(totals.recovery_time)


def test_what_is_too_large_is_left_undecided() -> None:
    chain = model([(), *((number,) for number in range(2000))], [(0.0001, 0.01, 0.01, 0.001)] * 2001)
    with pytest.raises(Undecided, match="too many segments"):
        plan_chain(chain, 0.5)
    dag = model([(), (0,), *((0, number) for number in range(1, 1000))], [(0.0001, 0.01, 0.01, 0.001)] * 1001)
    with pytest.raises(Undecided, match="too many sets of anchors"):
        plan_dag(dag, 0.5)


@pytest.mark.parametrize("shape", ["tree", "dag"])
def test_a_hundred_operators_are_searched(shape: str) -> None:
    case = drawn(shape, 100, 3)
    overhead = float(case.input_seconds.sum()) * 0.8
    found = value(case, overhead, 10 / 3, lambda: plan_dag(case, overhead, grid=FrequencyGrid(20)))
    assert found < value(case, overhead, 10 / 3, lambda: plan_one_segment(case, overhead))
