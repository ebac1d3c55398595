"""Memory and disk of a run under a slow sink and under a burst, against the steady state. Runs on the driver.

An application hands its rows from files to a function on the driver, the sink. Three phases follow each other in one
run: a steady rate; the same rate with a sink that is slower than it; and many times the rate for a while, then the
steady rate again, with the sink as quick as before. Every phase ends when all its rows are at the sink, and at the end
each row must have come once. Meanwhile the resident memory of all processes is read by kind, and the bytes of nodes'
state files (states, outboxes, journals) and of the run's directory (batch log).

What is bounded stays where it is however long the sink is slow: so the peak of a phase is given beside that of the
first half of its time, and the growth between the halves. What a source holds meanwhile (files that are not read yet)
is its own.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.application import Application
from holdfast.errors import CheckFailed
from holdfast.runtime.io.sinks import OutputKey
from holdfast.spark.start import start
from holdfast_lab.benches.streaming.processes import by_kind, processes
from holdfast_lab.benches.streaming.scaling import unchanged

if TYPE_CHECKING:
    from holdfast.spark.cluster import EmbeddedCluster
    from holdfast_lab.baselines.structured_streaming import Session

SAMPLE_SECONDS = 0.5
FILES_PER_SECOND = 2
FILES_PER_TRIGGER = 20
PAYLOAD = 100
STATE_FILES, RUN_FILES = "nodes' state files", "batch log"
_COLUMNS = {"number": "int64", "payload": "string"}


@dataclass(frozen=True, slots=True)
class Sample:
    """What was there at a moment of a phase."""

    at: float
    """Seconds after the phase began."""
    sizes: Mapping[str, int]
    """Bytes by kind."""


@dataclass(frozen=True, slots=True)
class Phase:
    """What came of one phase."""

    name: str
    rows: int
    seconds: float
    """Until all rows were at the sink."""
    samples: tuple[Sample, ...]

    @property
    def kinds(self) -> tuple[str, ...]:
        """What was measured."""
        return tuple(dict.fromkeys(kind for one in self.samples for kind in one.sizes))

    def peak(self, kind: str) -> int:
        """The most that there was of a kind."""
        return max((one.sizes.get(kind, 0) for one in self.samples), default=0)

    def halves(self, kind: str) -> tuple[int, int]:
        """The most in the first half of the phase, and in the second."""
        middle = max(1, len(self.samples) // 2)
        first, second = self.samples[:middle], self.samples[middle:] or self.samples[-1:]
        return tuple(max((one.sizes.get(kind, 0) for one in some), default=0) for some in (first, second))  # type: ignore[return-value]


@dataclass(slots=True)
class SlowSink:
    """A function that takes as long for rows as it is told; remembers what came, by number."""

    rows_per_second: float | None = None
    seen: set[OutputKey] = field(default_factory=set)
    came: list[Any] = field(default_factory=list)
    count: int = 0

    def __call__(self, rows: pa.Table, key: OutputKey) -> None:
        """Take rows; the same again counts once."""
        if self.rows_per_second is not None:
            time.sleep(rows.num_rows / self.rows_per_second)
        if key not in self.seen:
            self.seen.add(key)
            self.came.append(rows["number"].to_numpy())
            self.count += rows.num_rows


def handing(folder: Path, partitions: int, sink: SlowSink) -> Application:
    """Return an application that hands its rows through two exchanges to a sink on the driver."""
    app = Application("handing")
    stream = app.source("s", partial(_reader, str(folder)), schema=_COLUMNS, parallelism=partitions)
    once = stream.key_by("number").map(unchanged, schema=_COLUMNS, id="L1", parallelism=partitions)
    last = once.key_by("payload").map(unchanged, schema=_COLUMNS, id="out", parallelism=partitions)
    last.output("out", sink=sink)
    return app


def _reader(folder: str, spark: Any) -> Any:
    schema = "number bigint, payload string"
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", FILES_PER_TRIGGER).parquet(folder)


class Files:
    """Writes rows as files, whole or not at all."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._numbers, self.rows = folder, itertools.count(), 0
        folder.mkdir(parents=True)
        self._draw = np.random.default_rng(1)
        self._texts = pa.array([f"{number:0{PAYLOAD}d}" for number in range(1000)])

    def write(self, rows: int) -> None:
        """Add a file of so many rows."""
        numbers = pa.array(np.arange(self.rows, self.rows + rows))
        texts = self._texts.take(pa.array(self._draw.integers(0, 1000, rows)))
        number = next(self._numbers)
        aside = self._folder / f".{number:08}"
        pq.write_table(pa.table({"number": numbers, "payload": texts}), aside)
        os.utime(aside, (1_700_000_000 + number,) * 2)  # Spark reads files by age
        aside.rename(self._folder / f"{number:08}.parquet")
        self.rows += rows


