"""Backups that hold when a whole failure domain fails and takes its backups with it (past FTC). Runs anywhere.

For a partition v of domain d, backups inside d are gone when v fails, so each path to v longer than R needs a backup
on a partition outside d (and before v); for a partition that fails alone, anywhere before v. That is the problem of
`hitting_set` with more paths, and it is solved the same way, from the checker's own latencies: choose a cheapest set
that hits all paths known, look which partitions are late in which failure, add their paths, choose again. Partitions
with the same neighbours and the same domain are twins as in `reduction`: backed up in order of T.

`repaired` makes any set hold: it is what the other algorithms' answers go through when there are domains.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from holdfast.planning.backups.core import Answer, Literal
from holdfast.planning.backups.exact import ExactBackups
from holdfast.planning.backups.hitting_set import hit
from holdfast.planning.backups.model import NOTHING_LOST, BackupProblem, Mask, check_backups
from holdfast.topology import Ints

Path = tuple[Literal, ...]


class Groups:
    """Twins of one domain as nodes, their distinct T as levels; what `hit` chooses from."""

    def __init__(self, problem: BackupProblem, cost: Ints | None = None) -> None:
        topology = problem.topology
        down_to = topology.edge_to[topology.down_edges]
        groups: dict[tuple[bytes, bytes, int], list[int]] = {}
        for v in np.flatnonzero(~problem.sinks).tolist():
            up = topology.edge_from[topology.up_start[v] : topology.up_start[v + 1]].tobytes()
            down = down_to[topology.down_start[v] : topology.down_start[v + 1]].tobytes()
            groups.setdefault((up, down, int(problem.domain_of[v])), []).append(v)
        prices = np.ones(len(problem), np.int64) if cost is None else cost
        self.literal_of: Ints = np.full(len(problem), -1, np.int64)
        self.literals: list[Literal] = []
        self.members: list[list[int]] = []
        first, costs = [], []
        for node, group in enumerate(groups.values()):
            first.append(len(self.literals))
            times = sorted({int(problem.ticks[v]) for v in group}, reverse=True)
            for level, ticks in enumerate(times):
                members = [v for v in group if problem.ticks[v] == ticks]
                self.literal_of[members] = len(self.literals)
                self.literals.append((node, level))
                self.members.append(members)
                costs.append(int(prices[members].sum()))
        self.first: Ints = np.array(first, np.int64)
        self.costs: Ints = np.array(costs, np.int64)
        self.node_of: Ints = np.array([node for node, _ in self.literals], np.int64)
        self.level_of: Ints = np.array([level for _, level in self.literals], np.int64)

    def chosen(self, answer: Answer) -> Ints:
        """Return 1 for every literal that an answer makes true, else 0."""
        return (self.level_of < answer[self.node_of]).astype(np.int64)

    def cost(self, answer: Answer) -> int:
        """Return what an answer costs."""
        return int(self.costs @ self.chosen(answer))

    def mask(self, answer: Answer) -> Mask:
        """Return the partitions that an answer backs up."""
        made = np.zeros(len(self.literal_of), bool)
        known = self.literal_of >= 0
        made[known] = self.chosen(answer)[self.literal_of[known]] == 1
        return made

    def answer(self, backups: Mask) -> Answer:
        """Return the least answer that backs up all of a set: up to the deepest level it has in each group."""
        made = np.zeros(len(self.first), np.int64)
        literals = self.literal_of[np.flatnonzero(backups & (self.literal_of >= 0))]
        np.maximum.at(made, self.node_of[literals], self.level_of[literals] + 1)
        return made


def domain_backups(
    problem: BackupProblem,
    clock: Callable[[], float],
    seconds: float,
    *,
    start: Mask,
    bound: int = 0,
    cost: Ints | None = None,
    workers: int = 1,
) -> ExactBackups:
    """Return a fewest (or cheapest) set that holds for every domain; `bound` is one proven without domains."""
    until = clock() + seconds
    groups = Groups(problem, cost)
    known: dict[Path, None] = dict.fromkeys(late_paths(problem, groups, np.zeros(len(problem), bool)))
    best = _held(problem, groups, groups.answer(start), clock, until, known)
    known |= dict.fromkeys(late_paths(problem, groups, start))
    while bound < groups.cost(best) and clock() < until:
        found, proven = hit(groups, list(known), best, bound, until - clock(), workers)
        bound = max(bound, proven)
        if found is None:
            break
        late = late_paths(problem, groups, groups.mask(found))
        if not late:
            best = min(best, found, key=groups.cost)
            break
        known |= dict.fromkeys(late)
        best = min(best, _held(problem, groups, found, clock, until, known), key=groups.cost)
    total = groups.cost(best)
    return ExactBackups(groups.mask(best), total, min(bound, total))


def repaired(problem: BackupProblem, backups: Mask, clock: Callable[[], float], seconds: float) -> Mask:
    """Return a set that holds for every domain: this one with what is missing, without what is then redundant."""
    groups = Groups(problem)
    return groups.mask(_held(problem, groups, groups.answer(backups), clock, clock() + seconds, {}))


def _held(
    problem: BackupProblem,
    groups: Groups,
    answer: Answer,
    clock: Callable[[], float],
    until: float,
    known: dict[Path, None],
) -> Answer:
    """Add literals that hit most late paths until no partition is late; then drop costly ones that are not needed."""
    answer = answer.copy()
    while late := late_paths(problem, groups, groups.mask(answer)):
        known |= dict.fromkeys(late)
        open_paths = set(late)
        while open_paths:
            counts = Counter(literal for path in open_paths for literal in path)
            price = {literal: int(groups.costs[groups.first[literal[0]] + literal[1]]) for literal in counts}
            node, level = min(counts, key=lambda literal: (price[literal] / counts[literal], literal))
            answer[node] = max(answer[node], level + 1)
            open_paths = {path for path in open_paths if not any(j < answer[c] for c, j in path)}
    for node in np.argsort(-answer, kind="stable").tolist():
        while answer[node] > 0 and clock() < until:
            answer[node] -= 1
            if not check_backups(problem, groups.mask(answer)).meets:
                answer[node] += 1
                break
    return answer


def late_paths(problem: BackupProblem, groups: Groups, backups: Mask) -> list[Path]:
    """Return, for every failure and every partition late in it, the literals that would shorten its way."""
    found: dict[Path, None] = {}
    failures = range(len(problem.topology.domains)) if problem.has_domains else range(0)
    for lost in (NOTHING_LOST, *failures):
        latency = problem.latencies(backups, lost)
        late = latency > problem.limit
        if lost != NOTHING_LOST:
            late &= problem.domain_of == lost
        keeps = backups & (problem.domain_of != lost) if lost != NOTHING_LOST else backups
        for v in np.flatnonzero(late).tolist():
            found[_late_path(problem, groups, v, latency, keeps, lost)] = None
    return list(found)


def _late_path(problem: BackupProblem, groups: Groups, v: int, latency: Ints, keeps: Mask, lost: int) -> Path:
    """Return the literals on the longest way to v, from v up to where it is longer than R, outside the lost domain."""
    topology = problem.topology
    path: list[Literal] = []
    total, at = int(problem.ticks[v]), v
    while total <= problem.limit:
        feeders = topology.edge_from[topology.up_start[at] : topology.up_start[at + 1]]
        at = int(feeders[np.argmax(np.where(keeps[feeders], -1, latency[feeders]))])
        total += int(problem.ticks[at])
        if lost == NOTHING_LOST or problem.domain_of[at] != lost:
            path.append(groups.literals[groups.literal_of[at]])
    return tuple(path)
