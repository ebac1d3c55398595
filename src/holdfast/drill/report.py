"""A drill as a report: what was done to the cluster, and what became of every query. Runs anywhere; pure.

The recovery and its reasons come from the history as they do for a run (`holdfast.reports`); when a query was down,
back and level comes from the drill's own measures, which know when each fault was.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from holdfast.drill.checkers import Check
from holdfast.drill.history import Event
from holdfast.drill.losses import Loss, find_losses
from holdfast.drill.measures import LEVEL, DrillMeasures, QueryMeasures
from holdfast.drill.schedule import FaultKind
from holdfast.drill.settings import DrillSettings
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
    Series,
    Table,
)
from holdfast.reports.page import make_page
from holdfast.reports.recovery import Recovery, recovery_of
from holdfast.reports.words import SHOWN, event_words

_WORDS = {
    FaultKind.KILL: "kill -9 {node}",
    FaultKind.FREEZE: "{node} freezes",
    FaultKind.THAW: "{node} thaws",
    FaultKind.SLOW: "{node} gets {value:.0%} of its processor",
    FaultKind.FULL_SPEED: "{node} at full speed again",
    FaultKind.DROP_PACKETS: "{node} loses {value:.0%} of its messages",
    FaultKind.DELIVER_PACKETS: "{node} gets all its messages again",
    FaultKind.KILL_DRIVER: "kill -9 of the driver",
    FaultKind.START_DRIVER: "the driver starts again",
    FaultKind.ADD_NODE: "{node} is started",
    FaultKind.PAUSE_DRIVER: "the driver freezes",
    FaultKind.THAW_DRIVER: "the frozen driver goes on",
    FaultKind.TAKE_OVER: "a second driver takes over",
    FaultKind.PARTITION: "the network cuts {node} off",
    FaultKind.HEAL: "{node} is connected again",
    FaultKind.FILL_DISK: "the disk of {node} is full",
    FaultKind.DECOMMISSION: "{node} is decommissioned",
    FaultKind.CORRUPT: "bits flip on the disk of {node}",
    FaultKind.POISON: "a poisoned row in the least valuable query",
    FaultKind.CURE: "the cause of the poisoned row is removed",
    FaultKind.HANG: "an operator of the least valuable query hangs for {value:g} s",
    FaultKind.KILL_BROKER: "kill -9 of the Kafka broker",
    FaultKind.START_BROKER: "the Kafka broker starts again",
}
_ENDS = {
    FaultKind.FREEZE: FaultKind.THAW,
    FaultKind.SLOW: FaultKind.FULL_SPEED,
    FaultKind.DROP_PACKETS: FaultKind.DELIVER_PACKETS,
    FaultKind.PAUSE_DRIVER: FaultKind.THAW_DRIVER,
    FaultKind.KILL_DRIVER: FaultKind.START_DRIVER,
    FaultKind.PARTITION: FaultKind.HEAL,
    FaultKind.POISON: FaultKind.CURE,
    FaultKind.KILL_BROKER: FaultKind.START_BROKER,
}
"""Faults that last, and what ends each."""
_ALWAYS = ("nodes", "kill", "arrivals", "batches", "rows", "fail_at", "seed")
_NOT_OPTIONS = frozenset({"scenario", "kill_hosting"})
STEPS = (
    ("detected_after", "the first lost node is detected"),
    ("planned_after", "the first plan"),
    ("first_restore_after", "the first state is restored"),
    ("first_output_after", "the first complete output of a query that was down"),
    ("all_back_after", "the last query is back"),
    ("level_after", "the last query is level"),
)


def fault_words(fields: Mapping[str, Any]) -> str:
    """Say in words what a fault of the history was."""
    what = FaultKind(fields["what"])
    return _WORDS[what].format(node=fields.get("node") or "a node", value=fields.get("value") or 0.0)


def drill_command(settings: Mapping[str, Any]) -> str:
    """Return the command that does the same drill again, from its settings."""
    usual = DrillSettings(str(settings.get("scenario", "")))
    defaults = usual.document()
    words = ["holdfast", "drill", str(settings.get("scenario", ""))]
    for one in fields(DrillSettings):
        value = settings.get(one.name)
        if (
            one.name in _NOT_OPTIONS
            or value is None
            or (one.name not in _ALWAYS and _plain(value) == _plain(defaults[one.name]))
        ):
            continue
        option = f"--{one.name.replace('_', '-')}"
        if isinstance(value, bool):
            words += [option] if value else []
        elif one.name == "recovery":
            words += [word for each in value for word in (option, str(each))]
        elif isinstance(value, list | tuple):
            words += [option, ",".join(f"{item:g}" for item in value)]
        else:
            words += [option, f"{value:g}" if isinstance(value, float) else str(value)]
    return shlex.join(words)


def _plain(value: object) -> object:
    """Return a value as JSON has it."""
    return list(value) if isinstance(value, tuple) else value


def verdict_line(result: Mapping[str, Any]) -> str:
    """Say in a sentence or two what a drill showed."""
    once, killed, nodes = result["exactly_once"], result["killed"], result["nodes"]
    down = [one for one in result["queries"] if one["down_at"] is not None]
    broken = f"{killed} of {nodes} nodes were killed" if killed else f"{nodes} nodes had the faults of the schedule"
    if result["verdict"] == "ok":
        back = f", all back after {result['all_back_after']:.1f} s" if result["all_back_after"] is not None else ""
        lost = f"{len(down)} of {len(result['queries'])} queries went down{back}" if down else "no query went down"
        words = f"{broken}; {lost}; {once['expected']:,} output rows equal those of a run without failures."
    elif result["verdict"] == "failed":
        words = f"{broken}; {'; '.join(result['reasons'])}."
    else:
        words = f"{broken}, but the drill proves nothing: {'; '.join(result['reasons'])}."
    if result.get("not_compared"):
        words += f" Not compared row by row: {', '.join(result['not_compared'])}."
    if result["settings"].get("input"):
        words += " The application's own sinks were not used."
    return words


def make_report(
    result: Mapping[str, Any], measures: DrillMeasures, checks: Sequence[Check], history: Sequence[Event]
) -> str:
    """Return the whole page."""
    return make_page(drill_report(result, measures, checks, history))


def drill_report(
    result: Mapping[str, Any], measures: DrillMeasures, checks: Sequence[Check], history: Sequence[Event]
) -> Report:
    """Build the report of a drill."""
    end = max(measures.ended_at, 1.0)
    ordered = sorted(measures.queries, key=lambda one: (not one.failed, -one.query.priority, one.query.id))
    recovery = drill_recovery(measures, history)
    settings = result.get("settings", {})
    return Report(
        title=f"Drill: {result['scenario']}, {result['strategy']}",
        verdict=str(result["verdict"]),
        line=verdict_line(result),
        end=end,
        facts=_facts(result, measures),
        marks=tuple(_marks(history)),
        bands=tuple(_bands(measures, history, end)),
        queries=tuple(_query(one, result, end) for one in ordered),
        gantt=recovery.rows,
        plans=recovery.plans,
        promises=tuple(drill_promises(result, measures, history)),
        promise_note="Predicted: when the planner's own schedule has each query back, given when nodes arrived, if "
        "detecting, restoring and replaying took no time. Measured: from the fault to the first complete output."
        if result.get("predicted_back_after")
        else "",
        checks=tuple(CheckRow(one.name, str(one.verdict), one.reason) for one in checks),
        evidence=_evidence(result),
        steps=tuple((words, result.get(name)) for name, words in STEPS),
        plots=tuple(_plots(measures, ordered)),
        command=drill_command(settings) if settings else "",
        command_note="The same input, the same faults at the same seconds; what the machine does in between differs.",
        log=tuple(_log(history)),
        settings=tuple(
            (str(key), str(list(value) if isinstance(value, tuple) else value)) for key, value in settings.items()
        ),
        notes=(
            f"{result['nodes']} nodes, {result['batches']} batches, seed {result['seed']}. Times are seconds from the "
            "moment the first batch was due.",
        ),
    )


def drill_recovery(measures: DrillMeasures, history: Sequence[Event]) -> Recovery:
    """Read the recovery of every partition from the history of a drill."""
    specs = {one.query.id: QuerySpec(one.query.priority, one.query.members) for one in measures.queries}
    losses: dict[str, list[Loss]] = {}
    for loss in find_losses(history, [name for spec in specs.values() for name in spec.members]):
        losses.setdefault(loss.partition, []).append(loss)

    def struck(partition: str, seen: float) -> float:
        return next((loss.at for loss in losses.get(partition, ()) if abs(loss.seen - seen) < 1e-6), seen)

    return recovery_of(history, specs, measures.ended_at, struck)


def drill_promises(result: Mapping[str, Any], measures: DrillMeasures, history: Sequence[Event]) -> list[PromiseRow]:
    """Return what was predicted beside what was measured: promises of a plan, and the planner's own schedule."""
    found = [
        PromiseRow(
            str(event.fields["what"]),
            str(event.fields["query"]),
            event.fields["predicted"],
            event.fields["measured"],
            event.fields["target"],
            event.fields["kept"],
            "" if event.fields["covered"] else "more nodes were lost than the plan promises for",
        )
        for event in history
        if event.kind == "promise"
    ]
    predicted = result.get("predicted_back_after") or {}
    order = sorted(measures.failed, key=lambda one: (-one.query.priority, one.query.id))
    for one in order:
        if (after := predicted.get(one.query.id)) is not None and one.down_at is not None:
            measured = None if one.back_at is None else round(one.back_at - one.down_at, 4)
            found.append(PromiseRow("back by the schedule", one.query.id, float(after), measured))
    return found


