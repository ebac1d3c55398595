"""Recovery lines: from which checkpoint each partition would start, and which sets may move on alone. Pure.

A *recovery line* gives every partition the batch of its checkpoint. Partitions that move to a mark together are a
*set*; all of them is one case, and then the line is the same batch everywhere. A set that moves on while others wait
leaves their batches where they are. What makes a line consistent is what an edge keeps. For a sender at batch s and
its consumer at batch c:

- s = c: the sender makes all blocks after c again, or sends them for the first time;
- s < c: the sender makes blocks again that the consumer has processed. They must be the same: it is deterministic;
- s > c: the sender does not make the blocks from c + 1 to s again: its snapshot at s holds them, or they were dropped
  at a bound, and regenerators make them beside the sender (`regeneration`).

A line that holds on every edge can be restored whatever is lost: the sources have the log after their batches, every
other partition gets its inputs from the snapshots and the replays of its senders.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

from holdfast.ids import BatchId, PartitionId
from holdfast.recovery.graph import PartitionGraph

Line: TypeAlias = Mapping[PartitionId, BatchId]
Reach: TypeAlias = Callable[[PartitionId, BatchId], BatchId | None]
"""The first batch of output that a partition's snapshot at a batch holds; None: it holds none."""


def edge_holds(
    graph: PartitionGraph, sender: PartitionId, at: BatchId, consumer_at: BatchId, outbox_from: Reach
) -> bool:
    """Whether a sender that starts at a batch can serve a consumer that starts at another."""
    if at < consumer_at:
        return graph.deterministic(sender)
    if at == consumer_at:
        return True
    first = outbox_from(sender, at)
    return first is not None and first <= consumer_at + 1


def is_consistent(graph: PartitionGraph, line: Line, outbox_from: Reach, dropped: Collection[PartitionId] = ()) -> bool:
    """Whether every partition can start at its batch and get its inputs; `dropped` ones get them regenerated."""
    return all(
        edge_holds(graph, sender, line[sender], line[consumer], outbox_from)
        or (consumer in dropped and line[sender] > line[consumer])
        for sender in graph.order
        for consumer in graph.consumers(sender)
    )


def set_that_moves(
    graph: PartitionGraph, line: Line, targets: Line, outbox_from: Reach, dropped: Collection[PartitionId] = ()
) -> dict[PartitionId, BatchId]:
    """Return the largest set of partitions that may move their checkpoints, all others staying, and where to.

    `targets`: a later batch, of which the snapshot is safe, for each partition that has one. A partition that cannot
    move keeps back only senders whose snapshots do not hold what it needs, and what consumes rows that may come out
    differently; those for which nothing is kept any more (`dropped`) keep no sender back. The line is consistent
    before, and it is after.
    """
    moving = {p: at for p, at in targets.items() if at > line[p]}
    unsettled = bool(moving)
    while unsettled:
        unsettled = False
        for sender in graph.order:
            for consumer in graph.consumers(sender):
                at, consumer_at = moving.get(sender, line[sender]), moving.get(consumer, line[consumer])
                if consumer in dropped and at > consumer_at:
                    continue
                if not edge_holds(graph, sender, at, consumer_at, outbox_from):
                    blamed = sender if at > consumer_at else consumer
                    if blamed not in moving:
                        return {}  # a snapshot of the line is lost: first another line is restored
                    del moving[blamed]
                    unsettled = True
    return moving
