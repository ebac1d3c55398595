"""Saves large snapshots beside the stream: a thread writes them down and hands them to the snapshot store. On a node.

A snapshot holds references to mapped, immutable files of state: it is taken at once, however large it is. Writing it
down takes seconds for hundreds of megabytes, and batches must not wait for that. One thread does it, one snapshot after
the other, through a file of its own, so that memory has a bound too. Nothing counts before the store says that it is
saved: a process that dies on the way leaves a file that the next one removes, and the save is begun again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import pyarrow as pa

from holdfast.runtime.state.snapshot_files import clean_folder, remove_file, write_snapshot_file
from holdfast.runtime.state.snapshot_store import SnapshotStore
from holdfast.runtime.state.snapshots import Snapshot

MOST_COSTS = 256
"""Snapshots whose size and CPU are remembered until they are reported, at most."""
BESIDE_BYTES = 1 << 20
"""Snapshots with more rows than this are written beside the stream; a smaller one takes milliseconds."""


class Threads(Protocol):
    """What does something in the background."""

    def submit(self, work: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        """Begin, and return where the result will be."""
        ...


class SavesBeside:
    """The large snapshots of one process that are on their way to the snapshot store."""

    def __init__(
        self,
        store: SnapshotStore,
        folder: Path,
        *,
        threads: Threads | None = None,
        beside_bytes: int = BESIDE_BYTES,
    ) -> None:
        """Write them in this folder of all processes of one place; `threads`: one of its own unless given."""
        self._store, self._folder, self._bytes = store, folder, beside_bytes
        self._threads: Threads = threads or ThreadPoolExecutor(1, thread_name_prefix="holdfast-snapshots")
        self._begun: dict[str, Future[None]] = {}
        self._costs: dict[str, tuple[int, float]] = {}
        # A process that was replaced may still be writing: what is at a path is of one process alone.
        self._files = (f"{uuid4().hex}-{number}.snapshot" for number in count())
        self._is_clean = False

    def takes(self, snapshot: Snapshot) -> bool:
        """Whether a snapshot is so large that it is written beside the stream."""
        return snapshot.nbytes > self._bytes

    def begin(self, name: str, snapshot: Snapshot, *, epoch: int, durable: bool) -> None:
        """Begin to save a snapshot; one that is on its way under this name stays."""
        if name not in self._begun:
            self._begun[name] = self._threads.submit(self._save, name, snapshot, epoch=epoch, durable=durable)

    def pending(self, name: str) -> bool:
        """Whether a snapshot is being written: the store knows nothing of it yet."""
        found = self._begun.get(name)
        return found is not None and not found.done()

    def problem(self, name: str) -> str | None:
        """Return, once, why a snapshot could not be written; None: it was, or is not known here."""
        found = self._begun.get(name)
        if found is None or not found.done():
            return None
        del self._begun[name]
        error = found.exception()
        return None if error is None else f"{type(error).__name__}: {error}"

    def cost_of(self, name: str) -> tuple[int, float] | None:
        """Return, once, the bytes of a snapshot that was written and the CPU that it took; None: not known here."""
        return self._costs.pop(name, None)

    def _save(self, name: str, snapshot: Snapshot, *, epoch: int, durable: bool) -> None:
        if not self._is_clean:
            clean_folder(self._folder)
            self._is_clean = True
        path, began = self._folder / next(self._files), time.thread_time()
        try:
            write_snapshot_file(snapshot, path)
            with pa.memory_map(str(path)) as file:
                data = file.read_buffer()
            self._store.save(name, data, epoch=epoch, durable=durable)
            if len(self._costs) >= MOST_COSTS:
                self._costs.clear()  # of saves that were given up; the others count as not known
            self._costs[name] = data.size, time.thread_time() - began
        finally:
            remove_file(path)  # what is mapped stays readable
