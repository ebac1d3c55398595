"""From streaming DataFrames into the batch log. Runs on the driver; rows are written by tasks on the executors.

Structured Streaming reads each source and hands every micro-batch to `foreachBatch`. There a job cuts its rows for the
source's partitions and writes them as pieces, each task under names that no other attempt has. The micro-batch then
waits in the intake (`runtime.io.intake`) until a batch of the log names it, with its offsets and all that a reader
needs to go on after it (`reader_checkpoint`). Rows are written once, and do not pass through the driver.

A second loop makes batches of what has arrived, so that ingestion never waits for processing. Back-pressure: when more
than `most_behind` micro-batches of a source are waiting, `foreachBatch` waits too, so the lag is bounded and the
source's own limits decide what it holds meanwhile.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from holdfast.application import Application, steps
from holdfast.errors import BadInput, CheckFailed, HoldfastError
from holdfast.ids import BatchId, OperatorId
from holdfast.runtime.io.batch_log import piece_name
from holdfast.runtime.io.intake import MOST_ARRIVALS, Intake, MicroBatch
from holdfast.runtime.io.source_pieces import piece_fields, piece_of, write_piece
from holdfast.runtime.program import SourceProgram
from holdfast.spark.reader_checkpoint import ReaderCheckpoint
from holdfast.spark.readers import open_sources
from holdfast.spark.run import SparkRun
from holdfast.spark.settings import Settings
from holdfast.storage.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

PIECE_BYTES = 64 << 20
"""About how much of a task's rows one piece has at most: what a task holds in memory."""
_LOOK_AGAIN = 0.05
"""Seconds between two looks whether waiting is over."""
_WRITTEN = "task int, number int, piece string, problem string"


class IngestionStopped(HoldfastError):
    """Raised in a source's query that waited when reading was stopped: its micro-batch was not taken."""


