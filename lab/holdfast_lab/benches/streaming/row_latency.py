"""How long a row takes from its creation until it is visible at the sink, by phase, at a given rate of rows.

Rows come on a schedule that nobody delays: row i of a turn is created at its start plus i / rate, carries that moment
as a column through all levels to the sink, and waits from then on, also while the run is behind. So a run that cannot
keep up shows it (no coordinated omission). A batch takes all rows that exist when the run has room for one. Its phases,
for every row:

- wait for the batch: from the row's creation until the driver takes it into a batch;
- logging: until the batch's record is created;
- operators and exchange: until the last operator is called with the row, which stamps it;
- publish: until the driver has the output as published: the commit, the Parquet file, the report.

They add up to the whole, row by row. All are read from CLOCK_MONOTONIC, which every process of one machine shares and
nobody sets: creation, batches and publishing by the driver, the stamp by the operator process. The file of an output is
there a little before the driver knows, so that the last phase is an upper bound.

Both exchanges run on the same executors and take turns, in an order that changes from turn to turn. Runs on the driver.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from holdfast.application import Application
from holdfast.errors import CheckFailed
from holdfast.runtime.coordinator.event_log import Observation
from holdfast.runtime.coordinator.pacing import CycleSettings
from holdfast.runtime.coordinator.status import has_room
from holdfast.runtime.io.parquet_sink import ParquetSink
from holdfast.spark.run import SparkRun
from holdfast.spark.settings import Settings
from holdfast_lab.benches.streaming.arrivals import arrivals
from holdfast_lab.benches.streaming.cpu import cpu_seconds
from holdfast_lab.benches.streaming.scaling import KEYS, unchanged

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from holdfast_lab.baselines.structured_streaming import Session

    Nanoseconds = NDArray[np.int64]

EXCHANGES = ("resident", "shuffle")
PHASES = ("wait", "logging", "operators", "publish")
ARRIVAL_SECONDS = 0.01
"""How often a run that waits looks for rows: as often as a source would deliver some."""
_ROWS = {"a": "int64", "b": "int64", "created": "int64"}
_STAMPED = {**_ROWS, "processed": "int64"}


@dataclass(frozen=True, slots=True)
class Schedule:
    """When the rows of a turn are created."""

    start: int
    rate: float
    rows: int

    def created(self, first: int, count: int) -> Nanoseconds:
        """Return when rows are created, in nanoseconds."""
        return self.start + (np.arange(first, first + count) * (1e9 / self.rate)).astype(np.int64)

    def due(self, now: int) -> int:
        """Return how many rows exist at a moment."""
        if now < self.start:
            return 0
        return min(self.rows, int((now - self.start) * self.rate / 1e9) + 1)


@dataclass(frozen=True, slots=True)
class RowTimes:
    """Nanoseconds of each phase, of every row of a turn."""

    phases: dict[str, Nanoseconds]
    batches: int
    seconds: float
    """From the first row's creation until the last is visible."""
    cpu_seconds: float

    @property
    def total(self) -> Nanoseconds:
        """From creation to visible."""
        return sum(self.phases.values(), np.zeros(self.rows, np.int64))

    @property
    def after_logging(self) -> Nanoseconds:
        """From logged to visible."""
        return self.phases["operators"] + self.phases["publish"]

    @property
    def rows(self) -> int:
        """How many rows came out."""
        return len(self.phases["wait"])


@dataclass(frozen=True, slots=True)
class RowLatency:
    """What one side took at one rate through one number of levels."""

    exchange: str
    levels: int
    rate: float
    turns: tuple[RowTimes, ...]

    def quantile(self, share: float, phase: str | None = None) -> float:
        """Return the seconds within which this share of all rows passed a phase (None: all of them)."""
        values = [one.total if phase is None else one.phases[phase] for one in self.turns]
        return float(np.quantile(np.concatenate(values), share)) / 1e9

    def mean(self, phase: str) -> float:
        """Return the mean seconds of a phase; the means of all phases add up to that of the whole."""
        return float(np.concatenate([one.phases[phase] for one in self.turns]).mean()) / 1e9

    def after_logging(self, share: float) -> float:
        """Return the seconds from logged to visible, within which this share of all rows was."""
        return float(np.quantile(np.concatenate([one.after_logging for one in self.turns]), share)) / 1e9

    @property
    def medians(self) -> tuple[float, ...]:
        """The median row's seconds in each turn."""
        return tuple(float(np.median(one.total)) / 1e9 for one in self.turns)


def passing(levels: int, partitions: int) -> Application:
    """Return an application that hands every row through so many levels, each behind a full exchange, to a sink."""
    app = Application("passing")
    stream = app.source("s", schema=_ROWS, parallelism=partitions)
    for level in range(1, levels):
        keyed = stream.key_by("b" if level % 2 else "a")
        stream = keyed.map(unchanged, schema=_ROWS, id=f"L{level}", parallelism=partitions)
    last = stream.key_by("b" if levels % 2 else "a")
    last.map(stamped, schema=_STAMPED, id="out", parallelism=partitions).output()
    return app


def stamped(rows: pa.Table) -> pa.Table:
    """Say when the last operator got these rows."""
    now = np.full(rows.num_rows, time.monotonic_ns(), np.int64)
    return rows.append_column("processed", pa.array(now))


