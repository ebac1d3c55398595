"""Events of a run in words, for reports and displays. Runs anywhere; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.reports.model import Mark, Seen
from holdfast.wording import counted

SHOWN = frozenset(
    {
        "planned",
        "plan-rejected",
        "epoch",
        "requested",
        "node-arrived",
        "node-lost",
        "node-silent",
        "false-alarm",
        "driver-suspected",
        "driver-ready",
        "promoted",
        "replica-dropped",
        "node-leaving",
        "node-evacuated",
        "rolled-back",
        "recovery-ended",
        "promise",
        "parked",
        "resumed",
        "quarantined",
        "unread-records",
        "snapshot-not-stored",
        "cycle-failed",
        "bound-lifted",
        "run",
        "ended",
        "note",
    }
)
"""Kinds that a report's record has."""


def event_words(event: Seen) -> str:
    """Say in words what a run did or met."""
    given = event.fields
    match event.kind:
        case "planned":
            return (
                f"plan: {counted(len(given.get('recover', [])), 'partition')}, "
                f"{counted(len(given.get('queries', [])), 'query', 'queries')} of priority {given.get('priority')}"
                + (f", {len(given['left_out'])} left out" if given.get("left_out") else "")
            )
        case "plan-rejected":
            return f"a plan failed its check and does not run: {', '.join(map(str, given.get('problems', ())))}"
        case "epoch":
            return f"epoch {given.get('epoch')}: {given.get('why')}"
        case "requested":
            return f"{counted(int(given.get('count', 0)), 'replacement node')} requested"
        case "node-arrived":
            return f"{_names(given)} there"
        case "node-lost":
            return f"{_names(given)} lost" + (f": {given['why']}" if given.get("why") else "")
        case "node-silent":
            return f"{_names(given)} silent"
        case "false-alarm":
            return f"{_names(given)} answering again, after being declared silent"
        case "driver-suspected":
            return "most nodes fell silent together: the driver looks whether it is cut off itself"
        case "promoted":
            return f"the replica of {given.get('partition')} on {given.get('node')} takes its primary's place"
        case "replica-dropped":
            return f"the replica of {given.get('partition')} on {given.get('node')} is given up: {given.get('why')}"
        case "node-leaving":
            return f"{_names(given)} decommissioned"
        case "node-evacuated":
            return f"{_names(given)} evacuated"
        case "rolled-back":
            return (
                f"rolled back to batch {given.get('to')}: {counted(len(given.get('partitions', ())), 'live partition')}"
            )
        case "recovery-ended":
            return f"recovery is over with the checkpoint at batch {given.get('batch')}"
        case "driver-ready":
            return "a new driver is ready"
        case "promise":
            kept = {True: "kept", False: "broken", None: "not promised for so many losses"}[given.get("kept")]
            times = f"back after {given.get('measured')} s, predicted {given.get('predicted')} s"
            return f"{given.get('query')} {times}: {kept}"
        case "parked":
            place = f"{given.get('partition')} at batch {given.get('batch')}"
            return f"{given.get('query')} is parked, by {place}: {given.get('error')}"
        case "resumed":
            return f"{given.get('query')} is resumed"
        case "quarantined":
            return f"{given.get('rows')} rows of {given.get('partition')}, batch {given.get('batch')}, are quarantined"
        case "unread-records":
            return f"{given.get('rows')} records of {given.get('source')}, batch {given.get('batch')}, cannot be read"
        case "snapshot-not-stored":
            return f"the snapshot of {given.get('partition')} could not be stored: {given.get('problem')}"
        case "cycle-failed":
            return f"a cycle did not end: {given.get('problem')}"
        case "bound-lifted":
            return f"{counted(len(given.get('partitions', ())), 'partition')} restored above the bound"
        case "run":
            return f"a driver begins, claim {given.get('claim')}"
        case "ended":
            return "the run ended" if given.get("problem") is None else f"the run failed: {given['problem']}"
        case _:
            return str(given.get("text", event.kind))


def event_mark(event: Seen) -> Mark | None:
    """Return how an event of a run is marked in plots; None: it is not."""
    match event.kind:
        case "node-lost" | "node-silent" | "parked" | "node-leaving":
            return Mark(event.at, event_words(event), "bad")
        case "node-arrived" | "resumed":
            return Mark(event.at, event_words(event), "good")
    return None


def _names(fields: Mapping[str, Any]) -> str:
    nodes = [str(node) for node in fields.get("nodes", ())]
    return f"{', '.join(nodes)} {'is' if len(nodes) == 1 else 'are'}"
