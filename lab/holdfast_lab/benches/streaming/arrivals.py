"""Wakes a run as rows come, as a source does: benches log batches themselves, and the loop would wait for reports."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.spark.run import SparkRun

ARRIVAL_SECONDS = 0.005


@contextmanager
def arrivals(run: SparkRun, seconds: float = ARRIVAL_SECONDS) -> Iterator[None]:
    """Wake the run every so many seconds while the block runs."""
    over = threading.Event()

    def wake() -> None:
        while not over.wait(seconds):
            run.wake()

    thread = threading.Thread(target=wake, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
