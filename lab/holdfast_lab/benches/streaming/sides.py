"""The sides of a comparison, fed with the same files and timed alike. Runs on the driver.

All are started, warmed up and then left running: a round gives a side some files and takes the time until all their
outputs are in Parquet. The sides that are not measured have nothing to do meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.application import Application, steps
from holdfast.errors import CheckFailed
from holdfast.ids import BatchId, OperatorId
from holdfast.spark.ingest import Ingestion
from holdfast.spark.run import SparkRun
from holdfast.spark.settings import Settings
from holdfast_lab.baselines.structured_streaming import StreamOfFiles, StructuredStreaming, add_files
from holdfast_lab.benches.streaming.operators_alone import OperatorsAlone
from holdfast_lab.benches.streaming.workloads import Workload

if TYPE_CHECKING:
    from holdfast_lab.baselines.structured_streaming import Session

Batch = Mapping[str, pa.Table]


class Feed:
    """Folders of files, one for each source: a batch is cut into as many files as tasks should read it."""

    def __init__(self, app: Application, folder: Path, files_per_batch: int) -> None:
        self.files_per_batch = files_per_batch
        self.streams = [
            StreamOfFiles(name, folder / name, app.columns[name] or {}, step.event_time, f"{step.lateness} seconds")
            for name, step in app.steps.items()
            if isinstance(step, steps.Source)
        ]
        for stream in self.streams:
            stream.folder.mkdir(parents=True)
        self._files = 0

    def add(self, batches: Sequence[Batch]) -> None:
        """Add batches, each as files of equal length."""
        parts = self.files_per_batch
        for stream in self.streams:
            tables = []
            for batch in batches:
                rows = batch[stream.name]
                cuts = [rows.num_rows * part // parts for part in range(parts + 1)]
                tables += [rows.slice(low, high - low) for low, high in pairwise(cuts)]
            add_files(stream, self._files, tables)
        self._files += parts * len(batches)


class Side(Protocol):
    """One of those that are compared."""

    name: str

    def add(self, batches: Sequence[Batch]) -> None:
        """Give batches to be processed: as files, or in the log."""
        ...

    def process(self) -> float:
        """Process what was added; return the seconds until the last output."""
        ...

    def rows(self, output: str) -> pa.Table:
        """Return the rows of an output."""
        ...

    def close(self) -> None:
        """End."""
        ...


class HoldfastSide:
    """Holdfast: streaming DataFrames into the source log, tasks that stay or cycles as Spark jobs, Parquet."""

    def __init__(
        self,
        workload: Workload,
        spark: Session,
        folder: Path,
        files_per_batch: int,
        secret_file: Path | None = None,
        exchange: str = "resident",
    ) -> None:
        self.name = "holdfast" if exchange == "resident" else exchange
        app = workload.application()
        self.feed = Feed(app, folder / "in", files_per_batch)
        for stream in self.feed.streams:
            source = app.steps[OperatorId(stream.name)]
            assert isinstance(source, steps.Source)
            app.steps[OperatorId(stream.name)] = replace(source, reader=partial(_frame, stream, files_per_batch))
        self._outputs = tuple(workload.sql)
        settings = replace(Settings.read(spark), exchange=exchange)
        sinks: dict[str, object] = {name: str(folder / "out" / name) for name in self._outputs}
        self._run = SparkRun(app, spark, folder / "run", sinks=sinks, settings=settings, secret_file=secret_file)
        # One micro-batch to a batch: both sides work in batches of the same rows.
        self._ingestion = Ingestion(app, spark, self._run, most_arrivals=1)
        self._counted, self._rows = -1, 0
        self._expected = 0
        self._ingestion.start()

    def add(self, batches: Sequence[Batch]) -> None:
        """Give batches as files."""
        self.feed.add(batches)
        self._expected += sum(rows.num_rows for batch in batches for rows in batch.values())

    def process(self) -> float:
        """Process what was added; return the seconds until the last output."""
        began = time.perf_counter()
        while self._logged_rows() < self._expected:
            if not self._ingestion.reading:
                raise CheckFailed("reading ended before all files were read", where="holdfast's side")
            while self._ingestion.make_batch() is not None:
                pass
            self._run.run()
            time.sleep(0.005)
        self._run.run()
        return time.perf_counter() - began

    def _logged_rows(self) -> int:
        while self._counted < self._run.logged:
            self._counted += 1
            self._rows += sum(self._run.logged_rows(BatchId(self._counted)).values())
        return self._rows

    def rows(self, output: str) -> pa.Table:
        """Return the rows of an output."""
        return self._run.rows(output)

    def close(self) -> None:
        """Stop reading and let go of the executors."""
        self._ingestion.stop()
        self._run.close()


class LoggedSide:
    """Holdfast with tasks that stay, from rows that are logged already: without what reads sources."""

    name = "logged"

    def __init__(self, workload: Workload, spark: Session, folder: Path, secret_file: Path | None = None) -> None:
        self._outputs = tuple(workload.sql)
        sinks: dict[str, object] = {name: str(folder / "out" / name) for name in self._outputs}
        settings = replace(Settings.read(spark), exchange="resident")
        app = workload.application()
        self._run = SparkRun(app, spark, folder / "run", sinks=sinks, settings=settings, secret_file=secret_file)

    def add(self, batches: Sequence[Batch]) -> None:
        """Log batches."""
        for batch in batches:
            self._run.log(batch)

    def process(self) -> float:
        """Process what was added; return the seconds until the last output."""
        began = time.perf_counter()
        self._run.run()
        return time.perf_counter() - began

    def rows(self, output: str) -> pa.Table:
        """Return the rows of an output."""
        return self._run.rows(output)

    def close(self) -> None:
        """Let go of the executors."""
        self._run.close()


class PyArrowSide:
    """The operators alone, in this process: files read, kernels one after the other, Parquet. No engine, one core.

    Each operator takes all rows at once, whatever its parallelism. No log, no state files, no exchange, no recovery:
    what rows cost at the least.
    """

    name = "pyarrow"

    def __init__(self, workload: Workload, folder: Path, files_per_batch: int) -> None:
        app = workload.application()
        self.feed = Feed(app, folder / "in", files_per_batch)
        self._operators = OperatorsAlone(app)
        self._folder, self._outputs = folder / "out", tuple(workload.sql)
        self._batches = self._read = 0
        for output in self._outputs:
            (self._folder / output).mkdir(parents=True)

    def add(self, batches: Sequence[Batch]) -> None:
        """Give batches as files."""
        self.feed.add(batches)

    def process(self) -> float:
        """Process what was added; return the seconds until the last output."""
        began = time.perf_counter()
        new = {one.name: sorted(one.folder.iterdir())[self._read :] for one in self.feed.streams}
        parts = self.feed.files_per_batch
        many = len(next(iter(new.values())))
        for first in range(0, many, parts):
            self._step({name: files[first : first + parts] for name, files in new.items()})
        self._read += many
        return time.perf_counter() - began

    def _step(self, files: Mapping[str, Sequence[Path]]) -> None:
        read = {
            name: pa.concat_tables([pq.read_table(one, use_threads=False) for one in some])
            for name, some in files.items()
        }
        made = self._operators.step(read)
        for name in self._outputs:
            if made[name] is not None:
                pq.write_table(made[name], self._folder / name / f"{self._batches:08}.parquet")
        self._batches += 1

    def rows(self, output: str) -> pa.Table:
        """Return the rows of an output."""
        files = sorted((self._folder / output).iterdir())
        return pa.concat_tables([pq.read_table(one) for one in files]) if files else pa.table({})

    def close(self) -> None:
        """Nothing is left running."""


class StructuredStreamingSide:
    """Structured Streaming: one query for each output, Parquet."""

    name = "structured-streaming"

    def __init__(
        self, workload: Workload, spark: Session, folder: Path, files_per_batch: int, state_store: str
    ) -> None:
        self.feed = Feed(workload.application(), folder / "in", files_per_batch)
        self._queries = StructuredStreaming(
            spark,
            self.feed.streams,
            workload.sql,
            folder / "queries",
            files_per_batch=files_per_batch,
            state_store=state_store,
        )
        self._queries.start()

    def add(self, batches: Sequence[Batch]) -> None:
        """Give batches as files."""
        self.feed.add(batches)

    def process(self) -> float:
        """Process what was added; return the seconds until the last output."""
        began = time.perf_counter()
        self._queries.process_all()
        return time.perf_counter() - began

    def rows(self, output: str) -> pa.Table:
        """Return the rows of an output."""
        return self._queries.rows(output)

    def close(self) -> None:
        """Stop the queries."""
        self._queries.stop()


def _frame(stream: StreamOfFiles, files_per_batch: int, spark: Any) -> Any:
    return stream.frame(spark, files_per_batch)


def same_rows(ours: pa.Table, theirs: pa.Table) -> str | None:
    """Compare what two sides gave, in the columns of theirs and in any order; say what differs."""
    if not theirs.num_columns:
        return None if not ours.num_rows else f"{ours.num_rows} rows against none"
    pair = []
    for table in (ours.select(theirs.column_names), theirs):
        columns = {
            name: column.cast(pa.timestamp("us")) if pa.types.is_timestamp(column.type) else column
            for name, column in zip(table.column_names, table.columns, strict=True)
        }
        order = [(name, "ascending") for name in columns]
        pair.append(pa.table(columns).sort_by(order).combine_chunks())
    mine, other = pair
    if mine.num_rows != other.num_rows:
        return f"{mine.num_rows} rows against {other.num_rows}"
    for name in mine.column_names:
        if not mine[name].cast(other[name].type).equals(other[name]):
            return f"column {name} differs"
    return None
