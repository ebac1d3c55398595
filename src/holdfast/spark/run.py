"""An application on a Spark cluster: from the batch log through pinned cycles to the sinks. Runs on the driver.

The coordinator does the work; here it gets Spark's executors as nodes and files on shared storage. A failure, of a
node, a job or the driver, is ordinary: what is lost comes back from checkpoints, the most valuable queries first, and
sinks know what they have, so outputs come out once.
"""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from copy import copy
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec
from uuid import uuid4

import pyarrow as pa

from holdfast.application import Application, steps
from holdfast.errors import BadInput
from holdfast.ids import BatchId, OperatorId, PartitionId, folder_name
from holdfast.recovery.strategy import RecoverySettings, RecoveryStrategy
from holdfast.runtime.coordinator.coordinator import Coordinator
from holdfast.runtime.coordinator.event_log import Observation
from holdfast.runtime.coordinator.layout import (
    change_layout,
    changed_meanwhile,
    changes_of,
    check_layout,
    keep_application,
    needs_new_layout,
)
from holdfast.runtime.coordinator.liveness import DriverSigns, refuse_if_alive, this_driver
from holdfast.runtime.coordinator.outputs import name_sinks, stagers_of
from holdfast.runtime.coordinator.pacing import CycleSettings
from holdfast.runtime.coordinator.progress import Progress, last_driver
from holdfast.runtime.identity import describe
from holdfast.runtime.io.batch_log import BatchLog
from holdfast.runtime.io.parquet_sink import ParquetSink
from holdfast.runtime.io.sinks import FunctionSink, OutputKey, Sink, StagingSink
from holdfast.runtime.messages import Measures
from holdfast.runtime.program import Program
from holdfast.runtime.state.durable_snapshots import DurableSnapshotStore
from holdfast.runtime.state.store import StaleEpoch
from holdfast.spark.backend import SparkBackend
from holdfast.spark.keepalive import KeepAlive
from holdfast.spark.requirements import check_requirements
from holdfast.spark.resident_backend import ResidentBackend
from holdfast.spark.run_context import RunContext
from holdfast.spark.settings import PREFIX, Settings, conf_of
from holdfast.spark.user_modules import pickled
from holdfast.storage.files import FileStorage
from holdfast.storage.self_check import check_storage
from holdfast.storage.storage import Storage, open_storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_P = ParamSpec("_P")


def _undone_on_failure(
    init: Callable[Concatenate[SparkRun, _P], None],
) -> Callable[Concatenate[SparkRun, _P], None]:
    """Let a start that fails give its claim up, and end what it has begun: else it would pass for a driver."""

    @wraps(init)
    def begun(run: SparkRun, /, *given: _P.args, **named: _P.kwargs) -> None:
        with ExitStack() as held:
            run._held = held
            init(run, *given, **named)
            held.pop_all()

    return begun


