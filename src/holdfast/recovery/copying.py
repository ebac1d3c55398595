"""What becomes of copies as events come: built, followed, promoted, dropped; and moves, which are made of these. Pure.

The recovery machine has one of these and calls it where something changes. A *move* is a copy on another node that
takes its primary's place once it is level; nodes that will go are left that way, all their partitions at once if the
copies of all are level before long, and so are nodes that have too much to do (`recovery.rebalancing` says by which
partitions, at every new checkpoint).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from holdfast.ids import BatchId, NodeId, PartitionId
from holdfast.recovery.cluster_state import ClusterState, Start, batch_of
from holdfast.recovery.copies import (
    RETIRE_BATCHES,
    Copy,
    CopyState,
    inputs_kept,
    level,
    needs,
    promotable,
    retired,
    to_build,
    to_move,
    to_yield,
    useless,
)
from holdfast.recovery.effects import (
    CopyDropped,
    CopyLeftOut,
    CopyLevel,
    CopyPlaced,
    NodesEvacuated,
    Promoted,
    ReplicasChanged,
)
from holdfast.recovery.rebalancing import moves_for_load
from holdfast.recovery.starts import Starts
from holdfast.recovery.state_changes import StateChanges
from holdfast.recovery.states import AT_WORK_STATES, Cause, PartitionState

if TYPE_CHECKING:
    from holdfast.recovery.checkpoints import SavedSnapshot


PARTING_BATCHES = BatchId(8)
"""Batches for which partitions with level copies wait for the others of a leaving node: each move costs an epoch."""


class CopyLifecycle:
    """See the module."""

    def __init__(self, state: ClusterState, changes: StateChanges, starts: Starts) -> None:
        self._state, self._changes, self._starts = state, changes, starts
        self._levelled: set[PartitionId] = set()
        self._without: set[PartitionId] = set()
        """Partitions of which it was said that their copies find no place."""
        self._considered: BatchId | None = None
        """The checkpoint at which load was last looked at."""
        self._ready_since: dict[NodeId, BatchId] = {}
        """The batch that was logged when the first partitions of a leaving node could move, and others could not."""

    # -- reports -------------------------------------------------------------------------------------------------------

    def reported(self, frontiers: Mapping[PartitionId, BatchId], problems: Mapping[PartitionId, str]) -> None:
        """Take how far copies are, and which have failed."""
        copies = self._state.copies
        for p, frontier in frontiers.items():
            if (copy := copies.at.get(p)) is not None:
                if copy.state is CopyState.BUILDING and frontier < copy.frontier:
                    # `restart` counted on the later snapshot, and senders have kept no more for it since.
                    self.drop(p, f"it has begun with batch {frontier}, an earlier snapshot than is counted on")
                    continue
                copy.state = CopyState.RUNNING
                # What it has beyond its primary does not count: it is told to complete no more than that.
                copy.frontier = max(copy.frontier, min(frontier, self._state.partitions[p].frontier))
        for p, problem in problems.items():
            if p in copies.at:
                self.drop(p, problem)
        for p in level(self._state):
            if p not in self._levelled:
                self._levelled.add(p)
                copies.levelled(p)
                self._changes.emit(CopyLevel(p, copies.at[p].node, copies.at[p].frontier))

    def tend(self) -> None:
        """Drop what is of no use, finish moves that can be finished, build what is wanted and fits."""
        self.restart()
        for p in retired(self._state, self._without):
            del self._state.copies.retiring[p]
        self.drop_useless()
        for p in to_yield(self._state):
            self.drop(p, f"{self._state.copies.at[p].node} has no room for it")
        self._finish_moves()
        self._consider_load()
        self._build()

    def replan(self, replicas: Sequence[PartitionId], why: str, *, at_once: bool) -> bool:
        """Let other partitions have copies from now on; say whether that is a change.

        Copies that are no longer planned go when the new ones are level, or `at_once`.
        """
        state, copies = self._state, self._state.copies
        planned = tuple(p for p in dict.fromkeys(replicas) if p in state.partitions and state.graph.deterministic(p))
        before, copies.replicas = copies.replicas, planned
        start = tuple(p for p in planned if p not in before)
        stop = tuple(p for p in before if p not in planned)
        if at_once or not planned:
            copies.retiring.clear()
        elif start:
            until = BatchId(state.logged + RETIRE_BATCHES)
            copies.retiring.update({p: until for p in stop if p in copies.at})
        for p in planned:
            copies.retiring.pop(p, None)
        if start or stop:
            self._changes.emit(ReplicasChanged(start, stop, why))
        return bool(start or stop)

    # -- building ------------------------------------------------------------------------------------------------------

    def _build(self) -> None:
        state = self._state
        found, without = to_build(state, self._reach)
        for p, why in without.items():
            if p not in self._without:
                self._changes.emit(CopyLeftOut(p, why))
        # Named again once it has had a copy in between.
        self._without = {p for p in self._without | set(without) if p not in found and p not in state.copies.at}
        if any(not state.copies.is_fresh(p, node, state.epoch) for p, node in found.items()):
            self._changes.new_epoch("copies are built again")
        for p, node in found.items():
            start, outbox_from = self._start(p)
            state.copies.build(Copy(p, node, start, start.batch, outbox_from))
            self._levelled.discard(p)
            self._changes.emit(CopyPlaced(p, node, start.batch))

    def _snapshot(self, partition: PartitionId) -> SavedSnapshot | None:
        """Return what a copy would start from: never ahead of its primary, which may have gone back."""
        found = self._starts.snapshot_for(partition)
        if batch_of(found) <= self._state.partitions[partition].frontier:
            return found
        return self._state.checkpoints.at(partition, self._state.checkpoints.line[partition])

    def _reach(self, partition: PartitionId) -> tuple[BatchId, BatchId]:
        snapshot = self._snapshot(partition)
        at = batch_of(snapshot)
        first = at + 1 if snapshot is None or snapshot.outbox_from is None else min(snapshot.outbox_from, at + 1)
        return at, BatchId(first)

    def _start(self, partition: PartitionId) -> tuple[Start, BatchId]:
        """Return what a copy starts from in this epoch, and the first batch of its outbox then."""
        snapshot = self._snapshot(partition)
        at, first = self._reach(partition)
        chain = () if snapshot is None else self._state.checkpoints.chain(partition, snapshot)
        return Start(self._state.epoch, at, chain), first

    def restart(self) -> None:
        """Let copies on their way whose snapshots are of no use any more start from later ones.

        One may have begun with the earlier snapshot meanwhile; so what it surely has completed stays what it was, until
        that would hold senders back too much.
        """
        state = self._state
        for p, copy in state.copies.at.items():
            known = all(state.checkpoints.knows(p, one) for one in copy.start.snapshots)
            if copy.state is CopyState.BUILDING and not (known and copy.start.batch >= state.checkpoints.line[p]):
                start, first = self._start(p)
                copy.start = Start(copy.start.epoch, start.batch, start.snapshots)
                copy.kept_from = max(copy.kept_from, first)
                if copy.frontier < state.checkpoints.line[p] - state.copies.lag:
                    copy.frontier = start.batch

    # -- dropping ------------------------------------------------------------------------------------------------------

    def drop(self, partition: PartitionId, why: str, *, pause: bool = True) -> None:
        """Let go of a copy; it is built again, after a while where it failed."""
        state = self._state
        copy = state.copies.take(partition, state.epoch)
        if pause:
            state.copies.pause(partition, state.logged)
        self._levelled.discard(partition)
        self._changes.emit(CopyDropped(partition, copy.node, why))

    def drop_useless(self) -> None:
        """Drop the copies that nothing can come of any more."""
        for p, why in useless(self._state).items():
            self.drop(p, why, pause="too far behind" in why)

    def drop_all(self, partitions: Collection[PartitionId], why: str) -> None:
        """Drop the copies of these partitions."""
        for p in [p for p in partitions if p in self._state.copies.at]:
            self.drop(p, why, pause=False)

    # -- promoting -----------------------------------------------------------------------------------------------------

    def promote(self, partition: PartitionId, first_mark: BatchId, why: str) -> None:
        """Let a copy take its primary's place, where it stands; the epoch has begun."""
        state = self._state
        copy = state.copies.take(partition, state.epoch)
        self._levelled.discard(partition)
        mine = state.partitions[partition]
        before = mine.node
        mine.start, mine.kept_from, mine.first_mark = copy.start, copy.kept_from, first_mark
        mine.own_mark = None
        mine.frontier = copy.frontier
        self._changes.turn(partition, Cause.PROMOTED, copy.node)
        self._changes.emit(Promoted(partition, before, copy.node, copy.frontier, why))

    # -- moves ---------------------------------------------------------------------------------------------------------

    def leave(self, nodes: Collection[NodeId]) -> list[NodeId]:
        """Nodes will go: nothing comes there any more. Returns those that are new."""
        state = self._state
        fresh = [node for node in nodes if node in state.nodes and node not in state.copies.leaving]
        state.copies.leaving.update(fresh)
        return fresh

    def gone(self, nodes: Collection[NodeId]) -> None:
        """Nodes are gone."""
        self._state.copies.leaving.difference_update(nodes)
        self._state.copies.evacuated.difference_update(nodes)
        for node in nodes:
            self._ready_since.pop(node, None)

    def _finish_moves(self) -> None:
        """Let copies take over from partitions of leaving nodes, in one epoch: from all of a node, or those that can.

        What moves together is a closed set: the outboxes of its copies, and those of all who stay, reach back to what
        its own copies and their consumers need.
        """
        state, copies = self._state, self._state.copies
        ready = level(state)
        able = promotable(state, [p for p in to_move(state) if p in ready])
        chosen: list[PartitionId] = []
        for node in sorted(copies.leaving):
            here = [p for p in to_move(state) if state.partitions[p].node == node]
            if not here and node not in copies.evacuated:
                copies.evacuated.add(node)
                self._changes.emit(NodesEvacuated((node,)))
            mine = [p for p in here if p in able]
            if mine and not self._waits_for_others(node, [p for p in here if p not in able]):
                chosen += mine
        together = promotable(state, chosen)
        moving = [p for p in chosen if p in together]
        if moving:
            self._changes.new_epoch(f"{len(moving)} partitions move")
            for p in moving:
                self.promote(p, state.partitions[p].first_mark, "moved")
            self.drop_useless()
            self._finish_moves()
        elif copies.moving and all(p in ready and self._can_move(p) for p in copies.moving):
            self._move_for_load()

    def _waits_for_others(self, node: NodeId, others: Sequence[PartitionId]) -> bool:
        """Say whether the partitions of a leaving node that can move wait for those that cannot yet."""
        state = self._state
        since = self._ready_since.setdefault(node, state.logged)
        if state.logged >= since + PARTING_BATCHES:
            return False
        return any(
            state.graph.deterministic(p) and p not in self._without and state.partitions[p].state in AT_WORK_STATES
            for p in others
        )

    def _move_for_load(self) -> None:
        """Let the copies of all partitions that move for load take over, in one epoch."""
        state, copies = self._state, self._state.copies
        self._changes.new_epoch(f"{len(copies.moving)} partitions move")
        for p in list(copies.moving):
            self.promote(p, state.partitions[p].first_mark, "moved for load")
            copies.moved(p, state.logged)
        copies.moving.clear()
        self.drop_useless()

    def _consider_load(self) -> None:
        """Give up moves that cannot come about; at a new checkpoint, see whether others are worth it."""
        state, copies = self._state, self._state.copies
        for p, node in list(copies.moving.items()):
            at_work = state.partitions[p].state is PartitionState.RUNNING
            if node not in state.nodes or node in copies.leaving or not at_work or not copies.is_due(p, state.logged):
                del copies.moving[p]
        line = min(state.checkpoints.line.values())
        if line != self._considered:
            self._considered = line
            copies.moving.update(moves_for_load(state))
        self.drop_useless()

    def _can_move(self, partition: PartitionId) -> bool:
        state = self._state
        copy = state.copies.at[partition]
        return (
            copy.frontier >= state.checkpoints.line[partition]
            and inputs_kept(state, partition, copy.frontier)
            and copy.kept_from <= min(needs(state, partition), default=copy.kept_from)
        )
