"""From streaming DataFrames into the source log. Runs on the driver.

Structured Streaming reads each source and hands every micro-batch to `foreachBatch`, which writes it down and returns:
Spark's commit means *ingested*. On re-delivery the file that is there wins. A second loop makes batches of what has
arrived, so that ingestion never waits for processing: which arrivals make batch b is written first
(`batches/b.json`), then the batch goes into the source logs; a driver that dies in between finds the list and goes on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.application import Application, steps
from holdfast.errors import BadInput, CheckFailed
from holdfast.ids import BatchId, OperatorId
from holdfast.spark.run import SparkRun

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

MOST_ARRIVALS = 16
"""Micro-batches of one source that one batch takes at most."""


class Ingestion:
    """The streaming queries that feed a run, and the batches made of what they bring."""

    def __init__(self, app: Application, spark: SparkSession, run: SparkRun, directory: Path) -> None:
        """Prepare a source's query for every source; each must have a frame."""
        self._run, self._spark = run, spark
        self._directory = Path(directory) / "ingest"
        self._frames = {}
        for name, step in app.steps.items():
            if not isinstance(step, steps.Source):
                continue
            if step.frame is None:
                raise BadInput(
                    "has no streaming DataFrame",
                    where=f"application {app.name}",
                    field=f"{name}.frame",
                    remedy="give the source one: app.source(…, lambda spark: spark.readStream…)",
                )
            self._frames[name] = step.frame
            (self._directory / name / "arrived").mkdir(parents=True, exist_ok=True)
        (self._directory / "batches").mkdir(parents=True, exist_ok=True)
        self._queries: dict[OperatorId, StreamingQuery] = {}
        self._resume()

    def start(self, *, available_now: bool = False) -> None:
        """Start reading; with `available_now`, read what there is and end."""
        for name, make in self._frames.items():
            schema = self._run.program.sources[name].schema
            frame = make(self._spark)
            if not getattr(frame, "isStreaming", False):
                raise BadInput(
                    "is not a streaming DataFrame", field=f"{name}.frame", remedy="make it with spark.readStream"
                )
            if missing := [column for column in schema.names if column not in frame.columns]:
                raise BadInput(
                    f"has no column {missing[0]!r}",
                    field=f"{name}.frame",
                    remedy=f"it has {', '.join(frame.columns)}; select or rename to the declared schema",
                )
            writer = (
                frame.select(*schema.names)
                .writeStream.queryName(f"holdfast ingest {name}")
                .option("checkpointLocation", str(self._directory / name / "checkpoint"))
                .foreachBatch(partial(self._arrived, name))
            )
            self._queries[name] = (writer.trigger(availableNow=True) if available_now else writer).start()

    def stop(self) -> None:
        """Stop reading; what has arrived stays."""
        for query in self._queries.values():
            query.stop()

    @property
    def reading(self) -> bool:
        """Whether a source is still being read; a query that failed raises what it failed with."""
        for name, query in self._queries.items():
            if (problem := query.exception()) is not None:
                first = str(problem).strip().splitlines()[0]
                raise CheckFailed(f"stopped: {first}", where=f"source {name}", remedy="mend it, then run again")
        return any(query.isActive for query in self._queries.values())

    def make_batch(self) -> BatchId | None:
        """Make the next batch of what has arrived, and log it; None where nothing has."""
        taken: dict[str, list[int]] = {}
        for name in self._frames:
            fresh = sorted(number for number in self._there(name) if number > self._taken[name])
            taken[name] = fresh[:MOST_ARRIVALS]
        if not any(taken.values()):
            return None
        batch = BatchId(self._run.logged + 1)
        self._write(self._directory / "batches" / f"{batch}.json", json.dumps(taken).encode())
        self._log(batch, taken)
        return batch

    # -- inside -----------------------------------------------------------------------------------------------------

    def _arrived(self, name: OperatorId, frame: DataFrame, number: int) -> None:
        """Write a micro-batch down, once."""
        path = self._directory / name / "arrived" / f"{number}.arrow"
        if number <= self._taken[name] or path.exists():
            return
        table = frame.toArrow()
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        self._write(path, memoryview(sink.getvalue()))

    def _there(self, name: str) -> list[int]:
        return [int(path.stem) for path in (self._directory / name / "arrived").glob("*.arrow")]

    def _resume(self) -> None:
        """Find what earlier drivers took, and log a batch whose list was written but whose rows were not."""
        self._taken = dict.fromkeys(map(str, self._frames), -1)
        lists = {int(path.stem): path for path in (self._directory / "batches").glob("*.json")}
        for number in sorted(lists):
            taken: dict[str, list[int]] = json.loads(lists[number].read_bytes())
            if number > self._run.logged:
                self._log(BatchId(number), taken)
            self._took(taken)

    def _log(self, batch: BatchId, taken: Mapping[str, list[int]]) -> None:
        tables: dict[str, Any] = {}
        for name, numbers in taken.items():
            found = [self._read(self._directory / name / "arrived" / f"{number}.arrow") for number in numbers]
            if found:
                tables[name] = pa.concat_tables(found)
        self._run.log(tables, number=batch)
        self._took(taken)
        for name, numbers in taken.items():
            for number in numbers:
                (self._directory / name / "arrived" / f"{number}.arrow").unlink(missing_ok=True)

    def _took(self, taken: Mapping[str, list[int]]) -> None:
        for name, numbers in taken.items():
            self._taken[name] = max([self._taken[name], *numbers])

    @staticmethod
    def _read(path: Path) -> pa.Table:
        with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as reader:
            return reader.read_all()

    @staticmethod
    def _write(path: Path, data: bytes | memoryview) -> None:
        """Write a file whole, on the disk when this returns."""
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
