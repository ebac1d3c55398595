"""What must roll back with what has failed: it follows from what was kept (design: one idea under five papers). Pure.

A partition that starts again from a batch needs its inputs after it. A sender whose outbox still has them replays; one
whose outbox has not must roll back to a checkpoint itself and regenerate them, and so on, up to senders that kept them,
at worst to the sources' log. A nondeterministic partition may regenerate other batches than it sent before, so
everything downstream of it rolls back too that may have seen these: what is behind a held edge has not (`held_edges`).

Partitions roll back to their checkpoints, or to later snapshots that serve their consumers as well (`intermediate`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

from holdfast.ids import BatchId, PartitionId
from holdfast.recovery.graph import PartitionGraph
from holdfast.recovery.recovery_line import Line

StartAt: TypeAlias = Callable[[PartitionId, Mapping[PartitionId, BatchId]], BatchId]
"""The batch that a partition would start from, given those of its consumers that start again."""
MayHaveSeen: TypeAlias = Callable[[PartitionId, PartitionId, BatchId], bool]
"""Whether a consumer may have been given blocks of a sender that are later than a batch."""


def partitions_to_roll_back(
    graph: PartitionGraph,
    lost: Mapping[PartitionId, BatchId],
    restoring: Mapping[PartitionId, BatchId],
    kept_from: Callable[[PartitionId], BatchId],
    line: Line,
    live: Collection[PartitionId],
    dropped: Collection[PartitionId] = (),
    start_at: StartAt | None = None,
    nondeterministic: Callable[[PartitionId], bool] | None = None,
    may_have_seen: MayHaveSeen = lambda sender, consumer, batch: True,
) -> set[PartitionId]:
    """Return the placed partitions that must roll back to a checkpoint.

    `lost` and `restoring` say from which batch each such partition will start (the one it completes first is the next),
    `kept_from` the first batch that a live partition's outbox still has. A rollback is to the partition's own
    checkpoint, which the recovery line has. For `dropped` ones no sender rolls back: regenerators run beside it.
    A partition that is being restored may have advanced in a cycle that was never reported: where it has received
    blocks that will be regenerated differently, it starts again as well. Those are the blocks of partitions that are
    `nondeterministic` (not given: as the graph says), and of what has taken in some of them (`may_have_seen`).

    With `start_at`, where operators have snapshots that are later than their checkpoints, it decides where lost and
    rolled-back partitions start. That depends on where their consumers start, so each one more that rolls back may
    take the starts of its senders further back; one that is being restored may have started too late for it.
    """
    nondeterministic = nondeterministic or (lambda p: not graph.deterministic(p))
    back: set[PartitionId] = set()
    while True:
        starts = starts_again(graph, {*lost, *back}, start_at or (lambda p, _: lost.get(p, line[p])))
        starts |= {p: at for p, at in restoring.items() if p not in back}
        more: set[PartitionId] = set()
        for partition, at in starts.items():
            for sender in graph.senders(partition) if partition not in dropped else ():
                placed = sender in live or (start_at is not None and sender in restoring)
                if placed and sender not in lost and sender not in back and kept_from(sender) > at + 1:
                    more.add(sender)
        differing: set[PartitionId] = set()
        for partition in graph.order:
            if (partition in lost or partition in back) and (partition in differing or nondeterministic(partition)):
                at = starts[partition]
                differing.update(one for one in graph.consumers(partition) if may_have_seen(partition, one, at))
        more.update(one for one in differing if one in live or one in restoring)
        if more <= back:
            return back
        back |= more


def starts_again(
    graph: PartitionGraph, partitions: Collection[PartitionId], start_at: StartAt
) -> dict[PartitionId, BatchId]:
    """Return where partitions start that start again: consumers first, as their senders have to serve them."""
    starts: dict[PartitionId, BatchId] = {}
    for partition in reversed(graph.order):
        if partition in partitions:
            starts[partition] = start_at(partition, starts)
    return starts
