"""Follows the event file of a run, over rotations, from any process that can read it. Runs beside the driver, or alone.

A line that is not whole yet is left for the next call; one that is no JSON object comes as an empty event, which the
model counts. Of a long history, figures of single batches are skipped: only what people still look for is parsed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

RECENT_BYTES = 1 << 20
"""Events of every kind are read from the last so many bytes on."""
_PER_BATCH = (b'"event": "cycle"', b'"event": "published"', b'"event": "measures"')
_HEAD = 64
"""Bytes of a line in which its kind stands."""


class EventReader:
    """Reads what was appended since the last call."""

    def __init__(self, path: Path) -> None:
        """`path` is `events.jsonl`; the rotated file beside it is read first. Neither need exist yet."""
        self._path = path
        self._file: IO[bytes] | None = None
        self._rest = b""
        self._began = False

    def read(self) -> Iterator[dict[str, Any]]:
        """Return the events that are new; a file that was rotated is read to its end first."""
        if not self._began:
            self._began = True
            self._open(self._path.with_suffix(".1.jsonl")) or self._open(self._path)
        while True:
            if self._file is None and not self._open(self._path):
                return
            yield from self._lines()
            if not self._was_rotated():
                return
            self._close()

    def _lines(self) -> Iterator[dict[str, Any]]:
        assert self._file is not None
        left = os.fstat(self._file.fileno()).st_size - self._file.tell()
        for line in self._file:
            whole, self._rest = self._rest + line, b""
            left -= len(line)
            if not whole.endswith(b"\n"):
                self._rest = whole
                return
            if left > RECENT_BYTES and any(kind in whole[:_HEAD] for kind in _PER_BATCH):
                continue
            yield _event(whole)

    def _open(self, path: Path) -> bool:
        try:
            self._file = path.open("rb")
        except OSError:
            return False
        self._rest = b""
        return True

    def _was_rotated(self) -> bool:
        """Whether the file that is open is not the one that is written."""
        assert self._file is not None
        try:
            there = self._path.stat()
        except OSError:
            return False  # the next one is about to be made
        mine = os.fstat(self._file.fileno())
        return (there.st_dev, there.st_ino) != (mine.st_dev, mine.st_ino)

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file, self._rest = None, b""

    def close(self) -> None:
        """Read no more."""
        self._close()


def _event(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
