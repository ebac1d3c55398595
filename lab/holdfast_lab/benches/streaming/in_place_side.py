"""Holdfast with sources that are read in place, as a side of a comparison: no streaming query, no copy.

Runs on the driver.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

import holdfast as hf
from holdfast.application import steps
from holdfast.application.kafka_topics import KafkaTopic
from holdfast.application.readers import Files
from holdfast.errors import BadInput, CheckFailed
from holdfast.ids import OperatorId
from holdfast.spark.ingest import Ingestion
from holdfast.spark.run import SparkRun
from holdfast.spark.settings import Settings
from holdfast_lab.benches.streaming.workloads import Workload

if TYPE_CHECKING:
    from holdfast_lab.baselines.structured_streaming import Session
    from holdfast_lab.benches.streaming.sides import Batch

_FIRST_CHANGED = 1_700_000_000
_SECONDS = 120.0


class InPlaceSide:
    """Holdfast with tasks that stay; source partitions read Parquet, CSV, JSON files or a Kafka topic themselves."""

    def __init__(
        self,
        workload: Workload,
        spark: Session,
        folder: Path,
        files_per_batch: int,
        secret_file: Path | None = None,
        format: str = "parquet",  # noqa: A002
        servers: str = "",
    ) -> None:
        """`format` is that of the files, or `kafka`: JSON in a topic of each source, as many partitions as files."""
        self.name = "in-place" if format == "parquet" else f"in-place-{format}"
        self._format, self._parts, self._folder, self._files = format, files_per_batch, folder / "in", 0
        self._topics: dict[OperatorId, str] = {}
        app = workload.application()
        self._sources = [name for name, step in app.steps.items() if isinstance(step, steps.Source)]
        for name in self._sources:
            (self._folder / name).mkdir(parents=True)
            source = app.steps[OperatorId(name)]
            assert isinstance(source, steps.Source)
            if app.keys[name][0] and app.operator(name).parallelism > 1:
                raise BadInput(f"source {name} has a key", where=self.name, remedy="compare another workload")
            if format == "kafka":
                reader: Files | KafkaTopic = self._topic(servers, name)
            else:
                reader = hf.files(str(self._folder / name), format, settle=0, maxFilesPerTrigger=files_per_batch)
            app.steps[OperatorId(name)] = replace(source, reader=reader)
        sinks: dict[str, object] = {name: str(folder / "out" / name) for name in workload.sql}
        settings = replace(Settings.read(spark), exchange="resident")
        self._run = SparkRun(app, spark, folder / "run", sinks=sinks, settings=settings, secret_file=secret_file)
        self._ingestion = Ingestion(app, spark, self._run, settings=settings)
        self._expected = 0
        self._ingestion.start()

    def add(self, batches: Sequence[Batch]) -> None:
        """Give batches as files."""
        for batch in batches:
            for name in self._sources:
                rows = batch[str(name)]
                cuts = [rows.num_rows * part // self._parts for part in range(self._parts + 1)]
                for part, (low, high) in enumerate(pairwise(cuts)):
                    self._write(name, self._files + part, rows.slice(low, high - low))
            self._files += self._parts
        self._expected += sum(rows.num_rows for batch in batches for rows in batch.values())

    def _topic(self, servers: str, name: OperatorId) -> KafkaTopic:
        """Create the topic of a source, and what writes to it."""
        from confluent_kafka import Producer
        from confluent_kafka.admin import AdminClient, NewTopic

        topic = f"{name}-{uuid4().hex[:8]}"
        self._topics[name] = topic
        client = AdminClient({"bootstrap.servers": servers, "log_level": 0})
        for future in client.create_topics([NewTopic(topic, self._parts, 1)]).values():
            future.result(_SECONDS)
        settings = {"bootstrap.servers": servers, "log_level": 0, "linger.ms": 50}
        self._producer: Any = Producer(settings | {"queue.buffering.max.messages": 1_000_000})
        return hf.kafka(servers, topic)

    def _produce(self, name: OperatorId, part: int, rows: pa.Table) -> None:
        names = [f'"{column}": ' for column in rows.column_names]
        columns = [_json_texts(rows[column]) for column in rows.column_names]
        for values in zip(*columns, strict=True):
            text = ", ".join(map(str.__add__, names, values))
            while True:
                try:
                    self._producer.produce(self._topics[name], f"{{{text}}}".encode(), partition=part)
                    break
                except BufferError:
                    self._producer.poll(0.1)
            self._producer.poll(0)
        if self._producer.flush(_SECONDS):
            raise CheckFailed("the broker does not take the records", where=self.name)

    def _write(self, name: OperatorId, number: int, rows: pa.Table) -> None:
        if self._format == "kafka":
            self._produce(name, number % self._parts, rows)
            return
        path = self._folder / name / f"_{number:08}"
        if self._format == "csv":
            pyarrow.csv.write_csv(rows, path, pyarrow.csv.WriteOptions(include_header=False))
        elif self._format == "json":
            with path.open("w") as file:
                for row in rows.to_pylist():
                    file.write(json.dumps(row, default=lambda value: value.isoformat()) + "\n")
        else:
            pq.write_table(rows, path)
        os.utime(path, (_FIRST_CHANGED + number,) * 2)
        path.rename(path.with_name(f"{number:08}.{self._format}"))

    def process(self) -> float:
        """Process what was added; return the seconds until the last output."""
        began = time.perf_counter()
        reads = self._run.coordinator.reads
        while sum(reads.rows_read.values()) < self._expected or reads.is_ahead():
            if not self._ingestion.reading:
                raise CheckFailed("reading ended before all files were read", where=self.name)
            while self._ingestion.make_batch() is not None:
                pass
            self._run.run()
            time.sleep(0.005)
        self._run.run()
        return time.perf_counter() - began

    def rows(self, output: str) -> pa.Table:
        """Return the rows of an output."""
        return self._run.rows(output)

    def close(self) -> None:
        """Stop reading and let go of the executors."""
        self._ingestion.stop()
        self._run.close()


def _json_texts(column: pa.ChunkedArray) -> list[str]:
    """Return the values of a column as JSON."""
    if pa.types.is_timestamp(column.type) or pa.types.is_string(column.type):
        return [f'"{text}"' for text in column.cast(pa.string()).to_pylist()]
    return [json.dumps(value) for value in column.to_pylist()]
