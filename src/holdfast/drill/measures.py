"""Measures of each query from a drill's history: when it was down, back and level; and how fast each step was. Pure.

The measures are those of incremental recovery, sec. 6.2. The latency of an output is the time from when its batch was
due to when it was published. Its **relative latency** is that over the query's mean latency before the failure. A query
is **available** where it is not down and its mean relative latency over the next five seconds is below 1.2. It is
**down** from the fault that took one of its partitions until the first complete output after all of them are back.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from holdfast.drill.history import Event
from holdfast.drill.logged import due_intervals
from holdfast.drill.losses import TAKES_PARTITIONS, Detection, Loss, find_detections, find_losses

WINDOW = 5.0
"""Seconds over which relative latency is averaged (the paper's ΔT)."""
LEVEL = 1.2
"""Relative latency below which a query is as it was (the paper's Θ)."""


@dataclass(frozen=True, slots=True)
class Query:
    """A query as the history names it: its priority, and the partitions it needs."""

    id: str
    priority: int
    members: frozenset[str]


@dataclass(frozen=True, slots=True)
class Output:
    """A complete output of a query for a batch, the first time it was published."""

    batch: int
    at: float
    latency: float
    rows: int


@dataclass(frozen=True, slots=True)
class TentativeOutput:
    """A batch of a query that was published as tentative."""

    batch: int
    at: float
    rows: int
    fidelity: float
    """As predicted."""


@dataclass(frozen=True, slots=True)
class Outage:
    """A time in which a query was down; `back_at` is None where it did not come back."""

    down_at: float
    back_at: float | None


@dataclass(frozen=True, slots=True)
class QueryMeasures:
    """What became of one query."""

    query: Query
    outputs: tuple[Output, ...]
    latency_before: float | None
    """Mean over the second half of the time before the first fault; None where nothing came out there."""
    outages: tuple[Outage, ...]
    tentative_at: float | None
    fidelity_predicted: float | None
    """Of its tentative outputs, the mean by batches; None: it had none."""
    gap: float | None
    """The longest time between two complete outputs around the failure, in seconds; to the end of the drill where no
    further one came. None without a failure, and where nothing came out before it."""
    gap_before: float | None
    """The same over the second half of the time before the failure."""
    level_at: float | None
    relative: tuple[tuple[float, float], ...]
    """Relative latency of every output: when it was published, and how much."""

    @property
    def failed(self) -> bool:
        """Whether a fault took it down."""
        return bool(self.outages)

    @property
    def down_at(self) -> float | None:
        """When it first went down."""
        return self.outages[0].down_at if self.outages else None

    @property
    def back_at(self) -> float | None:
        """The first complete output after its (last) failure."""
        return self.outages[-1].back_at if self.outages else None

    @property
    def latency_after(self) -> float | None:
        """Mean latency of the outputs that came from level on."""
        since = self.level_at if self.level_at is not None else self.back_at
        found = [one.latency for one in self.outputs if since is not None and one.at >= since]
        return fmean(found) if found else None

    def down(self, at: float) -> bool:
        """Whether it was down at this moment."""
        return any(one.down_at <= at and (one.back_at is None or at < one.back_at) for one in self.outages)


@dataclass(frozen=True, slots=True)
class DrillMeasures:
    """All measures of a history; times after the first fault are None where the step did not come."""

    queries: tuple[QueryMeasures, ...]
    fault_at: float | None
    """The first fault that took partitions."""
    detections: tuple[Detection, ...]
    """Of every node that was killed or frozen."""
    detected_after: float | None
    planned_after: float | None
    """To the first plan that places something."""
    first_restore_after: float | None
    """To the first lost partition that is back; live ones that rolled back do not count."""
    first_output_after: float | None
    """To the first complete output of a query that was down."""
    all_back_after: float | None
    level_after: float | None
    """To when the last failed query was level."""
    recovered_at: Mapping[str, float]
    """For each partition that was lost, when it was last restored."""
    available: tuple[tuple[float, int], ...]
    """How many queries were available, at every change."""
    ended_at: float

    @property
    def failed(self) -> list[QueryMeasures]:
        """The queries that went down."""
        return [one for one in self.queries if one.failed]

    @property
    def unavailability(self) -> float:
        """Sum over failed queries of priority x (back_at - down_at); one that is not back counts to the end."""
        return sum(
            one.query.priority * ((self.ended_at if one.back_at is None else one.back_at) - (one.down_at or 0.0))
            for one in self.failed
        )

    @property
    def unavailability_level(self) -> float:
        """The same to `level_at`."""
        return sum(
            one.query.priority * ((self.ended_at if one.level_at is None else one.level_at) - (one.down_at or 0.0))
            for one in self.failed
        )


def measure(history: Sequence[Event]) -> DrillMeasures:
    """Read the measures from a history; its first event says which queries there are."""
    begin = next(event for event in history if event.kind == "begin")
    queries = [
        Query(name, int(one["priority"]), frozenset(one["members"])) for name, one in begin.fields["queries"].items()
    ]
    every = float(begin.fields["batch_seconds"])
    ended = max(event.at for event in history)
    losses = find_losses(history, [partition for query in queries for partition in query.members])
    faults = [event.at for event in history if event.kind == "fault" and event.fields["what"] in TAKES_PARTITIONS]
    fault_at = min(faults, default=None)
    over_at, last = _over_at(losses, fault_at, ended), _last_batch(history)
    outputs, tentative = _published(history, every, due_intervals(history))
    measured = tuple(
        _query(query, outputs.get(query.id, []), tentative.get(query.id, []), losses, fault_at, over_at, ended, last)
        for query in queries
    )

    def after(*kinds: str) -> float | None:
        if fault_at is None:
            return None
        return next((one.at - fault_at for one in history if one.kind in kinds and one.at >= fault_at), None)

    def until(moments: Iterable[float | None], choose: object) -> float | None:
        known = list(moments)
        if fault_at is None or not known or (choose is max and None in known):
            return None
        there = [moment for moment in known if moment is not None]
        return (max(there) if choose is max else min(there)) - fault_at if there else None

    down = [one for one in measured if one.failed]
    return DrillMeasures(
        queries=measured,
        fault_at=fault_at,
        detections=tuple(find_detections(history)),
        detected_after=after("node-lost", "node-silent", "driver-ready"),
        planned_after=after("planned"),
        first_restore_after=until((loss.back for loss in losses), min),
        first_output_after=until((outage.back_at for one in down for outage in one.outages), min),
        all_back_after=until((one.back_at for one in down), max),
        level_after=until((one.level_at for one in down), max),
        recovered_at=_recovered(losses),
        available=_available(measured, fault_at, ended),
        ended_at=ended,
    )


def _published(
    history: Sequence[Event], every: float, due: Mapping[int, int]
) -> tuple[dict[str, list[Output]], dict[str, list[TentativeOutput]]]:
    complete: dict[str, list[Output]] = {}
    tentative: dict[str, list[TentativeOutput]] = {}
    seen: set[tuple[str, int]] = set()
    for event in history:
        if event.kind != "published":
            continue
        query, batch = str(event.fields["partition"]), int(event.fields["batch"])
        if event.fields.get("tentative"):
            rows, fidelity = int(event.fields.get("rows") or 0), float(event.fields.get("fidelity") or 0.0)
            tentative.setdefault(query, []).append(TentativeOutput(batch, event.at, rows, fidelity))
        elif (query, batch) not in seen:  # a driver that starts again emits some a second time; the sink drops them
            seen.add((query, batch))
            rows = int(event.fields.get("rows") or 0)
            latency = event.at - due.get(batch, batch) * every
            complete.setdefault(query, []).append(Output(batch, event.at, latency, rows))
    return complete, tentative


def _query(
    query: Query,
    outputs: list[Output],
    tentative: list[TentativeOutput],
    losses: Sequence[Loss],
    fault_at: float | None,
    over_at: float,
    ended: float,
    last_batch: int,
) -> QueryMeasures:
    before = latency_before(outputs, fault_at)
    outages = find_outages(outputs, [loss for loss in losses if loss.partition in query.members])
    relative = tuple((one.at, one.latency / before) for one in outputs) if before else ()
    earlier = [one for one in outputs if fault_at is not None and one.at < fault_at]
    is_missing = max((one.batch for one in outputs), default=-1) < last_batch
    down_at = outages[0].down_at if outages else None
    back_at = outages[-1].back_at if outages else None
    return QueryMeasures(
        query=query,
        outputs=tuple(outputs),
        latency_before=before,
        outages=tuple(outages),
        tentative_at=next((one.at for one in tentative if down_at is not None and one.at > down_at), None),
        fidelity_predicted=sum(one.fidelity for one in tentative) / len(tentative) if tentative else None,
        gap=None if fault_at is None else find_gap(outputs, fault_at, over_at, ended if is_missing else None),
        gap_before=None if fault_at is None else find_gap(earlier, fault_at / 2, fault_at, None),
        level_at=find_level(relative, back_at, ended) if back_at is not None else None,
        relative=relative,
    )


def _over_at(losses: Sequence[Loss], fault_at: float | None, ended: float) -> float:
    """Return when what the failure may have delayed is out: some seconds after the last lost partition was back."""
    backs = [ended if one.back is None else one.back for one in losses]
    return min(ended, max([*backs, fault_at or 0.0]) + WINDOW)


def _last_batch(history: Sequence[Event]) -> int:
    """Return the last batch that was logged, or whose output any query has published."""
    return max((int(one.fields["batch"]) for one in history if one.kind in ("logged", "published")), default=-1)


def find_gap(outputs: Sequence[Output], begin: float, until: float, ended: float | None) -> float | None:
    """Return the longest time between two outputs of which the second came between two moments, or later the first.

    `ended`: until when an output after the last one was awaited; None: the last one is that of the last batch.
    """
    times = sorted(one.at for one in outputs)
    first, last = bisect.bisect_left(times, begin), bisect.bisect_left(times, until)
    if not first:
        return None  # nothing came out before: there is no time between two
    shown = times[first - 1 : last + 1]
    if ended is not None and last == len(times):
        shown.append(ended)
    return max((after - before for before, after in itertools.pairwise(shown)), default=None)


def latency_before(outputs: Sequence[Output], fault_at: float | None) -> float | None:
    """Return the mean latency over the second half of the time before the failure: by then everything is warm."""
    if fault_at is None:
        found = [one.latency for one in outputs]
    else:
        found = [one.latency for one in outputs if fault_at / 2 <= one.at < fault_at]
    return fmean(found) if found else None


def find_outages(outputs: Sequence[Output], losses: Sequence[Loss]) -> list[Outage]:
    """Return when a query was down, from the losses of its partitions and its complete outputs.

    Losses between which it did not come back are one outage. What comes out before all of them are restored was on its
    way before, and does not end an outage.
    """
    found: list[Outage] = []
    times = [one.at for one in outputs]
    began: float | None = None
    ready = 0.0

    def back() -> float | None:
        place = bisect.bisect_left(times, ready)
        return None if place == len(times) else times[place]

    for loss in sorted(losses, key=lambda one: (one.seen, one.at)):
        if began is not None:
            at = back()
            if at is not None and at < loss.at:
                found.append(Outage(began, at))
                began, ready = None, 0.0
        if began is None:
            began = loss.at
        began = min(began, loss.at)
        ready = max(ready, math.inf if loss.back is None else loss.back)
    if began is not None:
        found.append(Outage(began, back()))
    return found


def find_level(relative: Sequence[tuple[float, float]], since: float, ended: float) -> float | None:
    """Return the start of the first five seconds from `since` on with a mean relative latency below 1.2.

    Candidates are the moments of outputs: a window begins with one. It must end before the drill does.
    """
    moments = [at for at, _ in relative]
    for start in moments[bisect.bisect_left(moments, since) :]:
        if start + WINDOW > ended:
            return None
        mean = mean_from(relative, moments, start)
        if mean is not None and mean < LEVEL:
            return start
    return None


def mean_from(relative: Sequence[tuple[float, float]], moments: Sequence[float], start: float) -> float | None:
    """Return the mean relative latency of what came out in the five seconds from `start`; None where nothing did."""
    first, last = bisect.bisect_left(moments, start), bisect.bisect_left(moments, start + WINDOW)
    return fmean(value for _, value in relative[first:last]) if last > first else None


def _recovered(losses: Sequence[Loss]) -> dict[str, float]:
    found: dict[str, float] = {}
    for loss in losses:
        if loss.back is not None:
            found[loss.partition] = max(loss.back, found.get(loss.partition, 0.0))
    return dict(sorted(found.items()))


def _available(
    measured: Sequence[QueryMeasures], fault_at: float | None, ended: float
) -> tuple[tuple[float, int], ...]:
    """Count available queries at every half second, and keep the changes.

    A window that begins before the first fault does not reach over it: what comes after says nothing of before.
    """
    moments = [[at for at, _ in one.relative] for one in measured]
    found: list[tuple[float, int]] = []
    for step in range(int(max(0.0, ended - WINDOW) * 2) + 1):
        at = step / 2
        count = 0
        for one, times in zip(measured, moments, strict=True):
            start = at if fault_at is None or at >= fault_at else min(at, fault_at - WINDOW)
            mean = None if one.down(at) else mean_from(one.relative, times, start)
            count += mean is not None and mean < LEVEL
        if not found or found[-1][1] != count:
            found.append((at, count))
    return tuple(found)
