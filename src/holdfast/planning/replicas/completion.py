"""The cheapest way to make any partition count: what else must be replicated above and below it. Runs anywhere.

PPA, sec. IV-C1: a segment is worth nothing unless it is part of a complete MC-tree, so where it is not, a search
over the neighbouring units collects connected segments until it is. Here one sweep down and one sweep up find, for
*every* partition at once and by dynamic programming, what such a search would collect: how many partitions it costs and
what it brings. The choice at each fork is the way that brings most per partition, or the cheapest; following the
choices gives the partitions themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from holdfast.planning.replicas.fidelity import Level, LossModel, Mask
from holdfast.planning.replicas.fidelity_gradient import slopes
from holdfast.topology import Floats, Ints

_NEVER = 1e9
"""Cost of what cannot be."""


@dataclass(frozen=True, slots=True)
class Present:
    """A set of replicated partitions and what follows from it."""

    alive: Mask
    kept: Floats
    brought: Floats
    group_kept: Floats
    slope: Floats


def present(model: LossModel, alive: Mask) -> Present:
    """Sweep down and up for one set of replicated partitions."""
    kept, brought, group_kept = model.sweep(alive)
    return Present(alive, kept, brought, group_kept, slopes(model, alive, group_kept))


class Completion:
    """For each partition: the additions that would give it input, and those that would carry its output to a result."""

    def __init__(self, model: LossModel, now: Present, *, cheapest: bool) -> None:
        self.model = model
        self.now = now
        self._cheapest = cheapest
        count, groups = len(model.topology), len(model.group_level)
        self._new = (~now.alive).astype(float)
        self.up_cost: Floats = self._new.copy()
        """Partitions to add so that it gets input and works, itself among them."""
        self.up_value: Floats = np.ones(count)
        """What it would then keep."""
        self.group_cost: Floats = np.zeros(groups)
        self.group_value: Floats = now.group_kept.copy()
        self._group_choice: Ints = np.zeros(groups, np.int64)
        self._stream_choice: Ints = np.full(count, -1, np.int64)
        self.down_cost: Floats = np.zeros(count)
        """Partitions to add below it so that what it keeps reaches an output."""
        self.down_value: Floats = now.slope.copy()
        """What the metric would then gain per kept share of it."""
        self._down_choice: Ints = np.full(count, -1, np.int64)
        self._ahead = self._count_ahead()
        for level in model.levels:
            self._up(level)
        for level in reversed(model.levels):
            self._down(level)

    def _score(self, value: Floats, cost: Floats) -> Floats:
        """Rank ways: most value per partition, or fewest partitions and among those most value."""
        if self._cheapest:
            return np.where(value > 0, 1.0 / (1.0 + cost) + 1e-9 * value, 0.0)
        return value / np.maximum(cost, 0.5)

    def _count_ahead(self) -> Floats:
        """Count the partitions missing on the shortest way down, joins aside: what a choice further up must add to."""
        model = self.model
        ahead = np.where(self.now.slope > 0, 0.0, _NEVER)
        for level in reversed(model.levels):
            target = (self._new + ahead)[level.partitions][level.stream_owner]
            best = np.full(level.groups.stop - level.groups.start, _NEVER)
            np.minimum.at(best, level.stream_group, target)
            group = model.member_group[level.members] - level.groups.start
            np.minimum.at(ahead, model.member[level.members], best[group])
        return np.minimum(ahead, _NEVER)

    def _up(self, level: Level) -> None:
        model, now = self.model, self.now
        member = model.member[level.members]
        group = model.member_group[level.members] - level.groups.start
        value = self.up_value[member] * model.member_weight[level.members]
        score = self._score(value, self.up_cost[member] + self._ahead[member])
        chosen = _first_best(score, level.member_starts, group)
        self._group_choice[level.groups] = member[chosen]
        dead = now.group_kept[level.groups] <= 0
        group_cost = np.where(dead, self.up_cost[member[chosen]], 0.0)
        group_value = np.where(dead, value[chosen], now.group_kept[level.groups])
        self.group_cost[level.groups], self.group_value[level.groups] = group_cost, group_value

        cost, brings = group_cost[level.stream_group], group_value[level.stream_group]
        partitions = level.partitions
        own = self._new[partitions]
        if level.single:
            up_cost, up_value = own + cost, brings
            self._stream_choice[partitions] = level.streams
        else:
            part = brings * level.stream_weight
            best = _first_best(
                self._score(part, cost + self._ahead[partitions][level.stream_owner]), level.starts, level.stream_owner
            )
            self._stream_choice[partitions] = level.streams[best]
            # An independent-input partition that gets something already needs nothing more.
            fed = now.brought[partitions] > 0
            up_cost = own + np.where(fed, 0.0, cost[best])
            up_value = np.where(fed, now.brought[partitions], part[best])
            if level.any_join:
                up_cost = np.where(level.joins, own + np.add.reduceat(cost, level.starts), up_cost)
                up_value = np.where(level.joins, np.multiply.reduceat(brings, level.starts), up_value)
        self.up_cost[partitions], self.up_value[partitions] = up_cost, up_value

    def _down(self, level: Level) -> None:
        model = self.model
        target = level.partitions[level.stream_owner]
        cost = self._new[target] + self.down_cost[target]
        value = self.down_value[target]
        if level.any_join:
            # To use one stream a join needs its others.
            group_cost = self.group_cost[level.groups][level.stream_group]
            group_value = self.group_value[level.groups][level.stream_group]
            others = np.add.reduceat(group_cost, level.starts)[level.stream_owner] - group_cost
            product = np.multiply.reduceat(group_value, level.starts)[level.stream_owner]
            with np.errstate(divide="ignore", invalid="ignore"):
                rest = np.where(group_value > 0, product / group_value, 0.0)
            joined = level.joins[level.stream_owner]
            cost = cost + np.where(joined, others, 0.0)
            value = value * np.where(joined, rest, level.stream_weight)
        else:
            value = value * level.stream_weight
        order = level.by_group
        best = order[_first_best(self._score(value, cost)[order], level.by_group_starts, level.stream_group[order])]

        member = model.member[level.members]
        group = model.member_group[level.members] - level.groups.start
        offered = value[best][group] * model.member_weight[level.members]
        offered_cost = cost[best][group]
        stream = level.streams[best][group]
        # A partition whose output counts already needs nothing; another takes the best of the groups it is in.
        unused = self.now.slope[member] <= 0
        better = unused & (
            self._score(offered, offered_cost) > self._score(self.down_value[member], self.down_cost[member])
        )
        at = np.flatnonzero(better)
        # The same partition may be offered several ways in one level (several consumers): the best must win.
        at = at[np.argsort(self._score(offered, offered_cost)[at], kind="stable")]
        self.down_value[member[at]] = offered[at]
        self.down_cost[member[at]] = offered_cost[at]
        self._down_choice[member[at]] = stream[at]

    # -- following the choices ------------------------------------------------------------------------------------

    def feed(self, partition: int, added: set[int]) -> None:
        """Add to a set what gives a partition input and makes it work."""
        now, topology = self.now, self.model.topology
        waiting = [partition]
        while waiting:
            p = waiting.pop()
            if p in added or now.kept[p] > 0:
                continue
            if not now.alive[p]:
                added.add(p)
            if topology.is_source[p]:
                continue
            if self.model.joins[p]:
                streams = range(int(topology.stream_start[p]), int(topology.stream_start[p + 1]))
            elif now.brought[p] <= 0:
                streams = range(int(self._stream_choice[p]), int(self._stream_choice[p]) + 1)
            else:
                continue
            groups = (int(self.model.stream_group[stream]) for stream in streams)
            waiting += [int(self._group_choice[group]) for group in groups if now.group_kept[group] <= 0]

    def feed_stream(self, stream: int, added: set[int]) -> None:
        """Add to a set what makes an input stream carry something."""
        group = int(self.model.stream_group[stream])
        if self.now.group_kept[group] <= 0:
            self.feed(int(self._group_choice[group]), added)

    def use(self, partition: int, added: set[int]) -> None:
        """Add to a set what carries a partition's output to a result."""
        topology = self.model.topology
        while self.now.slope[partition] <= 0 and self._down_choice[partition] >= 0:
            stream = int(self._down_choice[partition])
            partition = int(topology.stream_to[stream])
            if not self.now.alive[partition]:
                added.add(partition)
            if self.model.joins[partition]:
                for other in range(int(topology.stream_start[partition]), int(topology.stream_start[partition + 1])):
                    if other != stream:
                        self.feed_stream(other, added)


def _first_best(score: Floats, starts: Ints, owner: Any) -> Ints:
    """Return, for each run of scores, the place of its first best one. `owner` numbers the runs from zero."""
    best = np.maximum.reduceat(score, starts)
    at = np.flatnonzero(score == best[owner])
    found: Ints = at[np.searchsorted(owner[at], np.arange(len(starts)))]
    return found
