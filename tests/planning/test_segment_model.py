"""The model of segments: against the equations written out, and the checker's reasons to refuse."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import BadInput, CheckFailed, NoPlan
from holdfast.ids import OperatorId
from holdfast.planning.segments.baselines import plan_n_segments, plan_one_segment
from holdfast.planning.segments.frequencies import best_frequencies
from holdfast.planning.segments.model import (
    check_plan,
    model_of,
    plan_of,
    reach_of,
    require_feasible_overhead,
    segments_of,
    totals_of,
)
from holdfast.topology import Input, Operator, Partitioning, Topology
from holdfast_lab.topologies import named_topology
from planning.segment_cases import drawn, goes_back, models, plain_segments, plain_totals
from sizes import share


def test_a_topology_becomes_the_papers_terms() -> None:
    made = Topology(
        "two",
        [
            Operator(OperatorId("a"), 2, rate=100, weights=(3, 1), selectivity=0.5, state_bytes=4e6, failure_rate=0.01),
            Operator(
                OperatorId("b"),
                3,
                (Input(OperatorId("a"), Partitioning.FULL),),
                tuple_seconds=0.002,
                tuple_bytes=200,
                state_bytes=1e6,
            ),
        ],
    )
    terms = model_of(made, 2e6)
    # 100 tuples/s of 1000 bytes at 2 MB/s; half of them reach b with 200 bytes each.
    assert terms.input_seconds == pytest.approx([0.05, 0.005])
    assert terms.state_seconds == pytest.approx([2.0, 0.5])
    assert terms.work_seconds == pytest.approx([0.06, 0.1])
    totals = totals_of(terms, np.array([True, False]), np.array([0.1, 0.1]))
    assert totals.operator_overhead == pytest.approx([0.25, 0.05])
    # a: 10 s of input take 0.5 s to read and 0.6 s to process, its state 2 s; b: 1 s of work and 0.5 s of state more.
    assert totals.recovery_seconds == pytest.approx([3.1, 4.6])
    assert totals.recovery_time == pytest.approx(0.031)
    alone = totals_of(terms, np.array([True, True]), np.array([0.1, 0.1]))
    assert alone.recovery_seconds == pytest.approx([3.1, 0.05 + 1.0 + 0.5])


@settings(max_examples=share(150), deadline=None, derandomize=True)
@given(st.sampled_from(["chain", "tree", "dag"]).flatmap(lambda shape: models(shape, 7)), st.data())
def test_totals_and_segments_are_as_written_out(case, data) -> None:
    sets = []
    for _ in range(3):
        chosen = [data.draw(st.booleans()) or bool(source) for source in case.sources]
        sets.append(chosen)
        frequency = data.draw(st.lists(st.floats(0.01, 3), min_size=len(case), max_size=len(case)))
        totals = totals_of(case, np.array(chosen), np.array(frequency))
        recovery, overhead = plain_totals(case, tuple(chosen), frequency)
        assert totals.recovery_time == pytest.approx(recovery, rel=1e-12)
        assert totals.overhead == pytest.approx(overhead, rel=1e-12)
    together = np.array(sets)
    reach, segment = reach_of(case, together), segments_of(case, together)
    for row, chosen in enumerate(sets):
        for number in range(len(case)):
            back = goes_back(case, tuple(chosen), number)
            assert reach.restore[row, number] == pytest.approx(sum(case.state_seconds[k] for k in back))
        found: dict[int, list[int]] = {}
        for number, one in enumerate(segment[row]):
            found.setdefault(int(one), []).append(number)
        assert sorted(found.values()) == plain_segments(case, tuple(chosen))


@settings(max_examples=share(100), deadline=None, derandomize=True)
@given(st.sampled_from(["chain", "tree", "dag"]).flatmap(lambda shape: models(shape, 7)), st.data())
def test_pipelined_replay_takes_as_long_as_the_slowest_of_those_that_go_back(case, data) -> None:
    chosen = [data.draw(st.booleans()) or bool(source) for source in case.sources]
    anchors = np.array([chosen])
    own = case.work_seconds + np.where(anchors[0], case.input_seconds, 0.0)
    reach, summed = reach_of(replace(case, pipelined=True), anchors), reach_of(case, anchors)
    for number in range(len(case)):
        back = goes_back(case, tuple(chosen), number)
        assert reach.replay[0, number] == pytest.approx(max(own[k] for k in back))
        assert reach.restore[0, number] == pytest.approx(max(case.state_seconds[k] for k in back))
        assert reach.replay[0, number] <= summed.replay[0, number] * (1 + 1e-12)


@settings(max_examples=share(150), deadline=None, derandomize=True)
@given(models("dag", 7), st.floats(0.05, 2), st.floats(0.05, 5), st.data())
def test_the_closed_form_is_never_beaten_by_other_frequencies(case, overhead, limit, data) -> None:
    chosen = np.array([data.draw(st.booleans()) or bool(source) for source in case.sources])
    cost, frequency = best_frequencies(case, chosen[None, :], overhead, limit)
    stored = case.input_seconds[chosen].sum()
    if not np.isfinite(cost[0]):
        assert stored >= overhead
        return
    plan = plan_of(case, chosen, frequency[0])
    assert check_plan(case, plan, overhead, limit).recovery_time == pytest.approx(cost[0])
    # Any other frequencies, scaled to use as much of the overhead as they may, are no better.
    segment = segments_of(case, chosen[None, :])[0]
    factors = data.draw(st.lists(st.floats(0.2, 5), min_size=len(case), max_size=len(case)))
    other = frequency[0] * np.array(factors)[segment]
    other = np.minimum(other * min(1.0, (overhead - stored) / max(other @ case.state_seconds, 1e-30)), limit)
    if (other > 0).all():
        # An operator that never fails gets a thousandth of an ordinary share, so the form is that near to the best.
        slack = 1e-9 if (case.failure_rate > 0).all() else 0.02
        assert plan.recovery_time <= totals_of(case, chosen, other).recovery_time * (1 + slack)


def test_the_checker_says_why_a_plan_is_none() -> None:
    case = drawn("chain", 4, 1)
    plan = plan_one_segment(case, 0.5)
    check_plan(case, plan, 0.5)
    with pytest.raises(CheckFailed, match="source o0 is not an anchor"):
        check_plan(case, replace(plan, anchors=np.array([False, True, True, True])), 0.5)
    with pytest.raises(CheckFailed, match="above the allowed"):
        check_plan(case, plan, 0.4)
    uneven = plan.frequency * np.array([2, 1, 1, 1])
    with pytest.raises(CheckFailed, match="must be 1"):
        check_plan(case, plan_of(case, plan.anchors, uneven), 5)
    check_plan(case, plan_of(case, plan.anchors, uneven, relaxed=True), 5)
    with pytest.raises(CheckFailed, match="a whole number"):
        check_plan(case, plan_of(case, plan.anchors, plan.frequency * [1.5, 1, 1, 1], relaxed=True), 5)
    with pytest.raises(CheckFailed, match="a whole number"):
        check_plan(case, plan_of(case, plan.anchors, plan.frequency * [1, 2, 1, 1], relaxed=True), 5)
    with pytest.raises(CheckFailed, match="above the limit"):
        check_plan(case, plan, 0.5, max_frequency=plan.frequency[0] / 2)
    with pytest.raises(CheckFailed, match="above zero"):
        check_plan(case, replace(plan, frequency=plan.frequency * 0), 0.5)
    with pytest.raises(CheckFailed, match="states a recovery time"):
        check_plan(case, replace(plan, recovery_time=plan.recovery_time / 2), 0.5)


def test_what_cannot_be_planned_is_refused_with_a_reason() -> None:
    with pytest.raises(BadInput, match=r"nothing to plan segments for.*failure_rate above 0"):
        model_of(Topology("calm", [Operator(OperatorId("a"))]), 1e6)
    case = drawn("chain", 5, 2)
    with pytest.raises(NoPlan, match="the sources alone"):
        require_feasible_overhead(case, float(case.input_seconds[0]) / 2)
    with pytest.raises(NoPlan, match="5 anchors"):
        plan_n_segments(case, float(case.input_seconds.sum()) * 0.99)
    assert plan_n_segments(case, float(case.input_seconds.sum()) * 1.01).anchors.all()
    with pytest.raises(BadInput, match="overhead"):
        require_feasible_overhead(case, 0.0)
    with pytest.raises(BadInput, match="bandwidth"):
        model_of(named_topology("chain-8"), 0.0)
