"""An application on a Spark cluster: from the batch log through pinned cycles to the sinks. Runs on the driver.

The coordinator does the work; here it gets Spark's executors as nodes and files on shared storage. A failure, of a
node, a job or the driver, is ordinary: what is lost comes back from checkpoints, the most valuable queries first, and
sinks know what they have, so outputs come out once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec
from uuid import uuid4

import pyarrow as pa

from holdfast.application import Application
from holdfast.ids import BatchId, OperatorId, PartitionId, folder_name
from holdfast.recovery.executed_plan import ExecutedPlan
from holdfast.recovery.strategy import RecoverySettings
from holdfast.runtime.blocks import DEAD_LETTERS
from holdfast.runtime.coordinator.coordinator import Coordinator
from holdfast.runtime.coordinator.event_log import Observation
from holdfast.runtime.coordinator.expiry import expiry_of
from holdfast.runtime.coordinator.left_staged import publish_left_staged
from holdfast.runtime.coordinator.liveness import DriverSigns, this_driver
from holdfast.runtime.coordinator.node_sinks import NodeSinks
from holdfast.runtime.coordinator.opening import open_run, sweep_after_start
from holdfast.runtime.coordinator.outputs import aside_folder, check_places, name_sinks, on_nodes, stagers_of
from holdfast.runtime.coordinator.pacing import CycleSettings
from holdfast.runtime.coordinator.parking import ErrorSettings
from holdfast.runtime.coordinator.plan_keeping import PlanKeeping, Replanning
from holdfast.runtime.coordinator.profile_records import ProfileRecords, measured_topology
from holdfast.runtime.coordinator.publishing import PublishSettings
from holdfast.runtime.coordinator.requests import ResumeRequests, TentativeRequests
from holdfast.runtime.coordinator.sink_threads import SinkThreads
from holdfast.runtime.io.batch_log import BatchLog
from holdfast.runtime.io.parquet_sink import ParquetSink
from holdfast.runtime.io.sinks import Sink, Stager
from holdfast.runtime.io.unread_records import UnreadRecords
from holdfast.runtime.messages import Measures, OperatorFailed
from holdfast.runtime.program import Program
from holdfast.runtime.state.store import StaleEpoch
from holdfast.spark.backend import SparkBackend
from holdfast.spark.certificates import files_of
from holdfast.spark.kafka_settings import with_settings_of, without_settings
from holdfast.spark.keepalive import KeepAlive
from holdfast.spark.old_layout import old_application, old_sinks
from holdfast.spark.pinned_jobs import task_cpus
from holdfast.spark.planned_segments import PlannedSegments, segment_lines, with_boundaries
from holdfast.spark.portable import portable, portable_sinks
from holdfast.spark.process_memory import megabytes_of
from holdfast.spark.replicas import ChosenReplicas, PlannedReplicas, choose_replicas
from holdfast.spark.requirements import check_requirements
from holdfast.spark.resident_backend import ResidentBackend
from holdfast.spark.run_context import RunContext
from holdfast.spark.run_settings import bounded_pace, node_capacity, pace_of, planned_settings, recovery_of
from holdfast.spark.settings import HELD, Settings, conf_of
from holdfast.spark.start_hints import start_hints
from holdfast.spark.tentative import tentative_of
from holdfast.spark.user_modules import pickled
from holdfast.storage.files import FileStorage
from holdfast.storage.self_check import check_storage
from holdfast.storage.storage import open_storage
from holdfast.store.wire.secret_files import keys_from_file

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
    _keep_alive: KeepAlive | None = None

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
        wait_seconds: float | None = None,
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
        without: frozenset[OperatorId] = frozenset(),
        ready: Callable[[int, int | None], object] = lambda count, wanted: None,
        backups: frozenset[PartitionId] | None = None,
        segments: PlannedSegments | None = None,
        replicas: PlannedReplicas | None = None,
        origin: str = "",
        replanning: Replanning | None = None,
    ) -> None:
        """Begin, or go on where an earlier driver left off: `directory` is on storage that every node reaches.

        It is a folder or a URL of object storage, and holds the batch log, durable checkpoints and the progress of the
        run. Where another driver is alive, this one is refused unless it is to `take_over`. An application that has
        changed since is compared with what the run is: what would lose state or rows is refused; another layout first
        runs the old one to its end (`old_layout`), with `old_sink` for outputs that are no more; `without` operators of
        it that are given up.

        `settings` are those of the session (`spark.holdfast.*`) unless given; what is named here goes before them: a
        checkpoint every so many batches, how recovery goes about it, the pace, the capacity of a node in the unit of
        the topology's costs, how long to wait for nodes. `nodes`: how many executors to begin with. `request_nodes`
        asks for replacements of lost ones. The nodes' agents are pinged with the secret in `secret_file`. Executors on
        hosts that `admits` says no to stand by until it says yes. `log` gets a line for people, `emit` every event, as
        values; `ready` how many nodes can work, of how many. `backups` are those of a plan, in the place of the
        setting's, `segments` and `replicas` a plan's; `origin` names what plan was asked for, and `replanning` says how
        it is made again when measurements drift.
        """
        hints = check_requirements(spark)
        self._log = log
        chosen = settings or Settings.read(spark)
        for hint in [*hints, *start_hints(chosen, dict(spark.sparkContext.getConf().getAll()))]:
            log(hint)
        if secret_file is not None:
            chosen = replace(chosen, store_secret_file=str(secret_file))
        if capacity is not None:
            chosen = replace(chosen, node_capacity=capacity)
        wait = chosen.wait_seconds if wait_seconds is None else wait_seconds
        if checkpoint_every is not None:
            chosen = replace(chosen, checkpoint_batches=checkpoint_every, checkpoint_seconds=math.inf)
        if chosen.node_memory_mb is None:
            many = chosen.node_processes or task_cpus(spark.sparkContext)
            chosen = replace(chosen, node_memory_mb=megabytes_of(conf_of(spark), many))
        self.store_secret_file = chosen.store_secret_file
        """The secret of the nodes' agents."""
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
        if not old_layout:  # the start that runs the old one has checked its own
            check_places(self._sinks.values())
        for_nodes = portable(app)
        planned = recovery or recovery_of(chosen, self.program, nodes, old_layout=old_layout, backups=backups)
        twice = ChosenReplicas()
        if not old_layout:
            planned, twice = self._with_plans(planned, chosen, backups, segments, replicas)
        called = on_nodes(self._sinks) if chosen.exchange == "resident" else {}
        functions = portable_sinks(called)  # what cannot be sent is refused before the claim
        pickled(self._stagers(start, called))

        def run_old(*, anew: bool, without: frozenset[OperatorId] = frozenset()) -> None:
            old = with_settings_of(old_application(self.storage), app).without(without)
            log("the layout changes: the application as it was processes what is logged and takes a checkpoint")
            inner = SparkRun(
                old,
                spark,
                directory,
                sinks=old_sinks(old, self.program, self._sinks, old_sink),
                settings=chosen,
                wait_seconds=wait,
                log=log,
                pace=pace,
                nodes=nodes,
                request_nodes=request_nodes,
                admits=admits,
                take_over=True,
                old_layout=True,
                without=without,
            )
            try:
                # What parked queries failed of may be gone: the new application brings sinks. If not, it is refused,
                # or they are given up where they are removed.
                inner.coordinator.resume_all()
                if anew:
                    inner.batch_log.append({})
                inner.run()
                inner.checkpoint()
                inner.coordinator.publish_gathered()
            finally:
                inner.close()

        self._progress = progress = open_run(
            self.storage,
            durable,
            self.program,
            portable(without_settings(app)),
            run_old=run_old,
            driver=this_driver(),
            sign_seconds=chosen.driver_heartbeat_seconds,
            take_over=take_over,
            old_layout=old_layout,
            without=without,
            log=log,
        )
        self._held.callback(self._give_up_claim)
        self.id, self.start_id, self.claim = progress.run, start, progress.claim
        stagers = self._stagers(start, called)
        staging = pickled(stagers) if stagers else b""
        self._signs = DriverSigns(self.storage, progress.claim, seconds=chosen.driver_heartbeat_seconds)
        self._held.callback(self._signs.stop)
        self.batch_log = BatchLog(
            self.program.sources,
            self.program.name,
            self.storage,
            claim=progress.claim,
            generation=progress.generation,
            ahead=chosen.max_event_ahead or None,
            idle=chosen.idle_after or None,
        )
        context = RunContext(
            for_nodes,
            start,
            self.storage,
            durable,
            progress.run,
            chosen,
            staging,
            progress.generation,
            functions,
        )
        keys_from_file(chosen.store_secret_file)  # a file that others may read is refused here, not by agents later
        make_backend = self._backend_class(chosen)
        self.backend = make_backend(
            spark.sparkContext,
            self.program,
            context,
            capacity=node_capacity(chosen, conf_of(spark).get("spark.executor.cores"), task_cpus(spark.sparkContext)),
            expected=nodes,
            wait_seconds=wait,
            request=request_nodes,
            admits=admits,
            log=log,
            ready=ready,
        )
        self._held.callback(self.backend.stop)
        runner = SinkThreads(self.backend.wake)
        if isinstance(self.backend, ResidentBackend):
            runner = self.backend.sinks = NodeSinks(self.backend.send_call, self.backend.wake)
        self.coordinator = Coordinator(
            self.program,
            self.backend,
            self.batch_log,
            self._sinks,
            self._aside_sink,
            progress,
            recovery=planned,
            plan=ExecutedPlan(
                planned.segments, planned.backup_partitions, () if segments is None else segments.intervals, 0, origin
            ),
            pace=pace_of(chosen, wait) if pace is None else bounded_pace(pace, chosen),
            errors=ErrorSettings(chosen.errors_retries, chosen.errors_backoff),
            publishing=PublishSettings(seconds=chosen.errors_sink_seconds),
            runner=runner,
            requests=ResumeRequests(self.storage),
            choices=TentativeRequests(self.storage),
            profiles=ProfileRecords(self.storage, progress.claim),
            replica_plans=twice.following(chosen, log=log),
            keeping=None
            if replanning is None
            else PlanKeeping(self.program.topology, self.program.partitions, replanning, time.monotonic()),
            expiry=expiry_of(
                self.storage,
                self._sinks.values(),
                aside=chosen.keep_aside,
                outputs=chosen.keep_outputs,
                clock=time.monotonic,
                log=log,
            ),
            settings=planned_settings(chosen, planned, segments, self.program),
            follower=lambda: self._signs.follower,
            host_of=lambda node: node.rpartition("-")[0] or str(node),
            domain_of=self.backend.domain_of,
            emit=emit,
            log=log,
        )
        self._held.callback(self.coordinator.close)
        sweep_after_start(self.storage, durable, progress, self.coordinator.state)
        publish_left_staged(
            self.storage,
            self._sinks.values(),
            progress.run,
            self.coordinator.state.epoch,
            self.coordinator.state.published,
            progress.generation,
            log,
        )
        for name in stagers:
            self._sinks[name].sweep_staged()
        self._staged = tuple(stagers)

    def _with_plans(
        self,
        planned: RecoverySettings,
        chosen: Settings,
        backups: frozenset[PartitionId] | None,
        segments: PlannedSegments | None,
        replicas: PlannedReplicas | None,
    ) -> tuple[RecoverySettings, ChosenReplicas]:
        """Return how the run recovers with its plans, and its replicas; say what they are."""
        twice = choose_replicas(
            chosen,
            self.program,
            planned.strategy,
            measured=measured_topology(self.storage, self.program.topology),
            plan=replicas,
        )
        lines = list(twice.lines)
        planned = replace(planned, replicas=twice.replicas, replica_lag=chosen.replicas_lag)
        if backups is not None:
            planned = replace(planned, backup_partitions=backups)
        if segments is not None:
            held = chosen.boundaries == HELD
            executed = with_boundaries(segments.segments, self.program, held=held)
            planned = replace(planned, segments=executed)
            lines += segment_lines(replace(segments, segments=executed), self.program, held=held)
        tentative, more = tentative_of(chosen, self.program, self._sinks, planned.strategy)
        for line in (*lines, *more):
            self._log(line)
        return replace(planned, tentative=tentative, tentative_fidelity=chosen.tentative_min_fidelity), twice

    def _backend_class(self, chosen: Settings) -> Callable[..., ResidentBackend | SparkBackend]:
        if chosen.exchange == "resident":
            return ResidentBackend
        self._keep_alive = KeepAlive(  # without connections of its own, the driver pings store agents
            secret_file=chosen.store_secret_file,
            tls=files_of(chosen) if chosen.tls_mode == "files" else None,
            seconds=chosen.keepalive_seconds,
        )
        self._held.callback(self._keep_alive.close)
        return partial(SparkBackend, keep_alive=self._keep_alive)

    def _stagers(self, start: str, called: Mapping[OperatorId, Sink]) -> dict[OperatorId, Stager]:
        """Return what nodes stage rows with; rows for functions stay on nodes only where these are called there."""
        kept = {name: sink for name, sink in self._sinks.items() if name in called or not sink.on_nodes}
        return stagers_of(self.program, kept, start)

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
    def leading_frontier(self) -> BatchId:
        """The last batch that every live partition of the most valuable queries has completed."""
        return self.coordinator.status.leading_frontier

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
        """Return how many rows each source has in a batch; 0 where it is trimmed, or in files that nobody has read."""
        reads = self.coordinator.reads  # what is in files is known once it was read
        found = self.ingested_rows(batch)
        return {str(name): found[str(name)] + reads.rows(name, batch) for name in self.program.sources}

    def marks_logged(self) -> Callable[[], bool]:
        """Return what says whether watermarks in the log are as far as what was read in place moves them."""
        return self.coordinator.reads.marks_logged()

    def ingested_rows(self, batch: BatchId) -> dict[str, int]:
        """Return how many rows of each source were written down for a batch; those of files are not among them."""
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

    def run(self, *, gives_up: Callable[[], bool] = lambda: False) -> None:
        """Process everything in the logs; where queries are parked then, raise what parked the first of them."""
        self.coordinator.run(gives_up=gives_up)
        if (problem := self.parked_problem) is not None:
            raise problem

    @property
    def parked_problem(self) -> OperatorFailed | None:
        """What parked the first of the parked queries, as an error that names them all; None: none is parked."""
        problem = self.coordinator.parked_problem
        if problem is None:
            return None
        directory = self.storage.url.removesuffix("/run")
        return OperatorFailed(problem.failed, [*map(str, self.coordinator.state.parked)], directory)

    @property
    def all_parked(self) -> bool:
        """Whether no query can go on before somebody resumes one."""
        return len(self.coordinator.state.parked) == len(self.program.outputs)

    def resume(self, query: str) -> None:
        """Let a parked query, or all of an output, go on; from any thread."""
        names = {name: operator for operator, name in self.program.output_names.items()}
        self.coordinator.parking.ask(names.get(query, query))
        self.wake()

    def take_requests(self) -> None:
        """Let parked queries go on that people have asked for, also while no driver ran."""
        self.coordinator.asked.resume()

    def cycle(self, timeout: float = 0.0) -> bool:
        """Read reports, and hand out the desired state if it would bring anything; say whether there was work."""
        return self.coordinator.step(timeout)

    def advance(self) -> bool:
        """As `cycle`, waiting a little where nothing can be done; cycles that keep bringing nothing end the run."""
        return self.coordinator.advance()

    def checkpoint(self, *, gives_up: Callable[[], bool] = lambda: False) -> BatchId:
        """Save everything at the last batch now, and wait until it is safe."""
        return self.coordinator.checkpoint(gives_up=gives_up)

    def close(self) -> None:
        """Release the executors; logs, checkpoints and outputs stay. A sink that has not returned is not waited for."""
        publishing = self.coordinator.outputs.publishing
        for key in publishing.unreturned():
            self._log(
                f"the sink of {key.query} has not returned from batch {key.batch}: it is left to itself, and the next "
                "start publishes the batch"
            )
        with ExitStack() as ends:  # also where Spark is gone: else this process would pass for a driver that is alive
            ends.callback(self._give_up_claim)
            ends.callback(self._signs.stop)
            for name in self._staged:
                ends.callback(self._sinks[name].end_staging)
            if self._keep_alive is not None:
                ends.callback(self._keep_alive.close)
            ends.callback(self.backend.stop)
            ends.callback(self.coordinator.close)

    def _give_up_claim(self) -> None:
        with suppress(StaleEpoch, OSError):  # another driver has the run, or finds out itself that this one is gone
            self._progress.end()

    # -- what came of it ---------------------------------------------------------------------------------------------

    @property
    def measures(self) -> Mapping[PartitionId, Measures]:
        """What every partition has taken in this run."""
        return self.coordinator.measuring.measures

    @property
    def rollbacks(self) -> int:
        """How often live partitions rolled back for others, after the start."""
        return self.coordinator.rollbacks

    def _aside_sink(self, operator: OperatorId, feed: OperatorId) -> Sink:
        """Return what keeps the rows that an operator kept aside, of one of its inputs; records are reported, too."""
        place = self.storage.within(aside_folder(operator, feed))
        if feed == DEAD_LETTERS and operator in self.program.sources:
            return UnreadRecords(place, operator, self._log)
        return ParquetSink(place)

    def count(self, output: str) -> int:
        """Return how many rows an output has given; its sink must be Parquet, Delta or memory."""
        return self.coordinator.outputs.count(self.program.output_operator(output))

    def rows(self, output: str) -> pa.Table:
        """Return all rows an output has given; its sink must be Parquet, Delta (in no order) or memory."""
        return self.coordinator.outputs.rows(self.program.output_operator(output))
