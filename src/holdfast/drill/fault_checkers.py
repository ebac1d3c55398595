"""Checks of single faults: what was read, what was parked, a hung process, a superseded driver. Runs anywhere; pure.

| check | what must hold |
|---|---|
| input | everything that arrived is in exactly one batch: each file, byte and offset; watermarks follow from rows |
| parked | the poisoned query was parked, no other was, and it went on when the cause was removed |
| hang | the node of the hung operator process was not taken for lost |
| old driver | a driver that was superseded while it was frozen ended by itself |
| evacuated | nothing of a decommissioned node was lost or rolled back, and no query paused for more than a batch |
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from holdfast.drill.checkers import Check, Verdict
from holdfast.drill.faulty_operators import aimed_query
from holdfast.drill.history import Event
from holdfast.drill.logged import LoggedInput
from holdfast.drill.losses import LOST, TAKES_EVERYTHING, TAKES_PARTITIONS, is_on, placement_of
from holdfast.drill.schedule import FaultKind
from holdfast.drill.settings import DrillSettings
from holdfast.topology import Topology
from holdfast.wording import counted

FEWEST_OUTPUTS = 5
"""Outputs of a query before a notice that its pauses are compared with: a run that has just begun has no rhythm yet."""
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
    if asked.decommission:
        found.append(check_evacuated(history))
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


def check_evacuated(history: Sequence[Event]) -> Check:
    """Every decommissioned node was left in order: its partitions moved, none was lost, and no query stood still.

    Beside other faults what went wrong may be theirs: that is unknown.
    """
    name = "evacuated"
    hosts = {str(e.fields["node"]): str(e.fields["host"]) for e in history if e.kind == "node-started"}
    notices = [e for e in history if e.kind == "fault" and e.fields["what"] == FaultKind.DECOMMISSION]
    if not notices:
        return Check(name, Verdict.UNKNOWN, "no node was decommissioned before the stream ended")
    others = sorted({str(e.fields["what"]) for e in history if e.kind == "fault" and e.fields["what"] not in _IN_ORDER})
    moved = 0
    for notice in notices:
        node = str(notice.fields["node"])
        host = hosts.get(node, node)
        here = {p for p, at in placement_of([e for e in history if e.at < notice.at]).items() if is_on(host, at)}
        moved += len(here)
        end = next((e.at for e in history if e.at >= notice.at and _evacuates(e, host)), None)
        problem = (
            f"{node} was not evacuated, with {counted(len(here), 'partition')} on it"
            if end is None
            else _harmed(history, here, notice.at)
        )
        if problem is not None and others:
            return Check(name, Verdict.UNKNOWN, f"{problem}; the drill had other faults: {', '.join(others)}")
        if problem is not None:
            return Check(name, Verdict.FAILED, problem)
        if not here:
            return Check(name, Verdict.UNKNOWN, f"{node} had no partition when it was decommissioned")
        assert end is not None
        paused = _paused(history, notice.at, end)
        if paused is not None:
            return Check(name, Verdict.UNKNOWN if others else paused[0], paused[1])
    return Check(name, Verdict.OK, f"{counted(moved, 'partition')} moved, none was lost, no query paused for a batch")


_IN_ORDER = frozenset({FaultKind.DECOMMISSION, FaultKind.ADD_NODE})


def _evacuates(event: Event, host: str) -> bool:
    return event.kind == "node-evacuated" and any(is_on(host, str(name)) for name in event.fields["nodes"])


def _harmed(history: Sequence[Event], here: set[str], since: float) -> str | None:
    """Say what became of partitions after a moment that does not become of those that move."""
    for event in history:
        if event.at < since:
            continue
        given = event.fields
        if event.kind == "state" and given["after"] == LOST and given["partition"] in here:
            return f"{given['partition']}, on a node that was decommissioned, was lost at {event.at:.1f} s"
        if event.kind == "rolled-back":
            return f"{counted(len(given['partitions']), 'partition')} rolled back at {event.at:.1f} s"
        if event.kind == "restored" and given["partition"] in here:
            return f"{given['partition']}, on a node that was decommissioned, was restored at {event.at:.1f} s"
    return None


def _paused(history: Sequence[Event], since: float, until: float) -> tuple[Verdict, str] | None:
    """Say which query stood still for more than a batch longer than before the notice, in its time or right after."""
    begin = next((event for event in history if event.kind == "begin"), None)
    every = 1.0 if begin is None else float(begin.fields.get("batch_seconds") or 1.0)
    outputs: dict[str, dict[int, float]] = {}
    for event in history:
        if event.kind == "published" and not event.fields.get("tentative"):
            outputs.setdefault(str(event.fields["partition"]), {}).setdefault(int(event.fields["batch"]), event.at)
    for query, batches in sorted(outputs.items()):
        times = sorted(batches.values())
        before = [after - at for at, after in pairwise(times) if after <= since]
        meanwhile = [after - at for at, after in pairwise(times) if after > since and at < until + every]
        if len(before) < FEWEST_OUTPUTS or not meanwhile:
            return Verdict.UNKNOWN, f"{query} has too few outputs before the notice or after it to compare"
        if max(meanwhile) > max(before) + every:
            words = f"{query} stood still for {max(meanwhile):.1f} s, before the notice for {max(before):.1f} s at most"
            return Verdict.FAILED, words
    return None if outputs else (Verdict.UNKNOWN, "there are no outputs to compare")
