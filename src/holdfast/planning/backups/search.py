"""The search of Algorithm FTC on general DAGs (FTC, Alg. 1 and 4): rounds from search sources. Runs anywhere.

A round starts at a search source: a source of the topology, or a backup chosen before. Its candidates are what lies
downstream of it, up to the next backups, and still has a true latency of at most R (L of eq. 3 with all backups chosen
so far, whichever search source it comes from; the printed distance from this search source alone would break Lemma 3).
Some candidates have a consumer that is late: they are the round's **frontier**, and every way from the search source to
the frontier must be cut by a backup. Candidates are taken by rank until that is so, which is when the b-cover
percentages of what was taken add to 1 with sinks counted as covered. Who takes part in the ranking is the caller's:
`dag` ranks by backup workload (eq. 8), `share` by share of the resources.

Two readings of Alg. 4 are ours. Line 11 removes the candidates on the ways to a chosen one; we keep those of the
frontier, since only they can cover their late consumer. And a candidate counts as long as some of the search source's
output still reaches it uncut, so that no percentage counts twice. Every set found this way meets R: were v late and all
before it on time, the last search source before v would have had v's upstream neighbour in its frontier, and cut it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from holdfast.planning.backups.model import BackupProblem, Mask


@dataclass(frozen=True, slots=True)
class Round:
    """What a ranking sees: the search source, its candidates from the sources down, and what they are joined by."""

    source: int
    candidates: list[int]
    """In topological order; the search source is the first."""
    upstream: dict[int, list[int]]
    """Of each candidate but the first, the upstream neighbours that are candidates and keep no backup."""
    consumers: list[list[int]]
    """Of every partition of the topology, all of its consumers."""


Ranking = Callable[[Round], dict[int, float]]


class LatencyTable:
    """L(v) of every partition as backups come and go; a change costs what it touches."""

    def __init__(self, problem: BackupProblem, backups: Mask) -> None:
        topology = problem.topology
        self.limit = problem.limit
        self.ticks: list[int] = problem.ticks.tolist()
        self.level: list[int] = topology.level.tolist()
        edge_from, start = topology.edge_from.tolist(), topology.up_start.tolist()
        self.upstream = [edge_from[start[v] : start[v + 1]] for v in range(len(problem))]
        edge_to, start = topology.edge_to[topology.down_edges].tolist(), topology.down_start.tolist()
        self.consumers = [edge_to[start[v] : start[v + 1]] for v in range(len(problem))]
        self.keeps: list[bool] = backups.tolist()
        self.latency: list[int] = problem.latencies(backups).tolist()

    def add(self, partition: int) -> None:
        """Let a partition keep a backup."""
        self.keeps[partition] = True
        self._update(self.consumers[partition], None)

    def remove_if_met(self, partition: int) -> bool:
        """Take a partition's backup away unless some partition would then be late; return whether it was removed."""
        self.keeps[partition] = False
        changed: dict[int, int] = {}
        if self._update(self.consumers[partition], changed):
            return True
        self.keeps[partition] = True
        for touched, before in changed.items():
            self.latency[touched] = before
        return False

    def _update(self, first: list[int], changed: dict[int, int] | None) -> bool:
        """Compute L again from these partitions down; with `changed`, note old values and stop when one is late."""
        latency, keeps, level = self.latency, self.keeps, self.level
        waiting = [(level[v], v) for v in first]
        heapq.heapify(waiting)
        queued = set(first)
        while waiting:
            _, v = heapq.heappop(waiting)
            queued.discard(v)
            found = self.ticks[v] + max((latency[u] for u in self.upstream[v] if not keeps[u]), default=0)
            if found == latency[v]:
                continue
            if changed is not None:
                changed.setdefault(v, latency[v])
                if found > self.limit:
                    return False
            latency[v] = found
            if not keeps[v]:
                for w in self.consumers[v]:
                    if w not in queued:
                        queued.add(w)
                        heapq.heappush(waiting, (level[w], w))
        return True


def search(problem: BackupProblem, ranking: Ranking) -> list[int]:
    """Run Alg. 1 with Alg. 4's choice by this ranking; the answer meets R, and may hold redundant backups.

    Returns them in the order they were chosen.
    """
    table = LatencyTable(problem, np.zeros(len(problem), bool))
    place = _breadth_first_places(table)
    pending = [(-place[v], v) for v in range(len(problem)) if not table.upstream[v]]
    heapq.heapify(pending)
    taken: list[int] = []
    while pending:
        _, source = heapq.heappop(pending)
        for chosen in _choose(table, source, ranking):
            table.add(chosen)
            taken.append(chosen)
            heapq.heappush(pending, (-place[chosen], chosen))
    return taken


