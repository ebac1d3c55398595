"""A drill's input as it arrives: files and records, some of every source for each batch interval. Beside the cluster.

The run reads them as a user's would be read. Each source has a thread of its own, so that a broker that is away holds
back its topic only. What arrives is reported (`arrived` in the history): which batch holds it is the run's decision,
and `logged` finds it out from the ranges that the run has logged.

For Spark's file stream, file n is micro-batch n: it reads one file to a micro-batch, in the order of their times of
change, which are one second apart from `FIRST_TIME` on. Nothing arrives late there.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.application import Files, KafkaTopic
from holdfast.drill.arrival_plan import Delivery, plan_deliveries
from holdfast.drill.feeds import FeedKind, SourceFeed
from holdfast.drill.source_files import Record, encode_file, encode_records
from holdfast.errors import HoldfastError

FIRST_TIME = 1_000_000_000
"""Files carry times of change one second apart from here on: Spark reads them in the order of these times."""
COMPLETE = "complete"
"""The file in the input's folder that says that everything has arrived."""
STEP_SHARE = 0.4
"""Of a batch interval, the time between the two steps of a file that is written in two."""
Arrived = Callable[[str, Mapping[str, Any]], object]
"""Takes the name of a source, and what arrived of it."""


class Topics(Protocol):
    """What writes records into the drill's topics."""

    def write(self, topic: str, records: Sequence[Record], stopped: threading.Event) -> dict[int, int]:
        """Write records; return the end of each topic partition after them, once the broker has them all."""
        ...


class ArrivingInput:
    """Delivers a drill's input as it is due; use it as threads that are stopped."""

    def __init__(
        self,
        folder: Path,
        given: Sequence[dict[str, pa.Table]],
        feeds: Mapping[str, SourceFeed],
        *,
        seed: int = 0,
        disorder: bool = False,
    ) -> None:
        """Make the sources' folders; nothing arrives yet."""
        self.folder, self._given, self._feeds = folder, given, feeds
        self.plans = {
            name: plan_deliveries(seed, name, len(given), disorder=disorder and one.kind is not FeedKind.SPARK)
            for name, one in feeds.items()
        }
        self.delivered = dict.fromkeys(feeds, 0)
        """How many pieces of each source have arrived."""
        self.problem: str | None = None
        """Why a source's input has ended early."""
        self._stopped, self._guard = threading.Event(), threading.Lock()
        self._threads: list[threading.Thread] = []
        self._arrived: Arrived = lambda source, fields: None
        self._topics: Topics | None = None
        for name in feeds:
            (folder / name).mkdir(parents=True, exist_ok=True)

    def start(
        self, began: float, every: float, arrived: Arrived = lambda source, fields: None, topics: Topics | None = None
    ) -> None:
        """Let what is due n intervals after this moment of the system's clock arrive then."""
        self._arrived, self._topics, self._step = arrived, topics, every * STEP_SHARE
        for name in self._feeds:
            thread = threading.Thread(target=self._deliver_as_due, args=(name, began, every), daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Deliver no more."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def rows(self, source: str) -> pa.Table:
        """Return the rows of everything that arrives of a source, those that come twice twice."""
        return pa.concat_tables([self._given[one.number][source] for one in self.plans[source]])

    def _deliver_as_due(self, source: str, began: float, every: float) -> None:
        for one in self.plans[source]:
            if self._stopped.wait(max(0.0, began + one.due * every - time.time())):
                return
            try:
                fields = self._write(source, one)
            except HoldfastError as error:
                self.problem = f"source {source}: {error}"
                return
            if self._stopped.is_set():
                return
            self._arrived(source, {"due": one.due, **fields})
            with self._guard:
                self.delivered[source] += 1
                whole = all(self.delivered[name] == len(plan) for name, plan in self.plans.items())
            if whole:
                hidden = self.folder / f".{COMPLETE}"
                hidden.touch()
                hidden.rename(self.folder / COMPLETE)

    def _write(self, source: str, one: Delivery) -> dict[str, Any]:
        feed, table = self._feeds[source], self._given[one.number][source]
        if isinstance(feed.reader, KafkaTopic):
            assert self._topics is not None
            ends = self._topics.write(feed.reader.topic, encode_records(table, feed.reader), self._stopped)
            return {"ends": {str(number): end for number, end in ends.items()}, "rows": table.num_rows}
        if feed.kind is FeedKind.SPARK:
            path = self._write_for_spark(source, one.number, table)
            return {"by_spark": True, "file": str(path), "bytes": path.stat().st_size, "rows": table.num_rows}
        data = encode_file(table, feed.reader)
        path = self._write_file(source, one, data, feed.reader)
        return {"file": str(path), "bytes": len(data), "rows": table.num_rows}

    def _write_file(self, source: str, one: Delivery, data: bytes, reader: Files) -> Path:
        """Write a file under a hidden name, and let it show whole; in two steps where the delivery says so."""
        name = f"{one.name}.{reader.format}"
        hidden, path = self.folder / source / f".{name}.tmp", self.folder / source / name
        half = len(data) // 2 if one.two_steps else len(data)
        with hidden.open("wb") as file:
            file.write(data[:half])
            file.flush()
            if one.two_steps:
                self._stopped.wait(self._step)
            file.write(data[half:])
        hidden.rename(path)
        return path

    def _write_for_spark(self, source: str, number: int, table: pa.Table) -> Path:
        # Spark's file stream passes over names that begin with a dot.
        hidden, path = (self.folder / source / f"{dot}{number:08d}.parquet" for dot in (".", ""))
        pq.write_table(_with_zones(table), hidden)
        os.utime(hidden, (FIRST_TIME + number, FIRST_TIME + number))
        hidden.rename(path)
        return path


def _with_zones(table: pa.Table) -> pa.Table:
    """Return times as Spark writes them: moments in UTC."""
    for number, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type) and field.type.tz is None:
            table = table.set_column(number, field.name, table.column(number).cast(pa.timestamp("us", "UTC")))
    return table
