"""Intermediate snapshots: operators that save more often than their segment's checkpoint moves. Pure.

FastRecover, sec. 3.3 (RSRFS): within a segment an operator may checkpoint a whole number of times as often as those it
feeds, if operators keep several checkpoints. A segment's *checkpoint* moves at the interval of its least frequent
operator, as if it were the interval of all: the recovery line stays level within the segment, and nothing more is
stored on its edges. An operator of a multiple m saves m - 1 times in between. Such a snapshot moves no checkpoint. It
is a later place to start from, for a partition that is lost, and for senders that have to make its inputs again:

- a partition starts from its latest snapshot that is early enough for each of its consumers: a consumer that starts
  again does so at that batch or later, a live one has completed that batch, or the snapshot holds the blocks between;
- where there is none, it starts from its checkpoint, which always serves.

So a sender keeps, besides its last snapshot, the latest ones that are not after the last snapshots of the others in its
segment: the several checkpoints of the paper. Partitions that are not deterministic take none: what they sent
since their checkpoint must not be made again unless all that consumed it goes back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.ids import BatchId, OperatorId, PartitionId
from holdfast.recovery.copies import held_back_by
from holdfast.recovery.strategy import RecoveryStrategy

if TYPE_CHECKING:
    from holdfast.recovery.checkpoints import SavedSnapshot
    from holdfast.recovery.cluster_state import ClusterState


@dataclass(slots=True)
class IntermediateMarks:
    """Batches at which operators save without a checkpoint that moves, and the snapshots that partitions count on."""

    open: dict[BatchId, frozenset[OperatorId]] = field(default_factory=dict)
    """Those that not all partitions of the operators have saved at."""
    started: dict[PartitionId, BatchId] = field(default_factory=dict)
    """What each partition started from last: it stays until the partition's checkpoint is past it."""

    def concerns(self, partition: PartitionId, batch: BatchId) -> bool:
        """Whether a partition saves at a batch."""
        return partition.operator in self.open.get(batch, ())

    def of(self, partition: PartitionId) -> list[BatchId]:
        """Return the batches at which a partition saves."""
        return [batch for batch, operators in self.open.items() if partition.operator in operators]

    def trim(self, line: Mapping[PartitionId, BatchId]) -> None:
        """Forget marks that checkpoints have passed, and starts."""
        self.open = {
            batch: operators
            for batch, operators in self.open.items()
            if any(at < batch for p, at in line.items() if p.operator in operators)
        }
        self.started = {p: batch for p, batch in self.started.items() if batch > line[p]}


def kept_between(held: Iterable[BatchId], after: BatchId, lasts: Collection[BatchId]) -> set[BatchId]:
    """Return the batches of a partition's snapshots that others of its segment may have it start from.

    `held` has all it has, `after` is its checkpoint, and `lasts` are the last snapshots of the segment's partitions.
    """
    later = sorted(batch for batch in held if batch > after)
    return {max(early) for last in lasts if (early := [batch for batch in later if batch <= last])}


def may_be_ahead(state: ClusterState, partition: PartitionId) -> bool:
    """Whether a partition may start from a snapshot that is later than its checkpoint, holding no output."""
    return (
        bool(state.segments.multiples)
        and state.graph.deterministic(partition)
        and state.settings.strategy is not RecoveryStrategy.SOURCE_REPLAY
    )


def latest_start(
    state: ClusterState,
    partition: PartitionId,
    otherwise: SavedSnapshot | None,
    starts: Mapping[PartitionId, BatchId],
) -> SavedSnapshot | None:
    """Return the latest snapshot that serves all consumers of a partition that starts again.

    `otherwise`: one that does; `starts`: where partitions start again, all its consumers that do among them.
    """
    if not may_be_ahead(state, partition):
        return otherwise
    found = [
        one
        for one in state.checkpoints.snapshots(partition)
        if (otherwise is None or one.batch > otherwise.batch)
        and one == state.checkpoints.at(partition, one.batch)  # the version that stands for its batch
        and one.batch <= state.partitions[partition].acknowledged  # what it kept aside up to there is written
    ]
    needed = _needed(state, partition, starts)
    for one in sorted(found, reverse=True):
        first = one.batch + 1 if one.outbox_from is None else min(one.outbox_from, one.batch + 1)
        if first <= min(needed, default=first):
            return one
    return otherwise


def _needed(state: ClusterState, partition: PartitionId, starts: Mapping[PartitionId, BatchId]) -> list[BatchId]:
    """Return the first batches of a partition's output that its consumers, their copies and its sink will ask for."""
    line, consumers = state.checkpoints.line, state.graph.consumers(partition)
    needed = []
    for consumer in consumers:
        if consumer in state.dropped:
            continue
        at = starts.get(consumer, state.partitions[consumer].frontier)
        if state.segments.crosses(partition, consumer) or state.settings.tentative:
            at = min(at, line[consumer])  # its snapshots hold that: what is lost there later takes nobody back
        needed.append(BatchId(at + 1))
    if partition in state.published:
        needed.append(BatchId(state.published[partition] + 1))
    return needed + held_back_by(state, consumers)
