"""The file operations of a spool, one method each, so that the simulator can crash, tear and fail each of them.

Runs in tasks and in agents. Nothing here is synced: a spool need not survive a power cut, and its readers compare
checksums. All errors are `OSError`.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


class SpoolFiles:
    """The real file system."""

    def now(self) -> float:
        """Return the time that files are stamped with."""
        return time.time()

    def new_name(self) -> str:
        """Return a name that nobody else takes."""
        return f"{os.getpid()}-{secrets.token_hex(8)}"

    def make_folder(self, path: Path) -> None:
        """Create a folder, and its parents; fine when it is there."""
        path.mkdir(parents=True, exist_ok=True, mode=0o700)

    def is_folder(self, path: Path) -> bool:
        """Return whether a folder is there."""
        return path.is_dir()

    def exists(self, path: Path) -> bool:
        """Return whether a file is there."""
        return path.exists()

    def names(self, folder: Path) -> list[str]:
        """Return the names in a folder, in order."""
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries)

    def write(self, path: Path, pieces: Sequence[bytes | memoryview]) -> None:
        """Write a new file, pieces behind each other; after an error (a full disk) no file is left behind."""
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            try:
                for piece in pieces:
                    rest = memoryview(piece)
                    while rest.nbytes:
                        rest = rest[os.write(handle, rest[: 1 << 30]) :]
            finally:
                os.close(handle)
        except BaseException:
            with contextlib.suppress(OSError):
                path.unlink()
            raise

    def read(self, path: Path, most: int | None = None) -> bytes:
        """Return the contents of a file, or how it begins."""
        with path.open("rb") as file:
            return file.read() if most is None else file.read(most)

    def size(self, path: Path) -> int:
        """Return how long a file is."""
        return path.stat().st_size

    def mapped(self, path: Path) -> memoryview:
        """Map a file for reading; it stays readable after its name is removed, and is unmapped with its last view."""
        with path.open("rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def buffer(self, path: Path) -> pa.Buffer:
        """As `mapped`, as Arrow takes it."""
        import pyarrow as pa

        with pa.memory_map(str(path)) as file:
            return file.read_buffer()

    def rename(self, path: Path, target: Path) -> None:
        """Give a file another name; what had that name is gone."""
        path.rename(target)

    def link(self, path: Path, target: Path) -> None:
        """Give a file one more name; fails where that is taken."""
        os.link(path, target)

    def remove(self, path: Path) -> None:
        """Remove a name; fine when it is not there."""
        path.unlink(missing_ok=True)

    def changed_at(self, path: Path) -> float:
        """Return when a file or a folder was changed last."""
        return path.stat().st_mtime

    def touch(self, path: Path) -> None:
        """Let a file have been changed now; fails where it is not there."""
        os.utime(path)


FILES = SpoolFiles()
"""What everything uses that is told of no other."""
