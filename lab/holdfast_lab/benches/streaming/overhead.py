"""The price of being ready: checkpoints, and outboxes that are kept, against neither.

Runs of one application under several policies stand side by side on one cluster and take turns with the same batches,
in an order that moves on from turn to turn. A turn is as many batches as take about the checkpoint interval without
checkpoints, and has exactly one checkpoint, in its middle: so that what goes on in the background meets the batches
after it, within the turn. Prices are ratios within an alternation; CPU seconds of the whole cluster stand beside the
seconds on the clock, because other work on the machine does not change them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from holdfast.errors import CheckFailed
from holdfast.recovery.strategy import RecoverySettings
from holdfast.runtime.coordinator.event_log import Observation
from holdfast.runtime.coordinator.pacing import CycleSettings
from holdfast.runtime.program import Program
from holdfast.spark.run import SparkRun
from holdfast.spark.settings import Settings
from holdfast_lab.benches.streaming.cpu import cpu_seconds
from holdfast_lab.benches.streaming.spread import Spread, median_with_interval
from holdfast_lab.benches.streaming.workloads import Workload

if TYPE_CHECKING:
    from holdfast_lab.baselines.structured_streaming import Session

NEVER = 10**9
WARM_BATCHES, MEASURED_BATCHES = 96, 32
"""Batches before, and in, the measurement of what one takes."""
POLICIES: dict[str, str] = {
    "none": "no checkpoints, outboxes kept until consumers have them",
    "sources": "checkpoints; kept to the checkpoint: the sources' log alone",
    "all": "checkpoints; every outbox kept to the checkpoint",
}


@dataclass(frozen=True, slots=True)
class Turn:
    """One policy's turn."""

    policy: str
    alternation: int
    batches: int
    seconds: float
    cpu_seconds: float
    checkpoints: int
    """Global checkpoints that ended in this turn."""


@dataclass(frozen=True, slots=True)
class Price:
    """What a policy costs beyond none, as a share of what none costs."""

    policy: str
    clock: Spread
    cpu: Spread
    cpu_seconds: Spread
    """What a turn, and with it one checkpoint, took more in CPU seconds of the whole cluster."""

    def within(self, target: float) -> bool | None:
        """Whether the price on the clock is within a target; None where the measurements cannot tell."""
        return True if self.clock.high <= target else False if self.clock.low > target else None


@dataclass(frozen=True, slots=True)
class Overhead:
    """What came of the bench."""

    workload: str
    rows: int
    batches_per_turn: int
    interval_seconds: float
    """What a turn without checkpoints took, median: the interval that was measured."""
    turns: tuple[Turn, ...]
    prices: tuple[Price, ...]


class _Policy:
    """A run under one policy, fed from memory."""

    def __init__(
        self,
        name: str,
        workload: Workload,
        spark: Session,
        folder: Path,
        every: int,
        secret_file: Path | None,
        exchange: str,
    ) -> None:
        self.name = name
        app = workload.application()
        backup_partitions = frozenset(Program(app).partitions) if name == "all" else frozenset()
        self.checkpoints = 0
        sinks: dict[str, object] = {output: str(folder / name / "out" / output) for output in workload.sql}
        self.run = SparkRun(
            app,
            spark,
            folder / name / "run",
            sinks=sinks,
            settings=replace(Settings.read(spark), exchange=exchange),
            pace=CycleSettings(checkpoint_batches=NEVER if name == "none" else every),
            recovery=RecoverySettings(backup_partitions=backup_partitions),
            emit=self._saw,
            secret_file=secret_file,
        )

    def _saw(self, seen: Observation) -> None:
        if seen.kind == "checkpoint":
            self.checkpoints += 1

    def turn(self, batches: Sequence[Mapping[str, pa.Table]], sessions: Sequence[int]) -> tuple[float, float, int]:
        """Process batches; return seconds, CPU seconds and the global checkpoints that ended meanwhile."""
        for batch in batches:
            self.run.log(batch)
        had, cpu, began = self.checkpoints, cpu_seconds(sessions), time.perf_counter()
        self.run.run()
        return time.perf_counter() - began, cpu_seconds(sessions) - cpu, self.checkpoints - had


def measure_overhead(
    workload: Workload,
    spark: Session,
    folder: Path,
    *,
    sessions: Sequence[int],
    rows: int,
    interval: float,
    alternations: int,
    policies: Sequence[str] = tuple(POLICIES),
    batches: int | None = None,
    seed: int = 1,
    secret_file: Path | None = None,
    exchange: str = "resident",
    progress: Callable[[str], object] = lambda text: None,
) -> Overhead:
    """Take turns; a turn has so many batches, or as many as fill the interval. `sessions`: the nodes' processes.

    Every policy is a run of its own on the same executors: with tasks that stay, each holds a core of them.
    """
    if policies[0] != "none":
        raise CheckFailed("the first policy must be none", where="bench overhead")
    if batches is None:
        progress("how many batches are one interval")
        plain = _Policy("none", workload, spark, folder / "calibrate", NEVER, secret_file, exchange)
        batches = _batches_of(interval, plain, list(workload.batches(seed, WARM_BATCHES + MEASURED_BATCHES, rows)))
    per_turn = max(2, batches + batches % 2)
    made = list(workload.batches(seed, per_turn // 2 + per_turn * alternations, rows))
    runs = [_Policy(name, workload, spark, folder, per_turn, secret_file, exchange) for name in policies]
    turns: list[Turn] = []
    try:
        progress("warm-up")
        for one in runs:  # half a turn: checkpoints then come in the middle of turns
            one.turn(made[: per_turn // 2], sessions)
        for number in range(alternations):
            start = per_turn // 2 + number * per_turn
            for place in range(len(runs)):
                one = runs[(place + number) % len(runs)]
                progress(f"alternation {number + 1} of {alternations}: {one.name}")
                seconds, cpu, checkpoints = one.turn(made[start : start + per_turn], sessions)
                turns.append(Turn(one.name, number, per_turn, seconds, cpu, checkpoints))
    finally:
        for one in runs:
            one.run.close()
    unready = [turn.seconds for turn in turns if turn.policy == "none"]
    prices = tuple(_price(name, turns) for name in policies if name != "none")
    return Overhead(workload.name, rows, per_turn, median_with_interval(unready).median, tuple(turns), prices)


def _batches_of(interval: float, plain: _Policy, made: Sequence[Mapping[str, pa.Table]]) -> int:
    """Find how many batches take the interval without checkpoints, once JVMs are warm (cold, they are slow)."""
    try:
        plain.turn(made[:-MEASURED_BATCHES], ())
        seconds = plain.turn(made[-MEASURED_BATCHES:], ())[0]
    finally:
        plain.run.close()
    return max(2, round(interval / (seconds / MEASURED_BATCHES)))


def _price(policy: str, turns: Sequence[Turn]) -> Price:
    plain = {turn.alternation: turn for turn in turns if turn.policy == "none"}
    mine = [turn for turn in turns if turn.policy == policy]
    return Price(
        policy,
        median_with_interval([turn.seconds / plain[turn.alternation].seconds - 1 for turn in mine]),
        median_with_interval([turn.cpu_seconds / plain[turn.alternation].cpu_seconds - 1 for turn in mine]),
        median_with_interval([turn.cpu_seconds - plain[turn.alternation].cpu_seconds for turn in mine]),
    )
