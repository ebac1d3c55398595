"""Where images of partitions are safe, as a node sees it: every call returns at once. Runs on a node.

A task of a cycle must not wait for the network: it begins a save or a fetch, and a later cycle finds it done. On a
cluster the node's agent does the work, with the fragment store behind it; here is one in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa


class SaveAnswer(Protocol):
    """What became of a save."""

    @property
    def problem(self) -> str | None:
        """Why it is not safe; None: it is."""
        ...


class Vault(Protocol):
    """Images by name, immutable, saved once. All calls may be repeated."""

    def save(self, name: str, data: bytes | pa.Buffer, *, epoch: int, durable: bool) -> None:
        """Begin to save an image."""
        ...

    def saved(self, name: str) -> SaveAnswer | None:
        """Say whether it is safe; None: not yet."""
        ...

    def fetch(self, name: str) -> None:
        """Begin to bring an image to this node."""
        ...

    def fetched(self, name: str) -> pa.Buffer | None:
        """Return an image that has come; None: not yet, or never."""
        ...

    def lost(self, name: str) -> str | None:
        """Say why an image cannot be brought back; None: nothing is known against it."""
        ...

    def forget(self, names: Sequence[str]) -> None:
        """Drop images that nobody needs any more."""
        ...


@dataclass(frozen=True, slots=True)
class Answered:
    """See SaveAnswer."""

    problem: str | None = None


class MemoryVault:
    """Images in the memory of one process, for tests and a first try; everything is done at once."""

    def __init__(self) -> None:
        self.images: dict[str, pa.Buffer] = {}

    def save(self, name: str, data: bytes | pa.Buffer, *, epoch: int, durable: bool) -> None:
        """See Vault."""
        self.images.setdefault(name, data if isinstance(data, pa.Buffer) else pa.py_buffer(data))

    def saved(self, name: str) -> SaveAnswer | None:
        """See Vault."""
        return Answered() if name in self.images else None

    def fetch(self, name: str) -> None:
        """See Vault."""

    def fetched(self, name: str) -> pa.Buffer | None:
        """See Vault."""
        return self.images.get(name)

    def lost(self, name: str) -> str | None:
        """See Vault."""
        return None if name in self.images else "it is not here"

    def forget(self, names: Sequence[str]) -> None:
        """See Vault."""
        for name in names:
            self.images.pop(name, None)
