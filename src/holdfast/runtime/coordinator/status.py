"""How far a run is, and whether there is anything to do, from the cluster's state, the logs and the sinks. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection

from holdfast.ids import BatchId, PartitionId
from holdfast.recovery.checkpoints import NOTHING
from holdfast.recovery.cluster_state import ClusterState
from holdfast.recovery.states import AT_WORK_STATES, LIVE_STATES, PartitionState
from holdfast.runtime.coordinator.outputs import Outputs
from holdfast.runtime.io.batch_log import BatchLog
from holdfast.runtime.program import Program


def has_room(status: RunStatus, most_ahead: int, most_behind: int | None = None) -> bool:
    """Whether another batch may be logged: the log is less than this far ahead of the partitions that can continue.

    With `most_behind`, those of the most valuable queries; the others may be so far behind: one that is slow, or stands
    still, does not hold back what is worth more.
    """
    if most_behind is None:
        return status.logged - status.live_frontier < most_ahead
    return status.logged - status.leading_frontier < most_ahead and (
        status.logged - status.live_frontier < max(most_ahead, most_behind)
    )


class RunStatus:
    """A view: it changes nothing, and remembers nothing."""

    def __init__(
        self,
        program: Program,
        state: ClusterState,
        log: BatchLog,
        outputs: Outputs,
        waiting: Callable[[], Collection[PartitionId]] = tuple,
    ) -> None:
        """`waiting` gives the partitions that have failed and whose next attempt has time."""
        self._program, self._state, self._log, self._outputs = program, state, log, outputs
        self._waiting = waiting

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

        A live partition behind a lost, paused or parked one cannot, nor one that has just failed: nobody waits for it.
        Nor for one that returns from so long a wait that what it missed is regenerated.
        """
        return min(map(self._reach, self._able() - self._state.dropped), default=self.frontier)

    @property
    def leading_frontier(self) -> BatchId:
        """The last batch that every partition has completed that can go on, of the most valuable queries that can."""
        state, topology = self._state, self._state.graph.topology
        able = self._able() - state.dropped
        worth = {query: int(topology.priority[topology.index(query)]) for query in state.graph.outputs if query in able}
        most = max(worth.values(), default=0)
        leading = {p for query, one in worth.items() if one == most for p in state.graph.members(query)}
        return min(map(self._reach, leading & able), default=self.live_frontier)

    def _reach(self, partition: PartitionId) -> BatchId:
        """Return how far a partition is; the backlog of a slow sink counts once its publisher takes no more of it.

        Not that of a parked query, whose partition may go on for others.
        """
        frontier, handed = self._state.partitions[partition].frontier, self._outputs.publishing.last(partition)
        return frontier if handed is None or partition in self._state.parked else min(frontier, handed)

    def _able(self) -> set[PartitionId]:
        """The partitions that can go on."""
        state, waiting = self._state, self._waiting()
        able: set[PartitionId] = set()
        for p in state.graph.order:
            works = state.partitions[p].state in AT_WORK_STATES and p not in waiting
            if works and able.issuperset(state.graph.senders(p)):
                able.add(p)
        return able

    @property
    def caught_up(self) -> bool:
        """Whether everything logged is processed, and out where it can be; what is parked does not count."""
        state, logged = self._state, self.logged
        for p, one in state.partitions.items():
            if (one.state not in LIVE_STATES or one.frontier < logged) and not state.serves_parked_only(p):
                return False
        durable = state.checkpoints.durable_line
        return all(
            state.published[p]
            >= (logged if self._outputs.deterministic(p) else min(durable[p], self._outputs.held.get(p, NOTHING)))
            for p in self._program.outputs
            if p not in state.parked
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
        # What cannot be put in place, so that its queries are parked, is tried when others have something to do.
        failed = {one.partition for one in state.parked.values()}
        return self.can_go_on or any(
            (one.state is PartitionState.RESTORING and partition not in failed)
            or (one.state in AT_WORK_STATES and any(mark <= one.frontier for mark in state.marks_for(partition)))
            for partition, one in state.partitions.items()
        )

    @property
    def can_go_on(self) -> bool:
        """Whether a live partition has something to process, or to publish."""
        state, logged, waiting = self._state, self.logged, self._waiting()
        for partition, one in state.partitions.items():
            if partition in waiting:
                continue
            senders = [state.partitions[p].frontier for p in state.graph.senders(partition)]
            if one.state in AT_WORK_STATES and one.frontier < min(senders, default=logged):
                return True
        return not self.caught_up and any(
            max(state.published[p], self._outputs.handed(p)) < state.partitions[p].frontier
            for p in self._program.outputs
            if state.partitions[p].state in LIVE_STATES
            and p not in state.parked
            and p not in waiting
            and self._outputs.publishing.takes(p)
        )

    @property
    def standing(self) -> object:
        """Something that differs once anything has moved."""
        state = self._state
        return (
            state.epoch,
            sum(state.checkpoints.line.values()),
            sum(one.frontier for one in state.partitions.values()),
            sum(state.published.values()),
            [one.state for one in state.partitions.values()],
            len(state.parked),
        )