class Side:
    """A run of one exchange, and what happened in it."""

    def __init__(
        self, spark: Session, folder: Path, exchange: str, *, nodes: int, levels: int, ahead: int, secret_file: Path
    ) -> None:
        """`ahead`: batches that may be in work at once."""
        self.exchange, self._ahead = exchange, ahead
        self._out = folder / "out"
        self._events: dict[tuple[str, int], int] = {}
        self._batches: dict[int, tuple[int, int]] = {}
        self._turns: list[_Turn] = []
        self.run = SparkRun(
            passing(levels, nodes),
            spark,
            folder / "run",
            sinks={"out": str(self._out)},
            settings=replace(Settings.read(spark), exchange=exchange),
            pace=CycleSettings(checkpoint_batches=10**9),
            nodes=nodes,
            secret_file=secret_file,
            emit=self._saw,
        )

    def _saw(self, seen: Observation) -> None:
        if seen.kind == "published":
            self._events[str(seen.fields["partition"]), int(seen.fields["batch"])] = time.monotonic_ns()

    def turn(self, rate: float, seconds: float, seed: int, sessions: Sequence[int] = ()) -> None:
        """Take in rows at a rate for so long, and process them all."""
        random = np.random.default_rng(seed)
        before, first = cpu_seconds(sessions), int(self.run.logged) + 1
        schedule = Schedule(time.monotonic_ns(), rate, max(1, int(rate * seconds)))
        taken = 0
        with arrivals(self.run, ARRIVAL_SECONDS):
            while taken < schedule.rows:
                now = time.monotonic_ns()
                count = schedule.due(now) - taken
                if count and has_room(self.run.coordinator.status, self._ahead):
                    keys = {name: random.integers(0, KEYS, count) for name in ("a", "b")}
                    rows = pa.table({**keys, "created": schedule.created(taken, count)})
                    taken += count
                    batch = self.run.log({"s": rows})
                    self._batches[int(batch)] = now, time.monotonic_ns()
                self.run.advance()
        self.run.run()
        self._turns.append(_Turn(schedule, first, int(self.run.logged), cpu_seconds(sessions) - before))

    def times(self) -> list[RowTimes]:
        """Return the phases of every row that is at the sink, by turn; what is missing or doubled is refused."""
        found: list[_Found] = [_Found() for _ in self._turns]
        for key, rows in ParquetSink(self._out).outputs().items():
            at = next(n for n, one in enumerate(self._turns) if one.first <= key.batch <= one.last)
            published = self._events[str(key.query), int(key.batch)]
            found[at].add(rows, *self._batches[int(key.batch)], published)
        return [one.times(turn) for one, turn in zip(found, self._turns, strict=True)]


@dataclass(frozen=True, slots=True)
class _Turn:
    schedule: Schedule
    first: int
    last: int
    """Its batches."""
    cpu_seconds: float


@dataclass(slots=True)
class _Found:
    """What was found at the sink of one turn."""

    created: list[Nanoseconds] = field(default_factory=list)
    phases: dict[str, list[Nanoseconds]] = field(default_factory=lambda: {name: [] for name in PHASES})
    last: int = 0

    def add(self, rows: pa.Table, taken: int, logged: int, published: int) -> None:
        created, processed = rows["created"].to_numpy(), rows["processed"].to_numpy()
        self.created.append(created)
        parts = (taken - created, np.full(len(created), logged - taken), processed - logged, published - processed)
        for name, values in zip(PHASES, parts, strict=True):
            self.phases[name].append(values.astype(np.int64))
        self.last = max(self.last, published)

    def times(self, turn: _Turn) -> RowTimes:
        schedule = turn.schedule
        created = np.sort(np.concatenate(self.created)) if self.created else np.zeros(0, np.int64)
        if not np.array_equal(created, schedule.created(0, schedule.rows)):
            raise CheckFailed(
                f"{schedule.rows} rows were created and {len(created)} came out, or others", where="bench latency"
            )
        return RowTimes(
            {name: np.concatenate(values) for name, values in self.phases.items()},
            turn.last - turn.first + 1,
            (self.last - schedule.start) / 1e9,
            turn.cpu_seconds,
        )


def measure_rows(
    spark: Session,
    folder: Path,
    *,
    nodes: int,
    levels: int,
    rates: Sequence[float],
    turns: int,
    seconds: float,
    ahead: int,
    secret_file: Path,
    sessions: Sequence[int] = (),
    exchanges: Sequence[str] = EXCHANGES,
    progress: Callable[[str], object] = lambda text: None,
) -> list[RowLatency]:
    """Measure each rate on each exchange: a warm-up, then so many turns of so many seconds."""
    sides = [
        Side(spark, folder / one, one, nodes=nodes, levels=levels, ahead=ahead, secret_file=secret_file)
        for one in exchanges
    ]
    try:
        for side in sides:
            progress(f"{levels} levels: {side.exchange} starts")
            side.run.run()  # until all partitions are in place
        for rate in rates:
            for turn in range(turns + 1):
                what = "warm-up" if turn == 0 else f"turn {turn} of {turns}"
                for side in sides if turn % 2 == 0 else reversed(sides):
                    progress(f"{levels} levels, {rate:g} rows a second: {what}, {side.exchange}")
                    side.turn(rate, seconds, turn, sessions)
    finally:
        for side in sides:
            side.run.close()
    found = []
    for side in sides:
        times = side.times()
        for number, rate in enumerate(rates):
            first = number * (turns + 1) + 1  # without the warm-up
            found.append(RowLatency(side.exchange, levels, rate, tuple(times[first : first + turns])))
    return sorted(found, key=lambda one: rates.index(one.rate))
