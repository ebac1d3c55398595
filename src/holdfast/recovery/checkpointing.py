"""What becomes of checkpoints as events come: marked, saved, moved to, given up; and what ends a recovery. Pure.

The recovery machine has one of these. Snapshots are saved at marks. Partitions that move to a mark together are a set:
all, a segment, or those that go on in a recovery (`recovery_line` says which may move while all others stay). Snapshots
that nothing starts from any more are forgotten. A plan that was chosen takes effect at a checkpoint. A recovery ends at
one, too: with nothing lost or parked.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.ids import BatchId, PartitionId
from holdfast.recovery.checkpoints import NOTHING, SavedSnapshot
from holdfast.recovery.cluster_state import ClusterState
from holdfast.recovery.effects import GlobalCheckpoint, IntermediateSnapshots, Keep, PlanTookEffect, RecoveryEnded
from holdfast.recovery.events import CheckpointGivenUp, CheckpointMarked, CheckpointStored
from holdfast.recovery.executed_plan import ExecutedPlan
from holdfast.recovery.holding_back import HoldingBack
from holdfast.recovery.intermediate import may_be_ahead
from holdfast.recovery.quarantine import without_old
from holdfast.recovery.recovery_line import Line, set_that_moves
from holdfast.recovery.starts import Starts
from holdfast.recovery.state_changes import StateChanges
from holdfast.recovery.states import AT_WORK_STATES, LIVE_STATES, PartitionState

_WAITING_MARKS = 2
"""Of marks that all live partitions have saved at, and whose outputs are not out, this many stay at either end."""


class CheckpointLifecycle:
    """See the module."""

    def __init__(self, state: ClusterState, changes: StateChanges, starts: Starts, holding_back: HoldingBack) -> None:
        self._state, self._changes, self._starts, self._holding_back = state, changes, starts, holding_back

    # -- marks and snapshots -------------------------------------------------------------------------------------------

    def marked(self, event: CheckpointMarked) -> None:
        """Take a batch at which partitions save: for a checkpoint, or in between."""
        if event.segments is None or event.segments:
            self._state.checkpoints.mark(event.batch, durable=event.durable, segments=event.segments)
            for p, mine in self._state.partitions.items():
                if mine.frontier <= event.batch and self._state.checkpoints.concerns(p, event.batch):
                    mine.first_mark = min(mine.first_mark, event.batch)
        if event.between and not self._state.recovering and self._state.plan.next is None:
            # Not in a recovery: there live partitions save outboxes too, at every mark.
            order = self._state.graph.order
            sure = {p.operator for p in order if p.operator in event.between and may_be_ahead(self._state, p)}
            self._state.checkpoints.mark_between(event.batch, sure)

    def given_up(self, event: CheckpointGivenUp) -> None:
        """Give up a mark, and those before it that a partition does not save at because of a later one."""
        checkpoints = self._state.checkpoints
        checkpoints.between.open.pop(event.batch, None)
        if event.partition is not None and self._state.partitions[event.partition].own_mark == event.batch:
            self._state.partitions[event.partition].own_mark = None
            if event.batch not in checkpoints.marks:
                return
        segments = self._state.segments
        checkpoints.give_up(event.batch, None if event.partition is None else segments.of(event.partition))
        for mark in [*checkpoints.marks]:
            for p, mine in self._state.partitions.items():
                if (
                    mine.first_mark > mark
                    and mark in checkpoints.marks
                    and checkpoints.concerns(p, mark)
                    and not checkpoints.has(p, mark)
                    and (not segments.many or checkpoints.lacks(p, mark))
                ):
                    checkpoints.give_up(mark, segments.of(p))

    def stored(self, event: CheckpointStored) -> None:
        """Take a snapshot that is saved: it counts, replaces one, or goes."""
        checkpoints = self._state.checkpoints
        if event.snapshot in self._state.partitions[event.partition].gone:
            return  # said again, and its batch may be marked again: it will be saved anew, under another name
        marks = [mark for mark in checkpoints.marks if checkpoints.concerns(event.partition, mark)]
        marks += checkpoints.between.of(event.partition)
        if event.snapshot.batch in (*marks, self._state.partitions[event.partition].own_mark):
            needed = self._needed_from(event.partition, event.snapshot.batch)
            found = checkpoints.stored(event.partition, event.snapshot, needed)
            later: list[SavedSnapshot] = []
            live = self._state.partitions[event.partition].state in LIVE_STATES
            if live and event.snapshot.durable and self._state.graph.deterministic(event.partition):
                later = checkpoints.let_durable_stand(event.partition, event.snapshot.id, needed)
            if found is None or found != event.snapshot or later:
                self._changes.forget(event.partition, [*([] if found is None else [found]), *later])
                self._close_between(event.snapshot.batch)
                self._advance()
                if self._state.recovering:
                    self._give_up_marks()
                return
        if not checkpoints.knows(event.partition, event.snapshot):  # said twice, it may be part of a checkpoint
            self._changes.forget(event.partition, [event.snapshot])

    def _close_between(self, batch: BatchId) -> None:
        """Where an intermediate mark is saved by all, senders start from it: older such snapshots may go."""
        if operators := self._state.checkpoints.close_between(batch):
            self._changes.emit(IntermediateSnapshots(batch, tuple(sorted(operators))))
            for p, snapshots in self._state.checkpoints.sweep().items():
                self._changes.forget(p, snapshots)

    def _needed_from(self, partition: PartitionId, batch: BatchId) -> BatchId | None:
        """Return the first batch up to this one whose output a snapshot at it has to hold, if there is one.

        Where the partition would start from that batch, consumers whose checkpoint is behind will need it, and so will
        its sink. Before that only what is not published and cannot be made again the same matters.
        """
        state = self._state
        starts_there = state.checkpoints.line[partition] == batch
        fed = [one for one in state.graph.consumers(partition) if one not in state.dropped]
        passed = [state.checkpoints.line[one] for one in fed] if starts_there else []
        if partition in state.published and (starts_there or not state.graph.deterministic(partition)):
            passed.append(state.published[partition])
        return BatchId(min(passed) + 1) if passed and min(passed) < batch else None

    def _set_own_marks(self) -> None:
        """Let live partitions that wait for others save where they stand.

        Their senders have trimmed what they have processed since their checkpoint, and could not move past it.
        """
        waits = bool(self._state.parked or self._state.lost)
        able = self._state.able() if waits else set(self._state.graph.order)
        for p, mine in self._state.partitions.items():
            if not waits or p in able or mine.state not in LIVE_STATES:
                mine.own_mark = None
            elif mine.own_mark is None and mine.frontier > self._state.checkpoints.line[p]:
                mine.own_mark = mine.frontier

    def _give_up_marks(self) -> None:
        """Drop marks that can never be of use, and snapshots that were for them alone.

        A recovery may wait long for nodes, and a parked query for people; live partitions go on saving meanwhile, and
        only their checkpoints and their last snapshots matter.
        """
        checkpoints, able = self._state.checkpoints, self._state.able()
        # No batch before it is marked again: some partition is past it, whose snapshots would go.
        last = checkpoints.last_batch
        saved: list[BatchId] = []
        for mark in [one for one in checkpoints.marks if one < last]:
            coming = [p for p in able if checkpoints.lacks(p, mark) and _may_have(self._state, p, mark)]
            if not coming:
                checkpoints.give_up(mark)
            elif all(checkpoints.has(p, mark) for p in coming):
                saved.append(mark)
        for mark in saved[_WAITING_MARKS:-_WAITING_MARKS]:
            checkpoints.give_up(mark)
        for p, snapshots in checkpoints.sweep().items():
            self._changes.forget(p, snapshots)

    # -- moving --------------------------------------------------------------------------------------------------------

    def reported(self) -> None:
        """After partitions have reported: those that wait save where they stand, sets that can move do."""
        self._set_own_marks()
        self._advance()

    def _advance(self) -> None:
        """Let the sets that can move their checkpoints to a mark do so: all partitions, a segment, those that go on."""
        while self._advance_set() and self._state.segments.many:
            pass
        self.change_plan()

    def _advance_set(self) -> bool:
        """Let one set move its checkpoint; say whether one did."""
        checkpoints, covered = self._state.checkpoints, self._state.checkpoints.global_batch
        many, published = self._state.segments.many, self._state.published
        found = _next_set(self._state)
        if found is None and not (many and checkpoints.durable_next(published) is not None):
            line = checkpoints.line if many else dict.fromkeys(checkpoints.line, covered)
            level = not many or self._state.segments.are_level(checkpoints.line)  # else snapshots have to hold outboxes
            if level and all(one.frontier <= line[p] for p, one in self._state.partitions.items()):
                self._end_recovery()  # no partition is past its checkpoint: no batch has come for a new one
            return False
        found = found or {}
        mark = max(found.values(), default=checkpoints.global_batch)
        self._state.line_before.update({p: checkpoints.line[p] for p in found if self._state.held.edges})
        gone = checkpoints.move(found, published)
        # A decision is needed for as long as its partition may process the batch again.
        self._state.quarantined = without_old(self._state.quarantined, min(checkpoints.oldest_line.values()))
        self._starts.begin_lost()
        moved = {self._state.segments.of(p) for p in found}
        waiting = tuple(
            p for p in self._state.graph.order if checkpoints.line[p] < mark and self._state.segments.of(p) in moved
        )
        durable, inputs_from = checkpoints.durable_batch, self._state.inputs_from
        self._changes.emit(GlobalCheckpoint(mark, durable, inputs_from, waiting, tuple(sorted(moved)) if many else ()))
        for p, snapshots in gone.items():
            self._changes.forget(p, snapshots)
        by_name = self._state.segments.by_name(self._state.graph.order)
        self._state.unsettled -= {one for one in moved if len({checkpoints.line[p] for p in by_name[one]}) == 1}
        if self._state.segments.are_level(checkpoints.line) and not (many and self._state.unsettled):
            # Not before: senders whose checkpoint is ahead of a consumer's keep what that one would need, and a later
            # snapshot of theirs has to hold it, too.
            self._end_recovery()
        return True

    def change_plan(self) -> None:
        """Let the plan that was chosen take effect where the checkpoint is complete under it and the one in force."""
        state, plan = self._state, self._state.plan.next
        if plan is None or state.recovering or not state.plan.may_take_effect(state.checkpoints.line):
            return
        if not _is_kept(state, plan):
            return  # at a bound, senders had dropped what it wants kept: at the next checkpoint
        gone = state.checkpoints.change_segments(plan.segments)
        state.plan.next = None
        state.execute(plan)
        state.unsettled.clear()
        self._changes.emit(PlanTookEffect(plan, state.checkpoints.global_batch))
        for p, snapshots in gone.items():
            self._changes.forget(p, snapshots)

    def _end_recovery(self) -> None:
        """With nothing lost or parked and a global checkpoint, outboxes shrink to the plan's policy."""
        if self._state.parked or self._state.in_state([PartitionState.LOST, PartitionState.RESTORING]):
            return
        self._state.losses = 0
        if self._state.recovering:
            self._state.recovering = False
            self._holding_back.unpause()
            if self._state.buffering:
                self._state.buffering = False
                self._changes.emit(Keep(everything=False))
            self._changes.emit(RecoveryEnded(self._state.checkpoints.global_batch))


