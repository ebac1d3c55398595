"""Where a run's snapshots go from a node: to the ring of peers through the node's agent, and to the run's directory.

Runs in Python workers. Every snapshot is coded and sent by the agent in the background. Durable ones are also written
to the run's directory, by a thread of the worker: threads go on between tasks, and what dies with its worker is begun
again by the next. Where a node has no agent, the directory takes everything. Durable snapshots are read from the
directory: it is where they are whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa

from holdfast.recovery.checkpoints import is_durable_name
from holdfast.runtime.state.snapshot_directory import DirectorySnapshotStore
from holdfast.runtime.state.snapshot_store import Answered, SaveAnswer
from holdfast.store.agent.spool import Spool


class NodeSnapshotStore:
    """See SnapshotStore."""

    def __init__(self, directory: Path, spool: Spool | None) -> None:
        self._directory, self._spool = DirectorySnapshotStore(directory), spool
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="holdfast-durable")
        self._writing: dict[str, Future[None]] = {}

    def save(self, name: str, data: bytes | pa.Buffer, *, epoch: int, durable: bool) -> None:
        """See SnapshotStore."""
        if self._spool is not None:
            self._spool.save(name, data, epoch=epoch, durable=False)
        if self._in_directory(name) and not self._is_writing(name):
            self._writing[name] = self._threads.submit(self._directory.save, name, data, epoch=epoch, durable=True)

    def saved(self, name: str) -> SaveAnswer | None:
        """See SnapshotStore."""
        if self._in_directory(name):
            problem = self._written(name)
            if problem is None or problem.problem is not None:
                return problem
        return Answered() if self._spool is None else self._spool.saved(name)

    def fetch(self, name: str) -> None:
        """See SnapshotStore."""
        if self._spool is not None and not self._in_directory(name):
            self._spool.fetch(name)

    def fetched(self, name: str) -> pa.Buffer | None:
        """See SnapshotStore."""
        if self._spool is None or self._in_directory(name):
            return self._directory.fetched(name)
        return self._spool.fetched(name)

    def lost(self, name: str) -> str | None:
        """See SnapshotStore."""
        if self._spool is None or self._in_directory(name):
            return self._directory.lost(name)
        return self._spool.lost(name)

    def forget(self, names: Sequence[str]) -> None:
        """See SnapshotStore."""
        self._directory.forget([name for name in names if self._in_directory(name)])
        if self._spool is not None:
            self._spool.forget(names)

    def _in_directory(self, name: str) -> bool:
        return self._spool is None or is_durable_name(name)

    def _is_writing(self, name: str) -> bool:
        return name in self._writing and not self._writing[name].done()

    def _written(self, name: str) -> SaveAnswer | None:
        """Say what came of writing to the directory; None: not yet."""
        writing = self._writing.get(name)
        if writing is not None:
            if not writing.done():
                return None
            del self._writing[name]
            error = writing.exception()
            if error is not None:
                return Answered(f"{type(error).__name__}: {error}")
        return self._directory.saved(name)
