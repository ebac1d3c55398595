"""The file operations of `FragmentFiles`, one method each, so that tests can make each of them fail. Runs in peers.

Durability rests on three rules: contents are synced before a rename publishes them, the folder is synced after it, and
nothing that was published is ever written again.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from holdfast.durable_files import sync_folder


class Disk:
    """The real file system. `open_new` fails where the file exists; all errors are `OSError`."""

    def __init__(self) -> None:
        self._unsynced: set[Path] = set()
        """Folders that threads are making: a power cut may still take them away, whoever uses them already."""

    def make_folder(self, path: Path) -> None:
        """Create a folder, and its parents, durably; fine when it is there."""
        if path.is_dir() and path not in self._unsynced:
            return
        self.make_folder(path.parent)
        self._unsynced.add(path)
        path.mkdir(exist_ok=True)
        self.sync_folder(path.parent)
        self._unsynced.discard(path)

    def open_new(self, path: Path) -> int:
        """Open a file that does not exist yet for writing."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def append(self, handle: int, pieces: Sequence[bytes | bytearray | memoryview]) -> None:
        """Write pieces behind each other."""
        for piece in pieces:
            view = memoryview(piece)
            while view.nbytes:
                view = view[os.write(handle, view) :]

    def sync_file(self, handle: int) -> None:
        """Return when the file's contents will survive a power cut."""
        os.fsync(handle)

    def close(self, handle: int) -> None:
        """Close a file."""
        os.close(handle)

    def rename(self, source: Path, target: Path) -> None:
        """Publish: the target is the old file or the new, never a mixture."""
        os.rename(source, target)

    def replace(self, path: Path, contents: bytes) -> None:
        """As `durable_files.replace_durably`, through the steps of this class, so that tests can crash between them."""
        part = path.with_name(path.name + ".part")
        self.remove(part)
        handle = self.open_new(part)
        try:
            self.append(handle, [contents])
            self.sync_file(handle)
        finally:
            self.close(handle)
        self.rename(part, path)
        self.sync_folder(path.parent)

    def remove(self, path: Path) -> None:
        """Remove a file; fine when it is not there."""
        path.unlink(missing_ok=True)

    def remove_empty(self, path: Path) -> None:
        """Remove a folder if nothing is in it."""
        with contextlib.suppress(OSError):  # something is in it again, or it is gone: both are fine
            path.rmdir()

    def sync_folder(self, path: Path) -> None:
        """Return when the folder's entries will survive a power cut."""
        sync_folder(path)

    def read(self, path: Path, start: int, length: int) -> bytes:
        """Read a stretch; shorter than asked for where the file ends."""
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            pieces = []
            while length > 0:
                piece = os.pread(handle, length, start)
                if not piece:
                    break
                pieces.append(piece)
                start += len(piece)
                length -= len(piece)
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        finally:
            os.close(handle)

    def free(self, path: Path) -> int:
        """Bytes free for this user."""
        return shutil.disk_usage(path).free
