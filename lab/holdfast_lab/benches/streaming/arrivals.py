"""Wakes a run as rows come, as a source does: benches log batches themselves, and the loop would wait for reports."""

from __future__ import annotations

from contextlib import AbstractContextManager

from holdfast.spark.run import SparkRun
from holdfast_lab.repeating import repeating

ARRIVAL_SECONDS = 0.005


def arrivals(run: SparkRun, seconds: float = ARRIVAL_SECONDS) -> AbstractContextManager[None]:
    """Wake the run every `seconds` seconds while the block runs."""
    return repeating(seconds, run.wake)
