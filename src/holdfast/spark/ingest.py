"""From streaming DataFrames into the source log. Runs on the driver; rows are written by tasks on the executors.

Structured Streaming reads each source and hands every micro-batch to `foreachBatch`. There a job cuts its rows for the
source's partitions and writes them as pieces of the source log, each task under names that no other attempt has; then
the driver commits the micro-batch by linking one small file (`arrived/7.json`) that names the pieces in order, and
returns: Spark's commit means *ingested*. On re-delivery the file that is there wins; pieces that none names never
happened, and are swept away.

A second loop makes batches of what has arrived, so that ingestion never waits for processing: which arrivals make
batch b is written first (`batches/b.json`), then the pieces are committed to the source logs; a driver that dies in
between finds the list and goes on. Rows are written once, and do not pass through the driver.

Back-pressure: when more than `most_behind` micro-batches of a source are waiting, `foreachBatch` waits too, so the lag
is bounded and the source's own limits decide what it holds meanwhile.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa

from holdfast.application import Application, steps
from holdfast.durable_files import link_durably
from holdfast.errors import BadInput, CheckFailed, HoldfastError
from holdfast.ids import BatchId, OperatorId
from holdfast.runtime.io.source_pieces import Piece, piece_fields, piece_of, write_piece
from holdfast.runtime.io.sources import DirectoryLog
from holdfast.runtime.program import SourceProgram
from holdfast.runtime.times import Watermark, lowest
from holdfast.spark.readers import open_sources
from holdfast.spark.run import SparkRun
from holdfast.spark.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

MOST_ARRIVALS = 16
"""Micro-batches of one source that one batch takes at most, unless told otherwise."""
LISTS_KEPT = 1000
"""Of which arrivals made a batch, so many lists stay: the last one would do."""
PIECE_BYTES = 64 << 20
"""About how much of a task's rows one piece has at most: what a task holds in memory."""
_LOOK_AGAIN = 0.05
"""Seconds between two looks whether waiting is over."""
_WRITTEN = "task int, number int, piece string, problem string"


class IngestionStopped(HoldfastError):
    """Raised in a source's query that waited when reading was stopped: its micro-batch was not taken."""


