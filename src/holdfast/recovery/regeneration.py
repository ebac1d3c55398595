"""What is kept for partitions that wait is bounded: beyond, it is dropped, and regenerated when they return. Pure.

A partition *waits* while it is lost or parked, or gets no input because a partition upstream is. Its senders keep their
blocks for it from its checkpoint on. Once all outboxes together hold more than the bound, the blocks that are kept for
those that wait are dropped: their senders trim, and move their checkpoints, without them. Nothing is lost by that. The
last durable checkpoint is one batch for all partitions, it does not move before the waiting ones have come to a later
one, and the batch log reaches back to it: from there everything upstream of a partition can be made again.

When the partition is at work again, its own process runs *regenerators*: copies of all partitions upstream of it,
restored from the durable checkpoint, beside the live ones. They read the log, send to each other and to the returning
partitions of that process alone, and publish, save and report nothing. So no live partition rolls back, sends anything
twice or has more to do. Regeneration ends at the first batch that the live sender still has: senders keep all blocks
from the moment on at which the partition is placed. It needs deterministic operators all the way up; what comes from
others is never dropped.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from holdfast.ids import BatchId, PartitionId
from holdfast.recovery.checkpoints import NOTHING
from holdfast.recovery.recovery_line import edge_holds
from holdfast.recovery.states import PLACED_STATES, PartitionState
from holdfast.recovery.strategy import RecoveryStrategy

if TYPE_CHECKING:
    from holdfast.recovery.checkpoints import SavedSnapshot
    from holdfast.recovery.cluster_state import ClusterState

_AWAY = frozenset({PartitionState.LOST, PartitionState.PARKED})


def waiting(state: ClusterState) -> set[PartitionId]:
    """Return the partitions that wait: lost or parked ones, those that pause for them, and all downstream of these."""
    found: set[PartitionId] = set()
    for p in state.graph.order:
        one = state.partitions[p].state
        idle = one is PartitionState.PAUSED and not any(state.available(q) for q in state.graph.queries_of(p))
        if one in _AWAY or idle or not found.isdisjoint(state.graph.senders(p)):
            found.add(p)
    return found


def to_drop(state: ClusterState, kept_bytes: int) -> list[PartitionId]:
    """Return the waiting partitions for which senders keep nothing more from now on.

    Those past whose checkpoint that of a sender has moved: in a short wait it is cheaper to replay. Members of a branch
    are left out: it goes on from where its clean line stands, by what is kept for that.
    """
    settings = state.settings
    # At the bound of all outboxes too: else live queries pause there, and nothing ever comes up to the other one.
    bound = min(settings.waiting_bytes, settings.buffer_bytes)
    if kept_bytes <= bound or settings.strategy is RecoveryStrategy.SOURCE_REPLAY:
        return []
    away, line = waiting(state), state.checkpoints.line
    return [
        p
        for p in state.graph.order
        if p in away
        and p not in state.dropped
        and any(line[s] > line[p] for s in state.graph.senders(p))
        and can_be_dropped(state, p)
    ]


def can_be_dropped(state: ClusterState, partition: PartitionId) -> bool:
    """Whether what is kept for one that waits may be dropped, once the checkpoint of a sender is past its own."""
    replays = state.settings.strategy is not RecoveryStrategy.SOURCE_REPLAY
    return replays and partition not in state.branches.now.members and can_be_regenerated(state, partition)


def can_be_regenerated(state: ClusterState, partition: PartitionId) -> bool:
    """Whether what a partition takes in after its checkpoint can be made again, from the durable one."""
    certain = all(state.graph.deterministic(p) for p in state.graph.upstream(partition))
    return certain and _base(state, [partition]) is not None


def _base(state: ClusterState, returning: Iterable[PartitionId]) -> dict[PartitionId, BatchId] | None:
    """Return where everything upstream of these partitions starts: at one batch, a durable one that is whole."""
    checkpoints, upstream = state.checkpoints, {one: None for p in returning for one in state.graph.upstream(p)}
    reach = min(min(checkpoints.line[p], state.partitions[p].frontier) for p in returning)
    for line in (checkpoints.durable_line, checkpoints.line_before):
        if line is None or len({line[p] for p in upstream}) > 1 or any(line[p] > reach for p in upstream):
            continue
        if all(line[p] == NOTHING or checkpoints.at(p, line[p]) is not None for p in upstream):
            return {p: line[p] for p in upstream}
    return None


def regenerated(state: ClusterState) -> dict[PartitionId, dict[PartitionId, BatchId]]:
    """Return the placed partitions that get blocks by regeneration: of which senders, and through which batch.

    While such a partition waits, it is to request nothing of these senders; regenerators run once it does not.
    """
    found: dict[PartitionId, dict[PartitionId, BatchId]] = {}
    for p in state.dropped:
        mine = state.partitions[p]
        if mine.state not in PLACED_STATES:
            continue
        gaps = {
            s: BatchId(state.partitions[s].kept_from - 1)
            for s in state.graph.senders(p)
            if state.partitions[s].kept_from > mine.frontier + 1
        }
        if gaps:
            found[p] = gaps
    return found


def regenerators(state: ClusterState) -> dict[PartitionId, SavedSnapshot | None]:
    """Return what everything upstream of returning partitions starts from, if any return; None: from nothing."""
    returning = _returning(state)
    line = _base(state, returning) if returning else None
    return {p: state.checkpoints.at(p, at) for p, at in (line or {}).items()}


def _returning(state: ClusterState) -> list[PartitionId]:
    """Return the partitions that get blocks by regeneration now."""
    away = waiting(state)
    return [p for p in regenerated(state) if p not in away]


def returned(state: ClusterState) -> list[PartitionId]:
    """Return the partitions for which all is kept again, by the recovery line and by outboxes.

    Outboxes reach back to the partition's checkpoint, where they are kept that far: not before it has moved past what
    was dropped. Lost until then, the partition has that regenerated again, and no sender rolls back.
    """
    checkpoints, away = state.checkpoints, waiting(state)

    def is_kept(s: PartitionId, p: PartitionId) -> bool:
        line, at = checkpoints.line, state.partitions[p].frontier
        if state.keeps_everything or state.plan.keeps(s, p):
            at = min(at, line[p])
        reaches = state.partitions[s].kept_from <= at + 1
        return reaches and edge_holds(state.graph, s, line[s], line[p], checkpoints.outbox_from)

    return [
        p
        for p in sorted(state.dropped)
        if p not in away
        and state.partitions[p].state is PartitionState.RUNNING
        and all(is_kept(s, p) for s in state.graph.senders(p))
    ]


def beyond_repair(state: ClusterState) -> list[PartitionId]:
    """Return the returning partitions whose inputs cannot be made again: both durable checkpoints are damaged."""
    returning = _returning(state)
    return returning if returning and _base(state, returning) is None else []


def regeneration_problems(state: ClusterState) -> list[str]:
    """Say what is wrong with what was dropped; nothing when all is right. For tests and checkers."""
    found = []
    for p in sorted(state.dropped):
        uncertain = [one for one in state.graph.upstream(p) if not state.graph.deterministic(one)]
        if uncertain:
            found.append(f"what is kept for {p} was dropped, and {uncertain[0]} may make other rows again")
    return found
