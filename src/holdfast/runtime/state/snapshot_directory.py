"""Snapshots in a directory that every node reaches: safe as that storage is, with no peers. Runs on a node.

Each snapshot is one file, written beside its place, forced to disk and put there at once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from holdfast.durable_files import replace_durably
from holdfast.runtime.state.snapshot_store import Answered, SaveAnswer


class DirectorySnapshotStore:
    """See SnapshotStore; a save is done when `save` returns."""

    def __init__(self, directory: Path) -> None:
        self._directory = Path(directory)

    def save(self, name: str, data: bytes | pa.Buffer, *, epoch: int, durable: bool) -> None:
        """See SnapshotStore."""
        path = self._directory / name
        if path.exists():
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_durably(path, memoryview(data))

    def saved(self, name: str) -> SaveAnswer | None:
        """See SnapshotStore."""
        return Answered() if (self._directory / name).exists() else None

    def fetch(self, name: str) -> None:
        """See SnapshotStore: it is in reach."""

    def fetched(self, name: str) -> pa.Buffer | None:
        """See SnapshotStore."""
        try:
            with pa.memory_map(str(self._directory / name)) as file:
                return file.read_buffer()
        except FileNotFoundError:
            return None

    def lost(self, name: str) -> str | None:
        """See SnapshotStore."""
        return None if (self._directory / name).exists() else f"{name} is not in {self._directory}"

    def sweep(self, run: str, needed: Collection[str]) -> None:
        """Remove a run's snapshots that are not needed: what a driver that died had not forgotten yet."""
        for path in (self._directory / run).glob("*/*"):
            if f"{run}/{path.parent.name}/{path.name}" not in needed:
                path.unlink(missing_ok=True)

    def forget(self, names: Sequence[str]) -> None:
        """See SnapshotStore."""
        for name in names:
            path = self._directory / name
            path.unlink(missing_ok=True)
            with suppress(OSError):  # others are still there
                path.parent.rmdir()