# -- which set moves next ----------------------------------------------------------------------------------------------


def _is_kept(state: ClusterState, plan: ExecutedPlan) -> bool:
    """Whether senders have all that a plan lets them keep, back to the checkpoints of their consumers."""
    line = state.checkpoints.line
    return all(
        state.partitions[p].kept_from <= line[consumer] + 1
        for p in state.in_state(AT_WORK_STATES)
        for consumer in state.graph.consumers(p)
        if plan.keeps(p, consumer)
    )


def _next_set(state: ClusterState) -> dict[PartitionId, BatchId] | None:
    """Return the set that can move its checkpoints, and where to; None: no partition can now.

    While all is well the set is all partitions. During a recovery those that are level with the log are one,
    whatever the others wait for, and those that catch up another; what waits may move to its own last snapshot.
    """
    checkpoints = state.checkpoints
    waiting = _own_targets(state) if state.recovering else {}
    if not checkpoints.marks and not waiting:
        return None
    able = state.able() if state.recovering else set()
    for mark in reversed(checkpoints.marks):
        ready = {p for p in state.graph.order if checkpoints.has(p, mark) and _is_safe(state, p, mark)}
        behind = {p for p in state.graph.order if checkpoints.lacks(p, mark)}
        # Their checkpoints are there, and not durable. They have trimmed what those that come now have completed: a
        # durable snapshot need not hold it once these have moved, and cannot be had before.
        there = {p for p in behind if checkpoints.line[p] == mark}
        if state.segments.many:
            ready = {p for p in ready if checkpoints.concerns(p, mark)}
            whole = [one for one in state.segments.by_name(behind).values() if one <= ready | there]
            targets = {p: mark for one in whole for p in one & ready}
            if moving := _movable(state, targets):
                return moving
        elif behind <= ready:
            return dict.fromkeys(behind, mark)
        elif behind <= ready | there and (moving := _movable(state, dict.fromkeys(behind & ready, mark))):
            return moving
        come = [one for one in _groups(state, able, behind) if _has_come(state, one, ready, mark)]
        if come:
            names = state.segments.by_name(p for one in come for p in one)
            targets = {**waiting, **{p: mark for p in ready if state.segments.of(p) in names}}
            if moving := _movable(state, targets):
                return moving
    return _movable(state, waiting) or None


