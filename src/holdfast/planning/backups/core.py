"""Answers to the undecided core of a backup problem: what they cost, whether they hold, quick ones. Runs anywhere.

An answer gives each node the number of its levels that are backed up, largest T first. A node passes on its wait U plus
the T of its first level that is not backed up, or nothing when all are. Everything here is a sweep over the core, rank
by rank: linear in its edges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.planning.backups.reduction import HUB_COST, Core
from holdfast.topology import Ints

Answer = Ints
"""For each node of a core, how many of its levels are backed up."""

Literal = tuple[int, int]
"""(node, level): this level of the node, and those of larger T, are backed up."""


@dataclass(frozen=True, slots=True)
class Rank:
    """Nodes that can be swept together, their literals, and their neighbours on the side the sweep comes from."""

    nodes: Ints
    literals: Ints
    literal_starts: Ints
    neighbours: Ints
    neighbour_starts: Ints


class CoreSearch:
    """A core as arrays: nodes, literals (a node's levels in a row), and ranks from both sides."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.limit = core.limit
        nodes = core.nodes
        self.up: list[list[int]] = [[] for _ in nodes]
        for number, node in enumerate(nodes):
            for other in node.down:
                self.up[other].append(number)
        self.levels: Ints = np.array([len(node.ticks) for node in nodes], np.int64)
        self.first: Ints = np.concatenate([[0], np.cumsum(self.levels)]).astype(np.int64)[:-1]
        self.node_of: Ints = np.repeat(np.arange(len(nodes)), self.levels)
        self.literals: list[Literal] = [(c, j) for c, node in enumerate(nodes) for j in range(len(node.ticks))]
        self.ticks: Ints = np.array([t for node in nodes for t in node.ticks], np.int64)
        self.costs: Ints = np.array([cost for node in nodes for cost in node.costs], np.int64)
        self.is_hub: list[bool] = [node.costs[0] == HUB_COST for node in nodes]
        self.head: Ints = np.array([node.head for node in nodes], np.int64)
        self.tail: Ints = np.array([node.tail for node in nodes], np.int64)
        self.downwards = self._ranked(self.up, range(len(nodes)))
        self.upwards = self._ranked([node.down for node in nodes], range(len(nodes) - 1, -1, -1))

    def _ranked(self, neighbours: Sequence[Sequence[int]], order: range) -> list[Rank]:
        rank = [0] * len(neighbours)
        by_rank: list[list[int]] = []
        for c in order:
            rank[c] = 1 + max((rank[p] for p in neighbours[c]), default=-1)
            if rank[c] == len(by_rank):
                by_rank.append([])
            by_rank[rank[c]].append(c)
        made = []
        for of_rank in by_rank:
            nodes = np.array(of_rank, np.int64)
            widths = self.levels[nodes]
            starts = np.concatenate([[0], np.cumsum(widths)[:-1]]).astype(np.int64)
            literals = np.arange(int(widths.sum())) + np.repeat(self.first[nodes] - starts, widths)
            feeds = np.array([len(neighbours[c]) for c in of_rank], np.int64)
            made.append(
                Rank(
                    nodes,
                    literals,
                    starts,
                    np.array([p for c in of_rank for p in neighbours[c]], np.int64),
                    np.concatenate([[0], np.cumsum(feeds)[:-1]]).astype(np.int64),
                )
            )
        return made

    def nothing(self) -> Answer:
        """Return the answer without any backup."""
        return np.zeros(len(self.levels), np.int64)

    def chosen(self, answer: Answer) -> Ints:
        """Return 1 for every literal that an answer makes true, else 0."""
        places = np.arange(len(self.node_of)) - self.first[self.node_of]
        return (places < answer[self.node_of]).astype(np.int64)

    def cost(self, answer: Answer) -> int:
        """Return what an answer costs."""
        return int(self.costs @ self.chosen(answer))

    def _passed(self, answer: Answer, value: Ints, nodes: Ints) -> Ints:
        """Return what nodes with these waits (or rests) pass on: value plus T, or 0 when wholly backed up."""
        count = answer[nodes]
        is_open = count < self.levels[nodes]
        place = self.first[nodes] + np.where(is_open, count, 0)
        return np.where(is_open, value[nodes] + self.ticks[place], 0)

    def waits(self, answer: Answer) -> Ints:
        """Return U of every node: what it waits for before it can reprocess."""
        return self._swept(answer, self.head, self.downwards)

    def rests(self, answer: Answer) -> Ints:
        """Return, for every node, the longest that must follow it when it is not backed up."""
        return self._swept(answer, self.tail, self.upwards)

    def _swept(self, answer: Answer, least: Ints, ranks: list[Rank]) -> Ints:
        found = least.copy()
        for rank in ranks[1:]:
            passed = self._passed(answer, found, rank.neighbours)
            found[rank.nodes] = np.maximum(found[rank.nodes], np.maximum.reduceat(passed, rank.neighbour_starts))
        return found

    def late(self, answer: Answer, waits: Ints | None = None) -> Ints:
        """Return the nodes after which a node is late."""
        found = self.waits(answer) if waits is None else waits
        passed = self._passed(answer, found, np.arange(len(self.levels)))
        return np.flatnonzero((answer < self.levels) & (passed + self.tail > self.limit))

    def _settled(self, ranks: list[Rank], start: Ints, other: Ints, least: Answer, most: Answer | None) -> Answer:
        """Sweep, giving each node as few levels as value and `other` allow, but no fewer than `least`."""
        answer = least.copy()
        value = start.copy()
        for number, rank in enumerate(ranks):
            nodes = rank.nodes
            if number:
                passed = self._passed(answer, value, rank.neighbours)
                value[nodes] = np.maximum(value[nodes], np.maximum.reduceat(passed, rank.neighbour_starts))
            room = self.limit - value - other
            above = self.ticks[rank.literals] > room[self.node_of[rank.literals]]
            needed = np.add.reduceat(above.astype(np.int64), rank.literal_starts)
            answer[nodes] = np.maximum(needed, least[nodes]) if most is None else np.minimum(needed, most[nodes])
        return answer

    def from_sources(self, least: Answer | None = None) -> Answer:
        """Back up as late as possible on the way down, and at least `least`: optimal on trees towards a sink."""
        least = self.nothing() if least is None else least
        return self._settled(self.downwards, self.head, self.tail, least, None)

    def from_sinks(self, least: Answer | None = None) -> Answer:
        """Back up as early as possible on the way up, and at least `least`: optimal on trees from a source."""
        least = self.nothing() if least is None else least
        return self._settled(self.upwards, self.tail, self.head, least, None)

    def without_redundant(self, answer: Answer, *, downwards: bool) -> Answer:
        """Lower every node as far as no node becomes late, node by node on the way down or up."""
        # On the way down U is that of the new answer and the rest that of the given one; on the way up, the mirror.
        if downwards:
            return self._settled(self.downwards, self.head, self.rests(answer), self.nothing(), answer)
        return self._settled(self.upwards, self.tail, self.waits(answer), self.nothing(), answer)

    def completed(self, least: Answer) -> Answer:
        """Return the best of several answers that begin with `least`: completed from either side, then lowered."""
        found = []
        for answer in (self.from_sources(least), self.from_sinks(least)):
            for downwards in (True, False):
                lower = self.without_redundant(answer, downwards=downwards)
                found.append(self.without_redundant(lower, downwards=not downwards))
        return min(found, key=self.cost)

    def late_paths(self, answer: Answer) -> list[tuple[Literal, ...]]:
        """Return, for every late node, the literals of a late way to it, cut where it is long enough."""
        nodes = self.core.nodes
        waits = self.waits(answer)
        passed = self._passed(answer, waits, np.arange(len(self.levels))).tolist()
        found = []
        for c in self.late(answer, waits).tolist():
            at, total = c, nodes[c].tail
            path: list[Literal] = []
            while True:
                level = int(answer[at])
                if not self.is_hub[at]:
                    path.append((at, level))
                total += nodes[at].ticks[level]
                if total + nodes[at].head > self.limit:
                    break
                longest = max(passed[p] for p in self.up[at])
                equal = [p for p in self.up[at] if passed[p] == longest]
                # Of equal ways take one by the end, so that paths to different ends differ.
                at = equal[c % len(equal)]
            found.append(tuple(path))
        return found
