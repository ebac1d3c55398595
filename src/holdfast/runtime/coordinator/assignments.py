"""The part of the desired state that is about placed partitions and their second copies. Pure; runs on the driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from holdfast.ids import BatchId, PartitionId
from holdfast.recovery.cluster_state import ClusterState
from holdfast.recovery.copies import keep_from
from holdfast.recovery.states import PLACED_STATES, PartitionState
from holdfast.runtime.messages import DesiredState, PartitionAssignment


def assign_primaries(
    state: ClusterState,
    logged: BatchId,
    attempt: Callable[[PartitionId], int],
    checks: Callable[[PartitionId, BatchId], tuple[tuple[BatchId, tuple[int, ...]], ...]],
) -> dict[PartitionId, PartitionAssignment]:
    """Return what every placed partition is to do, up to the last batch that is logged.

    `attempt` gives how often a partition that failed is tried by now; `checks` the checksums of what a source partition
    has read in place after a batch.
    """
    keep, limits = state.keep_from(), state.limits()
    state.handed_out = max(state.handed_out, logged)
    found = {}
    for partition in state.in_state(PLACED_STATES):
        one = state.partitions[partition]
        assert one.node is not None
        limit = limits.get(partition)
        if limit is not None:
            one.given = max(one.given, limit)
        marks = state.marks_for(partition)
        found[partition] = PartitionAssignment(
            one.node,
            one.start,
            one.frontier,
            keep.get(partition, one.kept_from),
            logged,
            marks,
            frozenset(mark for mark in marks if state.checkpoints.is_durable(mark)),
            state.checkpoints.last(partition),
            state.with_outbox(partition),
            one.forgotten,
            one.state in (PartitionState.PAUSED, PartitionState.PARKED),
            partition in state.parked,
            attempt(partition),
            state.skips_for(partition),
            checks=checks(partition, one.frontier),
            limit=limit,
        )
    return found


def assign_copies(
    state: ClusterState,
    primaries: Mapping[PartitionId, PartitionAssignment],
    checks: Callable[[PartitionId, BatchId], tuple[tuple[BatchId, tuple[int, ...]], ...]],
) -> dict[PartitionId, PartitionAssignment]:
    """Return what copies are to do: what their primaries do, up to where these are known to be.

    `checks` gives the checksums of what a source partition has read in place after a batch. A copy saves nothing, but
    keeps the states at marks: it may have to save them in its primary's place.
    """
    kept = keep_from(state)
    return {
        p: replace(
            primaries[p],
            node=copy.node,
            start=copy.start,
            frontier=copy.frontier,
            keep_from=kept[p],
            through=state.partitions[p].frontier,
            attempt=0,
            skips={batch: one for batch, one in state.quarantined.get(p, {}).items() if batch > copy.frontier},
            checks=checks(p, copy.frontier),
            replica=True,
        )
        for p, copy in state.copies.at.items()
    }


def copies_have_more(state: ClusterState, desired: DesiredState) -> bool:
    """Whether copies would have more to do with a new desired state than with this one."""
    for p, copy in state.copies.at.items():
        one = desired.copies.get(p)
        if (
            one is None
            or (one.node, one.start) != (copy.node, copy.start)
            or one.through < state.partitions[p].frontier
        ):
            return True
    return False
