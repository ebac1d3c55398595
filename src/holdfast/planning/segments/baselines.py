"""The two simple recovery configurations of FastRecover, sec. 3.1: one segment, and as many as operators. Pure.

Both get the best frequencies there are for their anchors, so that whatever beats them beats them at their best.
"""

from __future__ import annotations

import numpy as np

from holdfast.errors import NoPlan
from holdfast.planning.segments.frequencies import best_frequencies
from holdfast.planning.segments.model import (
    MAX_FREQUENCY,
    Bools,
    SegmentModel,
    SegmentPlan,
    plan_of,
    require_feasible_overhead,
)


def plan_one_segment(model: SegmentModel, overhead: float, *, max_frequency: float = MAX_FREQUENCY) -> SegmentPlan:
    """Anchor only the sources (1Segment), as minibatch engines do. Parts that never meet are segments of their own."""
    require_feasible_overhead(model, overhead)
    return plan_with_anchors(model, model.sources, overhead, max_frequency=max_frequency)


def plan_n_segments(model: SegmentModel, overhead: float, *, max_frequency: float = MAX_FREQUENCY) -> SegmentPlan:
    """Anchor every operator (NSegments): each recovers alone. Often there is no overhead left for it."""
    return plan_with_anchors(model, np.ones(len(model), bool), overhead, max_frequency=max_frequency)


def plan_with_anchors(
    model: SegmentModel, anchors: Bools, overhead: float, *, max_frequency: float = MAX_FREQUENCY
) -> SegmentPlan:
    """Return the best plan with exactly these anchors; refuse where storing their inputs leaves nothing."""
    cost, frequency = best_frequencies(model, anchors[None, :], overhead, max_frequency)
    if not np.isfinite(cost[0]):
        needed = float(model.input_seconds[anchors].sum())
        raise NoPlan(
            f"storing the inputs of {int(anchors.sum())} anchors takes {needed:.4g} of the time, "
            f"which leaves nothing of an overhead of {overhead:.4g} for checkpoints",
            remedy=f"allow an overhead above {needed:.4g}, give a higher bandwidth, or let fewer operators be anchors",
        )
    return plan_of(model, anchors, frequency[0])