def without_redundant(problem: BackupProblem, order: Iterable[int], backups: Mask) -> Mask:
    """Take away, in this order, every backup without which all partitions are still on time."""
    table = LatencyTable(problem, backups)
    for partition in order:
        table.remove_if_met(partition)
    return np.array(table.keeps, bool)


def _breadth_first_places(table: LatencyTable) -> list[int]:
    """Number the partitions breadth first from a virtual sink: I(v), larger with more hops to a sink."""
    place = [-1] * len(table.consumers)
    queue = [v for v, consumers in enumerate(table.consumers) if not consumers]
    for number, v in enumerate(queue):
        place[v] = number
    for v in queue:
        for u in table.upstream[v]:
            if place[u] < 0:
                place[u] = len(queue)
                queue.append(u)
    return place


def _choose(table: LatencyTable, source: int, ranking: Ranking) -> list[int]:
    """Run one round: return the partitions that keep a backup from now on."""
    candidates, upstream, frontier = _candidates(table, source)
    if not frontier:
        return []
    useful = _leading_to(frontier, upstream)
    rank = ranking(Round(source, candidates, upstream, table.consumers))
    distance = _distances(table, candidates, upstream)
    # Backups there are cost nothing, so they come first (eq. 6 ranks them above all others).
    order = sorted(
        (z for z in candidates if z in useful and (z != source or not table.keeps[source])),
        key=lambda z: (not (table.keeps[z] and z != source), -rank[z], -distance[z], z),
    )
    # `reaching[z]`: how many upstream neighbours still bring it uncut output of the search source.
    reaching = {z: len(upstream[z]) for z in candidates[1:]}
    reaching[source] = 1
    inside: dict[int, list[int]] = {z: [] for z in candidates}
    for z in candidates[1:]:
        for u in upstream[z]:
            inside[u].append(z)
    open_frontier = set(frontier)
    removed: set[int] = set()
    chosen: list[int] = []
    for z in order:
        if not open_frontier:
            break
        if z in removed or reaching[z] == 0:
            continue
        if not table.keeps[z]:
            chosen.append(z)
        _cut(z, reaching, inside, open_frontier)
        _remove_above(z, upstream, frontier, removed)
    return chosen


def _candidates(table: LatencyTable, source: int) -> tuple[list[int], dict[int, list[int]], set[int]]:
    """Return the candidates of a search source, their upstream neighbours among them, and the frontier."""
    latency, limit, keeps = table.latency, table.limit, table.keeps
    seen = {source}
    stack = [source]
    frontier: set[int] = set()
    upstream: dict[int, list[int]] = {source: []}
    while stack:
        z = stack.pop()
        if keeps[z] and z != source:
            continue
        for w in table.consumers[z]:
            if latency[w] > limit:
                frontier.add(z)
                continue
            if w not in seen:
                seen.add(w)
                stack.append(w)
                upstream[w] = []
            upstream[w].append(z)
    return sorted(seen, key=lambda z: (table.level[z], z)), upstream, frontier


def _leading_to(frontier: set[int], upstream: dict[int, list[int]]) -> set[int]:
    """Return the candidates from which some of the frontier is reached, itself included."""
    found = set(frontier)
    stack = list(frontier)
    while stack:
        for u in upstream[stack.pop()]:
            if u not in found:
                found.add(u)
                stack.append(u)
    return found


def _distances(table: LatencyTable, candidates: list[int], upstream: dict[int, list[int]]) -> dict[int, int]:
    """Return D(source, z), the longest way from the search source; from a backup it starts at 0."""
    source = candidates[0]
    found = {source: 0 if table.keeps[source] else table.ticks[source]}
    for z in candidates[1:]:
        found[z] = table.ticks[z] + max(found[u] for u in upstream[z])
    return found


def _cut(chosen: int, reaching: dict[int, int], inside: dict[int, list[int]], open_frontier: set[int]) -> None:
    """Note that output stops at the chosen one: what only it reached is reached no more."""
    stack = [chosen]
    reaching[chosen] = 0
    while stack:
        z = stack.pop()
        open_frontier.discard(z)
        for w in inside[z]:
            reaching[w] -= 1
            if reaching[w] == 0:
                stack.append(w)


def _remove_above(chosen: int, upstream: dict[int, list[int]], frontier: set[int], removed: set[int]) -> None:
    """Remove the candidates on the ways to the chosen one, but for those of the frontier (Alg. 4, line 11)."""
    stack = [chosen]
    while stack:
        for u in upstream[stack.pop()]:
            if u not in removed:
                if u not in frontier:
                    removed.add(u)
                stack.append(u)
