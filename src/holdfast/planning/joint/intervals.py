"""The best checkpoint intervals for given anchors, backups, replicas and code. Pure; runs anywhere.

Where no path to a partition leaves its segment, L is a maximum of linear functions of the segment's interval D. The
longest interval that keeps the promises follows from cutting planes: take the critical path at D, shorten D to where
that path is in time, look again; each path is met once. After a loss of nodes paths lead through anchors: all segments
on a path that is late are shortened by one factor. They start level, and again in the shape that costs least along
these paths, D = t sqrt(P / a) for a seconds of path per second of D; the better of both is kept.

Below these intervals, downtime is alpha D + beta and checkpoints take P / D: within the overhead that anchors and
backups leave, D = t sqrt(P / alpha), cut at both limits, with one t for all segments. Alpha is of the paths that are
longest at D, so it is taken again a few times; the best found is kept.
"""

from __future__ import annotations

from dataclasses import replace

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
    count = int(segment.max()) + 1
    level = JointPlan(anchors, np.full(len(anchors), model.assumed.greatest_interval), backups, replicas, coding)
    price: Floats = np.bincount(segment, model.storing(coding), minlength=count).astype(np.float64, copy=False)
    if model.targets.survive and (anchors & ~model.sources).any() and np.isfinite(model.limit).any():
        limits = _through_anchors(model, level, segment, price)
    else:
        limits = [_longest(model, level, segment)]
    found = [_within(model, level, segment, price, longest) for longest in limits]
    best = found[0]
    for other in found[1:]:
        best = other if _better(other[1], best[1]) else best
    return best


def _within(
    model: JointModel, structure: JointPlan, segment: Ints, price: Floats, longest: Floats
) -> tuple[JointPlan, Evaluation]:
    """Return the plan with the least downtime whose intervals are these or shorter."""
    count = len(longest)
    fixed = float(model.inputs_stored(structure.coding)[structure.anchors].sum())
    fixed += float(model.output_bytes[structure.backups].sum() / model.assumed.disk_bandwidth)
    left = model.targets.overhead_limit * (1 - _MARGIN) - fixed
    at, best = longest, None
    weight = model.failure_rate * model.weight
    of = segment[model.topology.operator_of]
    for _ in range(_ROUNDS):
        plan = replace(structure, interval=at[segment])
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


def _longest(model: JointModel, structure: JointPlan, segment: Ints) -> Floats:
    """Return, per segment, the longest interval that keeps every promise; the least, where none does."""
    least = model.assumed.least_interval
    interval = np.full(int(segment.max()) + 1, model.assumed.greatest_interval)
    bounded = np.isfinite(model.limit)
    if not bounded.any():
        return interval
    of = segment[model.topology.operator_of]
    room = model.limit * (1 - _MARGIN) - model.assumed.fixed_seconds
    for _ in range(_CUTS):
        length, slopes = model.promised(replace(structure, interval=interval[segment]))
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


def _through_anchors(model: JointModel, structure: JointPlan, segment: Ints, price: Floats) -> list[Floats]:
    """Return intervals that keep every promise where paths lead through anchors: level ones, and cheaper ones."""
    greatest = model.assumed.greatest_interval
    level = np.full(len(price), greatest)
    first, per_second = _shortened(model, structure, segment, level)
    if not (per_second > 0).any():
        return [first]
    shape = np.sqrt(price / np.where(per_second > 0, per_second, 1.0))
    top = float(shape[per_second > 0].max())
    if top <= 0:
        return [first]
    shaped = np.where(per_second > 0, np.maximum(shape / top * greatest, model.assumed.least_interval), greatest)
    return [first, _shortened(model, structure, segment, shaped)[0]]


def _shortened(model: JointModel, structure: JointPlan, segment: Ints, start: Floats) -> tuple[Floats, Floats]:
    """Shorten all segments on paths that are late by one factor, until none is late or all are at the least interval.

    Return the intervals, and the seconds of late paths per second of each segment's interval.
    """
    least, topology = model.assumed.least_interval, model.topology
    of, count = segment[topology.operator_of], len(start)
    room = model.limit * (1 - _MARGIN) - model.assumed.fixed_seconds
    interval, on_path = start.copy(), np.zeros(len(topology), bool)
    for _ in range(_CUTS):
        fixed, slope = model.parts(replace(structure, interval=interval[segment]), model.crowding)
        moves = interval[of] > least
        shortened = np.ones(count)
        for paths in model.paths(structure, np.where(moves, fixed, fixed + slope), np.where(moves, slope, 0.0)):
            late = paths.whose & (paths.length > room * (1 + TOLERANCE)) & (paths.slopes > 0)
            if not late.any():
                continue
            factor = np.ones(len(topology))
            factor[late] = np.maximum(room[late] - (paths.length[late] - paths.slopes[late]), 0.0) / paths.slopes[late]
            for mine, _links in reversed(model.links):
                waiting = np.arange(mine.start, mine.stop)[paths.after[mine] >= 0]
                np.minimum.at(factor, paths.after[waiting], factor[waiting])
            on_path |= factor < 1.0
            np.minimum.at(shortened, of, factor)
        if (shortened >= 1.0).all():
            break
        interval = np.maximum(interval * shortened, least)
    each = slope * on_path / interval[of]
    operators = np.zeros(len(topology.operators))
    np.maximum.at(operators, topology.operator_of, each)
    return interval, np.bincount(segment, operators, minlength=count).astype(np.float64, copy=False)


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
