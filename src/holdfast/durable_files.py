"""Files that appear whole or not at all and are on the disk, with their names, when a call returns. Runs anywhere.

The order of steps is the same everywhere: the contents are written to a hidden file beside the target
(`.NAME.RANDOM.part`) and synced, one system call gives them their name, and the folder is synced last. A crash at any
step leaves the old file, the new file or none, never a mixture; at most a hidden file is left over.
All errors are `OSError`; the hidden file is removed before one is raised.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def write_durably(path: Path, parts: Sequence[bytes | memoryview]) -> None:
    """Write a new file and sync its contents; the folder is not synced. Raises `FileExistsError` where one exists."""
    with path.open("xb") as file:
        for part in parts:
            file.write(part)
        file.flush()
        os.fsync(file.fileno())


def replace_durably(path: Path, data: bytes | memoryview) -> None:
    """Create a file, or replace the one of that name, with these contents."""
    part = _part(path)
    try:
        write_durably(part, [data])
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


@contextmanager
def replacing_durably(path: Path) -> Iterator[BinaryIO]:
    """Yield a file to write into; it becomes `path` when the block ends, and is removed when the block raises."""
    part = _part(path)
    try:
        with part.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def replace_atomically(path: Path, data: bytes) -> None:
    """Replace a file that need not survive a power cut: as `replace_durably`, without any sync."""
    part = _part(path)
    try:
        part.write_bytes(data)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def replace_privately(path: Path, data: bytes) -> None:
    """Replace a file that only this user may read, from its first moment on; as `replace_atomically`."""
    part = _part(path)
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Sync a folder's entries: before that, a file created or renamed in it may be gone after a power cut."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _part(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
