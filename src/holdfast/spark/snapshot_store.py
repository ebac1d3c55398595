"""Where a run's snapshots go from a node: to the ring of peers through the node's agent, and to the run's storage.

Runs in Python workers. Every snapshot is coded and sent by the agent in the background. Durable ones are also written
to the run's storage, by a thread of the worker: threads go on between tasks, and what dies with its worker is begun
again by the next. Where a node has no agent, the storage takes everything. Durable snapshots are read from the
storage: it is where they are whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa

from holdfast.recovery.checkpoints import is_durable_name
from holdfast.runtime.state.durable_snapshots import DurableSnapshotStore
from holdfast.runtime.state.snapshot_store import Answered, SaveAnswer
from holdfast.storage.storage import Storage
from holdfast.store.agent.spool import Spool

_MOST_READ = 256
"""Snapshots that were read and are held: a partition starts when all of its chain are there."""


class NodeSnapshotStore:
    """See SnapshotStore."""

    def __init__(self, durable: Storage, spool: Spool | None) -> None:
        self._durable, self._spool = DurableSnapshotStore(durable), spool
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="holdfast-durable")
        self._writing: dict[str, Future[None]] = {}
        self._reading: dict[str, Future[pa.Buffer | None]] = {}

    def save(self, name: str, data: bytes | pa.Buffer, *, epoch: int, durable: bool) -> None:
        """See SnapshotStore."""
        if self._spool is not None:
            self._spool.save(name, data, epoch=epoch, durable=False)
        if self._is_kept_durably(name) and not self._is_writing(name):
            self._writing[name] = self._threads.submit(self._durable.save, name, data, epoch=epoch, durable=True)

    def saved(self, name: str) -> SaveAnswer | None:
        """See SnapshotStore."""
        if self._is_kept_durably(name):
            problem = self._written(name)
            if problem is None or problem.problem is not None:
                return problem
        return Answered() if self._spool is None else self._spool.saved(name)

    def fetch(self, name: str) -> None:
        """See SnapshotStore."""
        if self._spool is not None and not self._is_kept_durably(name):
            self._spool.fetch(name)
        elif name not in self._reading:
            while len(self._reading) >= _MOST_READ:
                del self._reading[next(iter(self._reading))]
            self._reading[name] = self._threads.submit(self._durable.fetched, name)

    def fetched(self, name: str) -> pa.Buffer | None:
        """See SnapshotStore."""
        if self._spool is not None and not self._is_kept_durably(name):
            return self._spool.fetched(name)
        reading = self._reading.get(name)
        if reading is None or not reading.done():
            return None
        if reading.exception() is not None:
            del self._reading[name]  # it is read again
            return None
        return reading.result()

    def lost(self, name: str) -> str | None:
        """See SnapshotStore."""
        if self._spool is not None and not self._is_kept_durably(name):
            return self._spool.lost(name)
        reading = self._reading.get(name)
        if reading is None or not reading.done() or reading.exception() is not None or reading.result() is not None:
            return None
        del self._reading[name]
        return f"{name} is not in the run's storage"

    def forget(self, names: Sequence[str]) -> None:
        """See SnapshotStore."""
        self._durable.forget([name for name in names if self._is_kept_durably(name)])
        if self._spool is not None:
            self._spool.forget(names)

    def _is_kept_durably(self, name: str) -> bool:
        return self._spool is None or is_durable_name(name)

    def _is_writing(self, name: str) -> bool:
        return name in self._writing and not self._writing[name].done()

    def _written(self, name: str) -> SaveAnswer | None:
        """Say what came of writing to the storage; None: not yet."""
        writing = self._writing.get(name)
        if writing is not None:
            if not writing.done():
                return None
            del self._writing[name]
            error = writing.exception()
            if error is not None:
                return Answered(f"{type(error).__name__}: {error}")
        return self._durable.saved(name)
