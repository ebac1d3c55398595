"""The outputs of a drill computed by Structured Streaming itself, under the same faults (Fig. 10).

Runs on the driver. Each output is one streaming query over the same batches, which come as files when they are due. Its
rows are compared with Holdfast's own run without failures, so both must say the same. A micro-batch needs all its
tasks: where a node is lost, every output waits for the tasks and the state to be placed anew, so every query counts as
down until its next output. Only `traffic` is there: the other scenarios have operators that are functions, which no
SQL says.
"""

from __future__ import annotations

import math
import shutil
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.drill.driving import WARM_BATCHES, await_executors
from holdfast.drill.scenarios import find_scenario
from holdfast.errors import BadInput, CheckFailed
from holdfast.examples.traffic import LOCATIONS_PER_INCIDENT
from holdfast.spark.pinned_jobs import executors_of
from holdfast.spark.session import start_session
from holdfast_lab.baselines.structured_streaming import StreamOfFiles, StructuredStreaming, add_file

if TYPE_CHECKING:
    from holdfast.drill.driver import DriverJob, EventPipe

SHIFT = 86_400 * 1_000_000
"""Microseconds that event times are moved by: Spark's watermark begins at the epoch, and our events a little before."""
CATCH_UP_FILES = 8
"""Files of each stream that one micro-batch may take: as many batches as a cycle of Holdfast may."""
POLL = 0.1
END_SECONDS = 300.0

_WINDOW = "window(at, '10 seconds', '1 second')"
_SPEEDS = f"SELECT segment, window, avg(speed) AS speed FROM locations GROUP BY segment, {_WINDOW}"
_REPORTS = f"SELECT segment, window, count(*) AS count FROM incidents GROUP BY segment, {_WINDOW}"
TRAFFIC: dict[str, str] = {
    "speeds": f"SELECT segment, window.start AS window_start, window.end AS window_end, speed FROM ({_SPEEDS})",
    "reports": f"SELECT segment, window.start AS window_start, window.end AS window_end, count FROM ({_REPORTS})",
    "jams": f"""
        SELECT s.segment AS segment, s.window.start AS left_window_start, s.window.end AS left_window_end, speed,
               r.window.start AS right_window_start, r.window.end AS right_window_end, count,
               s.window.end - INTERVAL 1 SECOND AS window_start, s.window.end AS window_end
        FROM ({_SPEEDS}) s JOIN ({_REPORTS}) r ON s.segment = r.segment AND s.window = r.window
        """,
}
_COLUMNS = {
    "locations": {"segment": "string", "speed": "double", "at": "timestamp[us]"},
    "incidents": {"segment": "string", "kind": "string", "at": "timestamp[us]"},
}

_READS = {"speeds": ["locations"], "reports": ["incidents"], "jams": ["locations", "incidents"]}
"""The streams that each query reads, in the order of its sources."""


def drive(job: DriverJob, events: EventPipe, orders: IO[str]) -> None:
    """Run the drill's stream to its end, and leave each output's rows as one Parquet file."""
    asked = job.settings
    if asked.scenario != "traffic" or asked.kill_driver:
        raise BadInput(
            "Structured Streaming runs the traffic scenario, with its driver kept",
            field="--strategy",
            remedy="use traffic without --kill-driver",
        )
    scenario = find_scenario(asked.scenario)
    given = list(scenario.batches(asked.seed, asked.batches, asked.rows))
    spark = start_session("drill structured streaming", job.master)
    await_executors(spark, job.nodes)
    if job.warm:
        _warm_up(Path(f"{job.directory}-warm"), spark, given[:WARM_BATCHES])
    streams = _streams(Path(job.directory) / "in")
    running = StructuredStreaming(
        spark, streams, TRAFFIC, Path(job.directory) / "structured", files_per_batch=CATCH_UP_FILES
    )
    running.start()
    events.emit("driver-ready")
    began = float(orders.readline())
    partitions = scenario.application().topology().partitions()
    heads = {name: [str(one) for one in partitions if one.operator == name] for name in TRAFFIC}
    needs = {name: {*reads, name} for name, reads in _READS.items()}
    needs["jams"] |= {"speeds", "reports"}
    members = {name: [str(one) for one in partitions if one.operator in needs[name]] for name in TRAFFIC}
    emitted = _Emitted(running, heads, members, events, asked.rows)
    lost = _Losses(spark, [str(one) for one in partitions], events)
    over = threading.Event()
    watching = threading.Thread(target=_watch, args=(emitted, lost, over), daemon=True)
    watching.start()
    for number in range(len(given)):
        time.sleep(max(0.0, began + number * asked.batch_seconds - time.time()))
        for stream in streams:
            add_file(stream, number, _shifted(given[number][stream.name], SHIFT))
        events.emit("logged", batch=number)
    # No stream of Spark's ends: a row of a far time lets the last windows out, and stays in one that does not come out.
    for stream in streams:
        add_file(stream, len(given), _far(_shifted(given[0][stream.name].slice(0, 1), SHIFT)))
    _await_end(emitted, len(given) - 1)
    running.process_all()
    over.set()
    watching.join()
    for name in TRAFFIC:
        rows = running.rows(name)
        place = Path(job.outputs) / name
        place.mkdir(parents=True, exist_ok=True)
        pq.write_table(_shifted(rows, -SHIFT), place / "all.parquet")
    events.emit("finished", batch=len(given))
    running.stop()
    spark.stop()


