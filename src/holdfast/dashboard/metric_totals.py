"""What only grows in a run: the counters of `/metrics`, folded from its events. Pure.

Counters begin with what the log still has and go on from there; a metrics system takes a lower value for a restart. An
event that lacks what its kind needs changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

Event = Mapping[str, Any]
_MEASURED = {"rows_in": "rows", "cpu_seconds": "cpu", "bytes_in": "bytes", "late_rows": "late"}
"""Measures of partitions that only grow while a driver lives, and the counters of operators that they add to."""


class MetricTotals:
    """Counts events; every kind of them costs the same, whatever the size of the run."""

    def __init__(self) -> None:
        self.nodes_lost: Counter[str] = Counter({"lost": 0, "silent": 0})
        """By how it was noticed."""
        self.nodes_arrived = 0
        self.plans = 0
        self.plans_rejected = 0
        self.checkpoints = 0
        self.cycles = 0
        self.cycle_seconds = 0.0
        self.cycle_failures = 0
        self.snapshots_not_stored = 0
        self.parkings = 0
        self.recoveries_ended = 0
        self.restores = 0
        self.restore_seconds = 0.0
        self.restore_bytes: Counter[str] = Counter({"peers": 0, "folder": 0, "node": 0})
        """By where snapshots came from."""
        self.promotions = 0
        self.recoveries: Counter[str] = Counter()
        """Outages of queries whose end a promise measured, by query."""
        self.recovery_seconds: dict[str, float] = {}
        self.last_recovery: dict[str, float] = {}
        self.missed: Counter[str] = Counter()
        """Recoveries that took longer than their target, by query."""
        self.plan_changes = 0
        self.alarms: set[str] = set()
        """Promises of the plan that do not hold now."""
        self.dropped: set[str] = set()
        """Partitions whose kept inputs were dropped and are not regenerated yet."""
        self.overhead: dict[str, float] = {}
        """Of the plan: `predicted`, `measured` and `target`, a share of the bandwidth."""
        self.measured: dict[str, dict[str, float]] = {}
        """By operator: `rows`, `cpu`, `bytes`, `late`, and `state`, its size now."""
        self.page_cpu_seconds: float | None = None
        """CPU time of the page's own threads; set by who serves it."""
        self._restoring: dict[str, float] = {}

    def take(self, event: Event) -> None:
        """Take the next event of the log."""
        with suppress(KeyError, TypeError, ValueError, AttributeError):
            self._take(event, float(event["at"]))

    def _take(self, event: Event, at: float) -> None:
        match event["event"]:
            case "run" if not event.get("repeated"):
                self.alarms.clear()  # a new driver raises anew what does not hold
            case "cycle":
                self.cycles += 1
                self.cycle_seconds += float(event["seconds"])
            case "cycle-failed":
                self.cycle_failures += 1
            case "node-lost":
                self.nodes_lost["lost"] += len(event["nodes"])
            case "node-silent":
                self.nodes_lost["silent"] += len(event["nodes"])
            case "node-arrived":
                self.nodes_arrived += len(event["nodes"])
            case "planned":
                self.plans += 1
            case "plan-rejected":
                self.plans_rejected += 1
            case "checkpoint":
                self.checkpoints += 1
            case "snapshot-not-stored":
                self.snapshots_not_stored += 1
            case "parked" if not event.get("repeated"):
                self.parkings += 1
            case "recovery-ended":
                self.recoveries_ended += 1
            case "restoring":
                self._restoring[str(event["partition"])] = at
            case "restored":
                began = self._restoring.pop(str(event["partition"]), None)
                if began is not None:
                    self.restores += 1
                    self.restore_seconds += max(0.0, at - began)
                for origin in ("peers", "folder", "node"):
                    self.restore_bytes[origin] += int(event.get(f"bytes_from_{origin}") or 0)
            case "promoted":
                self.promotions += 1
            case "promise" if event["what"] == "recovery":
                query, seconds = str(event["query"]), float(event["measured"])
                self.recoveries[query] += 1
                self.recovery_seconds[query] = self.recovery_seconds.get(query, 0.0) + seconds
                self.last_recovery[query] = seconds
                self.missed[query] += event["target"] is not None and seconds > float(event["target"])
            case "plan-changed":
                self.plan_changes += 1
            case "plan-measured":
                self.overhead = {str(kind): float(value) for kind, value in event["overhead"].items()}
            case "promise-alarm":
                self.alarms.add(str(event["what"]))
            case "promise-holds":
                self.alarms.discard(str(event["what"]))
            case "kept-no-more":
                self.dropped.update(str(one) for one in event["partitions"])
            case "regenerated":
                self.dropped.difference_update(str(one) for one in event["partitions"])
            case "measures":
                self._measures(event["partitions"])

    def _measures(self, partitions: Mapping[str, Mapping[str, Any]]) -> None:
        found: dict[str, dict[str, float]] = {}
        for name, one in partitions.items():
            mine = found.setdefault(
                str(name).rpartition("[")[0], dict.fromkeys(("rows", "cpu", "bytes", "late", "state"), 0.0)
            )
            for field, counter in _MEASURED.items():
                mine[counter] += float(one.get(field) or 0)
            mine["state"] += float(one.get("state_bytes") or 0)
        self.measured = found
