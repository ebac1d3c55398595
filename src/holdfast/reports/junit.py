"""A report as JUnit XML, which CI systems show: a test case per check and per promise. Runs anywhere; pure.

A check that failed is a failure; one that could not be made is an error, because nothing was shown. A promise that was
not made for so large a failure is skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from xml.sax.saxutils import escape, quoteattr

from holdfast.reports.model import Report

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def make_junit(reports: Iterable[tuple[str, Report]]) -> str:
    """Return one document with a test suite for each report, under its name."""
    suites = [_suite(name, report) for name, report in reports]
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<testsuites>\n{"".join(suites)}</testsuites>\n'


def _suite(name: str, report: Report) -> str:
    cases, failures, errors, skipped = [], 0, 0, 0
    for check in report.checks:
        inner = ""
        if check.verdict == "failed":
            failures += 1
            inner = _element("failure", check.reason)
        elif check.verdict == "unknown":
            errors += 1
            inner = _element("error", check.reason)
        cases.append(_case(name, check.name, None, inner))
    for promise in report.promises:
        if promise.target is None and promise.kept is None:
            continue
        inner = ""
        words = f"measured {_seconds(promise.measured)}, predicted {_seconds(promise.predicted)}"
        words += "" if promise.target is None else f", target {_seconds(promise.target)}"
        if promise.kept is False:
            failures += 1
            inner = _element("failure", words)
        elif promise.kept is None:
            skipped += 1
            inner = _element("skipped", promise.note or words)
        cases.append(_case(name, f"{promise.what} of {promise.query}", promise.measured, inner))
    counts = f'tests="{len(cases)}" failures="{failures}" errors="{errors}" skipped="{skipped}"'
    out = f"    <system-out>{_text(report.line)}\n{_text(report.command)}</system-out>\n"
    return f"  <testsuite name={_attribute(name)} {counts}>\n{''.join(cases)}{out}  </testsuite>\n"


def _case(suite: str, name: str, seconds: float | None, inner: str) -> str:
    time = "" if seconds is None else f' time="{seconds:.3f}"'
    head = f"    <testcase classname={_attribute(suite)} name={_attribute(name)}{time}"
    return f"{head}>{inner}</testcase>\n" if inner else f"{head}/>\n"


def _element(kind: str, message: str) -> str:
    return f"<{kind} message={_attribute(message)}/>"


def _attribute(text: str) -> str:
    return quoteattr(_NOT_XML.sub("\ufffd", text))


def _text(text: str) -> str:
    return escape(_NOT_XML.sub("\ufffd", text))


def _seconds(value: float | None) -> str:
    return "not known" if value is None else f"{value:.3g} s"
