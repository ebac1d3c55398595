"""The metrics of a run, as one table, and as text that Prometheus reads. Pure.

Names and units are Prometheus' conventions: base units (seconds, bytes, ratios), counters end with `_total`. Labels are
bounded by the application and the cluster: query, operator, node, state; never a batch or a partition. A value that is
not known is left out, rather than shown as 0. The page of the docs, the Grafana dashboard and the alert rules are made
from this table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from holdfast.dashboard.cluster_metrics import CLUSTER_METRICS
from holdfast.dashboard.metric_readers import Kind, Metric, Reading, Values
from holdfast.dashboard.metric_totals import MetricTotals
from holdfast.dashboard.run_metrics import RUN_METRICS

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
METRICS: tuple[Metric, ...] = (*RUN_METRICS, *CLUSTER_METRICS)
"""All metrics, in the order in which they are shown."""


def exposition(view: Mapping[str, Any], totals: MetricTotals, now: float) -> str:
    """Return all metrics of a run as text that Prometheus reads."""
    given = Reading(view, totals, now)
    lines: list[str] = []
    for metric in METRICS:
        samples: list[str] = []
        if metric.kind is Kind.SUMMARY:
            assert metric.count is not None
            samples += _samples(f"{metric.name}_sum", metric.labels, metric.read(given))
            samples += _samples(f"{metric.name}_count", metric.labels, metric.count(given))
        else:
            samples += _samples(metric.name, metric.labels, metric.read(given))
        if samples:
            text = metric.help.replace("\\", "\\\\").replace("\n", "\\n")
            lines += [f"# HELP {metric.name} {text}", f"# TYPE {metric.name} {metric.kind}", *samples]
    return "\n".join([*lines, ""])


def _samples(name: str, labels: tuple[str, ...], values: Values) -> list[str]:
    found = []
    for given, value in values:
        if value is None:
            continue
        written = ",".join(f'{label}="{_escaped(text)}"' for label, text in zip(labels, given, strict=True))
        found.append(f"{name}{{{written}}} {_number(value)}" if written else f"{name} {_number(value)}")
    return found


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").encode("utf-8", "replace").decode()


def _number(value: float) -> str:
    if isinstance(value, bool | int):
        return str(int(value))
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(float(value))


def metrics_table() -> str:
    """Return the table of metrics for the documents."""
    rows = [
        f"| `{one.name}` | {one.kind} | {', '.join(f'`{label}`' for label in one.labels)} | {one.help} |"
        for one in METRICS
    ]
    return "\n".join(["| metric | kind | labels | meaning |", "|---|---|---|---|", *rows])
