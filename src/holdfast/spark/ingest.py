"""From streaming DataFrames into the batch log. Runs on the driver; rows are written by tasks on the executors.

Structured Streaming reads each source and hands every micro-batch to `foreachBatch`. There a job cuts its rows for the
source's partitions and writes them as pieces, each task under names that no other attempt has. The micro-batch then
waits in the intake (`runtime.io.intake`) until a batch of the log names it, with its offsets and all that a reader
needs to go on after it (`reader_checkpoint`). Rows are written once, and do not pass through the driver.

Sources that are read in place have no query: their folders and topics are looked at (`file_listing`), and batches take
ranges of them.

A second loop makes batches of what has arrived, so that ingestion never waits for processing. Back-pressure: when more
than `most_behind` micro-batches of a source are waiting, `foreachBatch` waits too, so the lag is bounded and the
source's own limits decide what it holds meanwhile. A source that drops what Spark has committed (`source_commits`)
waits until a batch names its micro-batch.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from holdfast.application import Application, steps
from holdfast.errors import BadInput, CheckFailed, HoldfastError
from holdfast.ids import BatchId, OperatorId
from holdfast.runtime.io.batch_log import last_positions
from holdfast.runtime.io.batch_size import BatchSize
from holdfast.runtime.io.in_place_readers import InPlaceReader, in_place_readers
from holdfast.runtime.io.intake import MOST_ARRIVALS, Intake, MicroBatch
from holdfast.runtime.io.source_pieces import piece_fields, piece_name, piece_of, write_piece
from holdfast.runtime.program import SourceProgram
from holdfast.spark.file_listing import FolderWatch
from holdfast.spark.reader_checkpoint import ReaderCheckpoint, through_file_system
from holdfast.spark.readers import open_sources
from holdfast.spark.run import SparkRun
from holdfast.spark.settings import Settings
from holdfast.spark.source_commits import drops_committed, sources_of
from holdfast.spark.start_progress import StartProgress
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
        frames: Mapping[OperatorId, DataFrame] | None = None,
        progress: StartProgress | None = None,
        settings: Settings | None = None,
        log: Callable[[str], object] = lambda line: None,
    ) -> None:
        """Prepare a query for every source; each must have a reader.

        `frames`: the sources' DataFrames, where they are open already (None: they are opened by `start`).
        `most_behind`: micro-batches that may wait; then sources wait too (None: as
        spark.holdfast.ingest.maxPendingBatches says). `settings`: None: those of the session. For the others see
        `Intake`.
        """
        self._run, self._spark, self._progress = run, spark, progress or StartProgress()
        self._readers = in_place_readers(run.batch_log.sources, run.storage, run.batch_log)
        if settings is None:
            settings = Settings.read(spark) if most_behind is None or self._readers else Settings()
        self._most_behind = settings.max_pending_batches if most_behind is None else most_behind
        self._app, self._frames, self._available_now = app, frames, False
        names = []
        for name, step in app.steps.items():
            if not isinstance(step, steps.Source):
                continue
            if name in self._readers:
                continue
            if step.reader is None and frames is None:
                raise BadInput(
                    "has no streaming DataFrame",
                    where=f"application {app.name}",
                    field=f"{name}.reader",
                    remedy="give the source one: app.source(…, lambda spark: spark.readStream…)",
                )
            names.append(name)
        self._size = BatchSize(settings.batch_seconds, settings.batch_bytes)
        self.took_all = False
        """Whether the last batch took everything that sources read in place had; False where there are none."""
        self.intake = Intake(
            run.batch_log,
            [*names, *self._readers],
            most_arrivals=most_arrivals,
            go_back=self._read_again,
            in_place=self._readers,
            most_bytes=lambda: self._size.limit,
            arrived_bytes=settings.batch_bytes,
            marks_ahead=lambda: bool(self._readers) and self._run.coordinator.reads.is_ahead(),
        )
        self._watches = {name: FolderWatch(one, woke=run.wake, log=log) for name, one in self._readers.items()}
        self._names = names
        self._queries: dict[OperatorId, StreamingQuery] = {}
        self._checkpoints: dict[OperatorId, ReaderCheckpoint] = {}
        self._stopping = False
        self._problems: dict[OperatorId, HoldfastError] = {}
        self.uncommitted: set[OperatorId] = set()
        """Sources whose last micro-batch has arrived, and is committed once a batch names it."""

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
        logged = last_positions(self._run.batch_log, self._watches)
        for name, watch in self._watches.items():
            self._progress.reading(name)
            watch.start(available_now=available_now, begun=bool(logged[name]))
        if not self._names:
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
        drops = drops_committed(sources_of(self._frames[name]))
        place = ReaderCheckpoint(self._run.storage, name, self._run.claim, state)
        self._checkpoints[name] = place
        writer = (
            self._frames[name]
            .select(*self._run.program.sources[name].schema.names)
            .writeStream.queryName(f"holdfast {self._run.id}: {name}")
            .option("checkpointLocation", place.folder.as_uri())
            .foreachBatch(partial(self._arrived, name, turn, place, drops=drops))
        )
        self._progress.reading(name)
        with through_file_system(self._frames[name].sparkSession):
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
        with ExitStack() as ends:  # all of them, also where one fails: a session that goes on would go on reading
            for place in self._checkpoints.values():
                ends.callback(place.remove)
            for query in self._queries.values():
                ends.callback(query.stop)
            for watch in self._watches.values():
                ends.callback(watch.stop)

    @property
    def readers(self) -> Mapping[OperatorId, InPlaceReader]:
        """The readers of sources that are read in place."""
        return self._readers

    @property
    def reading(self) -> bool:
        """Whether a source is still being read; a query that failed raises what it failed with."""
        for name, query in self._queries.items():
            if (problem := query.exception()) is not None and not self._stopping:
                if name in self._problems:
                    raise self._problems[name]
                first = str(problem).strip().splitlines()[0]
                raise CheckFailed(f"stopped: {first}", where=f"source {name}", remedy="mend it, then run again")
        found = any(query.isActive for query in self._queries.values())
        return found or any(watch.reading for watch in self._watches.values())

    @property
    def waiting(self) -> dict[OperatorId, int]:
        """Micro-batches of each source that are written down and not processed."""
        # Those that wait for nodes have the log, and so have slow ones and those that catch up: others must not wait.
        return self.intake.waiting(self._run.leading_frontier)

    def await_available(self) -> Callable[[], bool]:
        """Wait until everything the sources have now has arrived; return what says whether batches have it."""
        for watch in self._watches.values():
            watch.look()
        taken = [reader.taken_now() for reader in self._readers.values()]
        for query in self._queries.values():
            query.processAllAvailable()
        through = {name: self.intake.last(name) for name in self._names}
        return lambda: self.intake.has_taken(through) and all(done() for done in taken)

    def make_batch(self) -> BatchId | None:
        """Make the next batch of what has arrived, and log it; None where nothing has."""
        now = time.monotonic()
        if self._readers:
            # Of those that lead: one that catches up says nothing about how fast batches are processed.
            self._size.completed(self._run.leading_frontier, now)
        batch = self.intake.make_batch()
        if batch is not None:
            self.took_all = bool(self._readers) and not any(one.pending for one in self._readers.values())
            record = self._run.batch_log.record(batch) if self._readers else None
            if record is not None:
                size = sum(part.bytes for one in record.sources.values() for part in one.ranges)
                self._size.logged(batch, size, now)
            for name, place in self._checkpoints.items():
                place.logged(self.intake.reader(name)[1])
        return batch

    # -- arrivals ---------------------------------------------------------------------------------------------------

    def _arrived(
        self,
        name: OperatorId,
        turn: int,
        place: ReaderCheckpoint,
        frame: DataFrame,
        number: int,
        *,
        drops: bool = False,
    ) -> None:
        """Write a micro-batch down: its rows on the executors, then what a reader needs to go on after it.

        Where the source drops what is committed, it is committed once a batch names it.
        """
        try:
            self._take(name, turn, place, frame, number)
            if drops:
                self._await_logged(name, turn, number)
        except HoldfastError as error:
            # Spark knows it as a line of text; `reading` raises it as it is.
            self._problems.setdefault(name, error)
            raise

    def _take(self, name: OperatorId, turn: int, place: ReaderCheckpoint, frame: DataFrame, number: int) -> None:
        self._await_room(name, turn)
        offsets = place.offsets(number)
        if self.intake.knows(name, number, offsets, turn=turn):
            return
        source, claim, storage = self._run.program.sources[name], self._run.claim, self._run.storage
        # A reader that begins anew may deliver the same number: what an earlier one sweeps must not be its pieces.
        label = f"{number}-{turn}"
        write = partial(_write_pieces, storage, source, claim, label, self._run.batch_log.event_bound())
        found = frame.mapInArrow(write, _WRITTEN).toArrow().to_pylist()
        for row in found:
            if row["problem"] is not None:
                raise BadInput(row["problem"], remedy="mend the source, then run again")
        ordered = sorted(found, key=lambda row: (row["task"], row["number"]))
        pieces = tuple(piece_of(json.loads(row["piece"])) for row in ordered)
        self.intake.arrived(name, MicroBatch(number, offsets, pieces, place.after(number)), turn=turn)
        self._progress.rows_came(name, sum(piece.rows for piece in pieces))
        self._run.wake()
        self._sweep(name, claim, label, {piece.file for piece in pieces})

    def _await_room(self, name: OperatorId, turn: int) -> None:
        """Wait while too much of a source is waiting for processing."""
        while self.waiting[name] >= self._most_behind:
            self._check_reading(name, turn)
            time.sleep(_LOOK_AGAIN)

    def _check_reading(self, name: OperatorId, turn: int) -> None:
        """Refuse to go on where reading has stopped: returning would tell Spark that the micro-batch was taken."""
        if self._stopping or self.intake.reader(name)[0] != turn:
            raise IngestionStopped("reading was stopped", where=f"source {name}")

    def _await_logged(self, name: OperatorId, turn: int, number: int) -> None:
        """Wait until a batch names a micro-batch: what Spark's commit deletes is not needed any more then."""
        self.uncommitted.add(name)
        try:
            while not self.intake.has_taken({name: number}):
                self._check_reading(name, turn)
                time.sleep(_LOOK_AGAIN)
        finally:
            self.uncommitted.discard(name)

    def _sweep(self, name: OperatorId, claim: int, label: str, named: set[str]) -> None:
        """Delete pieces of this micro-batch, of this driver, that do not count: attempts that never happened."""
        there = self._run.storage.list(f"pieces/{name}/{claim:08d}-{label}-")
        self._run.storage.delete([one for one in there if one not in named])


def warm_readers(spark: SparkSession, nodes: int) -> None:
    """Start the Python worker that writes micro-batches down, on every executor at once; return when all are there.

    The first task of an executor starts one, which takes seconds on a busy machine. Micro-batches go to one executor
    after the other: without this, each of the first ones meets a cold executor, one after the other.
    """
    spark.range(0, nodes, 1, nodes).mapInArrow(_pass_on, "id bigint").toArrow()


def _pass_on(given: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Give rows back; that this module is imported for it is what it is for."""
    yield from given


def _write_pieces(
    storage: Storage,
    source: SourceProgram,
    claim: int,
    label: str,
    bound: int | None,
    given: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Write the rows of one task as a piece; answer with what it is, or with what is wrong. Runs on an executor."""
    from pyspark import TaskContext

    context = TaskContext.get()
    task = 0 if context is None else context.partitionId()
    for number, rows in enumerate(_in_pieces(given)):
        piece = problem = None
        try:
            name = piece_name(source.id, claim, label)
            piece = json.dumps(piece_fields(write_piece(storage, source, rows, name, bound)))
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
