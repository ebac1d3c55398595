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

The machine takes each event, and has what is lost and placed. Its parts have the rest: where partitions start again
(`starts`), checkpoints that move (`checkpointing`), what is parked or gives way at a bound (`holding_back`), second
copies (`copying`), tentative outputs (`branching`). They share the steps that change the state (`state_changes`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from holdfast.errors import CheckFailed
from holdfast.ids import PartitionId
from holdfast.recovery.assignment import Assignment, assign, assignment_problems, with_costs
from holdfast.recovery.branching import BranchLifecycle
from holdfast.recovery.checkpointing import CheckpointLifecycle
from holdfast.recovery.checkpoints import NOTHING
from holdfast.recovery.cluster_state import ClusterState, batch_of
from holdfast.recovery.copies import promotable
from holdfast.recovery.copying import CopyLifecycle
from holdfast.recovery.effects import (
    Effect,
    LeaveOut,
    Place,
    PlanAwaited,
    PlanRejected,
    RequestNodes,
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
from holdfast.recovery.holding_back import HoldingBack
from holdfast.recovery.quarantine import Quarantined
from holdfast.recovery.rollback import partitions_to_roll_back
from holdfast.recovery.starts import Starts
from holdfast.recovery.state_changes import StateChanges
from holdfast.recovery.states import LIVE_STATES, PLACED_STATES, Cause, PartitionState
from holdfast.recovery.strategy import RecoveryStrategy
from holdfast.wording import counted


class RecoveryMachine:
    """See the module."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        changes = self._changes = StateChanges(state)
        self._starts = Starts(state, changes)
        self._copies = CopyLifecycle(state, changes, self._starts)
        self._holding_back = HoldingBack(state, changes, self._copies)
        self._checkpoints = CheckpointLifecycle(state, changes, self._starts, self._holding_back)
        self._branches = BranchLifecycle(state, changes.emit, changes.new_epoch)

    # -- events --------------------------------------------------------------------------------------------------------

    def handle(self, event: Event) -> list[Effect]:
        """Take an event; return its effects, in order. The caller logs them before it carries out any."""
        effects = self._changes.effects
        effects.clear()
        handlers: dict[type, Callable[..., None]] = {
            NodesArrived: self._arrived,
            NodesLost: self._nodes_gone,
            NodesSilent: self._nodes_gone,
            NodesLeaving: self._nodes_leaving,
            StateMissing: self._state_missing,
            PartitionsReported: self._partitions_reported,
            CheckpointMarked: self._checkpoints.marked,
            CheckpointGivenUp: self._checkpoints.given_up,
            CheckpointStored: self._checkpoints.stored,
            RestoreFailed: self._restore_failed,
            CostsMeasured: self._costs_measured,
            QueriesParked: self._holding_back.park,
            QueriesResumed: self._holding_back.resume,
            ReplicasPlanned: self._replicas_planned,
            RowsQuarantined: self._rows_quarantined,
            TentativeChosen: self._tentative_chosen,
            PlanChosen: self._plan_chosen,
            Timer: self._timer,
        }
        handlers[type(event)](event)
        self._copies.restart()
        self._branches.settle(effects)
        self._holding_back.release_in_vain()  # last: what can be dropped depends on who serves tentative outputs
        return list(effects)

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
            self._changes.emit(RequestNodes(len(asked)))
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
            self._changes.emit(RequestNodes(len(fresh)))
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
        self._changes.forget(event.partition, self.state.checkpoints.lost(event.partition, event.snapshot))
        if not self._starts.serves(event.partition):
            if self.state.checkpoints.durable_is_damaged(self.state.published) and not self.has_older():
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

    def _partitions_reported(self, event: PartitionsReported) -> None:
        if event.epoch != self.state.epoch:
            return
        self.state.logged = max(self.state.logged, event.logged)
        for p in sorted(event.restored):
            if self.state.partitions[p].state is PartitionState.RESTORING:
                self._changes.turn(p, Cause.RESTORED)
        self._holding_back.hold_parked()
        for p, frontier in event.frontiers.items():
            mine = self.state.partitions[p]
            if mine.state in LIVE_STATES:
                mine.frontier = max(mine.frontier, frontier)
                mine.acknowledged = max(mine.acknowledged, mine.frontier)
        for p, batch in event.published.items():
            self.state.published[p] = max(self.state.published[p], batch)
        logged = self.state.logged
        expected = self.state.expected(logged)
        for p in self.state.in_state([PartitionState.CATCHING_UP]):
            if self.state.partitions[p].frontier >= expected.get(p, logged) - self.state.settings.level_lag:
                self._changes.turn(p, Cause.LEVEL)
        for p in self.state.in_state([PartitionState.RUNNING]):
            if self.state.partitions[p].frontier < expected.get(p, logged) - 4 * self.state.settings.level_lag:
                self._changes.turn(p, Cause.BEHIND)
        self.state.kept_bytes = event.kept_bytes
        self._holding_back.bound(event.kept_bytes)
        self._checkpoints.reported()
        self._holding_back.end_regeneration()
        self._copies.reported(event.copies, event.copy_problems)
        self._copies.tend()
        self._branches.published(event.tentative)
        if event.inherited is not None:
            self._branches.inherited(event.inherited)
        self._branches.failed(event.branch_problems)

    def _rows_quarantined(self, event: RowsQuarantined) -> None:
        decided = self.state.quarantined.setdefault(event.partition, {})
        decided[event.batch] = decided.get(event.batch, Quarantined((), event.at)).plus(event.rows)
        self._changes.emit(LeaveOut(event.partition, event.batch, event.rows))

    def _tentative_chosen(self, event: TentativeChosen) -> None:
        branches = self.state.branches
        branches.requests = max(branches.requests, event.request)
        self._branches.choose(event.queries, on=event.on)

    def _plan_chosen(self, event: PlanChosen) -> None:
        if self.state.plan.choose(event.plan, (one.frontier for one in self.state.partitions.values())):
            self._changes.emit(PlanAwaited(event.plan))
            self._checkpoints.change_plan()  # where no batch comes, the checkpoint there is will do

    def _timer(self, event: Timer) -> None:
        lost = self.state.lost
        if lost and self.state.awaited:
            self._changes.emit(Waiting(self.state.awaited, tuple(lost)))

    # -- losing --------------------------------------------------------------------------------------------------------

    def _lose(self, partitions: Sequence[PartitionId], cause: Cause, why: str) -> None:
        """Mark partitions as lost, roll back what must, and plan."""
        self._changes.new_epoch(why)
        promoted = self._promote(partitions, cause, why)
        if self.state.settings.strategy is RecoveryStrategy.SOURCE_REPLAY:
            self._roll_back(self.state.in_state(PLACED_STATES))
        else:
            back = partitions_to_roll_back(
                self.state.graph,
                {p: batch_of(self._starts.snapshot_for(p)) for p in self.state.lost},
                {p: self.state.partitions[p].start.batch for p in self.state.in_state([PartitionState.RESTORING])},
                lambda p: self.state.partitions[p].kept_from,
                self.state.checkpoints.line,
                frozenset(self.state.in_state(LIVE_STATES)),
                self.state.dropped,
                self._starts.batch_for if self.state.segments.multiples else None,
                lambda p: p.operator in self.state.held.nondeterministic,
                self.state.may_have_seen,
            )
            self._roll_back([p for p in self.state.graph.order if p in back])
            if self.state.segments.multiples:
                self._starts.begin_lost()  # senders that stayed have kept what these need, and perhaps no more
            if len(promoted) == len(partitions) and not back and not self.state.recovering:
                self._copies.drop_useless()
                return  # copies have taken over where the lost ones stood: nothing is to be recovered
            self._changes.keep_everything()
        self.state.recovering = True
        self._plan(why, fenced=True)

    def _promote(self, partitions: Sequence[PartitionId], cause: Cause, why: str) -> set[PartitionId]:
        """Mark partitions as lost, except those whose copies take their place; return these."""
        marks = {p: self.state.partitions[p].first_mark for p in partitions}
        for p in partitions:
            self._starts.begin(p)
        promoted = promotable(self.state, partitions) if self.state.settings.promotes else set()
        for p in partitions:
            if p in promoted:
                self._copies.promote(p, marks[p], why)
            else:
                self._changes.turn(p, cause)
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
        self._changes.new_epoch(f"checkpoint {self.state.checkpoints.global_batch} is lost ({event.why})")
        self._copies.drop_all(self.state.graph.order, "its checkpoint is lost")
        for p, snapshots in self.state.checkpoints.go_durable(self.state.published).items():
            self._changes.forget(p, snapshots)
        self.state.dropped.clear()  # everybody starts from one batch: all is made again
        self._roll_back(self.state.in_state(PLACED_STATES))
        for mine in self.state.partitions.values():
            mine.given = NOTHING  # whatever anybody has seen is gone
        self._starts.begin_lost()
        if self.state.settings.strategy is not RecoveryStrategy.SOURCE_REPLAY:
            self._changes.keep_everything()
        self.state.recovering = True
        self._plan(event.why, fenced=True)

    def _roll_back(self, partitions: Sequence[PartitionId]) -> None:
        if not partitions:
            return
        self._copies.drop_all(partitions, "its primary rolls back")
        line = self.state.checkpoints.line
        starts = self._starts.later_batches(partitions)
        self._changes.emit(RollBack(tuple(partitions), min(starts.get(p, line[p]) for p in partitions)))
        for p in partitions:
            if not self.state.graph.deterministic(p):
                self._changes.forget(p, self.state.checkpoints.forget_after(p, line[p]))
            self._changes.turn(p, Cause.ROLLED_BACK)
            self._starts.begin(p, at=starts.get(p, line[p]))

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
            self._changes.new_epoch(why)
            if self.state.settings.strategy is RecoveryStrategy.SOURCE_REPLAY and self.state.recovering:
                self._roll_back(self.state.in_state(PLACED_STATES))
        if assignment.left or not self.state.segments.are_level(self.state.checkpoints.line):
            # Also at a start: those that wait will need what the others send meanwhile, and so will those whose
            # checkpoint the driver before left behind.
            self.state.recovering = True
            if self.state.settings.strategy is not RecoveryStrategy.SOURCE_REPLAY:
                self._changes.keep_everything()
        placement = assignment.placement
        self._changes.emit(Place(tuple(placement.items()), assignment.queries, assignment.priority, assignment.left))
        starts = self._starts.later_batches()
        for p in self.state.graph.order:
            if p in placement:
                self._starts.begin(p, at=starts.get(p))
                self._changes.turn(p, Cause.PLACED, node=placement[p])
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
            self._changes.emit(PlanRejected(tuple(problems)))
        return None

    def _waits_for_all(self) -> bool:
        if self.state.settings.strategy is RecoveryStrategy.BLOCKING:
            return True
        return self.state.recovering and self.state.losses < self.state.settings.incremental_after_losses