def _streams(place: Path) -> list[StreamOfFiles]:
    streams = [StreamOfFiles(name, place / name, columns, "at", "1 second") for name, columns in _COLUMNS.items()]
    for stream in streams:
        stream.folder.mkdir(parents=True)
    return streams


def _warm_up(place: Path, spark: Any, given: list[dict[str, pa.Table]]) -> None:
    """Run the same queries over a few batches apart from the drill, as Holdfast's driver does."""
    streams = _streams(place / "in")
    with StructuredStreaming(spark, streams, TRAFFIC, place / "out", files_per_batch=CATCH_UP_FILES) as warm:
        for number, batch in enumerate(given):
            for stream in streams:
                add_file(stream, number, _shifted(batch[stream.name], SHIFT))
            warm.process_all()
    shutil.rmtree(place, ignore_errors=True)


class _Emitted:
    """Turns what Spark says of its micro-batches into outputs of our batches."""

    def __init__(
        self,
        running: StructuredStreaming,
        heads: dict[str, list[str]],
        members: dict[str, list[str]],
        events: EventPipe,
        rows: int,
    ) -> None:
        self._running, self._heads, self._members, self._events = running, heads, members, events
        self._lost_at: dict[str, float] = {}
        self._looked: dict[str, str | None] = {}
        self._rows = {"locations": rows, "incidents": rows // LOCATIONS_PER_INCIDENT}
        self._seen: set[tuple[str, str]] = set()
        self._taken: dict[str, dict[int, int]] = {name: {} for name in heads}
        self.published = dict.fromkeys(heads, -1)

    def look(self) -> None:
        """Publish the batches that each output's query has completed since the last look."""
        for name, partitions in self._heads.items():
            newest = self._running.last_trigger(name)
            if newest == self._looked.get(name):
                continue  # asking for all of them costs, and takes from what is measured
            self._looked[name] = newest
            for one in self._running.batches(name):
                # By the trigger's time: one that found nothing to do has the number of the batch that comes next.
                trigger = str(one["timestamp"])
                if (name, trigger) in self._seen or "triggerExecution" not in one["durationMs"]:
                    continue
                self._seen.add((name, trigger))
                for number, source in enumerate(one["sources"]):
                    taken = self._taken[name]
                    taken[number] = taken.get(number, 0) + int(source["numInputRows"])
                through = self._through(name)
                started = datetime.fromisoformat(one["timestamp"].replace("Z", "+00:00")).timestamp()
                at = started + one["durationMs"]["triggerExecution"] / 1000
                if started > self._lost_at.get(name, math.inf):
                    # The first that was begun after the loss: its tasks and states are placed anew.
                    del self._lost_at[name]
                    for partition in self._members[name]:
                        self._events.emit("restored", at, partition=partition, node=None, batch=through)
                for done in range(self.published[name] + 1, through + 1):
                    for partition in partitions:
                        self._events.emit("published", at, partition=partition, batch=done, rows=0, tentative=False)
                self.published[name] = max(through, self.published[name])

    def lose(self, at: float) -> None:
        """Take a loss of executors: every output waits for a micro-batch that is begun after it."""
        self._lost_at = dict.fromkeys(self._heads, at)

    def _through(self, name: str) -> int:
        reads = _READS[name]
        taken = self._taken[name]
        # The far row of the end is one more: it never makes a whole batch.
        return min(taken.get(number, 0) // self._rows[source] for number, source in enumerate(reads)) - 1


class _Losses:
    """Notices executors that are gone."""

    def __init__(self, spark: Any, partitions: list[str], events: EventPipe) -> None:
        self._context, self._partitions, self._events = spark.sparkContext, partitions, events
        self._known = set(executors_of(self._context))

    def look(self) -> bool:
        """Say which executors have gone or come since the last look, and whether some have gone.

        A loss takes every partition.
        """
        now = set(executors_of(self._context))
        gone, new = self._known - now, now - self._known
        self._known = now
        if new:
            self._events.emit("node-arrived", nodes=sorted(f"{one.host}-{one.id}" for one in new))
        if gone:
            names = sorted(f"{one.host}-{one.id}" for one in gone)
            self._events.emit("node-lost", nodes=names)
            for partition in self._partitions:
                change: dict[str, Any] = {
                    "partition": partition,
                    "node": names[0],
                    "before": "running",
                    "after": "lost",
                }
                self._events.emit("state", **change)
        return bool(gone)


def _watch(emitted: _Emitted, lost: _Losses, over: threading.Event) -> None:
    while not over.wait(POLL):
        if lost.look():
            emitted.lose(time.time())
        emitted.look()


def _await_end(emitted: _Emitted, last: int) -> None:
    deadline = time.monotonic() + END_SECONDS
    while min(emitted.published.values()) < last:
        if time.monotonic() > deadline:
            raise CheckFailed(f"batch {last} did not come out in {END_SECONDS:.0f} s", where="structured streaming")
        time.sleep(POLL)


def _shifted(rows: pa.Table, by: int) -> pa.Table:
    """Move every time in a table; Spark's times are instants, ours the same numbers without a zone."""
    columns = [
        pa.array(np.asarray(column.cast(pa.int64())) + by).cast(pa.timestamp("us"))
        if pa.types.is_timestamp(column.type)
        else column
        for column in rows.columns
    ]
    return pa.table(dict(zip(rows.column_names, columns, strict=True)))


def _far(rows: pa.Table) -> pa.Table:
    return _shifted(rows, 10 * SHIFT)
