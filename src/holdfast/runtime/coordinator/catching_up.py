"""Which queries lead, so that sources follow them, and which catch up, how far behind they may be. Pure.

Of the live queries with the highest priority, the furthest one always leads, and with it all that are less than a lag
behind it. The log is at most so many batches ahead of the slowest that leads: where all are slower than the sources,
these wait. The others *catch up*: they have returned from a recovery, were resumed, or are slow. One that has come that
far behind leads again when it is level with the furthest but for half the lag.

A query that catches up does not hold sources back while it is within its *allowance*: the batches that it was behind
when it began to, and so many more. With the highest priority the allowance shrinks by one batch for every ten logged:
the query comes to the head in the end, however little of its cores the others leave it; where that is too little,
sources wait for it. While the query is away (lost, parked, or between two attempts) its allowance stands still, and
the batches that are logged meanwhile are added to it. See decisions 0127 and 0270.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.ids import BatchId, PartitionId

LAG = 3
"""Batches behind the furthest query from which one catches up; fewer where fewer may be logged ahead."""
SHRINKS_EVERY = 10
"""Batches logged by which the allowance of a query that catches up gets one smaller."""
SERVES_NONE = -1
"""The priority of a live partition all of whose queries are lost, or wait: it leads only where there is no other."""


@dataclass(frozen=True, slots=True)
class QueryProgress:
    """How far a live query is, or a live partition all of whose queries wait."""

    frontier: BatchId
    """The last batch that all its partitions have completed."""
    priority: int
    is_kept: bool = True
    """Whether senders keep all that it needs; where they do not, it is regenerated."""


@dataclass(frozen=True, slots=True)
class CatchUp:
    """Since when a query catches up."""

    lag: int
    """Batches that it was behind the log then, and those that were logged while it was away."""
    logged: BatchId
    """The last batch in the log then, as many later."""

    def after_absence(self, batches: int) -> CatchUp:
        """Return it with the credit for an absence in which so many batches were logged."""
        return CatchUp(self.lag + batches, BatchId(self.logged + batches))


Progresses = Mapping[PartitionId, QueryProgress]
CatchUps = Mapping[PartitionId, CatchUp]


def catch_ups(queries: Progresses, before: CatchUps, logged: BatchId, lag: int = LAG) -> dict[PartitionId, CatchUp]:
    """Return the queries that catch up now, from those that did `before`.

    One that did is level with the log, or with one that leads; not because those that led are lost: else its allowance
    would begin anew whenever they return.
    """
    furthest, found = _furthest(queries), {}
    highest, level = _highest(queries), lag // 2
    led = [one.frontier for name, one in queries.items() if one.priority == highest and name not in before]
    for name, one in queries.items():
        since, behind = before.get(name), furthest - one.frontier
        if since is None:
            stays = behind >= lag
        else:
            is_alone = not any(other >= one.frontier - level for other in led)
            stays = behind > level or (is_alone and logged - one.frontier > level)
        if stays:
            found[name] = since or CatchUp(logged - one.frontier, logged)
    return found


def leaders(queries: Progresses, catching_up: CatchUps, *, is_full: bool = False) -> set[PartitionId]:
    """Return the queries that sources follow: those that do not catch up, or the furthest, where all do.

    `is_full`: outboxes have reached their bound. Then no query of the highest priority is left behind but those for
    which nothing is kept: what they need is regenerated.
    """
    highest, furthest = _highest(queries), _furthest(queries)
    best = {name: one for name, one in queries.items() if one.priority == highest}
    led = {name for name in best if name not in catching_up}
    led = led or {name for name, one in best.items() if one.frontier == furthest}
    return led | {name for name, one in best.items() if is_full and one.is_kept}


def allowance(
    query: PartitionId, queries: Progresses, catching_up: CatchUps, logged: BatchId, most_ahead: int, most_behind: int
) -> int:
    """Return how many batches a query that does not lead may be behind the log, before sources wait for it."""
    since = catching_up.get(query)
    if since is None:
        return max(most_ahead, most_behind)
    spent = (logged - since.logged) // SHRINKS_EVERY if queries[query].priority == _highest(queries) else 0
    return max(most_ahead, since.lag + most_behind - spent)


def beyond_allowance(
    queries: Progresses, catching_up: CatchUps, logged: BatchId, most_ahead: int, most_behind: int
) -> list[PartitionId]:
    """Return the queries that do not lead, and for which sources wait all the same."""
    led = leaders(queries, catching_up)
    return [
        name
        for name, one in queries.items()
        if name not in led
        and logged - one.frontier >= allowance(name, queries, catching_up, logged, most_ahead, most_behind)
    ]


def _highest(queries: Progresses) -> int:
    return max((one.priority for one in queries.values()), default=SERVES_NONE)


def _furthest(queries: Progresses) -> int:
    """Return how far the furthest of the most valuable queries is."""
    highest = _highest(queries)
    return max((one.frontier for one in queries.values() if one.priority == highest), default=0)


@dataclass(slots=True)
class CatchingUp:
    """What a run remembers: which queries catch up, also while they are away, and which of them were reported."""

    lag: int = LAG
    most_ahead: int = LAG
    """Batches behind the log from which it is reported: sources would have waited for it."""
    now: dict[PartitionId, CatchUp] = field(default_factory=dict)
    """Those that can go on; none that is away."""
    _away: dict[PartitionId, tuple[CatchUp, BatchId]] = field(default_factory=dict)
    """Queries that caught up when they went away, and the last batch in the log then; no more than there are."""
    _reported: set[PartitionId] = field(default_factory=set)
    _serving: set[PartitionId] = field(default_factory=set)
    """What was a query at the last look; the others are partitions that serve none."""

    @classmethod
    def of(cls, most_ahead: int) -> CatchingUp:
        """Begin, where so many batches may be logged ahead of those that lead."""
        return cls(min(LAG, most_ahead), most_ahead)

    def at(self, queries: Progresses, logged: BatchId) -> dict[PartitionId, CatchUp]:
        """Return who catches up as it is now: what is remembered is as old as the last look."""
        back = {
            name: since.after_absence(logged - left) for name, (since, left) in self._away.items() if name in queries
        }
        return catch_ups(queries, self.now | back, logged, self.lag)

    def look(self, queries: Progresses, logged: BatchId) -> tuple[list[PartitionId], list[PartitionId]]:
        """Remember who catches up now; return who is to be reported as behind, and who as level again."""
        found = self.at(queries, logged)
        gone = {name: (since, logged) for name, since in self.now.items() if name not in queries}
        self._away = {name: one for name, one in self._away.items() if name not in queries}
        self._away |= {name: one for name, one in gone.items() if name in self._serving}
        self.now = found
        self._serving = {name for name, one in queries.items() if one.priority != SERVES_NONE}
        level = [one for one in sorted(self._reported) if one not in self.now and one not in self._away]
        self._reported.difference_update(level)
        behind = [
            name
            for name in sorted(self.now.keys() - self._reported)
            if logged - queries[name].frontier >= self.most_ahead and queries[name].priority != SERVES_NONE
        ]
        self._reported.update(behind)
        return behind, level

    @property
    def reported(self) -> tuple[PartitionId, ...]:
        """The queries that were reported as behind, can go on and are not level again."""
        return tuple(sorted(self._reported & self.now.keys()))
