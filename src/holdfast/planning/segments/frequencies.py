"""The best checkpoint frequencies for given anchors: free, or on the paper's grids. Pure; runs anywhere.

For given anchors a segment g costs RT_g = alpha_g / eta_g + beta_g and takes CH_g = P_g eta_g + I_g (from eq. 2.1 and
3.2, with alpha_g = sum rho_i a_i, beta_g = sum rho_i b_i, P_g = sum pi_i / B, I_g = what its anchors' inputs take). So
the best frequencies have a closed form, which the paper does not use: with X the overhead that the inputs leave,
eta_g = X sqrt(alpha_g / P_g) / sum sqrt(alpha P), and RT_all = sum beta + (sum sqrt(alpha P))^2 / X. Segments that
would pass the frequency limit are held at it and the others share the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from holdfast.planning.segments.model import Bools, SegmentModel, reach_of, segments_of
from holdfast.topology.model import Floats, Ints

NEVER_FAILS = 1e-6
"""Share of the highest failure rate that an operator which never fails is given when frequencies are shared out: it
must checkpoint at all, and costs at most a thousandth of what another would."""


@dataclass(frozen=True, slots=True, eq=False)
class SegmentSums:
    """Segments of many sets of anchors; arrays (sets, operators), a segment's figures where its number is, else 0."""

    segment: Ints
    """The segment of every operator."""
    alpha: Floats
    """Expected recovery per second of replay interval."""
    beta: Floats
    """Expected recovery whatever the frequency."""
    state: Floats
    """P: overhead per checkpoint and second."""
    inputs: Floats
    """I: overhead of storing the anchors' inputs."""


def sums_of(model: SegmentModel, anchors: Bools) -> SegmentSums:
    """Sum the model over the segments of many sets of anchors (one row each)."""
    reach = reach_of(model, anchors)
    segment = segments_of(model, anchors)
    rows, size = anchors.shape
    slot = (segment + size * np.arange(rows)[:, None]).ravel()

    def summed(values: Floats) -> Floats:
        flat = np.bincount(slot, np.broadcast_to(values, anchors.shape).ravel(), minlength=rows * size)
        return flat.astype(np.float64, copy=False).reshape(rows, size)

    return SegmentSums(
        segment=segment,
        alpha=summed(reach.replay * model.failure_rate),
        beta=summed(reach.restore * model.failure_rate),
        state=summed(model.state_seconds),
        inputs=summed(np.where(anchors, model.input_seconds, 0.0)),
    )


def best_frequencies(
    model: SegmentModel, anchors: Bools, overhead: float, max_frequency: float
) -> tuple[Floats, Floats]:
    """Return the best RT_all for many sets of anchors (infinite: no plan) and every operator's frequency in it."""
    sums = sums_of(model, anchors)
    left = overhead - sums.inputs.sum(axis=1)
    floor = NEVER_FAILS * model.failure_rate.max()
    if (model.failure_rate < floor).any():
        lifted = np.maximum(model.failure_rate, floor)
        weight_alpha = np.zeros_like(sums.alpha)
        np.add.at(
            weight_alpha,
            (np.arange(len(anchors))[:, None], sums.segment),
            reach_of(model, anchors).replay * lifted,
        )
    else:
        weight_alpha = sums.alpha
    # A segment without anything to replay (its source is idle) must checkpoint at all, too.
    most = weight_alpha.max(axis=1, keepdims=True, initial=0.0)
    least = np.where(most > 0, NEVER_FAILS * most, 1.0)
    weight_alpha = np.where((weight_alpha <= 0) & (sums.state > 0), least, weight_alpha)
    frequency = _shared_out(weight_alpha, sums.state, left, max_frequency)
    exists = np.zeros(anchors.shape, bool)
    np.put_along_axis(exists, sums.segment, True, axis=1)
    feasible = (left >= 0) & (frequency > 0).all(axis=1, where=exists)
    with np.errstate(divide="ignore", invalid="ignore"):
        cost = np.where(exists, sums.alpha / frequency + sums.beta, 0.0).sum(axis=1)
    return np.where(feasible, cost, np.inf), np.take_along_axis(frequency, sums.segment, axis=1)


def _shared_out(alpha: Floats, state: Floats, left: Floats, limit: float) -> Floats:
    """Minimise sum(alpha / eta) with sum(state eta) <= left and eta <= limit, row by row."""
    weight = np.sqrt(alpha * state)
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = np.where(state > 0, np.sqrt(alpha / np.where(state > 0, state, 1.0)), 0.0)
    held = state <= 0  # what has no state checkpoints for nothing: as often as allowed
    while True:
        rest = left - limit * (state * held).sum(axis=1)
        total = np.where(held, 0.0, weight).sum(axis=1)
        # Where nothing is left over, the scale is zero or below and the row is no plan.
        scale = np.divide(rest, total, out=np.zeros_like(rest), where=total > 0)
        frequency = np.where(held, limit, scale[:, None] * slope)
        above = frequency > limit
        if not above.any():
            return frequency
        held = held | above
