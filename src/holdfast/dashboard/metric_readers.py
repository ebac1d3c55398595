"""Metrics as values: what one is, and how values are read from the view of a run and its counters. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from holdfast.dashboard.metric_totals import MetricTotals

RUN_STATES = ("unknown", "starting", "running", "recovering", "ended", "failed", "gone")
QUERY_STATES = ("healthy", "replaying", "tentative", "paused", "down", "parked", "unknown")
PARTITION_STATES = ("healthy", "replaying", "tentative", "restoring", "lost", "paused", "parked", "unknown")
Values = Iterable[tuple[tuple[str, ...], float | None]]


class Kind(StrEnum):
    """What a metric is, in Prometheus' words."""

    GAUGE = "gauge"
    COUNTER = "counter"
    SUMMARY = "summary"


@dataclass(frozen=True, slots=True)
class Reading:
    """What the metrics are read from: the view of a run, its counters, and the time."""

    view: Mapping[str, Any]
    totals: MetricTotals
    now: float


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric; `read` gives the values of its labels, and the value."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
    read: Callable[[Reading], Values]
    count: Callable[[Reading], Values] | None = None
    """Of a summary: how many; `read` gives their sum then."""

    @property
    def series(self) -> tuple[str, ...]:
        """The names of its series."""
        return (f"{self.name}_sum", f"{self.name}_count") if self.kind is Kind.SUMMARY else (self.name,)


def single(read: Callable[[Reading], float | int | None]) -> Callable[[Reading], Values]:
    """Read a metric without labels."""
    return lambda given: [((), read(given))]


def of_run(field: str) -> Callable[[Reading], Values]:
    """Read a field of the run."""
    return single(lambda given: given.view["run"].get(field))


def per_query(read: Callable[[Mapping[str, Any], Reading], float | int | None]) -> Callable[[Reading], Values]:
    """Read a value of every query."""
    return lambda given: [((str(one["id"]),), read(one, given)) for one in given.view["queries"]]


def per_operator(field: str) -> Callable[[Reading], Values]:
    """Read a counter of every operator."""
    return lambda given: [((name,), one[field]) for name, one in sorted(given.totals.measured.items())]


def per_node(read: Callable[[Mapping[str, Any]], float | int | None]) -> Callable[[Reading], Values]:
    """Read a value of every node that is up."""
    return lambda given: [((str(one["name"]),), read(one)) for one in given.view["nodes"] if one["state"] == "up"]


def by_state(known: tuple[str, ...], counts: Callable[[Reading], Mapping[str, int]]) -> Callable[[Reading], Values]:
    """Read how many are in each of the known states; those that none is in are 0."""

    def read(given: Reading) -> Values:
        found = counts(given)
        return [((state,), found.get(state, 0)) for state in known]

    return read


def count_states(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Count rows by their state."""
    found: dict[str, int] = {}
    for row in rows:
        found[str(row["state"])] = found.get(str(row["state"]), 0) + 1
    return found


def of_ring(read: Callable[[Mapping[str, Any]], float | int | None]) -> Callable[[Reading], Values]:
    """Read a value of the ring; nothing where it does not answer."""

    def value(given: Reading) -> float | int | None:
        ring = given.view.get("ring")
        return None if ring is None or ring.get("problem") is not None else read(ring)

    return single(value)


def predicted(field: str) -> Callable[[Reading], Values]:
    """Read a field of what the plan predicts for the recovery of every query."""

    def read(given: Reading) -> Values:
        plan = given.view.get("plan") or {}
        found = plan.get("predicted") or ()
        return [((str(one["query"]),), one.get(field)) for one in found if one.get("what") == "recovery"]

    return read


def down_seconds(one: Mapping[str, Any], given: Reading) -> float:
    """Return how long a query has been down."""
    return 0.0 if one["down_since"] is None else max(0.0, given.now - float(one["down_since"]))


def run_info(given: Reading) -> Values:
    """Read the names of the run."""
    run = given.view["run"]
    return [((str(run.get("application") or ""), str(run.get("id") or "")), 1)]


def query_info(given: Reading) -> Values:
    """Read what a query is."""
    return [((str(one["id"]), str(one["output"]), str(one["priority"])), 1) for one in given.view["queries"]]


def of_checkpoint(field: str) -> Callable[[Reading], Values]:
    """Read a field of the last checkpoint."""
    return single(lambda given: (given.view["checkpoint"] or {}).get(field))


def missed_targets(given: Reading) -> Values:
    """Of every query that has a target, from 0 on: an increase is seen from the first miss."""
    targets = {name for (name,), value in predicted("target")(given) if value is not None}
    return [((name,), given.totals.missed[name]) for name in sorted(targets | set(given.totals.missed))]


def by_query(read: Callable[[MetricTotals], Mapping[str, float]]) -> Callable[[Reading], Values]:
    """Read a counter of every query that has one."""
    return lambda given: [((name,), value) for name, value in sorted(read(given.totals).items())]
