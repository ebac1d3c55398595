"""Deliberate bugs of what snapshots hold. The simulator must find each; see bugs.py."""

from __future__ import annotations

from typing import Any

from holdfast.recovery.checkpoints import NOTHING, Checkpoints
from holdfast.recovery.starts import Starts
from holdfast.runtime.worker.worker import NodeWorker
from holdfast.simulation.recovery import starting
from simulation.bugs import Bug, Patch


def snapshot_without_its_rows(patch: Patch) -> None:
    """A node that has lost its outbox saves a durable snapshot without it, in the place of one that held the rows."""
    right = Checkpoints.stored

    def stored(self: Checkpoints, partition: Any, snapshot: Any, unpublished: Any = None) -> Any:
        return right(self, partition, snapshot)

    patch.setattr(Checkpoints, "stored", stored)
    patch.setattr(starting, "MOST_HANDED_OUT", 100)  # the partition is restored for ever: seen sooner than after 2,000
    patch.setattr(NodeWorker, "_lacks_output", lambda *given: False)


def any_version_stands(patch: Patch) -> None:
    """Where a snapshot is lost, another of its batch stands for it, whatever the recovery line counts on in it."""

    def serves(self: Starts, partition: Any) -> bool:
        checkpoints = self._state.checkpoints
        at = checkpoints.line[partition]
        return at == NOTHING or checkpoints.at(partition, at) is not None

    patch.setattr(Starts, "serves", serves)


SNAPSHOT_BUGS = tuple(
    Bug(one.__name__.replace("_", " "), (one.__doc__ or "").strip(), one)
    for one in (snapshot_without_its_rows, any_version_stands)
)
