"""An outage and its recovery, as a report shows it: values only. Runs anywhere; pure.

Drills (`holdfast.drill.report`) and runs (`holdfast.reports.run_report`) build the same `Report`;
`holdfast.reports.page` draws it, `holdfast.reports.junit` writes it for CI. All times are
seconds from the moment that the report begins with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


class Seen(Protocol):
    """An event of a run or of a drill."""

    @property
    def at(self) -> float:
        """When, in seconds."""

    @property
    def kind(self) -> str:
        """What happened."""

    @property
    def fields(self) -> Mapping[str, Any]:
        """What belongs to it."""


@dataclass(frozen=True, slots=True)
class QuerySpec:
    """A query as it was declared: its priority, and the partitions it needs."""

    priority: int
    members: frozenset[str]


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment that is marked in every plot: a fault, or a node that came."""

    at: float
    label: str
    kind: str
    """`bad` or `good`: its colour."""


@dataclass(frozen=True, slots=True)
class Band:
    """A time that is shaded in every plot: queries are down, or a fault lasts."""

    begin: float
    end: float
    label: str
    kind: str = "outage"
    """`outage`, or `fault`: something is slow, frozen or cut off."""


@dataclass(frozen=True, slots=True)
class Period:
    """A time in which a query was `down`, `tentative`, `late` (catching up) or `parked`."""

    begin: float
    end: float
    state: str
    open: bool = False
    """It had not ended when the report did."""


@dataclass(frozen=True, slots=True)
class QueryRow:
    """What became of one query; None: it did not come about."""

    id: str
    priority: int
    periods: tuple[Period, ...]
    down_at: float | None = None
    tentative_at: float | None = None
    back_at: float | None = None
    level_at: float | None = None
    latency_before: float | None = None
    latency_after: float | None = None
    worst: float | None = None
    """The worst relative latency, or the most batches behind."""
    outputs: int = 0


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a partition's recovery: `undetected`, `waiting`, `restoring` or `replaying`."""

    begin: float
    end: float
    kind: str
    open: bool = False


@dataclass(frozen=True, slots=True)
class GanttRow:
    """The recovery of one partition, and why it came when it did."""

    partition: str
    node: str
    phases: tuple[Phase, ...]
    reason: str
    rolled_back: bool = False
    """It was live, and was rolled back."""


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One recovery plan: what made it, what it brings back, what waits."""

    number: int
    at: float
    trigger: str
    placed: tuple[str, ...]
    queries: tuple[str, ...]
    left_out: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class PromiseRow:
    """Something predicted, beside what was measured; `kept` is None where nothing was promised."""

    what: str
    query: str
    predicted: float | None
    measured: float | None
    target: float | None = None
    kept: bool | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class CheckRow:
    """The verdict of one check: `ok`, `failed` or `unknown`, and why."""

    name: str
    verdict: str
    reason: str


@dataclass(frozen=True, slots=True)
class Table:
    """Rows that are shown as they are."""

    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What shows that every row came out once."""

    summary: str
    table: Table | None = None


@dataclass(frozen=True, slots=True)
class Section:
    """A table of its own, with a heading and an explanation."""

    name: str
    note: str
    table: Table


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a plot."""

    name: str
    points: tuple[tuple[float, float], ...]
    faint: bool = False
    gaps: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Plot:
    """Values over time."""

    name: str
    note: str
    label: str
    series: tuple[Series, ...]
    log: bool = False
    steps: bool = False
    level: float | None = None
    """A value that the others are compared with."""
    top: float | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that a report shows."""

    title: str
    verdict: str
    """`ok`, `failed` or `unknown`."""
    line: str
    """The verdict in one line."""
    end: float
    facts: tuple[tuple[str, str], ...] = ()
    """Numbers that are shown large: the name and the value."""
    marks: tuple[Mark, ...] = ()
    bands: tuple[Band, ...] = ()
    queries: tuple[QueryRow, ...] = ()
    gantt: tuple[GanttRow, ...] = ()
    plans: tuple[PlanRow, ...] = ()
    promises: tuple[PromiseRow, ...] = ()
    promise_note: str = ""
    promise_unit: str = "s"
    checks: tuple[CheckRow, ...] = ()
    evidence: Evidence = field(default_factory=lambda: Evidence(""))
    sections: tuple[Section, ...] = ()
    """What belongs to this report only."""
    steps: tuple[tuple[str, float | None], ...] = ()
    plots: tuple[Plot, ...] = ()
    command: str = ""
    command_note: str = ""
    log: tuple[tuple[float, str, str], ...] = ()
    """What happened, in order: when, in words, and `fault` where it was one."""
    settings: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    began: str = ""
    """The time of day of second 0, where it is known."""
    worst_name: str = "worst relative latency"
    incidents: Table | None = None
    """Other outages in the same log."""
