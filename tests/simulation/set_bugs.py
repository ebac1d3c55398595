"""Deliberate bugs of sets that checkpoint on their own. The simulator must find each; see bugs.py."""

from __future__ import annotations

from typing import Any

from holdfast.ids import BatchId
from holdfast.recovery import checkpointing
from holdfast.recovery import recovery_line as lines
from holdfast.recovery.checkpoints import Checkpoints
from holdfast.recovery.cluster_state import ClusterState
from simulation.bugs import Bug, Patch


def waiting_consumers_forgotten(patch: Patch) -> None:
    """A set moves its checkpoint whatever its snapshots hold for those that wait."""
    patch.setattr(
        checkpointing,
        "set_that_moves",
        lambda graph, line, targets, reach, dropped: {p: b for p, b in targets.items() if b > line[p]},
    )


def other_rows_made_again(patch: Patch) -> None:
    """The checkpoint of a consumer moves past that of a sender that is not deterministic."""
    right = lines.edge_holds

    def holds(graph: Any, sender: Any, at: BatchId, consumer_at: BatchId, reach: Any) -> bool:
        return at < consumer_at or right(graph, sender, at, consumer_at, reach)

    patch.setattr(lines, "edge_holds", holds)


def waiting_snapshots_dropped(patch: Patch) -> None:
    """Snapshots from before the checkpoint of the furthest set are dropped."""
    right = Checkpoints.sweep

    def sweep(self: Checkpoints) -> Any:
        line, self.line = self.line, dict.fromkeys(self.line, max(self.line.values()))
        try:
            return right(self)
        finally:
            self.line = line

    patch.setattr(Checkpoints, "sweep", sweep)


def sets_forgotten_over_a_restart(patch: Patch) -> None:
    """A driver that starts takes the checkpoint of the furthest set for that of all partitions."""
    right = Checkpoints.read

    def read(partitions: Any, fields: Any) -> Checkpoints:
        found = right(partitions, fields)
        found.line = dict.fromkeys(found.line, max(found.line.values()))
        return found

    patch.setattr(Checkpoints, "read", read)


def covered_counts_as_published(patch: Patch) -> None:
    """The progress says that outputs are out that only snapshots hold, because their sink fails."""
    right = ClusterState.written

    def written(self: ClusterState) -> dict[str, object]:
        line = self.checkpoints.line
        return {**right(self), "published": {str(p): max(b, line[p]) for p, b in self.published.items()}}

    patch.setattr(ClusterState, "written", written)


SET_BUGS = [
    Bug(put_in.__name__, put_in.__doc__ or "", put_in)
    for put_in in (
        waiting_consumers_forgotten,
        other_rows_made_again,
        waiting_snapshots_dropped,
        sets_forgotten_over_a_restart,
        covered_counts_as_published,
    )
]
