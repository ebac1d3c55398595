"""How far fetches are that take a while: fragments that have come, and how many are needed. Runs in agents and tasks.

    SPOOL/answers/KEY.fetching

It is for people alone. A fetch that is over within `EVERY_SECONDS` writes nothing, a longer one a file of some bytes so
often at most, and none where nothing new has come; the file goes when the fetch ends.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.store.agent.spool_files import SpoolFiles

if TYPE_CHECKING:
    from holdfast.store.client.retrieving import Progress

EVERY_SECONDS = 0.1


class FetchProgress:
    """Writes how far the fetches of one spool are. Any thread may call."""

    def __init__(self, spool: Path, clock: Callable[[], float], files: SpoolFiles) -> None:
        self._spool, self._clock, self._files = spool, clock, files
        self._lock = threading.Lock()
        self._written: set[str] = set()
        """Fetches whose progress is in a file."""

    def of(self, key: str) -> Progress:
        """Return what takes the progress of a fetch that begins now."""
        due, most = self._clock() + EVERY_SECONDS, 0

        def take(fetched: int, needed: int) -> None:
            nonlocal due, most
            with self._lock:
                now = self._clock()
                if fetched <= most or now < due:
                    return
                due, most = now + EVERY_SECONDS, fetched
                self._written.add(key)
                with suppress(OSError):  # a full disk: nobody reads how far it is
                    part = self._spool / "parts" / f"{self._files.new_name()}.part"
                    self._files.write(part, [json.dumps([fetched, needed]).encode()])
                    self._files.rename(part, fetching(self._spool, key))

        return take

    def ended(self, key: str) -> None:
        """Remove what was written of a fetch."""
        with self._lock:
            if key in self._written:
                self._written.discard(key)
                self._files.remove(fetching(self._spool, key))


def fetching(spool: Path, key: str) -> Path:
    """Return where the progress of a fetch is."""
    return spool / "answers" / f"{key}.fetching"


def read_progress(spool: Path, key: str, files: SpoolFiles) -> tuple[int, int] | None:
    """Return how many fragments have come, and how many are needed; None: nothing says so."""
    try:
        fetched, needed = json.loads(files.read(fetching(spool, key)))
        return int(fetched), int(needed)
    except (OSError, ValueError, TypeError):
        return None
