"""What one more failed or replicated partition changes, for all partitions at once (PPA, sec. IV). Runs anywhere.

Along one partition the metric is a straight line, unless several input streams of one join come from it: then its share
multiplies with itself. `slopes` gives the steepness for all partitions in one sweep from the outputs up; the values for
single changes follow from it, and are computed one by one only for the partitions that meet themselves in a join.
"""

from __future__ import annotations

import numpy as np

from holdfast.planning.replicas.fidelity import Level, LossModel, Mask
from holdfast.topology import Floats, Ints


def slopes(model: LossModel, alive: Mask, group_kept: Floats) -> Floats:
    """Return how much the metric would gain per kept share of each partition, whether or not it works."""
    slope = model.weight.copy()
    for level in reversed(model.levels):
        arriving = (slope[level.partitions] * alive[level.partitions])[level.stream_owner]
        passed = arriving * stream_factors(level, group_kept[level.groups][level.stream_group])
        count = level.groups.stop - level.groups.start
        per_group = np.bincount(level.stream_group, passed, minlength=count)
        group = model.member_group[level.members] - level.groups.start
        slope += np.bincount(
            model.member[level.members], per_group[group] * model.member_weight[level.members], minlength=len(slope)
        )
    return slope


def stream_factors(level: Level, stream: Floats) -> Floats:
    """Return how strongly each stream counts for its partition: its weight, or in a join the product of the others."""
    if not level.any_join:
        return level.stream_weight
    zero = stream == 0
    product = np.multiply.reduceat(np.where(zero, 1.0, stream), level.starts)[level.stream_owner]
    zeros = np.add.reduceat(zero.astype(np.int64), level.starts)[level.stream_owner]
    with np.errstate(divide="ignore", invalid="ignore"):
        others = np.where(zero, product, product / stream)
    others = np.where(zeros - zero > 0, 0.0, others)
    return np.where(level.joins[level.stream_owner], others, level.stream_weight)


def values_if_one_fails(model: LossModel) -> Floats:
    """Return, for each partition, the metric when it alone has failed."""
    everything = np.ones(len(model.topology), bool)
    kept, _, group_kept = model.sweep(everything)
    found: Floats = np.clip(1.0 - slopes(model, everything, group_kept) * kept, 0.0, 1.0)
    again = entangled(model)
    step = max(1, 2**22 // len(everything))
    for start in range(0, len(again), step):
        chosen = again[start : start + step]
        sets = np.ones((len(chosen), len(everything)), bool)
        sets[np.arange(len(chosen)), chosen] = False
        found[chosen] = model.values(sets)
    return found


def entangled(model: LossModel) -> Ints:
    """Return the partitions of operators from which two input streams of one join come."""
    topology = model.topology
    if not model.joins.any():
        return np.zeros(0, np.int64)
    joining = {int(one) for one in np.unique(topology.operator_of[model.joins])}
    # Sets of operators as whole numbers, one bit per operator: what lies upstream of each, and what met itself.
    above = [0] * len(topology.operators)
    met = 0
    for number in topology.operator_order:
        for feed in topology.link_from[topology.link_start[number] : topology.link_start[number + 1]].tolist():
            behind = above[feed] | (1 << feed)
            if number in joining:
                met |= above[number] & behind
            above[number] |= behind
    chosen = np.array([bool(met >> number & 1) for number in range(len(topology.operators))])
    return np.flatnonzero(chosen[topology.operator_of])
