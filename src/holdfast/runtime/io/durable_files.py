"""Files that are on the disk, with their names, when a call returns. Runs anywhere."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4


def write_durably(path: Path, parts: Sequence[bytes | memoryview]) -> None:
    """Write a new file; it is on the disk when this returns."""
    with path.open("xb") as file:
        for part in parts:
            file.write(part)
        file.flush()
        os.fsync(file.fileno())


def link_durably(directory: Path, name: str, data: bytes, attempt: str) -> bool:
    """Write a file to disk and give it its name, at once and only if there is none; say whether it is the first."""
    beside = directory / f".{name}.{attempt}"
    write_durably(beside, [data])
    try:
        os.link(beside, directory / name)
    except FileExistsError:
        return False
    finally:
        beside.unlink(missing_ok=True)
    sync_folder(directory)
    return True


def replace_durably(path: Path, data: bytes | memoryview) -> None:
    """Put a file in the place of another, at once; one that cannot be written leaves the other, and no trace."""
    beside = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        write_durably(beside, [data])
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on the disk: until then a machine that dies may come back with the old ones."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
