"""A file to be saved, mapped into memory: read as it is coded, however large it is. Runs wherever a client does."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.errors import BadInput


@contextmanager
def mapped_file(path: Path) -> Iterator[memoryview]:
    """Give the file's contents without reading them; an empty file is empty contents."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            if size == 0:
                yield memoryview(b"")
                return
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as view:
                mapped.madvise(mmap.MADV_SEQUENTIAL)
                yield view
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BadInput(f"cannot read it: {reason}", where=str(path), remedy="name a regular, readable file") from None