def _facts(result: Mapping[str, Any], measures: DrillMeasures) -> tuple[tuple[str, str], ...]:
    def seconds(name: str) -> str:
        value = result.get(name)
        return "–" if value is None else f"{value:.1f} s"

    return (
        ("nodes killed", f"{result['killed']} of {result['nodes']}"),
        ("queries down", f"{len(measures.failed)} of {len(measures.queries)}"),
        ("detected after", seconds("detected_after")),
        ("first query back", seconds("first_output_after")),
        ("all back", seconds("all_back_after")),
        ("longest gap in an output", _gap(result, measures)),
        ("rows missing, duplicated, wrong", _differences(result["exactly_once"])),
    )


def _gap(result: Mapping[str, Any], measures: DrillMeasures) -> str:
    gaps = [(one.gap, one.query.id) for one in measures.queries if one.gap is not None]
    if not gaps:
        return "–"
    longest, query = max(gaps)
    return f"{longest:.1f} s ({query}); a batch is due every {result['settings']['batch_seconds']:g} s"


def _differences(once: Mapping[str, Any]) -> str:
    return f"{once['missing']:,} · {once['duplicated']:,} · {once['wrong']:,}"


def _query(one: QueryMeasures, result: Mapping[str, Any], end: float) -> QueryRow:
    periods = [
        Period(out.down_at, end if out.back_at is None else out.back_at, "down", open=out.back_at is None)
        for out in one.outages
    ]
    if one.tentative_at is not None:
        until = one.back_at if one.back_at is not None else end
        periods.append(Period(one.tentative_at, until, "tentative", open=one.back_at is None))
    if one.back_at is not None:
        level = end if one.level_at is None else one.level_at
        periods.append(Period(one.back_at, level, "late", open=one.level_at is None))
    for parked in result.get("parked", ()):
        if parked["query"] == one.query.id:
            until = end if parked["resumed_at"] is None else parked["resumed_at"]
            periods.append(Period(parked["at"], until, "parked", open=parked["resumed_at"] is None))
    return QueryRow(
        one.query.id,
        one.query.priority,
        tuple(periods),
        one.down_at,
        one.tentative_at,
        one.back_at,
        one.level_at,
        one.latency_before,
        one.latency_after,
        max((value for _, value in one.relative), default=None),
        len(one.outputs),
    )


