"""Candidates of the structure-aware planner: segments, completed to something that counts, ranked by profit density.

PPA, Alg. 3 and 4, on all segments at once. Runs anywhere. What a segment brings is estimated by passing kept
shares along it, from what its completion gives it to what its completion makes of it; the best few are then followed
up, and their profit density (gain of the whole topology's metric per added partition) is computed exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from holdfast.planning.replicas.completion import Completion
from holdfast.planning.replicas.fidelity import LossModel, Mask
from holdfast.planning.replicas.units import Segment
from holdfast.topology import Floats, Ints


@dataclass(frozen=True, slots=True)
class _Step:
    """One position along all segments: which segments have it, and what flows into it from earlier positions."""

    segment: Ints
    partition: Ints
    fed: Mask
    """Whether something flows in from an earlier position."""
    joins: Mask
    edge_to: Ints
    """Place in `segment` that each inner edge leads to; sorted."""
    edge_from: Ints
    """Earlier position it comes from."""
    edge_share: Floats


class Segments:
    """All segments of a topology, laid out position by position."""

    def __init__(self, model: LossModel, segments: tuple[Segment, ...], inside: Mask) -> None:
        """Prepare these segments; `inside`: which input streams come from their partition's own unit."""
        self.model = model
        self.segments = segments
        self._inside = inside
        self._shares = _inner_shares(model, inside)
        longest = max((len(segment) for segment in segments), default=1)
        self._members: Ints = np.full((len(self.segments), longest), -1, np.int64)
        for number, segment in enumerate(self.segments):
            self._members[number, : len(segment)] = segment
        places = [{p: place for place, p in enumerate(segment)} for segment in segments]
        self._steps = [self._step(position, places) for position in range(longest)]
        self._last: Ints = self._members[np.arange(len(self.segments)), (self._members >= 0).sum(axis=1) - 1]

    def _step(self, position: int, places_of: list[dict[int, int]]) -> _Step:
        segment = np.flatnonzero(self._members[:, position] >= 0)
        partition = self._members[segment, position]
        places, earlier, shares = [], [], []
        for place, (number, p) in enumerate(zip(segment.tolist(), partition.tolist(), strict=True)):
            into = self._shares.get(p)
            if into is None:
                continue
            among = places_of[number]
            for u in into.keys() & among.keys():
                places.append(place)
                earlier.append(among[u])
                shares.append(into[u])
        fed = np.zeros(len(segment), bool)
        fed[places] = True
        return _Step(
            segment,
            partition,
            fed,
            self.model.joins[partition],
            np.array(places, np.int64),
            np.array(earlier, np.int64),
            np.array(shares, float),
        )

    def unfinished(self, alive: Mask) -> Segments:
        """Return the segments that are not wholly replicated."""
        left = ~np.where(self._members >= 0, alive[self._members], True).all(axis=1)
        return Segments(self.model, tuple(self.segments[number] for number in np.flatnonzero(left)), self._inside)

    def estimate(self, completion: Completion) -> tuple[Floats, Floats]:
        """Return what each segment would gain, completed, and how many partitions that would add (at most)."""
        now = completion.now
        outer_cost, outer_value = self._from_outside(completion)
        shape = self._members.shape
        after, before = np.zeros(shape), np.zeros(shape)
        gain, cost = np.zeros(shape[0]), np.zeros(shape[0])
        for position, step in enumerate(self._steps):
            p = step.partition
            rise = (
                after[step.segment[step.edge_to], step.edge_from] - before[step.segment[step.edge_to], step.edge_from]
            )
            inner = np.bincount(step.edge_to, rise * step.edge_share, minlength=len(p))
            brings = np.where(step.fed, now.brought[p] + inner, completion.up_value[p])
            added = (~now.alive[p]).astype(float)
            needs = np.where(step.fed, 0.0, completion.up_cost[p] - added)
            if step.joins.any():
                product = np.ones(len(p))
                np.multiply.at(product, step.edge_to, after[step.segment[step.edge_to], step.edge_from])
                joined = step.fed & step.joins
                brings = np.where(joined, product * outer_value[p], brings)
                needs = np.where(joined, outer_cost[p], needs)
            after[step.segment, position], before[step.segment, position] = brings, now.kept[p]
            gain[step.segment] += added * brings * now.slope[p]
            cost[step.segment] += added + needs
        width = (self._members >= 0).sum(axis=1)
        unused = gain <= 0
        reaches = after[np.arange(shape[0]), width - 1] * completion.down_value[self._last]
        gain = np.where(unused, reaches, gain)
        cost = np.where(unused, cost + completion.down_cost[self._last], cost)
        gain[cost <= 0] = 0.0
        return gain, cost

    def _from_outside(self, completion: Completion) -> tuple[Floats, Floats]:
        """Return what a join's streams from other units cost and bring, completed; 0 and 1 where it has none."""
        model = self.model
        cost, value = np.zeros(len(model.topology)), np.ones(len(model.topology))
        for level in model.levels:
            if level.any_join:
                inner = self._inside[level.streams]
                group = model.stream_group[level.streams]
                costs = np.where(inner, 0.0, completion.group_cost[group])
                values = np.where(inner, 1.0, completion.group_value[group])
                cost[level.partitions] = np.add.reduceat(costs, level.starts)
                value[level.partitions] = np.multiply.reduceat(values, level.starts)
        return cost, value

    def followed(self, number: int, completion: Completion) -> frozenset[int]:
        """Return the partitions to add for one segment, completed."""
        now, topology = completion.now, self.model.topology
        segment: Segment = self.segments[number]
        chosen = set(segment)
        added = {p for p in segment if not now.alive[p]}
        for p in segment:
            if topology.is_source[p]:
                continue
            into = self._shares.get(p, {})
            if self.model.joins[p]:
                for stream in range(int(topology.stream_start[p]), int(topology.stream_start[p + 1])):
                    if not self._inside[stream]:
                        completion.feed_stream(stream, added)
            elif now.brought[p] <= 0 and not chosen & into.keys():
                added.discard(p)  # so that it is not taken for one that is fed already
                completion.feed(p, added)
        last = segment[-1]
        if not any(now.slope[p] > 0 for p in segment if not now.alive[p]):
            completion.use(last, added)
        return frozenset(added)


def _inner_shares(model: LossModel, inside: Mask) -> dict[int, dict[int, float]]:
    """Return, for each partition and each upstream partition in its unit, how much of the latter it is made of."""
    topology = model.topology
    found: dict[int, dict[int, float]] = {}
    for stream in np.flatnonzero(inside).tolist():
        group = int(model.stream_group[stream])
        p = int(topology.stream_to[stream])
        part = float(model.stream_weight[stream])
        into = found.setdefault(p, {})
        for at in range(int(model.group_start[group]), int(model.group_start[group + 1])):
            into[int(model.member[at])] = part * float(model.member_weight[at])
    return found
