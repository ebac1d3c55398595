"""An application on a Spark cluster: from the source log through pinned cycles to the sinks. Runs on the driver.

The coordinator does the work; here it gets Spark's executors as nodes and files on shared storage. A failure, of a
node, a job or the driver, is ordinary: what is lost comes back from checkpoints, the most valuable queries first, and
sinks know what they have, so outputs come out once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa

from holdfast.application import Application, steps
from holdfast.errors import BadInput
from holdfast.ids import BatchId, OperatorId, PartitionId, folder_name
from holdfast.recovery.strategy import RecoverySettings, RecoveryStrategy
from holdfast.runtime.coordinator.coordinator import Coordinator
from holdfast.runtime.coordinator.event_log import Observation
from holdfast.runtime.coordinator.outputs import name_sinks, stagers_of
from holdfast.runtime.coordinator.pacing import CycleSettings
from holdfast.runtime.coordinator.progress import ProgressFile
from holdfast.runtime.io.parquet_sink import ParquetSink
from holdfast.runtime.io.sinks import StagingSink
from holdfast.runtime.io.sources import DirectoryLog, log_batch
from holdfast.runtime.messages import Measures
from holdfast.runtime.program import Program
from holdfast.runtime.state.snapshot_directory import DirectorySnapshotStore
from holdfast.runtime.times import END_OF_TIME
from holdfast.spark.backend import SparkBackend
from holdfast.spark.keepalive import KeepAlive
from holdfast.spark.requirements import check_requirements
from holdfast.spark.settings import PREFIX, Settings, conf_of
from holdfast.spark.worker_task import RunContext

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkRun:
    """An application running on the executors of a Spark session."""

    def __init__(
        self,
        app: Application,
        spark: SparkSession,
        directory: Path,
        *,
        sinks: Mapping[str, object] | None = None,
        settings: Settings | None = None,
        checkpoint_every: int | None = None,
        wait_seconds: float = 120.0,
        log: Callable[[str], object] = lambda line: None,
        emit: Callable[[Observation], object] = lambda seen: None,
        recovery: RecoverySettings | None = None,
        pace: CycleSettings | None = None,
        capacity: float | None = None,
        nodes: int | None = None,
        request_nodes: Callable[[int], str | None] | None = None,
        secret_file: Path | str | None = None,
        admits: Callable[[str], bool] = lambda host: True,
    ) -> None:
        """Begin, or go on where an earlier driver left off: `directory` is on storage that every node reaches.

        It holds the source logs, durable checkpoints and the progress of the run. `settings` are the session's
        `spark.holdfast.*` unless given; what is named here goes before them: a checkpoint every so many batches, how
        recovery goes about it, the pace, the capacity of a node in the unit of the topology's costs. `nodes`: how many
        executors to begin with. `request_nodes` asks for replacements of lost ones. The nodes' agents are pinged with
        the secret in `secret_file`. Executors on hosts that `admits` says no to stand by until it says yes. `log` gets
        a line for people, `emit` every event, as values.
        """
        for hint in check_requirements(spark):
            log(hint)
        chosen = settings or Settings.read(spark)
        if secret_file is not None:
            chosen = replace(chosen, store_secret_file=str(secret_file))
        if capacity is not None:
            chosen = replace(chosen, node_capacity=capacity)
        if checkpoint_every is not None:
            chosen = replace(chosen, checkpoint_batches=checkpoint_every, checkpoint_seconds=math.inf)
        self.program = Program(app)
        # Tasks have a working directory of their own: what they are told must not depend on the driver's.
        self._directory = Path(directory).absolute()
        self._directory.mkdir(parents=True, exist_ok=True)
        self._logs = {
            name: DirectoryLog(source, self.program.name, self._directory / "sources" / name)
            for name, source in self.program.sources.items()
        }
        start = f"{folder_name(self.program.name)}-{uuid4().hex[:12]}"
        self._sinks = name_sinks(self.program, self.program.sinks_by_operator(sinks or {}))
        portable, planned = _portable(app), recovery or _recovery(chosen, self.program)
        stagers = stagers_of(self.program, self._sinks, start)
        staging = _pickled(stagers) if stagers else b""
        # Taking the claim ends an earlier driver: what this one would be refused for was looked at before.
        progress = ProgressFile(self._directory / "progress.json", self.program.name)
        self.id, self.start_id = progress.run, start
        context = RunContext(
            portable,
            start,
            str(self._directory / "sources"),
            chosen.store_durable or str(self._directory / "checkpoints"),
            progress.run,
            chosen,
            staging,
        )
        self._keep_alive = KeepAlive(secret_file=chosen.store_secret_file, seconds=chosen.keepalive_seconds)
        self.backend = SparkBackend(
            spark.sparkContext,
            self.program,
            context,
            capacity=_capacity(chosen, spark),
            expected=nodes,
            wait_seconds=wait_seconds,
            request=request_nodes,
            keep_alive=self._keep_alive,
            admits=admits,
            log=log,
        )
        self.coordinator = Coordinator(
            self.program,
            self.backend,
            self._logs,
            self._sinks,
            lambda operator, feed: ParquetSink(self._directory / "late" / operator / feed),
            progress,
            recovery=planned,
            pace=pace or _pace(chosen, wait_seconds),
            emit=emit,
            log=log,
        )
        # This driver has the run's claim now: an earlier one is refused, and what it left without a name is of no use.
        names = self.coordinator.state.checkpoints.names(progress.run)
        DirectorySnapshotStore(Path(context.checkpoints)).sweep(progress.run, names)
        for name in stagers:
            self._staging(name).sweep_staged()
        self._staged = tuple(stagers)

    # -- feeding -----------------------------------------------------------------------------------------------------

    @property
    def logged(self) -> BatchId:
        """The last batch that every source has logged."""
        return self.coordinator.status.logged

    @property
    def frontier(self) -> BatchId:
        """The last batch that every partition has completed."""
        return self.coordinator.status.frontier

    @property
    def live_frontier(self) -> BatchId:
        """The last batch that every live partition has completed."""
        return self.coordinator.status.live_frontier

    @property
    def closed(self) -> bool:
        """Whether the sources are closed: every window is, and nothing can follow."""
        last = [log.manifest(log.frontier) for log in self._logs.values()]
        return any(one is not None and one.watermark == END_OF_TIME for one in last)

    @property
    def caught_up(self) -> bool:
        """Whether everything logged is processed, and out where it can be."""
        return self.coordinator.status.caught_up

    def log(self, batch: Mapping[str, pa.Table], *, last: bool = False, number: BatchId | None = None) -> BatchId:
        """Put one batch into the source logs; sources that are not named have no rows in it. Returns its number."""
        return log_batch(self.program, self._logs, batch, last=last, number=number)

    def logged_rows(self, batch: BatchId) -> dict[str, int]:
        """Return how many rows each source has in a batch; 0 where its manifest is trimmed."""
        found = {name: log.manifest(batch) for name, log in self._logs.items()}
        return {str(name): 0 if one is None else sum(one.rows) for name, one in found.items()}

    # -- running -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Process everything in the logs; an operator that fails ends the run, and nothing before it is lost."""
        self.coordinator.run()

    def cycle(self, timeout: float = 0.0) -> bool:
        """Read reports, and hand out the desired state if it would bring anything; say whether there was work."""
        return self.coordinator.step(timeout)

    def advance(self) -> bool:
        """As `cycle`, waiting a little where nothing can be done; cycles that keep bringing nothing end the run."""
        return self.coordinator.advance()

    def checkpoint(self) -> BatchId:
        """Save everything at the last batch now, and wait until it is safe."""
        return self.coordinator.checkpoint()

    def close(self) -> None:
        """Release the executors; logs, checkpoints and outputs stay."""
        self.backend.stop()
        self._keep_alive.close()
        for name in self._staged:
            self._staging(name).end_staging()

    def _staging(self, name: OperatorId) -> StagingSink:
        sink = self._sinks[name]
        assert isinstance(sink, StagingSink), "it gave a stager"
        return sink

    # -- what came of it ---------------------------------------------------------------------------------------------

    @property
    def measures(self) -> Mapping[PartitionId, Measures]:
        """What every partition has taken in this run."""
        return self.coordinator.measures

    @property
    def rollbacks(self) -> int:
        """How often live partitions went back for others, after the start."""
        return self.coordinator.rollbacks

    def count(self, output: str) -> int:
        """Return how many rows an output has given; its sink must be one that can tell."""
        return self.coordinator.outputs.count(self.program.output_operator(output))

    def rows(self, output: str) -> pa.Table:
        """Return all rows an output has given, by batch and then by partition; its sink must be one that can tell."""
        return self.coordinator.outputs.rows(self.program.output_operator(output))


