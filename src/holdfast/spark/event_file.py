"""The events of a run as JSON lines, in `DIRECTORY/run/events.jsonl`. Runs on the driver."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from threading import Lock

from holdfast.runtime.coordinator.event_log import Observation

MOST_BYTES = 64 << 20
"""A file that has grown beyond it becomes events.1.jsonl, in the place of the one before, and a new one is begun."""


REPEATED = {"run": "", "plan": "", "state": "partition"}
"""Events without which the others say little: a new file begins with the last one of each, by what the field names."""

LASTING = {"parked": "query", "tentative": "query", "promise-alarm": "what", "kept-no-more": "partitions"}
"""Events that say what holds until another one ends it: a new file begins with those that were not ended."""

ENDS = {
    "resumed": "parked",
    "tentative-ended": "tentative",
    "promise-holds": "promise-alarm",
    "regenerated": "kept-no-more",
}


class EventFile:
    """Appends every event of a run, one JSON object a line."""

    def __init__(self, path: Path) -> None:
        self.path = self._path = path
        self._lock, self._repeated = Lock(), dict[str, str]()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a")
        self._closed = False
        self.left_out = 0
        """Events that could not be written since the last one that was."""

    def write(self, seen: Observation) -> None:
        """Append an event; one that cannot be written (a full disk) is left out and counted: the run goes on."""
        line = _line(seen)
        with self._lock:
            if self._closed:
                return
            self._remember(seen)
            try:
                self._append(line)
            except OSError:
                self.left_out += 1

    def _remember(self, seen: Observation) -> None:
        """Keep what the next file begins with."""
        if seen.kind == "run":  # what was dropped stays dropped; all else a new driver says anew
            self._repeated = {key: line for key, line in self._repeated.items() if key.startswith("kept-no-more ")}
        if seen.kind in REPEATED:
            name = seen.fields.get(REPEATED[seen.kind], "")
            self._repeated[f"{seen.kind} {name}"] = _line(seen, repeated=True)
        elif seen.kind in LASTING:
            for name in _subjects(seen, LASTING[seen.kind]):
                self._repeated[f"{seen.kind} {name}"] = _line(seen, repeated=True)
        elif (ended := ENDS.get(seen.kind)) is not None:
            for name in _subjects(seen, LASTING[ended]):
                self._repeated.pop(f"{ended} {name}", None)

    def _append(self, line: str) -> None:
        if self._file.closed:  # the last attempt to write, or to begin a file, failed
            self._file = self._path.open("a")
        if self.left_out:
            left_out = {"at": round(time.time(), 3), "event": "events-left-out", "count": self.left_out}
            line = json.dumps(left_out) + "\n" + line
        self._put([line])
        self.left_out = 0
        if self._file.tell() > MOST_BYTES:
            self._file.close()
            self._path.replace(self._path.with_suffix(".1.jsonl"))
            self._file = self._path.open("a")
            self._put(dict.fromkeys(self._repeated.values()))  # one line may stand for several partitions

    def _put(self, lines: Iterable[str]) -> None:
        try:
            self._file.writelines(lines)
            self._file.flush()
        except OSError:
            with suppress(OSError):
                self._file.close()  # what it holds and cannot write would be written with the next event, in parts
            raise

    def close(self) -> None:
        """Close the file."""
        with self._lock, suppress(OSError):
            self._closed = True
            self._file.close()


def _subjects(seen: Observation, field: str) -> list[object]:
    named = seen.fields.get(field, "")
    return list(named) if isinstance(named, list | tuple) else [named]


def _line(seen: Observation, **more: object) -> str:
    return json.dumps({"at": round(seen.at, 3), "event": seen.kind, **seen.fields, **more}) + "\n"
