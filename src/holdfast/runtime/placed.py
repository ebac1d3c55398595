"""What a host keeps of a partition that is placed on it: a cache of what files and the log say. Runs on a node."""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.ids import BatchId, PartitionId
from holdfast.runtime.answers import Measures
from holdfast.runtime.inbox import Inbox
from holdfast.runtime.outbox import Outbox
from holdfast.runtime.versions import NO_BATCH, Commit, Pointer, VersionId


@dataclass(slots=True)
class Placed:
    """A partition that is on this host."""

    partition: PartitionId
    inbox: Inbox
    outbox: Outbox
    pointer: Pointer
    commits: dict[BatchId, Commit]
    handed: dict[PartitionId, BatchId] = field(default_factory=dict)
    """The last batch handed to each consumer on this host."""
    checkpoint: VersionId | None = None
    """The version that is safe in the store."""
    keep_from: BatchId | None = None
    """The first batch whose output is kept, where the driver says so; None: what the outbox finds needed."""
    pinned: frozenset[BatchId] = frozenset()
    """Batches whose state is kept until it is safe."""
    trimmed_at: BatchId = NO_BATCH
    measures: Measures = field(default_factory=Measures)

    @property
    def frontier(self) -> BatchId:
        """The last batch it has completed."""
        return max(self.commits, default=NO_BATCH)
