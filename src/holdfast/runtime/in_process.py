"""A whole application in one process, without Spark: for tests, and a first try. Runs anywhere.

    >>> import pyarrow as pa
    >>> from holdfast import Application, rows
    >>> from holdfast.runtime import run_in_process
    >>> app = Application("pairs")
    >>> words = app.source("words", schema={"word": "string"})
    >>> counted = words.key_by("word").window(rows(2)).count(id="pairs").output()
    >>> done = run_in_process(app, [{"words": pa.table({"word": ["a", "b", "a"]})}])
    >>> done.rows("pairs").to_pylist()
    [{'word': 'a', 'count': 2}]

The coordinator, recovery machine, workers, stores, logs and sinks are those of a cluster, on any number of nodes; only
what carries blocks between nodes is a loop (`LoopBackend`). Nodes and partitions can be lost with their files: they
come back by the same path as on a cluster.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from holdfast.application import Application
from holdfast.errors import BadInput
from holdfast.ids import BatchId, Epoch, NodeId, OperatorId, PartitionId, SegmentId
from holdfast.planning.profiles.run_profile import RunProfile
from holdfast.recovery.cluster_state import ParkedQuery
from holdfast.recovery.events import NodesArrived, NodesLost
from holdfast.recovery.executed_plan import ExecutedPlan, SegmentInterval
from holdfast.recovery.strategy import RecoverySettings
from holdfast.runtime.blocks import DEAD_LETTERS, Block
from holdfast.runtime.coordinator.coordinator import Coordinator
from holdfast.runtime.coordinator.event_log import Observation
from holdfast.runtime.coordinator.layout import change_layout, changes_of, check_layout
from holdfast.runtime.coordinator.left_staged import publish_left_staged
from holdfast.runtime.coordinator.outputs import aside_folder, name_sinks
from holdfast.runtime.coordinator.pacing import CycleSettings
from holdfast.runtime.coordinator.parking import ErrorSettings
from holdfast.runtime.coordinator.plan_keeping import PlanKeeping, Replanning
from holdfast.runtime.coordinator.progress import Progress
from holdfast.runtime.coordinator.publishing import PublishSettings
from holdfast.runtime.coordinator.requests import ResumeRequests, TentativeRequests
from holdfast.runtime.coordinator.sink_threads import SinkThreads
from holdfast.runtime.identity import describe
from holdfast.runtime.io.batch_log import BatchLog
from holdfast.runtime.io.in_place_readers import InPlaceReader, in_place_readers
from holdfast.runtime.io.intake import Intake
from holdfast.runtime.io.parquet_sink import ParquetSink
from holdfast.runtime.io.sinks import MemorySink, Sink
from holdfast.runtime.messages import CycleEnded, DesiredState, Measures, Report
from holdfast.runtime.program import Program
from holdfast.runtime.state.directory_store import DirectoryStore
from holdfast.runtime.state.durable_snapshots import DurableSnapshotStore
from holdfast.runtime.state.snapshot_store import MemorySnapshotStore, SnapshotStore
from holdfast.runtime.state.store import MemoryStore, VersionStore
from holdfast.runtime.worker.host import PartitionHost
from holdfast.runtime.worker.worker import NodeWorker
from holdfast.storage.files import FileStorage
from holdfast.storage.memory import MemoryStorage
from holdfast.storage.storage import Storage


class LoopBackend:
    """Nodes as objects; see the coordinator's Backend."""

    takes_updates = False

    def __init__(
        self,
        program: Program,
        batch_log: BatchLog,
        snapshot_store: SnapshotStore,
        store_of: Callable[[NodeId], VersionStore],
        *,
        clock: Callable[[], float] = time.perf_counter,
        cpu_clock: Callable[[], float] = time.process_time,
    ) -> None:
        self._program, self._batch_log = program, batch_log
        self._snapshot_store, self._store_of = snapshot_store, store_of
        self._clock, self._cpu_clock = clock, cpu_clock
        self.nodes: dict[NodeId, NodeWorker] = {}
        self._reports: list[Report] = []

    def add_nodes(self, nodes: Mapping[NodeId, float]) -> None:
        """Let nodes come, each with its capacity."""
        for name in nodes:
            self.nodes[name] = NodeWorker(
                self._program,
                self._store_of(name),
                self._snapshot_store,
                self._batch_log,
                name=name,
                clock=self._clock,
                cpu_clock=self._cpu_clock,
            )
        self._reports.append(NodesArrived(dict(nodes)))

    def lose_nodes(self, *nodes: NodeId) -> None:
        """Let nodes go, with everything on them."""
        for name in nodes:
            del self.nodes[name]
        self._reports.append(NodesLost(nodes))

    def reports(self, timeout: float) -> Sequence[Report]:
        """See Backend: everything is done when `reconcile` returns, so nothing comes later."""
        found, self._reports = self._reports, []
        return found

    def reconcile(self, desired: DesiredState) -> None:
        """See Backend: levels follow each other until no block moves between nodes."""
        waiting: dict[NodeId, list[Block]] = {}
        level = 0
        busy = sorted({one.node for one in desired.assignments.values()} & set(self.nodes))
        while busy:
            coming: dict[NodeId, list[Block]] = {}
            for name in busy:
                report = self.nodes[name].reconcile(desired, level, waiting.get(name, ()))
                self._reports.append(report)
                for target, blocks in report.sent.items():
                    coming.setdefault(target, []).extend(blocks)
            waiting, level = coming, level + 1
            busy = sorted(set(coming) & set(self.nodes))
        self._reports.append(CycleEnded(desired.number, desired.epoch))

    def release_nodes(self, nodes: Sequence[NodeId]) -> None:
        """See Backend: no node here is announced to leave."""

    def request_nodes(self, count: int) -> str | None:
        """See Backend: nodes come when the owner of this backend adds them."""
        return None


