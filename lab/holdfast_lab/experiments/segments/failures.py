"""Simulated failures of a machine (FastRecover, sec. 4.1 and 4.3): total computing time and latency of a recovery.

One machine has five instances, so five operators fail at once, chosen without putting back by their failure rates.
Within a segment, what several failed operators need in common is restored and replayed once: the computing time sums
over the operators that go back. Segments recover side by side, and so do branches of one: the latency is the longest
recovery of any failed operator.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from holdfast.planning.segments.model import SegmentModel, SegmentPlan, totals_of

MULTIPLICITY = 5
"""Instances on one machine, as in the paper."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """Means over simulated failures, in seconds per failure."""

    computing: float
    latency: float


def simulate(model: SegmentModel, plan: SegmentPlan, failures: int, random: np.random.Generator) -> Recovery:
    """Fail machines and recover by this plan; the plan's frequencies are equal within segments."""
    seconds = totals_of(model, plan.anchors, plan.frequency).recovery_seconds
    replay = model.work_seconds + np.where(plan.anchors, model.input_seconds, 0.0)
    own = replay / plan.frequency + model.state_seconds
    back: list[set[int]] = [set() for _ in model.names]
    for number in model.order:
        back[number] = {number}
        if not plan.anchors[number]:
            back[number] = back[number].union(*(back[feed] for feed in model.inputs[number]))
    chance = model.failure_rate / model.failure_rate.sum()
    count = min(MULTIPLICITY, int((chance > 0).sum()))
    computing = latency = 0.0
    for _ in range(failures):
        failed = random.choice(len(model), count, replace=False, p=chance)
        gone: set[int] = set().union(*(back[number] for number in failed))
        computing += float(own[list(gone)].sum())
        latency += float(seconds[failed].max())
    return Recovery(computing / failures, latency / failures)
