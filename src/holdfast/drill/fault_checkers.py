"""Checks of single faults: what was read, what was parked, a hung process, a superseded driver. Runs anywhere; pure.

| check | what must hold |
|---|---|
| input | everything that arrived is in exactly one batch: files with all their rows, each byte, each offset |
| parked | the poisoned query was parked, no other was, and it went on when the cause was removed |
| hang | the node of the hung operator process was not taken for lost |
| old driver | a driver that was superseded while it was frozen ended by itself |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.drill.checkers import Check, Verdict
from holdfast.drill.faulty_operators import aimed_query
from holdfast.drill.history import Event
from holdfast.drill.logged import LoggedInput
from holdfast.drill.losses import TAKES_EVERYTHING, TAKES_PARTITIONS, is_on, placement_of
from holdfast.drill.schedule import FaultKind
from holdfast.drill.settings import DrillSettings
from holdfast.topology import Topology
from holdfast.wording import counted

HANG_MARGIN = 30.0
"""Seconds beside those of the hang in which it must have come and gone: it begins with the next rows."""


def check_input(logged: LoggedInput) -> Check:
    """Judge what the run read."""
    if logged.problems:
        more = f" ({len(logged.problems)} in all)" if len(logged.problems) > 1 else ""
        return Check("input", Verdict.FAILED, f"{logged.problems[0]}{more}")
    rows = sum(count for batch in logged.batches for count in batch.rows.values()) + sum(logged.in_place.values())
    return Check("input", Verdict.OK, f"{counted(rows, 'row')} read, each once, in {len(logged.batches)} batches")


def fault_checks(asked: DrillSettings, topology: Topology, history: Sequence[Event]) -> list[Check]:
    """Make the checks of the faults that the drill had."""
    found = []
    if asked.poison or any(event.kind == "parked" for event in history):
        found.append(check_parked(history, str(aimed_query(topology)) if asked.poison else None))
    if asked.hang:
        found.append(check_hang(history, str(aimed_query(topology)), asked.hang_for))
    if asked.take_over:
        found.append(check_old_driver(history))
    return found


def parked_periods(history: Sequence[Event]) -> list[dict[str, Any]]:
    """Return every time in which a query was parked: since when, why, and when it was resumed (None: it was not)."""
    found: list[dict[str, Any]] = []
    open_ones: dict[str, dict[str, Any]] = {}
    for event in history:
        if event.kind == "parked":
            query = str(event.fields["query"])
            if query not in open_ones:  # a driver that starts again emits it a second time
                fields = {name: event.fields.get(name) for name in ("partition", "batch", "error")}
                open_ones[query] = {"query": query, "at": round(event.at, 4), **fields, "resumed_at": None}
                found.append(open_ones[query])
        elif event.kind == "resumed":
            period = open_ones.pop(str(event.fields["query"]), None)
            if period is not None:
                period["resumed_at"] = round(event.at, 4)
    return found


def check_parked(history: Sequence[Event], aimed: str | None) -> Check:
    """Only the poisoned query was parked, and it was resumed."""
    name = "parked"
    periods = parked_periods(history)
    others = sorted({one["query"] for one in periods} - {aimed})
    if others:
        why = next(one["error"] for one in periods if one["query"] == others[0])
        return Check(name, Verdict.FAILED, f"{', '.join(others[:5])} was parked, without a fault of its own: {why}")
    if not periods:
        return Check(name, Verdict.UNKNOWN, f"{aimed} was not parked: it had no rows, or the cause was gone too soon")
    if any(one["resumed_at"] is None for one in periods):
        return Check(name, Verdict.FAILED, f"{aimed} was parked and not resumed")
    seconds = sum(one["resumed_at"] - one["at"] for one in periods)
    return Check(name, Verdict.OK, f"{aimed} was parked for {seconds:.1f} s, no other query was")


def check_hang(history: Sequence[Event], aimed: str, seconds: float) -> Check:
    """No node was given up for a process that hung."""
    name = "hang"
    hung = next((event for event in history if event.kind == "fault" and event.fields["what"] == FaultKind.HANG), None)
    if hung is None:
        return Check(name, Verdict.UNKNOWN, "no process hung")
    if (left := next((event for event in history if event.kind == "hang-not-taken"), None)) is not None:
        return Check(name, Verdict.UNKNOWN, f"no process hung: {left.fields.get('why')}")
    node = placement_of([event for event in history if event.at <= hung.at]).get(aimed, "")
    hosts = {str(e.fields["node"]): str(e.fields["host"]) for e in history if e.kind == "node-started"}
    excused = any(
        event.fields["what"] in TAKES_EVERYTHING
        or (event.fields["what"] in TAKES_PARTITIONS and is_on(hosts.get(str(event.fields.get("node")), "-"), node))
        for event in history
        if event.kind == "fault"
    )
    given_up = [
        event
        for event in history
        if event.kind in {"node-lost", "node-silent"}
        and hung.at <= event.at <= hung.at + seconds + HANG_MARGIN
        and node in map(str, event.fields["nodes"])
    ]
    if not node:
        return Check(name, Verdict.UNKNOWN, f"the history does not say where {aimed} was when it hung")
    if given_up and not excused:
        return Check(name, Verdict.FAILED, f"{node}, where {aimed} hung, was taken for lost at {given_up[0].at:.1f} s")
    if given_up:
        return Check(name, Verdict.OK, f"{node}, where {aimed} hung, was lost by another fault of the drill")
    return Check(name, Verdict.OK, f"{node} kept its place while {aimed} hung for {seconds:g} s")


def check_old_driver(history: Sequence[Event]) -> Check:
    """The superseded driver ended, with an error, when it went on."""
    name = "old driver"
    over = next((event for event in history if event.kind == "driver-over"), None)
    if over is None:
        return Check(name, Verdict.UNKNOWN, "the frozen driver did not go on before the drill was over")
    if over.fields["status"] is None:
        return Check(name, Verdict.FAILED, f"it still ran {over.fields['after']:.0f} s after it went on")
    if over.fields["status"] == 0:
        return Check(name, Verdict.FAILED, "it ended as if it had run the stream to its end")
    return Check(name, Verdict.OK, f"it ended by itself {over.fields['after']:.1f} s after it went on")
