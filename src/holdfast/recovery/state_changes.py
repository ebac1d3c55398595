"""What changes in the cluster state, and the effect that says so: one step each. Pure.

The parts of the recovery machine share them, and the list of the effects of the event that is handled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from holdfast.ids import NodeId, PartitionId
from holdfast.recovery.checkpoints import SavedSnapshot
from holdfast.recovery.cluster_state import ClusterState
from holdfast.recovery.effects import Changed, Effect, Fence, Forget, Keep
from holdfast.recovery.states import AT_WORK_STATES, Cause

_LOSING = frozenset({Cause.NODE_LOST, Cause.STATE_MISSING, Cause.RESTORE_FAILED})


class StateChanges:
    """See the module."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self.effects: list[Effect] = []
        """Those of the event that is handled, in order."""
        self.emit: Callable[[Effect], None] = self.effects.append

    def new_epoch(self, why: str) -> None:
        """Begin an epoch: what still writes in the one before is fenced off."""
        self._state.epoch = self._state.epoch.next
        self._state.checkpoints.between.open.clear()  # what some have saved there stays
        self.emit(Fence(self._state.epoch, why))

    def turn(self, partition: PartitionId, cause: Cause, node: NodeId | None = None) -> None:
        """Change a partition's state; it gets a node when it is placed, and has none when it is lost."""
        mine = self._state.partitions[partition]
        if cause in (Cause.PLACED, Cause.PROMOTED) or cause in _LOSING:
            mine.node = node
        before = mine.state
        after = mine.history.apply(cause, self._state.epoch, mine.node)
        if after not in AT_WORK_STATES:
            self._state.unsettled.add(self._state.segments.of(partition))
        self.emit(Changed(partition, before, after, cause, mine.node))

    def keep_everything(self) -> None:
        """From now on every outbox reaches back to its consumers' checkpoints."""
        if not self._state.buffering:
            self._state.buffering = True
            self.emit(Keep(everything=True))

    def forget(self, partition: PartitionId, snapshots: Iterable[SavedSnapshot]) -> None:
        """Let snapshots of a partition go: nothing starts from them any more."""
        gone = tuple((partition, snapshot) for snapshot in snapshots)
        if gone:
            status, last = self._state.partitions[partition], self._state.checkpoints.line[partition]
            status.forgotten += 1
            # It does not save at batches before its checkpoint again.
            status.gone = {one for one in status.gone if one.batch >= last} | {one for _, one in gone}
            self.emit(Forget(gone))
