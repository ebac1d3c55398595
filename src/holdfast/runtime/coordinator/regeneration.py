"""The part of the desired state that is about regenerators, for partitions that return. Pure; runs on the driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from holdfast.ids import BatchId, PartitionId
from holdfast.recovery.checkpoints import NOTHING
from holdfast.recovery.cluster_state import ClusterState, Start, batch_of
from holdfast.recovery.regeneration import regenerated, regenerators
from holdfast.runtime.messages import PartitionAssignment, RegeneratorAssignment

CHECKED_AHEAD = 512
"""Batches of which regenerators get the checksums at once, of sources that are read in place."""

Checks = tuple[tuple[BatchId, tuple[int, ...]], ...]


class Regenerations:
    """What returning partitions are given, and how far their regenerators have come."""

    def __init__(self, state: ClusterState, checks: Callable[[PartitionId, BatchId], Checks]) -> None:
        """`checks` gives the checksums of what a source partition has read in place after a batch."""
        self._state, self._checks = state, checks
        self._reached: dict[PartitionId, BatchId] = {}

    @property
    def active(self) -> bool:
        """Whether partitions return, and regenerators run or are being restored for them."""
        return bool(self._state.dropped) and bool(regenerators(self._state))

    def took(self, reached: Mapping[PartitionId, BatchId]) -> bool:
        """Take how far regenerators are; say whether they have moved."""
        moved = any(self._reached.get(p) != at for p, at in reached.items())
        self._reached.update(reached)
        return moved

    def assign(self, assignments: dict[PartitionId, PartitionAssignment]) -> dict[PartitionId, RegeneratorAssignment]:
        """Say in assignments what is regenerated for whom; return what everything upstream of these starts from."""
        state = self._state
        if not state.dropped:
            self._reached.clear()
            return {}
        gaps = regenerated(state)
        for p, senders in gaps.items():
            assignments[p] = replace(assignments[p], regenerate=senders)
        self._reached = {p: at for p, at in self._reached.items() if p in gaps}
        found = {}
        last = max((through for senders in gaps.values() for through in senders.values()), default=NOTHING)
        for p, snapshot in regenerators(state).items():
            at = batch_of(snapshot)
            start = Start(state.epoch, at, () if snapshot is None else state.checkpoints.chain(p, snapshot))
            skips = {batch: one for batch, one in state.quarantined.get(p, {}).items() if batch > at}
            checks, since, through = self._checked(p, at, last)
            found[p] = RegeneratorAssignment(start, through, skips, checks, since)
        return found

    def _checked(self, partition: PartitionId, start: BatchId, last: BatchId) -> tuple[Checks, BatchId, BatchId]:
        """Return checksums for the batches that come next, after which batch, and the last that may be read with them.

        Each process is at a batch of its own; the window begins at the lowest, so that all move on. One that has not
        reported yet, or has begun anew since, is before it: it waits until its report has moved the window back.
        """
        known = self._checks(partition, start)
        if not known:
            return (), start, last  # it is not read in place: there is nothing to compare with
        at = max(start, min(self._reached.values(), default=start))
        ahead = tuple(one for one in known if one[0] > at)
        if len(ahead) <= CHECKED_AHEAD:
            return ahead, at, last
        return ahead[:CHECKED_AHEAD], at, BatchId(ahead[CHECKED_AHEAD][0] - 1)
