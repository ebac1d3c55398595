"""Deliberate bugs of edges that are held at the boundaries of segments. The simulator must find each; see bugs.py."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from holdfast.ids import BatchId, PartitionId
from holdfast.recovery.checkpoints import NOTHING
from holdfast.recovery.cluster_state import ClusterState
from holdfast.runtime.coordinator.coordinator import Coordinator
from holdfast.runtime.worker.host import PartitionHost
from simulation.bugs import Bug, Patch


def blocks_cross_with_the_snapshot(patch: Patch) -> None:
    """Held blocks cross once the sender's own snapshot is safe, and not once its segment's checkpoint has moved."""

    def limits(self: ClusterState) -> dict[PartitionId, BatchId]:
        last = {p: self.checkpoints.last(p) for p in self.graph.order}
        return self.held.limits(self.graph, {p: NOTHING if one is None else one.batch for p, one in last.items()})

    patch.setattr(ClusterState, "limits", limits)


def blocks_cross_by_a_checkpoint_that_was_lost(patch: Patch) -> None:
    """A checkpoint that is lost, with an epoch that is over, lets cross what is made again after it."""
    seen: WeakKeyDictionary[ClusterState, dict[PartitionId, BatchId]] = WeakKeyDictionary()

    def limits(self: ClusterState) -> dict[PartitionId, BatchId]:
        highest = seen.setdefault(self, {})
        highest.update({p: max(at, highest.get(p, at)) for p, at in self.checkpoints.line.items()})
        return self.held.limits(self.graph, highest)

    patch.setattr(ClusterState, "limits", limits)


def nodes_send_what_is_held(patch: Patch) -> None:
    """Nodes send blocks over held edges as soon as they have them."""
    patch.setattr(PartitionHost, "limit", lambda self, limits: None)


def held_blocks_are_trimmed_once_they_may_cross(patch: Patch) -> None:
    """A sender drops its blocks once its checkpoint lets them cross, and not once the consumer's covers them."""
    right = ClusterState.keep_from

    def keep_from(self: ClusterState) -> dict[PartitionId, BatchId]:
        kept = right(self)
        for p in kept if self.held.edges else ():
            if any((p.operator, one.operator) in self.held.edges for one in self.graph.consumers(p)):
                kept[p] = max(kept[p], BatchId(self.checkpoints.line[p] + 1))
                self.partitions[p].kept_from = kept[p]
        return kept

    patch.setattr(ClusterState, "keep_from", keep_from)


def what_crossed_before_a_plan_is_forgotten(patch: Patch) -> None:
    """A plan that holds takes effect, and what consumers had taken in before counts as never seen."""
    patch.setattr(ClusterState, "may_have_seen", _not_over_held_edges)


def _not_over_held_edges(self: ClusterState, sender: PartitionId, consumer: PartitionId, batch: BatchId) -> bool:
    return (sender.operator, consumer.operator) not in self.held.edges


def nothing_crosses_where_no_batch_comes(patch: Patch) -> None:
    """The last blocks of a stream that stands still wait for a checkpoint that only another batch would bring."""
    patch.setattr(Coordinator, "_let_cross", lambda self: None)


HELD_BUGS = tuple(
    Bug(one.__name__.replace("_", " "), (one.__doc__ or "").strip(), one)
    for one in (
        blocks_cross_with_the_snapshot,
        blocks_cross_by_a_checkpoint_that_was_lost,
        nodes_send_what_is_held,
        held_blocks_are_trimmed_once_they_may_cross,
        nothing_crosses_where_no_batch_comes,
    )
)
HELD_PLAN_BUGS = tuple(
    Bug(one.__name__.replace("_", " "), (one.__doc__ or "").strip(), one)
    for one in (what_crossed_before_a_plan_is_forgotten,)
)
