"""One cycle of one node, as a value in and a value out: what a task of the cluster does. Runs on a node.

The driver says which partitions run where and up to where its log has them, what consumers have acknowledged and which
checkpoints are safe; the exchange brings blocks. The task places, hears, takes in, processes and hands back answers and
blocks. It never raises for anything a partition or a user's function does: a failed partition is an answer, and its
neighbours go on. Everything can be sent again: a cycle that ran twice, or on two workers at once, changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from holdfast.ids import BatchId, PartitionId
from holdfast.runtime.answers import Answer, Order, Ready
from holdfast.runtime.blocks import Block
from holdfast.runtime.host import PartitionHost
from holdfast.runtime.inbox import Delivery


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """That a consumer has completed a batch of what a partition sends it."""

    sender: PartitionId
    consumer: PartitionId
    frontier: BatchId


@dataclass(frozen=True, slots=True)
class Instructions:
    """What the driver's log says about one node."""

    orders: Sequence[Order]
    acknowledged: Sequence[Acknowledgement] = ()
    checkpointed: Sequence[tuple[PartitionId, BatchId]] = ()
    most: int | None = None
    """Batches per partition in this cycle; None: all that are complete."""


@dataclass(frozen=True, slots=True, eq=False)
class Report:
    """What came of a cycle on one node."""

    answers: Sequence[Answer]
    blocks: Sequence[Block]
    """What consumers on other nodes, and sinks, have not acknowledged."""
    dropped: int
    """Blocks that were duplicates, of an old epoch, or for nobody here."""


def run_cycle(host: PartitionHost, told: Instructions, blocks: Iterable[Block]) -> Report:
    """Run one cycle. The blocks are drained, whatever happens."""
    answers: list[Answer] = []
    placed = set()
    for order in told.orders:
        answer = host.take(order)
        answers.append(answer)
        if isinstance(answer, Ready):
            placed.add(order.partition)
    for partition in host.partitions:
        if partition not in placed:
            host.release(partition)
    for heard in told.acknowledged:
        host.acknowledge(heard.sender, heard.consumer, heard.frontier)
    for partition, batch in told.checkpointed:
        host.checkpointed(partition, batch)
    deliveries = host.deliver(blocks)
    answers += host.run(told.most)
    dropped = sum(delivery is not Delivery.QUEUED for delivery in deliveries)
    return Report(tuple(answers), tuple(host.outgoing()), dropped)
