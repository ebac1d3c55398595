"""Where snapshots of partitions are safe, as a node sees it: every call returns at once. Runs on a node.

A task of a cycle must not wait for the network: it begins a save or a fetch, and a later cycle finds it done. On a
cluster the node's agent does the work, with the fragment store behind it; here is one in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from holdfast.runtime.fetches import Fetched


class SaveAnswer(Protocol):
    """What became of a save."""

    @property
    def problem(self) -> str | None:
        """Why it is not safe; None: it is."""
        ...

    @property
    def fenced(self) -> bool:
        """Whether the save was refused because somebody saves in a newer epoch."""
        ...


class SnapshotStore(Protocol):
    """Snapshots by name, immutable, saved once. All calls may be repeated."""

    def save(self, name: str, data: bytes | pa.Buffer, *, epoch: int, durable: bool) -> None:
        """Begin to save a snapshot."""
        ...

    def saved(self, name: str) -> SaveAnswer | None:
        """Say whether it is safe; None: not yet."""
        ...

    def fetch(self, name: str) -> None:
        """Begin to bring a snapshot to this node."""
        ...

    def fetched(self, name: str) -> pa.Buffer | None:
        """Return a snapshot that has come; None: not yet, or never."""
        ...

    def lost(self, name: str) -> str | None:
        """Say why a snapshot cannot be brought back; None: nothing is known against it."""
        ...

    def origin(self, name: str) -> Fetched:
        """Say where a snapshot has come from."""
        ...

    def progress(self, name: str) -> tuple[int, int] | None:
        """Say how many of the fragments that a snapshot is rebuilt from have come, and how many it needs.

        For people alone; None: nothing is known, or it takes no time worth showing.
        """
        ...

    def put_in_place(self, names: Sequence[str]) -> None:
        """Say that snapshots that have come are used: what memory holds of them may go. They stay where they are."""
        ...

    def forget(self, names: Sequence[str]) -> None:
        """Drop snapshots that are not needed any more."""
        ...


@dataclass(frozen=True, slots=True)
class Answered:
    """See SaveAnswer."""

    problem: str | None = None
    fenced: bool = False


class MemorySnapshotStore:
    """Snapshots in the memory of one process, for tests and a first try; everything is done at once."""

    def __init__(self) -> None:
        self.snapshots: dict[str, pa.Buffer] = {}

    def save(self, name: str, data: bytes | pa.Buffer, *, epoch: int, durable: bool) -> None:
        """See SnapshotStore."""
        self.snapshots.setdefault(name, data if isinstance(data, pa.Buffer) else pa.py_buffer(data))

    def saved(self, name: str) -> SaveAnswer | None:
        """See SnapshotStore."""
        return Answered() if name in self.snapshots else None

    def fetch(self, name: str) -> None:
        """See SnapshotStore."""

    def fetched(self, name: str) -> pa.Buffer | None:
        """See SnapshotStore."""
        return self.snapshots.get(name)

    def lost(self, name: str) -> str | None:
        """See SnapshotStore."""
        return None if name in self.snapshots else "it is not here"

    def origin(self, name: str) -> Fetched:
        """See SnapshotStore."""
        return Fetched(node_bytes=self.snapshots[name].size)

    def progress(self, name: str) -> tuple[int, int] | None:
        """See SnapshotStore."""
        return None

    def put_in_place(self, names: Sequence[str]) -> None:
        """See SnapshotStore."""

    def forget(self, names: Sequence[str]) -> None:
        """See SnapshotStore."""
        for name in names:
            self.snapshots.pop(name, None)
