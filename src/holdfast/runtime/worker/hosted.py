"""What a host keeps of a partition that is placed on it: a cache of what files and the log say. Runs on a node."""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.ids import BatchId, PartitionId
from holdfast.runtime.state.versions import NO_BATCH, Commit, Pointer, VersionChain
from holdfast.runtime.worker.inbox import Inbox

_FIRST = BatchId(0)


@dataclass(slots=True)
class HostedPartition:
    """A partition that is on this host."""

    partition: PartitionId
    inbox: Inbox
    pointer: Pointer
    commits: dict[BatchId, Commit]
    acknowledged: dict[PartitionId, BatchId | None]
    """What each consumer has completed, as the driver's log says; None: it is lost, and gets nothing now."""
    handed: dict[PartitionId, BatchId] = field(default_factory=dict)
    """The last batch handed to each consumer on this host."""
    keep_from: BatchId = _FIRST
    """The first batch whose output is kept."""
    pinned: frozenset[BatchId] = frozenset()
    """Batches whose state is kept, beside the last ones."""
    trimmed_at: BatchId = NO_BATCH

    frontier: BatchId = field(init=False)
    """The last batch it has completed."""

    def __post_init__(self) -> None:
        self.frontier = max(self.commits, default=NO_BATCH)

    def stand(self, chain: VersionChain) -> None:
        """Take over what the files say."""
        self.pointer, self.commits = chain.pointer, dict(chain.commits)
        self.frontier = chain.frontier

    def add(self, commit: Commit) -> None:
        """Complete the next batch."""
        self.frontier = commit.id.batch
        self.commits[self.frontier] = commit
