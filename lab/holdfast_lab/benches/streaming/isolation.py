"""What a bad operator of the lowest query does to the highest: latency with and without, and whether both are exact.

One source feeds two queries. The operator of the lower one meets a row now and then that it raises on, that crashes its
process, that eats memory until its task ends it, or on which it holds Python's global lock for seconds. Turns with such
a row alternate with turns without, so that whatever else the machine does meets both alike. Batches come on a schedule
that nobody delays: the latency of a batch counts from when it was due until the driver has the highest query's output
as published. Runs on the driver.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.application import Application
from holdfast.errors import HoldfastError
from holdfast.ids import OperatorId, PartitionId
from holdfast.runtime.coordinator.event_log import Observation
from holdfast.runtime.coordinator.pacing import CycleSettings
from holdfast.runtime.coordinator.status import has_room
from holdfast.runtime.messages import OperatorFailed
from holdfast.spark.resident_backend import ResidentBackend
from holdfast.spark.run import SparkRun
from holdfast.spark.settings import Settings
from holdfast_lab.benches.streaming.arrivals import arrivals
from holdfast_lab.benches.streaming.scaling import unchanged
from holdfast_lab.benches.streaming.spread import Spread, median_with_interval

if TYPE_CHECKING:
    from holdfast_lab.baselines.structured_streaming import Session

CASES = ("poison", "segfault", "memory", "gil")
MEMORY_MB = 600
"""What an operator process may take."""
MOST_AHEAD = 16
"""Batches that are logged ahead of the highest query, as by default."""
_ROWS = {"n": "int64"}
_HIGH, _LOW = PartitionId(OperatorId("high"), 0), PartitionId(OperatorId("low"), 0)


def harmful(case: str, hold_seconds: float, rows: pa.Table) -> pa.Table:
    """Give the rows back; on a row below 0, do harm."""
    if min(rows["n"].to_pylist(), default=0) < 0:
        if case == "poison":
            raise ValueError("a poison row")
        if case == "segfault":
            ctypes.string_at(0)
        if case == "memory":
            held = []
            while True:
                held.append(bytearray(b"x" * (16 << 20)))
        ctypes.PyDLL(None).usleep(int(hold_seconds * 1e6))  # a PyDLL keeps the global lock while it is in C
    return rows


def two_queries(case: str, hold_seconds: float) -> Application:
    """Return the application: the lower query costs more, so that it gets a node of its own."""
    app = Application("isolation", on_error="quarantine")
    source = app.source("s", schema=_ROWS, cost=1.0)
    source.map(unchanged, schema=_ROWS, id="high", cost=1.0).output("high", priority=9)
    source.map(partial(harmful, case, hold_seconds), schema=_ROWS, id="low", cost=2.0).output("low", priority=1)
    return app


@dataclass(frozen=True, slots=True)
class Turn:
    """Seconds from due to published, of every batch of the highest query."""

    harmed: bool
    seconds: tuple[float, ...]

    def quantile(self, share: float) -> float:
        """Return the seconds within which this share of the batches was published."""
        return float(np.quantile(np.array(self.seconds), share))


@dataclass(frozen=True, slots=True)
class Isolation:
    """What came of one case."""

    case: str
    turns: tuple[Turn, ...]
    exact: bool
    """Whether the highest query has every row once."""
    low_exact: bool
    """Whether the lowest has every row once but those that are dead letters, and these are the harmful ones."""
    apart: bool
    """Whether the two queries were in different operator processes."""
    quarantined: int
    parked: int
    lost_nodes: int

    def spread(self, share: float, *, harmed: bool) -> Spread:
        """Return a quantile of the turns of one kind: the median turn's, and the range."""
        return median_with_interval([one.quantile(share) for one in self.turns if one.harmed == harmed])

    @property
    def within(self) -> bool:
        """Whether the p99 of harmed turns lies within the spread of the others: the ranges overlap."""
        calm, harmed = self.spread(0.99, harmed=False), self.spread(0.99, harmed=True)
        return harmed.low <= calm.high


