"""Deliberate bugs of segments that checkpoint at their own interval. The simulator must find each; see bugs.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from holdfast.ids import BatchId
from holdfast.recovery import checkpointing
from holdfast.recovery.checkpoints import Checkpoints
from holdfast.recovery.cluster_state import ClusterState
from holdfast.recovery.segments import Segments
from holdfast.runtime.coordinator.marking import BatchMarks
from holdfast.runtime.coordinator.pacing import Mark
from simulation.bugs import Bug, Patch


def stored_edges_trimmed_by_frontiers(patch: Patch) -> None:
    """Blocks between segments are dropped once the consumer has processed them, and not once its checkpoint has."""
    patch.setattr(Segments, "keeps", lambda self, sender, consumer: False)


def stored_edges_not_in_snapshots(patch: Patch) -> None:
    """A segment moves its checkpoint, and its snapshots do not hold what other segments will need."""
    right = checkpointing.set_that_moves

    def moves(graph: Any, line: Any, targets: Any, reach: Any, dropped: Any) -> Any:
        return right(graph, line, targets, lambda p, at: BatchId(0), dropped)

    patch.setattr(ClusterState, "with_outbox", lambda self, p: self.buffering or not self.graph.deterministic(p))
    patch.setattr(checkpointing, "set_that_moves", moves)


def durable_with_the_first_segment(patch: Patch) -> None:
    """The durable line moves to a mark as soon as one segment has it on durable storage."""

    def durable_next(self: Checkpoints, published: Any) -> BatchId | None:
        for mark in sorted(self._durable_marks, reverse=True):
            if mark > self.durable_batch and any(self.has_durable(p, mark) for p in self.line):
                return mark
        return None

    patch.setattr(Checkpoints, "durable_next", durable_next)


def marks_of_a_segment_taken_by_all(patch: Patch) -> None:
    """A mark of one segment is read as one of all partitions."""
    right = BatchMarks.take

    def take(self: BatchMarks) -> list[Mark]:
        return [replace(mark, segments=None) for mark in right(self)]

    patch.setattr(BatchMarks, "take", take)


def log_trimmed_by_a_segments_own_checkpoint(patch: Patch) -> None:
    """The batch log is trimmed to the checkpoints of the sources' segments, not to the durable line of all."""

    def inputs_from(self: ClusterState) -> BatchId:
        line = self.checkpoints.line if self.segments.many else self.checkpoints.oldest_line
        return min(line[p] for p in self.graph.order if not self.graph.senders(p))

    patch.setattr(ClusterState, "inputs_from", property(inputs_from))


def durable_snapshots_of_segments_ahead_dropped(patch: Patch) -> None:
    """A segment that is past a durable mark drops its snapshot there before the others have come to it."""
    right, next_right = Checkpoints.sweep, Checkpoints.durable_next

    def sweep(self: Checkpoints) -> Any:
        kept, self._durable_marks = self._durable_marks, set()
        try:
            return right(self)
        finally:
            self._durable_marks = kept

    def durable_next(self: Checkpoints, published: Any) -> BatchId | None:
        found = next_right(self, published)
        past = [one for one in self._durable_marks if one > self.durable_batch and min(self.line.values()) >= one]
        return max(past, default=found)

    patch.setattr(Checkpoints, "sweep", sweep)
    patch.setattr(Checkpoints, "durable_next", durable_next)


SEGMENT_BUGS = tuple(
    Bug(one.__name__.replace("_", " "), (one.__doc__ or "").strip(), one)
    for one in (
        stored_edges_trimmed_by_frontiers,
        stored_edges_not_in_snapshots,
        durable_with_the_first_segment,
        marks_of_a_segment_taken_by_all,
        log_trimmed_by_a_segments_own_checkpoint,
        durable_snapshots_of_segments_ahead_dropped,
    )
)
