"""The recovery machine: it takes events and returns effects. Pure; driven by Spark, one process, the simulator.

One path for every failure (a node, several at once or one after the other, a silent one, missing files, the driver):

1. what is lost is *lost*; a new epoch fences off whatever still writes;
2. live partitions whose outboxes lack what the lost ones will need roll back to their checkpoint (`rollback`);
   from then on every outbox reaches back to its consumers' checkpoints, so that arriving nodes cause no second one;
3. a plan brings back the most valuable queries that fit the nodes there are now (`assignment`), none above its bound;
4. their states are restored, they catch up from what was kept;
5. on every arriving node the next plan, for what is left;
6. meanwhile those that go on move their checkpoints without those that wait (`recovery_line`);
7. the next checkpoint of everybody with nothing lost ends it: outboxes shrink to the plan's policy.

A query whose operator, rows or sink fail is *parked*: it keeps its place, and what serves parked queries only is held
back where it stands. Nothing is lost and no epoch begins; what live senders keep for it, they keep as for a lost one,
until it is resumed.

A driver that starts again is the same path with every partition lost. What is known, and what a cycle needs to know
(who runs where, from where, how far back to keep, at which batches to save), is in `cluster_state`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from holdfast.errors import CheckFailed
from holdfast.ids import BatchId, NodeId, PartitionId
from holdfast.recovery.assignment import Assignment, assign, assignment_problems, with_costs
from holdfast.recovery.branching import BranchLifecycle
from holdfast.recovery.checkpoints import NOTHING, SavedSnapshot
from holdfast.recovery.cluster_state import ClusterState, batch_of
from holdfast.recovery.copies import promotable
from holdfast.recovery.copying import CopyLifecycle
from holdfast.recovery.effects import (
    Changed,
    Effect,
    Fence,
    Forget,
    GlobalCheckpoint,
    IntermediateSnapshots,
    Keep,
    KeptNoMore,
    LeaveOut,
    Parked,
    Place,
    PlanAwaited,
    PlanRejected,
    PlanTookEffect,
    RecoveryEnded,
    Regenerated,
    RequestNodes,
    Resumed,
    RollBack,
    Waiting,
)
from holdfast.recovery.events import (
    CheckpointGivenUp,
    CheckpointMarked,
    CheckpointStored,
    CostsMeasured,
    Event,
    NodesArrived,
    NodesLeaving,
    NodesLost,
    NodesSilent,
    PartitionsReported,
    PlanChosen,
    QueriesParked,
    QueriesResumed,
    ReplicasPlanned,
    RestoreFailed,
    RowsQuarantined,
    StateMissing,
    TentativeChosen,
    Timer,
)
from holdfast.recovery.intermediate import latest_start, may_be_ahead
from holdfast.recovery.quarantine import Quarantined, without_old
from holdfast.recovery.recovery_line import Line, set_that_moves
from holdfast.recovery.regeneration import beyond_repair, returned, to_drop
from holdfast.recovery.rollback import partitions_to_roll_back, starts_again
from holdfast.recovery.states import AT_WORK_STATES, LIVE_STATES, PLACED_STATES, Cause, PartitionState
from holdfast.recovery.strategy import RecoveryStrategy
from holdfast.wording import counted


class RecoveryMachine:
    """See the module."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self._effects: list[Effect] = []
        self._copies = CopyLifecycle(
            state,
            start_of=self._start_of,
            new_epoch=self._new_epoch,
            turn=self._turn,
            emit=self._emit,
        )
        self._branches = BranchLifecycle(state, self._emit, self._new_epoch)

    # -- events --------------------------------------------------------------------------------------------------------

    def handle(self, event: Event) -> list[Effect]:
        """Take an event; return its effects, in order. The caller logs them before it carries out any."""
        self._effects = []
        handlers: dict[type, Callable[..., None]] = {
            NodesArrived: self._arrived,
            NodesLost: self._nodes_gone,
            NodesSilent: self._nodes_gone,
            NodesLeaving: self._nodes_leaving,
            StateMissing: self._state_missing,
            PartitionsReported: self._partitions_reported,
            CheckpointMarked: self._marked,
            CheckpointGivenUp: self._mark_given_up,
            CheckpointStored: self._stored,
            RestoreFailed: self._restore_failed,
            CostsMeasured: self._costs_measured,
            QueriesParked: self._queries_parked,
            QueriesResumed: self._queries_resumed,
            ReplicasPlanned: self._replicas_planned,
            RowsQuarantined: self._rows_quarantined,
            TentativeChosen: self._tentative_chosen,
            PlanChosen: self._plan_chosen,
            Timer: self._timer,
        }
        handlers[type(event)](event)
        self._copies.restart()
        self._branches.settle(self._effects)
        return self._effects

    def _costs_measured(self, event: CostsMeasured) -> None:
        self.state.costs.update(event.costs)
        if event.replan:
            self._plan("costs were measured anew")

    def _arrived(self, event: NodesArrived) -> None:
        fresh = {node: capacity for node, capacity in event.nodes.items() if node not in self.state.nodes}
        if not fresh:
            return
        self.state.nodes.update(fresh)
        self.state.awaited = max(0, self.state.awaited - len(fresh))
        self._plan(f"{counted(len(fresh), 'node')} arrived")

    def _nodes_gone(self, event: NodesLost | NodesSilent) -> None:
        gone = [node for node in event.nodes if node in self.state.nodes]
        if not gone:
            return
        for node in gone:
            del self.state.nodes[node]
        asked = [node for node in gone if node not in self.state.copies.leaving]  # for the others: when they said so
        self.state.awaited += len(asked)
        self.state.losses += len(gone)
        if asked:
            self._effects.append(RequestNodes(len(asked)))
        self._copies.gone(gone)
        self._copies.drop_useless()
        lost = [p for p, node in self.state.placement.items() if node in gone]
        if lost:
            word = "silent" if isinstance(event, NodesSilent) else "lost"
            self._lose(lost, Cause.NODE_LOST, f"{', '.join(gone)} {word}")

    def _nodes_leaving(self, event: NodesLeaving) -> None:
        fresh = self._copies.leave(event.nodes)
        if fresh:
            self.state.awaited += len(fresh)
            self._effects.append(RequestNodes(len(fresh)))
            self._copies.tend()

    def _replicas_planned(self, event: ReplicasPlanned) -> None:
        if self._copies.replan(event.replicas, event.why, at_once=event.at_once):
            self._copies.tend()

    def _state_missing(self, event: StateMissing) -> None:
        mine = self.state.partitions[event.partition]
        # One cycle may miss several: the first begins an epoch; the others count unless they have started anew in it.
        if (
            mine.start.epoch <= event.epoch <= self.state.epoch
            and mine.node == event.node
            and mine.state in PLACED_STATES
        ):
            self.state.losses += 1
            self._lose([event.partition], Cause.STATE_MISSING, f"{event.partition} is not on {event.node}")

    def _restore_failed(self, event: RestoreFailed) -> None:
        mine = self.state.partitions[event.partition]
        if event.regenerating:
            if not self._regenerator_failed(event):
                return
        elif event.epoch != self.state.epoch or event.snapshot not in [one.id for one in mine.start.snapshots]:
            return
        self._forget(event.partition, self.state.checkpoints.lost(event.partition, event.snapshot))
        whole = (
            self.state.checkpoints.line[event.partition] == NOTHING
            or self.state.checkpoints.at(event.partition, self.state.checkpoints.line[event.partition]) is not None
        )
        if not whole:
            if self.state.checkpoints.durable_is_damaged and not self.has_older():
                raise CheckFailed(
                    f"the durable checkpoint at batch {self.state.checkpoints.durable_batch} is lost: {event.why}",
                    where=f"partition {event.partition}",
                    remedy="bring its durable folder back and start again; nothing was changed",
                )
            self.state.losses += 1
            self._fall_back(event)
        elif mine.state in PLACED_STATES and not event.regenerating:
            self.state.losses += 1
            cause = Cause.RESTORE_FAILED if mine.state is PartitionState.RESTORING else Cause.STATE_MISSING
            self._lose([event.partition], cause, f"{event.partition} cannot be restored: {event.why}")

    def _regenerator_failed(self, event: RestoreFailed) -> bool:
        """Say whether a regenerator was to start from a snapshot that is known, and lost; an older line may do then."""
        return event.epoch == self.state.epoch and any(
            one.id == event.snapshot for one in self.state.checkpoints.durable_snapshots(event.partition)
        )

    def _marked(self, event: CheckpointMarked) -> None:
        if event.segments is None or event.segments:
            self.state.checkpoints.mark(event.batch, durable=event.durable, segments=event.segments)
            for p, mine in self.state.partitions.items():
                if mine.frontier <= event.batch and self.state.checkpoints.concerns(p, event.batch):
                    mine.first_mark = min(mine.first_mark, event.batch)
        if event.between and not self.state.recovering and self.state.plan.next is None:
            # Not in a recovery: there live partitions save outboxes too, at every mark.
            order = self.state.graph.order
            sure = {p.operator for p in order if p.operator in event.between and may_be_ahead(self.state, p)}
            self.state.checkpoints.mark_between(event.batch, sure)

    def _mark_given_up(self, event: CheckpointGivenUp) -> None:
        """Give up a mark, and those before it that a partition does not save at because of a later one."""
        checkpoints = self.state.checkpoints
        checkpoints.between.open.pop(event.batch, None)
        if event.partition is not None and self.state.partitions[event.partition].own_mark == event.batch:
            self.state.partitions[event.partition].own_mark = None
            if event.batch not in checkpoints.marks:
                return
        segments = self.state.segments
        checkpoints.give_up(event.batch, None if event.partition is None else segments.of(event.partition))
        for mark in [*checkpoints.marks]:
            for p, mine in self.state.partitions.items():
                if (
                    mine.first_mark > mark
                    and mark in checkpoints.marks
                    and checkpoints.concerns(p, mark)
                    and not checkpoints.has(p, mark)
                    and (not segments.many or checkpoints.lacks(p, mark))
                ):
                    checkpoints.give_up(mark, segments.of(p))

    def _stored(self, event: CheckpointStored) -> None:
        checkpoints = self.state.checkpoints
        if event.snapshot in self.state.partitions[event.partition].gone:
            return  # said again, and its batch may be marked again: it will be saved anew, under another name
        marks = [mark for mark in checkpoints.marks if checkpoints.concerns(event.partition, mark)]
        marks += checkpoints.between.of(event.partition)
        if event.snapshot.batch in (*marks, self.state.partitions[event.partition].own_mark):
            needed = self._needed_from(event.partition, event.snapshot.batch)
            found = checkpoints.stored(event.partition, event.snapshot, needed)
            later: list[SavedSnapshot] = []
            live = self.state.partitions[event.partition].state in LIVE_STATES
            if live and event.snapshot.durable and self.state.graph.deterministic(event.partition):
                later = checkpoints.let_durable_stand(event.partition, event.snapshot.id, needed)
            if found is None or found != event.snapshot or later:
                self._forget(event.partition, [*([] if found is None else [found]), *later])
                self._close_between(event.snapshot.batch)
                self._advance_checkpoint()
                if self.state.recovering:
                    self._give_up_marks()
                return
        if not checkpoints.knows(event.partition, event.snapshot):  # said twice, it may be part of a checkpoint
            self._forget(event.partition, [event.snapshot])

    def _close_between(self, batch: BatchId) -> None:
        """Where an intermediate mark is saved by all, senders start from it: older such snapshots may go."""
        if operators := self.state.checkpoints.close_between(batch):
            self._effects.append(IntermediateSnapshots(batch, tuple(sorted(operators))))
            for p, snapshots in self.state.checkpoints.sweep().items():
                self._forget(p, snapshots)

    def _needed_from(self, partition: PartitionId, batch: BatchId) -> BatchId | None:
        """Return the first batch up to this one whose output a snapshot at it has to hold, if there is one.

        Where the partition would start from that batch, consumers whose checkpoint is behind will need it, and so will
        its sink. Before that only what is not published and cannot be made again the same matters.
        """
        state = self.state
        starts_there = state.checkpoints.line[partition] == batch
        fed = [one for one in state.graph.consumers(partition) if one not in state.dropped]
        passed = [state.checkpoints.line[one] for one in fed] if starts_there else []
        if partition in state.published and (starts_there or not state.graph.deterministic(partition)):
            passed.append(state.published[partition])
        return BatchId(min(passed) + 1) if passed and min(passed) < batch else None

    def _partitions_reported(self, event: PartitionsReported) -> None:
        if event.epoch != self.state.epoch:
            return
        self.state.logged = max(self.state.logged, event.logged)
        for p in sorted(event.restored):
            if self.state.partitions[p].state is PartitionState.RESTORING:
                self._turn(p, Cause.RESTORED)
        self._hold_parked()
        for p, frontier in event.frontiers.items():
            mine = self.state.partitions[p]
            if mine.state in LIVE_STATES:
                mine.frontier = max(mine.frontier, frontier)
                mine.acknowledged = max(mine.acknowledged, mine.frontier)
        for p, batch in event.published.items():
            self.state.published[p] = max(self.state.published[p], batch)
        for p in self.state.in_state([PartitionState.CATCHING_UP]):
            if self.state.partitions[p].frontier >= self.state.logged - self.state.settings.level_lag:
                self._turn(p, Cause.LEVEL)
        for p in self.state.in_state([PartitionState.RUNNING]):
            if self.state.partitions[p].frontier < self.state.logged - 4 * self.state.settings.level_lag:
                self._turn(p, Cause.BEHIND)
        if not self._drop_for_waiting(event.kept_bytes):
            self._bound_buffers(event.kept_bytes)
        self._set_own_marks()
        self._advance_checkpoint()
        self._end_regeneration()
        self._copies.reported(event.copies, event.copy_problems)
        self._copies.tend()
        self._branches.published(event.tentative)
        self._branches.failed(event.branch_problems)

    def _queries_parked(self, event: QueriesParked) -> None:
        for query, why in event.queries.items():
            if query not in self.state.parked:
                self.state.parked[query] = why
                self._effects.append(Parked(query, why))
        self._hold_parked()

    def _queries_resumed(self, event: QueriesResumed) -> None:
        self.state.requests = max(self.state.requests, event.request)
        for query in event.queries:
            if self.state.parked.pop(query, None) is not None:
                self.state.paused.discard(query)
                self._effects.append(Resumed(query))
        for p in self.state.in_state([PartitionState.PARKED]):
            if not self.state.serves_parked_only(p):
                self._turn(p, Cause.RESUMED)
        self._release_paused()

    def _rows_quarantined(self, event: RowsQuarantined) -> None:
        decided = self.state.quarantined.setdefault(event.partition, {})
        decided[event.batch] = decided.get(event.batch, Quarantined((), event.at)).plus(event.rows)
        self._effects.append(LeaveOut(event.partition, event.batch, event.rows))

    def _tentative_chosen(self, event: TentativeChosen) -> None:
        branches = self.state.branches
        branches.requests = max(branches.requests, event.request)
        self._branches.choose(event.queries, on=event.on)

    def _plan_chosen(self, event: PlanChosen) -> None:
        if self.state.plan.choose(event.plan, (one.frontier for one in self.state.partitions.values())):
            self._effects.append(PlanAwaited(event.plan))
            self._change_plan()  # where no batch comes, the checkpoint there is will do

    def _change_plan(self) -> None:
        """Let the plan that was chosen take effect where the checkpoint is complete under it and the one in force."""
        state, plan = self.state, self.state.plan.next
        if plan is None or state.recovering or not state.plan.may_take_effect(state.checkpoints.line):
            return
        gone = state.checkpoints.change_segments(plan.segments)
        state.plan.next = None
        state.execute(plan)
        state.unsettled.clear()
        self._effects.append(PlanTookEffect(plan, state.checkpoints.global_batch))
        for p, snapshots in gone.items():
            self._forget(p, snapshots)

    def _hold_parked(self) -> None:
        """Hold back what serves parked queries only; all others keep for them what they would keep for lost ones."""
        if not self.state.parked:
            return
        for p in self.state.in_state([*AT_WORK_STATES, PartitionState.PAUSED]):
            if self.state.serves_parked_only(p):
                self._turn(p, Cause.PARKED)
        self.state.recovering = True
        if self.state.settings.strategy is not RecoveryStrategy.SOURCE_REPLAY:
            self._keep_everything()

    def _timer(self, event: Timer) -> None:
        lost = self.state.lost
        if lost and self.state.awaited:
            self._effects.append(Waiting(self.state.awaited, tuple(lost)))

    # -- losing --------------------------------------------------------------------------------------------------------

    def _lose(self, partitions: Sequence[PartitionId], cause: Cause, why: str) -> None:
        """Mark partitions as lost, roll back what must, and plan."""
        self._new_epoch(why)
        promoted = self._promote(partitions, cause, why)
        if self.state.settings.strategy is RecoveryStrategy.SOURCE_REPLAY:
            self._roll_back(self.state.in_state(PLACED_STATES))
        else:
            back = partitions_to_roll_back(
                self.state.graph,
                {p: batch_of(self._start_of(p)) for p in self.state.lost},
                {p: self.state.partitions[p].start.batch for p in self.state.in_state([PartitionState.RESTORING])},
                lambda p: self.state.partitions[p].kept_from,
                self.state.checkpoints.line,
                frozenset(self.state.in_state(LIVE_STATES)),
                self.state.dropped,
                *([self._start_at] if self.state.segments.multiples else []),
            )
            self._roll_back([p for p in self.state.graph.order if p in back])
            if self.state.segments.multiples:
                self._set_lost_starts()  # senders that stayed have kept what these need, and perhaps no more
            if len(promoted) == len(partitions) and not back and not self.state.recovering:
                self._copies.drop_useless()
                return  # copies have taken over where the lost ones stood: nothing is to be recovered
            self._keep_everything()
        self.state.recovering = True
        self._plan(why, fenced=True)

    def _promote(self, partitions: Sequence[PartitionId], cause: Cause, why: str) -> set[PartitionId]:
        """Mark partitions as lost, except those whose copies take their place; return these."""
        marks = {p: self.state.partitions[p].first_mark for p in partitions}
        for p in partitions:
            self._set_start(p)
        promoted = promotable(self.state, partitions) if self.state.settings.promotes else set()
        for p in partitions:
            if p in promoted:
                self._copies.promote(p, marks[p], why)
            else:
                self._turn(p, cause)
        self._copies.drop_useless()
        return promoted

    def has_older(self) -> bool:
        """Whether the durable checkpoint before the last one can take its place.

        Not where an output may be out that would not be made the same again: all that the last one covers. A driver
        that died after it gave an output out, and before it wrote so, leaves no word of it; nor does a sink that failed
        after it took one.
        """
        checkpoints, graph = self.state.checkpoints, self.state.graph
        older, last = checkpoints.line_before, checkpoints.durable_line
        return older is not None and all(
            graph.deterministic(p) or max(batch, last[p]) <= older[p] for p, batch in self.state.published.items()
        )

    def _fall_back(self, event: RestoreFailed) -> None:
        """Too few fragments of the global checkpoint are left: everything starts again from the durable one."""
        self._new_epoch(f"checkpoint {self.state.checkpoints.global_batch} is lost ({event.why})")
        self._copies.drop_all(self.state.graph.order, "its checkpoint is lost")
        for p, snapshots in self.state.checkpoints.go_durable().items():
            self._forget(p, snapshots)
        self.state.dropped.clear()  # everybody starts from one batch: all is made again
        self._roll_back(self.state.in_state(PLACED_STATES))
        self._set_lost_starts()
        if self.state.settings.strategy is not RecoveryStrategy.SOURCE_REPLAY:
            self._keep_everything()
        self.state.recovering = True
        self._plan(event.why, fenced=True)

    def _roll_back(self, partitions: Sequence[PartitionId]) -> None:
        if not partitions:
            return
        self._copies.drop_all(partitions, "its primary rolls back")
        line = self.state.checkpoints.line
        starts = self._starts_again(partitions)
        self._effects.append(RollBack(tuple(partitions), min(starts.get(p, line[p]) for p in partitions)))
        for p in partitions:
            if not self.state.graph.deterministic(p):
                self._forget(p, self.state.checkpoints.forget_after(p, line[p]))
            self._turn(p, Cause.ROLLED_BACK)
            self._set_start(p, at=starts.get(p, line[p]))

    def _keep_everything(self) -> None:
        if not self.state.buffering:
            self.state.buffering = True
            self._effects.append(Keep(everything=True))

    # -- planning ------------------------------------------------------------------------------------------------------

    def _plan(self, why: str, *, fenced: bool = False) -> None:
        """Bring back what fits now."""
        lost = self.state.lost
        if not lost or self.state.nodes.keys() <= self.state.copies.leaving:
            return
        assignment = self._checked_assignment(lost)
        if assignment is None or not assignment.placement or (self._waits_for_all() and assignment.left):
            return
        if not fenced:
            self._new_epoch(why)
            if self.state.settings.strategy is RecoveryStrategy.SOURCE_REPLAY and self.state.recovering:
                self._roll_back(self.state.in_state(PLACED_STATES))
        if assignment.left or not self.state.segments.are_level(self.state.checkpoints.line):
            # Also at a start: those that wait will need what the others send meanwhile, and so will those whose
            # checkpoint the driver before left behind.
            self.state.recovering = True
            if self.state.settings.strategy is not RecoveryStrategy.SOURCE_REPLAY:
                self._keep_everything()
        placement = assignment.placement
        self._effects.append(Place(tuple(placement.items()), assignment.queries, assignment.priority, assignment.left))
        starts = self._starts_again()
        for p in self.state.graph.order:
            if p in placement:
                self._set_start(p, at=starts.get(p))
                self._turn(p, Cause.PLACED, node=placement[p])
        self._copies.tend()

    def _checked_assignment(self, lost: Sequence[PartitionId]) -> Assignment | None:
        """Plan, and let the oracle check it; a plan that does not pass gives way to the simplest, checked as well."""
        state = self.state
        nodes = {node: room for node, room in state.nodes.items() if node not in state.copies.leaving}
        topology = with_costs(state.graph.topology, state.costs) if state.costs else state.graph.topology
        simplest = replace(state.settings, strategy=RecoveryStrategy.OPERATOR_CENTRIC)
        for settings, even in ((state.settings, True), (simplest, False)):
            found = assign(state.graph, topology, lost, state.placement, nodes, settings, state.wanted, even=even)
            problems = assignment_problems(
                state.graph, topology, lost, state.placement, nodes, state.settings.bound, found
            )
            if not problems:
                return found
            self._effects.append(PlanRejected(tuple(problems)))
        return None

    def _waits_for_all(self) -> bool:
        if self.state.settings.strategy is RecoveryStrategy.BLOCKING:
            return True
        return self.state.recovering and self.state.losses < self.state.settings.incremental_after_losses

    def _start_of(self, partition: PartitionId) -> SavedSnapshot | None:
        """Return what a lost partition starts from: its own last snapshot where that is enough, else its checkpoint.

        Enough is one that holds what its consumers, starting from their checkpoints, and its sink would need; and what
        it kept aside up to there is written.
        """
        checkpoints, mine = self.state.checkpoints, self.state.partitions[partition]
        at, last = checkpoints.line[partition], checkpoints.last(partition)
        fed = [one for one in self.state.graph.consumers(partition) if one not in self.state.dropped]
        needed = [checkpoints.line[one] for one in fed]
        if partition in self.state.published:
            needed.append(self.state.published[partition])
        if (
            last is not None
            and at < last.batch <= mine.acknowledged
            and self.state.graph.deterministic(partition)
            and (not needed or (last.outbox_from is not None and last.outbox_from <= min(needed) + 1))
            and self.state.settings.strategy is not RecoveryStrategy.SOURCE_REPLAY
        ):
            return last
        return checkpoints.at(partition, at)

    def _start_at(self, partition: PartitionId, starts: Line) -> BatchId:
        """Return where a partition starts again, given where its consumers do: as late as serves them."""
        checkpoints = self.state.checkpoints
        at_line = checkpoints.at(partition, checkpoints.line[partition])
        lost = self.state.partitions[partition].state is PartitionState.LOST
        otherwise = self._start_of(partition) if lost else at_line
        return batch_of(latest_start(self.state, partition, otherwise, starts))

    def _starts_again(self, partitions: Iterable[PartitionId] = ()) -> dict[PartitionId, BatchId]:
        """Return where lost partitions and these start, where they may start later than their checkpoints."""
        if not self.state.segments.multiples:
            return {}
        return starts_again(self.state.graph, {*self.state.lost, *partitions}, self._start_at)

    def _set_lost_starts(self) -> None:
        """Let lost partitions start from what is there now."""
        found = self._starts_again()
        for p in self.state.lost:
            self._set_start(p, at=found.get(p))

    def _set_start(self, partition: PartitionId, *, at: BatchId | None = None) -> None:
        """Let a partition start again: from its snapshot at a batch; none given: as a lost one."""
        checkpoints, mine = self.state.checkpoints, self.state.partitions[partition]
        snapshot = self._start_of(partition) if at is None else checkpoints.at(partition, at)
        at = checkpoints.line[partition]
        if snapshot is None and at != NOTHING:
            raise CheckFailed(
                f"{partition} has no snapshot at batch {at}",
                where="recovery",
                remedy="this is a fault of ours: report it",
            )
        mine.begin(self.state.epoch, snapshot, () if snapshot is None else checkpoints.chain(partition, snapshot))
        if self.state.segments.multiples:
            checkpoints.between.started[partition] = mine.start.batch
        if not self.state.graph.deterministic(partition):
            mine.acknowledged = mine.frontier  # the batches after it may come out differently
            self._forget(partition, checkpoints.forget_after(partition, mine.start.batch))
        marks = (mark for mark in checkpoints.marks if checkpoints.concerns(partition, mark))
        mine.first_mark, mine.own_mark = max(marks, default=NOTHING), None

    # -- checkpoints and buffers ---------------------------------------------------------------------------------------

    def _advance_checkpoint(self) -> None:
        """Let the sets that can move their checkpoints to a mark do so: all partitions, a segment, those that go on."""
        while self._advance_set() and self.state.segments.many:
            pass
        self._change_plan()

    def _advance_set(self) -> bool:
        """Let one set move its checkpoint; say whether one did."""
        checkpoints, covered = self.state.checkpoints, self.state.checkpoints.global_batch
        many, published = self.state.segments.many, self.state.published
        found = self._next_set()
        if found is None and not (many and checkpoints.durable_next(published) is not None):
            line = checkpoints.line if many else dict.fromkeys(checkpoints.line, covered)
            level = not many or self.state.segments.are_level(checkpoints.line)  # else snapshots have to hold outboxes
            if level and all(one.frontier <= line[p] for p, one in self.state.partitions.items()):
                self._end_recovery()  # nobody is past the checkpoint there is: no batch has come to make a new one
            return False
        found = found or {}
        mark = max(found.values(), default=checkpoints.global_batch)
        gone = checkpoints.move(found, published)
        # A decision is needed for as long as its partition may process the batch again.
        self.state.quarantined = without_old(self.state.quarantined, min(checkpoints.oldest_line.values()))
        self._set_lost_starts()
        moved = {self.state.segments.of(p) for p in found}
        waiting = tuple(
            p for p in self.state.graph.order if checkpoints.line[p] < mark and self.state.segments.of(p) in moved
        )
        durable, inputs_from = checkpoints.durable_batch, self.state.inputs_from
        self._effects.append(
            GlobalCheckpoint(mark, durable, inputs_from, waiting, tuple(sorted(moved)) if many else ())
        )
        for p, snapshots in gone.items():
            self._forget(p, snapshots)
        by_name = self.state.segments.by_name(self.state.graph.order)
        self.state.unsettled -= {one for one in moved if len({checkpoints.line[p] for p in by_name[one]}) == 1}
        if self.state.segments.are_level(checkpoints.line) and not (many and self.state.unsettled):
            # Not before: senders whose checkpoint is ahead of a consumer's keep what that one would need, and a later
            # snapshot of theirs has to hold it, too.
            self._end_recovery()
        return True

    def _next_set(self) -> dict[PartitionId, BatchId] | None:
        """Return the set that can move its checkpoints, and where to; None: nobody can now.

        While all is well the set is all partitions. During a recovery those that are level with the log are one,
        whatever the others wait for, and those that catch up another; what waits may move to its own last snapshot.
        """
        state, checkpoints = self.state, self.state.checkpoints
        waiting = self._own_targets() if state.recovering else {}
        if not checkpoints.marks and not waiting:
            return None
        able = state.able() if state.recovering else set()
        for mark in reversed(checkpoints.marks):
            ready = {p for p in state.graph.order if checkpoints.has(p, mark) and self._is_safe(p, mark)}
            behind = {p for p in state.graph.order if checkpoints.lacks(p, mark)}
            if state.segments.many:
                ready = {p for p in ready if checkpoints.concerns(p, mark)}
                whole = [one for one in state.segments.by_name(behind).values() if one <= ready]
                targets = {p: mark for one in whole for p in one}
                if moving := set_that_moves(
                    state.graph, checkpoints.line, targets, checkpoints.outbox_from, state.dropped
                ):
                    return moving
            elif behind <= ready:
                return dict.fromkeys(behind, mark)
            come = [one for one in self._groups(able, behind) if self._has_come(one, ready, mark)]
            if come:
                names = state.segments.by_name(p for one in come for p in one)
                targets = {**waiting, **{p: mark for p in ready if state.segments.of(p) in names}}
                moving = self._movable(targets)
                if moving:
                    return moving
        return self._movable(waiting) or None

    def _movable(self, targets: Line) -> dict[PartitionId, BatchId]:
        """Return the partitions of these that may move their checkpoints now."""
        state, checkpoints = self.state, self.state.checkpoints
        return set_that_moves(state.graph, checkpoints.line, targets, checkpoints.outbox_from, state.dropped)

    def _is_safe(self, partition: PartitionId, batch: BatchId) -> bool:
        """Whether what a partition has given up to a batch is out, written, or in its snapshot."""
        mine = self.state.partitions[partition]
        return mine.has_passed(batch) and self.state.checkpoints.is_covered(partition, batch, self.state.published)

    def _own_targets(self) -> dict[PartitionId, BatchId]:
        """Return the last snapshots of partitions that wait: lost, parked or paused ones, and what waits for those."""
        able, found = self.state.able(), {}
        for p in self.state.graph.order:
            last = self.state.checkpoints.last(p)
            if p not in able and last is not None and self._is_safe(p, last.batch):
                found[p] = last.batch
            if self.state.segments.multiples and self.state.partitions[p].state is PartitionState.LOST:
                at = self.state.partitions[p].start.batch
                if at != NOTHING and self._is_safe(p, at):
                    found[p] = at  # as late as serves its consumers: its senders may hold nothing from before
        return found

    def _set_own_marks(self) -> None:
        """Let live partitions that wait for others save where they stand.

        Their senders have trimmed what they have processed since their checkpoint, and could not move past it.
        """
        waits = bool(self.state.parked or self.state.lost)
        able = self.state.able() if waits else set(self.state.graph.order)
        for p, mine in self.state.partitions.items():
            if not waits or p in able or mine.state not in LIVE_STATES:
                mine.own_mark = None
            elif mine.own_mark is None and mine.frontier > self.state.checkpoints.line[p]:
                mine.own_mark = mine.frontier

    def _groups(self, able: set[PartitionId], behind: set[PartitionId]) -> Iterable[set[PartitionId]]:
        """Return the partitions that checkpoint together while others wait: those level with the log, and the rest."""
        level = {p for p in able & behind if self.state.partitions[p].state is PartitionState.RUNNING}
        of = self.state.segments
        return [*of.by_name(level).values(), *of.by_name((able & behind) - level).values()]

    def _has_come(self, group: set[PartitionId], ready: set[PartitionId], mark: BatchId) -> bool:
        """Whether everybody in a group that will ever have a mark has it, and somebody does."""
        return bool(group & ready) and not any(self._may_have(p, mark) for p in group - ready)

    def _may_have(self, partition: PartitionId, mark: BatchId) -> bool:
        """Whether a partition has a mark, or will."""
        return self.state.checkpoints.has(partition, mark) or self.state.partitions[partition].first_mark <= mark

    def _give_up_marks(self) -> None:
        """Drop marks that can never be of use, and snapshots that were for them alone.

        A recovery may wait long for nodes, and a parked query for people; live partitions go on saving meanwhile, and
        only their checkpoints and their last snapshots matter.
        """
        checkpoints, able = self.state.checkpoints, self.state.able()
        # No batch before it is marked again: somebody is past it, whose snapshots would go.
        last = checkpoints.last_batch
        saved: list[BatchId] = []
        for mark in [one for one in checkpoints.marks if one < last]:
            coming = [p for p in able if checkpoints.lacks(p, mark) and self._may_have(p, mark)]
            if not coming:
                checkpoints.give_up(mark)
            elif all(checkpoints.has(p, mark) for p in coming):
                saved.append(mark)
        for mark in saved[_WAITING_MARKS:-_WAITING_MARKS]:
            checkpoints.give_up(mark)
        for p, snapshots in checkpoints.sweep().items():
            self._forget(p, snapshots)

    def _forget(self, partition: PartitionId, snapshots: Iterable[SavedSnapshot]) -> None:
        gone = tuple((partition, snapshot) for snapshot in snapshots)
        if gone:
            status, last = self.state.partitions[partition], self.state.checkpoints.line[partition]
            status.forgotten += 1
            # It does not save at batches before its checkpoint again.
            status.gone = {one for one in status.gone if one.batch >= last} | {one for _, one in gone}
            self._effects.append(Forget(gone))

    def _end_recovery(self) -> None:
        """With nothing lost or parked and a global checkpoint, outboxes shrink to the plan's policy."""
        if self.state.parked or self.state.in_state([PartitionState.LOST, PartitionState.RESTORING]):
            return
        self.state.losses = 0
        if self.state.recovering:
            self.state.recovering = False
            self._unpause()
            if self.state.buffering:
                self.state.buffering = False
                self._effects.append(Keep(everything=False))
            self._effects.append(RecoveryEnded(self.state.checkpoints.global_batch))

    def _drop_for_waiting(self, kept_bytes: int) -> bool:
        """At the bound, let senders keep nothing more for partitions that wait; say whether any were left to drop."""
        found = to_drop(self.state, kept_bytes)
        if found:
            self.state.dropped.update(found)
            self._effects.append(KeptNoMore(tuple(found), kept_bytes))
        return bool(found)

    def _end_regeneration(self) -> None:
        """Partitions that have returned, and for which all is kept again, are as all others."""
        if not self.state.dropped:
            return
        back = returned(self.state)
        if back:
            self.state.dropped.difference_update(back)
            self._effects.append(Regenerated(tuple(back)))
        if lost := beyond_repair(self.state):
            raise CheckFailed(
                f"the durable checkpoints that {lost[0]} is regenerated from are lost",
                where=f"partition {lost[0]}",
                remedy="bring their durable folder back and start again; nothing was changed",
            )

    def _bound_buffers(self, kept_bytes: int) -> None:
        """At the bound, hold back first what serves no live query, then the least valuable live queries."""
        waiting = self.state.parked or self.state.in_state([PartitionState.LOST, PartitionState.RESTORING])
        if self.state.paused and (kept_bytes < self.state.settings.buffer_bytes / 2 or not waiting):
            self._unpause()
        if kept_bytes <= self.state.settings.buffer_bytes or not waiting:
            return
        if self.state.copies.at:
            for p in list(self.state.copies.at):
                self._copies.drop(p, "outboxes have reached their bound")
            return  # copies give way first; what is kept then, the next report says
        dead = {query for query in self.state.graph.outputs if not self.state.available(query)}
        self.state.paused |= self.state.paused_next(dead)
        for p in self.state.in_state(AT_WORK_STATES):
            if set(self.state.graph.queries_of(p)) <= self.state.paused:
                self._turn(p, Cause.BUFFERS_FULL)

    def _unpause(self) -> None:
        self.state.paused.clear()
        self._release_paused()

    def _release_paused(self) -> None:
        """Let partitions continue that serve a query that is not paused, or not paused any more."""
        for p in self.state.in_state([PartitionState.PAUSED]):
            if not set(self.state.graph.queries_of(p)) <= self.state.paused:
                self._turn(p, Cause.BUFFERS_FREE)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _emit(self, effect: Effect) -> None:
        self._effects.append(effect)

    def _new_epoch(self, why: str) -> None:
        self.state.epoch = self.state.epoch.next
        self.state.checkpoints.between.open.clear()  # what some have saved there stays
        self._effects.append(Fence(self.state.epoch, why))

    def _turn(self, partition: PartitionId, cause: Cause, node: NodeId | None = None) -> None:
        """Change a partition's state; it gets a node when it is placed, and has none when it is lost."""
        mine = self.state.partitions[partition]
        if cause in (Cause.PLACED, Cause.PROMOTED) or cause in _LOSING:
            mine.node = node
        before = mine.state
        after = mine.history.apply(cause, self.state.epoch, mine.node)
        if after not in AT_WORK_STATES:
            self.state.unsettled.add(self.state.segments.of(partition))
        self._effects.append(Changed(partition, before, after, cause, mine.node))


_WAITING_MARKS = 2
"""Of the marks that all who go on have saved and whose outputs are not out, the first and the last so many stay."""
_LOSING = frozenset({Cause.NODE_LOST, Cause.STATE_MISSING, Cause.RESTORE_FAILED})
