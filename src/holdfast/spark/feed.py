"""Read an application's sources and process what comes, to their end or until told to stop. Runs on the driver."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from holdfast.spark.ingest import Ingestion
from holdfast.spark.run import SparkRun


def read_sources(
    ingestion: Ingestion,
    running: SparkRun,
    *,
    available_now: bool = False,
    close: bool = False,
    progressed: Callable[[], object] = lambda: None,
) -> None:
    """Read until the sources end: never, unless `available_now` says to read what there is. Ctrl-C stops it.

    Live queries wait for nobody: those that are lost come back beside them as nodes arrive. `close` lets every window
    out at the end, after which nothing can follow. `progressed` is called when live queries have gone on.
    """
    try:
        ingestion.start(available_now=available_now)
        _read(ingestion, running, progressed)
        finish(running, close=close)
        progressed()
    except BaseException:
        with suppress(Exception):  # Ctrl-C may have ended Spark's JVM as well: what is on its way says more
            ingestion.stop()
        raise
    ingestion.stop()


def _read(ingestion: Ingestion, running: SparkRun, progressed: Callable[[], object]) -> None:
    most = 2 * running.coordinator.pace.most_batches
    shown = running.live_frontier
    while True:
        reading, made = ingestion.reading, False
        # Several batches where much has come: a cycle then takes them together, with fewer exchanges.
        while running.logged - running.live_frontier < most and ingestion.make_batch() is not None:
            made = True
        worked = running.advance()
        if running.live_frontier != shown:
            shown = running.live_frontier
            progressed()
        if not reading and not made and not worked:
            return


def finish(running: SparkRun, *, close: bool = False) -> None:
    """Process what is logged, also for those that waited for nodes; with `close`, let every window out."""
    if close and not running.closed:
        running.log({}, last=True)
    running.run()
