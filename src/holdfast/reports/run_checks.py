"""Whether an incident of a run went well: the checks that a run's own log can decide. Runs anywhere; pure.

| check | what must hold |
|---|---|
| recovered | every query that went down came back |
| parked | no query is parked when the log ends |
| promises | no recovery took longer than the plan promised for so many lost nodes |
| outputs | no batch of a query is left out between its first and its last output |
| plans | every plan passed its check |
| covered | a checkpoint covered what was restored |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.reports.model import CheckRow, PromiseRow, QueryRow, Seen
from holdfast.reports.outages import QueryHistory
from holdfast.wording import counted


def run_checks(
    events: Sequence[Seen],
    begin: float,
    rows: Sequence[QueryRow],
    promises: Sequence[PromiseRow],
    queries: Mapping[str, QueryHistory],
) -> list[CheckRow]:
    """Make the checks of the time from `begin` on."""
    later = [event for event in events if event.at >= begin]
    found = [_recovered(rows)]
    if parked := [name for name, one in queries.items() if one.state == "parked"]:
        found.append(CheckRow("parked", "failed", f"{_some(parked)} parked: remove the cause, then `holdfast resume`"))
    covered = [one for one in promises if one.kept is not None]
    if broken := [one for one in promises if one.kept is False]:
        words = f"{len(broken)} of {counted(len(covered), 'promise')} broken: {broken[0].query} took longer"
        found.append(CheckRow("promises", "failed", words))
    elif covered:
        found.append(CheckRow("promises", "ok", f"{counted(len(covered), 'promise')} kept"))
    found.append(_outputs(queries))
    if any(event.kind == "plan-rejected" for event in later):
        found.append(CheckRow("plans", "failed", "a plan failed its check, and did not run: please report it"))
    went = [one.down_at for one in rows if one.down_at is not None]
    if went:
        since = begin + min(went)
        if any(event.kind == "recovery-ended" and event.at >= since for event in later):
            found.append(CheckRow("covered", "ok", "a checkpoint covers everything that was restored"))
        else:
            found.append(CheckRow("covered", "unknown", "no checkpoint covered the recovery before the log ends"))
    return found


def _recovered(rows: Sequence[QueryRow]) -> CheckRow:
    down = [one for one in rows if one.down_at is not None]
    if away := [one.id for one in down if one.back_at is None]:
        return CheckRow("recovered", "failed", f"{_some(away)} not back")
    words = f"{len(down)} of {len(rows)} queries were down, all came back" if down else "no query was down"
    return CheckRow("recovered", "ok", words)


def _outputs(queries: Mapping[str, QueryHistory]) -> CheckRow:
    for name, one in queries.items():
        if one.gaps:
            many = counted(one.gaps, "batch", "batches")
            return CheckRow("outputs", "failed", f"{name} has {many} without an output in the log")
    if silent := [name for name, one in queries.items() if one.first is None]:
        return CheckRow("outputs", "unknown", f"the log has no output of {', '.join(silent[:5])}")
    published = sum(one.batches for one in queries.values())
    return CheckRow("outputs", "ok", f"{counted(published, 'output')} in the log, no batch left out")


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return f"{shown} {'is' if len(names) == 1 else 'are'}"
