"""The coordinator: desired state out, reports in, outputs to the sinks. Runs on the driver.

It knows nothing of Spark: a *backend* has the nodes and brings the desired state to their workers. The same coordinator
runs on a cluster, in one process and under the simulator. What the recovery machine decides is on durable storage
before anything is done about it. There is no other channel of decisions than the desired state.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from holdfast.errors import BadInput, CheckFailed, HoldfastError, one_line
from holdfast.ids import BatchId, Epoch, NodeId, OperatorId, PartitionId
from holdfast.planning.profiles.run_profile import RunProfile, profiled
from holdfast.recovery.branches import read_tentative
from holdfast.recovery.checkpoints import Checkpoints, snapshot_name
from holdfast.recovery.cluster_state import ClusterState, ParkedQuery
from holdfast.recovery.effects import (
    BranchChanged,
    Changed,
    CopyDropped,
    CopyPlaced,
    Corrected,
    Effect,
    Fence,
    Forget,
    GlobalCheckpoint,
    Keep,
    KeptNoMore,
    LeaveOut,
    NodesEvacuated,
    Parked,
    Place,
    PlanAwaited,
    PlanTookEffect,
    RequestNodes,
    Resumed,
    RollBack,
    WentTentative,
)
from holdfast.recovery.events import (
    CheckpointGivenUp,
    CheckpointMarked,
    CheckpointStored,
    CostsMeasured,
    Event,
    NodesArrived,
    NodesLost,
    PartitionsReported,
    PlanChosen,
    QueriesResumed,
    TentativeChosen,
    Timer,
)
from holdfast.recovery.executed_plan import ExecutedPlan, resumed_plan
from holdfast.recovery.machine import RecoveryMachine
from holdfast.recovery.quarantine import read_decisions
from holdfast.recovery.states import PLACED_STATES, PartitionState
from holdfast.recovery.strategy import RecoverySettings
from holdfast.runtime.backend import Backend
from holdfast.runtime.coordinator.adapting import RateFollower, ReplicaPlans
from holdfast.runtime.coordinator.copies import assign_copies, copies_have_more
from holdfast.runtime.coordinator.event_log import (
    Observation,
    capacities,
    code_event,
    detection_lines,
    effect_fields,
    effect_line,
    event_kind,
    executed_settings,
    run_fields,
)
from holdfast.runtime.coordinator.expiry import Expiry
from holdfast.runtime.coordinator.future_rows import FutureRows
from holdfast.runtime.coordinator.marking import BatchMarks
from holdfast.runtime.coordinator.outputs import Outputs, Published
from holdfast.runtime.coordinator.pacing import CycleSettings, StallDetector
from holdfast.runtime.coordinator.parking import ErrorSettings, Parking, Step
from holdfast.runtime.coordinator.plan_keeping import Finding, PlanKeeping
from holdfast.runtime.coordinator.profile_records import ProfileRecords
from holdfast.runtime.coordinator.profiling import LEAST_COST, Profiler
from holdfast.runtime.coordinator.progress import Progress
from holdfast.runtime.coordinator.publishing import CallRunner, PublishSettings
from holdfast.runtime.coordinator.reading import SourceReads
from holdfast.runtime.coordinator.regeneration import Regenerations
from holdfast.runtime.coordinator.requests import ResumeRequests, TentativeRequests
from holdfast.runtime.coordinator.segment_schedule import SegmentSchedule
from holdfast.runtime.coordinator.status import RunStatus
from holdfast.runtime.coordinator.tentative import (
    TentativeChoices,
    assign_branches,
    assign_stand_ins,
    branches_have_more,
    check_sinks,
    publish_tentative,
    refusal_of,
    source_watermarks,
)
from holdfast.runtime.fetches import CodeChosen, Fetched, Fetching
from holdfast.runtime.io.batch_log import BatchLog
from holdfast.runtime.io.sinks import Sink
from holdfast.runtime.messages import (
    CycleEnded,
    CycleResult,
    DesiredState,
    DriverSuspected,
    Failed,
    Measures,
    NodeReport,
    NodesAnswered,
    OperatorFailed,
    PartitionAssignment,
    Refused,
    Report,
    SnapshotNotStored,
    merge_reports,
)
from holdfast.runtime.program import Program
from holdfast.runtime.state.store import StaleEpoch
from holdfast.topology import Topology, to_document

COST_SECONDS = 1.0
"""How often measured costs are passed to the recovery machine."""
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
    held_changed: bool = False
    """Whether queries were parked or resumed since the desired state was handed out."""


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
        plan: ExecutedPlan | None = None,
        pace: CycleSettings | None = None,
        errors: ErrorSettings | None = None,
        publishing: PublishSettings | None = None,
        runner: CallRunner | None = None,
        requests: ResumeRequests | None = None,
        choices: TentativeRequests | None = None,
        profiles: ProfileRecords | None = None,
        replica_plans: ReplicaPlans | None = None,
        keeping: PlanKeeping | None = None,
        expiry: Expiry | None = None,
        settings: Mapping[str, Any] | None = None,
        host_of: Callable[[NodeId], str] = str,
        domain_of: Callable[[NodeId], str | None] = lambda node: None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
        emit: Callable[[Observation], object] = lambda seen: None,
        log: Callable[[str], object] = lambda line: None,
    ) -> None:
        """Start a run, or continue one that an earlier driver left: the progress says which.

        `plan` is what is executed, by default the segments and backups of `recovery` at the intervals of `pace`; where
        the driver before was asked for the same, the plan that it had come to holds.
        `errors` says how often what fails is tried again, `publishing` how long sinks may take, `runner` makes their
        calls (by default at once), `requests` is where people let parked queries go on, `choices` where they choose
        which queries give tentative outputs;
        `replica_plans` lets the plan of replicas follow what is measured;
        `keeping` compares the plan with what is measured and proposes others;
        `profiles` is where what was measured is kept, with the run's `settings`; `expiry` deletes what is kept no
        longer; `host_of` gives a node's host: one whose disk is full gets no more work; `domain_of` gives its failure
        domain, where it is known. `emit` gets every event, as values; `log` gets a line for people.
        Durations are by `clock`, which nobody sets; events have the time that `now` says.
        """
        self.program, self.backend, self.batch_log = program, backend, batch_log
        self._progress, self._clock, self._now = progress, clock, now
        self.outputs = Outputs(
            program, sinks, late_sink, progress.generation, runner=runner, settings=publishing, clock=clock
        )
        self._emit_to, self._log = emit, log
        self.pace = pace or CycleSettings()
        if recovery is not None and recovery.replicas and not backend.takes_updates:
            raise BadInput(
                "replicas need tasks that stay: a cycle through Spark's shuffle carries blocks to primaries alone",
                where=f"application {program.name}",
                remedy="run without replicas, or with spark.holdfast.exchange=resident",
            )
        if recovery is not None and recovery.tentative:
            if not backend.takes_updates:
                raise BadInput(
                    "tentative outputs need tasks that stay: a cycle through Spark's shuffle has one line",
                    where=f"application {program.name}",
                    remedy="run without tentative outputs, or with spark.holdfast.exchange=resident",
                )
            check_sinks(sorted(recovery.tentative), sinks, f"application {program.name}")
        graph = program.graph
        saved = progress.machine
        checkpoints = None if saved is None else Checkpoints.read(graph.order, saved["checkpoints"])
        parked: Mapping[str, Any] = {} if saved is None else saved.get("parked", {})
        asked = recovery or RecoverySettings()
        plan = plan or ExecutedPlan(asked.segments, asked.backup_partitions, self.pace.segment_intervals)
        plan, next_plan = resumed_plan(plan, None if saved is None else saved.get("plan"), graph)
        self.pace = replace(self.pace, segment_intervals=plan.intervals)
        self.state = ClusterState(
            graph,
            recovery,
            epoch=Epoch.of(progress.claim, 1),
            checkpoints=checkpoints,
            parked={PartitionId.parse(query): ParkedQuery.read(why) for query, why in parked.items()},
            requests=-1 if saved is None else saved.get("requests", -1),
            quarantined={} if saved is None else read_decisions(saved.get("quarantined", {})),
            tentative={} if saved is None else read_tentative(saved.get("tentative", {}), batch_log.frontier),
            plan=plan,
            next_plan=next_plan,
            dropped=[] if saved is None else map(PartitionId.parse, saved.get("dropped", [])),
        )
        self.state.copies.domain_of = domain_of
        self.state.branches.read_choices({} if saved is None else saved.get("tentative_choices", {}))
        self.machine = RecoveryMachine(self.state)
        self._executed = plan
        """The plan in force, as far as its effects are done."""
        self._were_tentative = frozenset(self.state.branches.at), batch_log.frontier
        """Queries that were tentative under the driver before, and the last batch that was logged by then."""
        self.outputs.may_be_tentative = self._may_be_tentative
        self.parking = Parking(self.state, errors or ErrorSettings(), clock=clock, now=now, requests=requests)
        self._choices = TentativeChoices(
            self.state,
            choices,
            lambda query: refusal_of(query, program, sinks, stays=backend.takes_updates),
            clock,
        )
        self.status = RunStatus(program, self.state, batch_log, self.outputs, self.parking.waiting)
        self.measures: dict[PartitionId, Measures] = dict.fromkeys(program.partitions, Measures())
        """What every partition has taken in this run."""
        self.rollbacks = 0
        """How often partitions rolled back, or were lost, after the start."""
        self.false_alarms = 0
        """How many nodes that were declared silent have answered afterwards."""
        self._began = clock()
        self._counters = _Counters()
        self._stalls = StallDetector(self.pace)
        self.reads = SourceReads(
            program, batch_log, self.state.inputs_from, lambda partition: self.state.partitions[partition].frontier
        )
        """What sources found that are read in place."""
        self._regenerations = Regenerations(self.state, self.reads.checks)
        self._future = FutureRows(batch_log, self._emit, log)
        schedule = SegmentSchedule(self.pace, self.state.segments, self._began)
        self._marks = BatchMarks(batch_log, self.state, schedule, clock)
        self._cycle: _Cycle | None = None
        self._unread: deque[Report] = deque()
        self._not_aside: set[tuple[PartitionId, BatchId]] = set()
        """Partitions and batches whose late rows have come and could not be written."""
        self._fetched: dict[PartitionId, Fetched] = {}
        self._fetching: dict[PartitionId, Fetching] = {}
        """How far the restore of each partition was when that was last said."""
        """Where the state of partitions that are being restored came from, as their nodes say."""
        self._host_of, self._full_hosts = host_of, set[str]()
        self._costs_at = self._lost_since = -math.inf
        """When costs were last passed on; since when partitions find no room (-inf: none waits)."""
        self._profiles, self._settings, self._expiry = profiles, dict(settings or {}), expiry
        self._keeping = keeping
        self._counted_at = self._began
        """Up to when time without progress has been counted."""
        published: Mapping[str, int] = {} if saved is None else saved.get("published", {})
        for partition in program.outputs:
            # It may be behind its checkpoint, where it waits for a durable one or its sink fails: snapshots hold it.
            known_out = BatchId(published.get(str(partition), -1))
            if not self.outputs.deterministic(partition) or known_out < self.state.published[partition]:
                self.state.published[partition] = known_out
        known = {p: float(progress.measures.get(str(p), {}).get("cost", LEAST_COST)) for p in program.partitions}
        self.profiler = Profiler(
            program.partitions, self._began, costs=known, before=None if profiles is None else profiles.before
        )
        """What planners need, measured over a sliding period."""
        self._rates = RateFollower(self.state, replica_plans, self.profiler.is_measured)
        if self.pace.measure_costs:
            # What was never measured costs nothing yet: a start must not wait for room that nobody needs.
            self.machine.handle(CostsMeasured(known))
        self._write()
        self.outputs.begin(progress.run, self.state.epoch)

    # -- running -----------------------------------------------------------------------------------------------------

    def run(self, *, gives_up: Callable[[], bool] = lambda: False) -> None:
        """Process everything in the logs; queries that fail are parked where they stand, and nothing is lost.

        Partitions that wait for nodes are waited for: as long as the settings say, or until `gives_up`.
        """
        self._moved()
        self.read_reports()
        while not self.status.caught_up:
            if not self.advance() and self._stalls.waits_in_vain:
                raise self._stuck(waited=True)
            if gives_up():
                return

    def advance(self) -> bool:
        """Take one step, waiting a little for reports; say whether there was anything to do.

        Live partitions continue whatever others wait for: whoever feeds a stream calls this again and again. Cycles
        that keep bringing nothing end the run, and so does a time in which nothing at all is alive.
        """
        stalls, before, ended = self._stalls, self.status.standing, self._counters.ended
        # Regenerators are restored, and make old batches, before the partitions that wait for them go on.
        could, began = self.status.can_go_on and not self._regenerations.active, self._clock()
        pausing = bool(self.parking.waiting()) or self.outputs.publishing.is_at_work
        if not self.step(IDLE_SECONDS):
            if pausing:
                self._moved()  # the next attempt has time, or a sink is at work: that is no standstill
                return False
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
        restoring = bool(self.state.in_state([PartitionState.RESTORING])) or self._regenerations.active
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
        self.resume_asked()
        self._take_choices()
        self._take_plan()
        if not self.status.can_work:
            if not self.busy and self._cycle is not None and self._beside_has_more(self._cycle.desired):
                self._hand_out(self.desired_state())  # nobody waits for what comes of it
            if timeout:
                self.read_reports(timeout)
            return False
        if not self.busy or self._has_update():
            self._hand_out(self.desired_state())
        self.read_reports(timeout)
        return True

    def _beside_has_more(self, desired: DesiredState) -> bool:
        """Whether copies or branches would have more to do with a new desired state."""
        return copies_have_more(self.state, desired) or branches_have_more(self.state, desired, self.status.logged)

    def _has_update(self) -> bool:
        """Whether workers that are busy would have more to do with a new desired state."""
        cycle = self._cycle
        if not self.backend.takes_updates or cycle is None:
            return False
        return self.status.logged > cycle.through or self._counters.held_changed or self.parking.has_update

    def resume_asked(self) -> None:
        """Let parked queries go on that people have asked for; storage that is away is asked again."""
        try:
            found = self.parking.resumed()
        except OSError as error:
            self._log(f"requests to let parked queries go on cannot be read: {error}")
            return
        for event in found:
            self.handle(event)
        if any(event.request >= 0 for event in found):
            with contextlib.suppress(OSError):
                self.parking.logged()

    def _take_choices(self) -> None:
        """Let queries give tentative outputs, or none, as people have asked; storage that is away is asked again."""
        try:
            found = self._choices.taken()
        except OSError as error:
            self._log(f"requests for tentative outputs cannot be read: {error}")
            return
        for event, refused in found:
            self.handle(event)
            for line in refused:
                self._log(f"no tentative outputs of {line}")
            self._emit(
                "tentative-chosen", queries=[str(query) for query in event.queries], on=event.on, refused=refused
            )
        if found:
            with contextlib.suppress(OSError):
                self._choices.logged()

    def _take_plan(self) -> None:
        """Have the plan executed that was found beside the stream, where one was."""
        if self._keeping is None:
            return
        plan, findings = self._keeping.taken(self._clock(), self.state)
        self._emit_findings(findings)
        if plan is not None:
            self.choose_plan(plan)

    def _emit_findings(self, findings: Iterable[Finding]) -> None:
        for kind, fields, line in findings:
            self._emit(kind, **fields)
            if line is not None:
                self._log(line)

    def choose_plan(self, plan: ExecutedPlan) -> bool:
        """Have another plan executed from the next checkpoint on that is complete under it and the one in force.

        Says whether it differs from the last one that was chosen. Nothing stops: until then senders keep what either
        plan wants kept.
        """
        change = self.state.plan
        last = change.next or change.now
        if plan.is_same_as(last):
            return False
        self.handle(PlanChosen(replace(plan, number=last.number + 1, origin=last.origin)))
        return True

    def resume_all(self) -> None:
        """Let all parked queries go on."""
        if self.state.parked:
            self.handle(self.parking.all_parked())

    @property
    def parked_problem(self) -> OperatorFailed | None:
        """What parked the first of the parked queries, as an error; None: none is parked."""
        for why in self.state.parked.values():
            return OperatorFailed(Failed(why.partition, why.batch, why.error))
        return None

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
                remedy="give the cluster free workers, then start the run again: it continues from here; without "
                "spark.holdfast.node.wait it waits",
            )
        return CheckFailed(
            f"no partition makes progress, at batch {self.status.frontier} ({problem})",
            where=where,
            remedy="read the executors' logs, then start the run again: it continues from here",
        )

    def _given_up(self) -> CheckFailed:
        return CheckFailed(
            f"no checkpoint of everything was taken, at batch {self.status.frontier}: the wait for it was ended",
            where=f"application {self.program.name}",
            remedy="start the run again: it continues from the checkpoint before",
        )

    # -- the desired state -------------------------------------------------------------------------------------------

    def desired_state(self) -> DesiredState:
        """Derive what holds for every worker now. It lets sources read what is logged, and has the marks in it."""
        self._future.look()
        for mark in self._marks.take():
            self.handle(CheckpointMarked(mark.batch, mark.durable, mark.segments, mark.between))
            if mark.segments == frozenset():
                continue  # no checkpoint moves to it
            self.profiler.marked(self._clock(), mark.batch)
            if self._keeping is not None:
                self._keeping.marked(self._clock(), mark.batch)
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
                one.state in (PartitionState.PAUSED, PartitionState.PARKED),
                partition in state.parked,
                self.parking.attempt(partition),
                state.skips_for(partition),
                checks=self.reads.checks(partition, one.frontier),
            )
        copies = assign_copies(state, assignments, self.reads.checks)
        regenerators = self._regenerations.assign(assignments)
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
            copies=copies,
            branches=assign_branches(state, logged),
            regenerators=regenerators,
            stand_ins=assign_stand_ins(state),
            watermarks=source_watermarks(state, self.batch_log),
        )

    def _hand_out(self, desired: DesiredState) -> None:
        self._cycle = _Cycle(desired, self._clock(), self.status.logged)
        self._counters.held_changed = False
        self.backend.reconcile(desired)

    # -- reports -----------------------------------------------------------------------------------------------------

    def read_reports(self, timeout: float = 0.0) -> None:
        """Read what was reported, waiting up to `timeout` seconds, and act on it.

        What is left when something is raised is read by the next call.
        """
        unread, began = self._unread, self._clock()
        self._take_completed()
        unread += self.backend.reports(0.0 if unread else timeout)
        if not unread and self.outputs.publishing.is_at_work and (left := timeout - (self._clock() - began)) > 0:
            self.outputs.publishing.wait(left)  # a backend that waits has waited; one of this process does not
        self._take_completed()
        while unread:
            report = unread.popleft()
            if isinstance(report, NodeReport):
                workers = [report]
                while unread and isinstance(unread[0], NodeReport):
                    workers.append(unread.popleft())  # type: ignore[arg-type]
                self._take_reports(workers)
            elif isinstance(report, CycleEnded):
                self._cycle_ended(report)
            elif isinstance(report, NodesAnswered | DriverSuspected):
                self._take_detection(report)
            elif isinstance(report, CodeChosen):
                self._take_code(report)
            elif not isinstance(report, NodesArrived):
                self._emit(event_kind(report), nodes=list(report.nodes))
                self.handle(report)
            elif (report := self._with_room(report)).nodes:
                self._emit(event_kind(report), nodes=list(report.nodes), capacity=capacities(report.nodes))
                self.handle(report)

    def _take_code(self, report: CodeChosen) -> None:
        """Say which code an agent has chosen; it changes nothing."""
        self.profiler.chose_code(report)
        fields, line = code_event(report)
        self._emit("code-changed", **fields)
        if report.before is not None:
            self._log(line)

    def _take_detection(self, report: NodesAnswered | DriverSuspected) -> None:
        """Say how the detection of lost nodes fares; it changes nothing."""
        if isinstance(report, NodesAnswered):
            self.false_alarms += len(report.nodes)
        for kind, fields, line in detection_lines(report):
            self._emit(kind, **fields)
            self._log(line)

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
        placement, copies = self.state.placement, self.state.copies.placement
        stand_ins = self.state.branches.now.stand_ins
        result = merge_reports(current, placement, copies, stand_ins)
        if self._cycle is not None:
            for one in current:
                self._cycle.result.add(one, placement, copies, stand_ins)
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
        self._measure(result)
        for source, batch, read in self.reads.take(result.reads):
            self._future.found(source, batch, read.ahead)
        if self._regenerations.took(result.regenerated):
            self._moved()
        self._fetched.update(result.fetched)
        self._take_fetching(result.fetching.values())
        for answer in result.not_stored:
            self._not_stored(answer)
        done = self.outputs.publish(
            result.outputs,
            state.published,
            state.checkpoints.durable_line,
            state.epoch,
            result.staged,
            self.parking.held,
            self.parking.held_aside,
        )
        for output, why in result.not_staged.items():
            if output not in self._counters.not_staged:
                self._counters.not_staged.add(output)
                self._log(f"{output}: nodes cannot write its files, so its rows pass through the driver: {why}")
                self._emit("not-staged", output=output, problem=why)
        tentative = publish_tentative(state, self.outputs, result.tentative, done, self.parking.held)
        self._emit_published(done)
        self._counters.outbox_bytes.update(result.outbox_bytes)
        # Where late rows are not written, a partition counts as far as the batch before: they come again.
        self._not_aside = (self._not_aside | done.not_aside) - (done.aside - done.not_aside)
        reached = held_back(result.frontiers, self._not_aside, {p: one.frontier for p, one in state.partitions.items()})
        self.parking.took(reached, done.reached, done.aside)
        self.handle(
            PartitionsReported(
                state.epoch,
                self.status.logged,
                reached,
                frozenset(result.frontiers),
                done.reached,
                self._kept_bytes,
                result.copies,
                result.copy_problems,
                tentative,
                {**result.branch_problems, **done.tentative_failed},
            )
        )
        for one in result.stored:
            self.profiler.took_snapshot(one)
            if self._keeping is not None:
                self._keeping.saved(self._clock(), one)
            self.handle(CheckpointStored(one.partition, one.snapshot))
        for event in result.losses:
            self._counters.problem = str(event)
            self.handle(event)
        if done.problem is not None:
            raise done.problem
        self._take_failures([*((Step.OPERATOR, failed) for failed in result.failed.values()), *done.failed])
        for node, failed in result.full_disks.items():
            if node in state.nodes:
                self._lose_full(node, failed)

    def _take_completed(self) -> None:
        """Act on what became of outputs that publishers had; published moves with it."""
        if not self.outputs.publishing.has_news:
            return
        state = self.state
        done = self.outputs.completed(state.epoch, state.parked, self.parking.held)
        self._emit_published(done)
        self.parking.took({}, done.reached, ())
        if done.reached or done.tentative_failed:
            self.handle(
                PartitionsReported(
                    state.epoch,
                    self.status.logged,
                    {},
                    published=done.reached,
                    kept_bytes=self._kept_bytes,
                    branch_problems=done.tentative_failed,
                )
            )
        if done.problem is not None:
            raise done.problem
        self._take_failures(done.failed)

    def _may_be_tentative(self, query: PartitionId, batch: BatchId) -> bool:
        """Whether tentative rows of a batch may be out, also of one that the driver before logged after this began."""
        if self.state.branches.may_be_out(query, batch):
            return True
        queries, known = self._were_tentative
        record = self.batch_log.record(batch) if query in queries and batch > known else None
        return record is not None and record.claim < self.batch_log.claim

    def _emit_published(self, done: Published) -> None:
        for query, batch, rows in done.out:
            self._emit("published", partition=str(query), batch=batch, rows=rows, latency=self._latency(batch))
        for query, batch, rows, fidelity in done.tentative_out:
            about = {"partition": str(query), "batch": batch, "rows": rows, "latency": self._latency(batch)}
            self._emit("published", **about, tentative=True, fidelity=fidelity)

    @property
    def _kept_bytes(self) -> int:
        """What outboxes hold, on nodes that have partitions."""
        return sum(self._counters.outbox_bytes.get(node, 0) for node in set(self.state.placement.values()))

    def _measure(self, result: CycleResult) -> None:
        """Count what partitions did: level with the log, or as fast as they could."""
        now, counted = self._clock(), set[PartitionId]()
        for partition, measures in result.measures:
            self.measures[partition] = self.measures[partition].plus(measures)
            one = self.state.partitions[partition]
            reached = max(one.frontier, result.frontiers.get(partition, one.frontier))
            batches = 0 if partition in counted else reached - one.frontier
            counted.add(partition)
            steady = one.state is PartitionState.RUNNING
            self.profiler.reported(now, partition, measures, batches, steady=steady)
            if self._keeping is not None:
                self._keeping.reported(now, partition, measures, batches, steady=steady)

    def _lose_full(self, node: NodeId, failed: Failed) -> None:
        """A node whose disk is full is lost, and its host is not asked again by this driver."""
        self._full_hosts.add(self._host_of(node))
        self._counters.problem = f"the disk of {node} is full: {failed}"
        self._log(f"{node} is lost, and its host gets no more work until the next start: {failed}")
        self._emit("node-lost", nodes=[node], why=failed.problem)
        self.handle(NodesLost((node,)))

    def _with_room(self, arrived: NodesArrived) -> NodesArrived:
        """Leave out nodes on hosts whose disk is full."""
        nodes = {node: size for node, size in arrived.nodes.items() if self._host_of(node) not in self._full_hosts}
        return arrived if len(nodes) == len(arrived.nodes) else NodesArrived(nodes)

    def _take_failures(self, failures: list[tuple[Step, Failed]]) -> None:
        """Try again later, or park the queries that need it."""
        attempts, event = self.parking.failed(failures)
        if attempts:
            self._moved()  # how often it is tried is decided here, and not by how long nothing moves
        for one in attempts:
            failed = one.failed
            self._emit(
                "failed",
                partition=str(failed.partition),
                batch=failed.batch,
                attempt=one.attempts,
                retry_seconds=one.wait,
                problem=failed.problem,
            )
            if one.left_out is not None:
                # It is in the progress before any desired state has it, so before the batch is tried again.
                self.handle(one.left_out)
            elif one.wait is not None:
                self._log(str(one))
        if event is not None:
            self.handle(event)

    def _take_fetching(self, answers: Iterable[Fetching]) -> None:
        """Say how far restores are, of partitions that are being restored; what was said already is not repeated."""
        for one in answers:
            held = self.state.partitions[one.partition]
            if held.state is PartitionState.RESTORING and self._fetching.get(one.partition) != one:
                self._fetching[one.partition] = one
                self._emit("fragments", partition=str(one.partition), fetched=one.fragments, needed=one.needed)

    def _not_stored(self, answer: SnapshotNotStored) -> None:
        line = f"the snapshot of {answer.partition} at batch {answer.batch} is not stored yet: {answer.problem}"
        self._counters.problem = line
        self._log(line)
        self._emit("snapshot-not-stored", partition=str(answer.partition), batch=answer.batch, problem=answer.problem)
        if answer.gone:
            self.handle(CheckpointGivenUp(answer.batch, answer.partition))

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def checkpoint(self, *, gives_up: Callable[[], bool] = lambda: False) -> BatchId:
        """Take a durable checkpoint at the last batch now, and wait until it is complete, or until `gives_up`."""
        self.run(gives_up=gives_up)
        if not self.status.caught_up:
            raise self._given_up()
        if self.state.parked:
            raise BadInput(
                f"query {next(iter(self.state.parked))} is parked: there is no checkpoint of everything",
                where=f"application {self.program.name}",
                remedy="remove the cause, let it go on with `holdfast resume`, then try again",
            )
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
            if gives_up():
                raise self._given_up()
        self.run(gives_up=gives_up)
        self._write()  # what was published after the checkpoint is part of it
        self.write_profile(at_once=True)
        return state.checkpoints.global_batch

    # -- the recovery machine ----------------------------------------------------------------------------------------

    def handle(self, event: Event) -> None:
        """Give an event to the recovery machine, write down what it decided, then do it."""
        if isinstance(event, PartitionsReported | Timer):
            if self.pace.measure_costs:
                self._pass_costs()
            if (change := self._rates.look(self._clock(), self._measured_topology)) is not None:
                self.handle(change)
        try:
            effects = self.machine.handle(event)
        except CheckFailed:
            self._progress.check()  # what is gone may be gone because another driver has the run
            raise
        self.profiler.took_effect(self._clock(), effects)
        if self._keeping is not None:
            self._keeping.took_effect(self._clock(), effects)
        writes = isinstance(event, QueriesResumed | TentativeChosen) or any(
            isinstance(
                one,
                Fence
                | Place
                | GlobalCheckpoint
                | Keep
                | Parked
                | LeaveOut
                | WentTentative
                | Corrected
                | PlanAwaited
                | PlanTookEffect
                | KeptNoMore,
            )
            for one in effects
        )
        if writes:
            self._write()
        for effect in effects:
            self._do(effect)
        if writes:
            self._counters.forget += self._counters.dropped
            self._counters.dropped.clear()

    def _pass_costs(self) -> None:
        """Let plans use measured costs; where partitions have found no room for long, put them in place all the same.

        A bound that nobody has set may delay a query, until nodes have had time to come, and never leave it down.
        """
        now, state = self._clock(), self.state
        if now - self._costs_at < COST_SECONDS:
            return
        self._costs_at = now
        waiting = bool(state.nodes) and bool(state.lost)
        self._lost_since = -math.inf if not waiting else now if math.isinf(self._lost_since) else self._lost_since
        costs = self.profiler.costs(state.placement, state.nodes, state.settings.bound)
        if waiting and now - self._lost_since >= self.pace.bound_seconds:
            left = [str(p) for p in state.lost]
            self._log(
                f"no node had room for {left[0]} and {len(left) - 1} more for {self.pace.bound_seconds:g} s: "
                "they are restored above the bound"
            )
            self._emit("bound-lifted", partitions=left, seconds=now - self._lost_since)
            self._lost_since = now
            self.handle(CostsMeasured(dict.fromkeys(costs, LEAST_COST), replan=True))
            return
        self.machine.handle(CostsMeasured(costs))

    def _measured_topology(self) -> Topology:
        return profiled(self.program.topology, self.profile())[0]

    def close(self) -> None:
        """End what runs beside the loop: publishers, and plans that follow rates."""
        self._rates.close()
        self.outputs.publishing.close()

    def profile(self) -> RunProfile:
        """Return what was measured of this run, over a sliding period."""
        state = self.state
        return self.profiler.profile(self._clock(), self._now(), state.placement, state.nodes, self._settings)

    def write_profile(self, *, at_once: bool = False) -> None:
        """Keep the profile in the run's storage current; where that fails, a later checkpoint tries again."""
        now = self._clock()
        if self._profiles is None or not (at_once or self._profiles.due(now)):
            return
        try:
            self._profiles.write(now, to_document(*profiled(self.program.topology, self.profile())))
        except (OSError, HoldfastError) as error:
            self._log(f"the run's profile cannot be written: {one_line(str(error))}")

    def _do(self, effect: Effect) -> None:
        fetched = self._fetched.pop(effect.partition, None) if isinstance(effect, Changed) else None
        for kind, fields in effect_fields(self.state, effect, fetched):
            self._emit(kind, **fields)
        if isinstance(effect, Changed):
            self._fetching.pop(effect.partition, None)
        if fetched is not None:
            self.profiler.fetched(fetched)
        if (line := effect_line(effect)) is not None:
            self._log(line)
        match effect:
            case RequestNodes(count):
                if (problem := self.backend.request_nodes(count)) is not None:
                    self._log(f"{count} nodes were requested and cannot be had: {problem}")
            case RollBack():
                self.rollbacks += 1
            case Parked() | Resumed() | LeaveOut() | CopyPlaced() | CopyDropped() | BranchChanged() | KeptNoMore():
                self._counters.held_changed = True
            case PlanTookEffect(plan):
                if self._keeping is not None:
                    self._keeping.changed(self._clock(), self._executed, plan)
                self._executed = plan
                self._settings |= executed_settings(plan)
                self.pace = replace(self.pace, segment_intervals=plan.intervals)
                self._marks.use(SegmentSchedule(self.pace, plan.segments, self._began))
            case NodesEvacuated(nodes):
                self.backend.release_nodes(nodes)
            case GlobalCheckpoint():
                self.batch_log.trim(effect.inputs_from)
                self.reads.trim(effect.inputs_from)
                if self._expiry is not None:
                    self._expiry.covered(effect.inputs_from)
                self.write_profile()
                if self._keeping is not None:
                    self._emit_findings(self._keeping.look(self._clock(), self._now(), self.state))
                if effect.without:
                    self._emit_kept(effect.without)
                self._emit(
                    "measures",
                    partitions={
                        str(p): {**asdict(one), "cost": self.profiler.cost(p)} for p, one in self.measures.items()
                    },
                )
            case Forget():
                stored = [(p, one) for p, one in effect.snapshots if one.contents is None]
                self._counters.dropped += [snapshot_name(self._progress.run, p, one) for p, one in stored]

    def _emit_kept(self, waiting: Sequence[PartitionId]) -> None:
        """Say what is kept for partitions that wait, while others checkpoint and trim without them."""
        nodes = set(self.state.placement.values())
        self._emit(
            "kept-for-waiting",
            partitions=[str(p) for p in waiting],
            first_batch=self.state.kept_for(waiting),
            outbox_bytes=sum(self._counters.outbox_bytes.get(node, 0) for node in nodes),
            logged_after=self.state.inputs_from,
        )

    def _write(self) -> None:
        self._progress.write(
            self.state.epoch,
            self.state.written(),
            {
                str(p): {"cpu_seconds": one.cpu_seconds, "rows_in": one.rows_in, "cost": self.profiler.cost(p)}
                for p, one in self.measures.items()
            },
        )

    def describe(self, **about: Any) -> None:
        """Emit what the run is: the first event of a driver, from which a reader of the log can begin."""
        self._emit("run", **run_fields(self.program, self.state), run=self._progress.run, **about)

    def _latency(self, batch: BatchId) -> float | None:
        """Return the seconds since a batch was logged; None where that is not known."""
        logged = self.batch_log.logged_at(batch)
        return None if logged is None else round(max(0.0, self._now() - logged), 3)

    def _emit(self, kind: str, **fields: Any) -> None:
        self._emit_to(Observation(self._now(), kind, fields))


def held_back(
    frontiers: Mapping[PartitionId, BatchId],
    not_aside: Collection[tuple[PartitionId, BatchId]],
    known: Mapping[PartitionId, BatchId],
) -> dict[PartitionId, BatchId]:
    """Return how far partitions count, of which rows that they kept aside in these batches are not written.

    Up to the batch before the first of them, and not below what is known already: a partition that went back gets there
    again only if it counts as it goes.
    """
    first: dict[PartitionId, BatchId] = {}
    for partition, batch in not_aside:
        first[partition] = min(batch, first.get(partition, batch))
    return {p: max(min(at, BatchId(first.get(p, at + 1) - 1)), min(at, known[p])) for p, at in frontiers.items()}


def _epoch_fields(epoch: Epoch) -> dict[str, int]:
    return {"claim": epoch.claim, "epoch": epoch.number}
