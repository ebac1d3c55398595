"""The recovery machine: it takes events and returns effects. Pure; driven by Spark, one process, the simulator.

One path for every failure (a node, several at once or one after the other, a silent one, missing files, the driver):

1. what is lost is *lost*; a new epoch fences off whatever still writes;
2. live partitions whose outboxes lack what the lost ones will need roll back to the global checkpoint (`rollback`);
   from then on every outbox reaches back to the checkpoint, so that arriving nodes cause no second rollback;
3. a plan brings back the most valuable queries that fit the nodes there are now (`assignment`), none above its bound;
4. their states are restored, they catch up from what was kept;
5. on every arriving node the next plan, for what is left;
6. the next global checkpoint with nothing lost ends it: outboxes shrink to the plan's policy.

A driver that starts again is the same path with every partition lost. What is known, and what a cycle needs to know
(who runs where, from where, how far back to keep, at which batches to save), is in `cluster_state`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from holdfast.errors import CheckFailed
from holdfast.ids import NodeId, PartitionId
from holdfast.recovery.assignment import Assignment, assign, assignment_problems, with_costs
from holdfast.recovery.checkpoints import NOTHING, SavedSnapshot
from holdfast.recovery.cluster_state import ClusterState, batch_of
from holdfast.recovery.effects import (
    Changed,
    Effect,
    Fence,
    Forget,
    GlobalCheckpoint,
    Keep,
    Place,
    PlanRejected,
    RecoveryEnded,
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
    NodesLost,
    NodesSilent,
    PartitionsReported,
    RestoreFailed,
    StateMissing,
    Timer,
)
from holdfast.recovery.rollback import partitions_to_roll_back
from holdfast.recovery.states import LIVE_STATES, PLACED_STATES, Cause, PartitionState
from holdfast.recovery.strategy import RecoveryStrategy


class RecoveryMachine:
    """See the module."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self._effects: list[Effect] = []

    # -- events --------------------------------------------------------------------------------------------------------

    def handle(self, event: Event) -> list[Effect]:
        """Take an event; return its effects, in order. The caller logs them before it carries out any."""
        self._effects = []
        handlers: dict[type, Callable[..., None]] = {
            NodesArrived: self._arrived,
            NodesLost: self._nodes_gone,
            NodesSilent: self._nodes_gone,
            StateMissing: self._state_missing,
            PartitionsReported: self._partitions_reported,
            CheckpointMarked: self._marked,
            CheckpointGivenUp: lambda event: self.state.checkpoints.give_up(event.batch),
            CheckpointStored: self._stored,
            RestoreFailed: self._restore_failed,
            CostsMeasured: lambda event: self.state.costs.update(event.costs),
            Timer: self._timer,
        }
        handlers[type(event)](event)
        return self._effects

    def _arrived(self, event: NodesArrived) -> None:
        fresh = {node: capacity for node, capacity in event.nodes.items() if node not in self.state.nodes}
        if not fresh:
            return
        self.state.nodes.update(fresh)
        self.state.awaited = max(0, self.state.awaited - len(fresh))
        self._plan(f"{len(fresh)} nodes arrived")

    def _nodes_gone(self, event: NodesLost | NodesSilent) -> None:
        gone = [node for node in event.nodes if node in self.state.nodes]
        if not gone:
            return
        for node in gone:
            del self.state.nodes[node]
        self.state.awaited += len(gone)
        self.state.losses += len(gone)
        self._effects.append(RequestNodes(len(gone)))
        lost = [p for p, node in self.state.placement.items() if node in gone]
        if lost:
            word = "silent" if isinstance(event, NodesSilent) else "lost"
            self._lose(lost, Cause.NODE_LOST, f"{', '.join(gone)} {word}")

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
        if event.epoch != self.state.epoch or event.snapshot not in [one.id for one in mine.start.snapshots]:
            return
        self._forget(event.partition, self.state.checkpoints.lost(event.partition, event.snapshot))
        whole = (
            self.state.checkpoints.global_batch == NOTHING
            or self.state.checkpoints.at(event.partition, self.state.checkpoints.global_batch) is not None
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
        elif mine.state in PLACED_STATES:
            self.state.losses += 1
            cause = Cause.RESTORE_FAILED if mine.state is PartitionState.RESTORING else Cause.STATE_MISSING
            self._lose([event.partition], cause, f"{event.partition} cannot be restored: {event.why}")

    def _marked(self, event: CheckpointMarked) -> None:
        self.state.checkpoints.mark(event.batch, durable=event.durable)
        for mine in self.state.partitions.values():
            if mine.frontier <= event.batch:
                mine.first_mark = min(mine.first_mark, event.batch)

    def _stored(self, event: CheckpointStored) -> None:
        checkpoints = self.state.checkpoints
        if event.snapshot.batch in checkpoints.marks:
            found = checkpoints.stored(event.partition, event.snapshot)
            if found is None or found != event.snapshot:
                self._forget(event.partition, [] if found is None else [found])
                self._advance_checkpoint()
                if self.state.recovering:
                    self._give_up_marks()
                return
        if not checkpoints.knows(event.partition, event.snapshot):  # said twice, it may be part of a checkpoint
            self._forget(event.partition, [event.snapshot])

    def _partitions_reported(self, event: PartitionsReported) -> None:
        if event.epoch != self.state.epoch:
            return
        self.state.logged = max(self.state.logged, event.logged)
        for p in sorted(event.restored):
            if self.state.partitions[p].state is PartitionState.RESTORING:
                self._turn(p, Cause.RESTORED)
        for p, frontier in event.frontiers.items():
            mine = self.state.partitions[p]
            if mine.state in LIVE_STATES:
                mine.frontier = max(mine.frontier, frontier)
        for p, batch in event.published.items():
            self.state.published[p] = max(self.state.published[p], batch)
        for p in self.state.in_state([PartitionState.CATCHING_UP]):
            if self.state.partitions[p].frontier >= self.state.logged - self.state.settings.level_lag:
                self._turn(p, Cause.LEVEL)
        for p in self.state.in_state([PartitionState.RUNNING]):
            if self.state.partitions[p].frontier < self.state.logged - 4 * self.state.settings.level_lag:
                self._turn(p, Cause.BEHIND)
        self._bound_buffers(event.kept_bytes)
        self._advance_checkpoint()

    def _timer(self, event: Timer) -> None:
        lost = self.state.lost
        if lost and self.state.awaited:
            self._effects.append(Waiting(self.state.awaited, tuple(lost)))

    # -- losing --------------------------------------------------------------------------------------------------------

    def _lose(self, partitions: Sequence[PartitionId], cause: Cause, why: str) -> None:
        """Mark partitions as lost, roll back what must, and plan."""
        self._new_epoch(why)
        for p in partitions:
            self._turn(p, cause)
            self._set_start(p)
        if self.state.settings.strategy is RecoveryStrategy.SOURCE_REPLAY:
            self._roll_back(self.state.in_state(PLACED_STATES))
        else:
            back = partitions_to_roll_back(
                self.state.graph,
                {p: batch_of(self._start_of(p)) for p in self.state.lost},
                {p: self.state.partitions[p].start.batch for p in self.state.in_state([PartitionState.RESTORING])},
                lambda p: self.state.partitions[p].kept_from,
                self.state.checkpoints.global_batch,
                frozenset(self.state.in_state(LIVE_STATES)),
            )
            self._roll_back([p for p in self.state.graph.order if p in back])
            self._keep_everything()
        self.state.recovering = True
        self._plan(why, fenced=True)

    def has_older(self) -> bool:
        """Whether the durable checkpoint before the last one can take its place.

        Not where an output is out that would not be made the same again.
        """
        older = self.state.checkpoints.durable_before
        return older is not None and all(
            self.state.graph.deterministic(p) or batch <= older for p, batch in self.state.published.items()
        )

    def _fall_back(self, event: RestoreFailed) -> None:
        """Too few fragments of the global checkpoint are left: everything starts again from the durable one."""
        self._new_epoch(f"checkpoint {self.state.checkpoints.global_batch} is lost ({event.why})")
        for p, snapshots in self.state.checkpoints.go_durable().items():
            self._forget(p, snapshots)
        self._roll_back(self.state.in_state(PLACED_STATES))
        for p in self.state.lost:
            self._set_start(p)
        if self.state.settings.strategy is not RecoveryStrategy.SOURCE_REPLAY:
            self._keep_everything()
        self.state.recovering = True
        self._plan(event.why, fenced=True)

    def _roll_back(self, partitions: Sequence[PartitionId]) -> None:
        if not partitions:
            return
        self._effects.append(RollBack(tuple(partitions), self.state.checkpoints.global_batch))
        for p in partitions:
            if not self.state.graph.deterministic(p):
                self._forget(p, self.state.checkpoints.forget_after(p, self.state.checkpoints.global_batch))
            self._turn(p, Cause.ROLLED_BACK)
            self._set_start(p, at_global=True)

    def _keep_everything(self) -> None:
        if not self.state.buffering:
            self.state.buffering = True
            self._effects.append(Keep(everything=True))

    # -- planning ------------------------------------------------------------------------------------------------------

    def _plan(self, why: str, *, fenced: bool = False) -> None:
        """Bring back what fits now."""
        lost = self.state.lost
        if not lost or not self.state.nodes:
            return
        assignment = self._checked_assignment(lost)
        if assignment is None or not assignment.placement or (self._waits_for_all() and assignment.left):
            return
        if not fenced:
            self._new_epoch(why)
            if self.state.settings.strategy is RecoveryStrategy.SOURCE_REPLAY and self.state.recovering:
                self._roll_back(self.state.in_state(PLACED_STATES))
        if assignment.left:
            # Also at a start: those that wait will need what the others send meanwhile.
            self.state.recovering = True
            if self.state.settings.strategy is not RecoveryStrategy.SOURCE_REPLAY:
                self._keep_everything()
        placement = assignment.placement
        self._effects.append(Place(tuple(placement.items()), assignment.queries, assignment.priority, assignment.left))
        for p in self.state.graph.order:
            if p in placement:
                self._set_start(p)
                self._turn(p, Cause.PLACED, node=placement[p])

    def _checked_assignment(self, lost: Sequence[PartitionId]) -> Assignment | None:
        """Plan, and let the oracle check it; a plan that does not pass gives way to the simplest, checked as well."""
        state = self.state
        topology = with_costs(state.graph.topology, state.costs) if state.costs else state.graph.topology
        simplest = replace(state.settings, strategy=RecoveryStrategy.OPERATOR_CENTRIC)
        for settings, even in ((state.settings, True), (simplest, False)):
            found = assign(state.graph, topology, lost, state.placement, state.nodes, settings, state.wanted, even=even)
            problems = assignment_problems(
                state.graph, topology, lost, state.placement, state.nodes, state.settings.bound, found
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
        """Return what a lost partition starts from: its own last snapshot where that is enough, else the global one."""
        safe = self.state.checkpoints.global_batch
        last = self.state.checkpoints.last(partition)
        if (
            last is not None
            and last.batch > safe
            and self.state.graph.deterministic(partition)
            and last.outbox_from is not None
            and last.outbox_from <= safe + 1
            and self.state.settings.strategy is not RecoveryStrategy.SOURCE_REPLAY
        ):
            return last
        return self.state.checkpoints.at(partition, safe)

    def _set_start(self, partition: PartitionId, *, at_global: bool = False) -> None:
        checkpoints, mine = self.state.checkpoints, self.state.partitions[partition]
        snapshot = checkpoints.at(partition, checkpoints.global_batch) if at_global else self._start_of(partition)
        if snapshot is None and checkpoints.global_batch != NOTHING:
            raise CheckFailed(
                f"{partition} has no snapshot at batch {checkpoints.global_batch}",
                where="recovery",
                remedy="this is a fault of ours: report it",
            )
        mine.begin(self.state.epoch, snapshot, () if snapshot is None else checkpoints.chain(partition, snapshot))
        if not self.state.graph.deterministic(partition):
            self._forget(partition, checkpoints.forget_after(partition, mine.start.batch))
        mine.first_mark = max(checkpoints.marks, default=NOTHING)

    # -- checkpoints and buffers ---------------------------------------------------------------------------------------

    def _advance_checkpoint(self) -> None:
        """Let the last mark that everybody has saved be the global checkpoint, once everybody is past it."""
        sure = [p for p in self.state.graph.outputs if self.state.graph.deterministic(p)]
        mark = self.state.checkpoints.next_global(self.state.published, sure)
        if mark is None or any(
            one.frontier < mark for one in self.state.partitions.values() if one.state is not PartitionState.LOST
        ):
            if all(one.frontier <= self.state.checkpoints.global_batch for one in self.state.partitions.values()):
                self._end_recovery()  # nobody is past the checkpoint there is: no batch has come to make a new one
            return
        gone = self.state.checkpoints.make_global(mark)
        for p in self.state.lost:
            self._set_start(p)
        self._effects.append(
            GlobalCheckpoint(mark, self.state.checkpoints.durable_batch, self.state.checkpoints.inputs_from)
        )
        for p, snapshots in gone.items():
            self._forget(p, snapshots)
        self._end_recovery()

    def _give_up_marks(self) -> None:
        """Drop marks that can never be global, and snapshots that were for them alone.

        A recovery may wait long for nodes; live partitions go on saving meanwhile, and only their last snapshots
        matter.
        """
        last = (
            self.state.checkpoints.last_batch
        )  # no batch before it is marked again: somebody is past it, whose snapshots would go
        for mark in [one for one in self.state.checkpoints.marks if one < last]:
            if any(
                mine.first_mark > mark or mine.state is PartitionState.LOST
                for p, mine in self.state.partitions.items()
                if not self.state.checkpoints.has(p, mark)
            ):
                self.state.checkpoints.give_up(mark)
        for p, snapshots in self.state.checkpoints.sweep().items():
            self._forget(p, snapshots)

    def _forget(self, partition: PartitionId, snapshots: Iterable[SavedSnapshot]) -> None:
        gone = tuple((partition, snapshot) for snapshot in snapshots)
        if gone:
            self.state.partitions[partition].forgotten += 1
            self._effects.append(Forget(gone))

    def _end_recovery(self) -> None:
        """With nothing lost and a global checkpoint, outboxes shrink to the plan's policy."""
        if self.state.in_state([PartitionState.LOST, PartitionState.RESTORING]):
            return
        self.state.losses = 0
        if self.state.recovering:
            self.state.recovering = False
            self._resume()
            if self.state.buffering:
                self.state.buffering = False
                self._effects.append(Keep(everything=False))
            self._effects.append(RecoveryEnded(self.state.checkpoints.global_batch))

    def _bound_buffers(self, kept_bytes: int) -> None:
        """At the bound, hold back first what serves no live query, then the least valuable live queries."""
        waiting = self.state.in_state([PartitionState.LOST, PartitionState.RESTORING])
        if self.state.paused and (kept_bytes < self.state.settings.buffer_bytes / 2 or not waiting):
            self._resume()
        if kept_bytes <= self.state.settings.buffer_bytes or not waiting:
            return
        dead = {query for query in self.state.graph.outputs if not self.state.available(query)}
        self.state.paused |= self.state.paused_next(dead)
        for p in self.state.in_state([PartitionState.CATCHING_UP, PartitionState.RUNNING]):
            if set(self.state.graph.queries_of(p)) <= self.state.paused:
                self._turn(p, Cause.BUFFERS_FULL)

    def _resume(self) -> None:
        self.state.paused.clear()
        for p in self.state.in_state([PartitionState.PAUSED]):
            self._turn(p, Cause.BUFFERS_FREE)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _new_epoch(self, why: str) -> None:
        self.state.epoch = self.state.epoch.next
        self._effects.append(Fence(self.state.epoch, why))

    def _turn(self, partition: PartitionId, cause: Cause, node: NodeId | None = None) -> None:
        """Change a partition's state; it gets a node when it is placed, and has none when it is lost."""
        mine = self.state.partitions[partition]
        if cause is Cause.PLACED or cause in _LOSING:
            mine.node = node
        before = mine.state
        after = mine.history.apply(cause, self.state.epoch, mine.node)
        self._effects.append(Changed(partition, before, after, cause, mine.node))


_LOSING = frozenset({Cause.NODE_LOST, Cause.STATE_MISSING, Cause.RESTORE_FAILED})
