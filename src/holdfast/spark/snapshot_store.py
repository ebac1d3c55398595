"""Where a run's snapshots go from a node: to the ring of peers through the node's agent, and to the run's storage.

Runs in Python workers. Every snapshot is coded and sent by the agent in the background. Durable ones are also written
to the run's storage, by a thread of the worker: threads go on between tasks, and what dies with its worker is begun
again by the next. Where a node has no agent, the storage takes everything.

A restore asks the ring first, and the storage where the ring lacks a durable snapshot. Where the storage has no copy
either, the ring is asked once more, with the patience that the agent has for snapshots that are nowhere else: peers may
just be starting. Meanwhile a storage that was away may be back, so it has the last word. Only then it is lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Protocol

import pyarrow as pa

from holdfast.recovery.checkpoints import is_durable_name
from holdfast.runtime.fetches import Fetched
from holdfast.runtime.state.durable_snapshots import DurableSnapshotStore
from holdfast.runtime.state.snapshot_store import Answered, SaveAnswer
from holdfast.storage.storage import Storage
from holdfast.store.agent.spool import Spool

_MOST_READ = 256
"""Snapshots that were read and are held, at most: a partition starts when all of its chain are there."""
AGENT_SECONDS = 10.0
"""So long a restore waits for an agent that does not run before it reads the storage: agents start with their nodes."""


class Threads(Protocol):
    """What does something in the background."""

    def submit(self, work: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        """Begin, and return where the result will be."""
        ...


class _Place(Enum):
    """Where a durable snapshot is looked for now."""

    RING = auto()
    STORAGE = auto()
    RING_AGAIN = auto()
    STORAGE_AGAIN = auto()


@dataclass(slots=True)
class _Search:
    """The search for a durable snapshot."""

    place: _Place
    since: float
    """Since when it is looked for there."""
    ring: str = ""
    """Why the ring did not have it."""


class NodeSnapshotStore:
    """See SnapshotStore."""

    def __init__(
        self,
        durable: Storage,
        spool: Spool | None,
        threads: Threads | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Write to this storage, with `threads`, or two of its own, and to this spool, where the node has one."""
        self._durable, self._spool, self._clock = DurableSnapshotStore(durable), spool, clock
        self._threads: Threads = threads or ThreadPoolExecutor(2, thread_name_prefix="holdfast-durable")
        self._writing: dict[str, Future[None]] = {}
        self._reading: dict[str, Future[pa.Buffer | None]] = {}
        self._searches: dict[str, _Search] = {}
        self._origins: dict[str, Fetched] = {}

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

    # -- fetching ------------------------------------------------------------------------------------------------------

    def fetch(self, name: str) -> None:
        """See SnapshotStore."""
        if self._spool is None:
            self._read(name)
        elif not is_durable_name(name):
            self._spool.fetch(name)
        else:
            self._search(self._spool, name)

    def fetched(self, name: str) -> pa.Buffer | None:
        """See SnapshotStore."""
        if self._spool is not None:
            data = self._spool.fetched(name)
            if data is not None:
                self._found(name, _counted(self._spool, name))
                return data
            if not is_durable_name(name):
                return None
        reading = self._reading.get(name)
        if reading is None or not reading.done():
            return None
        if reading.exception() is not None:
            del self._reading[name]  # storage that fails is tried again, and the ring before it
            if name in self._searches:
                self._searches[name] = _Search(_Place.RING, self._clock())
            return None
        found = reading.result()
        if found is not None:
            self._found(name, self._durable.origin(name))
        return found

    def lost(self, name: str) -> str | None:
        """See SnapshotStore."""
        if self._spool is not None and not is_durable_name(name):
            return self._spool.lost(name)
        if self._spool is None:
            missing = self._is_not_stored(name)
            if missing:
                del self._reading[name]
            return f"{name} is not in the run's storage" if missing else None
        search = self._searches.get(name)
        if search is not None and search.place is _Place.RING_AGAIN:
            # A node that cannot even ask, because its disk is full or no agent runs, does not know what the ring has.
            reason = self._spool.not_found(name)
            if reason is not None:
                search.place, search.since, search.ring = _Place.STORAGE_AGAIN, self._clock(), reason
                self._reading.pop(name, None)
                self._read(name)
        if search is None or search.place is not _Place.STORAGE_AGAIN or not self._is_not_stored(name):
            return None
        del self._searches[name]  # who asks again begins anew
        self._reading.pop(name, None)
        return f"{search.ring}; it is not in the run's storage"

    def origin(self, name: str) -> Fetched:
        """See SnapshotStore."""
        return self._origins.get(name, Fetched())

    def progress(self, name: str) -> tuple[int, int] | None:
        """See SnapshotStore."""
        return None if self._spool is None else self._spool.progress(name)

    def _search(self, spool: Spool, name: str) -> None:
        """Look for a durable snapshot where it is to be looked for now; nothing here waits."""
        search = self._searches.setdefault(name, _Search(_Place.RING, self._clock()))
        if search.place is _Place.RING:
            spool.fetch(name, quick=True)
            reason = spool.lost(name)
            if reason is None and self._clock() - search.since >= AGENT_SECONDS:
                reason = spool.silence()
            if reason is None:
                return
            search.place, search.since, search.ring = _Place.STORAGE, self._clock(), reason
        if search.place is _Place.STORAGE:
            self._read(name)
            if not self._is_not_stored(name):
                return
            search.place, search.since = _Place.RING_AGAIN, self._clock()
            spool.fetch(name, again=True)
        elif search.place is _Place.RING_AGAIN:
            spool.fetch(name)
        else:
            self._read(name)

    def _read(self, name: str) -> None:
        if name in self._reading:
            return
        while len(self._reading) >= _MOST_READ:
            del self._reading[next(iter(self._reading))]
        self._reading[name] = self._threads.submit(self._durable.fetched, name)

    def _is_not_stored(self, name: str) -> bool:
        """Whether the storage was read and has no such snapshot."""
        reading = self._reading.get(name)
        return reading is not None and reading.done() and reading.exception() is None and reading.result() is None

    def _found(self, name: str, origin: Fetched) -> None:
        self._searches.pop(name, None)
        while len(self._origins) >= _MOST_READ:
            del self._origins[next(iter(self._origins))]
        self._origins[name] = origin

    # -- everything else -----------------------------------------------------------------------------------------------

    def put_in_place(self, names: Sequence[str]) -> None:
        """See SnapshotStore."""
        for name in names:
            self._reading.pop(name, None)

    def forget(self, names: Sequence[str]) -> None:
        """See SnapshotStore."""
        self._durable.forget([name for name in names if self._is_kept_durably(name)])
        if self._spool is not None:
            self._spool.forget(names)
        for name in names:
            self._searches.pop(name, None)
            self._origins.pop(name, None)
            self._reading.pop(name, None)

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


def _counted(spool: Spool, name: str) -> Fetched:
    """Return where a snapshot that the agent brought came from."""
    answer = spool.origin(name)
    if answer is None:
        return Fetched()
    if answer.source == "peers":
        return Fetched(peer_bytes=answer.bytes, seconds=answer.seconds, predicted_seconds=answer.predicted_seconds)
    if answer.source == "folder":
        return Fetched(folder_bytes=answer.bytes)
    return Fetched(node_bytes=answer.bytes)
