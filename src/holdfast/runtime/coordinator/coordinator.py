"""The coordinator: desired state out, reports in, outputs to the sinks. Runs on the driver.

It knows nothing of Spark: a *backend* has the nodes and brings the desired state to their workers. The same coordinator
runs on a cluster, in one process and under the simulator. What the recovery machine decides is on durable storage
before anything is done about it. There is no other channel of decisions than the desired state.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from holdfast.errors import BadInput, CheckFailed, one_line
from holdfast.ids import BatchId, NodeId, OperatorId, PartitionId
from holdfast.recovery.cluster_state import ClusterState
from holdfast.recovery.events import CheckpointMarked, CostsMeasured, Event, PlanChosen, Timer
from holdfast.recovery.executed_plan import ExecutedPlan
from holdfast.recovery.machine import RecoveryMachine
from holdfast.recovery.states import PLACED_STATES, PartitionState
from holdfast.recovery.strategy import RecoverySettings
from holdfast.runtime.backend import Backend
from holdfast.runtime.coordinator.adapting import ReplicaPlans
from holdfast.runtime.coordinator.asked import Asked
from holdfast.runtime.coordinator.assignments import assign_copies, assign_primaries, copies_have_more
from holdfast.runtime.coordinator.catching_up import CatchingUp
from holdfast.runtime.coordinator.cycles import Cycles
from holdfast.runtime.coordinator.decisions import Decisions
from holdfast.runtime.coordinator.event_log import Observation, catching_up_lines, run_fields
from holdfast.runtime.coordinator.expiry import Expiry
from holdfast.runtime.coordinator.future_rows import FutureRows
from holdfast.runtime.coordinator.marking import BatchMarks, SegmentSchedule
from holdfast.runtime.coordinator.measuring import Measuring
from holdfast.runtime.coordinator.outputs import Outputs
from holdfast.runtime.coordinator.pacing import CycleSettings, StallDetector
from holdfast.runtime.coordinator.parking import ErrorSettings, Parking
from holdfast.runtime.coordinator.plan_keeping import PlanKeeping
from holdfast.runtime.coordinator.profile_records import ProfileRecords
from holdfast.runtime.coordinator.progress import Progress
from holdfast.runtime.coordinator.publishing import PublishSettings
from holdfast.runtime.coordinator.reading import SourceReads
from holdfast.runtime.coordinator.regeneration import Regenerations
from holdfast.runtime.coordinator.requests import ResumeRequests, TentativeRequests
from holdfast.runtime.coordinator.resumed_state import resumed_state
from holdfast.runtime.coordinator.sink_calls import CallRunner
from holdfast.runtime.coordinator.status import RunStatus
from holdfast.runtime.coordinator.tentative import (
    TentativeChoices,
    assign_branches,
    assign_stand_ins,
    branches_have_more,
    check_sinks,
    refusal_of,
    rows_that_may_be_out,
    source_watermarks,
)
from holdfast.runtime.io.batch_log import BatchLog
from holdfast.runtime.io.sinks import Sink
from holdfast.runtime.messages import CycleResult, DesiredState, Failed, OperatorFailed
from holdfast.runtime.program import Program
from holdfast.runtime.state.store import StaleEpoch

IDLE_SECONDS = 0.1
"""How long a run waits for reports where it has nothing to hand out."""


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
        follower: Callable[[], int | None] = lambda: None,
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
        longer; `follower` gives the claim of a driver that has followed this one, once that is known: this one then
        ends, also where it has nothing to do; `host_of` gives a node's host: one whose disk is full gets no more work;
        `domain_of` gives its failure domain, where it is known. `emit` gets every event, as values; `log` gets a line
        for people.
        Durations are by `clock`, which nobody sets; events have the time that `now` says.
        """
        self._where = f"application {program.name}"
        self.program, self.backend, self.batch_log = program, backend, batch_log
        self._progress, self._clock, self._now, self._follower = progress, clock, now, follower
        self._emit_to, self._log = emit, log
        self.outputs = Outputs(
            program, sinks, late_sink, progress.generation, runner=runner, settings=publishing, clock=clock
        )
        self.outputs.unread, self.outputs.log = self._report_unread, log
        _check_asked(recovery, backend, sinks, self._where)
        self.pace = pace or CycleSettings()
        asked = recovery or RecoverySettings()
        self.state = resumed_state(
            program.graph,
            recovery,
            plan or ExecutedPlan(asked.segments, asked.backup_partitions, self.pace.segment_intervals),
            progress.claim,
            progress.machine,
            batch_log.frontier,
            self.outputs.deterministic,
        )
        if asked.tentative and (problem := _held_refusal(self.state)) is not None:
            raise BadInput(
                problem,
                where=self._where,
                remedy="run without tentative outputs, or with spark.holdfast.checkpoint.boundaries=open",
            )
        self.pace = replace(self.pace, segment_intervals=self.state.plan.now.intervals)
        self.outputs.publishing.published = lambda: self.state.published
        self.state.copies.domain_of = domain_of
        self.machine = RecoveryMachine(self.state)
        self.outputs.may_be_tentative = rows_that_may_be_out(self.state, batch_log)
        self.parking = Parking(self.state, errors or ErrorSettings(), clock=clock, now=now, requests=requests)
        chosen = TentativeChoices(
            self.state,
            choices,
            lambda query: _held_refusal(self.state) or refusal_of(query, program, sinks, stays=backend.takes_updates),
            clock,
        )
        self._catching_up = CatchingUp.of(self.pace.most_ahead)
        self.status = RunStatus(program, self.state, batch_log, self.outputs, self.parking.waiting, self._catching_up)
        self._began = clock()
        self._drains = False
        """Whether everything that is logged is to be processed now: what waits at held edges crosses at once."""
        self._handed_out = 0
        self._trimmed: dict[PartitionId, BatchId] = {}
        """How far back senders kept their outboxes when they were last asked to trim them, while queries pause."""
        self._stalls = StallDetector(self.pace)
        self.reads = SourceReads(
            program, batch_log, self.state.inputs_from, lambda partition: self.state.partitions[partition].frontier
        )
        """What sources found that are read in place."""
        self._regenerations = Regenerations(self.state, self.reads.checks)
        self._future = FutureRows(batch_log, self._emit, log)
        schedule = SegmentSchedule(self.pace, self.state.segments, self._began)
        self._marks = BatchMarks(batch_log, self.state, schedule, clock)
        self._counted_at = self._began
        """Up to when time without progress has been counted."""
        self.measuring = Measuring(
            program,
            self.state,
            self.pace,
            self._began,
            progress.measures,
            profiles=profiles,
            replica_plans=replica_plans,
            keeping=keeping,
            settings=settings,
            clock=clock,
            now=now,
            emit=self._emit,
            log=log,
        )
        self._decisions = Decisions(
            self.machine,
            progress,
            backend,
            batch_log,
            self.reads,
            self.measuring,
            expiry=expiry,
            measure_costs=self.pace.measure_costs,
            execute=self._execute,
            emit=self._emit,
            log=log,
        )
        self.handle: Callable[[Event], None] = self._decisions.handle
        """Gives an event to the recovery machine."""
        self.asked = Asked(self.parking, chosen, self.handle, self._emit, log)
        """What people ask of the run."""
        self._cycles = Cycles(
            self._where,
            self.state,
            backend,
            batch_log,
            self.outputs,
            self.parking,
            self.reads,
            self._regenerations,
            self._future,
            self.measuring,
            self._decisions,
            moved=self._moved,
            host_of=host_of,
            clock=clock,
            now=now,
            emit=self._emit,
            log=log,
        )
        self.read_reports = self._cycles.read
        """Reads what was reported, and acts on it; waits for it up to this many seconds."""
        if self.pace.measure_costs:
            # What was never measured costs nothing yet: a start must not wait for room that nobody needs.
            self.machine.handle(CostsMeasured(self.measuring.known_costs))
        self._decisions.write()
        self.outputs.begin(progress.run, self.state.epoch)

    def _execute(self, plan: ExecutedPlan) -> None:
        """Another plan has taken effect."""
        self.pace = replace(self.pace, segment_intervals=plan.intervals)
        self._marks.use(SegmentSchedule(self.pace, plan.segments, self._began))

    @property
    def busy(self) -> bool:
        """Whether workers are still at the desired state that holds."""
        return self._cycles.busy

    @property
    def rollbacks(self) -> int:
        """How often partitions rolled back, or were lost, after the start."""
        return self._decisions.rollbacks

    @property
    def false_alarms(self) -> int:
        """How many nodes that were declared silent have answered afterwards."""
        return self._cycles.false_alarms

    # -- running -----------------------------------------------------------------------------------------------------

    def run(self, *, gives_up: Callable[[], bool] = lambda: False) -> None:
        """Process everything in the logs; queries that fail are parked where they stand, and nothing is lost.

        Partitions that wait for nodes are waited for: as long as the settings say, or until `gives_up`.
        """
        self._moved()
        self._cycles.read()
        self._drains = True
        try:
            while not self.status.caught_up:
                if not self.advance() and self._stalls.waits_in_vain:
                    raise self._stuck(waited=True)
                if gives_up():
                    return
        finally:
            self._drains = False

    def advance(self) -> bool:
        """Take one step, waiting a little for reports; say whether there was anything to do.

        Live partitions continue whatever others wait for: whoever feeds a stream calls this again and again. Cycles
        that keep bringing nothing end the run, and so does a time in which nothing at all is alive.
        """
        stalls, before, ended = self._stalls, self.status.standing, self._cycles.ended
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
        if self._cycles.ended == ended:
            return True  # the workers are still at it
        pause = stalls.stood(could=could)
        self._cycles.read(pause)
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
        cycles = self._cycles
        self._end_if_followed()
        cycles.read()
        self._look_who_catches_up()
        self.asked.take()
        if (plan := self.measuring.plan_found()) is not None:
            self.choose_plan(plan)
        if not self.status.can_work:
            self._let_cross()
        if not self.status.can_work:
            if not cycles.busy and cycles.last is not None:
                if self._paused_may_trim():
                    cycles.hand_out(replace(self.desired_state(), trim_outboxes=True))
                elif self._beside_has_more(cycles.last.desired):
                    cycles.hand_out(self.desired_state())  # the end of this cycle is not awaited
            if timeout:
                self._cycles.read(timeout)
            return False
        if not cycles.busy or self._has_update():
            cycles.hand_out(self.desired_state())
        self._cycles.read(timeout)
        return True

    def _let_cross(self) -> None:
        """Where nothing else is to be done, have segments save whose blocks wait at held edges for a checkpoint."""
        if self.state.held.edges and (mark := self._marks.let_cross(at_once=self._drains)) is not None:
            self.handle(CheckpointMarked(mark.batch, mark.durable, mark.segments))

    def _end_if_followed(self) -> None:
        """End where another driver has the run, also where nothing is to be written that would be refused."""
        if (claim := self._follower()) is not None:
            raise StaleEpoch(
                f"claim {self._progress.claim} is over: a driver with claim {claim} runs this application",
                where=self._where,
                remedy="another driver runs this application: end this one",
            )

    def _look_who_catches_up(self) -> None:
        behind, level = self._catching_up.look(self.status.queries(), self.status.logged)
        for kind, fields, line in catching_up_lines(self.state, behind, level, self.status.logged):
            self._log(line)
            self._emit(kind, **fields)

    def _paused_may_trim(self) -> bool:
        """Whether queries pause at the bound of outboxes, and senders may drop more than when they were asked last.

        Senders trim as they go on, and report what they hold when they have done something: those that stand still
        would report for ever what they held before, and nobody would be released.
        """
        if not self.state.paused:
            self._trimmed = {}
            return False
        before, self._trimmed = self._trimmed, self.state.keep_from()
        return self._trimmed != before

    def _beside_has_more(self, desired: DesiredState) -> bool:
        """Whether copies or branches would have more to do with a new desired state."""
        return copies_have_more(self.state, desired) or branches_have_more(self.state, desired, self.status.logged)

    def _has_update(self) -> bool:
        """Whether workers that are busy would have more to do with a new desired state."""
        cycle = self._cycles.last
        if not self.backend.takes_updates or cycle is None:
            return False
        return self.status.logged > cycle.through or self._decisions.held_changed or self.parking.has_update

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
        while self._cycles.busy:
            self._cycles.read(IDLE_SECONDS)
        self._cycles.hand_out(replace(self.desired_state(), trim_outboxes=trim_outboxes))
        cycle = self._cycles.last
        assert cycle is not None
        while not cycle.ended:
            self._cycles.read(IDLE_SECONDS)
        # Where a new epoch has begun meanwhile, reports of this one did not count.
        return cycle.result if cycle.problem is None and cycle.desired.epoch == self.state.epoch else None

    def _stuck(self, waited: bool) -> CheckFailed:
        lost = self.state.lost
        problem = self._cycles.problem or "no failure was reported"
        if waited and lost:
            return CheckFailed(
                f"{len(lost)} partitions ({lost[0]}, …) were assigned to no node for {self.pace.wait_seconds:.0f} s",
                where=self._where,
                remedy="give the cluster free workers, then start the run again: it continues from here; without "
                "spark.holdfast.node.wait it waits",
            )
        return CheckFailed(
            f"no partition makes progress, at batch {self.status.frontier} ({problem})",
            where=self._where,
            remedy="read the executors' logs, then start the run again: it continues from here",
        )

    def _given_up(self) -> CheckFailed:
        return CheckFailed(
            f"no checkpoint of everything was taken, at batch {self.status.frontier}: the wait for it was ended",
            where=self._where,
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
            self.measuring.marked(mark.batch)
        state, logged = self.state, self.status.logged
        self._handed_out += 1
        assignments = assign_primaries(state, logged, self.parking.attempt, self.reads.checks)
        copies = assign_copies(state, assignments, self.reads.checks)
        regenerators = self._regenerations.assign(assignments)
        return DesiredState(
            self._progress.run,
            self._handed_out,
            state.epoch,
            assignments,
            dict(state.published),
            self.pace.most_batches,
            self.pace.time_budget,
            self.status.lag(assignments),
            state.buffering or bool(self._catching_up.now),
            tuple(self._decisions.forget),
            generation=self._progress.generation,
            copies=copies,
            branches=assign_branches(state, logged),
            regenerators=regenerators,
            stand_ins=assign_stand_ins(state),
            watermarks=source_watermarks(state, self.batch_log),
        )

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def checkpoint(self, *, gives_up: Callable[[], bool] = lambda: False) -> BatchId:
        """Take a durable checkpoint at the last batch now, and wait until it is complete, or until `gives_up`."""
        self.run(gives_up=gives_up)
        if not self.status.caught_up:
            raise self._given_up()
        if self.state.parked:
            raise BadInput(
                f"query {next(iter(self.state.parked))} is parked: there is no checkpoint of everything",
                where=self._where,
                remedy="remove the cause, let it go on with `holdfast resume`, then try again",
            )
        state, target = self.state, self.state.frontier
        tries = 0
        while state.checkpoints.durable_batch < target:
            self.handle(CheckpointMarked(target, durable=True))
            before = self.status.standing
            if not self.step(IDLE_SECONDS):
                self._cycles.read(0.05)
            if self.status.standing != before:
                tries = 0
            elif not self._cycles.busy:  # what is running takes its time; what has ended brought nothing
                tries += 1
                self._cycles.read(min(0.2, 0.002 * tries))
            if tries > 50 * self.pace.most_tries:
                raise self._stuck(waited=False)
            if gives_up():
                raise self._given_up()
        self.run(gives_up=gives_up)
        self._decisions.write()  # what was published after the checkpoint is part of it
        self.measuring.write_profile(at_once=True)
        return state.checkpoints.global_batch

    # -- the end, and what is emitted --------------------------------------------------------------------------------

    def publish_gathered(self, *, gives_up: Callable[[], bool] = lambda: False) -> None:
        """Publish all that sinks have gathered: the run ends. What fails stays staged for the next start."""
        publishing = self.outputs.publishing
        publishing.ending = True
        while publishing.is_gathering and not gives_up():
            self._cycles.read(IDLE_SECONDS)
        publishing.ending = False

    def close(self) -> None:
        """End what runs beside the loop: publishers, and plans that follow rates."""
        self.measuring.close()
        self.outputs.publishing.close()

    def describe(self, **about: Any) -> None:
        """Emit what the run is: the first event of a driver, from which a reader of the log can begin."""
        self._emit("run", **run_fields(self.program, self.state), run=self._progress.run, **about)

    def _report_unread(self, source: OperatorId, batch: BatchId, letters: pa.Table) -> None:
        error = one_line(str(letters["error"][0].as_py()), 200)
        self._emit("unread-records", source=source, batch=batch, rows=letters.num_rows, error=error)

    def _emit(self, kind: str, **fields: Any) -> None:
        self._emit_to(Observation(self._now(), kind, fields))


def _held_refusal(state: ClusterState) -> str | None:
    """Say why queries of a run cannot give tentative outputs: a branch takes in what no checkpoint covers."""
    return "blocks wait for checkpoints at boundaries of segments, and a branch does not" if state.held.edges else None


def _check_asked(
    recovery: RecoverySettings | None, backend: Backend, sinks: Mapping[OperatorId, Sink], where: str
) -> None:
    """Refuse what a backend or sinks cannot do."""
    if recovery is not None and recovery.replicas and not backend.takes_updates:
        raise BadInput(
            "replicas need tasks that stay: a cycle through Spark's shuffle carries blocks to primaries alone",
            where=where,
            remedy="run without replicas, or with spark.holdfast.exchange=resident",
        )
    if recovery is not None and recovery.tentative:
        if not backend.takes_updates:
            raise BadInput(
                "tentative outputs need tasks that stay: a cycle through Spark's shuffle has one line",
                where=where,
                remedy="run without tentative outputs, or with spark.holdfast.exchange=resident",
            )
        check_sinks(sorted(recovery.tentative), sinks, where)