def _pace(settings: Settings, wait_seconds: float) -> CycleSettings:
    return CycleSettings(
        checkpoint_batches=settings.checkpoint_batches,
        checkpoint_seconds=settings.checkpoint_seconds,
        durable_every=settings.durable_every,
        most_batches=settings.cycle_batches,
        time_budget=settings.cycle_time_budget,
        wait_seconds=wait_seconds,
        measure_costs=settings.node_costs == "measured",
    )


def _capacity(settings: Settings, spark: SparkSession) -> float:
    """Return what a node can carry: as set; its cores, where costs are measured; else there is no limit."""
    if settings.node_capacity is not None:
        return settings.node_capacity
    return float(conf_of(spark).get("spark.executor.cores", 1)) if settings.node_costs == "measured" else math.inf


def _recovery(settings: Settings, program: Program) -> RecoverySettings:
    return RecoverySettings(
        strategy=RecoveryStrategy(settings.recovery_strategy),
        bound=settings.node_bound,
        backup_partitions=_backup_partitions(settings.retention, program),
        incremental_after_losses=settings.recovery_incremental_after_losses or 1,
        buffer_bytes=math.inf if settings.recovery_buffer_mb is None else settings.recovery_buffer_mb << 20,
    )


def _backup_partitions(retention: str, program: Program) -> frozenset[PartitionId]:
    """Return who keeps outputs back to checkpoints: nobody but the sources' logs, all, or a plan's backups."""
    if retention == "sources":
        return frozenset()
    if retention == "all":
        return frozenset(program.partitions)
    try:
        named = json.loads(Path(retention).read_bytes())["backups"]
        found = frozenset(PartitionId.parse(one) for one in named)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(
            f"{retention!r} is no plan of backups: {error}",
            field=f"{PREFIX}retention",
            remedy="give sources, all, or the file that `holdfast plan backups --json` printed",
        ) from None
    if strange := found - set(program.partitions):
        raise BadInput(
            f"there is no partition {min(strange)}", field=f"{PREFIX}retention", remedy="plan for this topology"
        )
    return found


def _pickled(value: object) -> bytes:
    from pyspark import cloudpickle

    return bytes(cloudpickle.dumps(value))


def _portable(app: Application) -> bytes:
    """Return the application as bytes for the nodes, without what only the driver needs: frames and sinks."""
    stripped = copy(app)
    stripped.steps = {
        name: replace(step, reader=None) if isinstance(step, steps.Source) else step for name, step in app.steps.items()
    }
    stripped.sinks = {}
    try:
        return _pickled(stripped)
    except Exception as error:
        raise BadInput(
            f"cannot be sent to the nodes: {_first_line(error)}",
            where=f"application {app.name}",
            remedy="keep sessions, connections and open files out of operators' functions",
        ) from None


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
