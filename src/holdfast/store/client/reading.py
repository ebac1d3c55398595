"""A file to be saved, mapped into memory and read while it is encoded. Runs wherever a client does."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.errors import BadInput


@contextmanager
def mapped_file(path: Path) -> Iterator[memoryview]:
    """Give the file's contents without reading them; an empty file is empty contents."""
    mapped = _map(path)
    if mapped is None:
        yield memoryview(b"")
        return
    try:
        yield memoryview(mapped)
    finally:
        # A thread that still sends, or an error's traceback, may hold slices: then the map goes with the last of them.
        with contextlib.suppress(BufferError):
            mapped.close()


def _map(path: Path) -> mmap.mmap | None:
    try:
        with path.open("rb") as file:
            if path.stat().st_size == 0:
                return None
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BadInput(
            f"the state's file cannot be read: {reason}", where=str(path), remedy="name a regular, readable file"
        ) from None
    mapped.madvise(mmap.MADV_SEQUENTIAL)
    return mapped
