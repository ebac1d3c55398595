"""A drill that feeds batches itself, as they are due, and runs cycles until all are out. Runs on the driver."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.drill.faulty_operators import with_faulty_operators
from holdfast.drill.reference import output_names
from holdfast.drill.scenarios import scenario_of
from holdfast.drill.settings import DrillSettings, DrillStrategy
from holdfast.ids import BatchId
from holdfast.planning.recovery.algorithms import RecoveryAlgorithm, planner_of
from holdfast.recovery.strategy import RecoverySettings, RecoveryStrategy
from holdfast.spark.pinned_jobs import executors_of
from holdfast.spark.run import SparkRun
from holdfast.spark.session import start_session
from holdfast.spark.settings import PREFIX, Settings, conf_of

if TYPE_CHECKING:
    from holdfast.drill.driver import DriverJob, EventPipe

IDLE = 0.02
"""Seconds to wait for reports."""
READY_SECONDS = 300.0
WAIT_SECONDS = 120.0
"""A drill that has no node for so long has failed."""
WARM_BATCHES = 2


class Admission:
    """Which hosts may be used, as a file of the drill says at the moment; without a file, all."""

    def __init__(self, path: str | None) -> None:
        self._path = None if path is None else Path(path)

    def __call__(self, host: str) -> bool:
        """Say whether a host may be used."""
        return self._path is None or host in self._path.read_text().split()

    @staticmethod
    def write(path: Path, hosts: Iterable[str]) -> None:
        """Say which hosts may be used from now on."""
        beside = path.with_name(f".{path.name}")
        beside.write_text(" ".join(hosts))
        beside.replace(path)


def drive(job: DriverJob, events: EventPipe, orders: IO[str]) -> None:
    """Run the drill's stream to its end, and take the last checkpoint."""
    asked = job.settings
    scenario = scenario_of(asked)
    app = with_faulty_operators(scenario.application(), job)
    given = list(scenario.batches(asked.seed, asked.batches, asked.rows))
    spark = start_session(f"drill {asked.scenario}", job.master, settings=dict(job.session))
    if job.warm:
        await_executors(spark, job.nodes)

    def observe(seen: Any) -> None:
        events.emit(seen.kind, seen.at, **dict(seen.fields))

    def request_nodes(count: int) -> str | None:
        events.emit("nodes-requested", count=count)
        return None

    run = SparkRun(
        app,
        spark,
        f"{job.directory}/run",
        settings=settings_of(job, spark),
        sinks={name: f"{job.outputs}/{name}" for name in output_names(app)},
        checkpoint_every=asked.checkpoint_every,
        emit=observe,
        recovery=recovery_of(asked),
        capacity=asked.capacity or math.inf,
        nodes=job.nodes,
        request_nodes=request_nodes,
        secret_file=job.secret_file,
        admits=Admission(job.admitted),
        take_over=job.take_over,
        wait_seconds=WAIT_SECONDS,
    )
    if job.warm:
        warm_up(job, spark)
        run.cycle()  # partitions are placed before the first batch is due
    events.emit("driver-ready")
    began = float(orders.readline())
    feed_as_due(run, given, began, asked.batch_seconds)
    run.checkpoint()
    emit_outboxes(run, events)
    events.emit("finished", batch=int(run.frontier))
    run.close()
    spark.stop()


def recovery_of(asked: DrillSettings) -> RecoverySettings:
    """Return how recovery goes about it; in the best case all nodes come early, and the plan is the incremental one."""
    best = asked.strategy is DrillStrategy.BEST_CASE
    return RecoverySettings(
        RecoveryStrategy.INCREMENTAL if best else RecoveryStrategy(asked.strategy),
        planner_of(RecoveryAlgorithm(asked.algorithm)),
    )


def settings_of(job: DriverJob, spark: Any) -> Settings:
    """Return the settings of the session, with what the drill was asked for."""
    budget = {} if job.settings.replicas is None else {f"{PREFIX}replicas.budget": job.settings.replicas}
    tentative = {f"{PREFIX}tentative.outputs": "all"} if job.settings.tentative else {}
    found = Settings.of({**conf_of(spark), **budget, **tentative, **job.conf})
    return found if job.settings.exchange is None else replace(found, exchange=job.settings.exchange)


def emit_outboxes(run: SparkRun, events: EventPipe) -> None:
    """Emit from which batch on nodes keep outboxes, now that a checkpoint covers everything."""
    state = run.coordinator.state
    result = run.coordinator.probe(trim_outboxes=True)
    kept = {} if result is None else {str(name): int(first) for name, first in result.kept_from.items()}
    events.emit("kept", checkpoint=int(state.checkpoints.global_batch), oldest=kept, buffering=state.buffering)


def warm_up(job: DriverJob, spark: Any) -> None:
    """Run a few batches of the same application apart from the drill: JVMs and Python workers are slow at first."""
    asked, scenario = job.settings, scenario_of(job.settings)
    place = f"{job.directory}/warm"
    settings = settings_of(job, spark)
    warm = SparkRun(
        scenario.application(), spark, place, settings=settings, nodes=job.nodes, secret_file=job.secret_file
    )
    for batch in scenario.batches(asked.seed, WARM_BATCHES, asked.rows):
        warm.log(batch)
        warm.run()
    warm.close()
    shutil.rmtree(place, ignore_errors=True)


def feed_as_due(run: SparkRun, given: list[dict[str, pa.Table]], began: float, every: float) -> None:
    """Log each batch when it is due and run cycles, until the last batch, which ends the sources, is through."""
    last = len(given)
    while run.logged < last or run.frontier < last:
        due = min(last, int((time.time() - began) / every))
        while run.logged < due:
            number = BatchId(run.logged + 1)
            run.log(given[number] if number < last else {}, last=number == last, number=number)
        run.cycle(IDLE)


def await_executors(spark: Any, count: int) -> None:
    """Wait until so many executors are there, or go on with those that came in time."""
    deadline = time.monotonic() + READY_SECONDS
    while len(executors_of(spark.sparkContext)) < count and time.monotonic() < deadline:
        time.sleep(0.1)
