"""What happened in a drill: one JSON object per line, with the seconds since the start. Runs beside the cluster.

The drill is the only writer. Its driver, which may be ended with `kill -9` at any moment, sends events through a pipe;
a line that was cut off by its death never happened. So the history goes on over any number of drivers.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from holdfast.errors import BadInput


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened: when (seconds from the start), what, and what belongs to it."""

    at: float
    kind: str
    fields: Mapping[str, Any]

    def line(self) -> str:
        """Return it as a line of the history."""
        return json.dumps({"at": round(self.at, 4), "kind": self.kind, **self.fields}, ensure_ascii=False)


def read_event(line: str) -> Event:
    """Read one line; one that is not an event raises ValueError."""
    found = json.loads(line)
    if not isinstance(found, dict) or not isinstance(found.get("kind"), str):
        raise ValueError("no event")
    return Event(float(found.pop("at")), found.pop("kind"), found)


class HistoryFile:
    """The growing history of a drill; several threads may add to it."""

    def __init__(self, path: Path, began: float, watch: Callable[[Event], object] = lambda event: None) -> None:
        """Begin a new history at this moment of the system's clock (`time.time()`); `watch` sees every event."""
        self.path, self.began, self._watch = path, began, watch
        self.events: list[Event] = []
        self._lock = threading.Lock()
        self._file: IO[str] = path.open("w", encoding="utf-8")

    def add(self, time: float, kind: str, fields: Mapping[str, Any]) -> Event:
        """Put down what happened at this moment of the system's clock."""
        event = Event(time - self.began, kind, fields)
        with self._lock:
            self.events.append(event)
            if not self._file.closed:
                self._file.write(event.line() + "\n")
                self._file.flush()
        self._watch(event)
        return event

    def close(self) -> list[Event]:
        """End it: the file is put into the order of time, in which the driver's pipe may have been late."""
        with self._lock:
            self._file.close()
            ordered = sorted(self.events, key=lambda event: event.at)
            beside = self.path.with_name(f".{self.path.name}")
            beside.write_text("".join(event.line() + "\n" for event in ordered), encoding="utf-8")
            beside.replace(self.path)
        return ordered


def read_history(lines: Iterable[str], where: str = "history") -> list[Event]:
    """Read a history; a last line that was cut off is passed over, any other that cannot be read is refused."""
    return list(_events(lines, where))


def _events(lines: Iterable[str], where: str) -> Iterator[Event]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield read_event(line)
        except (ValueError, KeyError, TypeError):
            if not line.endswith("\n"):
                return
            raise BadInput(
                "is no event", where=f"{where}, line {number}", remedy="give a history as a drill wrote it"
            ) from None
