"""Different frequencies within a segment: the refinement of FastRecover, sec. 3.3, which it left unevaluated. Pure.

If operators keep several checkpoints, an operator may checkpoint a whole number of times as often as those it feeds in
its segment (RSRFS), and a failed operator is replayed from its own last checkpoint: rt_i = a_i / eta_i + b_i with the
failed operator's eta_i. So overhead can be taken from an operator whose failures are cheap and given to another:

- halving operator i also halves what it feeds in its segment and what they feed, as far as frequencies are equal;
- doubling operator j also doubles what feeds it, likewise (the condition is eta_(j-1) >= 2 eta_j, which leaves it);
- a pair (i, j) is taken when i is not upstream of j in one segment, CH + CH_dec(i) + CH_inc(j) <= CH_max (both signed)
  and RT_inc(i) + RT_dec(j) < 0; the best pair first, until none is left.

Two things are added. A doubling that fits by itself is taken without a halving, for grids leave overhead unused. And
the same sentences serve trees and DAGs: "feeds in its segment" is then a set.
"""

from __future__ import annotations

import numpy as np

from holdfast.planning.segments.model import (
    MAX_FREQUENCY,
    TOLERANCE,
    Bools,
    SegmentModel,
    SegmentPlan,
    plan_of,
    reach_of,
)

LEAST_GAIN = 1e-12
"""A pair must lower the expected recovery time by this share of it, so that rounding cannot go on for ever."""


def refine(
    model: SegmentModel, plan: SegmentPlan, overhead: float, *, max_frequency: float = MAX_FREQUENCY
) -> SegmentPlan:
    """Return a plan with the same anchors that is never worse, within the overhead; frequencies may differ by factors.

    Every step lowers the expected recovery time by halving and doubling, and frequencies stay below the limit, so only
    finitely many assignments can be met: it ends.
    """
    upstream = _upstream_in_segment(model, plan.anchors)
    replay = reach_of(model, plan.anchors[None, :]).replay[0] * model.failure_rate
    frequency = plan.frequency.copy()
    fixed = float(model.input_seconds[plan.anchors].sum())
    limit = overhead * (1 + TOLERANCE / 2)
    while True:
        recovery = replay / frequency  # the part of rho_i rt_i that depends on the frequency
        storing = frequency * model.state_seconds
        same = np.isclose(frequency[:, None], frequency, rtol=1e-9, atol=0.0)
        halved = _closure(upstream.T & same)
        doubled = _closure(upstream & same)
        rt_inc, ch_dec = halved @ recovery, halved @ (-storing / 2)
        rt_dec, ch_inc = doubled @ (-recovery / 2), doubled @ storing
        rt_dec[(doubled & (2 * frequency > max_frequency * (1 + TOLERANCE))).any(axis=1)] = np.inf

        current = fixed + float(storing.sum())
        least = -LEAST_GAIN * plan.recovery_time
        pairs = rt_inc[:, None] + rt_dec[None, :]
        fits = (current + ch_dec[:, None] + ch_inc[None, :] <= limit) & ~upstream.T & ~np.eye(len(model), dtype=bool)
        pairs = np.where(fits, pairs, np.inf)
        alone = np.where(current + ch_inc <= limit, rt_dec, np.inf)
        i, j = np.unravel_index(int(np.argmin(pairs)), pairs.shape)
        k = int(np.argmin(alone))
        if min(pairs[i, j], alone[k]) >= least:
            return plan_of(model, plan.anchors, frequency, relaxed=True)
        if alone[k] <= pairs[i, j]:
            frequency[doubled[k]] *= 2
        else:
            frequency[halved[i]] /= 2
            frequency[doubled[j]] *= 2


def _upstream_in_segment(model: SegmentModel, anchors: Bools) -> Bools:
    """Return a matrix: whether column is upstream of row without an anchor in between (an anchor at the top counts)."""
    back = np.zeros((len(model), len(model)), bool)
    for number in model.order:
        if not anchors[number]:
            for feed in model.inputs[number]:
                back[number] |= back[feed]
                back[number, feed] = True
    return back


def _closure(reached_equal: Bools) -> Bools:
    """Return, per operator, itself and all it reaches at an equal frequency.

    Along a path within a segment frequencies never rise, so two equal ones have only equal ones between them: the
    operators at an equal frequency are exactly those that a step drags along.
    """
    closed: Bools = reached_equal | np.eye(len(reached_equal), dtype=bool)
    return closed
