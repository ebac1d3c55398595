"""Structured Streaming itself, computing outputs that are given as SQL: what Holdfast is measured against.

Runs on the driver. One streaming query for every output, as Structured Streaming needs it: each reads the same folders
of Parquet files, so many files to a micro-batch, and appends to a folder of Parquet files of its own. Benches feed it
beside Holdfast; drills kill nodes under it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.errors import BadInput, CheckFailed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    Session: TypeAlias = SparkSession
    """For those above, which do not import pyspark."""

STATE_STORES = {
    "memory": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
    "rocksdb": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}
"""Spark's two: its default, in the executor's heap, and RocksDB, its choice for large states."""

_FIRST_CHANGED = 1_700_000_000

DDL_TYPES = {
    "string": "string",
    "double": "double",
    "int64": "bigint",
    "timestamp[us]": "timestamp",
    "bool": "boolean",
}
"""Spark's names of the column types that the examples declare."""


@dataclass(frozen=True, slots=True)
class StreamOfFiles:
    """A folder into which Parquet files come, read as a stream in the order they were changed."""

    name: str
    """The name under which SQL reads it."""
    folder: Path
    columns: Mapping[str, str]
    """Column names and their declared types."""
    event_time: str | None = None
    lateness: str = "0 seconds"

    @property
    def ddl(self) -> str:
        """The columns as Spark writes them."""
        try:
            return ", ".join(f"`{name}` {DDL_TYPES[kind]}" for name, kind in self.columns.items())
        except KeyError as error:
            raise BadInput(
                f"no Spark type is known for {error.args[0]!r}",
                where=f"stream {self.name}",
                remedy=f"known are {', '.join(DDL_TYPES)}",
            ) from None

    def frame(self, spark: SparkSession, files_per_batch: int) -> DataFrame:
        """Return the streaming DataFrame, without a watermark."""
        reader = spark.readStream.schema(self.ddl).option("maxFilesPerTrigger", files_per_batch)
        return reader.parquet(str(self.folder))


class StructuredStreaming:
    """Streaming queries, one for each output, that read the same streams; use it as a context or stop it."""

    def __init__(
        self,
        spark: SparkSession,
        streams: Sequence[StreamOfFiles],
        outputs: Mapping[str, str],
        directory: Path,
        *,
        files_per_batch: int = 1,
        state_store: str = "rocksdb",
    ) -> None:
        """Prepare: `outputs` are SELECT statements over the streams' names; results and checkpoints go to DIR."""
        if state_store not in STATE_STORES:
            raise BadInput(f"{state_store!r}", field="state store", remedy=f"use one of {', '.join(STATE_STORES)}")
        self._spark, self._streams, self._outputs = spark, tuple(streams), dict(outputs)
        self._directory, self._files = Path(directory), files_per_batch
        self._store = state_store
        self._queries: dict[str, StreamingQuery] = {}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start every query; they run until they are stopped. Started again, they go on from their checkpoints."""
        self._spark.conf.set("spark.sql.streaming.stateStore.providerClass", STATE_STORES[self._store])
        for stream in self._streams:
            frame = stream.frame(self._spark, self._files)
            if stream.event_time is not None:
                frame = frame.withWatermark(stream.event_time, stream.lateness)
            frame.createOrReplaceTempView(stream.name)
        for name, text in self._outputs.items():
            writer = (
                self._spark.sql(text)
                .writeStream.queryName(f"structured streaming {name}")
                .outputMode("append")
                .option("checkpointLocation", str(self._directory / name / "checkpoint"))
                .format("parquet")
                .option("path", str(self.folder(name)))
            )
            self._queries[name] = writer.start()

    def folder(self, output: str) -> Path:
        """Return where an output's Parquet files are."""
        return self._directory / output / "out"

    def process_all(self) -> None:
        """Wait until every query has processed the files that are there; one that failed raises."""
        for name, query in self._queries.items():
            try:
                query.processAllAvailable()
            except Exception as error:
                raise self._failed(name, error) from None

    @property
    def active(self) -> dict[str, bool]:
        """Which queries run."""
        return {name: query.isActive for name, query in self._queries.items()}

    def last_trigger(self, output: str) -> str | None:
        """Return when the last trigger began that Spark has something to say of."""
        last = self._queries[output].lastProgress
        return None if last is None else str(last["timestamp"])

    def batches(self, output: str) -> list[dict[str, Any]]:
        """Return what Spark says of a query's last micro-batches."""
        return [json.loads(one.json) for one in self._queries[output].recentProgress]

    def rows(self, output: str) -> pa.Table:
        """Return the rows an output has given so far: those that Spark's file log has committed."""
        if not self.folder(output).exists():
            return pa.table({})
        return self._spark.read.parquet(str(self.folder(output))).toArrow()

    def stop(self) -> None:
        """Stop every query; results and checkpoints stay."""
        for query in self._queries.values():
            query.stop()

    @staticmethod
    def _failed(name: str, error: BaseException) -> CheckFailed:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return CheckFailed(f"query {name} stopped: {first}", where="structured streaming")


def add_file(stream: StreamOfFiles, number: int, rows: pa.Table) -> None:
    """Put one file into a stream's folder; see add_files."""
    add_files(stream, number, [rows])


def add_files(stream: StreamOfFiles, first: int, tables: Sequence[pa.Table]) -> None:
    """Put files into a stream's folder, one for each table, nearly at once; they are read in order of their numbers.

    Times are written as instants (UTC), which is what Spark's `timestamp` is; ours are the same numbers without a zone.
    """
    stream.folder.mkdir(parents=True, exist_ok=True)
    beside = []
    for number, rows in enumerate(tables, first):
        columns = [
            column.cast(pa.timestamp("us", tz="UTC")) if pa.types.is_timestamp(column.type) else column
            for column in rows.columns
        ]
        path = stream.folder / f".{number:08d}.parquet"  # readers pass over names that begin with a dot
        pq.write_table(pa.table(dict(zip(rows.column_names, columns, strict=True))), path)
        os.utime(path, (_FIRST_CHANGED + number, _FIRST_CHANGED + number))  # Spark reads files in the order of these
        beside.append(path)
    for path in beside:
        path.replace(path.with_name(path.name.removeprefix(".")))
