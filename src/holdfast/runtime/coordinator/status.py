"""How far a run is, and whether there is anything to do, from the cluster's state, the logs and the sinks. Pure."""

from __future__ import annotations

from holdfast.ids import BatchId, PartitionId
from holdfast.recovery.checkpoints import NOTHING
from holdfast.recovery.cluster_state import ClusterState
from holdfast.recovery.states import LIVE_STATES, PartitionState
from holdfast.runtime.coordinator.outputs import Outputs
from holdfast.runtime.io.batch_log import BatchLog
from holdfast.runtime.program import Program

_AT_WORK = LIVE_STATES - {PartitionState.PAUSED}


def has_room(status: RunStatus, most_batches: int) -> bool:
    """Whether another batch may be logged: not where those who can go on are behind by two cycles' batches."""
    # Several batches where much has come: a cycle then takes them together, with fewer exchanges.
    return status.logged - status.live_frontier < 2 * most_batches


class RunStatus:
    """A view: it changes nothing, and remembers nothing."""

    def __init__(self, program: Program, state: ClusterState, log: BatchLog, outputs: Outputs) -> None:
        self._program, self._state, self._log, self._outputs = program, state, log, outputs

    @property
    def logged(self) -> BatchId:
        """The last batch in the log."""
        return self._log.frontier

    @property
    def frontier(self) -> BatchId:
        """The last batch that every partition has completed."""
        return self._state.frontier

    @property
    def live_frontier(self) -> BatchId:
        """The last batch that every partition has completed that can go on; where none can, every partition.

        A live partition behind a lost or paused one cannot: nobody waits for it.
        """
        state = self._state
        able: set[PartitionId] = set()
        for p in state.graph.order:
            if state.partitions[p].state in _AT_WORK and able.issuperset(state.graph.senders(p)):
                able.add(p)
        return min((state.partitions[p].frontier for p in able), default=self.frontier)

    @property
    def caught_up(self) -> bool:
        """Whether everything logged is processed, and out where it can be."""
        state, logged = self._state, self.logged
        if any(one.state not in LIVE_STATES for one in state.partitions.values()) or state.frontier < logged:
            return False
        durable = state.checkpoints.durable_batch
        return all(
            state.published[p]
            >= (logged if self._outputs.deterministic(p) else min(durable, self._outputs.held.get(p, NOTHING)))
            for p in self._program.outputs
        )

    @property
    def settled(self) -> bool:
        """Whether everything logged is in a durable checkpoint, and out: a start finds nothing to do."""
        state, logged = self._state, self.logged
        return state.checkpoints.durable_batch >= logged and all(batch >= logged for batch in state.published.values())

    @property
    def can_work(self) -> bool:
        """Whether a cycle would bring anything: a partition can go on, is on its way, or has something to save."""
        state = self._state
        return self.can_go_on or any(
            one.state is PartitionState.RESTORING
            or (one.state in _AT_WORK and any(mark <= one.frontier for mark in state.marks_for(partition)))
            for partition, one in state.partitions.items()
        )

    @property
    def can_go_on(self) -> bool:
        """Whether a live partition has something to process, or to publish."""
        state, logged = self._state, self.logged
        for partition, one in state.partitions.items():
            senders = [state.partitions[p].frontier for p in state.graph.senders(partition)]
            if one.state in _AT_WORK and one.frontier < min(senders, default=logged):
                return True
        return not self.caught_up and any(
            state.published[p] < state.partitions[p].frontier
            for p in self._program.outputs
            if state.partitions[p].state in LIVE_STATES
        )

    @property
    def standing(self) -> object:
        """Something that differs once anything has moved."""
        state = self._state
        return (
            state.epoch,
            state.checkpoints.global_batch,
            sum(one.frontier for one in state.partitions.values()),
            sum(state.published.values()),
            [one.state for one in state.partitions.values()],
        )
