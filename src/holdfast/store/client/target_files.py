"""The file that a state is read into: it appears when the whole state has been verified and written. Runs anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from holdfast.durable_files import replacing_durably
from holdfast.errors import BadInput


@contextmanager
def target_file(path: Path) -> Iterator[BinaryIO]:
    """As `replacing_durably`, but a file that cannot be created is refused as bad input."""
    with ExitStack() as stack:
        try:
            file = stack.enter_context(replacing_durably(path))
        except OSError as error:
            raise BadInput(
                f"cannot create the file: {error.strerror}",
                where=str(path),
                remedy="name a file in a folder that exists and that you may write to",
            ) from None
        yield file