def _marks(history: Sequence[Event]) -> list[Mark]:
    ends = set(_ENDS.values())
    found = []
    for event in history:
        if event.kind == "fault" and event.fields["what"] != FaultKind.ADD_NODE:
            kind = "good" if event.fields["what"] in ends else "bad"
            found.append(Mark(event.at, fault_words(event.fields), kind))
        elif event.kind == "node-arrived" and event.at > 0:
            found.append(Mark(event.at, event_words(event), "good"))
    return [mark for mark in found if mark.at >= 0]


def _bands(measures: DrillMeasures, history: Sequence[Event], end: float) -> list[Band]:
    """Shade the times in which queries were down, with what was done then, and the faults that last."""
    found: list[Band] = []
    outages = sorted(
        (outage.down_at, end if outage.back_at is None else outage.back_at)
        for one in measures.queries
        for outage in one.outages
    )
    merged: list[tuple[float, float]] = []
    for begin, until in outages:
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], until))
        else:
            merged.append((begin, until))
    faults = [event for event in history if event.kind == "fault" and event.fields["what"] != FaultKind.ADD_NODE]
    ends = set(_ENDS.values())
    for begin, until in merged:
        done = [fault_words(one.fields) for one in faults if begin <= one.at < until and one.fields["what"] not in ends]
        found.append(Band(begin, until, f"queries are down: {', '.join(done) or 'a fault'}"))
    for event in faults:
        closing = _ENDS.get(FaultKind(event.fields["what"]))
        if closing is not None:
            over = (
                one.at
                for one in faults
                if one.at >= event.at
                and one.fields["what"] == closing
                and one.fields.get("node") == event.fields.get("node")
            )
            found.append(Band(event.at, next(over, end), fault_words(event.fields), "fault"))
    return found


