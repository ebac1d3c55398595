"""The events of a run as JSON lines, in `DIRECTORY/run/events.jsonl`. Runs on the driver."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Lock

from holdfast.runtime.coordinator.event_log import Observation

MOST_BYTES = 64 << 20
"""A file that has grown beyond it becomes events.1.jsonl, in the place of the one before, and a new one is begun."""


class EventFile:
    """Appends every event of a run, one JSON object a line."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a")

    def write(self, seen: Observation) -> None:
        """Append an event."""
        line = json.dumps({"at": round(seen.at, 3), "event": seen.kind, **seen.fields}) + "\n"
        with self._lock:
            if self._file.closed:
                return
            self._file.write(line)
            self._file.flush()
            if self._file.tell() > MOST_BYTES:
                self._file.close()
                self._path.replace(self._path.with_suffix(".1.jsonl"))
                self._file = self._path.open("a")

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._file.close()
