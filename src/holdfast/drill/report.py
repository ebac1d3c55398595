"""A drill as one HTML file: what was done to the cluster, what became of every query. Runs anywhere; pure.

Everything is in the file: style, plots (inline SVG) and tables. It opens from a disk without a network, prints, and
follows the reader's light or dark setting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from holdfast.drill import svg
from holdfast.drill.checkers import Check, Verdict
from holdfast.drill.history import Event
from holdfast.drill.measures import LEVEL, DrillMeasures, QueryMeasures
from holdfast.drill.schedule import FaultKind
from holdfast.wording import counted

_GOOD = frozenset({FaultKind.THAW, FaultKind.FULL_SPEED, FaultKind.DELIVER_PACKETS, FaultKind.START_DRIVER})
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
}
_MOST_LABELS = 40


def fault_words(fields: Mapping[str, Any]) -> str:
    """Say in words what a fault of the history was."""
    what = FaultKind(fields["what"])
    return _WORDS[what].format(node=fields.get("node") or "a node", value=fields.get("value") or 0.0)


def make_report(
    result: Mapping[str, Any], measures: DrillMeasures, checks: Sequence[Check], history: Sequence[Event]
) -> str:
    """Return the whole page."""
    marks = _marks(history)
    end = max(measures.ended_at, 1.0)
    title = f"Drill: {result['scenario']}, {result['strategy']}"
    plots = [
        ("What happened", _timeline(measures, history, end)),
        ("Available queries", _available(measures, marks, end)),
        ("Relative latency", _relative(measures, marks, end)),
    ]
    body = [
        f"<h1>{escape(title)} <span class='verdict {result['verdict']}'>{result['verdict']}</span></h1>",
        f"<p class='lead'>{escape(_summary(result))}</p>",
        _checks(checks),
        *(f"<section><h2>{escape(name)}</h2><p>{escape(_NOTES[name])}</p>{plot}</section>" for name, plot in plots),
        _steps(result),
        _queries(measures),
        _faults(history),
        _settings(result),
    ]
    return (
        "<!DOCTYPE html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body><main>{''.join(body)}</main></body></html>\n"
    )


_NOTES = {
    "What happened": "One bar per query: down until its first complete output, then catching up until its latency is "
    "level again. Lines: what was done to the cluster, and when.",
    "Available queries": "Queries that are not down and whose mean relative latency over the next 5 s is below 1.2.",
    "Relative latency": "Latency of each output over the query's mean latency before the failure, on a logarithmic "
    "scale. Below 1.2 a query is as it was. Grey: queries that lost nothing.",
}


def _summary(result: Mapping[str, Any]) -> str:
    once = result["exactly_once"]
    line = (
        f"{result['nodes']} nodes, {result['killed']} killed, {result['batches']} batches, seed {result['seed']}: "
        f"{once['expected']:,} rows expected, {once['missing']:,} missing, {once['duplicated']:,} duplicated, "
        f"{once['wrong']:,} wrong."
    )
    if result.get("unavailability") is not None:
        line += f" Unavailability {result['unavailability']:.1f} (priority × seconds)."
    return line


def _marks(history: Sequence[Event]) -> list[svg.Mark]:
    found = []
    for event in history:
        if event.kind == "fault" and event.fields["what"] != FaultKind.ADD_NODE:
            kind = "good" if event.fields["what"] in _GOOD else "bad"
            found.append(svg.Mark(event.at, fault_words(event.fields), kind))
        elif event.kind == "node-arrived":
            found.append(svg.Mark(event.at, event_words(event), "good"))
    return [mark for mark in found if mark.at >= 0]


def _timeline(measures: DrillMeasures, history: Sequence[Event], end: float) -> str:
    ordered = sorted(measures.queries, key=lambda one: (-one.query.priority, one.down_at or 0.0, one.query.id))
    row, marks = 20, _marks(history)
    height = svg.TOP + row * len(ordered) + svg.BOTTOM
    frame = svg.Frame(end, 0, 1, height)
    bottom = height - svg.BOTTOM
    parts = []
    for number, one in enumerate(ordered):
        top = svg.TOP + number * row + 3
        name = escape(f"{one.query.id}")
        parts.append(f'<text class="tick" x="{svg.LEFT - 8}" y="{top + 11}" text-anchor="end">{name}</text>')
        parts.append(_bar(frame, 0, end, top, "up", f"{one.query.id}, priority {one.query.priority}"))
        for outage in one.outages:
            back = end if outage.back_at is None else outage.back_at
            words = f"{one.query.id} down for {back - outage.down_at:.1f} s"
            parts.append(_bar(frame, outage.down_at, back, top, "down", words))
        if one.back_at is not None:
            level = end if one.level_at is None else one.level_at
            words = f"{one.query.id} catching up for {level - one.back_at:.1f} s"
            parts.append(_bar(frame, one.back_at, level, top, "late", words))
    for mark in marks:
        at = frame.x(mark.at)
        parts.append(
            f'<line class="mark {mark.kind}" x1="{at:.1f}" x2="{at:.1f}" y1="{svg.TOP - 6}" y2="{bottom}">'
            f"<title>{escape(f'{mark.at:.1f} s: {mark.label}')}</title></line>"
        )
    parts += svg.time_scale(frame)
    legend = (
        "<p class='legend'><i class='up'></i> up <i class='down'></i> down <i class='late'></i> catching up "
        "<b class='bad'></b> fault <b class='good'></b> node arrived, or fault over</p>"
    )
    return svg.drawing(height, "What happened to each query", parts) + legend


def _bar(frame: svg.Frame, begin: float, end: float, top: float, kind: str, title: str) -> str:
    left, right = frame.x(begin), frame.x(end)
    return (
        f'<rect class="bar {kind}" x="{left:.1f}" width="{max(0.0, right - left):.1f}" y="{top:.1f}" height="14">'
        f"<title>{escape(title)}</title></rect>"
    )


def _available(measures: DrillMeasures, marks: Sequence[svg.Mark], end: float) -> str:
    frame = svg.Frame(end, 0, max(1, len(measures.queries)), 220)
    shown = [(at, float(count)) for at, count in measures.available]
    # The last seconds have no whole window after them: there is nothing to say of them.
    known = max(0.0, measures.ended_at - 5.0)
    if shown:
        shown.append((known, shown[-1][1]))
    drawn = svg.line(frame, shown, 0, "available queries", steps=True)
    return svg.drawing(220, "Available queries over time", [*svg.axes(frame, "queries", marks), drawn])


def _relative(measures: DrillMeasures, marks: Sequence[svg.Mark], end: float) -> str:
    values = [value for one in measures.queries for _, value in one.relative if value > 0]
    if not values:
        return "<p>No output came before the failure: there is nothing to compare latencies with.</p>"
    frame = svg.Frame(end, min(0.5, max(0.1, min(values))), max(2.0, *values) * 1.1, 320, log=True)
    live = [one for one in measures.queries if not one.failed]
    failed = sorted(measures.failed, key=lambda one: (-one.query.priority, one.query.id))
    parts = svg.axes(frame, "relative latency", marks)
    parts.append(svg.level_line(frame, LEVEL, f"{LEVEL:g}"))
    parts += [svg.line(frame, one.relative, 0, f"{one.query.id} (lost nothing)", faint=True) for one in live]
    parts += [svg.line(frame, one.relative, n, _series_name(one), gaps=_gaps(one)) for n, one in enumerate(failed)]
    names = "".join(
        f"<span><i class='s{n % svg.SERIES}{' dashed' if n >= svg.SERIES else ''}'></i>"
        f"{escape(_series_name(one))}</span>"
        for n, one in enumerate(failed[:_MOST_LABELS])
    )
    return svg.drawing(320, "Relative latency over time", parts) + f"<p class='legend'>{names}</p>"


def _gaps(one: QueryMeasures) -> list[tuple[float, float]]:
    """Return when a query was down: no line is drawn there."""
    return [(down.down_at, down.back_at) for down in one.outages if down.back_at is not None]


def _series_name(one: QueryMeasures) -> str:
    return f"{one.query.id} (priority {one.query.priority})"


def _checks(checks: Sequence[Check]) -> str:
    signs = {Verdict.OK: "✓", Verdict.FAILED: "✗", Verdict.UNKNOWN: "?"}
    rows = "".join(
        f"<tr><td class='{one.verdict}'>{signs[one.verdict]} {one.verdict}</td><td>{escape(one.name)}</td>"
        f"<td>{escape(one.reason)}</td></tr>"
        for one in checks
    )
    return f"<section><h2>Checks</h2><table class='checks'>{rows}</table></section>"


def _seconds(value: object) -> str:
    return "–" if value is None else f"{float(str(value)):.1f}"


_STEPS = (
    ("detected_after", "to the first lost node being noticed"),
    ("planned_after", "to the first plan"),
    ("first_restore_after", "to the first restored state"),
    ("first_output_after", "to the first complete output of a query that was down"),
    ("all_back_after", "to the last query being back"),
    ("level_after", "to the last query being level"),
)


def _steps(result: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><td>{escape(words)}</td><td class='n'>{_seconds(result.get(name))}</td></tr>" for name, words in _STEPS
    )
    return f"<section><h2>Seconds from the first fault</h2><table>{rows}</table></section>"


def _queries(measures: DrillMeasures) -> str:
    ordered = sorted(measures.queries, key=lambda one: (not one.failed, -one.query.priority, one.query.id))
    rows = "".join(
        "<tr>"
        f"<td>{escape(one.query.id)}</td><td class='n'>{one.query.priority}</td>"
        f"<td class='n'>{_seconds(one.down_at)}</td><td class='n'>{_seconds(one.back_at)}</td>"
        f"<td class='n'>{_seconds(one.level_at)}</td>"
        f"<td class='n'>{_ms(one.latency_before)}</td><td class='n'>{_ms(one.latency_after)}</td>"
        f"<td class='n'>{max((value for _, value in one.relative), default=0):.1f}</td>"
        f"<td class='n'>{len(one.outputs)}</td></tr>"
        for one in ordered
    )
    head = "".join(
        f"<th{' class=n' if number else ''}>{name}</th>"
        for number, name in enumerate(
            ("query", "priority", "down at, s", "back at, s", "level at, s", "latency before, ms", "after, ms",
             "worst relative", "outputs")
        )
    )  # fmt: skip
    return f"<section><h2>Queries</h2><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></section>"


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value * 1000:,.0f}"


def _faults(history: Sequence[Event]) -> str:
    shown = {"planned", "epoch", "node-arrived", "node-lost", "node-silent", "recovery-ended", "driver-ready", "note"}
    rows = []
    for event in history:
        if event.kind == "fault":
            rows.append((event.at, fault_words(event.fields), "fault"))
        elif event.kind in shown:
            rows.append((event.at, event_words(event), ""))
    body = "".join(
        f"<tr class='{kind}'><td class='n'>{at:.2f}</td><td>{escape(words)}</td></tr>" for at, words, kind in rows
    )
    return f"<details><summary>Faults and answers, in order ({len(rows)})</summary><table>{body}</table></details>"


def event_words(event: Event) -> str:
    """Say in words what the run answered."""
    given = event.fields
    match event.kind:
        case "planned":
            return (
                f"plan: {counted(len(given.get('recover', [])), 'partition')}, "
                f"{counted(len(given.get('queries', [])), 'query', 'queries')} of priority {given.get('priority')}"
                + (f", {len(given['left_out'])} left out" if given.get("left_out") else "")
            )
        case "epoch":
            return f"epoch {given.get('epoch')}: {given.get('why')}"
        case "node-arrived":
            return f"{_names(given)} there"
        case "node-lost":
            return f"{_names(given)} lost"
        case "node-silent":
            return f"{_names(given)} silent"
        case "recovery-ended":
            return f"recovery is over with the checkpoint at batch {given.get('batch')}"
        case "driver-ready":
            return "a new driver is ready"
        case _:
            return str(given.get("text", event.kind))


def _names(fields: Mapping[str, Any]) -> str:
    nodes = [str(node) for node in fields.get("nodes", ())]
    return f"{', '.join(nodes)} {'is' if len(nodes) == 1 else 'are'}"


def _settings(result: Mapping[str, Any]) -> str:
    asked = result.get("settings", {})
    rows = "".join(f"<tr><td>{escape(str(k))}</td><td>{escape(str(v))}</td></tr>" for k, v in asked.items())
    return f"<details><summary>Settings</summary><table>{rows}</table></details>"


_STYLE = """
:root{--ink:#222;--faint:#6b7280;--grid:#e3e6eb;--paper:#fff;--bad:#d55e00;--good:#009e73;--up:#cfe8dd;--late:#f2d49b;
--c0:#0072b2;--c1:#d55e00;--c2:#009e73;--c3:#e69f00;--c4:#cc79a7;--c5:#56b4e9;--c6:#555;--c7:#8c6d1f}
@media (prefers-color-scheme:dark){:root{--ink:#e6e6e6;--faint:#9aa1ac;--grid:#33383f;--paper:#15181c;--up:#1e4436;
--late:#6b5320;--c6:#bbb;--c7:#d8b64a}}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:960px;margin:0 auto;padding:24px 20px 60px}
h1{font-size:26px;margin:8px 0}h2{font-size:18px;margin:28px 0 4px}
p{margin:4px 0 10px;color:var(--faint)}.lead{color:var(--ink)}
.verdict{font-size:16px;padding:3px 12px;border-radius:12px;color:#fff;vertical-align:middle;background:var(--faint)}
.verdict.ok{background:var(--good)}.verdict.failed{background:var(--bad)}
table{border-collapse:collapse;margin:6px 0;font-variant-numeric:tabular-nums}
td,th{padding:3px 14px 3px 0;text-align:left;border-bottom:1px solid var(--grid);vertical-align:top}
th{font-weight:600;font-size:13px}.n{text-align:right}
td.ok{color:var(--good);white-space:nowrap}td.failed{color:var(--bad);white-space:nowrap}
td.unknown{color:var(--faint);white-space:nowrap}tr.fault td{color:var(--bad)}
details{margin-top:24px}summary{cursor:pointer;font-weight:600}
svg{width:100%;height:auto;display:block}
svg text{font:12px system-ui,sans-serif;fill:var(--faint)}svg text.label{fill:var(--ink)}
.grid{stroke:var(--grid)}.axis{stroke:var(--faint)}
.mark{stroke-width:1.4;stroke-dasharray:4 3}.mark.bad{stroke:var(--bad)}.mark.good{stroke:var(--good)}
.level{stroke:var(--faint);stroke-dasharray:2 3}
.series{fill:none;stroke-width:1.8;stroke-linejoin:round}.dashed{stroke-dasharray:6 3}
path.faint{stroke:var(--faint);opacity:.35;stroke-width:1.1}
.bar.up{fill:var(--up)}.bar.down{fill:var(--bad)}.bar.late{fill:var(--late)}
.legend{font-size:13px}.legend span{margin-right:14px;white-space:nowrap}
.legend i{display:inline-block;width:18px;height:10px;margin:0 5px 0 10px;border-radius:2px}
.legend i[class^=s]{height:0;border-top:3px solid;border-radius:0;vertical-align:middle;margin-left:0}
.legend i.dashed{border-top-style:dashed}
.legend i.up{background:var(--up)}.legend i.down{background:var(--bad)}.legend i.late{background:var(--late)}
.legend b{display:inline-block;width:0;height:12px;border-left:2px dashed;margin:0 6px 0 12px;vertical-align:middle}
.legend b.bad{border-color:var(--bad)}.legend b.good{border-color:var(--good)}
""" + "".join(
    f".s{number}{{stroke:var(--c{number});color:var(--c{number});border-color:var(--c{number})}}"
    for number in range(svg.SERIES)
)