class SparkRun:
    """An application running on the executors of a Spark session."""

    _held: ExitStack
    """What ends should the start fail."""

    @_undone_on_failure
    def __init__(
        self,
        app: Application,
        spark: SparkSession,
        directory: Path | str,
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
        take_over: bool = False,
        old_sink: Callable[[str], object] = lambda name: None,
        old_layout: bool = False,
    ) -> None:
        """Begin, or go on where an earlier driver left off: `directory` is on storage that every node reaches.

        It is a folder or a URL of object storage, and holds the batch log, durable checkpoints and the progress of the
        run. Where another driver is alive, this one is refused unless it is to `take_over`. An application that has
        changed since is compared with what the run is: what would lose state or rows is refused; another layout first
        runs the old one to its end (`old_layout`), with `old_sink` for outputs that are no more.

        `settings` are those of the session (`spark.holdfast.*`) unless given; what is named here goes before them: a
        checkpoint every so many batches, how recovery goes about it, the pace, the capacity of a node in the unit of
        the topology's costs. `nodes`: how many executors to begin with. `request_nodes` asks for replacements of lost
        ones. The nodes' agents are pinged with the secret in `secret_file`. Executors on hosts that `admits` says no to
        stand by until it says yes. `log` gets a line for people, `emit` every event, as values.
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
        self.storage = open_storage(directory)
        """Where the run is."""
        check_storage(self.storage)
        if isinstance(self.storage, FileStorage):
            self.storage.sweep_parts()
        durable = open_storage(chosen.store_durable) if chosen.store_durable else self.storage.within("checkpoints")
        if chosen.store_durable:
            check_storage(durable)
        start = f"{folder_name(self.program.name)}-{uuid4().hex[:12]}"
        self._sinks = name_sinks(self.program, self.program.sinks_by_operator(sinks or {}))
        portable, planned = _portable(app), recovery or _recovery(chosen, self.program, old_layout=old_layout)
        changes = None if old_layout else changes_of(self.storage, self.program)
        # Taking the claim ends an earlier driver: what this one would be refused for is looked at before.
        if not take_over:
            refuse_if_alive(self.storage, seconds=chosen.driver_heartbeat_seconds, log=log)
        for line in [] if changes is None else changes.lines():
            if not line.endswith(": same"):
                log(line)
        for line in () if changes is None else (*changes.versions, *changes.cautions):
            log(line)
        if needs_new_layout(self.storage, self.program, changes):

            def run_old() -> None:
                old = _old_application(self.storage)
                _log_old(log)
                inner = SparkRun(
                    old,
                    spark,
                    directory,
                    sinks=_old_sinks(old, self.program, self._sinks, old_sink),
                    settings=chosen,
                    wait_seconds=wait_seconds,
                    log=log,
                    pace=pace,
                    nodes=nodes,
                    request_nodes=request_nodes,
                    admits=admits,
                    take_over=True,
                    old_layout=True,
                )
                try:
                    inner.run()
                    inner.checkpoint()
                finally:
                    inner.close()

            change_layout(
                self.storage, durable, self.program, run_old=run_old, driver=this_driver(), application=portable
            )
        stagers = stagers_of(self.program, self._sinks, start)
        staging = pickled(stagers) if stagers else b""
        self._progress = progress = Progress(self.storage, self.program.name, driver=this_driver())
        self._held.callback(self._give_up_claim)
        check_layout(progress, self.program, where=self.storage.url)
        self.id, self.start_id, self.claim = progress.run, start, progress.claim
        kept = keep_application(self.storage, portable, progress.generation, progress.claim)
        progress.describe(describe(self.program), kept)
        self._signs = DriverSigns(self.storage, progress.claim, seconds=chosen.driver_heartbeat_seconds)
        self._held.callback(self._signs.stop)
        self.batch_log = BatchLog(
            self.program.sources,
            self.program.name,
            self.storage,
            claim=progress.claim,
            generation=progress.generation,
        )
        if self.batch_log.fenced and not old_layout:
            raise changed_meanwhile(self.storage.url)
        context = RunContext(
            portable,
            start,
            self.storage,
            durable,
            progress.run,
            chosen,
            staging,
            progress.generation,
        )
        self._keep_alive = KeepAlive(secret_file=chosen.store_secret_file, seconds=chosen.keepalive_seconds)
        self._held.callback(self._keep_alive.close)
        backend = ResidentBackend if chosen.exchange == "resident" else SparkBackend
        self.backend = backend(
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
        self._held.callback(self.backend.stop)
        self.coordinator = Coordinator(
            self.program,
            self.backend,
            self.batch_log,
            self._sinks,
            lambda operator, feed: ParquetSink(self.storage.within(f"late/{operator}/{feed}")),
            progress,
            recovery=planned,
            pace=pace or _pace(chosen, wait_seconds),
            emit=emit,
            log=log,
        )
        # This driver has the run's claim now: an earlier one is refused, and what it left without a name is of no use.
        names = self.coordinator.state.checkpoints.names(progress.run)
        DurableSnapshotStore(durable).sweep(progress.run, names, progress.claim)
        self.storage.delete([name for name in self.storage.list("applications/") if name != kept and name < kept])
        for name in stagers:
            self._staging(name).sweep_staged()
        self._staged = tuple(stagers)

    # -- feeding -----------------------------------------------------------------------------------------------------

    @property
    def logged(self) -> BatchId:
        """The last batch in the log."""
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
        return self.batch_log.closed

    @property
    def caught_up(self) -> bool:
        """Whether everything logged is processed, and out where it can be."""
        return self.coordinator.status.caught_up

    def log(
        self,
        batch: Mapping[str, pa.Table],
        *,
        last: bool = False,
        number: BatchId | None = None,
        given: int | None = None,
    ) -> BatchId:
        """Put one batch into the log; see `BatchLog.append`. Returns its number."""
        return self.batch_log.append(batch, last=last, number=number, given=given)

    def logged_rows(self, batch: BatchId) -> dict[str, int]:
        """Return how many rows each source has in a batch; 0 where it is trimmed."""
        record = self.batch_log.record(batch)
        known = {} if record is None else record.sources  # one that was added is not in batches before it
        return {str(name): sum(known[name].rows) if name in known else 0 for name in self.program.sources}

    def reads_sources(self) -> None:
        """Jobs that read sources are to run beside this run's own tasks."""
        self.backend.needs_free_slot = True

    def wake(self) -> None:
        """Let `advance`, where it waits, return soon: there is something to log."""
        self.backend.wake()

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
        self._signs.stop()
        self._give_up_claim()

    def _give_up_claim(self) -> None:
        with suppress(StaleEpoch, OSError):  # another driver has the run, or finds out itself that this one is gone
            self._progress.end()

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
        """How often live partitions rolled back for others, after the start."""
        return self.coordinator.rollbacks

    def count(self, output: str) -> int:
        """Return how many rows an output has given; its sink must be Parquet or memory."""
        return self.coordinator.outputs.count(self.program.output_operator(output))

    def rows(self, output: str) -> pa.Table:
        """Return all rows an output has given, by batch and then by partition; its sink must be Parquet or memory."""
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


