"""Small random models for segment plans, and the plainest possible computations to compare planners with."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from math import ceil, inf

import numpy as np
from hypothesis import strategies as st

from holdfast.ids import OperatorId
from holdfast.planning.segments.model import SegmentModel


def model(inputs: list[tuple[int, ...]], values: list[tuple[float, float, float, float]]) -> SegmentModel:
    stores, state, work, failures = (np.array(column, float) for column in zip(*values, strict=True))
    return SegmentModel(
        names=tuple(OperatorId(f"o{number}") for number in range(len(inputs))),
        inputs=tuple(inputs),
        order=tuple(range(len(inputs))),
        input_seconds=stores,
        state_seconds=state,
        work_seconds=work,
        failure_rate=failures,
    )


# Stores, state, work and failures of an operator. Some have no state, some no input worth storing, some never fail.
operator_values = st.tuples(
    st.one_of(st.just(0.0), st.floats(0.001, 0.3)),
    st.one_of(st.just(0.0), st.floats(0.01, 2.0)),
    st.floats(0.001, 0.5),
    st.one_of(st.just(0.0), st.floats(0.0001, 0.01)),
)


@st.composite
def models(draw: st.DrawFn, shape: str, most: int) -> SegmentModel:
    size = draw(st.integers(1, most))
    inputs: list[tuple[int, ...]] = [()]
    for number in range(1, size):
        if shape == "chain":
            inputs.append((number - 1,))
        elif shape == "tree":
            inputs.append((draw(st.integers(0, number - 1)),))
        else:
            inputs.append(tuple(sorted(draw(st.sets(st.integers(0, number - 1), max_size=3)))))
    values = [draw(operator_values) for _ in range(size)]
    if not any(value[3] for value in values):
        values[-1] = (*values[-1][:3], 0.001)
    return model(inputs, values)


def drawn(shape: str, size: int, seed: int) -> SegmentModel:
    """Return a random model with ordinary values, from a seed."""
    rng = np.random.default_rng(seed)
    inputs: list[tuple[int, ...]] = [()]
    for number in range(1, size):
        if shape == "chain":
            inputs.append((number - 1,))
        elif shape == "tree":
            inputs.append((int(rng.integers(number)),))
        else:
            count = int(rng.integers(0 if number < 3 else 1, min(number, 3) + 1))
            inputs.append(tuple(int(one) for one in sorted(rng.choice(number, count, replace=False))))
    values = [
        (rng.uniform(0.001, 0.1), rng.uniform(0.05, 2), rng.uniform(0.001, 0.5), rng.uniform(0.0001, 0.01))
        for _ in range(size)
    ]
    return model(inputs, values)


def goes_back(case: SegmentModel, anchors: tuple[bool, ...], failed: int) -> set[int]:
    if anchors[failed]:
        return {failed}
    return {failed}.union(*(goes_back(case, anchors, feed) for feed in case.inputs[failed]))


def plain_totals(case: SegmentModel, anchors: tuple[bool, ...], frequency: list[float]) -> tuple[float, float]:
    """Return RT_all and CH_all, written out as eq. 2.1 and 3.2 say, operator by operator."""
    recovery = overhead = 0.0
    for number in range(len(case)):
        once = 0.0
        for k in goes_back(case, anchors, number):
            once += case.state_seconds[k] + case.work_seconds[k] / frequency[number]
            if anchors[k]:
                once += case.input_seconds[k] / frequency[number]
        recovery += case.failure_rate[number] * once
        overhead += frequency[number] * case.state_seconds[number] + anchors[number] * case.input_seconds[number]
    return float(recovery), float(overhead)


def anchor_sets(case: SegmentModel) -> Iterator[tuple[bool, ...]]:
    for chosen in itertools.product((False, True), repeat=len(case)):
        if all(one or not source for one, source in zip(chosen, case.sources, strict=True)):
            yield chosen


def plain_segments(case: SegmentModel, anchors: tuple[bool, ...]) -> list[list[int]]:
    """Return the segments: operators joined when one feeds another that is no anchor."""
    groups = [{number} for number in range(len(case))]
    for number, feeds in enumerate(case.inputs):
        if not anchors[number]:
            for feed in feeds:
                together = next(g for g in groups if number in g) | next(g for g in groups if feed in g)
                groups = [g for g in groups if not g & together] + [together]
    return sorted(sorted(group) for group in groups)


def brute_chain(case: SegmentModel, overhead: float, steps: int, limit: float) -> float:
    """Return the least RT_all over all anchors and all numbers of increments for every segment."""
    best = inf
    for anchors in anchor_sets(case):
        segments = plain_segments(case, anchors)
        for given in itertools.product(range(steps + 1), repeat=len(segments)):
            if sum(given) > steps:
                continue
            frequency = [0.0] * len(case)
            feasible = True
            for segment, share in zip(segments, given, strict=True):
                left = share * (overhead / steps) - case.input_seconds[segment[0]]
                state = case.state_seconds[segment].sum()
                if left < 0 or (left == 0 and state > 0):
                    feasible = False
                    break
                for number in segment:
                    frequency[number] = min(left / state, limit) if state > 0 else limit
            if feasible:
                best = min(best, plain_totals(case, anchors, frequency)[0])
    return best


def brute_tree(case: SegmentModel, overhead: float, steps: int, frequencies: list[float]) -> float:
    """Return the least RT_all over all anchors and grid frequencies, operators' overheads rounded up to increments."""
    best = inf
    for anchors in anchor_sets(case):
        segments = plain_segments(case, anchors)
        for chosen in itertools.product(frequencies, repeat=len(segments)):
            frequency = [0.0] * len(case)
            for segment, one in zip(segments, chosen, strict=True):
                for number in segment:
                    frequency[number] = one
            taken = 0
            for number in range(len(case)):
                own = frequency[number] * case.state_seconds[number] + anchors[number] * case.input_seconds[number]
                taken += ceil(own / (overhead / steps) - 1e-11)
            if taken <= steps:
                best = min(best, plain_totals(case, anchors, frequency)[0])
    return best
