"""Deliberate bugs of where snapshots come from and of the codes they are stored with. The simulator must find each."""

from __future__ import annotations

from typing import Any

from holdfast.spark import snapshot_store
from holdfast.spark.snapshot_store import NodeSnapshotStore
from holdfast.store.agent import acknowledging
from holdfast.store.client import tuning
from simulation.bugs import Bug, Patch


def folder_alone(patch: Patch) -> None:
    """Durable snapshots are read from the durable folder, and the ring is not asked."""

    def search(self: NodeSnapshotStore, spool: Any, name: str) -> None:
        self._searches.setdefault(name, snapshot_store._Search(snapshot_store._Place.STORAGE, self._clock()))
        self._read(name)

    def lost(self: NodeSnapshotStore, name: str) -> str | None:
        return f"{name} is not in the run's storage" if self._is_not_stored(name) else right(self, name)

    right = NodeSnapshotStore.lost
    patch.setattr(NodeSnapshotStore, "_search", search)
    patch.setattr(NodeSnapshotStore, "lost", lost)


def ring_asked_once(patch: Patch) -> None:
    """A durable snapshot that the ring lacks at the first look, and the folder lacks, is lost at once."""
    right = NodeSnapshotStore.lost

    def lost(self: NodeSnapshotStore, name: str) -> str | None:
        search = self._searches.get(name)
        if search is not None and search.place is snapshot_store._Place.RING_AGAIN:
            del self._searches[name]
            return f"{search.ring}; it is not in the run's storage"
        return right(self, name)

    patch.setattr(NodeSnapshotStore, "lost", lost)


def code_for_those_reached(patch: Patch) -> None:
    """An agent chooses its code for the peers that it reaches, however many the driver knows."""
    patch.setattr(tuning, "peers_to_code_for", lambda reached, known: reached)


def parity_not_wanted(patch: Patch) -> None:
    """A save with a code that was tuned is acknowledged when it can be read, whatever it survives."""
    patch.setattr(acknowledging, "losses_wanted", lambda saved, reached, known, *given: 0)


FRAGMENT_BUGS = tuple(
    Bug(bug.__name__, str(bug.__doc__), bug)
    for bug in (
        folder_alone,
        ring_asked_once,
        code_for_those_reached,
        parity_not_wanted,
    )
)
