"""A report as one HTML file. Runs anywhere; pure.

Everything is in the file: style, plots (inline SVG) and tables; no script. It opens from a disk without a network,
prints, follows the reader's light or dark setting, and says in its policy that nothing is loaded. Names come from users
and from logs: all of them are escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from holdfast.reports import charts
from holdfast.reports.model import PromiseRow, Report, Table
from holdfast.reports.style import STYLE

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_SIGNS = {"ok": "✓", "failed": "✗", "unknown": "?"}
MOST_TABLE_ROWS = 2000


def make_page(report: Report) -> str:
    """Return the whole page."""
    body = [
        f"<h1>{escape(report.title)}</h1>",
        f"<div class='verdict {report.verdict}'><b>{_SIGNS[report.verdict]} {report.verdict}</b>"
        f"<p>{escape(report.line)}</p></div>",
        _facts(report),
        *(f"<p class='note'>{escape(note)}</p>" for note in report.notes),
        *(_section(one.name, one.note, table(one.table.columns, one.table.rows)) for one in report.sections),
        _queries(report),
        _recovery(report),
        *_plots(report),
        _promises(report),
        _evidence(report),
        _checks(report),
        _command(report),
        _incidents(report),
        _log(report),
        _settings(report),
        "<footer>Written by Holdfast. Everything is in this file: it loads nothing.</footer>",
    ]
    return (
        "<!DOCTYPE html><html lang='en'><head><meta charset='utf-8'>"
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{escape(report.title)}: {report.verdict}</title><style>{STYLE}</style></head>"
        f"<body><main>{''.join(body)}</main></body></html>\n"
    )


def _facts(report: Report) -> str:
    if not report.facts:
        return ""
    tiles = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in report.facts)
    return f"<dl class='facts'>{tiles}</dl>"


def _section(name: str, note: str, *parts: str) -> str:
    """Return a section with its heading and an explanation."""
    text = f"<p class='note'>{escape(note)}</p>" if note else ""
    return f"<section><h2>{escape(name)}</h2>{text}{''.join(parts)}</section>"


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, names: int = 1) -> str:
    """Return a table; columns after the first `names` that hold numbers stand on the right."""
    kept = [list(row) for _, row in zip(range(MOST_TABLE_ROWS), rows, strict=False)]
    right = [
        any(isinstance(row[n], int | float) for row in kept)
        and all(isinstance(row[n], int | float | None) or row[n] == "–" for row in kept)
        for n in range(len(columns))
    ]
    wide = [any(len(str(row[n])) > 40 for row in kept) for n in range(len(columns))]
    head = "".join(
        f"<th scope='col'{' class=n' if number else ''}>{escape(name)}</th>"
        for name, number in zip(columns, right, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{_class(number, wide[n], n < names)}>{_cell(value)}</td>"
            for n, (value, number) in enumerate(zip(row, right, strict=True))
        )
        + "</tr>"
        for row in kept
    )
    return f"<div class='scroll' tabindex='0'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _class(number: bool, wide: bool, name: bool) -> str:
    return " class=n" if number else " class=wide" if wide else " class=name" if name else ""


def _cell(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.2f}" if isinstance(value, float) else escape(str(value))


def _details(summary: str, inner: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{inner}</details>"


def _plain(shown: str) -> str:
    return f"<div class='scroll'>{shown}</div>"


def _queries(report: Report) -> str:
    if not report.queries:
        return ""
    has_latency = any(one.latency_before is not None for one in report.queries)
    columns = ["query", "priority", "down at, s", "tentative at, s", "back at, s", "down for, s", "level at, s"]
    if has_latency:
        columns += ["latency before, ms", "after, ms"]
    columns += [report.worst_name, "outputs"]

    def row(number: int) -> list[object]:
        one = report.queries[number]
        down = None if one.down_at is None or one.back_at is None else one.back_at - one.down_at
        found: list[object] = [one.id, one.priority, one.down_at, one.tentative_at, one.back_at, down, one.level_at]
        if has_latency:
            found += [_ms(one.latency_before), _ms(one.latency_after)]
        return [*found, one.worst, one.outputs]

    rows = [row(number) for number in range(len(report.queries))]
    if all(one.tentative_at is None for one in report.queries):
        columns.pop(3)
        for cells in rows:
            cells.pop(3)
    note = (
        "One bar per query, the most valuable first. Red: down, until its first complete output. Amber: catching up, "
        "until it is level again. Dashed lines: what was done to the cluster, and when; "
        "point at anything to read what it is."
    )
    more = _more(len(report.queries))
    return _section(
        "What became of each query",
        note,
        _plain(charts.query_bars(report)),
        more,
        _details("The same as a table", table(columns, rows)),
    )


def _more(count: int) -> str:
    return f"<p class='note'>{count - charts.MOST_ROWS} more are in the table.</p>" if count > charts.MOST_ROWS else ""


def _ms(value: float | None) -> int | None:
    return None if value is None else round(value * 1000)


def _recovery(report: Report) -> str:
    if not report.gantt and not report.plans:
        return ""
    parts = []
    if report.gantt:
        parts += [_plain(charts.gantt(report)), _more(len(report.gantt))]
    if report.plans:
        items = "".join(
            f"<li><span><b class='number'>{plan.number}</b></span><span class='at'>{plan.at:.1f} s</span>"
            f"<span>{escape(f'After {plan.trigger}: ' if plan.trigger else '')}{escape(plan.reason)}</span></li>"
            for plan in report.plans
        )
        parts.append(f"<h3>Why this order</h3><ol class='plans'>{items}</ol>")
    kinds = ("undetected", "waiting", "restoring", "replaying")
    rows = [
        [
            one.partition,
            one.node or "–",
            one.phases[0].begin,
            *(charts.gantt_phases(one, kind)[1] for kind in kinds),
            None if one.phases[-1].open else one.phases[-1].end,
            one.reason,
        ]
        for one in report.gantt
    ]
    columns = [
        "partition",
        "node",
        "from, s",
        "undetected, s",
        "waiting, s",
        "restoring, s",
        "replaying, s",
        "level at, s",
    ]
    parts.append(_details("The same as a table", table([*columns, "why then"], rows, names=2)))
    steps = [(words, None if seconds is None else round(seconds, 2)) for words, seconds in report.steps]
    if steps:
        parts.append(_details("Seconds from the first fault to each step", table(["step", "seconds"], steps, names=0)))
    note = (
        "One row per partition that was lost or rolled back, in the order in which they were restored. A plan places "
        "what brings back the most priority on the nodes there are; what has no room waits for the next plan."
    )
    return _section("The recovery, partition by partition", note, *parts)


def _plots(report: Report) -> list[str]:
    found = []
    for plot in report.plots:
        rows = [
            (one.name, len(one.points), min(v for _, v in one.points), max(v for _, v in one.points), one.points[-1][1])
            for one in plot.series
            if one.points
        ]
        columns = ("series", "points", "least", "most", "last")
        found.append(
            _section(
                plot.name,
                plot.note,
                _plain(charts.line_plot(report, plot)),
                _details("The same as a table", table(columns, rows)) if rows else "",
            )
        )
    return found


def _kept(one: PromiseRow) -> str:
    if one.note:
        return one.note
    return {True: "kept", False: "broken", None: ""}[one.kept]


def _promises(report: Report) -> str:
    if not report.promises:
        return (
            _section("Predicted and measured", report.promise_note or "Nothing was predicted.")
            if report.promise_note
            else ""
        )
    rows = [
        (
            one.query,
            one.what,
            one.target,
            one.predicted,
            one.measured,
            one.measured - one.predicted if one.measured is not None and one.predicted is not None else None,
            _kept(one),
        )
        for one in report.promises
    ]
    unit = report.promise_unit
    columns = ["query", "what", *(f"{name}, {unit}" for name in ("target", "predicted", "measured", "difference")), ""]
    if all(one.target is None for one in report.promises):
        columns.pop(2)
        rows = [row[:2] + row[3:] for row in rows]  # type: ignore[misc]
    return _section("Predicted and measured", report.promise_note, table(columns, rows))


def _evidence(report: Report) -> str:
    if not report.evidence.summary:
        return ""
    shown = report.evidence.table
    return _section(
        "Every row exactly once", report.evidence.summary, "" if shown is None else table(shown.columns, shown.rows)
    )


def _checks(report: Report) -> str:
    if not report.checks:
        return ""
    rows = "".join(
        f"<tr><td class='{one.verdict}'>{_SIGNS[one.verdict]} {one.verdict}</td>"
        f"<td class='name'>{escape(one.name)}</td><td>{escape(one.reason)}</td></tr>"
        for one in report.checks
    )
    head = "".join(f"<th scope='col'>{name}</th>" for name in ("verdict", "check", "what it found"))
    return _section(
        "Checks", "", f"<div class='scroll'><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _command(report: Report) -> str:
    if not report.command:
        return ""
    return _section("Do it again", report.command_note, f"<pre tabindex='0'>{escape(report.command)}</pre>")


def _incidents(report: Report) -> str:
    shown: Table | None = report.incidents
    if shown is None or not shown.rows:
        return ""
    return _section("Outages in this log", "", table(shown.columns, shown.rows, names=2))


def _log(report: Report) -> str:
    if not report.log:
        return ""
    body = "".join(
        f"<tr class='{kind}'><td class='n'>{at:.2f}</td><td>{escape(words)}</td></tr>"
        for at, words, kind in report.log[:MOST_TABLE_ROWS]
    )
    inner = f"<div class='scroll' tabindex='0'><table><tbody>{body}</tbody></table></div>"
    return _section("Record", "", _details(f"Faults and decisions, in order ({len(report.log)})", inner))


def _settings(report: Report) -> str:
    if not report.settings:
        return ""
    return _details("Settings", table(("setting", "value"), report.settings))
