"""What a batch costs by nodes, levels, partitions, rows and state, and where the time goes.

A chain of operators with an exchange before each stands for an application; one size is changed at a time. Each point
is measured twice: batches one at a time (what a batch waits for when there is no load) and many at once (what a batch
costs under load, where levels work on batches of their own). Both exchanges are measured at every point, on the same
executors; alone, they take turns batch by batch, and the ratio is within a turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from holdfast.application import Application, tumbling
from holdfast.examples.draws import moments, of_batch
from holdfast.runtime.coordinator.coordinator import IDLE_SECONDS
from holdfast.runtime.coordinator.event_log import Observation
from holdfast.runtime.coordinator.pacing import CycleSettings
from holdfast.runtime.messages import Measures
from holdfast.spark.run import SparkRun
from holdfast.spark.settings import Settings
from holdfast_lab.benches.streaming.spread import Spread, median_with_interval

if TYPE_CHECKING:
    from holdfast_lab.baselines.structured_streaming import Session

Batch = dict[str, pa.Table]
_COLUMNS = {"a": "int64", "b": "int64", "at": "timestamp"}
KEYS = 1000
KEY_BYTES = 64
EXCHANGES = ("resident", "shuffle")
WARM_UP = 3
"""Batches before anything is measured."""
FILL_ROWS = 250_000
"""Rows of a batch that fills the state."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What is measured: one point."""

    varied: str
    """Which size is changed here."""
    nodes: int = 4
    levels: int = 2
    partitions: int = 4
    rows: int = 10_000
    state_mb: float = 0.0

    @property
    def size(self) -> float:
        """The size that is changed."""
        return float(getattr(self, "state_mb" if self.varied == "state" else self.varied))


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of one batch, and where they went."""

    seconds: float
    job: float
    """Of them in cycles: Spark jobs, or what tasks that stay do between a desired state and the end of its work."""
    operators: float
    """Of those on the busiest node in operators: rows, state, outboxes, and reading the log."""
    cycles: float
    """Cycles for one batch; through the shuffle each is a Spark job."""

    @property
    def around(self) -> float:
        """In cycles, outside operators: Spark's tasks and shuffles, or connections, and Python around the operators."""
        return max(0.0, self.job - self.operators)

    @property
    def driver(self) -> float:
        """Outside cycles: planning cycles, publishing outputs, writing progress."""
        return max(0.0, self.seconds - self.job)


@dataclass(frozen=True, slots=True)
class Point:
    """One shape's figures, of one exchange."""

    shape: Shape
    exchange: str
    alone: Cost
    """A batch when there is no other: medians."""
    alone_seconds: Spread
    ratio: Spread
    """How many times sooner than the other exchange a batch alone was, turn by turn; 1 where there is one only."""
    load: Cost
    """A batch among many: means."""
    state_bytes: int
    written_bytes: float
    """Bytes of state that a batch wrote."""


def chain(levels: int, partitions: int) -> Application:
    """Return an application of so many levels of work, each behind a full exchange, and a small windowed output."""
    app = Application("chain")
    stream = app.source("s", schema=_COLUMNS, event_time="at", lateness=1, parallelism=partitions)
    for level in range(1, levels):
        keyed = stream.key_by("b" if level % 2 else "a")
        stream = keyed.map(unchanged, schema=_COLUMNS, id=f"L{level}", parallelism=partitions)
    counted = stream.key_by("b" if levels % 2 else "a").window(tumbling("1 second"))
    counted.count(id="out", parallelism=partitions).output()
    return app


def held(partitions: int) -> Application:
    """Return an application that keeps what it has seen for an hour: a count for each of many long keys."""
    app = Application("held")
    stream = app.source("s", schema={"key": "string", "at": "timestamp"}, event_time="at", lateness=1)
    stream.key_by("key").window(tumbling("1 hour")).count(id="out", parallelism=partitions).output()
    return app


def unchanged(rows: pa.Table) -> pa.Table:
    """Give what came."""
    return rows


def chain_batches(seed: int, first: int, count: int, rows: int) -> Iterator[Batch]:
    """Give batches of a second each."""
    for batch in range(first, first + count):
        random = of_batch(seed, 0, batch)
        keys = {name: random.integers(0, KEYS, rows) for name in ("a", "b")}
        yield {"s": pa.table({**keys, "at": moments(random, batch, rows)})}


def held_batches(seed: int, numbers: Sequence[tuple[int, int]]) -> Iterator[Batch]:
    """Give batches with the keys of these numbers (from, to), all within one window."""
    for batch, (low, high) in enumerate(numbers):
        keys = pa.array([f"{number:0{KEY_BYTES}d}" for number in range(low, high)])
        at = np.arange(high - low, dtype=np.int64) % 1000 + batch
        yield {"s": pa.table({"key": keys, "at": pa.array(at).cast(pa.timestamp("us"))})}


