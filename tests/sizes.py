"""How many examples tests with fixed seeds take: a share of them in every run, all of them by `make test-long`.

The examples are the same in every run, so that repeating all of them finds little: they are for changes of what they
test.
"""

from __future__ import annotations

import os

LONG = os.environ.get("HOLDFAST_TESTS") == "long"
SHARE = 4


def share(count: int) -> int:
    """Return how many of so many examples this run takes."""
    return count if LONG else -(-count // SHARE)
