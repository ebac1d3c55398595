"""What brings batches into a run: the application's sources, or tables that are given. Runs on the driver."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Protocol

import pyarrow as pa

from holdfast.errors import BadInput
from holdfast.runtime.coordinator.feeding import Feeding, ahead, log_batches
from holdfast.spark.ingest import Ingestion
from holdfast.spark.run import SparkRun

LOOK_SECONDS = 0.2
"""How often sources are asked whether they are still being read."""


class Feed(Feeding, Protocol):
    """Brings batches into the source logs of a run; called in the run's own thread, apart from `available`."""

    @property
    def ends(self) -> bool:
        """Whether the input has an end."""
        ...

    def start(self) -> None:
        """Begin to read."""
        ...

    def available(self) -> Callable[[], bool]:
        """Wait until what the sources have now is there; return what says whether it is in batches."""
        ...

    def stop(self) -> None:
        """Stop reading; what has come stays."""
        ...


class SourceFeed:
    """Reads the application's sources as streams."""

    def __init__(
        self,
        ingestion: Ingestion,
        running: SparkRun,
        *,
        available_now: bool,
        ended: Callable[[], bool] | None = None,
    ) -> None:
        """With `available_now`, read what there is and end; with `ended`, read until it says that this was all."""
        self._ingestion, self._running, self._available_now = ingestion, running, available_now
        self._looked_at, self._reading, self._ended = -math.inf, True, ended

    @property
    def ends(self) -> bool:
        """See Feed."""
        return self._available_now

    def start(self) -> None:
        """See Feed."""
        self._ingestion.start(available_now=self._available_now)

    @property
    def reading(self) -> bool:
        """See Feed: Spark is asked now and then, for asking costs."""
        now = time.monotonic()
        if now >= self._looked_at + LOOK_SECONDS:
            self._looked_at, self._reading = now, self._ingestion.reading
            if self._ended is not None and self._reading and self._ended():
                self._ingestion.stop()
                self._reading = False
        return self._reading

    @property
    def pending(self) -> bool:
        """See Feed."""
        return self._ingestion.intake.pending

    def log_batches(self) -> bool:
        """See Feed."""
        coordinator, ingestion = self._running.coordinator, self._ingestion
        pace = coordinator.pace
        most = ahead(pace.most_ahead, took_all=ingestion.took_all)
        return log_batches(coordinator.status, most, ingestion.make_batch, pace.batches_behind)

    def available(self) -> Callable[[], bool]:
        """See Feed."""
        return self._ingestion.await_available()

    def stop(self) -> None:
        """See Feed."""
        self._ingestion.stop()


class GivenFeed:
    """Logs tables that are given, source -> rows, batch by batch; skips those that an earlier start has logged."""

    def __init__(self, batches: Iterable[Mapping[str, pa.Table]], running: SparkRun) -> None:
        self._batches, self._running = iter(batches), running
        self._number, self._ended = -1, False
        # A log without numbers of given batches has one batch for each.
        known = running.batch_log.last_given
        self._logged = int(running.logged) if known is None else known
        self._at = running.logged

    @property
    def ends(self) -> bool:
        """See Feed."""
        return True

    def start(self) -> None:
        """See Feed."""

    @property
    def reading(self) -> bool:
        """See Feed."""
        return not self._ended

    @property
    def pending(self) -> bool:
        """See Feed."""
        return not self._ended

    def log_batches(self) -> bool:
        """See Feed: one batch, once live queries have processed the one before."""
        if self._ended or self._running.live_frontier < self._at:
            return False
        batch = next(self._batches, None)
        if batch is None:
            self._ended = True
            return False
        if not isinstance(batch, Mapping):
            raise BadInput(f"a batch is {type(batch).__name__}", field="batches", remedy="give source -> pyarrow.Table")
        self._number += 1
        if self._number > self._logged:
            self._at = self._running.log(batch, given=self._number)
        return True

    def available(self) -> Callable[[], bool]:
        """See Feed."""
        return lambda: self._ended

    def stop(self) -> None:
        """See Feed."""
        with suppress(AttributeError):
            self._batches.close()  # type: ignore[attr-defined]


def finish(running: SparkRun, *, close: bool = False, gives_up: Callable[[], bool] = lambda: False) -> None:
    """Process what is logged, also in partitions that wait for nodes; with `close`, close every window."""
    if close and not running.closed:
        running.log({}, last=True)
    running.run(gives_up=gives_up)


def drain(running: SparkRun, *, gives_up: Callable[[], bool] = lambda: False) -> None:
    """Process what is logged as far as live partitions can, and wait for sinks that are at work, or until `gives_up`.

    Partitions that are lost are not waited for, nor is a sink that has not returned for too long.
    """
    coordinator, still = running.coordinator, 0
    status, publishing = coordinator.status, coordinator.outputs.publishing
    while (status.can_go_on or publishing.is_at_work) and still < 10 and not gives_up():
        before = status.standing
        running.advance()
        moves = coordinator.busy or publishing.is_at_work or status.standing != before
        still = 0 if moves else still + 1
    coordinator.read_reports()
