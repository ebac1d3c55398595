"""A post-mortem of a run: the report of one incident, from the run's events. Runs anywhere; pure.

An incident is a time in which queries were down, late or parked. The report shows one, the last by default, with some
time before and after; its record, its plots and its recovery are those of that time.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from holdfast.errors import BadInput
from holdfast.reports.model import (
    Band,
    CheckRow,
    Evidence,
    Mark,
    Period,
    Plot,
    PromiseRow,
    QueryRow,
    QuerySpec,
    Report,
    Seen,
    Series,
    Table,
)
from holdfast.reports.outages import Incident, QueryHistory, RunOutages, find_incidents
from holdfast.reports.recovery import Recovery, recovery_of
from holdfast.reports.run_checks import run_checks
from holdfast.reports.words import SHOWN, event_mark, event_words
from holdfast.topology import Queries, Topology, from_document
from holdfast.wording import counted

BEFORE, AFTER = 10.0, 10.0
"""Seconds that are shown around an incident, at least."""
_AROUND = 0.15
"""And this share of its length."""


def query_specs(topology: Topology) -> dict[str, QuerySpec]:
    """Return the queries of a topology."""
    names = [str(one) for one in topology.partitions()]
    queries = Queries(topology)
    return {
        names[int(head)]: QuerySpec(int(priority), frozenset(names[int(member)] for member in queries.members(number)))
        for number, (head, priority) in enumerate(zip(queries.heads, queries.priority, strict=True))
    }


def queries_in(events: Sequence[Seen]) -> dict[str, QuerySpec] | None:
    """Return the queries that the log itself describes, in its last event `run`; None: it describes none."""
    for event in reversed(events):
        if event.kind == "run" and isinstance(event.fields.get("topology"), Mapping):
            return query_specs(from_document(event.fields["topology"]))
    return None


def run_report(
    events: Sequence[Seen],
    queries: Mapping[str, QuerySpec],
    *,
    name: str,
    directory: str,
    incident: int | None = None,
    unread: int = 0,
) -> Report:
    """Build the report of an incident: the `incident`-th of the log, counted from 1; the last one by default.

    `unread` is the number of lines of the log that could not be read.
    """
    if not events:
        raise BadInput("has no events yet", where=directory, remedy="try again when the run has begun")
    outages = RunOutages(queries)
    outages.read(events, events[-1].at)
    incidents = find_incidents(outages.queries)
    chosen = _chosen(incidents, incident, directory)
    first, last = events[0].at, events[-1].at
    if chosen is None:
        begin, end = first, last
    else:
        room = _AROUND * (chosen.end - chosen.begin)
        begin, end = max(first, chosen.begin - max(BEFORE, room)), min(last, chosen.end + max(AFTER, room))
    return _Builder(events, outages, incidents, chosen, begin, max(end, begin + 1.0)).report(name, directory, unread)


def _chosen(incidents: Sequence[Incident], number: int | None, directory: str) -> Incident | None:
    if number is None:
        return incidents[-1] if incidents else None
    if not 1 <= number <= len(incidents):
        raise BadInput(
            f"there is no outage {number}: the log has {len(incidents)}",
            where=directory,
            field="--outage",
            remedy="leave it out for the last one" if incidents else "leave it out: nothing was down",
        )
    return incidents[number - 1]


class _Builder:
    def __init__(
        self,
        events: Sequence[Seen],
        outages: RunOutages,
        incidents: Sequence[Incident],
        chosen: Incident | None,
        begin: float,
        end: float,
    ) -> None:
        self._all, self._outages, self._incidents, self._chosen = events, outages, incidents, chosen
        self._begin, self._end = begin, end
        self._within = [event for event in events if begin <= event.at <= end]
        self._outputs = Counter(
            str(event.fields.get("partition"))
            for event in self._within
            if event.kind == "published" and not event.fields.get("tentative")
        )
        self._specs = {name: one.spec for name, one in outages.queries.items()}

    def report(self, name: str, directory: str, unread: int) -> Report:
        rows = [self._query(query, one) for query, one in self._outages.queries.items()]
        rows.sort(key=lambda one: (not one.periods, -one.priority, one.id))
        recovery = self._recovery()
        promises = self._promises()
        checks = run_checks(self._all, self._begin, rows, promises, self._outages.queries)
        verdict = next((word for word in ("failed", "unknown") if any(one.verdict == word for one in checks)), "ok")
        down = [one for one in rows if one.down_at is not None]
        began = (
            datetime.fromtimestamp(self._begin, UTC).isoformat(sep=" ", timespec="seconds").replace("+00:00", " UTC")
        )
        notes = [f"Times are seconds from {began}. A run sees a fault when it detects it: outages count from there."]
        if unread:
            notes.append(
                f"{counted(unread, 'line')} of the log could not be read and {'is' if unread == 1 else 'are'} left out."
            )
        return Report(
            title=f"Post-mortem: {name}" if self._chosen else f"Report: {name}",
            verdict=verdict,
            line=self._line(rows, checks),
            end=self._end - self._begin,
            facts=self._facts(rows),
            marks=tuple(self._marks(recovery)),
            bands=tuple(self._bands(rows)),
            queries=tuple(rows),
            gantt=recovery.rows,
            plans=recovery.plans,
            promises=tuple(promises),
            promise_note="What the run's plan promised, beside what was measured from the detection on."
            if promises
            else "The run has no plan with promises (`holdfast run --plan`), or nothing that one covers came about.",
            checks=tuple(checks),
            evidence=self._evidence(),
            steps=self._steps(down, recovery),
            plots=tuple(self._plots(rows)),
            command=self._command(directory),
            command_note="The first command writes this report again, from the run's event log. The second breaks a "
            "cluster of this machine in the same way, while your application runs on it.",
            log=tuple(
                (event.at - self._begin, event_words(event), _kind(event))
                for event in self._within
                if event.kind in SHOWN
            ),
            notes=tuple(notes),
            began=began,
            worst_name="most batches behind",
            incidents=self._table() if len(self._incidents) > 1 else None,
        )

    # -- queries -------------------------------------------------------------------------------------------------------

    def _query(self, name: str, one: QueryHistory) -> QueryRow:
        periods = tuple(
            Period(
                max(period.begin, self._begin) - self._begin,
                min(period.end, self._end) - self._begin,
                period.state,
                period.open,
            )
            for period in one.periods
            if period.begin < self._end and period.end > self._begin
        )
        down = [period for period in periods if period.state == "down"]
        level = max((period.end for period in periods), default=None)
        still = any(period.open for period in periods)
        lag = [(at, value) for at, value in one.lag if self._begin <= at <= self._end]
        return QueryRow(
            name,
            one.spec.priority,
            periods,
            down_at=down[0].begin if down else None,
            tentative_at=next((period.begin for period in periods if period.state == "tentative"), None),
            back_at=down[-1].end if down and not down[-1].open else None,
            level_at=level if down and not still else None,
            worst=max((value for _, value in lag), default=None),
            outputs=self._outputs[name],
        )

    def _recovery(self) -> Recovery:
        """Read the recovery of this time; what went before sets the scene, and is cut off."""
        found = recovery_of((event for event in self._all if event.at <= self._end), self._specs, self._end)
        rows = []
        for row in found.rows:
            phases = tuple(
                replace(one, begin=max(one.begin, self._begin) - self._begin, end=one.end - self._begin)
                for one in row.phases
                if one.end > self._begin
            )
            if phases:
                rows.append(replace(row, phases=phases))
        plans = tuple(replace(one, at=one.at - self._begin) for one in found.plans if one.at >= self._begin)
        ends = tuple(pair for pair in found.driver_ends if pair[1] >= self._begin)
        return Recovery(tuple(rows), plans, ends)

    def _bands(self, rows: Sequence[QueryRow]) -> list[Band]:
        found: list[Band] = []
        lost = sorted(
            {
                str(node)
                for event in self._within
                if event.kind in ("node-lost", "node-silent")
                for node in event.fields["nodes"]
            }
        )
        for begin, end in sorted((one.begin, one.end) for row in rows for one in row.periods if one.state == "down"):
            if found and begin <= found[-1].end:
                found[-1] = replace(found[-1], end=max(found[-1].end, end))
            else:
                found.append(Band(begin, end, f"queries are down: {', '.join(lost[:6]) or 'the driver'} lost"))
        return found

    def _marks(self, recovery: Recovery) -> list[Mark]:
        found = [mark for event in self._within if (mark := event_mark(event)) is not None]
        found += [Mark(max(end, self._begin), "the driver ended", "bad") for end, _ in recovery.driver_ends]
        found += [Mark(at, "the next driver has partitions placed", "good") for _, at in recovery.driver_ends]
        return [replace(mark, at=mark.at - self._begin) for mark in found]

    def _plots(self, rows: Sequence[QueryRow]) -> list[Plot]:
        counts = [(at, value) for at, value in self._outages.available]
        before = next((value for at, value in reversed(counts) if at <= self._begin), 0.0)
        steps = [(0.0, before), *((at - self._begin, value) for at, value in counts if self._begin < at <= self._end)]
        steps.append((self._end - self._begin, steps[-1][1]))
        queries = Series("queries up", tuple(steps))
        found = [
            Plot(
                "Queries that are up",
                "Queries that are not down, catching up or parked.",
                "queries",
                (queries,),
                steps=True,
                top=float(max(1, len(rows))),
            )
        ]
        series = []
        for row in rows:
            lag = self._outages.queries[row.id].lag
            points = tuple((at - self._begin, value) for at, value in lag if self._begin <= at <= self._end)
            if points:
                series.append(Series(f"{row.id} (priority {row.priority})", points, faint=not row.periods))
        if series:
            note = "Logged batches whose output is not in the sink yet. Grey: queries that lost nothing."
            found.append(Plot("Batches behind the log", note, "batches", tuple(series)))
        return found

    # -- what it comes to ----------------------------------------------------------------------------------------------

    def _lost_nodes(self) -> int:
        return len(
            {
                str(node)
                for event in self._within
                if event.kind in ("node-lost", "node-silent")
                for node in event.fields["nodes"]
            }
        )

    def _line(self, rows: Sequence[QueryRow], checks: Sequence[CheckRow]) -> str:
        if self._chosen is None:
            many = counted(len(rows), "query", "queries")
            return f"No query was down in this log: {many} over {self._end - self._begin:,.0f} s."
        down = [one for one in rows if one.down_at is not None]
        lost = self._lost_nodes()
        what = f"{counted(lost, 'node')} lost" if lost else "no node was lost"
        words = f"{what}; {len(down)} of {counted(len(rows), 'query', 'queries')} went down"
        backs = [one.back_at - one.down_at for one in down if one.back_at is not None and one.down_at is not None]
        if down and len(backs) == len(down):
            words += f", the first back after {min(backs):.1f} s, all after {max(backs):.1f} s"
        elif down:
            words += f", {len(down) - len(backs)} not back when the log ends"
        bad = [one.reason for one in checks if one.verdict != "ok" and one.name != "recovered"]
        return f"{words}." + "".join(f" {sentence(reason)}." for reason in bad)

    def _facts(self, rows: Sequence[QueryRow]) -> tuple[tuple[str, str], ...]:
        down = [one for one in rows if one.down_at is not None]
        backs = [one.back_at - one.down_at for one in down if one.back_at is not None and one.down_at is not None]
        levels = [one.level_at - one.down_at for one in down if one.level_at is not None and one.down_at is not None]

        def seconds(values: list[float], choose: Any, whole: bool) -> str:
            return f"{choose(values):.1f} s" if values and (not whole or len(values) == len(down)) else "–"

        return (
            ("nodes lost", str(self._lost_nodes())),
            ("queries down", f"{len(down)} of {len(rows)}"),
            ("first query back", seconds(backs, min, False)),
            ("all back", seconds(backs, max, True)),
            ("all level", seconds(levels, max, True)),
            ("batches missing in the log of outputs", f"{sum(one.gaps for one in self._outages.queries.values()):,}"),
        )

    def _steps(self, down: Sequence[QueryRow], recovery: Recovery) -> tuple[tuple[str, float | None], ...]:
        if not down:
            return ()
        began = min(one.down_at for one in down if one.down_at is not None)
        restored = [
            one.end for row in recovery.rows for one in row.phases if one.kind == "restoring" and one.end >= began
        ]
        planned = [plan.at for plan in recovery.plans if plan.at >= began]
        backs = [one.back_at for one in down]
        levels = [one.level_at for one in down]
        there = [at for at in backs if at is not None]
        return (
            ("the first plan", min(planned) - began if planned else None),
            ("the first state is restored", min(restored) - began if restored else None),
            ("the first query is back", min(there) - began if there else None),
            ("the last query is back", max(there) - began if len(there) == len(backs) else None),
            (
                "the last query is level",
                max(one for one in levels if one is not None) - began if None not in levels else None,
            ),
        )

    def _promises(self) -> list[PromiseRow]:
        return [
            PromiseRow(
                str(event.fields.get("what")),
                str(event.fields.get("query")),
                event.fields.get("predicted"),
                event.fields.get("measured"),
                event.fields.get("target"),
                event.fields.get("kept"),
                "" if event.fields.get("covered", True) else "more nodes were lost than the plan promises for",
            )
            for event in self._within
            if event.kind == "promise"
        ] + _overhead(self._within)

    def _evidence(self) -> Evidence:
        rows = tuple(
            (name, one.first, one.last if one.first is not None else None, one.batches, one.gaps, one.repeated)
            for name, one in self._outages.queries.items()
        )
        return Evidence(
            "A run has no second run without failures to compare its rows with; a drill has. What its log shows: which "
            "batches of each query were published. Each output is committed under its run, generation, query and "
            "batch; a batch that a new driver publishes again is recognised by the sink and not written twice.",
            Table(("query", "first batch", "last batch", "batches", "left out", "published again"), rows),
        )

    def _command(self, directory: str) -> str:
        lost = self._lost_nodes()
        again = f"holdfast report {shlex.quote(directory)}"
        if self._chosen is not None and len(self._incidents) > 1:
            again += f" --outage {self._incidents.index(self._chosen) + 1}"
        nodes = {
            str(node)
            for event in self._all
            if event.kind == "node-arrived" and event.at <= self._end
            for node in event.fields["nodes"]
        }
        if not lost or not self._chosen:
            return again
        return f"{again}\nholdfast drill APP --nodes {max(lost, min(50, len(nodes)))} --kill {lost}"

    def _table(self) -> Table:
        rows = [
            (
                number,
                _moment(one.begin),
                round(one.end - one.begin, 1),
                len(one.queries),
                "goes on" if one.open else "this report" if one == self._chosen else "",
            )
            for number, one in enumerate(self._incidents, 1)
        ]
        return Table(("outage", "began", "seconds", "queries", ""), tuple(rows[-200:]))


def _overhead(events: Iterable[Seen]) -> list[PromiseRow]:
    """Return the overhead of the plan as it was last measured."""
    looks = [event for event in events if event.kind == "plan-measured"]
    if not looks:
        return []
    found = looks[-1].fields["overhead"]
    predicted, measured, target = found["predicted"], found["measured"], found["target"]
    note = "a share of the bandwidth, not seconds; the last measurement (plan-measured)"
    return [PromiseRow("overhead", "all", predicted, measured, target, measured <= target, note)]


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(sep=" ", timespec="seconds").replace("+00:00", " UTC")


def _kind(event: Seen) -> str:
    return "fault" if event.kind in ("node-lost", "node-silent", "parked", "cycle-failed", "plan-rejected") else ""


def sentence(reason: str) -> str:
    """Begin with a capital, unless a name comes first: `jams[0]` is no `Jams[0]`."""
    return reason[:1].upper() + reason[1:] if reason.partition(" ")[0].isalpha() else reason
