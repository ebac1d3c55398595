"""How far a run is, and whether there is anything to do, from the cluster's state, the logs and the sinks. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from holdfast.ids import BatchId, PartitionId
from holdfast.recovery.checkpoints import NOTHING
from holdfast.recovery.cluster_state import ClusterState
from holdfast.recovery.states import AT_WORK_STATES, LIVE_STATES, PartitionState
from holdfast.runtime.coordinator.catching_up import (
    SERVES_NONE,
    CatchingUp,
    CatchUp,
    Progresses,
    QueryProgress,
    beyond_allowance,
    leaders,
)
from holdfast.runtime.coordinator.outputs import Outputs
from holdfast.runtime.io.batch_log import BatchLog
from holdfast.runtime.program import Program


def has_room(status: RunStatus, most_ahead: int, most_behind: int | None = None) -> bool:
    """Whether another batch may be logged: the log is less than this far ahead of the slowest query that leads.

    With `most_behind`, those lead that `catching_up` says, and the others are within their allowance: one that catches
    up, is slow or stands still does not hold back the others. Without, all live partitions do.
    """
    if most_behind is None:
        return status.logged - status.live_frontier < most_ahead
    return status.logged - status.leading_frontier < most_ahead and not status.waited_for(most_ahead, most_behind)


class RunStatus:
    """A view: it changes nothing, and remembers nothing itself."""

    def __init__(
        self,
        program: Program,
        state: ClusterState,
        log: BatchLog,
        outputs: Outputs,
        waiting: Callable[[], Collection[PartitionId]] = tuple,
        catching_up: CatchingUp | None = None,
    ) -> None:
        """`waiting` gives the partitions that have failed and whose next attempt has time.

        `catching_up` remembers which queries catch up; who steps the run has it look.
        """
        self._program, self._state, self._log, self._outputs = program, state, log, outputs
        self._waiting = waiting
        self._catching_up = catching_up or CatchingUp()

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
        waits, able = self._waits(), self._able() - self._state.dropped
        return min((self._reach(p, waits) for p in able), default=self.frontier)

    @property
    def leading_frontier(self) -> BatchId:
        """The last batch that all queries have completed that lead: sources follow these."""
        queries = self.queries()
        led = leaders(queries, self._catch_ups(queries), is_full=self.is_full)
        return min((queries[one].frontier for one in led), default=self.frontier)

    def waited_for(self, most_ahead: int, most_behind: int) -> list[PartitionId]:
        """Return the queries that do not lead, and are so far behind that sources wait for them."""
        queries = self.queries()
        return beyond_allowance(queries, self._catch_ups(queries), self.logged, most_ahead, most_behind)

    @property
    def catching_up(self) -> tuple[PartitionId, ...]:
        """The queries that are so far behind the others that sources would have waited for them."""
        return self._catching_up.reported

    def _catch_ups(self, queries: Progresses) -> dict[PartitionId, CatchUp]:
        """As it is now: what is remembered is as old as the last step."""
        return self._catching_up.at(queries, self.logged)

    @property
    def is_full(self) -> bool:
        """Whether outboxes have reached their bound: what is kept for queries that catch up gets no more."""
        settings = self._state.settings
        return self._state.kept_bytes > min(settings.waiting_bytes, settings.buffer_bytes)

    def queries(self) -> dict[PartitionId, QueryProgress]:
        """Return how far the queries are that can go on, and the partitions that can of which no query can."""
        state, topology, waits = self._state, self._state.graph.topology, self._waits()
        able = self._able() - state.dropped
        found: dict[PartitionId, QueryProgress] = {}
        serves_none = set(able)
        for query in state.graph.outputs:
            if query in able:
                members = able.intersection(state.graph.members(query))
                frontier = min(self._reach(p, waits) for p in members)
                priority = int(topology.priority[topology.index(query)])
                is_kept = state.dropped.isdisjoint(state.graph.members(query))
                found[query] = QueryProgress(frontier, priority, is_kept)
                serves_none -= members
        return found | {p: QueryProgress(self._reach(p, waits), SERVES_NONE) for p in sorted(serves_none)}

    def lag(self, partitions: Iterable[PartitionId]) -> int:
        """Return how many batches the last of these is behind the log."""
        logged, waits = self.logged, self._waits()
        behind = (logged - self._state.partitions[p].frontier - waits.get(p, 0) for p in partitions)
        return max(0, *behind, 0)

    def _waits(self) -> dict[PartitionId, int]:
        """Return by how many batches of the log partitions after held edges may be behind, and count as level."""
        if not self._state.held.edges:
            return {}
        logged = self.logged
        return {p: logged - at for p, at in self._state.expected(logged).items()}

    def _reach(self, partition: PartitionId, waits: Mapping[PartitionId, int]) -> BatchId:
        """Return how far a partition is; the backlog of a slow sink counts once its publisher takes no more of it.

        Not that of a parked query, whose partition may go on for others. Nor do batches that wait at a held edge: the
        log must not wait for the checkpoint that lets them cross, which is marked in it.
        """
        frontier, handed = self._state.partitions[partition].frontier, self._outputs.publishing.last(partition)
        reach = frontier if handed is None or partition in self._state.parked else min(frontier, handed)
        return min(self.logged, BatchId(reach + waits[partition])) if partition in waits else reach

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
        limits = state.limits()
        for partition, one in state.partitions.items():
            if partition in waiting:
                continue
            senders = [state.partitions[p].frontier for p in state.graph.senders(partition)]
            through = min(senders, default=logged)
            if one.state in AT_WORK_STATES and one.frontier < min(through, limits.get(partition, through)):
                return True
        return not self.caught_up and any(
            max(state.published[p], self._outputs.handed(p)) < self._publishable(p)
            for p in self._program.outputs
            if state.partitions[p].state in LIVE_STATES
            and p not in state.parked
            and p not in waiting
            and self._outputs.publishing.takes(p)
        )

    def _publishable(self, query: PartitionId) -> BatchId:
        """Return the last batch of a query that may be published now, or that is not known to wait.

        What waits for a durable checkpoint is no work, nor what comes after it. One that pauses comes to none.
        """
        one, held = self._state.partitions[query], self._outputs.held.get(query, NOTHING)
        durable = self._state.checkpoints.durable_line[query]
        waits = one.state is PartitionState.PAUSED or held > durable
        if self._outputs.deterministic(query) or not waits:
            return one.frontier
        return min(one.frontier, durable, held)

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
