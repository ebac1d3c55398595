"""Deliberate bugs of what snapshots hold. The simulator must find each; see bugs.py."""

from __future__ import annotations

from typing import Any

from holdfast.recovery.checkpoints import Checkpoints
from holdfast.runtime.worker.worker import NodeWorker
from holdfast_lab.simulation.recovery import starting
from simulation.bugs import Bug, Patch


def snapshot_without_its_rows(patch: Patch) -> None:
    """A node that has lost its outbox saves a durable snapshot without it, in the place of one that held the rows."""
    right = Checkpoints.stored

    def stored(self: Checkpoints, partition: Any, snapshot: Any, unpublished: Any = None) -> Any:
        return right(self, partition, snapshot)

    patch.setattr(Checkpoints, "stored", stored)
    patch.setattr(starting, "MOST_HANDED_OUT", 100)  # the partition is restored for ever: seen sooner than after 2,000
    patch.setattr(NodeWorker, "_lacks_output", lambda *given: False)


SNAPSHOT_BUGS = tuple(
    Bug(one.__name__.replace("_", " "), (one.__doc__ or "").strip(), one) for one in (snapshot_without_its_rows,)
)
