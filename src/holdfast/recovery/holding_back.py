"""What is held back, and who goes on without it: parked queries, and what gives way where outboxes are full. Pure.

The recovery machine has one of these. Partitions that serve parked queries only are *parked*. Where outboxes have
reached their bound, first nothing more is kept for those that wait (`regeneration`), then copies go, then partitions of
the least valuable queries that send to what waits are *paused*, another while outboxes still grow: where senders keep
what they cannot drop, and for as long as they do (`pausing`).
"""

from __future__ import annotations

from holdfast.errors import CheckFailed
from holdfast.ids import PartitionId
from holdfast.recovery.cluster_state import ClusterState
from holdfast.recovery.copying import CopyLifecycle
from holdfast.recovery.effects import BuffersFull, KeptNoMore, Parked, Regenerated, Resumed
from holdfast.recovery.events import QueriesParked, QueriesResumed
from holdfast.recovery.pausing import feeding, next_to_pause, paused_in_vain
from holdfast.recovery.regeneration import beyond_repair, returned, to_drop
from holdfast.recovery.state_changes import StateChanges
from holdfast.recovery.states import AT_WORK_STATES, Cause, PartitionState
from holdfast.recovery.strategy import RecoveryStrategy


class HoldingBack:
    """See the module."""

    def __init__(self, state: ClusterState, changes: StateChanges, copies: CopyLifecycle) -> None:
        self._state, self._changes, self._copies = state, changes, copies
        self._gave_nothing: set[PartitionId] = set()
        """Queries that were paused because they were not whole; when they are, they continue."""
        self._paused_at: int | None = None
        """What outboxes held when queries were paused last; no other is while they do not hold more than that."""
        self._none_left_logged = False

    def park(self, event: QueriesParked) -> None:
        """Park queries, and hold back what serves them only."""
        for query, why in event.queries.items():
            if query not in self._state.parked:
                self._state.parked[query] = why
                self._changes.emit(Parked(query, why))
        self.hold_parked()

    def resume(self, event: QueriesResumed) -> None:
        """Let parked queries continue."""
        self._state.requests = max(self._state.requests, event.request)
        for query in event.queries:
            if self._state.parked.pop(query, None) is not None:
                self._state.paused.discard(query)
                self._changes.emit(Resumed(query))
        for p in self._state.in_state([PartitionState.PARKED]):
            if not self._state.serves_parked_only(p):
                self._changes.turn(p, Cause.RESUMED)
        self._release_paused()

    def hold_parked(self) -> None:
        """Hold back what serves parked queries only; all others keep for them what they would keep for lost ones."""
        if not self._state.parked:
            return
        for p in self._state.in_state([*AT_WORK_STATES, PartitionState.PAUSED]):
            if self._state.serves_parked_only(p):
                self._changes.turn(p, Cause.PARKED)
        self._state.recovering = True
        if self._state.settings.strategy is not RecoveryStrategy.SOURCE_REPLAY:
            self._changes.keep_everything()

    def bound(self, kept_bytes: int) -> None:
        """See that outboxes stay within their bounds: let go, or hold back, what is worth the least."""
        if not self._drop_for_waiting(kept_bytes):
            self._bound_buffers(kept_bytes)

    def _drop_for_waiting(self, kept_bytes: int) -> bool:
        """At the bound, let senders keep nothing more for partitions that wait; say whether any were left to drop."""
        found = to_drop(self._state, kept_bytes)
        if found:
            self._state.dropped.update(found)
            self._changes.emit(KeptNoMore(tuple(found), kept_bytes))
        return bool(found)

    def _bound_buffers(self, kept_bytes: int) -> None:
        """At the bound, hold back first what serves no live query, then the least valuable live queries."""
        waiting = self._state.parked or self._state.in_state([PartitionState.LOST, PartitionState.RESTORING])
        self._release_whole()
        if kept_bytes < self._state.settings.buffer_bytes / 2 or not waiting:
            self.unpause()
        if kept_bytes <= self._state.settings.buffer_bytes or not waiting:
            return
        feeds = bool(feeding(self._state))  # else the next checkpoint lets senders drop what they keep
        if feeds and self._state.copies.at:
            for p in list(self._state.copies.at):
                self._copies.drop(p, "outboxes have reached their bound")
            return  # copies give way first; what is kept then, the next report says
        dead = {query for query in self._state.graph.outputs if not self._state.available(query)}
        pausing = dead - self._state.paused
        self._gave_nothing |= pausing
        if not pausing and feeds and (self._paused_at is None or kept_bytes > self._paused_at):
            # A pause frees nothing by itself: it is enough where outboxes do not grow any more.
            query = next_to_pause(self._state)
            pausing = set() if query is None else {query}
            if query is None and not self._none_left_logged:
                self._none_left_logged = True
                self._changes.emit(BuffersFull((), kept_bytes))
        if pausing:
            self._paused_at = kept_bytes
            self._state.paused.update(pausing)
            self._changes.emit(BuffersFull(tuple(sorted(pausing)), kept_bytes))
        for p in self._state.in_state(AT_WORK_STATES):
            if set(self._state.graph.queries_of(p)) <= self._state.paused:
                self._changes.turn(p, Cause.BUFFERS_FULL)

    def _release_whole(self) -> None:
        """Let queries continue that gave nothing when they were paused, and are whole again.

        What is kept for them gets less only if they do; others that wait, for people perhaps, are no reason not to.
        """
        if back := {query for query in self._gave_nothing if self._state.available(query)}:
            self._gave_nothing -= back
            self._state.paused -= back
            self._release_paused()

    def release_in_vain(self) -> None:
        """Let live queries continue that pause for nobody any more.

        What is kept for those that wait is dropped at the next checkpoint, and that one needs live queries at work.
        """
        if back := paused_in_vain(self._state):
            self._paused_at, self._none_left_logged = None, False
            self._state.paused -= back
            self._release_paused()

    def unpause(self) -> None:
        """Pause no query any more."""
        self._paused_at, self._none_left_logged = None, False
        self._gave_nothing.clear()
        self._state.paused.clear()
        self._release_paused()

    def _release_paused(self) -> None:
        """Let partitions continue that serve a query that is not paused, or not paused any more."""
        for p in self._state.in_state([PartitionState.PAUSED]):
            if not set(self._state.graph.queries_of(p)) <= self._state.paused:
                self._changes.turn(p, Cause.BUFFERS_FREE)

    def end_regeneration(self) -> None:
        """Partitions that have returned, and for which all is kept again, are as all others."""
        if not self._state.dropped:
            return
        back = returned(self._state)
        if back:
            self._state.dropped.difference_update(back)
            self._changes.emit(Regenerated(tuple(back)))
        if lost := beyond_repair(self._state):
            raise CheckFailed(
                f"the durable checkpoints that {lost[0]} is regenerated from are lost",
                where=f"partition {lost[0]}",
                remedy="bring their durable folder back and start again; nothing was changed",
            )
