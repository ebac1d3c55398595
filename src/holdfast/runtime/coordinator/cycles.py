"""Cycles: a desired state is handed out, workers report, and what they report is acted on. Runs on the driver.

Reports of an earlier epoch do not count. What publishers are done with is taken with the reports: `published` moves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from holdfast.ids import BatchId, Epoch, NodeId, OperatorId, PartitionId
from holdfast.recovery.cluster_state import ClusterState
from holdfast.recovery.events import CheckpointGivenUp, CheckpointStored, NodesArrived, NodesLost, PartitionsReported
from holdfast.recovery.states import PartitionState
from holdfast.runtime.backend import Backend
from holdfast.runtime.coordinator.decisions import Decisions
from holdfast.runtime.coordinator.event_log import capacities, code_event, detection_lines, event_kind
from holdfast.runtime.coordinator.future_rows import FutureRows
from holdfast.runtime.coordinator.measuring import Measuring
from holdfast.runtime.coordinator.outputs import Outputs, Published
from holdfast.runtime.coordinator.parking import Parking, Step
from holdfast.runtime.coordinator.reading import SourceReads
from holdfast.runtime.coordinator.regeneration import Regenerations
from holdfast.runtime.coordinator.tentative import publish_tentative
from holdfast.runtime.fetches import CodeChosen, Fetching
from holdfast.runtime.io.batch_log import BatchLog
from holdfast.runtime.messages import (
    CycleEnded,
    CycleResult,
    DesiredState,
    DriverSuspected,
    Failed,
    NodeReport,
    NodesAnswered,
    Refused,
    Report,
    SnapshotNotStored,
    merge_reports,
)
from holdfast.runtime.state.store import StaleEpoch

Places: TypeAlias = Mapping[PartitionId, NodeId]

_MOST_PROBLEMS = 8
"""Snapshots of a partition whose problems are remembered, so that each is logged once."""


@dataclass(slots=True)
class Cycle:
    """The desired state that was handed out last, and what came of it."""

    desired: DesiredState
    began: float
    through: BatchId
    """The last batch that was logged when it was handed out."""
    ended: bool = False
    problem: str | None = None
    rows: int = 0
    """Rows that partitions took."""
    reports: list[tuple[NodeReport, Places, Places, Places]] = field(default_factory=list)
    """What workers reported, and where partitions, second copies and stand-ins were then."""

    @property
    def result(self) -> CycleResult:
        """What all reports come to: few ask for it."""
        found = CycleResult()
        for report, placement, copies, stand_ins in self.reports:
            found.add(report, placement, copies, stand_ins)
        return found


class Cycles:
    """See the module."""

    def __init__(
        self,
        where: str,
        state: ClusterState,
        backend: Backend,
        batch_log: BatchLog,
        outputs: Outputs,
        parking: Parking,
        reads: SourceReads,
        regenerations: Regenerations,
        future: FutureRows,
        measuring: Measuring,
        decisions: Decisions,
        *,
        moved: Callable[[], None],
        host_of: Callable[[NodeId], str],
        clock: Callable[[], float],
        now: Callable[[], float],
        emit: Callable[..., object],
        log: Callable[[str], object],
    ) -> None:
        """`where` names the application in errors; `moved` is called where time without progress counts anew."""
        self._where, self._state, self._backend, self._batch_log = where, state, backend, batch_log
        self._outputs, self._parking, self._reads, self._regenerations = outputs, parking, reads, regenerations
        self._future, self._measuring, self._decisions, self._moved = future, measuring, decisions, moved
        self._host_of, self._clock, self._now, self._emit, self._log = host_of, clock, now, emit, log
        self.last: Cycle | None = None
        """The last one that began."""
        self.ended = 0
        """How many have ended."""
        self.problem: str | None = None
        """What went wrong last."""
        self._problems: dict[PartitionId, dict[BatchId, str]] = {}
        """Why snapshots are not stored, as it was logged last: of the last ones of each partition."""
        self.false_alarms = 0
        """How many nodes that were declared silent have answered afterwards."""
        self._unread: deque[Report] = deque()
        self._not_staged: set[OperatorId] = set()
        """Outputs of which a line was logged that nodes cannot write their files."""
        self._not_aside: set[tuple[PartitionId, BatchId]] = set()
        """Partitions and batches whose late rows have come and could not be written."""
        self._full_hosts: set[str] = set()

    def hand_out(self, desired: DesiredState) -> None:
        """Begin a cycle."""
        self.last = Cycle(desired, self._clock(), self._batch_log.frontier)
        self._decisions.held_changed = False
        self._backend.reconcile(desired)

    @property
    def busy(self) -> bool:
        """Whether workers are still at the desired state that holds; one of an earlier epoch is over."""
        cycle = self.last
        return cycle is not None and not cycle.ended and cycle.desired.epoch == self._state.epoch

    def read(self, timeout: float = 0.0) -> None:
        """Read what was reported, waiting up to `timeout` seconds, and act on it.

        What is left when something is raised is read by the next call.
        """
        unread, began = self._unread, self._clock()
        self._take_completed()
        unread += self._backend.reports(0.0 if unread else timeout)
        if not unread and self._outputs.publishing.is_at_work and (left := timeout - (self._clock() - began)) > 0:
            self._outputs.publishing.wait(left)  # a backend that waits has waited; one of this process does not
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
                self._decisions.handle(report)
            elif (report := self._with_room(report)).nodes:
                self._emit(event_kind(report), nodes=list(report.nodes), capacity=capacities(report.nodes))
                self._decisions.handle(report)

    def _take_code(self, report: CodeChosen) -> None:
        """Say which code an agent has chosen; it changes nothing."""
        self._measuring.profiler.chose_code(report)
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
        cycle = self.last
        if cycle is None or ended.number != cycle.desired.number:
            return
        cycle.ended, cycle.problem = True, ended.problem
        self.ended += 1
        if ended.problem is not None:
            self.problem = ended.problem
            self._emit("cycle-failed", number=ended.number, **_epoch_fields(ended.epoch), problem=ended.problem)
            return
        del self._decisions.forget[: len(cycle.desired.forget)]
        self._emit(
            "cycle",
            number=ended.number,
            **_epoch_fields(ended.epoch),
            through=self._batch_log.frontier,
            frontier=self._state.frontier,
            seconds=self._clock() - cycle.began,
            rows=cycle.rows,
        )

    def _take_reports(self, reports: list[NodeReport]) -> None:
        """Act on what workers report, all of it together; reports of an earlier epoch do not count."""
        current = [one for one in reports if one.epoch == self._state.epoch]
        if not current:
            return
        placement, copies = self._state.placement, self._state.copies.placement
        stand_ins = self._state.branches.now.stand_ins
        result = merge_reports(current, placement, copies, stand_ins, self._state.graph.senders)
        if self.last is not None:
            self.last.rows += result.rows
            self.last.reports += [(one, placement, copies, stand_ins) for one in current]
        if result.refused is not None:
            self._take_refusal(result.refused)
        self._take(result)

    def _take_refusal(self, refused: Refused) -> None:
        """A higher claim ends this driver; of its own claim there is no epoch that it has not begun itself."""
        if refused.current.claim > self._state.epoch.claim:
            mine, other = self._state.epoch.claim, refused.current.claim
            raise StaleEpoch(
                f"claim {mine} is over: {refused.partition} runs under claim {other}",
                where=self._where,
                remedy="another driver runs this application: end this one",
            )
        self.problem = f"{refused.partition} is in epoch {refused.current} and was asked in {refused.epoch}"

    def _take(self, result: CycleResult) -> None:
        """Act on merged reports: frontiers, outputs, snapshots, and what is missing."""
        state = self._state
        self._measuring.reported(result)
        for source, batch, read in self._reads.take(result.reads):
            self._future.found(source, batch, read.ahead)
        if self._regenerations.took(result.regenerated):
            self._moved()
        self._decisions.fetched.update(result.fetched)
        self._take_fetching(result.fetching.values())
        for answer in result.not_stored:
            self._not_stored(answer)
        done = self._outputs.publish(
            result.outputs,
            state.published,
            state.checkpoints.durable_line,
            state.epoch,
            result.staged,
            self._parking.held,
            self._parking.held_aside,
        )
        for output, why in result.not_staged.items():
            if output not in self._not_staged:
                self._not_staged.add(output)
                self._log(f"{output}: nodes cannot write its files, so its rows pass through the driver: {why}")
                self._emit("not-staged", output=output, problem=why)
        tentative = publish_tentative(state, self._outputs, result.tentative, done, self._parking.held)
        self._emit_published(done)
        self._measuring.outbox_bytes.update(result.outbox_bytes)
        # Where late rows are not written, a partition counts as far as the batch before: they come again.
        self._not_aside = (self._not_aside | done.not_aside) - (done.aside - done.not_aside)
        reached = held_back(result.frontiers, self._not_aside, {p: one.frontier for p, one in state.partitions.items()})
        self._parking.took(reached, done.reached, done.aside, done.gathered)
        self._decisions.handle(
            PartitionsReported(
                state.epoch,
                self._batch_log.frontier,
                reached,
                frozenset(result.frontiers),
                done.reached,
                self._measuring.kept_bytes,
                result.copies,
                result.copy_problems,
                tentative,
                {**result.branch_problems, **done.tentative_failed},
                self._batch_log.inherited,
            )
        )
        for one in result.stored:
            self._measuring.saved(one)
            self._decisions.handle(CheckpointStored(one.partition, one.snapshot))
        for event in result.losses:
            self.problem = str(event)
            self._decisions.handle(event)
        if done.problem is not None:
            raise done.problem
        self._take_failures([*((Step.OPERATOR, failed) for failed in result.failed.values()), *done.failed])
        for node, failed in result.full_disks.items():
            if node in state.nodes:
                self._lose_full(node, failed)

    def _take_completed(self) -> None:
        """Act on what became of outputs that publishers had; published moves with it."""
        if not self._outputs.publishing.has_news:
            return
        state = self._state
        done = self._outputs.completed(state.epoch, state.parked, self._parking.held)
        self._emit_published(done)
        self._parking.took({}, done.reached, (), done.gathered)
        if done.reached or done.tentative_failed:
            self._decisions.handle(
                PartitionsReported(
                    state.epoch,
                    self._batch_log.frontier,
                    {},
                    published=done.reached,
                    kept_bytes=self._measuring.kept_bytes,
                    branch_problems=done.tentative_failed,
                    inherited=self._batch_log.inherited,
                )
            )
        if done.problem is not None:
            raise done.problem
        self._take_failures(done.failed)

    def _emit_published(self, done: Published) -> None:
        for query, batch, rows in done.out:
            self._emit("published", partition=str(query), batch=batch, rows=rows, latency=self._latency(batch))
        for query, batch, rows, fidelity in done.tentative_out:
            about = {"partition": str(query), "batch": batch, "rows": rows, "latency": self._latency(batch)}
            self._emit("published", **about, tentative=True, fidelity=fidelity)

    def _take_failures(self, failures: list[tuple[Step, Failed]]) -> None:
        """Try again later, or park the queries that need it."""
        attempts, event = self._parking.failed(failures)
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
                self._decisions.handle(one.left_out)
            elif one.wait is not None:
                self._log(str(one))
        if event is not None:
            self._decisions.handle(event)

    def _take_fetching(self, answers: Iterable[Fetching]) -> None:
        """Say how far restores are, of partitions that are being restored; what was said already is not repeated."""
        for one in answers:
            held = self._state.partitions[one.partition]
            if held.state is PartitionState.RESTORING and self._decisions.fetching.get(one.partition) != one:
                self._decisions.fetching[one.partition] = one
                self._emit("fragments", partition=str(one.partition), fetched=one.fragments, needed=one.needed)

    def _not_stored(self, answer: SnapshotNotStored) -> None:
        line = f"the snapshot of {answer.partition} at batch {answer.batch} is not stored yet: {answer.problem}"
        self.problem = line
        known = self._problems.setdefault(answer.partition, {})
        if known.get(answer.batch) != answer.problem:
            known[answer.batch] = answer.problem
            self._log(line)  # once: it is tried again and again
            if len(known) > _MOST_PROBLEMS:
                del known[min(known)]
        about = {"partition": str(answer.partition), "batch": answer.batch, "problem": answer.problem}
        self._emit("snapshot-not-stored", **about, fenced=answer.fenced)
        if answer.fenced:
            self._decisions.check_claim()  # a driver that is over and only saves writes nothing, and would not learn it
        if answer.gone:
            self._decisions.handle(CheckpointGivenUp(answer.batch, answer.partition))

    def _lose_full(self, node: NodeId, failed: Failed) -> None:
        """A node whose disk is full is lost, and its host is not asked again by this driver."""
        self._full_hosts.add(self._host_of(node))
        self.problem = f"the disk of {node} is full: {failed}"
        self._log(f"{node} is lost, and its host gets no more work until the next start: {failed}")
        self._emit("node-lost", nodes=[node], why=failed.problem)
        self._decisions.handle(NodesLost((node,)))

    def _with_room(self, arrived: NodesArrived) -> NodesArrived:
        """Leave out nodes on hosts whose disk is full."""
        nodes = {node: size for node, size in arrived.nodes.items() if self._host_of(node) not in self._full_hosts}
        return arrived if len(nodes) == len(arrived.nodes) else NodesArrived(nodes)

    def _latency(self, batch: BatchId) -> float | None:
        """Return the seconds since a batch was logged; None where that is not known."""
        logged = self._batch_log.logged_at(batch)
        return None if logged is None else round(max(0.0, self._now() - logged), 3)


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