def _movable(state: ClusterState, targets: Line) -> dict[PartitionId, BatchId]:
    """Return the partitions of these that may move their checkpoints now."""
    checkpoints = state.checkpoints
    return set_that_moves(state.graph, checkpoints.line, targets, checkpoints.outbox_from, state.dropped)


def _own_targets(state: ClusterState) -> dict[PartitionId, BatchId]:
    """Return the last snapshots of partitions that wait: lost, parked or paused ones, and what waits for those."""
    able, found = state.able(), {}
    for p in state.graph.order:
        last = state.checkpoints.last(p)
        if p not in able and last is not None and _is_safe(state, p, last.batch):
            found[p] = last.batch
        if state.segments.multiples and state.partitions[p].state is PartitionState.LOST:
            at = state.partitions[p].start.batch
            if at != NOTHING and _is_safe(state, p, at):
                found[p] = at  # as late as serves its consumers: its senders may hold nothing from before
    return found


def _is_safe(state: ClusterState, partition: PartitionId, batch: BatchId) -> bool:
    """Whether what a partition has given up to a batch is out, written, or in its snapshot."""
    mine = state.partitions[partition]
    return mine.has_passed(batch) and state.checkpoints.is_covered(partition, batch, state.published)


def _groups(state: ClusterState, able: set[PartitionId], behind: set[PartitionId]) -> Iterable[set[PartitionId]]:
    """Return the partitions that checkpoint together while others wait: those level with the log, and the rest."""
    level = {p for p in able & behind if state.partitions[p].state is PartitionState.RUNNING}
    of = state.segments
    return [*of.by_name(level).values(), *of.by_name((able & behind) - level).values()]


def _has_come(state: ClusterState, group: set[PartitionId], ready: set[PartitionId], mark: BatchId) -> bool:
    """Whether all partitions of a group that will ever have a mark have it, and at least one does."""
    return bool(group & ready) and not any(_may_have(state, p, mark) for p in group - ready)


def _may_have(state: ClusterState, partition: PartitionId, mark: BatchId) -> bool:
    """Whether a partition has a mark, or will."""
    return state.checkpoints.has(partition, mark) or state.partitions[partition].first_mark <= mark
