"""Plans with given anchors on either grid: against every way to share the grid out."""

from __future__ import annotations

import itertools
from math import ceil, inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import NoPlan
from holdfast.planning.segments.baselines import plan_with_anchors
from holdfast.planning.segments.chain import plan_chain
from holdfast.planning.segments.grid import FrequencyGrid
from holdfast.planning.segments.model import check_plan
from holdfast.planning.segments.tree import plan_tree
from holdfast_lab.rivals.segment_grids import plan_on_frequency_grid, plan_on_overhead_grid
from planning.segment_cases import drawn, models, plain_segments, plain_totals


@settings(max_examples=80, deadline=None, derandomize=True)
@given(models("dag", 5), st.floats(0.1, 2), st.integers(1, 6), st.data())
def test_both_grids_equal_brute_force(case, overhead, steps, data) -> None:
    anchors = np.array([data.draw(st.booleans()) or bool(source) for source in case.sources])
    segments = plain_segments(case, tuple(anchors))
    grid = FrequencyGrid(steps, 3, 0.6)

    best = inf
    for chosen in itertools.product(range(steps + 1), repeat=len(segments)):
        frequency = [0.0] * len(case)
        for segment, share in zip(segments, chosen, strict=True):
            left = share * (overhead / steps) - sum(case.input_seconds[k] for k in segment if anchors[k])
            state = sum(case.state_seconds[k] for k in segment)
            for k in segment:
                frequency[k] = (0.6 if left >= 0 else 0.0) if state == 0 else min(left / state, 0.6)
        if sum(chosen) <= steps and min(frequency) > 0:
            best = min(best, plain_totals(case, tuple(anchors), frequency)[0])
    try:
        plan = plan_on_overhead_grid(case, anchors, overhead, steps, max_frequency=0.6)
        assert check_plan(case, plan, overhead, 0.6).recovery_time == pytest.approx(best, rel=1e-9)
        free = plan_with_anchors(case, anchors, overhead, max_frequency=0.6).recovery_time
        assert free <= plan.recovery_time * (1.02 if (case.failure_rate == 0).any() else 1 + 1e-9)
    except NoPlan:
        assert best == inf

    best = inf
    for chosen in itertools.product(grid.frequencies.tolist(), repeat=len(segments)):
        frequency = [0.0] * len(case)
        for segment, one in zip(segments, chosen, strict=True):
            for k in segment:
                frequency[k] = one
        taken = sum(
            ceil(
                (frequency[k] * case.state_seconds[k] + anchors[k] * case.input_seconds[k]) / (overhead / steps) - 1e-11
            )
            for k in range(len(case))
        )
        if taken <= steps:
            best = min(best, plain_totals(case, tuple(anchors), frequency)[0])
    try:
        plan = plan_on_frequency_grid(case, anchors, overhead, grid)
        assert check_plan(case, plan, overhead, 0.6).recovery_time == pytest.approx(best, rel=1e-9)
    except NoPlan:
        assert best == inf


@pytest.mark.parametrize("seed", range(20))
def test_the_programmes_are_never_worse_than_simple_configurations_on_their_grid(seed: int) -> None:
    chain, tree = drawn("chain", 9, seed), drawn("tree", 9, seed)
    grid = FrequencyGrid(60, 20, 0.2)
    for anchors in (chain.sources, np.ones(9, bool)):
        try:
            simple = plan_on_overhead_grid(chain, anchors, 0.9, 30).recovery_time
        except NoPlan:
            continue
        assert plan_chain(chain, 0.9, steps=30).recovery_time <= simple * (1 + 1e-12)
    for anchors in (tree.sources, np.ones(9, bool)):
        try:
            simple = plan_on_frequency_grid(tree, anchors, 1.5, grid).recovery_time
        except NoPlan:
            continue
        assert plan_tree(tree, 1.5, grid).recovery_time <= simple * (1 + 1e-12)