class Ingestion:
    """The streaming queries that feed a run."""

    def __init__(
        self,
        app: Application,
        spark: SparkSession,
        run: SparkRun,
        *,
        most_arrivals: int = MOST_ARRIVALS,
        most_behind: int | None = None,
        idle_batches: int | None = None,
        frames: Mapping[OperatorId, DataFrame] | None = None,
    ) -> None:
        """Prepare a query for every source; each must have a reader.

        `frames`: the sources' DataFrames, where they are open already (None: they are opened by `start`).
        `most_behind`: micro-batches that may wait; then sources wait too (None: as
        spark.holdfast.ingest.maxPendingBatches says). For the others see `Intake`.
        """
        self._run, self._spark = run, spark
        self._most_behind = Settings.read(spark).max_pending_batches if most_behind is None else most_behind
        self._app, self._frames, self._available_now = app, frames, False
        names = []
        for name, step in app.steps.items():
            if not isinstance(step, steps.Source):
                continue
            if step.reader is None and frames is None:
                raise BadInput(
                    "has no streaming DataFrame",
                    where=f"application {app.name}",
                    field=f"{name}.reader",
                    remedy="give the source one: app.source(…, lambda spark: spark.readStream…)",
                )
            names.append(name)
        self.intake = Intake(
            run.batch_log, names, most_arrivals=most_arrivals, idle_batches=idle_batches, go_back=self._read_again
        )
        self._names = names
        self._queries: dict[OperatorId, StreamingQuery] = {}
        self._checkpoints: dict[OperatorId, ReaderCheckpoint] = {}
        self._stopping = False
        self._problems: dict[OperatorId, HoldfastError] = {}

    def start(self, *, available_now: bool = False) -> None:
        """Start reading; with `available_now`, read what there is and end.

        Where the sources are closed nothing is read: what the driver before had logged is brought to its end. Where it
        is there already, the start is refused.
        """
        self._stopping, self._available_now = False, available_now
        if self._run.batch_log.closed:
            if self._run.coordinator.status.settled:
                self._run.batch_log.check_open()
            return
        self._run.reads_sources()
        self._frames = open_sources(self._app, self._spark) if self._frames is None else self._frames
        for name in self._names:
            try:
                self._start_query(name)
            except CheckFailed:
                # The driver before may have put the reader's files together into another object, and logged that.
                if not self.intake.adopt():
                    raise
                self._start_query(name)

    def _start_query(self, name: OperatorId) -> None:
        assert self._frames is not None
        turn, state = self.intake.reader(name)
        place = ReaderCheckpoint(self._run.storage, name, self._run.claim, state)
        self._checkpoints[name] = place
        writer = (
            self._frames[name]
            .select(*self._run.program.sources[name].schema.names)
            .writeStream.queryName(f"holdfast {self._run.id}: {name}")
            .option("checkpointLocation", place.folder.as_uri())
            .foreachBatch(partial(self._arrived, name, turn, place))
        )
        self._queries[name] = (writer.trigger(availableNow=True) if self._available_now else writer).start()

    def _read_again(self, name: OperatorId) -> None:
        """Read a source again after the last batch: the driver before has logged it."""
        query = self._queries.pop(name, None)
        if query is not None:
            query.stop()
            self._checkpoints.pop(name).remove()
            self._problems.pop(name, None)
            self._start_query(name)

    def stop(self) -> None:
        """Stop reading; what has arrived and is in no batch is read again by the next start."""
        self._stopping = True
        for query in self._queries.values():
            query.stop()
        for place in self._checkpoints.values():
            place.remove()

    @property
    def reading(self) -> bool:
        """Whether a source is still being read; a query that failed raises what it failed with."""
        for name, query in self._queries.items():
            if (problem := query.exception()) is not None and not self._stopping:
                if name in self._problems:
                    raise self._problems[name]
                first = str(problem).strip().splitlines()[0]
                raise CheckFailed(f"stopped: {first}", where=f"source {name}", remedy="mend it, then run again")
        return any(query.isActive for query in self._queries.values())

    @property
    def waiting(self) -> dict[OperatorId, int]:
        """Micro-batches of each source that are written down and not processed."""
        # Those that wait for nodes have the log; live ones must not wait for them.
        return self.intake.waiting(self._run.live_frontier)

    def await_available(self) -> dict[OperatorId, int]:
        """Wait until everything the sources have now has arrived; return the last micro-batch of each."""
        for query in self._queries.values():
            query.processAllAvailable()
        return {name: self.intake.last(name) for name in self._names}

    def make_batch(self) -> BatchId | None:
        """Make the next batch of what has arrived, and log it; None where nothing has."""
        batch = self.intake.make_batch()
        if batch is not None:
            for name, place in self._checkpoints.items():
                place.logged(self.intake.reader(name)[1])
        return batch

    # -- arrivals ---------------------------------------------------------------------------------------------------

    def _arrived(self, name: OperatorId, turn: int, place: ReaderCheckpoint, frame: DataFrame, number: int) -> None:
        """Write a micro-batch down: its rows on the executors, then what a reader needs to go on after it."""
        try:
            self._await_room(name, turn)
            offsets = place.offsets(number)
            if self.intake.knows(name, number, offsets, turn=turn):
                return
            source, claim, storage = self._run.program.sources[name], self._run.claim, self._run.storage
            # A reader that begins anew may deliver the same number: what an earlier one sweeps must not be its pieces.
            label = f"{number}-{turn}"
            write = partial(_write_pieces, storage, source, claim, label)
            found = frame.mapInArrow(write, _WRITTEN).toArrow().to_pylist()
            for row in found:
                if row["problem"] is not None:
                    raise BadInput(row["problem"], remedy="mend the source, then run again")
            ordered = sorted(found, key=lambda row: (row["task"], row["number"]))
            pieces = tuple(piece_of(json.loads(row["piece"])) for row in ordered)
            self.intake.arrived(name, MicroBatch(number, offsets, pieces, place.after(number)), turn=turn)
            self._run.wake()
            self._sweep(name, claim, label, {piece.file for piece in pieces})
        except HoldfastError as error:
            # Spark knows it as a line of text; `reading` raises it as it is.
            self._problems.setdefault(name, error)
            raise

    def _await_room(self, name: OperatorId, turn: int) -> None:
        """Wait while too much of a source is waiting for processing."""
        while self.waiting[name] >= self._most_behind:
            if self._stopping or self.intake.reader(name)[0] != turn:
                # Returning would tell Spark that the micro-batch was taken.
                raise IngestionStopped("reading was stopped", where=f"source {name}")
            time.sleep(_LOOK_AGAIN)

    def _sweep(self, name: OperatorId, claim: int, label: str, named: set[str]) -> None:
        """Delete pieces of this micro-batch, of this driver, that do not count: attempts that never happened."""
        there = self._run.storage.list(f"pieces/{name}/{claim:08d}-{label}-")
        self._run.storage.delete([one for one in there if one not in named])


def _write_pieces(
    storage: Storage, source: SourceProgram, claim: int, label: str, given: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write the rows of one task as a piece; answer with what it is, or with what is wrong. Runs on an executor."""
    from pyspark import TaskContext

    context = TaskContext.get()
    task = 0 if context is None else context.partitionId()
    for number, rows in enumerate(_in_pieces(given)):
        piece = problem = None
        try:
            name = piece_name(source.id, claim, label)
            piece = json.dumps(piece_fields(write_piece(storage, source, rows, name)))
        except HoldfastError as error:
            problem = str(error)
        columns = [pa.array([task], pa.int32()), pa.array([number], pa.int32())]
        columns += [pa.array([piece], pa.string()), pa.array([problem], pa.string())]
        yield pa.RecordBatch.from_arrays(columns, ["task", "number", "piece", "problem"])


def _in_pieces(given: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Put a task's rows together, as many as a piece may have."""
    held: list[pa.RecordBatch] = []
    for batch in given:
        if batch.num_rows:
            held.append(batch)
        if sum(one.nbytes for one in held) >= PIECE_BYTES:
            yield pa.Table.from_batches(held)
            held = []
    if held:
        yield pa.Table.from_batches(held)