class Ingestion:
    """The streaming queries that feed a run, and the batches made of what they bring."""

    def __init__(
        self,
        app: Application,
        spark: SparkSession,
        run: SparkRun,
        directory: Path,
        *,
        most_arrivals: int = MOST_ARRIVALS,
        most_behind: int | None = None,
        idle_batches: int | None = None,
        frames: Mapping[OperatorId, DataFrame] | None = None,
    ) -> None:
        """Prepare a query for every source; each must have a reader. `directory` is the run's.

        `frames`: the sources' DataFrames, where they are open already (None: they are opened by `start`).

        `most_arrivals`: micro-batches that one batch takes at most. `most_behind`: micro-batches that may wait; then
        sources wait too (None: as spark.holdfast.ingest.maxPendingBatches says). `idle_batches`: a source without rows
        for so many batches no longer holds the watermark back: its watermark goes with those of the sources that have
        rows, and what it brings later may be late. None: it does hold it back.
        """
        self._run, self._spark = run, spark
        self._most_arrivals, self._idle = most_arrivals, idle_batches
        self._most_behind = Settings.read(spark).max_pending_batches if most_behind is None else most_behind
        self._directory = Path(directory) / "ingest"
        self._app, self._frames = app, frames
        self._logs: dict[OperatorId, DirectoryLog] = {}
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
            source = run.program.sources[name]
            self._logs[name] = DirectoryLog(source, run.program.name, Path(directory) / "sources" / name)
            (self._directory / name / "arrived").mkdir(parents=True, exist_ok=True)
        (self._directory / "batches").mkdir(parents=True, exist_ok=True)
        self._queries: dict[OperatorId, StreamingQuery] = {}
        self._stopping = False
        self._problems: dict[OperatorId, BadInput] = {}
        self._taken_by: dict[BatchId, Mapping[str, list[int]]] = {}
        """Which arrivals are in batches that may not be processed yet."""
        self._guard = Lock()  # sources' queries look at it from threads of their own
        self._resume()

    def start(self, *, available_now: bool = False) -> None:
        """Start reading; with `available_now`, read what there is and end."""
        self._stopping = False
        frames = open_sources(self._app, self._spark) if self._frames is None else self._frames
        for name, frame in frames.items():
            schema = self._run.program.sources[name].schema
            writer = (
                frame.select(*schema.names)
                .writeStream.queryName(f"holdfast {self._run.id}: {name}")
                .option("checkpointLocation", str(self._directory / name / "checkpoint"))
                .foreachBatch(partial(self._arrived, name))
            )
            self._logs[name].check_open()
            self._check_query(name)
            self._queries[name] = (writer.trigger(availableNow=True) if available_now else writer).start()
            self._link(self._directory / name, "query.json", json.dumps({"id": self._queries[name].id}).encode())

    def _check_query(self, name: OperatorId) -> None:
        """Refuse a checkpoint of Spark's that is not the one this log was read with: its micro-batches count anew."""
        known, place = self._directory / name / "query.json", self._directory / name / "checkpoint"
        if not known.exists():
            return
        wanted, found = json.loads(known.read_bytes())["id"], None
        with suppress(FileNotFoundError, ValueError, KeyError):
            found = json.loads((place / "metadata").read_bytes())["id"]
        if found != wanted:
            raise BadInput(
                "Spark's checkpoint of this source is gone" if found is None else "Spark's checkpoint is another one",
                where=f"source {name}",
                field=str(place),
                remedy="bring it back; or begin in another directory, for what was read before would come again",
            )

    def stop(self) -> None:
        """Stop reading; what has arrived stays."""
        self._stopping = True
        for query in self._queries.values():
            query.stop()

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
    def waiting(self) -> dict[str, int]:
        """Micro-batches of each source that are written down and not processed."""
        processed = self._run.live_frontier  # those that wait for nodes have the log; live ones must not wait for them
        with self._guard:
            for batch in [batch for batch in self._taken_by if batch <= processed]:
                del self._taken_by[batch]
            in_batches = list(self._taken_by.values())
        return {
            name: sum(number > self._taken[name] for number in self._there(name))
            + sum(len(taken.get(name, ())) for taken in in_batches)
            for name in self._logs
        }

    def await_available(self) -> dict[str, int]:
        """Wait until everything the sources have now is written down; return the last micro-batch of each."""
        for query in self._queries.values():
            query.processAllAvailable()
        return {name: max([self._taken[name], *self._there(name)]) for name in self._logs}

    def has_taken(self, through: Mapping[str, int]) -> bool:
        """Whether batches hold the micro-batches up to these."""
        return all(self._taken[name] >= number for name, number in through.items())

    @property
    def unlogged(self) -> bool:
        """Whether micro-batches are written down that are in no batch yet."""
        return any(number > self._taken[name] for name in self._logs for number in self._there(name))

    def make_batch(self) -> BatchId | None:
        """Make the next batch of what has arrived, and log it; None where nothing has."""
        taken: dict[str, list[int]] = {}
        for name in self._logs:
            fresh = sorted(number for number in self._there(name) if number > self._taken[name])
            taken[name] = fresh[: self._most_arrivals]
        if not any(taken.values()):
            return None
        batch = BatchId(self._run.logged + 1)
        made = {"taken": taken, "through": {name: max([self._taken[name], *taken[name]]) for name in taken}}
        if not self._link(self._directory / "batches", f"{batch}.json", json.dumps(made).encode()):
            raise CheckFailed(
                f"batch {batch} was made by another driver", where="ingestion", remedy="only one run may feed a log"
            )
        self._log(batch, taken)
        return batch

    # -- arrivals ---------------------------------------------------------------------------------------------------

    def _arrived(self, name: OperatorId, frame: DataFrame, number: int) -> None:
        """Write a micro-batch down, once: its rows on the executors, then what makes them count."""
        arrived = self._directory / name / "arrived"
        self._await_room(name)
        if number <= self._taken[name] or (arrived / f"{number}.json").exists():
            return
        source, log = self._run.program.sources[name], self._logs[name]
        write = partial(_write_pieces, source, str(log.directory), number)
        found = frame.mapInArrow(write, _WRITTEN).toArrow().to_pylist()
        for row in found:
            if row["problem"] is not None:
                self._problems[name] = BadInput(row["problem"], remedy="mend the source, then run again")
                raise self._problems[name]
        pieces = [json.loads(row["piece"]) for row in sorted(found, key=lambda row: (row["task"], row["number"]))]
        if self._link(arrived, f"{number}.json", json.dumps(pieces).encode()):
            self._sweep(name, number, {piece["file"] for piece in pieces})

    def _await_room(self, name: OperatorId) -> None:
        """Wait while too much of a source is waiting for processing."""
        while self.waiting[name] >= self._most_behind:
            if self._stopping:
                # Returning would tell Spark that the micro-batch was taken.
                raise IngestionStopped("reading was stopped", where=f"source {name}")
            time.sleep(_LOOK_AGAIN)

    def _sweep(self, name: OperatorId, number: int, named: Set[str]) -> None:
        """Remove pieces of this micro-batch that are not among those that count: attempts that never happened."""
        for path in self._logs[name].directory.glob(f"arrival-{number}.*.rows"):
            if path.name not in named:
                path.unlink(missing_ok=True)

    def _there(self, name: str) -> list[int]:
        return [int(path.stem) for path in (self._directory / name / "arrived").glob("[0-9]*.json")]

    # -- batches ----------------------------------------------------------------------------------------------------

    def _resume(self) -> None:
        """Find what earlier drivers took, and log a batch whose list was written but whose rows were not."""
        self._taken = dict.fromkeys(map(str, self._logs), -1)
        lists = {int(path.stem): path for path in (self._directory / "batches").glob("[0-9]*.json")}
        for number in sorted(lists):
            made = json.loads(lists[number].read_bytes())
            taken: dict[str, list[int]] = made["taken"]
            if number > self._run.logged:
                self._log(BatchId(number), taken)
            self._took(BatchId(number), taken)
            for name in self._taken:
                self._taken[name] = max(self._taken[name], made["through"].get(name, -1))

    def _log(self, batch: BatchId, taken: Mapping[str, list[int]]) -> None:
        """Commit the pieces of the arrivals to the logs; sources without any have an empty batch."""
        for name, log in self._logs.items():
            arrived = self._directory / name / "arrived"
            pieces: list[Piece] = []
            if log.manifest(batch) is None:
                for number in taken[name]:
                    pieces += [piece_of(one) for one in json.loads((arrived / f"{number}.json").read_bytes())]
            log.commit(batch, pieces, at_least=self._idle_watermark(name, batch))
        self._took(batch, taken)
        for source, numbers in taken.items():
            for number in numbers:
                (self._directory / source / "arrived" / f"{number}.json").unlink(missing_ok=True)
        (self._directory / "batches" / f"{batch - LISTS_KEPT}.json").unlink(missing_ok=True)

    def _idle_watermark(self, name: OperatorId, batch: BatchId) -> Watermark:
        """Return where an idle source's watermark must stand: a function of the batches before, so replays agree."""
        if self._idle is None or not self._is_idle(name, batch):
            return None
        marks = []
        for other, log in self._logs.items():
            before = log.manifest(BatchId(batch - 1))
            if other != name and before is not None and not self._is_idle(other, batch):
                marks.append(before.watermark)
        return lowest(marks) if marks else None

    def _is_idle(self, name: OperatorId, batch: BatchId) -> bool:
        assert self._idle is not None
        before = [self._logs[name].manifest(BatchId(number)) for number in range(batch - self._idle, batch)]
        return all(one is not None and not sum(one.rows) for one in before)

    def _took(self, batch: BatchId, taken: Mapping[str, list[int]]) -> None:
        if batch > self._run.live_frontier:
            with self._guard:
                self._taken_by[batch] = taken
        for name, numbers in taken.items():
            self._taken[name] = max([self._taken[name], *numbers])

    @staticmethod
    def _link(folder: Path, name: str, data: bytes) -> bool:
        return link_durably(folder / name, data)


def _write_pieces(
    source: SourceProgram, directory: str, arrival: int, given: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write the rows of one task as a piece; answer with what it is, or with what is wrong. Runs on an executor."""
    from pyspark import TaskContext

    context = TaskContext.get()
    task = 0 if context is None else context.partitionId()
    for number, rows in enumerate(_in_pieces(given)):
        path = Path(directory) / f"arrival-{arrival}.{uuid4().hex[:12]}.rows"
        piece = problem = None
        try:
            piece = json.dumps(piece_fields(write_piece(source, rows, path)))
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