def _evidence(result: Mapping[str, Any]) -> Evidence:
    once = result["exactly_once"]
    summary = (
        f"The Parquet outputs were compared, row by row, with those of a run of the same input without failures: "
        f"{once['expected']:,} rows expected, {once['missing']:,} missing, {once['duplicated']:,} duplicated, "
        f"{once['wrong']:,} wrong."
    )
    skipped = result.get("not_compared") or {}
    rows: list[tuple[object, ...]] = [
        (name, one["expected"], one["missing"], one["duplicated"], one["wrong"], "")
        for name, one in (result.get("exactly_once_by_output") or {}).items()
    ]
    rows += [(name, None, None, None, None, f"not compared: {why}") for name, why in skipped.items()]
    if not rows:
        return Evidence(summary)
    return Evidence(summary, Table(("output", "rows expected", "missing", "duplicated", "wrong", ""), tuple(rows)))


def _plots(measures: DrillMeasures, ordered: Sequence[QueryMeasures]) -> list[Plot]:
    # The last seconds have no whole window after them: there is nothing to say of them.
    known = max(0.0, measures.ended_at - 5.0)
    available = [(at, float(count)) for at, count in measures.available]
    if available:
        available.append((known, available[-1][1]))
    found = [
        Plot(
            "Available queries",
            "Queries that are not down and whose mean relative latency over the next 5 s is below 1.2.",
            "queries",
            (Series("available queries", tuple(available)),),
            steps=True,
            top=float(max(1, len(measures.queries))),
        )
    ]
    if not any(value > 0 for one in measures.queries for _, value in one.relative):
        return found
    live = [Series(f"{one.query.id} (lost nothing)", one.relative, faint=True) for one in ordered if not one.failed]
    failed = [Series(_series_name(one), one.relative, gaps=tuple(_gaps(one))) for one in ordered if one.failed]
    note = (
        "Latency of each output over the query's mean latency before the failure, on a logarithmic scale. Below 1.2 a "
        "query is as it was. Grey: queries that lost nothing."
    )
    return [*found, Plot("Relative latency", note, "relative latency", (*live, *failed), log=True, level=LEVEL)]


def _gaps(one: QueryMeasures) -> list[tuple[float, float]]:
    """Return when a query was down: no line is drawn there."""
    return [(down.down_at, down.back_at) for down in one.outages if down.back_at is not None]


def _series_name(one: QueryMeasures) -> str:
    return f"{one.query.id} (priority {one.query.priority})"


def _log(history: Sequence[Event]) -> list[tuple[float, str, str]]:
    found = []
    for event in history:
        if event.kind == "fault":
            found.append((event.at, fault_words(event.fields), "fault"))
        elif event.kind in SHOWN:
            found.append((event.at, event_words(event), ""))
    return found
