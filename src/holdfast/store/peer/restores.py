"""Restores into local files, by the peer itself: beside the live stream, in parallel, a few at a time. Runs in peers.

The runtime asks the peer of the node that is to take a partition over, goes on with the stream, and adopts the file
when it is there. Files appear whole or not at all. A file's name is a plain name: it lands in the restore folder.
"""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from holdfast.erasure.fragment import StateId
from holdfast.errors import BadInput, HoldfastError
from holdfast.ids import BatchId
from holdfast.store.client.states import StateStore
from holdfast.store.wire.failures import BadRequest, Busy, StateMissing, code_of

MOST_TICKETS = 1000


@dataclass(slots=True)
class Restore:
    """One restore and how it stands."""

    state: str
    """waiting, running, done or failed."""
    path: str
    version: int | None = None
    bytes: int = 0
    part_bytes: tuple[int, ...] = ()
    used: int = 0
    seconds: float = 0.0
    code: str | None = None
    line: str | None = None


class RestoreService:
    """Runs restores in the background and reports their status."""

    def __init__(self, open_store: Callable[[], StateStore], folder: Path, at_once: int) -> None:
        """Restore into `folder`, `at_once` at a time; the store is opened by the first that needs it."""
        self._open_store, self._folder = open_store, folder
        self._store: StateStore | None = None
        folder.mkdir(parents=True, exist_ok=True)
        for part in folder.glob(".*.part"):
            part.unlink(missing_ok=True)
        self._threads = ThreadPoolExecutor(at_once, thread_name_prefix="holdfast-restore")
        self._tickets: OrderedDict[str, Restore] = OrderedDict()
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        self._numbers = itertools.count()

    def order(self, state: StateId, version: BatchId | None, file: str) -> str:
        """Start a restore; return its ticket."""
        try:
            StateId("file", file)
        except BadInput as bad:
            raise BadRequest(f"{file[:60]!r} is not a plain file name", field="file", remedy=bad.remedy) from None
        path = self._folder / file
        with self._lock:
            while len(self._tickets) >= MOST_TICKETS:
                oldest = next(iter(self._tickets))
                if self._tickets[oldest].state in ("waiting", "running"):
                    raise Busy("too many restores are queued", remedy="try again later")
                del self._tickets[oldest]
            ticket = f"{next(self._numbers)}-{secrets.token_hex(6)}"
            restore = self._tickets[ticket] = Restore("waiting", str(path))
        self._threads.submit(self._run, restore, state, version, path)
        return ticket

    def look(self, ticket: str) -> dict[str, Any]:
        """Return the status of a restore."""
        with self._lock:
            restore = self._tickets.get(ticket)
            if restore is None:
                raise StateMissing(
                    "this peer has no restore of that ticket",
                    remedy="request the restore again; tickets do not survive a restart",
                )
            return asdict(restore)

    def counts(self) -> dict[str, int]:
        """Count restores by how they stand."""
        with self._lock:
            counts = dict.fromkeys(("waiting", "running", "done", "failed"), 0)
            for restore in self._tickets.values():
                counts[restore.state] += 1
            return counts

    def close(self) -> None:
        """Take no more orders; running restores leave nothing half-written."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _opened(self) -> StateStore:
        with self._opening:
            if self._store is None:
                self._store = self._open_store()
            return self._store

    def _run(self, restore: Restore, state: StateId, version: BatchId | None, path: Path) -> None:
        began = time.monotonic()
        with self._lock:
            restore.state = "running"
        try:
            loaded = self._opened().load_into(state, path, version)
        except Exception as error:
            with self._lock:
                restore.state = "failed"
                restore.code = code_of(error)
                restore.line = str(error) if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"
                restore.seconds = time.monotonic() - began
            return
        with self._lock:
            restore.state, restore.version, restore.bytes = "done", loaded.version, loaded.bytes
            restore.part_bytes, restore.used = loaded.part_bytes, loaded.used
            restore.seconds = time.monotonic() - began
