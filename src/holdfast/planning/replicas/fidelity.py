"""How good tentative outputs are: output fidelity and internal completeness (PPA, eq. 1-4). Runs anywhere.

We compute with what is *kept* of a stream, 1 - IL, the complement of the paper's information loss:

- a failed partition keeps nothing; a source that works keeps everything;
- an input stream keeps the mean of its substreams, weighed by their rates (eq. 1);
- a correlated-input partition keeps the product over its input streams (eq. 2), an independent-input one their mean,
  weighed by the streams' rates (eq. 3);
- the fidelity is the mean over all output partitions, weighed by their output rates (eq. 4).

Internal completeness takes joins as unions, and is the mean of what *every* partition keeps, weighed by input rates.

What one upstream partition sends divides over its targets in fixed shares, so these shares cancel in eq. 1: all targets
of a full fan see the same loss. One **group** per distinct set of upstream partitions therefore stands for all input
streams that read this set, and a sweep costs the number of partitions and streams, not of task edges.

Where rates are zero a mean has no weights: substreams of a stream that carries nothing count alike, so do the streams
of a partition that receives nothing, and the outputs of a topology that emits nothing. That is the limit of small equal
rates; it keeps fidelity 1 with nothing failed, 0 with every source failed, and never rising when more fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from holdfast.topology import Floats, Ints, Topology, rates_of

Mask = NDArray[np.bool_]

_BATCH_BYTES = 64 * 2**20


class Metric(StrEnum):
    """What a replica plan is to maximise."""

    FIDELITY = "fidelity"
    COMPLETENESS = "completeness"


@dataclass(frozen=True, slots=True)
class Level:
    """The partitions of one topological level, and how their inputs come together. Arrays for one vectorised step."""

    partitions: Ints
    groups: slice
    members: slice
    """The groups' members in `LossModel.member`."""
    member_starts: Ints
    """Where each group begins among the level's members."""
    streams: Ints
    stream_group: Ints
    """The group each stream reads, counted from `groups.start`."""
    by_group: Ints
    """The places of the streams, sorted by group."""
    by_group_starts: Ints
    stream_weight: Floats
    """Share of each stream in its partition's input (eq. 3)."""
    stream_owner: Ints
    """The place in `partitions` of each stream's partition."""
    starts: Ints
    """Where each partition's streams begin in `streams`."""
    joins: Mask
    single: bool
    """Every partition has one input stream."""
    any_join: bool


