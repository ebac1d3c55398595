"""The recovery experiment as one report: every drill beside the others, and the paper's claims beside ours. Pure.

Each drill's own report is in its folder; this one compares them, with the same model and the same page.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.reports.model import CheckRow, Evidence, Mark, Plot, PromiseRow, Report, Section, Series, Table
from holdfast_lab.experiments.recovery.drills import PlannedDrill
from holdfast_lab.experiments.recovery.findings import Claim

_SHOWN = (
    ("label", "strategy"),
    ("unavailability", "unavailability, priority × s"),
    ("failed_queries", "queries down"),
    ("median_down_seconds", "down, median s"),
    ("first_output_after", "first back, s"),
    ("all_back_after", "all back, s"),
    ("level_after", "all level, s"),
    ("live_relative_latency", "latency of live queries, relative"),
)


def experiment_report(
    planned: Sequence[PlannedDrill],
    results: Mapping[str, Mapping[str, Any]],
    rows: Sequence[Mapping[str, Any]],
    claims: Sequence[Claim],
    command: Sequence[str],
) -> Report:
    """Build the report of the drills that were run."""
    verdicts = [str(results[one.name]["verdict"]) for one in planned]
    verdict = next((word for word in ("failed", "unknown") if word in verdicts), "ok")
    judged = [one for one in claims if one.holds is not None]
    agree = sum(bool(one.holds) for one in judged)
    line = (
        f"{verdicts.count('ok')} of {len(verdicts)} drills are ok, and {agree} of {len(judged)} of the paper's claims "
        "that could be judged hold here."
    )
    return Report(
        title="Experiment: strategies of recovery under the same failures",
        verdict=verdict,
        line=line,
        end=max([float(results[one.name].get("ended_at") or 0.0) for one in planned] + [1.0]),
        marks=tuple(_marks(planned, results)),
        sections=(
            Section("Drills", "Each has its own report: report.html in the folder of its name.", _drills(rows)),
            Section("The paper's claims, and ours", "Incremental recovery, Fig. 9 to 14.", _claims(claims)),
        ),
        promises=tuple(
            PromiseRow("unavailability", str(row["drill"]), row["predicted"], row["unavailability"])
            for row in rows
            if row["predicted"] is not None
        ),
        promise_unit="priority × s",
        promise_note="Unavailability: what the planner's own schedule predicts, if detecting, "
        "restoring and replaying took no time, beside what was measured.",
        checks=tuple(
            CheckRow(one.name, str(results[one.name]["verdict"]), "; ".join(results[one.name].get("reasons") or ["ok"]))
            for one in planned
        ),
        evidence=_evidence(planned, results),
        plots=tuple(_plots(planned, results)),
        command=shlex.join(command),
        notes=("Times are seconds from the start of each drill.",),
    )


def _drills(rows: Sequence[Mapping[str, Any]]) -> Table:
    columns = ("drill", *(words for _, words in _SHOWN))
    return Table(columns, tuple((row["drill"], *(row.get(name) for name, _ in _SHOWN)) for row in rows))


def _claims(claims: Sequence[Claim]) -> Table:
    holds = {True: "yes", False: "no", None: "could not be seen"}
    rows = tuple((one.where, one.paper, one.ours, holds[one.holds]) for one in claims)
    return Table(("where", "the paper", "here", "holds"), rows)


def _evidence(planned: Sequence[PlannedDrill], results: Mapping[str, Mapping[str, Any]]) -> Evidence:
    rows = []
    for one in planned:
        once = results[one.name].get("exactly_once")
        if once is not None:
            rows.append((one.name, *(once[name] for name in ("expected", "missing", "duplicated", "wrong"))))
    if not rows:
        return Evidence("")
    columns = ("drill", "rows expected", "missing", "duplicated", "wrong")
    return Evidence(
        "Every drill compares all its rows with those of a run without failures.", Table(columns, tuple(rows))
    )


def _marks(planned: Sequence[PlannedDrill], results: Mapping[str, Mapping[str, Any]]) -> list[Mark]:
    moments = {round(float(results[one.name]["fault_at"]), 1) for one in planned if results[one.name].get("fault_at")}
    return [Mark(at, "the failure", "bad") for at in sorted(moments)]


def _plots(planned: Sequence[PlannedDrill], results: Mapping[str, Mapping[str, Any]]) -> list[Plot]:
    found = []
    for figure in sorted({one.figure for one in planned}):
        series = []
        most = 1
        for one in planned:
            points = results[one.name].get("available")
            if one.figure == figure and points:
                ended = float(results[one.name].get("ended_at") or points[-1][0])
                steps = [(float(at), float(count)) for at, count in points]
                series.append(Series(one.label, (*steps, (ended, steps[-1][1]))))
                most = max(most, len(results[one.name]["queries"]))
        if series:
            note = "Queries that are not down and whose mean relative latency over the next 5 s is below 1.2."
            name = f"Available queries (Fig. {figure})"
            found.append(Plot(name, note, "queries", tuple(series), steps=True, top=float(most)))
    return found
