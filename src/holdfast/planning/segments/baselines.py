"""The two simple recovery configurations of FastRecover, sec. 3.1: one segment, and as many as operators. Pure.

Both get the best frequencies there are for their anchors, so that whatever beats them beats them at their best.
"""

from __future__ import annotations

import numpy as np

from holdfast.planning.segments.fixed_anchors import plan_with_anchors
from holdfast.planning.segments.model import (
    MAX_FREQUENCY,
    SegmentModel,
    SegmentPlan,
    require_feasible_overhead,
)


def plan_one_segment(model: SegmentModel, overhead: float, *, max_frequency: float = MAX_FREQUENCY) -> SegmentPlan:
    """Anchor only the sources (1Segment), as minibatch engines do. Parts that never meet are segments of their own."""
    require_feasible_overhead(model, overhead)
    return plan_with_anchors(model, model.sources, overhead, max_frequency=max_frequency)


def plan_n_segments(model: SegmentModel, overhead: float, *, max_frequency: float = MAX_FREQUENCY) -> SegmentPlan:
    """Anchor every operator (NSegments): each recovers alone. Often there is no overhead left for it."""
    return plan_with_anchors(model, np.ones(len(model), bool), overhead, max_frequency=max_frequency)
