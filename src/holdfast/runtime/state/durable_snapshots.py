"""Snapshots in storage that every node reaches: safe as that storage is, with no peers. Runs on a node.

Each snapshot is one object, under a name that is used once, and is read back before it counts as saved.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa

from holdfast.errors import CheckFailed
from holdfast.recovery.checkpoints import claim_of_name
from holdfast.runtime.fetches import Fetched
from holdfast.runtime.state.snapshot_store import Answered, SaveAnswer
from holdfast.storage.storage import Storage


class DurableSnapshotStore:
    """See SnapshotStore; a save is done when `save` returns."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._saved: set[str] = set()
        self._read_bytes: dict[str, int] = {}
        """Sizes of what was read."""

    def save(self, name: str, data: bytes | pa.Buffer, *, epoch: int, durable: bool) -> None:
        """See SnapshotStore."""
        if name in self._saved:
            return
        buffer = data if isinstance(data, pa.Buffer) else pa.py_buffer(data)
        self._storage.create(name, buffer)
        held = self._storage.read(name)
        if held is None or not held.equals(buffer):
            raise CheckFailed(
                "does not read back as it was written",
                where=f"{self._storage.url}/{name}",
                remedy="check the storage: the snapshot does not count as saved",
            )
        self._saved.add(name)

    def saved(self, name: str) -> SaveAnswer | None:
        """See SnapshotStore: what this process has not read back is saved again."""
        return Answered() if name in self._saved else None

    def fetch(self, name: str) -> None:
        """See SnapshotStore: it is in reach."""

    def fetched(self, name: str) -> pa.Buffer | None:
        """See SnapshotStore."""
        held = self._storage.read(name)
        if held is not None:
            self._read_bytes[name] = held.size
        return held

    def lost(self, name: str) -> str | None:
        """See SnapshotStore."""
        return None if self._storage.read(name) is not None else f"{name} is not in {self._storage.url}"

    def origin(self, name: str) -> Fetched:
        """See SnapshotStore."""
        return Fetched(folder_bytes=self._read_bytes.get(name, 0))

    def progress(self, name: str) -> tuple[int, int] | None:
        """See SnapshotStore."""
        return None

    def sweep(self, run: str, needed: Collection[str], claim: int) -> None:
        """Remove a run's snapshots of earlier claims that are not needed: what their drivers had not forgotten yet.

        Whoever calls has the claim, and its progress holds what is needed: no later progress can hold another of them.
        """
        there = self._storage.list(f"{run}/")
        self._storage.delete([name for name in there if name not in needed and claim_of_name(name) < claim])

    def put_in_place(self, names: Sequence[str]) -> None:
        """See SnapshotStore."""

    def forget(self, names: Sequence[str]) -> None:
        """See SnapshotStore."""
        self._storage.delete(names)
        self._saved.difference_update(names)
        for name in names:
            self._read_bytes.pop(name, None)
