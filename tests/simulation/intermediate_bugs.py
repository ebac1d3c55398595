"""Deliberate bugs of operators that save between two checkpoints. The simulator must find each; see bugs.py."""

from __future__ import annotations

from typing import Any

from holdfast.ids import BatchId
from holdfast.recovery import intermediate
from holdfast.recovery import machine as machines
from holdfast.recovery.checkpoints import Checkpoints
from simulation.bugs import Bug, Patch


def consumers_not_asked_where_a_sender_starts(patch: Patch) -> None:
    """A lost partition starts from its last snapshot, whatever its consumers have completed."""
    patch.setattr(intermediate, "_needed", lambda state, partition, starts: [])


def restored_senders_stay_when_consumers_are_lost(patch: Patch) -> None:
    """A partition that is being restored from an intermediate snapshot goes on when its consumer is lost as well."""
    right = machines.partitions_to_roll_back

    def without_restoring(graph: Any, lost: Any, restoring: Any, *rest: Any) -> Any:
        return {p for p in right(graph, lost, restoring, *rest) if p not in restoring or not graph.deterministic(p)}

    patch.setattr(machines, "partitions_to_roll_back", without_restoring)


def intermediate_snapshots_move_checkpoints(patch: Patch) -> None:
    """The checkpoint of an operator moves to a batch at which it alone has saved, and no sent block is stored."""
    right = Checkpoints.close_between

    def close(self: Checkpoints, batch: BatchId) -> Any:
        operators = right(self, batch)
        self.line.update({p: batch for p in self.line if p.operator in operators})
        return operators

    patch.setattr(Checkpoints, "close_between", close)


INTERMEDIATE_BUGS = tuple(
    Bug(one.__name__.replace("_", " "), (one.__doc__ or "").strip(), one)
    for one in (
        consumers_not_asked_where_a_sender_starts,
        restored_senders_stay_when_consumers_are_lost,
        intermediate_snapshots_move_checkpoints,
    )
)
