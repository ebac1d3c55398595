"""The best checkpoint intervals for given anchors, backups, replicas and code. Pure; runs anywhere.

No path to a partition leaves its segment, so L is a maximum of linear functions of the segment's interval D. The
longest interval that keeps the promises follows from cutting planes: take the critical path at D, shorten D to where
that path is in time, look again; each path is met once. Below it, downtime is alpha D + beta and checkpoints take
P / D: within the overhead that anchors and backups leave, D = t sqrt(P / alpha), cut at both limits, with one t for all
segments. Alpha is of the paths that are longest at D, so it is taken again a few times; the best found is kept.
"""

from __future__ import annotations

import numpy as np

from holdfast.erasure.layout import Coding
from holdfast.planning.joint.model import TOLERANCE, Evaluation, JointModel, JointPlan, Mask
from holdfast.topology import Floats, Ints

_CUTS = 30
_ROUNDS = 4
_HALVINGS = 60
_MARGIN = 1e-9
"""Promises are met by this share more than they must: rounding must not break them."""


def segments_of(model: JointModel, anchors: Mask) -> Ints:
    """Number the segment of every operator: whoever is no anchor is in the segment of all its inputs."""
    topology = model.topology
    parent = list(range(len(topology.operators)))

    def root(number: int) -> int:
        while parent[number] != number:
            parent[number] = parent[parent[number]]
            number = parent[number]
        return number

    for up, down in zip(topology.link_from.tolist(), topology.link_to.tolist(), strict=True):
        if not anchors[down]:
            parent[root(up)] = root(down)
    return np.unique([root(number) for number in range(len(parent))], return_inverse=True)[1].astype(np.int64)


def best_intervals(
    model: JointModel, anchors: Mask, backups: Mask, replicas: Mask, coding: Coding
) -> tuple[JointPlan, Evaluation]:
    """Return the plan with the least downtime for this structure; where none keeps the targets, the nearest."""
    segment = segments_of(model, anchors)
    longest = _longest(model, anchors, backups, replicas, coding, segment)
    count = len(longest)
    price: Floats = np.bincount(segment, model.storing(coding), minlength=count).astype(np.float64, copy=False)
    fixed = float(model.inputs_stored()[anchors].sum())
    fixed += float(model.output_bytes[backups].sum() / model.assumed.disk_bandwidth)
    left = model.targets.overhead_limit * (1 - _MARGIN) - fixed
    at, best = longest, None
    weight = model.failure_rate * model.weight
    of = segment[model.topology.operator_of]
    for _ in range(_ROUNDS):
        plan = JointPlan(anchors, at[segment], backups, replicas, coding)
        found = model.evaluate(plan)
        if best is None or _better(found, best[1]):
            best = plan, found
        slopes = model.alone(plan)[1]
        alpha = np.bincount(of, weight * slopes, minlength=count) / at
        after = _shared_out(alpha, price, left, longest, model.assumed.least_interval)
        if np.allclose(after, at, rtol=1e-6, atol=0.0):
            break
        at = after
    assert best is not None
    return best


def _better(one: Evaluation, other: Evaluation) -> bool:
    return (one.violation, one.downtime, one.overhead) < (other.violation, other.downtime, other.overhead)


def _longest(model: JointModel, anchors: Mask, backups: Mask, replicas: Mask, coding: Coding, segment: Ints) -> Floats:
    """Return, per segment, the longest interval that keeps every promise; the least, where none does."""
    least, greatest = model.assumed.least_interval, model.assumed.greatest_interval
    interval = np.full(int(segment.max()) + 1, greatest)
    bounded = np.isfinite(model.limit)
    if not bounded.any():
        return interval
    of = segment[model.topology.operator_of]
    room = model.limit * (1 - _MARGIN) - model.assumed.fixed_seconds
    for _ in range(_CUTS):
        length, slopes = model.promised(JointPlan(anchors, interval[segment], backups, replicas, coding))
        late = bounded & (length > room * (1 + TOLERANCE)) & (slopes > 0)
        if not late.any():
            break
        per_second = slopes[late] / interval[of[late]]
        allowed = np.maximum((room[late] - (length[late] - slopes[late])) / per_second, least)
        before = interval.copy()
        np.minimum.at(interval, of[late], allowed)
        if np.allclose(before, interval, rtol=1e-12, atol=0.0):
            break
    return interval


def _shared_out(alpha: Floats, price: Floats, left: float, longest: Floats, least: float) -> Floats:
    """Minimise the sum of alpha D with the sum of price / D at most `left`, and D within its limits."""
    shape = np.sqrt(price / np.maximum(alpha, 1e-300))
    low, high = 0.0, 1.0
    if (price / longest).sum() >= left:
        return longest  # not even the longest intervals leave enough: as near as it gets

    def at(factor: float) -> Floats:
        return np.clip(factor * shape, least, longest)

    if (price / at(0.0)).sum() <= left:
        return at(0.0)
    while (price / at(high)).sum() > left and high < 1e300:
        low, high = high, high * 4
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if (price / at(middle)).sum() > left:
            low = middle
        else:
            high = middle
    return at(high)