def measure_point(
    shape: Shape,
    spark: Session,
    folder: Path,
    *,
    alone: int,
    load: int,
    seed: int = 1,
    secret_file: Path | None = None,
    exchanges: Sequence[str] = EXCHANGES,
    progress: Callable[[str], object] = lambda text: None,
) -> list[Point]:
    """Measure so many batches alone, and so many under load, after a warm-up, on each exchange."""
    if shape.state_mb:
        app, batches = held(shape.partitions), _held_batches(shape, alone + load + WARM_UP, seed)
    else:
        app = chain(shape.levels, shape.partitions)
        batches = chain_batches(seed, 0, alone + load + WARM_UP, shape.rows)
    made = list(batches)
    filling, made = made[: -(alone + load + WARM_UP)], made[-(alone + load + WARM_UP) :]
    sides: list[_Measured] = []
    found: list[tuple[Cost, int, float]] = []
    try:
        for exchange in exchanges:
            sides.append(_Measured(app, spark, folder / exchange, secret_file, shape.nodes, exchange))
            for number, batch in enumerate(filling):
                progress(f"{shape.varied} {shape.size:g}, {exchange}: fill {number + 1} of {len(filling)}")
                sides[-1].costs([batch])
            progress(f"{shape.varied} {shape.size:g}, {exchange}: warm-up")
            for batch in made[:WARM_UP]:
                sides[-1].costs([batch])
        filled = [side.written for side in sides]
        progress(f"{shape.varied} {shape.size:g}: one at a time")
        one_by_one: list[list[Cost]] = [[] for _ in sides]
        for turn, batch in enumerate(made[WARM_UP : WARM_UP + alone]):
            for number in range(len(sides)):
                mine = (number + turn) % len(sides)
                one_by_one[mine].append(sides[mine].costs([batch]))
        for side, before in zip(sides, filled, strict=True):
            progress(f"{shape.varied} {shape.size:g}, {side.exchange}: under load")
            many = side.costs(made[WARM_UP + alone :])
            found.append((many, side.state_bytes, (side.written - before) / (alone + load)))
    finally:
        for side in sides:
            side.close()
    points = []
    for number, (side, costs) in enumerate(zip(sides, one_by_one, strict=True)):
        ordered = sorted(costs, key=lambda one: one.seconds)
        other = one_by_one[(number + 1) % len(sides)]
        ratio = median_with_interval([two.seconds / one.seconds for one, two in zip(costs, other, strict=True)])
        spread = median_with_interval([one.seconds for one in costs])
        points.append(Point(shape, side.exchange, ordered[len(ordered) // 2], spread, ratio, *found[number]))
    return points


def _held_batches(shape: Shape, count: int, seed: int) -> Iterator[Batch]:
    """Fill the state to its size with new keys, then come back to some of them."""
    keys = int(shape.state_mb * 1e6 / (KEY_BYTES + 32))
    fill = [(low, min(keys, low + FILL_ROWS)) for low in range(0, keys, FILL_ROWS)]
    rows = min(shape.rows, keys)
    starts = of_batch(seed, 1, 0).integers(0, keys - rows + 1, count)
    return held_batches(seed, [*fill, *((int(low), int(low) + rows) for low in starts)])


class _Measured:
    """A run that tells where its time went."""

    def __init__(
        self,
        app: Application,
        spark: Session,
        folder: Path,
        secret_file: Path | None,
        nodes: int,
        exchange: str,
    ) -> None:
        self.exchange = exchange
        self._cycles: list[float] = []
        self._run = SparkRun(
            app,
            spark,
            folder,
            settings=replace(Settings.read(spark), exchange=exchange),
            pace=CycleSettings(checkpoint_batches=10**9),
            emit=self._saw,
            secret_file=secret_file,
            nodes=nodes,
        )

    def _saw(self, seen: Observation) -> None:
        if seen.kind == "cycle":
            self._cycles.append(float(seen.fields["seconds"]))

    def costs(self, batches: Sequence[Mapping[str, pa.Table]]) -> Cost:
        """Process batches; return what one of them cost."""
        self._let_cycles_end()
        for batch in batches:
            self._run.log(batch)
        self._cycles.clear()
        before = dict(self._run.measures)
        began = time.perf_counter()
        self._run.run()
        seconds = time.perf_counter() - began
        self._let_cycles_end()
        many = len(batches)
        busy: dict[object, float] = {}
        state = self._run.coordinator.state
        for partition, now in self._run.measures.items():
            node = state.partitions[partition].node
            spent = now.seconds - before.get(partition, Measures()).seconds
            busy[node] = busy.get(node, 0.0) + spent
        job = min(seconds, sum(self._cycles))
        return Cost(
            seconds / many, job / many, min(job, max(busy.values(), default=0.0)) / many, len(self._cycles) / many
        )

    def _let_cycles_end(self) -> None:
        """Wait for the end of what was handed out: all outputs may be out before, and its time belongs to its batch."""
        coordinator = self._run.coordinator
        while coordinator.busy:
            coordinator.read_reports(IDLE_SECONDS)

    @property
    def state_bytes(self) -> int:
        """The size of all states."""
        return sum(one.state_bytes for one in self._run.measures.values())

    @property
    def written(self) -> int:
        """Bytes of state written so far."""
        return sum(one.written_bytes for one in self._run.measures.values())

    def close(self) -> None:
        """Let go of the executors."""
        self._run.close()


def shapes(
    *,
    nodes: Sequence[int] = (1, 2, 4),
    levels: Sequence[int] = (1, 2, 4, 8),
    partitions: Sequence[int] = (4, 16, 64),
    rows: Sequence[int] = (1_000, 10_000, 100_000, 1_000_000),
    state_mb: Sequence[float] = (1, 10, 100, 1000),
) -> list[Shape]:
    """Return all points, those with the same number of nodes together."""
    most = max(nodes)
    found = [Shape("nodes", nodes=n, partitions=most) for n in nodes]
    found += [Shape("levels", nodes=most, levels=n, partitions=most) for n in levels]
    found += [Shape("partitions", nodes=most, partitions=n) for n in partitions]
    found += [Shape("rows", nodes=most, rows=n, partitions=most) for n in rows]
    found += [Shape("state", nodes=most, state_mb=n, partitions=most) for n in state_mb]
    return sorted(found, key=lambda shape: shape.nodes)
