"""What the generators of the examples share: popularity by rank, and moments in a batch's second. Runs anywhere.

Every batch is drawn from (seed, stream, batch), so it can be made again alone: a replayable source.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

Random = np.random.Generator
SECOND = 1_000_000


def of_batch(seed: int, stream: int, batch: int) -> Random:
    """Return the random numbers of one batch of one stream."""
    return np.random.default_rng([seed, stream, batch])


def by_popularity(random: Random, many: int, values: int, exponent: float) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Draw ranks from 0 with Zipf's law: rank r with a chance in proportion to (r + 1) ** -exponent."""
    share = np.cumsum(np.arange(1, values + 1) ** -exponent)
    return np.searchsorted(share / share[-1], random.random(many), side="right").clip(max=values - 1)


def moments(random: Random, batch: int, many: int, *, disorder: float = 0.5) -> pa.Array:
    """Draw event times in the batch's second, each late by up to `disorder` seconds."""
    at = batch * SECOND + np.sort(random.integers(0, SECOND, many))
    late = random.integers(0, int(disorder * SECOND) + 1, many)
    return pa.array(at - late, pa.int64()).cast(pa.timestamp("us"))
