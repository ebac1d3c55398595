"""Keep a solver's own messages off standard output, which belongs to the command's one document."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def solver_messages_on_stderr() -> Iterator[None]:
    """Send what native code prints on standard output to standard error: HiGHS has lines that no setting turns off."""
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
