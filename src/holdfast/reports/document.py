"""A report as JSON: what `result.json` has of it. Runs anywhere; pure."""

from __future__ import annotations

from typing import Any

from holdfast.reports.model import QueryRow, Report


def recovery_document(report: Report) -> dict[str, Any]:
    """Return what drills and runs have in common: the line, the recovery and its reasons, promises, the command."""
    return {
        "line": report.line,
        "recovery": [
            {
                "partition": row.partition,
                "node": row.node or None,
                "phases": [
                    {"kind": one.kind, "begin": _rounded(one.begin), "end": None if one.open else _rounded(one.end)}
                    for one in row.phases
                ],
                "reason": row.reason,
                "rolled_back": row.rolled_back,
            }
            for row in report.gantt
        ],
        "plans": [
            {
                "at": _rounded(plan.at),
                "trigger": plan.trigger,
                "recover": list(plan.placed),
                "queries": list(plan.queries),
                "left_out": list(plan.left_out),
                "reason": plan.reason,
            }
            for plan in report.plans
        ],
        "promises": [
            {
                "what": one.what,
                "query": one.query,
                "predicted": _rounded(one.predicted),
                "target": _rounded(one.target),
                "measured": _rounded(one.measured),
                "kept": one.kept,
            }
            for one in report.promises
        ],
        "command": report.command,
    }


def run_document(report: Report) -> dict[str, Any]:
    """Return the result of a run's report; fields that a drill's result has too have the same names."""
    shown = report.incidents
    return {
        "title": report.title,
        "began": report.began,
        "verdict": report.verdict,
        "reasons": [f"{one.name}: {one.reason}" for one in report.checks if one.verdict != "ok"],
        "queries": [_query(one) for one in report.queries],
        "checks": [{"name": one.name, "verdict": one.verdict, "reason": one.reason} for one in report.checks],
        "ended_at": _rounded(report.end),
        "outages": [] if shown is None else [dict(zip(shown.columns[:4], row[:4], strict=True)) for row in shown.rows],
        **recovery_document(report),
    }


def _query(one: QueryRow) -> dict[str, Any]:
    return {
        "id": one.id,
        "priority": one.priority,
        "down_at": _rounded(one.down_at),
        "tentative_at": _rounded(one.tentative_at),
        "back_at": _rounded(one.back_at),
        "level_at": _rounded(one.level_at),
        "periods": [
            {
                "state": period.state,
                "begin": _rounded(period.begin),
                "end": None if period.open else _rounded(period.end),
            }
            for period in one.periods
        ],
        "outputs": one.outputs,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
