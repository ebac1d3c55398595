"""The Grafana dashboard of a run, made from a table of panels. Pure.

A panel names metrics of `holdfast.dashboard.metrics.METRICS` only; a test compares them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

COLUMNS = 24
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_ON = 'instance=~"$instance"'


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel: what it shows, as expressions with their legends."""

    title: str
    shows: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: str = "timeseries"
    """`timeseries`, `stat` or `state-timeline`."""
    width: int = 8
    note: str = ""


PANELS: tuple[Panel, ...] = (
    Panel(
        "Queries up",
        (("sum(holdfast_query_up{%s})", "up"), ("count(holdfast_query_up{%s})", "all")),
        kind="stat",
        width=4,
    ),
    Panel("Fidelity", (("holdfast_fidelity_ratio{%s}", "fidelity"),), "percentunit", "stat", 4),
    Panel("Recovery, remaining", (("holdfast_recovery_remaining_seconds{%s}", "remaining"),), "s", "stat", 4),
    Panel("Age of the checkpoint", (("time() - holdfast_checkpoint_timestamp_seconds{%s}", "age"),), "s", "stat", 4),
    Panel("Parked queries", (("sum(holdfast_query_parked{%s})", "parked"),), "short", "stat", 4),
    Panel("Missed targets", (("sum(holdfast_query_missed_targets_total{%s})", "missed"),), "short", "stat", 4),
    Panel(
        "Queries, up and down",
        (("holdfast_query_up{%s}", "{{query}}"),),
        kind="state-timeline",
        width=16,
        note="1: up. 0: a partition that it needs is lost or being restored, or it is parked.",
    ),
    Panel("Partitions by state", (("holdfast_partitions{%s}", "{{state}}"),)),
    Panel(
        "Down for, beside the target",
        (
            ("holdfast_query_down_seconds{%s}", "{{query}}"),
            ("holdfast_query_recovery_target_seconds{%s}", "target of {{query}}"),
        ),
        "s",
    ),
    Panel("Batches behind the log", (("holdfast_query_lag_batches{%s}", "{{query}}"),)),
    Panel("Latency of outputs", (("holdfast_query_latency_seconds{%s}", "{{query}}"),), "s"),
    Panel("Input rows per second", (("rate(holdfast_input_rows_total{%s}[1m])", "all sources"),), "rowsps"),
    Panel("Output rows per second", (("rate(holdfast_query_output_rows_total{%s}[1m])", "{{query}}"),), "rowsps"),
    Panel(
        "Seconds per cycle",
        (("rate(holdfast_cycle_seconds_sum{%s}[1m]) / rate(holdfast_cycle_seconds_count{%s}[1m])", "mean"),),
        "s",
    ),
    Panel("Nodes", (("holdfast_nodes{%s}", "{{state}}"),)),
    Panel(
        "Load of nodes",
        (("holdfast_node_load_cores{%s}", "{{node}}"), ("holdfast_node_capacity_cores{%s}", "capacity of {{node}}")),
    ),
    Panel(
        "Restores",
        (
            (
                "rate(holdfast_restore_seconds_sum{%s}[5m]) / rate(holdfast_restore_seconds_count{%s}[5m])",
                "seconds each",
            ),
        ),
        "s",
    ),
    Panel("State", (("holdfast_operator_state_bytes{%s}", "{{operator}}"),), "bytes"),
    Panel("CPU of operators", (("rate(holdfast_operator_cpu_seconds_total{%s}[5m])", "{{operator}}"),)),
    Panel(
        "Ring of peers",
        (
            ("holdfast_ring_redundancy_min{%s}", "fragments that the weakest snapshot can lose"),
            ("holdfast_ring_parity_fragments{%s}", "when whole"),
            ("holdfast_ring_silent_peers{%s}", "silent peers"),
            ("holdfast_ring_fragments_to_rebuild{%s}", "to rebuild"),
        ),
    ),
)


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    panels = []
    x = y = tallest = 0
    for number, panel in enumerate(PANELS, 1):
        height = 4 if panel.kind == "stat" else 8
        if x + panel.width > COLUMNS:
            x, y, tallest = 0, y + tallest, 0
        panels.append(_panel(number, panel, {"x": x, "y": y, "w": panel.width, "h": height}))
        x, tallest = x + panel.width, max(tallest, height)
    return {
        "uid": "holdfast-run",
        "title": "Holdfast run",
        "tags": ["holdfast"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
                {
                    "name": "instance",
                    "type": "query",
                    "label": "Run",
                    "datasource": _SOURCE,
                    "query": {"query": "label_values(holdfast_run_info, instance)", "refId": "instance"},
                    "refresh": 2,
                    "includeAll": True,
                    "multi": True,
                    "current": {"text": "All", "value": "$__all"},
                },
            ]
        },
        "annotations": {
            "list": [
                {
                    "name": "Nodes lost",
                    "datasource": _SOURCE,
                    "enable": True,
                    "iconColor": "red",
                    "expr": f"increase(holdfast_nodes_lost_total{{{_ON}}}[1m]) > 0",
                    "titleFormat": "nodes lost",
                }
            ]
        },
        "panels": panels,
    }


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    return {
        "id": number,
        "title": panel.title,
        "description": panel.note,
        "type": panel.kind,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {},
        "targets": [
            {
                "refId": chr(ord("A") + n),
                "datasource": _SOURCE,
                "expr": shown.replace("%s", _ON),
                "legendFormat": legend,
            }
            for n, (shown, legend) in enumerate(panel.shows)
        ],
    }
