"""How far back a partition's output is kept: nowhere, or to its consumers' last checkpoints. Runs on a node.

"Nowhere" still keeps what a consumer has not acknowledged: each exchange sends what its frontier has not passed, so
acknowledgements, not jobs, carry correctness. What a recovery must roll back follows from what is kept (design: one
mechanism, five policies).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from holdfast.ids import BatchId, PartitionId
from holdfast.runtime.blocks import LATE, SINK
from holdfast.runtime.versions import NO_BATCH


class Retention(StrEnum):
    """How far back an outbox is kept."""

    NOWHERE = "nowhere"
    CHECKPOINT = "checkpoint"


NOT_HEARD = BatchId(-2)
"""What is known of a consumer that is lost: nothing. It is sent nothing until it is heard of again."""


class Outbox:
    """What is known of the consumers of one partition's output."""

    def __init__(self, consumers: Iterable[PartitionId], retention: Retention) -> None:
        self.retention = retention
        self._acknowledged = dict.fromkeys(consumers, NO_BATCH)
        self._checkpointed = dict(self._acknowledged)

    @property
    def consumers(self) -> tuple[PartitionId, ...]:
        """Who takes what is sent."""
        return tuple(self._acknowledged)

    def acknowledged(self, consumer: PartitionId) -> BatchId:
        """The last batch a consumer says it has completed."""
        return self._acknowledged[consumer]

    def acknowledge(self, consumer: PartitionId, frontier: BatchId) -> None:
        """Hear that a consumer has completed a batch, and so all before it."""
        if consumer in self._acknowledged:
            self._acknowledged[consumer] = max(frontier, self._acknowledged[consumer])

    def hear(self, consumer: PartitionId, frontier: BatchId | None) -> None:
        """Hear exactly where a consumer stands; None: it is lost."""
        if consumer in self._acknowledged:
            self._acknowledged[consumer] = NOT_HEARD if frontier is None else frontier

    def checkpointed(self, consumer: PartitionId, batch: BatchId) -> None:
        """Hear that a consumer's state at a batch is safe, so that it will never ask for this batch again."""
        if consumer in self._checkpointed:
            self._checkpointed[consumer] = max(batch, self._checkpointed[consumer])

    def went_back(self, consumer: PartitionId, frontier: BatchId) -> None:
        """Hear that a consumer went back: what it had acknowledged beyond that counts no more."""
        if consumer in self._acknowledged:
            self._acknowledged[consumer] = min(frontier, self._acknowledged[consumer])

    def needed_from(self) -> BatchId:
        """The first batch that must be kept."""
        passed = [
            self._acknowledged[consumer]
            if self.retention is Retention.NOWHERE or consumer.operator in (SINK, LATE)
            else min(self._acknowledged[consumer], self._checkpointed[consumer])
            for consumer in self._acknowledged
        ]
        # Nobody takes it: nothing of it is needed.
        return BatchId(min(passed) + 1) if passed else BatchId(2**62)