class _Run:
    """A run of one case, and what happened in it."""

    def __init__(self, spark: Session, folder: Path, case: str, *, nodes: int, hold: float, secret_file: Path) -> None:
        self.case, self._folder = case, folder
        self._published: dict[int, int] = {}
        self.kinds: list[str] = []
        self._due: dict[int, int] = {}
        self._next = 0
        self._bad: list[int] = []
        self.turns: list[Turn] = []
        settings = replace(
            Settings.read(spark),
            exchange="resident",
            node_processes=2,
            node_costs="declared",
            node_memory_mb=MEMORY_MB,
            errors_retries=1,
            errors_backoff=0.1,
        )
        self._behind = settings.max_batches_behind
        self.run = SparkRun(
            two_queries(case, hold),
            spark,
            folder / "run",
            sinks={"high": str(folder / "high"), "low": str(folder / "low")},
            settings=settings,
            pace=CycleSettings(checkpoint_batches=50, batches_behind=self._behind, wait_seconds=600.0),
            nodes=nodes,
            wait_seconds=600.0,  # a busy machine is not a failure
            secret_file=secret_file,
            emit=self._saw,
        )

    def _saw(self, seen: Observation) -> None:
        self.kinds.append(seen.kind)
        if seen.kind == "published" and seen.fields["partition"] == str(_HIGH):
            self._published[int(seen.fields["batch"])] = time.monotonic_ns()

    def turn(self, batches_a_second: float, seconds: float, rows: int, *, harmed: bool) -> None:
        """Log batches on a schedule; one of a harmed turn has a harmful row, a third into it."""
        count = max(3, int(batches_a_second * seconds))
        start, mine = time.monotonic_ns(), []
        with arrivals(self.run):
            for number in range(count):
                due = start + int(number * 1e9 / batches_a_second)
                while time.monotonic_ns() < due or not self._has_room():
                    self.run.advance()
                values = list(range(self._next, self._next + rows))
                self._next += rows
                if harmed and number == count // 3:
                    values[rows // 2] = -1 - values[rows // 2]
                    self._bad.append(values[rows // 2])
                batch = int(self.run.log({"s": pa.table({"n": pa.array(values, pa.int64())})}))
                self._due[batch] = due
                mine.append(batch)
                self.run.advance()
            while mine[-1] not in self._published:
                self.run.advance()
        self.turns.append(Turn(harmed, tuple((self._published[one] - self._due[one]) / 1e9 for one in mine)))
        try:
            self.run.run()  # until the lowest has come to the end, or is parked
        except OperatorFailed:
            return

    def _has_room(self) -> bool:
        return has_room(self.run.coordinator.status, MOST_AHEAD, self._behind)

    def result(self) -> Isolation:
        """Compare what came out with what was given."""
        state, backend = self.run.coordinator.state, self.run.backend
        assert isinstance(backend, ResidentBackend)
        at = {p: (node, backend._spread.index(node, p)) for p, node in state.placement.items()}
        wanted = sorted([*(n for n in range(self._next) if -1 - n not in set(self._bad)), *self._bad])
        harmful = set() if self.case == "gil" else set(self._bad)
        letters = self._folder / "run" / "dead-letters" / "low"
        found = pq.read_table(letters)["row"].to_pylist() if letters.exists() else []
        low_rows, dead = self._rows("low"), sorted(int(row.partition(":")[2].strip(" }")) for row in found)
        return Isolation(
            self.case,
            tuple(self.turns),
            self._rows("high") == wanted,
            low_rows == [n for n in wanted if n not in harmful] and dead == sorted(harmful),
            at[_LOW] != at[_HIGH],
            self.kinds.count("quarantined"),
            self.kinds.count("parked"),
            self.kinds.count("node-lost") + self.kinds.count("node-silent"),
        )

    def _rows(self, output: str) -> list[int]:
        rows: list[int] = self.run.rows(output)["n"].to_pylist()
        return sorted(rows)


def measure_isolation(
    spark: Session,
    folder: Path,
    *,
    nodes: int,
    cases: Sequence[str],
    turns: int,
    seconds: float,
    batches_a_second: float,
    rows: int,
    hold_seconds: float,
    secret_file: Path,
    progress: Callable[[str], object] = lambda text: None,
) -> list[Isolation]:
    """Measure each case: a warm-up, then so many turns without harm and as many with, in turn."""
    found = []
    for case in cases:
        progress(f"{case}: starts")
        run = _Run(spark, folder / case, case, nodes=nodes, hold=hold_seconds, secret_file=secret_file)
        try:
            run.run.run()  # until all partitions are in place
            for number in range(2 * turns + 1):
                harmed = number > 0 and number % 2 == 0
                what = "warm-up" if number == 0 else f"turn {number} of {2 * turns}"
                progress(f"{case}: {what}")
                run.turn(batches_a_second, seconds, rows, harmed=harmed)
                if number == 0:
                    run.turns.clear()
            found.append(run.result())
        finally:
            try:
                run.run.close()
            except HoldfastError as error:
                progress(f"{case}: {error}")
    return found