def measure_memory(
    cluster: EmbeddedCluster,
    spark: Session,
    folder: Path,
    *,
    rate: int,
    seconds: float,
    slower: float,
    burst: int,
    burst_seconds: float,
    exchange: str = "resident",
    progress: Callable[[str], object] = lambda text: None,
) -> list[Phase]:
    """Measure the three phases at so many rows a second, of so many seconds each.

    The slow sink takes `slower` times as long as the rate allows; the burst has `burst` times the rate.
    """
    sink, files = SlowSink(), Files(folder / "in")
    sampler = _Sampler(cluster, folder / "run")
    per_file = max(1, rate // FILES_PER_SECOND)
    files.write(per_file)
    run = start(
        handing(folder / "in", len(cluster.nodes), sink),
        spark,
        directory=folder / "run",
        conf={
            "spark.holdfast.exchange": exchange,
            "spark.holdfast.store.secretFile": str(cluster.secret_file),
            "spark.holdfast.keepalive.seconds": "60s",
        },
    )
    found: list[Phase] = []

    def phase(name: str, offered: Sequence[tuple[float, int]]) -> None:
        """Offer files for so many seconds each at so many times the rate, then wait until all rows came."""
        progress(f"{exchange}, {name}")
        before, began = files.rows, time.monotonic()
        with sampler.sampling() as samples:
            for length, times in offered:
                until, count = time.monotonic() + length, 0
                base = time.monotonic()
                while time.monotonic() < until:
                    due = int((time.monotonic() - base) * FILES_PER_SECOND * times) + 1
                    for _ in range(count, due):
                        files.write(per_file)
                    count = due
                    time.sleep(0.1)
            offered_for = time.monotonic() - began
            if sink.rows_per_second is not None:
                progress(f"{exchange}, {name}: {files.rows - sink.count:,} rows behind after {offered_for:.0f} s")
            _await(run, sink, files.rows)
        found.append(Phase(name, files.rows - before, time.monotonic() - began, tuple(samples)))

    try:
        progress(f"{exchange}: start")
        _await(run, sink, files.rows)
        phase("warm-up", [(seconds / 2, 1)])
        phase("steady", [(seconds, 1)])
        sink.rows_per_second = rate / slower
        phase("slow sink", [(seconds, 1)])
        sink.rows_per_second = None
        phase("burst", [(burst_seconds, burst), (burst_seconds, 1)])
    finally:
        run.stop()
    if (problem := run.exception()) is not None:
        raise problem
    numbers = np.sort(np.concatenate(sink.came))
    if not np.array_equal(numbers, np.arange(files.rows)):
        raise CheckFailed(f"{files.rows} rows were given and {len(numbers)} came out, or others", where="bench memory")
    return found[1:]


def _await(run: Any, sink: SlowSink, rows: int) -> None:
    while sink.count < rows:
        if not run.isActive:
            raise run.exception() or CheckFailed("the run ended before all rows came", where="bench memory")
        time.sleep(0.05)


class _Sampler:
    """Reads sizes now and then, in a thread of its own."""

    def __init__(self, cluster: EmbeddedCluster, run: Path) -> None:
        self._cluster, self._run = cluster, run

    @contextmanager
    def sampling(self) -> Iterator[list[Sample]]:
        """Take samples while the block runs."""
        samples: list[Sample] = []
        over, began = threading.Event(), time.monotonic()

        def sample() -> None:
            while not over.wait(SAMPLE_SECONDS):
                samples.append(Sample(time.monotonic() - began, self._sizes()))

        thread = threading.Thread(target=sample, daemon=True)
        thread.start()
        try:
            yield samples
        finally:
            over.set()
            thread.join()

    def _sizes(self) -> dict[str, int]:
        sessions = [node.group for node in self._cluster.nodes.values()]
        sizes = {kind: size for kind, (_, size) in by_kind(processes(sessions)).items()}
        sizes[STATE_FILES] = _bytes_under(self._cluster.folder, "holdfast")
        sizes[RUN_FILES] = _bytes_under(self._run)
        return sizes


def _bytes_under(folder: Path, name: str | None = None) -> int:
    """Return the bytes of all files under a folder; with a name, of those in folders of that name."""
    total = 0
    for place, _, files in os.walk(folder):
        if name is not None and name not in Path(place).parts[len(folder.parts) :]:
            continue
        for file in files:
            try:
                total += (Path(place) / file).stat().st_size
            except OSError:  # deleted meanwhile
                continue
    return total
