"""What must roll back with what has failed: it follows from what was kept (design: one idea under five papers). Pure.

A partition that starts again from a batch needs its inputs after it. A sender whose outbox still has them replays; one
whose outbox has not must roll back to a checkpoint itself and regenerate them, and so on, up to senders that kept them,
at worst to the sources' log. A nondeterministic partition may regenerate other batches than it sent before, so
everything downstream of it rolls back too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from holdfast.ids import BatchId, PartitionId
from holdfast.recovery.graph import PartitionGraph
from holdfast.recovery.recovery_line import Line


def partitions_to_roll_back(
    graph: PartitionGraph,
    lost: Mapping[PartitionId, BatchId],
    restoring: Mapping[PartitionId, BatchId],
    kept_from: Callable[[PartitionId], BatchId],
    line: Line,
    live: Collection[PartitionId],
    dropped: Collection[PartitionId] = (),
) -> set[PartitionId]:
    """Return the placed partitions that must roll back to a checkpoint.

    `lost` and `restoring` say from which batch each such partition will start (the one it completes first is the next),
    `kept_from` the first batch that a live partition's outbox still has. A rollback is to the partition's own
    checkpoint, which the recovery line has. For `dropped` ones no sender rolls back: regenerators run beside it.
    A partition that is being restored may have advanced in a cycle that was never reported: where it has received
    blocks that will be regenerated differently, it starts again as well.
    """
    back: set[PartitionId] = set()
    starts = {**lost, **restoring}
    waiting = list(starts)
    while waiting:
        partition = waiting.pop()
        needed = BatchId(starts[partition] + 1)
        for sender in graph.senders(partition):
            if partition not in dropped and sender in live and sender not in starts and kept_from(sender) > needed:
                back.add(sender)
                starts[sender] = line[sender]
                waiting.append(sender)
        if not graph.deterministic(partition) and (partition in lost or partition in back):
            for consumer in graph.consumers(partition):
                if (consumer in live or consumer in restoring) and consumer not in back:
                    back.add(consumer)
                    starts[consumer] = line[consumer]
                    waiting.append(consumer)
    return back
