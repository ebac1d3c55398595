"""The coordinator: desired state out, reports in, outputs to the sinks. Runs on the driver.

It knows nothing of Spark: a *backend* has the nodes and brings the desired state to their workers. The same coordinator
runs on a cluster, in one process and under the simulator. What the recovery machine decides is on durable storage
before anything is done about it. There is no other channel of decisions than the desired state.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from holdfast.errors import CheckFailed
from holdfast.ids import BatchId, Epoch, NodeId, OperatorId, PartitionId
from holdfast.recovery.checkpoints import Checkpoints, snapshot_name
from holdfast.recovery.cluster_state import ClusterState
from holdfast.recovery.effects import Effect, Fence, Forget, GlobalCheckpoint, Keep, Place, RequestNodes, RollBack
from holdfast.recovery.events import (
    CheckpointGivenUp,
    CheckpointMarked,
    CheckpointStored,
    CostsMeasured,
    Event,
    PartitionsReported,
    Timer,
)
from holdfast.recovery.graph import PartitionGraph
from holdfast.recovery.machine import RecoveryMachine
from holdfast.recovery.states import PLACED_STATES, PartitionState
from holdfast.recovery.strategy import RecoverySettings
from holdfast.runtime.backend import Backend
from holdfast.runtime.coordinator.event_log import Observation, effect_fields, effect_line, event_kind
from holdfast.runtime.coordinator.outputs import Outputs
from holdfast.runtime.coordinator.pacing import CheckpointSchedule, CycleSettings, StallDetector
from holdfast.runtime.coordinator.progress import Progress
from holdfast.runtime.coordinator.status import RunStatus
from holdfast.runtime.io.batch_log import BatchLog
from holdfast.runtime.io.sinks import Sink
from holdfast.runtime.messages import (
    CycleEnded,
    CycleResult,
    DesiredState,
    Measures,
    NodeReport,
    OperatorFailed,
    PartitionAssignment,
    Refused,
    Report,
    SnapshotNotStored,
    merge_reports,
)
from holdfast.runtime.program import Program
from holdfast.runtime.state.store import StaleEpoch

LEAST_COST = 1e-6
"""Of a partition, in cores."""
IDLE_SECONDS = 0.1
"""How long a run waits for reports where it has nothing to hand out."""


@dataclass(slots=True)
class _Cycle:
    """The desired state that was handed out last, and what came of it."""

    desired: DesiredState
    began: float
    through: BatchId
    """The last batch that was logged when it was handed out."""
    ended: bool = False
    problem: str | None = None
    result: CycleResult = field(default_factory=CycleResult)


@dataclass(slots=True)
class _Counters:
    """What only the loop itself needs."""

    handed_out: int = 0
    ended: int = 0
    forget: list[str] = field(default_factory=list)
    """Snapshots that nodes are to delete: the progress that is written does not hold them any more."""
    dropped: list[str] = field(default_factory=list)
    """Those that the next progress will not hold."""
    problem: str | None = None
    not_staged: set[OperatorId] = field(default_factory=set)
    """Outputs of which a line was logged that nodes cannot write their files."""
    outbox_bytes: dict[NodeId, int] = field(default_factory=dict)


class Coordinator:
    """A run of a program."""

    def __init__(
        self,
        program: Program,
        backend: Backend,
        batch_log: BatchLog,
        sinks: Mapping[OperatorId, Sink],
        late_sink: Callable[[OperatorId, OperatorId], Sink],
        progress: Progress,
        *,
        recovery: RecoverySettings | None = None,
        pace: CycleSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
        emit: Callable[[Observation], object] = lambda seen: None,
        log: Callable[[str], object] = lambda line: None,
    ) -> None:
        """Start a run, or continue one that an earlier driver left: the progress says which.

        `emit` gets every event, as values; `log` gets a line for people. Durations are by `clock`, which nobody sets;
        events have the time that `now` says.
        """
        self.program, self.backend, self.batch_log = program, backend, batch_log
        self._progress, self._clock, self._now = progress, clock, now
        self.outputs = Outputs(program, sinks, late_sink, progress.generation)
        self._emit_to, self._log = emit, log
        self.pace = pace or CycleSettings()
        graph = PartitionGraph(program.topology, {name: one.deterministic for name, one in program.operators.items()})
        saved = progress.machine
        checkpoints = None if saved is None else Checkpoints.read(graph.order, saved["checkpoints"])
        self.state = ClusterState(graph, recovery, epoch=Epoch.of(progress.claim, 1), checkpoints=checkpoints)
        self.machine = RecoveryMachine(self.state)
        self.status = RunStatus(program, self.state, batch_log, self.outputs)
        self.measures: dict[PartitionId, Measures] = dict.fromkeys(program.partitions, Measures())
        """What every partition has taken in this run."""
        self.rollbacks = 0
        """How often partitions rolled back, or were lost, after the start."""
        self._began = clock()
        self._counters = _Counters()
        self._stalls, self._schedule = StallDetector(self.pace), CheckpointSchedule(self.pace, self._began)
        self._cycle: _Cycle | None = None
        self._unread: deque[Report] = deque()
        self._not_aside: set[tuple[PartitionId, BatchId]] = set()
        """Partitions and batches whose late rows have come and could not be written."""
        self._counted_at = self._began
        """Up to when time without progress has been counted."""
        published: Mapping[str, int] = {} if saved is None else saved.get("published", {})
        for partition in program.outputs:
            if not self.outputs.deterministic(partition):
                # It waits for durable checkpoints, and may be behind the global one; snapshots hold what is not out.
                self.state.published[partition] = BatchId(published.get(str(partition), -1))
        if self.pace.measure_costs:
            # What was never measured costs nothing yet: a start must not wait for room that nobody needs.
            known = progress.measures
            costs = {p: float(known.get(str(p), {}).get("cost", LEAST_COST)) for p in program.partitions}
            self.machine.handle(CostsMeasured(costs))
        self._write()
        self.outputs.begin(progress.run, self.state.epoch)

    # -- running -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Process everything in the logs; an operator that fails ends the run, and nothing before it is lost."""
        self._moved()
        self.read_reports()
        while not self.status.caught_up:
            if not self.advance() and self._stalls.waits_in_vain:
                raise self._stuck(waited=True)

    def advance(self) -> bool:
        """Take one step, waiting a little for reports; say whether there was anything to do.

        Live partitions continue whatever others wait for: whoever feeds a stream calls this again and again. Cycles
        that keep bringing nothing end the run, and so does a time in which nothing at all is alive.
        """
        stalls, before, ended = self._stalls, self.status.standing, self._counters.ended
        could, began = self.status.can_go_on, self._clock()
        if not self.step(IDLE_SECONDS):
            if stalls.idled(max(IDLE_SECONDS, self._clock() - began)):
                self.handle(Timer())
            if stalls.waits_in_vain and not self.state.in_state(PLACED_STATES):
                raise self._stuck(waited=True)
            return False
        if self.status.standing != before:
            self._moved()
            return True
        if self._counters.ended == ended:
            return True  # the workers are still at it
        pause = stalls.stood(could=could)
        self.read_reports(pause)
        if self.status.standing != before:
            self._moved()
            return True
        restoring = bool(self.state.in_state([PartitionState.RESTORING]))
        counted, self._counted_at = self._counted_at, self._clock()
        if stalls.gets_nowhere(max(pause, self._counted_at - counted), restoring=restoring):
            raise self._stuck(waited=False)
        return True

    def _moved(self) -> None:
        """Something has changed: time without progress counts anew."""
        self._stalls.moved()
        self._counted_at = self._clock()

    def step(self, timeout: float = 0.0) -> bool:
        """Read reports, hand out the desired state if it would bring anything, and read what comes of it.

        Says whether there was anything to do. Waits up to `timeout` seconds for reports.
        """
        self.read_reports()
        if not self.status.can_work:
            if timeout:
                self.read_reports(timeout)
            return False
        if not self.busy or self._has_update():
            self._mark()
            self._hand_out(self.desired_state())
        self.read_reports(timeout)
        return True

    def _has_update(self) -> bool:
        """Whether workers that are busy would have more to do with a new desired state."""
        cycle = self._cycle
        return self.backend.takes_updates and cycle is not None and self.status.logged > cycle.through

    def probe(self, *, trim_outboxes: bool = False) -> CycleResult | None:
        """Hand out the desired state, whether or not it would bring anything, and wait for what workers report.

        Returns their reports merged; None where the cycle did not end well, or its epoch is over.
        """
        while self.busy:
            self.read_reports(IDLE_SECONDS)
        self._hand_out(replace(self.desired_state(), trim_outboxes=trim_outboxes))
        cycle = self._cycle
        assert cycle is not None
        while not cycle.ended:
            self.read_reports(IDLE_SECONDS)
        # Where a new epoch has begun meanwhile, reports of this one did not count.
        return cycle.result if cycle.problem is None and cycle.desired.epoch == self.state.epoch else None

    @property
    def busy(self) -> bool:
        """Whether workers are still at the desired state that holds; one of an earlier epoch is over."""
        cycle = self._cycle
        return cycle is not None and not cycle.ended and cycle.desired.epoch == self.state.epoch

    def _stuck(self, waited: bool) -> CheckFailed:
        lost = self.state.lost
        problem = self._counters.problem or "no failure was reported"
        where = f"application {self.program.name}"
        if waited and lost:
            return CheckFailed(
                f"{len(lost)} partitions ({lost[0]}, …) were assigned to no node for {self.pace.wait_seconds:.0f} s",
                where=where,
                remedy="give the cluster free workers, then start the run again: it continues from here",
            )
        return CheckFailed(
            f"no partition makes progress, at batch {self.status.frontier} ({problem})",
            where=where,
            remedy="read the executors' logs, then start the run again: it continues from here",
        )

    # -- the desired state -------------------------------------------------------------------------------------------

    def desired_state(self) -> DesiredState:
        """Derive what holds for every worker now."""
        state, logged = self.state, self.status.logged
        self._counters.handed_out += 1
        keep = state.keep_from()
        assignments = {}
        for partition in state.in_state(PLACED_STATES):
            one = state.partitions[partition]
            assert one.node is not None
            marks = state.marks_for(partition)
            assignments[partition] = PartitionAssignment(
                one.node,
                one.start,
                one.frontier,
                keep.get(partition, one.kept_from),
                logged,
                marks,
                frozenset(mark for mark in marks if state.checkpoints.is_durable(mark)),
                state.checkpoints.last(partition),
                state.with_outbox(partition),
                one.forgotten,
                one.state is PartitionState.PAUSED,
            )
        return DesiredState(
            self._progress.run,
            self._counters.handed_out,
            state.epoch,
            assignments,
            dict(state.published),
            self.pace.most_batches,
            self.pace.time_budget,
            logged - min((one.frontier for one in assignments.values()), default=logged),
            state.buffering,
            tuple(self._counters.forget),
            generation=self._progress.generation,
        )

    def _hand_out(self, desired: DesiredState) -> None:
        self._cycle = _Cycle(desired, self._clock(), self.status.logged)
        self.backend.reconcile(desired)

    # -- reports -----------------------------------------------------------------------------------------------------

    def read_reports(self, timeout: float = 0.0) -> None:
        """Read what was reported, waiting up to `timeout` seconds, and act on it.

        What is left when something is raised is read by the next call.
        """
        unread = self._unread
        unread += self.backend.reports(0.0 if unread else timeout)
        while unread:
            report = unread.popleft()
            if isinstance(report, NodeReport):
                workers = [report]
                while unread and isinstance(unread[0], NodeReport):
                    workers.append(unread.popleft())  # type: ignore[arg-type]
                self._take_reports(workers)
            elif isinstance(report, CycleEnded):
                self._cycle_ended(report)
            else:
                self._emit(event_kind(report), nodes=list(report.nodes))
                self.handle(report)

    def _cycle_ended(self, ended: CycleEnded) -> None:
        cycle = self._cycle
        if cycle is None or ended.number != cycle.desired.number:
            return
        cycle.ended, cycle.problem = True, ended.problem
        self._counters.ended += 1
        if ended.problem is not None:
            self._counters.problem = ended.problem
            self._emit("cycle-failed", number=ended.number, **_epoch_fields(ended.epoch), problem=ended.problem)
            return
        del self._counters.forget[: len(cycle.desired.forget)]
        self._emit(
            "cycle",
            number=ended.number,
            **_epoch_fields(ended.epoch),
            through=self.status.logged,
            frontier=self.state.frontier,
            seconds=self._clock() - cycle.began,
            rows=cycle.result.rows,
        )

    def _take_reports(self, reports: list[NodeReport]) -> None:
        """Act on what workers report, all of it together; reports of an earlier epoch do not count."""
        current = [one for one in reports if one.epoch == self.state.epoch]
        if not current:
            return
        result = merge_reports(current, self.state.placement)
        if self._cycle is not None:
            for one in current:
                self._cycle.result.add(one, self.state.placement)
        if result.refused is not None:
            self._take_refusal(result.refused)
        self._take(result)

    def _take_refusal(self, refused: Refused) -> None:
        """A higher claim ends this driver; of its own claim there is no epoch that it has not begun itself."""
        if refused.current.claim > self.state.epoch.claim:
            raise StaleEpoch(
                f"claim {self.state.epoch.claim} is over: {refused.partition} runs under claim {refused.current.claim}",
                where=f"application {self.program.name}",
                remedy="another driver runs this application: end this one",
            )
        self._counters.problem = f"{refused.partition} is in epoch {refused.current} and was asked in {refused.epoch}"

    def _take(self, result: CycleResult) -> None:
        """Act on merged reports: frontiers, outputs, snapshots, and what is missing."""
        state = self.state
        for partition, measures in result.measures:
            self.measures[partition] = self.measures[partition].plus(measures)
        for answer in result.not_stored:
            self._not_stored(answer)
        done = self.outputs.publish(
            result.outputs, state.published, state.checkpoints.durable_batch, state.epoch, result.staged
        )
        for output, why in result.not_staged.items():
            if output not in self._counters.not_staged:
                self._counters.not_staged.add(output)
                self._log(f"{output}: nodes cannot write its files, so its rows pass through the driver: {why}")
                self._emit("not-staged", output=output, problem=why)
        for query, batch, rows in done.out:
            self._emit("published", partition=str(query), batch=batch, rows=rows)
        self._counters.outbox_bytes.update(result.outbox_bytes)
        # Where late rows are not written, a partition does not count as further: they come again, and then it does.
        self._not_aside = (self._not_aside | done.not_aside) - (done.aside - done.not_aside)
        held_back = {partition for partition, _ in self._not_aside}
        self.handle(
            PartitionsReported(
                state.epoch,
                self.status.logged,
                {p: batch for p, batch in result.frontiers.items() if p not in held_back},
                frozenset(result.frontiers),
                done.reached,
                sum(self._counters.outbox_bytes.get(node, 0) for node in set(state.placement.values())),
            )
        )
        for one in result.stored:
            self.handle(CheckpointStored(one.partition, one.snapshot))
        for event in result.losses:
            self._counters.problem = str(event)
            self.handle(event)
        if done.problem is not None:
            raise done.problem
        if result.failed is not None:
            raise OperatorFailed(result.failed)

    def _not_stored(self, answer: SnapshotNotStored) -> None:
        line = f"the snapshot of {answer.partition} at batch {answer.batch} is not stored yet: {answer.problem}"
        self._counters.problem = line
        self._log(line)
        self._emit("snapshot-not-stored", partition=str(answer.partition), batch=answer.batch, problem=answer.problem)
        if answer.gone:
            self.handle(CheckpointGivenUp(answer.batch))

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def _mark(self) -> None:
        """Mark a batch that no partition has reached yet for a checkpoint, if it is time."""
        state = self.state
        if state.checkpoints.marks and not state.recovering:
            return  # one at a time; during a recovery live partitions take further snapshots meanwhile
        last = max([state.checkpoints.global_batch, *state.checkpoints.marks])
        reached = max(one.frontier for one in state.partitions.values())
        mark = self._schedule.next_mark(last, reached, self._clock())
        if mark is not None:
            self.handle(CheckpointMarked(mark.batch, mark.durable))

    def checkpoint(self) -> BatchId:
        """Take a durable checkpoint at the last batch now, and wait until it is complete."""
        self.run()
        state, target = self.state, self.state.frontier
        tries = 0
        while state.checkpoints.durable_batch < target:
            self.handle(CheckpointMarked(target, durable=True))
            before = self.status.standing
            if not self.step(IDLE_SECONDS):
                self.read_reports(0.05)
            if self.status.standing != before:
                tries = 0
            elif not self.busy:  # what is running takes its time; what has ended brought nothing
                tries += 1
                self.read_reports(min(0.2, 0.002 * tries))
            if tries > 50 * self.pace.most_tries:
                raise self._stuck(waited=False)
        self.run()
        self._write()  # what was published after the checkpoint is part of it
        return state.checkpoints.global_batch

    # -- the recovery machine ----------------------------------------------------------------------------------------

    def handle(self, event: Event) -> None:
        """Give an event to the recovery machine, write down what it decided, then do it."""
        if isinstance(event, PartitionsReported) and self.pace.measure_costs:
            self.machine.handle(CostsMeasured({p: self._cost(one) for p, one in self.measures.items()}))
        effects = self.machine.handle(event)
        writes = any(isinstance(one, Fence | Place | GlobalCheckpoint | Keep) for one in effects)
        if writes:
            self._write()
        for effect in effects:
            self._do(effect)
        if writes:
            self._counters.forget += self._counters.dropped
            self._counters.dropped.clear()

    def _cost(self, measures: Measures) -> float:
        """Return the share of a core that a partition has taken since this driver began."""
        return max(LEAST_COST, round(measures.cpu_seconds / max(1e-3, self._clock() - self._began), 6))

    def _do(self, effect: Effect) -> None:
        for kind, fields in effect_fields(self.state, effect):
            self._emit(kind, **fields)
        if (line := effect_line(effect)) is not None:
            self._log(line)
        match effect:
            case RequestNodes(count):
                if (problem := self.backend.request_nodes(count)) is not None:
                    self._log(f"{count} nodes were requested and cannot be had: {problem}")
            case RollBack():
                self.rollbacks += 1
            case GlobalCheckpoint():
                self.batch_log.trim(effect.inputs_from)
                self._emit("measures", partitions={str(p): asdict(one) for p, one in self.measures.items()})
            case Forget():
                stored = [(p, one) for p, one in effect.snapshots if one.contents is None]
                self._counters.dropped += [snapshot_name(self._progress.run, p, one) for p, one in stored]

    def _write(self) -> None:
        self._progress.write(
            self.state.epoch,
            self.state.written(),
            {
                str(p): {"cpu_seconds": one.cpu_seconds, "rows_in": one.rows_in, "cost": self._cost(one)}
                for p, one in self.measures.items()
            },
        )

    def _emit(self, kind: str, **fields: Any) -> None:
        self._emit_to(Observation(self._now(), kind, fields))


def _epoch_fields(epoch: Epoch) -> dict[str, int]:
    return {"claim": epoch.claim, "epoch": epoch.number}
