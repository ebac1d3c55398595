"""The file operations of a node's journal, one method each, so that a test can crash, tear and fail each of them.

Runs on a node. Nothing is synced: a process that dies loses nothing that it has written, and a machine that dies is a
lost node. All errors are `OSError`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

Piece = bytes | memoryview
_MOST_PIECES = 512
"""Pieces that one call writes; the system takes 1024 at most."""


class AppendFile:
    """A file that this process made, and that only it appends to."""

    def __init__(self, path: Path) -> None:
        """Create it; a name that is taken is refused."""
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def append(self, pieces: Sequence[Piece]) -> None:
        """Write pieces behind each other at the end; after an error some of them may be there."""
        rest = [memoryview(piece).cast("B") for piece in pieces if len(piece)]
        while rest:
            written = os.writev(self._handle, rest[:_MOST_PIECES])
            while rest and written >= len(rest[0]):
                written -= len(rest.pop(0))
            if rest and written:
                rest[0] = rest[0][written:]

    def close(self) -> None:
        """Append nothing more."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)

    def __del__(self) -> None:
        if getattr(self, "_handle", -1) >= 0:
            os.close(self._handle)


class StateFiles:
    """The real file system."""

    def make_folder(self, path: Path) -> None:
        """Create a folder, and its parents; fine when it is there."""
        path.mkdir(parents=True, exist_ok=True)

    def names(self, folder: Path) -> list[str]:
        """Return the names in a folder, in order."""
        return sorted(os.listdir(folder))

    def exists(self, path: Path) -> bool:
        """Return whether a file is there."""
        try:
            os.stat(path)
        except FileNotFoundError:
            return False
        return True

    def create(self, path: Path) -> None:
        """Create an empty file; fails where the name is taken."""
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))

    def begin(self, path: Path) -> AppendFile:
        """Create a file to append to; fails where the name is taken."""
        return AppendFile(path)

    def read(self, path: Path) -> bytes:
        """Return the contents of a file."""
        return path.read_bytes()

    def size(self, path: Path) -> int:
        """Return how long a file is."""
        return path.stat().st_size

    def buffer(self, path: Path) -> pa.Buffer:
        """Map a file for reading; it stays readable after its name is removed."""
        with pa.memory_map(str(path)) as file:
            return file.read_buffer()

    def remove(self, path: Path) -> None:
        """Remove a name; fine when it is not there."""
        path.unlink(missing_ok=True)


FILES = StateFiles()
"""What a store uses that is given no other."""
