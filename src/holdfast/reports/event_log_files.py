"""Reads the event log of a run from its files: the rotated one first. Runs anywhere.

A driver that was killed may leave half a line, and the next one appends behind it; a line that cannot be read is
counted and left out, because a post-mortem is most wanted where something went wrong.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

from holdfast.runtime.coordinator.event_log import Observation

NAMES = ("events.1.jsonl", "events.jsonl")
_KEPT = {"cycle": ("through", "claim"), "published": ("partition", "batch", "rows", "tentative"), "measures": ()}
"""Of events that come with every batch, what reports need: a log may hold a million of them."""


_NEEDED: dict[str, dict[str, type]] = {
    "state": {"partition": str, "before": str, "after": str},
    "published": {"partition": str, "batch": int},
    "cycle": {"through": int},
    "epoch": {"claim": int},
    "run": {"claim": int},
    "node-arrived": {"nodes": list},
    "node-lost": {"nodes": list},
    "node-silent": {"nodes": list},
    "planned": {"recover": list, "placement": dict, "left_out": list, "queries": list},
    "rolled-back": {"partitions": list, "to": int},
    "restored": {"partition": str},
    "promoted": {"partition": str},
    "parked": {"query": str},
    "resumed": {"query": str},
}
"""What events of a kind must have for a report; one that has it not is left out, like a line that is no JSON."""


@dataclass(frozen=True, slots=True)
class EventLog:
    """What the files hold, in the order of time."""

    events: tuple[Observation, ...]
    unread: int
    """Lines that could not be read."""


def event_folder(directory: Path) -> Path | None:
    """Return the folder with a run's event log: `DIRECTORY/run`, or the directory itself; None: there is none."""
    for folder in (directory / "run", directory):
        if any((folder / name).is_file() for name in NAMES):
            return folder
    return None


def read_event_log(folder: Path) -> EventLog:
    """Read the log of a run that goes on, or is over."""
    found: list[Observation] = []
    unread = 0
    for name in NAMES:
        path = folder / name
        if not path.is_file():
            continue
        with path.open("rb") as lines:
            for line in lines:
                event = read_line(line)
                if event is not None:
                    found.append(event)
                elif line.strip() and line.endswith(b"\n"):  # the last line of a run that goes on may not be whole yet
                    unread += 1
    found.sort(key=lambda event: event.at)
    return EventLog(tuple(found), unread)


def read_line(line: bytes) -> Observation | None:
    """Read one line; None: it is no event."""
    try:
        given = json.loads(line)
        at, kind = float(given.pop("at")), given.pop("event")
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    if not isinstance(kind, str) or not math.isfinite(at):
        return None
    if any(not isinstance(given.get(name), known) for name, known in _NEEDED.get(kind, {}).items()):
        return None
    if (kept := _KEPT.get(kind)) is not None:
        given = {name: given[name] for name in kept if name in given}
    return Observation(at, kind, given)
