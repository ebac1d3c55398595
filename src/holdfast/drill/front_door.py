"""The application of a drill through the front door: started as `hf.start` does, fed by sources that are read.

Runs on the driver. Its sources read the files and topics into which the drill lets its input arrive (`arriving`);
batches, checkpoints, outputs and the end are the run's own. It ends when everything has arrived, batches hold all of it
and no query is parked: then all windows are closed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from holdfast.drill.arriving import COMPLETE
from holdfast.drill.driving import READY_SECONDS, Admission, await_executors, emit_outboxes, recovery_of, warm_up
from holdfast.drill.faulty_operators import POISON, with_faulty_operators
from holdfast.drill.feeds import FeedKind, feeds_of, with_feeds
from holdfast.drill.plan_targets import plan_of_drill
from holdfast.drill.scenarios import scenario_of
from holdfast.ids import BatchId, OperatorId
from holdfast.runtime.io.batch_records import BatchRecord, record_fields
from holdfast.runtime.io.in_place_readers import InPlaceReader
from holdfast.spark.ingest import Ingestion, warm_readers
from holdfast.spark.run import SparkRun
from holdfast.spark.session import start_session
from holdfast.spark.settings import PREFIX
from holdfast.spark.start import DrillOptions, Watch, launch

if TYPE_CHECKING:
    from holdfast.drill.driver import DriverJob, EventPipe
    from holdfast.runtime.coordinator.event_log import Observation


def drive(job: DriverJob, events: EventPipe, orders: IO[str]) -> None:
    """Run the drill's application until all that arrives is out."""
    asked = job.settings
    assert job.input_folder is not None
    spark = start_session(f"drill {asked.scenario}", job.master, settings=dict(job.session))
    if job.warm:
        await_executors(spark, job.nodes)
        warm_up(job, spark)
    app, folder = scenario_of(asked).application(), Path(job.input_folder)
    feeds = feeds_of(app, asked)
    app = with_feeds(app, feeds, folder, job.brokers or "")
    app = with_faulty_operators(app, job)
    last = {OperatorId(name): asked.batches - 1 for name, one in feeds.items() if one.kind is FeedKind.SPARK}
    taken = AllTaken()

    def has_all(running: SparkRun, ingestion: Ingestion) -> bool:
        poisoned = job.faults_folder is not None and (Path(job.faults_folder) / POISON).exists()
        in_place = taken.see(ingestion.readers, complete=(folder / COMPLETE).exists())
        return ingestion.intake.has_taken(last) and in_place and not running.coordinator.state.parked and not poisoned

    def request_nodes(count: int) -> str | None:
        events.emit("nodes-requested", count=count)
        return None

    run = launch(
        app,
        spark,
        directory=job.directory,
        conf=conf_of_job(job),
        nodes=0,
        available_now=False,
        close=True,
        sinks={},
        batches=None,
        checkpoint_every=asked.checkpoint_every if asked.plan is None else None,
        plan=plan_of_drill(asked),
        watch=lambda running: RunEvents(running, events).watch(),
        take_over=job.take_over,
        drill=DrillOptions(recovery_of(asked), job.nodes, request_nodes, Admission(job.admitted), has_all),
    )
    if job.warm:
        deadline = time.monotonic() + READY_SECONDS
        while run.recovery is not None and run.isActive and time.monotonic() < deadline:
            time.sleep(0.05)  # partitions are placed before the first file arrives
        warm_readers(spark, job.nodes)
    events.emit("driver-ready")
    orders.readline()
    run.awaitTermination()
    spark.stop()


def conf_of_job(job: DriverJob) -> dict[str, str]:
    """Return the settings of the run that the drill was asked for."""
    asked = job.settings
    found = {} if asked.capacity is None else {f"{PREFIX}node.capacity": str(asked.capacity)}
    if asked.exchange is not None:
        found[f"{PREFIX}exchange"] = asked.exchange
    if asked.replicas is not None:
        found[f"{PREFIX}replicas.budget"] = asked.replicas
    if asked.tentative:
        found[f"{PREFIX}tentative.outputs"] = "all"
    if job.secret_file is not None:
        found[f"{PREFIX}store.secretFile"] = job.secret_file
    return {**found, **job.conf}


class AllTaken:
    """Whether sources that are read in place have taken everything, once everything has arrived.

    Only a look that began after that sees all of it: the second one that ends is such a look.
    """

    def __init__(self) -> None:
        self._looks: dict[OperatorId, int] | None = None

    def see(self, readers: Mapping[OperatorId, InPlaceReader], *, complete: bool) -> bool:
        """Take in how readers stand now; `complete`: everything has arrived."""
        if not complete:
            return False
        if self._looks is None:
            self._looks = {name: one.listed for name, one in readers.items()}
        for name, one in readers.items():
            self._looks[name] = min(self._looks[name], one.listed)  # reading has begun anew
        return all(
            one.listed >= self._looks[name] + 2 and not one.pending and not one.unsettled
            for name, one in readers.items()
        )


class RunEvents:
    """Emits what a run does, and every batch that it logs, to the drill; called in the run's own thread."""

    def __init__(self, running: SparkRun, events: EventPipe) -> None:
        self._running, self._events = running, events
        self._emitted = -1

    def watch(self) -> Watch:
        """Return what takes the run's events."""
        return Watch(log=_write, emit=self.observe, closing=self.end)

    def observe(self, seen: Observation) -> None:
        """Take an event; batches that were logged before it come first."""
        self._emit_logged()
        self._events.emit(seen.kind, seen.at, **dict(seen.fields))

    def end(self) -> None:
        """Emit what is left, where the run has come to its end."""
        running = self._running
        self._emit_logged()
        if running.closed and running.frontier >= running.logged and not running.coordinator.state.parked:
            emit_outboxes(running, self._events)
            self._events.emit("finished", batch=int(running.frontier))

    def _emit_logged(self) -> None:
        log = self._running.batch_log
        for number in range(self._emitted + 1, log.frontier + 1):
            record = log.record(BatchId(number))
            self._emitted = number
            if record is None:  # trimmed: an earlier driver has emitted it
                continue
            self._events.emit(
                "logged",
                record.logged_at,
                batch=number,
                through={name: int(one.position.get("through", -1)) for name, one in record.sources.items()},
                rows={name: sum(one.rows) for name, one in record.sources.items()},
                closes=record.closes,
                sources=manifest_fields(record),
            )


def manifest_fields(record: BatchRecord) -> dict[str, dict[str, Any]]:
    """Return what a record says of its sources that the outputs depend on: watermarks, ranges, how they are read."""
    kept = ("watermark", "ranges", "how")
    return {
        name: {key: one[key] for key in kept if key in one}
        for name, one in record_fields(record, "")["sources"].items()
    }


def _write(line: str) -> None:
    """Write a line for people into the driver's log."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
