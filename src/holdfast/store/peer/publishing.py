"""A file that appears only when it is whole: written beside its place, synced, then renamed. Runs anywhere."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from holdfast.errors import BadInput


@contextmanager
def published(path: Path) -> Iterator[BinaryIO]:
    """Give a file to write into; it becomes `path` if the block ends well and leaves no trace if not."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        file = part.open("xb")
    except OSError as error:
        raise BadInput(
            f"cannot write there: {error.strerror}", where=str(path), remedy="name a file in a folder you may write to"
        ) from None
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