class LossModel:
    """The loss model of one topology under one metric: what survives for any set of working partitions."""

    def __init__(self, topology: Topology, metric: Metric = Metric.FIDELITY) -> None:
        self.topology = topology
        self.metric = metric
        rates = rates_of(topology)
        count = len(topology)
        self.joins: Mask = topology.joins if metric is Metric.FIDELITY else np.zeros(count, bool)
        """Which partitions multiply their streams; completeness takes joins as unions."""
        if metric is Metric.FIDELITY:
            counted = np.zeros(count)
            counted[topology.outputs] = rates.output[topology.outputs]
            alike = np.zeros(count)
            alike[topology.outputs] = 1.0 / len(topology.outputs)
        else:
            counted = rates.input
            alike = np.full(count, 1.0 / count)
        total = counted.sum()
        self.weight: Floats = counted / total if total > 0 else alike
        """How much of the metric each partition's kept share is worth (eq. 4); sums to 1."""
        self._group(rates.output)
        self._level(rates.stream)
        self.sources: Ints = np.flatnonzero(topology.is_source)

    def _group(self, output_rate: Floats) -> None:
        topology = self.topology
        begin = topology.edge_start[:-1]
        low = topology.edge_from[begin]
        # Streams of one link that begin at the same upstream partition read the same set: see Topology._expand.
        key = (topology.level[topology.stream_to] * (len(topology.link_to) + 1) + topology.stream_link) * (
            len(topology) + 1
        ) + low
        _, one, self.stream_group = np.unique(key, return_index=True, return_inverse=True)
        width = np.diff(topology.edge_start)[one]
        self.group_start: Ints = np.concatenate([[0], np.cumsum(width)]).astype(np.int64)
        self.member: Ints = np.arange(int(width.sum())) + np.repeat(low[one] - self.group_start[:-1], width)
        """The upstream partitions of each group, group after group; groups are in the order of their readers' level."""
        self.member_group: Ints = np.repeat(np.arange(len(one)), width)
        rate = output_rate[self.member]
        total = np.bincount(self.member_group, rate, minlength=len(one))
        silent = total[self.member_group] <= 0
        with np.errstate(divide="ignore", invalid="ignore"):
            self.member_weight: Floats = np.where(
                silent, 1.0 / width[self.member_group], rate / total[self.member_group]
            )
        """Share of each member in its group (eq. 1)."""
        self.group_level: Ints = topology.level[topology.stream_to[one]]

    def _level(self, stream_rate: Floats) -> None:
        topology = self.topology
        streams_of = np.diff(topology.stream_start)
        total = np.bincount(topology.stream_to, stream_rate, minlength=len(topology))[topology.stream_to]
        with np.errstate(divide="ignore", invalid="ignore"):
            self.stream_weight: Floats = np.where(
                total > 0, stream_rate / total, 1.0 / np.maximum(streams_of[topology.stream_to], 1)
            )
        levels = []
        for number, partitions in enumerate(topology.partitions_by_level[1:], start=1):
            width = streams_of[partitions]
            starts = np.concatenate([[0], np.cumsum(width)[:-1]]).astype(np.int64)
            streams = np.arange(int(width.sum())) + np.repeat(topology.stream_start[partitions] - starts, width)
            first = int(np.searchsorted(self.group_level, number))
            last = int(np.searchsorted(self.group_level, number + 1))
            begin, end = int(self.group_start[first]), int(self.group_start[last])
            group = self.stream_group[streams] - first
            by_group = np.argsort(group, kind="stable")
            levels.append(
                Level(
                    partitions=partitions,
                    groups=slice(first, last),
                    members=slice(begin, end),
                    member_starts=self.group_start[first:last] - begin,
                    streams=streams,
                    stream_group=group,
                    by_group=by_group,
                    by_group_starts=np.searchsorted(group[by_group], np.arange(last - first)),
                    stream_weight=self.stream_weight[streams],
                    stream_owner=np.repeat(np.arange(len(partitions)), width),
                    starts=starts,
                    joins=self.joins[partitions],
                    single=bool((width == 1).all()),
                    any_join=bool((self.joins[partitions] & (width > 1)).any()),
                )
            )
        self.levels: tuple[Level, ...] = tuple(levels)
        """Levels 1 and up; level 0 is the sources."""

    # -- sweeps ---------------------------------------------------------------------------------------------------

    def sweep(self, alive: Mask) -> tuple[Floats, Floats, Floats]:
        """Return, for one set of working partitions: what each keeps, what each would keep if it worked, per group.

        The second is what its inputs bring it: for a failed partition, what it would pass on if it alone came back.
        """
        kept = np.zeros(len(self.topology))
        brought = np.ones(len(self.topology))
        group_kept = np.zeros(len(self.group_level))
        self.sweep_from(0, alive, kept, brought, group_kept)
        return kept, brought, group_kept

    def sweep_from(self, start: int, alive: Mask, kept: Floats, brought: Floats, group_kept: Floats) -> None:
        """Bring the three arrays of a sweep up to date from one level down, in place; the levels above are right."""
        if start == 0:
            kept[self.sources] = alive[self.sources]
        for level in self.levels[max(0, start - 1) :]:
            inputs = kept[self.member[level.members]]
            inputs *= self.member_weight[level.members]
            values = np.add.reduceat(inputs, level.member_starts)
            group_kept[level.groups] = values
            brings = combine(level, values[level.stream_group])
            brought[level.partitions] = brings
            kept[level.partitions] = brings * alive[level.partitions]

    def value(self, alive: Mask) -> float:
        """Return the metric when exactly these partitions work."""
        if alive.all():
            return 1.0
        return _unit(float(self.weight @ self.sweep(alive)[0]))

    def only(self, partitions: Sequence[int]) -> Mask:
        """Return a truth value per partition: whether it is among these. The worst case: only replicas work."""
        alive = np.zeros(len(self.topology), bool)
        alive[np.asarray(partitions, np.int64)] = True
        return alive

    def value_of(self, replicas: Sequence[int]) -> float:
        """Return the metric when everything but these partitions has failed."""
        return self.value(self.only(replicas))

    def values(self, alive: Mask) -> Floats:
        """Return the metric for many sets at once: one row per set, one column per partition."""
        step = max(1, _BATCH_BYTES // (8 * len(self.topology)))
        found = [self._values(alive[start : start + step]) for start in range(0, len(alive), step)]
        return np.concatenate(found) if found else np.zeros(0)

    def _values(self, alive: Mask) -> Floats:
        columns = np.ascontiguousarray(alive.T).astype(float)
        kept = np.zeros_like(columns)
        kept[self.sources] = columns[self.sources]
        for level in self.levels:
            inputs = kept[self.member[level.members]]
            inputs *= self.member_weight[level.members, None]
            values = np.add.reduceat(inputs, level.member_starts, axis=0)
            kept[level.partitions] = combine(level, values[level.stream_group]) * columns[level.partitions]
        found: Floats = np.clip(self.weight @ kept, 0.0, 1.0)
        found[alive.all(axis=1)] = 1.0
        return found


def combine(level: Level, stream: Floats) -> Floats:
    """Return what each partition's input streams bring it together: eq. 2 for joins, eq. 3 for the others."""
    if level.single:
        return stream
    weight = level.stream_weight if stream.ndim == 1 else level.stream_weight[:, None]
    found: Floats = np.add.reduceat(stream * weight, level.starts, axis=0)
    if level.any_join:
        joined = np.multiply.reduceat(stream, level.starts, axis=0)
        found = np.where(level.joins if stream.ndim == 1 else level.joins[:, None], joined, found)
    return found


def working(topology: Topology, failed: Sequence[int] | Ints) -> Mask:
    """Return a truth value per partition: whether it works when these have failed."""
    alive = np.ones(len(topology), bool)
    alive[np.asarray(failed, np.int64)] = False
    return alive


def fidelity(topology: Topology, failed: Sequence[int] | Ints) -> float:
    """Return the output fidelity when these partitions have failed."""
    return LossModel(topology).value(working(topology, failed))


def completeness(topology: Topology, failed: Sequence[int] | Ints) -> float:
    """Return the internal completeness when these partitions have failed."""
    return LossModel(topology, Metric.COMPLETENESS).value(working(topology, failed))


def _unit(value: float) -> float:
    """Cut what rounding puts outside 0 to 1."""
    return min(1.0, max(0.0, value))