def _recovery(settings: Settings, program: Program, *, old_layout: bool = False) -> RecoverySettings:
    return RecoverySettings(
        strategy=RecoveryStrategy(settings.recovery_strategy),
        bound=settings.node_bound,
        backup_partitions=_backup_partitions(settings.retention, program, old_layout=old_layout),
        incremental_after_losses=settings.recovery_incremental_after_losses or 1,
        buffer_bytes=math.inf if settings.recovery_buffer_mb is None else settings.recovery_buffer_mb << 20,
    )


def _backup_partitions(retention: str, program: Program, *, old_layout: bool = False) -> frozenset[PartitionId]:
    """Return who keeps outputs back to checkpoints: nobody but the sources' logs, all, or a plan's backups.

    A plan is made for the application as it is now: of an old layout, it names what is still there.
    """
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
    if (strange := found - set(program.partitions)) and not old_layout:
        raise BadInput(
            f"there is no partition {min(strange)}", field=f"{PREFIX}retention", remedy="plan for this topology"
        )
    return found - strange


def _old_application(storage: Storage) -> Application:
    """Return the application of a run's present layout, as its last driver kept it."""
    last = last_driver(storage)
    kept = None if last is None or last["program"] is None else storage.read(last["program"])
    try:
        if kept is None:
            raise FileNotFoundError("it was not kept")
        found: Application = pickle.loads(kept)
        return found
    except Exception as error:
        raise BadInput(
            f"the application as it was cannot be loaded: {_first_line(error)}",
            where=storage.url,
            remedy="start it as it was before, stop it, then change it: a stopped run needs the old one no more",
        ) from None


def _old_sinks(
    old: Application, program: Program, sinks: Mapping[OperatorId, Sink], old_sink: Callable[[str], object]
) -> dict[str, object]:
    """Return the sinks of an application that was before: those of the same outputs now, else what is given."""
    now: dict[str, object] = {name: sinks[operator] for operator, name in program.output_names.items()}
    return {name: now.get(name) or old_sink(name) or FunctionSink(_drop) for name in old.output_names().values()}


def _drop(rows: pa.Table, key: OutputKey) -> None:
    """Take rows of an output that is no more, and whose sink nobody knows."""


def _log_old(log: Callable[[str], object]) -> None:
    log("the layout changes: the application as it was processes what is logged and takes a checkpoint")


def _portable(app: Application) -> bytes:
    """Return the application as bytes for the nodes, without what only the driver needs: frames and sinks."""
    stripped = copy(app)
    stripped.steps = {
        name: replace(step, reader=None) if isinstance(step, steps.Source) else step for name, step in app.steps.items()
    }
    stripped.sinks = {}
    try:
        return pickled(stripped)
    except Exception as error:
        raise BadInput(
            f"cannot be sent to the nodes: {_first_line(error)}",
            where=f"application {app.name}",
            remedy="keep sessions, connections and open files out of operators' functions",
        ) from None


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
