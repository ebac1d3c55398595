"""Where partitions start again: from their checkpoints, or from later snapshots that serve as well. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.errors import CheckFailed
from holdfast.ids import BatchId, PartitionId
from holdfast.recovery.checkpoints import NOTHING, SavedSnapshot
from holdfast.recovery.cluster_state import ClusterState, batch_of
from holdfast.recovery.intermediate import latest_start
from holdfast.recovery.recovery_line import Line, edge_holds
from holdfast.recovery.rollback import starts_again
from holdfast.recovery.state_changes import StateChanges
from holdfast.recovery.states import PartitionState
from holdfast.recovery.strategy import RecoveryStrategy


class Starts:
    """See the module."""

    def __init__(self, state: ClusterState, changes: StateChanges) -> None:
        self._state, self._changes = state, changes

    def snapshot_for(self, partition: PartitionId) -> SavedSnapshot | None:
        """Return what a lost partition starts from: its own last snapshot where that is enough, else its checkpoint.

        Enough is one that holds what its consumers, starting from their checkpoints, and its sink would need; and what
        it kept aside up to there is written.
        """
        checkpoints, mine = self._state.checkpoints, self._state.partitions[partition]
        at, last = checkpoints.line[partition], checkpoints.last(partition)
        fed = [one for one in self._state.graph.consumers(partition) if one not in self._state.dropped]
        needed = [checkpoints.line[one] for one in fed]
        if partition in self._state.published:
            needed.append(self._state.published[partition])
        if (
            last is not None
            and at < last.batch <= mine.acknowledged
            and self._state.graph.deterministic(partition)
            and (not needed or (last.outbox_from is not None and last.outbox_from <= min(needed) + 1))
            and self._state.settings.strategy is not RecoveryStrategy.SOURCE_REPLAY
        ):
            return last
        return checkpoints.at(partition, at)

    def serves(self, partition: PartitionId) -> bool:
        """Whether a partition can start from its checkpoint as the recovery line counts on it.

        Its snapshot is there, and holds what its consumers and its sink need from theirs on. Of several versions of a
        batch a later one may be lost, and the one that stands for it then may hold less.
        """
        checkpoints, dropped = self._state.checkpoints, self._state.dropped
        line, at = checkpoints.line, checkpoints.line[partition]
        if at != NOTHING and checkpoints.at(partition, at) is None:
            return False
        return checkpoints.is_covered(partition, at, self._state.published) and all(
            edge_holds(self._state.graph, partition, at, line[one], checkpoints.outbox_from)
            or (one in dropped and at > line[one])
            for one in self._state.graph.consumers(partition)
        )

    def batch_for(self, partition: PartitionId, starts: Line) -> BatchId:
        """Return where a partition starts again, given where its consumers do: as late as serves them."""
        checkpoints = self._state.checkpoints
        at_line = checkpoints.at(partition, checkpoints.line[partition])
        lost = self._state.partitions[partition].state is PartitionState.LOST
        otherwise = self.snapshot_for(partition) if lost else at_line
        return batch_of(latest_start(self._state, partition, otherwise, starts))

    def later_batches(self, partitions: Iterable[PartitionId] = ()) -> dict[PartitionId, BatchId]:
        """Return where lost partitions and these start, where they may start later than their checkpoints."""
        if not self._state.segments.multiples:
            return {}
        return starts_again(self._state.graph, {*self._state.lost, *partitions}, self.batch_for)

    def begin_lost(self) -> None:
        """Let lost partitions start from what is there now."""
        found = self.later_batches()
        for p in self._state.lost:
            self.begin(p, at=found.get(p))

    def begin(self, partition: PartitionId, *, at: BatchId | None = None) -> None:
        """Let a partition start again: from its snapshot at a batch; none given: as a lost one."""
        checkpoints, mine = self._state.checkpoints, self._state.partitions[partition]
        snapshot = self.snapshot_for(partition) if at is None else checkpoints.at(partition, at)
        at = checkpoints.line[partition]
        if snapshot is None and at != NOTHING:
            raise CheckFailed(
                f"{partition} has no snapshot at batch {at}",
                where="recovery",
                remedy="this is a fault of ours: report it",
            )
        mine.begin(self._state.epoch, snapshot, () if snapshot is None else checkpoints.chain(partition, snapshot))
        if self._state.segments.multiples:
            checkpoints.between.started[partition] = mine.start.batch
        if not self._state.graph.deterministic(partition):
            mine.acknowledged = mine.frontier  # the batches after it may come out differently
            self._changes.forget(partition, checkpoints.forget_after(partition, mine.start.batch))
        marks = (mark for mark in checkpoints.marks if checkpoints.concerns(partition, mark))
        mine.first_mark, mine.own_mark = max(marks, default=NOTHING), None
