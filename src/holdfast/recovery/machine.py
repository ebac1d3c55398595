"""The recovery machine: it hears what happened and says what to do. Pure; driven by Spark, one process, the simulator.

One path for every failure (a node, several at once or one after the other, a silent one, missing files, the driver):

1. what is lost is *lost*; a new epoch fences off whatever still writes;
2. live partitions that have not kept what the lost ones will need go back to the global checkpoint (`rollback`); from
   then on every outbox is kept to the checkpoint, so that arriving nodes never take anybody back again;
3. a plan brings back the most valuable queries that fit the nodes there are now (`layout`), none above its bound;
4. their states are restored, they catch up from what was kept;
5. on every arriving node the next plan, for what is left;
6. the next global checkpoint with nothing lost ends it: outboxes shrink to the plan's policy.

A driver that starts again is the same path with every partition lost. What is known, and what a cycle needs to know
(who runs where, from where, how far back to keep, at which batches to save), is in `standing`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from holdfast.errors import CheckFailed
from holdfast.ids import Epoch, NodeId, PartitionId
from holdfast.recovery.assignments import batch_of
from holdfast.recovery.buffers import paused_next
from holdfast.recovery.checkpoints import NOTHING, SavedSnapshot
from holdfast.recovery.effects import (
    CancelCycle,
    Changed,
    Effect,
    Fence,
    Forget,
    GlobalCheckpoint,
    Keep,
    Place,
    RecoveryEnded,
    RequestNodes,
    Restore,
    RollBack,
    Waiting,
)
from holdfast.recovery.events import (
    CheckpointGivenUp,
    CheckpointMarked,
    CheckpointStored,
    CostsMeasured,
    CycleDone,
    CycleFailed,
    Event,
    NodesArrived,
    NodesLost,
    NodesSilent,
    RestoreFailed,
    StateMissing,
    Timer,
)
from holdfast.recovery.layout import lay_out, with_costs
from holdfast.recovery.rollback import partitions_to_roll_back
from holdfast.recovery.standing import Standing
from holdfast.recovery.states import LIVE_STATES, PLACED_STATES, Cause, PartitionState
from holdfast.recovery.strategy import RecoveryStrategy


class Machine(Standing):
    """See the module."""

    _effects: list[Effect]

    # -- events --------------------------------------------------------------------------------------------------------

    def handle(self, event: Event) -> list[Effect]:
        """Hear what happened; say what to do, in order. The caller logs before it does any of it."""
        self._effects = []
        handlers: dict[type, Callable[..., None]] = {
            NodesArrived: self._arrived,
            NodesLost: self._nodes_gone,
            NodesSilent: self._nodes_gone,
            StateMissing: self._state_missing,
            CycleDone: self._cycle_done,
            CycleFailed: lambda event: None,
            CheckpointMarked: self._marked,
            CheckpointGivenUp: lambda event: self.checkpoints.give_up(event.batch),
            CheckpointStored: self._stored,
            RestoreFailed: self._restore_failed,
            CostsMeasured: lambda event: self.costs.update(event.costs),
            Timer: self._timer,
        }
        handlers[type(event)](event)
        return self._effects

    def _arrived(self, event: NodesArrived) -> None:
        fresh = {node: capacity for node, capacity in event.nodes.items() if node not in self.nodes}
        if not fresh:
            return
        self.nodes.update(fresh)
        self.awaited = max(0, self.awaited - len(fresh))
        self._plan(f"{len(fresh)} nodes arrived")

    def _nodes_gone(self, event: NodesLost | NodesSilent) -> None:
        gone = [node for node in event.nodes if node in self.nodes]
        if not gone:
            return
        for node in gone:
            del self.nodes[node]
        self.awaited += len(gone)
        self.losses += len(gone)
        self._effects.append(RequestNodes(len(gone)))
        lost = [p for p, node in self.placement.items() if node in gone]
        if lost:
            word = "silent" if isinstance(event, NodesSilent) else "lost"
            self._lose(lost, Cause.NODE_LOST, f"{', '.join(gone)} {word}")

    def _state_missing(self, event: StateMissing) -> None:
        mine = self.partitions[event.partition]
        # One cycle may miss several: the first begins an epoch; the others count unless they have started anew in it.
        if mine.start.epoch <= event.epoch <= self.epoch and mine.node == event.node and mine.state in PLACED_STATES:
            self.losses += 1
            self._lose([event.partition], Cause.STATE_MISSING, f"{event.partition} is not on {event.node}")

    def _restore_failed(self, event: RestoreFailed) -> None:
        mine = self.partitions[event.partition]
        if event.epoch != self.epoch or event.snapshot not in [one.id for one in mine.start.snapshots]:
            return
        self._forget(event.partition, self.checkpoints.lost(event.partition, event.snapshot))
        whole = (
            self.checkpoints.global_batch == NOTHING
            or self.checkpoints.at(event.partition, self.checkpoints.global_batch) is not None
        )
        if not whole:
            if self.checkpoints.global_batch == self.checkpoints.durable_batch:
                raise CheckFailed(
                    f"the durable checkpoint at batch {self.checkpoints.durable_batch} is lost: {event.why}",
                    where=f"partition {event.partition}",
                    remedy="bring its durable folder back and start again; nothing was changed",
                )
            self.losses += 1
            self._fall_back(event)
        elif mine.state in PLACED_STATES:
            self.losses += 1
            cause = Cause.RESTORE_FAILED if mine.state is PartitionState.RESTORING else Cause.STATE_MISSING
            self._lose([event.partition], cause, f"{event.partition} cannot be restored: {event.why}")

    def _marked(self, event: CheckpointMarked) -> None:
        self.checkpoints.mark(event.batch, durable=event.durable)
        for mine in self.partitions.values():
            if mine.frontier <= event.batch:
                mine.first_mark = min(mine.first_mark, event.batch)

    def _stored(self, event: CheckpointStored) -> None:
        wanted = event.snapshot.batch in self.checkpoints.marks
        if not (wanted and self.checkpoints.stored(event.partition, event.snapshot)):
            # Said twice, it may be part of a checkpoint; and a batch that may be marked again has the same names again.
            if (
                not self.checkpoints.knows(event.partition, event.snapshot)
                and event.snapshot.batch < self.checkpoints.last_batch
            ):
                self._forget(event.partition, [event.snapshot])
            return
        self._advance_checkpoint()
        if self.recovering:
            self._give_up_marks()

    def _cycle_done(self, event: CycleDone) -> None:
        if event.epoch != self.epoch:
            return
        self.logged = max(self.logged, event.logged)
        for p in event.restored:
            if self.partitions[p].state is PartitionState.RESTORING:
                self._turn(p, Cause.RESTORED)
        for p, frontier in event.frontiers.items():
            mine = self.partitions[p]
            if mine.state in LIVE_STATES:
                mine.frontier = max(mine.frontier, frontier)
        for p, batch in event.published.items():
            self.published[p] = max(self.published[p], batch)
        for p in self.in_state([PartitionState.CATCHING_UP]):
            if self.partitions[p].frontier >= self.logged - self.settings.level_lag:
                self._turn(p, Cause.LEVEL)
        for p in self.in_state([PartitionState.RUNNING]):
            if self.partitions[p].frontier < self.logged - 4 * self.settings.level_lag:
                self._turn(p, Cause.BEHIND)
        self._bound_buffers(event.kept_bytes)
        self._advance_checkpoint()

    def _timer(self, event: Timer) -> None:
        lost = self.lost
        if lost and self.awaited:
            self._effects.append(Waiting(self.awaited, tuple(lost)))

    # -- losing --------------------------------------------------------------------------------------------------------

    def _lose(self, partitions: Sequence[PartitionId], cause: Cause, why: str) -> None:
        """Take partitions as lost, let go back what must, and plan."""
        self._effects.append(CancelCycle())
        self._new_epoch(why)
        for p in partitions:
            self._turn(p, cause)
            self._set_start(p)
        if self.settings.strategy is RecoveryStrategy.SOURCE_REPLAY:
            self._go_back(self.in_state(PLACED_STATES))
        else:
            back = partitions_to_roll_back(
                self.graph,
                {p: batch_of(self._start_of(p)) for p in self.lost},
                {p: self.partitions[p].start.batch for p in self.in_state([PartitionState.RESTORING])},
                lambda p: self.partitions[p].kept_from,
                self.checkpoints.global_batch,
                frozenset(self.in_state(LIVE_STATES)),
            )
            self._go_back([p for p in self.graph.order if p in back])
            self._keep_everything()
        self.recovering = True
        self._plan(why, fenced=True)

    def _fall_back(self, event: RestoreFailed) -> None:
        """Too few fragments of the global checkpoint are left: everything starts again from the durable one."""
        self._effects.append(CancelCycle())
        self._new_epoch(f"checkpoint {self.checkpoints.global_batch} is lost ({event.why})")
        for p, snapshots in self.checkpoints.go_durable().items():
            self._forget(p, snapshots)
        self._go_back(self.in_state(PLACED_STATES))
        for p in self.lost:
            self._set_start(p)
        if self.settings.strategy is not RecoveryStrategy.SOURCE_REPLAY:
            self._keep_everything()
        self.recovering = True
        self._plan(event.why, fenced=True)

    def _go_back(self, partitions: Sequence[PartitionId]) -> None:
        if not partitions:
            return
        self._effects.append(RollBack(tuple(partitions), self.checkpoints.global_batch))
        for p in partitions:
            if not self.graph.deterministic(p):
                self._forget(p, self.checkpoints.forget_after(p, self.checkpoints.global_batch))
            self._turn(p, Cause.ROLLED_BACK)
            self._set_start(p, at_global=True)

    def _keep_everything(self) -> None:
        if not self.buffering:
            self.buffering = True
            self._effects.append(Keep(everything=True))

    # -- planning ------------------------------------------------------------------------------------------------------

    def _plan(self, why: str, *, fenced: bool = False) -> None:
        """Bring back what fits now."""
        lost = self.lost
        if not lost or not self.nodes:
            return
        topology = with_costs(self.graph.topology, self.costs) if self.costs else self.graph.topology
        layout = lay_out(self.graph, topology, lost, self.placement, self.nodes, self.settings, self.wanted)
        if self.settings.after_plan is not None:
            self.settings.after_plan(layout)
        if not layout.placement or (self._waits_for_all() and layout.left):
            return
        self.last_layout = layout
        if not fenced:
            self._new_epoch(why)
            if self.settings.strategy is RecoveryStrategy.SOURCE_REPLAY and self.recovering:
                self._go_back(self.in_state(PLACED_STATES))
        if layout.left:
            # Also at a start: those that wait will need what the others send meanwhile.
            self.recovering = True
            if self.settings.strategy is not RecoveryStrategy.SOURCE_REPLAY:
                self._keep_everything()
        self._effects.append(Place(tuple(layout.placement.items()), layout.queries, layout.priority, layout.left))
        for p in self.graph.order:
            if p not in layout.placement:
                continue
            self._set_start(p)
            self._turn(p, Cause.PLACED, node=layout.placement[p])
            node = self.partitions[p].node
            assert node is not None
            self._effects.append(Restore(p, node, self.partitions[p].start.snapshots))

    def _waits_for_all(self) -> bool:
        if self.settings.strategy is RecoveryStrategy.BLOCKING:
            return True
        return self.recovering and self.losses < self.settings.incremental_after_losses

    def _start_of(self, partition: PartitionId) -> SavedSnapshot | None:
        """Return what a lost partition starts from: its own last snapshot where that is enough, else the global one."""
        safe = self.checkpoints.global_batch
        last = self.checkpoints.last(partition)
        if (
            last is not None
            and last.batch > safe
            and self.graph.deterministic(partition)
            and last.outbox_from is not None
            and last.outbox_from <= safe + 1
            and self.settings.strategy is not RecoveryStrategy.SOURCE_REPLAY
        ):
            return last
        return self.checkpoints.at(partition, safe)

    def _set_start(self, partition: PartitionId, *, at_global: bool = False) -> None:
        checkpoints, mine = self.checkpoints, self.partitions[partition]
        snapshot = checkpoints.at(partition, checkpoints.global_batch) if at_global else self._start_of(partition)
        if snapshot is None and checkpoints.global_batch != NOTHING:
            raise CheckFailed(
                f"{partition} has no snapshot at batch {checkpoints.global_batch}",
                where="recovery",
                remedy="this is a fault of ours: report it",
            )
        mine.begin(self.epoch, snapshot, () if snapshot is None else checkpoints.chain(partition, snapshot))
        if not self.graph.deterministic(partition):
            self._forget(partition, checkpoints.forget_after(partition, mine.start.batch))
        mine.first_mark = max(checkpoints.marks, default=NOTHING)

    # -- checkpoints and buffers ---------------------------------------------------------------------------------------

    def _advance_checkpoint(self) -> None:
        """Let the last mark that everybody has saved be the global checkpoint, once everybody is past it."""
        sure = [p for p in self.graph.outputs if self.graph.deterministic(p)]
        mark = self.checkpoints.next_global(self.published, sure)
        if mark is None or any(
            one.frontier < mark for one in self.partitions.values() if one.state is not PartitionState.LOST
        ):
            if all(one.frontier <= self.checkpoints.global_batch for one in self.partitions.values()):
                self._end_recovery()  # nobody is past the checkpoint there is: no batch has come to make a new one
            return
        gone = self.checkpoints.make_global(mark)
        for p in self.lost:
            self._set_start(p)
        self._effects.append(GlobalCheckpoint(mark, self.checkpoints.durable_batch))
        for p, snapshots in gone.items():
            self._forget(p, snapshots)
        self._end_recovery()

    def _give_up_marks(self) -> None:
        """Drop marks that can never be global, and snapshots that were for them alone.

        A recovery may wait long for nodes; live partitions go on saving meanwhile, and only their last snapshots
        matter.
        """
        last = (
            self.checkpoints.last_batch
        )  # no batch before it is marked again: somebody is past it, whose snapshots would go
        for mark in [one for one in self.checkpoints.marks if one < last]:
            if any(
                mine.first_mark > mark or mine.state is PartitionState.LOST
                for p, mine in self.partitions.items()
                if not self.checkpoints.has(p, mark)
            ):
                self.checkpoints.give_up(mark)
        for p, snapshots in self.checkpoints.sweep().items():
            self._forget(p, snapshots)

    def _forget(self, partition: PartitionId, snapshots: Iterable[SavedSnapshot]) -> None:
        gone = tuple((partition, snapshot) for snapshot in snapshots)
        if gone:
            self._effects.append(Forget(gone))

    def _end_recovery(self) -> None:
        """With nothing lost and a global checkpoint, outboxes shrink to the plan's policy."""
        if self.in_state([PartitionState.LOST, PartitionState.RESTORING]):
            return
        self.losses = 0
        if self.recovering:
            self.recovering = False
            self._resume()
            if self.buffering:
                self.buffering = False
                self._effects.append(Keep(everything=False))
            self._effects.append(RecoveryEnded(self.checkpoints.global_batch))

    def _bound_buffers(self, kept_bytes: int) -> None:
        """At the bound, hold back first what serves no live query, then the least valuable live queries."""
        waiting = self.in_state([PartitionState.LOST, PartitionState.RESTORING])
        if self.paused and (kept_bytes < self.settings.buffer_bytes / 2 or not waiting):
            self._resume()
        if kept_bytes <= self.settings.buffer_bytes or not waiting:
            return
        dead = {query for query in self.graph.outputs if not self.available(query)}
        self.paused |= paused_next(self.graph, self.paused, dead)
        for p in self.in_state([PartitionState.CATCHING_UP, PartitionState.RUNNING]):
            if set(self.graph.queries_of(p)) <= self.paused:
                self._turn(p, Cause.BUFFERS_FULL)

    def _resume(self) -> None:
        self.paused.clear()
        for p in self.in_state([PartitionState.PAUSED]):
            self._turn(p, Cause.BUFFERS_FREE)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _new_epoch(self, why: str) -> None:
        self.epoch = Epoch(self.epoch + 1)
        self._effects.append(Fence(self.epoch, why))

    def _turn(self, partition: PartitionId, cause: Cause, node: NodeId | None = None) -> None:
        """Change a partition's state; it gets a node when it is placed, and has none when it is lost."""
        mine = self.partitions[partition]
        if cause is Cause.PLACED or cause in _LOSING:
            mine.node = node
        before = mine.state
        after = mine.story.turn(cause, self.epoch, mine.node)
        self._effects.append(Changed(partition, before, after, cause, mine.node))


_LOSING = frozenset({Cause.NODE_LOST, Cause.STATE_MISSING, Cause.RESTORE_FAILED})
