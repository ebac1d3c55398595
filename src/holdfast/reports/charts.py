"""The plots of a report: a bar per query, the recovery as a Gantt, and lines over time. Runs anywhere; pure.

Every plot has the same time axis, bands and marks, and a table beside it with the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from holdfast.reports import svg
from holdfast.reports.model import GanttRow, Plot, QueryRow, Report

MOST_ROWS = 150
"""Bars of a plot; a report of more has the rest in its table."""
MOST_LABELS = 40
MOST_POINTS = 600
_ROW = 22
_STATES = {"down": "down", "tentative": "tentative output", "late": "catching up", "parked": "parked"}
_PHASES = {
    "undetected": "not detected yet",
    "waiting": "waiting for a place",
    "restoring": "restoring its snapshot",
    "replaying": "replaying",
}


def left_of(report: Report) -> int:
    """Return where time begins: at the same place in every plot of a report, so that moments stand below each other."""
    queries = svg.label_space([one.id for one in report.queries[:MOST_ROWS]], len("priority 10"))
    return max(queries, svg.label_space([one.partition for one in report.gantt[:MOST_ROWS]]))


def query_bars(report: Report) -> str:
    """Draw what became of each query: up, down, tentative, catching up, parked."""
    shown = report.queries[:MOST_ROWS]
    height = svg.TOP + _ROW * len(shown) + svg.BOTTOM
    notes = [f"priority {one.priority}" for one in shown]
    frame = svg.Frame(report.end, 0, 1, height, left=left_of(report))
    parts = []
    for number, (one, note) in enumerate(zip(shown, notes, strict=True)):
        top = svg.TOP + number * _ROW + 4
        parts.append(svg.row_label(frame, one.id, top + 11, note))
        parts.append(svg.bar(frame, 0, report.end, top, 14, "up", f"{one.id}, priority {one.priority}: up"))
        for period in one.periods:
            lasted = f"{period.end - period.begin:.1f} s{' and still is' if period.open else ''}"
            words = f"{one.id}: {_STATES.get(period.state, period.state)} for {lasted}"
            parts.append(svg.bar(frame, period.begin, period.end, top, 14, period.state, words))
    parts = [*svg.shades(frame, report.bands), *parts, *svg.lines(frame, report.marks), *svg.time_scale(frame)]
    return svg.drawing(height, f"{_sentence(report.queries)}", parts) + _legend(
        [("up", "up"), *((name, words) for name, words in _STATES.items() if _has(report.queries, name))], report
    )


def _has(queries: Sequence[QueryRow], state: str) -> bool:
    return state == "down" or any(period.state == state for one in queries for period in one.periods)


def _sentence(queries: Sequence[QueryRow]) -> str:
    down = sum(one.down_at is not None for one in queries)
    return f"What became of each query: {down} of {len(queries)} went down. The table below has the numbers."


def gantt(report: Report) -> str:
    """Draw the recovery of each partition, in the order in which they were restored."""
    shown = report.gantt[:MOST_ROWS]
    row = 18
    height = svg.TOP + row * len(shown) + svg.BOTTOM
    frame = svg.Frame(report.end, 0, 1, height, left=left_of(report))
    parts = []
    for number, one in enumerate(shown):
        top = svg.TOP + number * row + 3
        parts.append(svg.row_label(frame, one.partition, top + 10))
        for phase in one.phases:
            lasted = f"{phase.end - phase.begin:.2f} s{' and still is' if phase.open else ''}"
            words = f"{one.partition}: {_PHASES[phase.kind]} for {lasted}; on {one.node or 'no node'}; {one.reason}"
            parts.append(svg.bar(frame, phase.begin, phase.end, top, 12, phase.kind, words))
    numbers = []
    for plan in report.plans:
        at = frame.x(plan.at)
        numbers.append(
            f'<g class="plan"><title>{escape(f"plan {plan.number} at {plan.at:.1f} s: {plan.reason}")}</title>'
            f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{svg.TOP - 4}" y2="{frame.bottom}"/>'
            f'<circle cx="{at:.1f}" cy="{svg.TOP - 4}" r="8"/>'
            f'<text x="{at:.1f}" y="{svg.TOP}" text-anchor="middle">{plan.number}</text></g>'
        )
    parts = [
        *svg.shades(frame, report.bands),
        *parts,
        *svg.lines(frame, report.marks),
        *numbers,
        *svg.time_scale(frame),
    ]
    used = {phase.kind for one in report.gantt for phase in one.phases}
    title = f"The recovery of {len(report.gantt)} partitions over time. The table below has the numbers."
    return svg.drawing(height, title, parts) + _legend(
        [(name, words) for name, words in _PHASES.items() if name in used], report, plans=bool(report.plans)
    )


def gantt_phases(row: GanttRow, kind: str) -> tuple[float | None, float]:
    """Return when a kind of phase first began, and how long all of the kind lasted."""
    found = [phase for phase in row.phases if phase.kind == kind]
    return (found[0].begin if found else None), sum(phase.end - phase.begin for phase in found)


def line_plot(report: Report, plot: Plot) -> str:
    """Draw values over time."""
    values = [value for one in plot.series for _, value in one.points if value > 0 or not plot.log]
    if not values:
        return "<p>There is nothing to draw.</p>"
    top = max([*values, plot.top or 0.0, plot.level or 0.0])
    left = left_of(report)
    if plot.log:
        frame = svg.Frame(report.end, min(0.5, max(0.1, min(values))), max(2.0, top) * 1.1, 300, log=True, left=left)
    else:
        frame = svg.Frame(report.end, 0, max(1.0, top * 1.05 if plot.top is None else plot.top), 220, left=left)
    parts = [*svg.shades(frame, report.bands), *svg.axes(frame, plot.label), *svg.lines(frame, report.marks)]
    if plot.level is not None:
        parts.append(svg.level_line(frame, plot.level, f"{plot.level:g}"))
    strong = [one for one in plot.series if not one.faint]
    for one in plot.series:
        if one.faint:
            parts.append(svg.line(frame, thinned(one.points), 0, one.name, steps=plot.steps, faint=True))
    for number, one in enumerate(strong):
        parts.append(svg.line(frame, thinned(one.points), number, one.name, steps=plot.steps, gaps=one.gaps))
    names = "".join(
        f"<span><i class='s{n % svg.SERIES}{' dashed' if n >= svg.SERIES else ''}'></i>{escape(one.name)}</span>"
        for n, one in enumerate(strong[:MOST_LABELS])
    )
    legend = f"<p class='legend'>{names}</p>" if len(strong) > 1 else ""
    return svg.drawing(frame.height, f"{plot.name} over time", parts) + legend


def thinned(points: Sequence[tuple[float, float]], most: int = MOST_POINTS) -> list[tuple[float, float]]:
    """Return at most about so many points: of each group the first and the highest, so that no peak is lost."""
    if len(points) <= most:
        return list(points)
    step = -(-len(points) // (most // 2))
    found = []
    for start in range(0, len(points), step):
        group = points[start : start + step]
        peak = max(group, key=lambda point: point[1])
        found += [group[0]] if peak is group[0] else [group[0], peak]
    return [*found, points[-1]]


def _legend(entries: Sequence[tuple[str, str]], report: Report, *, plans: bool = False) -> str:
    found = [f"<span><i class='{name}'></i>{escape(words)}</span>" for name, words in entries]
    if plans:
        found.append("<span><b class='number'>1</b>a plan</span>")
    if any(mark.kind == "bad" for mark in report.marks):
        found.append("<span><b class='bad'></b>fault</span>")
    if any(mark.kind == "good" for mark in report.marks):
        found.append("<span><b class='good'></b>node arrived, or fault over</span>")
    if any(band.kind == "outage" for band in report.bands):
        found.append("<span><i class='shade'></i>queries are down</span>")
    if any(band.kind == "fault" for band in report.bands):
        found.append("<span><i class='shade fault'></i>a fault lasts</span>")
    return f"<p class='legend'>{''.join(found)}</p>"
