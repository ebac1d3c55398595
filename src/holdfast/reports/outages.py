"""When each query of a run was down, back and level, from the run's events. Runs anywhere; pure.

A run does not know when a fault was: a query is *down* from the detection of a loss that took one of its partitions (or
from the last sign of a driver that ended). It is *back* with its first output of a batch that was not out before, once
none of its partitions is lost or being restored, and *level* when all of them are level with the log again. The start
of a run is no outage, and neither is a driver that stopped in order and was started again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from holdfast.reports.model import Period, QuerySpec, Seen

_DOWN = frozenset({"lost", "restoring"})
ENDED = "ended"
"""The event of a driver that ended; in order, where it names no problem."""


@dataclass(slots=True)
class QueryHistory:
    """What happened to one query."""

    spec: QuerySpec
    periods: list[Period] = field(default_factory=list)
    batches: int = 0
    """Outputs, each batch once."""
    repeated: int = 0
    """Outputs of batches that were out before: a new driver publishes them again, and the sink recognises them."""
    gaps: int = 0
    """Batches between the first and the last whose output is not in the log."""
    first: int | None = None
    last: int = -1
    lag: list[tuple[float, float]] = field(default_factory=list)
    """Batches behind the log, over time."""
    since: float | None = None
    state: str = "up"
    """`up`, `down`, `late` or `parked`."""
    out_before: int = -1
    parked_down: bool = False
    """Whether it was down when it was parked: resumed, it is down still."""
    tentative: float | None = None
    """When it published its first tentative output while it is down."""

    def close(self, at: float, *, goes_on: bool = False) -> None:
        """Note the time that ends now: what it was in, and over it the time with tentative outputs."""
        if self.state != "up" and self.since is not None and at > self.since:
            self.periods.append(Period(self.since, at, self.state, goes_on))
        if self.tentative is not None:
            self.periods.append(Period(self.tentative, at, "tentative", goes_on))
            self.tentative = None

    def move(self, at: float, state: str) -> None:
        """Be in another state from now on."""
        if state == self.state:
            return
        self.close(at)
        if state == "down":
            self.out_before = self.last
        self.parked_down = state == "parked" and self.state == "down"
        self.state, self.since = state, at


class RunOutages:
    """Follows the events of a run."""

    def __init__(self, queries: Mapping[str, QuerySpec]) -> None:
        self.queries = {name: QueryHistory(spec) for name, spec in queries.items()}
        self.available: list[tuple[float, float]] = []
        """How many queries were up, at every change."""
        self._using: dict[str, list[str]] = {}
        for name, spec in queries.items():
            for member in spec.members:
                self._using.setdefault(member, []).append(name)
        self._states: dict[str, str] = {}
        self._away: dict[str, str] = {}
        """Queries that are not up, and their states."""
        self._started = False
        self._stopped = False
        self._claim: int | None = None
        self._sign: float | None = None
        self._logged = -1

    def read(self, events: Iterable[Seen], end: float) -> None:
        """Take all events of a log."""
        for event in events:
            self.take(event)
            self._count(event.at)
        for one in self.queries.values():
            one.close(end, goes_on=True)
        self._count(end)

    def take(self, event: Seen) -> None:
        """Take one event."""
        given, at = event.fields, event.at
        match event.kind:
            case "run" | "epoch":
                claim = int(given.get("claim", 0))
                if self._claim is not None and claim > self._claim:
                    self._new_driver(self._sign if self._sign is not None else at)
                self._claim = max(claim, self._claim or 0)
            case "state":
                self._changed(at, str(given["partition"]), str(given["after"]))
            case "published":
                self._sign = at
                if given.get("tentative"):
                    self._tentative(at, str(given["partition"]))
                else:
                    self._published(at, str(given["partition"]), int(given["batch"]))
            case "cycle":
                self._sign = at
                self._logged = max(self._logged, int(given.get("through", -1)))
                for name, state in self._away.items():
                    if state == "down":
                        one = self.queries[name]
                        one.lag.append((at, float(max(0, self._logged - one.last))))
            case "parked":
                if (query := str(given["query"])) in self.queries:
                    self._move(query, at, "parked")
            case "resumed":
                if self._away.get(query := str(given["query"])) == "parked":
                    one = self.queries[query]
                    lost = any(self._states.get(member) in _DOWN for member in one.spec.members)
                    self._move(query, at, "down" if lost or one.parked_down else "late")
            case kind if kind == ENDED:
                self._stopped = given.get("problem") is None
                self._sign = at

    def _new_driver(self, at: float) -> None:
        self._states = dict.fromkeys(self._states, "lost")
        if self._stopped:  # in order: what follows is the start of a run
            self._started, self._stopped = False, False
            return
        for name, one in self.queries.items():
            if self._started and one.state != "parked":
                self._move(name, at, "down")

    def _changed(self, at: float, partition: str, after: str) -> None:
        self._states[partition] = after
        for name in self._using.get(partition, ()):
            one = self.queries[name]
            if after == "lost" and self._started and one.state != "parked":
                self._move(name, at, "down")
            elif after == "running" and one.state == "late" and self._level(one):
                self._move(name, at, "up")
        if not self._started and self._states and not (set(self._states.values()) & _DOWN):
            self._started = True

    def _level(self, one: QueryHistory) -> bool:
        return all(self._states.get(member, "running") == "running" for member in one.spec.members)

    def _tentative(self, at: float, name: str) -> None:
        one = self.queries.get(name)
        if one is not None and one.state == "down" and one.tentative is None:
            one.tentative = at

    def _published(self, at: float, name: str, batch: int) -> None:
        one = self.queries.get(name)
        if one is None:
            return
        if one.first is None:
            one.first, one.last = batch, batch
            one.batches = 1
        elif batch <= one.last:
            one.repeated += 1
        else:
            one.gaps += batch - one.last - 1
            one.last = batch
            one.batches += 1
        self._logged = max(self._logged, batch)
        one.lag.append((at, float(max(0, self._logged - one.last))))
        if one.state != "down" or batch <= one.out_before:
            return
        if not any(self._states.get(member) in _DOWN for member in one.spec.members):
            self._move(name, at, "up" if self._level(one) else "late")

    def _move(self, name: str, at: float, state: str) -> None:
        self.queries[name].move(at, state)
        if state == "up":
            self._away.pop(name, None)
        else:
            self._away[name] = state

    def _count(self, at: float) -> None:
        up = float(len(self.queries) - len(self._away))
        if not self.available or self.available[-1][1] != up:
            self.available.append((at, up))


@dataclass(frozen=True, slots=True)
class Incident:
    """A time in which queries were down, late or parked, without a break."""

    begin: float
    end: float
    queries: tuple[str, ...]
    open: bool


def find_incidents(histories: Mapping[str, QueryHistory], apart: float = 5.0) -> list[Incident]:
    """Return the incidents of a log: periods that overlap, or are less than so many seconds apart, are one."""
    periods = sorted(
        ((one.begin, one.end, name, one.open) for name, found in histories.items() for one in found.periods),
        key=lambda item: item[:2],
    )
    found: list[Incident] = []
    for begin, end, name, is_open in periods:
        if found and begin <= found[-1].end + apart:
            last = found[-1]
            names = last.queries if name in last.queries else (*last.queries, name)
            found[-1] = Incident(last.begin, max(last.end, end), names, last.open or is_open)
        else:
            found.append(Incident(begin, end, (name,), is_open))
    return found
