"""How long a batch takes from logged to published, with tasks that stay beside cycles through Spark's shuffle.

Both sides run the same application on the same executors and take turns of a few batches, so that whatever else the
machine does meets both alike; the order changes from turn to turn. Batches come one at a time, each after the one
before is published: what is measured is the time of a batch alone. Runs on the driver.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from holdfast.application import Application
from holdfast.runtime.coordinator.pacing import CycleSettings
from holdfast.spark.run import SparkRun
from holdfast.spark.settings import Settings
from holdfast_lab.benches.streaming.scaling import chain, chain_batches

if TYPE_CHECKING:
    from holdfast_lab.baselines.structured_streaming import Session

EXCHANGES = ("resident", "shuffle")
WARM_UP = 6
"""Batches before anything is measured, for each side."""
PER_TURN = 5


@dataclass(frozen=True, slots=True)
class Latency:
    """What one side took for batches of one size through one number of levels."""

    exchange: str
    levels: int
    rows: int
    logged: tuple[float, ...]
    """Seconds from the rows to the batch's record, for each batch."""
    published: tuple[float, ...]
    """Seconds from there until every output is published, for each batch."""

    def quantile(self, share: float) -> float:
        """Return the time within which this share of the batches was published."""
        ordered = sorted(self.published)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class _Side:
    """A run of one exchange."""

    def __init__(self, app: Application, spark: Session, folder: Path, exchange: str, nodes: int, secret: Path) -> None:
        self.exchange = exchange
        settings = replace(Settings.read(spark), exchange=exchange)
        pace = CycleSettings(checkpoint_batches=10**9)
        sinks: dict[str, object] = {"out": str(folder / "out")}
        self.run = SparkRun(
            app, spark, folder / "run", sinks=sinks, settings=settings, pace=pace, nodes=nodes, secret_file=secret
        )
        self.logged: list[float] = []
        self.published: list[float] = []

    def process(self, batches: Sequence[Mapping[str, pa.Table]]) -> None:
        for batch in batches:
            began = time.perf_counter()
            self.run.log(batch)
            logged = time.perf_counter()
            self.run.run()
            self.logged.append(logged - began)
            self.published.append(time.perf_counter() - logged)


def measure_latency(
    spark: Session,
    folder: Path,
    *,
    nodes: int,
    levels: int,
    rows: int,
    batches: int,
    secret_file: Path,
    seed: int = 1,
    progress: Callable[[str], object] = lambda text: None,
) -> list[Latency]:
    """Measure so many batches of so many rows on each side."""
    app = chain(levels, nodes)
    made = list(chain_batches(seed, 0, WARM_UP + batches, rows))
    sides = [_Side(app, spark, folder / one, one, nodes, secret_file) for one in EXCHANGES]
    try:
        for side in sides:
            progress(f"{levels} levels, {rows} rows: {side.exchange} warms up")
            side.process(made[:WARM_UP])
            side.logged.clear()
            side.published.clear()
        for turn, first in enumerate(range(WARM_UP, len(made), PER_TURN)):
            progress(f"{levels} levels, {rows} rows: batch {first - WARM_UP} of {batches}")
            for side in sides if turn % 2 == 0 else reversed(sides):
                side.process(made[first : first + PER_TURN])
    finally:
        for side in sides:
            side.run.close()
    return [Latency(side.exchange, levels, rows, tuple(side.logged), tuple(side.published)) for side in sides]