# -- in process --------------------------------------------------------------------------------------------------------


CHECKPOINT_EVERY = 10
"""Batches between checkpoints of a run in a directory: a run that is started again makes no more of them again."""
_NEVER = 2**62


LOOK_SECONDS = 0.05
"""How often folders are listed while files settle."""


def run_in_process(
    app: Application,
    batches: Iterable[Mapping[str, pa.Table]] | None = None,
    *,
    directory: Path | None = None,
    nodes: int = 1,
    close: bool = True,
) -> InProcess:
    """Run an application over batches (each: source -> rows), to the end; see InProcess for what comes back.

    Without batches, what sources with `hf.files` and `hf.kafka` have now is read in place.

    With `close`, windows that are still open at the end come out; without, they wait, as they would in a stream.
    """
    running = InProcess(app, directory=directory, nodes=nodes)
    if batches is None:
        running.read()
    for batch in batches or ():
        running.feed(batch)
    if close:
        running.close()
    running.publish_gathered()
    return running


class InProcess:
    """An application running in this process."""

    def __init__(
        self,
        app: Application,
        *,
        directory: Path | None = None,
        nodes: int = 1,
        checkpoint_every: int | None = None,
        recovery: RecoverySettings | None = None,
        intervals: Mapping[str, int] | None = None,
        plan: ExecutedPlan | None = None,
        replanning: Replanning | None = None,
        sinks: Mapping[str, object] | None = None,
        errors: ErrorSettings | None = None,
        publishing: PublishSettings | None = None,
        clock: Callable[[], float] = time.perf_counter,
        emit: Callable[[Observation], object] = lambda seen: None,
    ) -> None:
        """Spread an application's partitions over a number of nodes.

        With a directory, state, logs, checkpoints and late rows are files there, and an application that was stopped
        goes on where it stood; without, they are in memory. A checkpoint is taken every so many batches: not given,
        every ten with a directory, else only when `checkpoint` is called. `recovery` says how failures are dealt with,
        and whose output is kept for it; `intervals` has the batches between checkpoints of its segments. `plan` has all
        of it, and `replanning` says how it is made again when measurements drift. `sinks` take the place of those the
        application names.

        An operator, a row or a sink that fails is raised as an error once all other queries have been run, and tried
        again by the next call. With `errors`, its queries are parked in its place after so many attempts (`parked`),
        until `resume` lets them go on. With `publishing`, sinks are called in threads, as on a cluster, and one that
        does not return in time parks its queries; without, they are called here. `emit` gets every event, as a run on a
        cluster records them.
        """
        self._emit = emit
        self._parks = errors is not None
        self.program = Program(app)
        self._directory = None if directory is None else Path(directory)
        storage: Storage = MemoryStorage() if self._directory is None else FileStorage(self._directory)
        changes = changes_of(storage, self.program)
        if changes is not None and changes.layout_changed:
            change_layout(storage, storage.within("checkpoints"), self.program, run_old=self._refuse_to_run_old)
        progress = Progress(storage, self.program.name)
        check_layout(progress, self.program, where=storage.url)
        progress.describe(describe(self.program))
        self._batch_log = BatchLog(
            self.program.sources, self.program.name, storage, claim=progress.claim, generation=progress.generation
        )
        snapshot_store = (
            MemorySnapshotStore() if self._directory is None else DurableSnapshotStore(storage.within("checkpoints"))
        )
        self._backend = LoopBackend(self.program, self._batch_log, snapshot_store, self._store, clock=clock)
        self._backend.add_nodes({NodeId(f"node-{number}"): math.inf for number in range(nodes)})
        if checkpoint_every is None:
            checkpoint_every = _NEVER if self._directory is None else CHECKPOINT_EVERY
        self._coordinator = Coordinator(
            self.program,
            self._backend,
            self._batch_log,
            name_sinks(self.program, self.program.sinks_by_operator(sinks or {})),
            self._late_sink,
            progress,
            recovery=recovery,
            plan=plan,
            keeping=None
            if replanning is None
            else PlanKeeping(self.program.topology, self.program.partitions, replanning, clock()),
            pace=CycleSettings(
                checkpoint_batches=checkpoint_every,
                segment_intervals=tuple(
                    SegmentInterval(SegmentId(name), batches) for name, batches in (intervals or {}).items()
                ),
                time_budget=math.inf,
            ),
            errors=errors or ErrorSettings(retries=0),
            publishing=publishing,
            runner=None if publishing is None else SinkThreads(),
            requests=ResumeRequests(storage),
            choices=TentativeRequests(storage),
            clock=clock,
            emit=self._see,
        )
        publish_left_staged(
            storage,
            self._coordinator.outputs.sinks.values(),
            progress.run,
            self._coordinator.state.epoch,
            self._coordinator.state.published,
            progress.generation,
        )
        self._storage = storage
        self._intake: Intake | None = None
        self._readers: dict[OperatorId, InPlaceReader] = {}
        self._failed: set[PartitionId] = set()
        self._went_back: set[PartitionId] = set()
        self._coordinator.describe(start=progress.run)
        self.run()

    # -- where it stands --------------------------------------------------------------------------------------------

    @property
    def batch_log(self) -> BatchLog:
        """What has come in, batch by batch."""
        return self._batch_log

    @property
    def frontier(self) -> BatchId:
        """The last batch in the log."""
        return self._coordinator.status.logged

    @property
    def epoch(self) -> Epoch:
        """The present epoch: a start and every recovery begin one."""
        return self._coordinator.state.epoch

    @property
    def checkpoint_batch(self) -> BatchId:
        """The batch of the last checkpoint; -1: there is none."""
        return self._coordinator.state.checkpoints.global_batch

    @property
    def placement(self) -> dict[PartitionId, NodeId]:
        """Which node each partition is on."""
        return self._coordinator.state.placement

    @property
    def hosts(self) -> dict[NodeId, PartitionHost]:
        """What runs on each node."""
        return {name: node.host for name, node in self._backend.nodes.items()}

    # -- feeding and running ----------------------------------------------------------------------------------------

    def feed(self, batch: Mapping[str, pa.Table]) -> None:
        """Log one batch (sources that are not named have no rows in it) and process it."""
        self._batch_log.append(batch)
        self.run()

    def read(self) -> None:
        """Log and process what folders and topics of sources have now; files that are fresh settle first."""
        if self._intake is None:
            readers = in_place_readers(self.program.sources, self._storage, self._batch_log, fresh_seconds=0)
            self._intake = Intake(
                self._batch_log, self.program.sources, in_place=readers, marks_ahead=self._coordinator.reads.is_ahead
            )
            self._readers = readers
        while True:
            for reader in self._readers.values():
                reader.look()
            while self._intake.make_batch() is not None:
                self.run()
            if not any(reader.unsettled for reader in self._readers.values()) and not self._intake.pending:
                return
            time.sleep(LOOK_SECONDS)

    def close(self) -> None:
        """End all sources: windows that are still open come out."""
        self._batch_log.append({}, last=True)
        self.run()

    def publish_gathered(self) -> None:
        """Publish what sinks have gathered (`hf.parquet(…, every=…)`) now, as at the end of a run."""
        self._coordinator.publish_gathered()

    def run(self) -> None:
        """Process everything there is; what fails is an error at the end, and tried again by the next call."""
        coordinator = self._coordinator
        if not self._parks:
            coordinator.resume_all()
        coordinator.asked.resume()
        coordinator.run()
        if not self._parks and (problem := coordinator.parked_problem) is not None:
            raise problem

    @property
    def parked(self) -> dict[PartitionId, ParkedQuery]:
        """The queries that are parked, and why."""
        return dict(self._coordinator.state.parked)

    def resume(self, query: str) -> None:
        """Let a parked query, or all of an output, go on."""
        self._coordinator.parking.ask(query)
        self.run()

    # -- what came of it --------------------------------------------------------------------------------------------

    def rows(self, output: str) -> pa.Table:
        """Return all rows an output has given, by batch and then by partition; its sink must be Parquet or memory."""
        return self._coordinator.outputs.rows(self.program.output_operator(output))

    def late(self, operator: str, source: str | None = None) -> pa.Table | None:
        """Return the late rows of an operator (of one of its inputs); None where there are none."""
        for (name, feed), sink in self._late_sinks().items():
            if name == operator and source in (None, feed) and feed != DEAD_LETTERS:
                assert isinstance(sink, MemorySink | ParquetSink)
                return sink.rows()
        return None

    def dead_letters(self, operator: str) -> pa.Table | None:
        """Return the rows that an operator could not take, with their errors; None where there are none."""
        sink = self._late_sinks().get((OperatorId(operator), DEAD_LETTERS))
        assert sink is None or isinstance(sink, MemorySink | ParquetSink)
        return None if sink is None else sink.rows()

    def measures(self) -> dict[PartitionId, Measures]:
        """Return what every partition has taken since this run was begun, batches made again among it."""
        return dict(self._coordinator.measuring.measures)

    def profile(self) -> RunProfile:
        """Return what was measured of this run; rows come at no pace of their own, so there are no rates."""
        return replace(self._coordinator.measuring.profile(), paced=False, nodes={}, placement={})

    # -- failing and recovering -------------------------------------------------------------------------------------

    def checkpoint(self) -> BatchId:
        """Save every partition's state at the last batch; logs and outboxes shrink to what is needed from there."""
        return self._coordinator.checkpoint()

    def fail(self, *partitions: PartitionId | str) -> None:
        """Lose partitions with all their files; the next cycle, of `recover` or of `feed`, finds them missing."""
        placement = self.placement
        for partition in partitions:
            named = PartitionId.parse(partition) if isinstance(partition, str) else partition
            if named not in placement:
                raise BadInput(f"there is no partition {named} in {self.program.name}", remedy="see its topology")
            self._backend.nodes[placement[named]].host.lose(named)
            self._failed.add(named)

    def recover(self, *, onto: Mapping[PartitionId, NodeId] | None = None) -> set[PartitionId]:
        """Bring back what was lost, at the last checkpoint; return the other partitions that rolled back for it.

        A sender whose outbox does not reach back to the checkpoint rolls back too and regenerates its output, and so do
        its own senders, up to those that kept, at worst the sources' log. What is not deterministic takes everything
        downstream of it along. `onto` names nodes for partitions that are lost.
        """
        strange = sorted(set((onto or {}).values()) - set(self._backend.nodes))
        if strange:
            raise BadInput(f"there is no node {strange[0]}", remedy=f"there are {', '.join(self._backend.nodes)}")
        state = self._coordinator.state
        state.wanted = dict(onto or {})
        try:
            self._coordinator.probe()
            self.run()
        finally:
            state.wanted = {}
        back = self._went_back - self._failed
        self._failed, self._went_back = set(), set()
        return back

    # -- inside -----------------------------------------------------------------------------------------------------

    def _refuse_to_run_old(self, *, anew: bool, without: frozenset[OperatorId] = frozenset()) -> None:
        why = "its last checkpoint cannot be read" if anew else "there are batches after its last checkpoint"
        raise BadInput(
            f"changed its layout, and {why}",
            where=f"application {self.program.name}",
            remedy=f"run the application as it was, {'feed a batch, ' * anew}call checkpoint(), then change it",
        )

    def _store(self, node: NodeId) -> VersionStore:
        if self._directory is None:
            return MemoryStore()
        # What a node has of another layout is of no use: its partitions are others, under the same names.
        generation = self._batch_log.generation
        return DirectoryStore(self._directory / (f"{node}-layout-{generation}" if generation else node))

    def _late_sink(self, operator: OperatorId, feed: OperatorId) -> Sink:
        return MemorySink() if self._directory is None else ParquetSink(self._directory / aside_folder(operator, feed))

    def _late_sinks(self) -> dict[tuple[OperatorId, OperatorId], Sink]:
        """The sinks of late rows, those of an earlier run of this directory among them."""
        found = dict(self._coordinator.outputs.late)
        if self._directory is not None:
            for path in sorted((self._directory / "late").glob("*/*")):
                found.setdefault((OperatorId(path.parent.name), OperatorId(path.name)), ParquetSink(path))
            for path in sorted((self._directory / "dead-letters").glob("*")):
                found.setdefault((OperatorId(path.name), DEAD_LETTERS), ParquetSink(path))
        return found

    def _see(self, seen: Observation) -> None:
        self._emit(seen)
        if seen.kind == "rolled-back":
            self._went_back |= {PartitionId.parse(name) for name in seen.fields["partitions"]}


__all__: Sequence[str] = ["InProcess", "run_in_process"]
