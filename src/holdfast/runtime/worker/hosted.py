"""A partition on a host, and the blocks that it has received and not processed. Runs on a node.

What a host keeps of a partition is a cache of what files and the desired state say. Its inbox holds blocks by batch and
stream (incremental recovery, Alg. 1). A batch is complete when every input stream's block for it is there: the block is
its own barrier. A stream's barrier counts once; a second copy is dropped, whether the first is still queued or long
processed. (The paper's listing is corrected: batches are tested again after each one, and queued copies are dropped
too.) The inbox is lost with the process; senders still have what was in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from holdfast.ids import BatchId, PartitionId
from holdfast.runtime.blocks import Block, Edge
from holdfast.runtime.state.versions import NO_BATCH, Commit, Pointer, VersionChain

Stream = tuple[Edge, PartitionId]


class Delivery(StrEnum):
    """What became of a block that was delivered."""

    QUEUED = "queued"
    DUPLICATE = "duplicate"
    STALE = "stale"
    """Of an epoch that is over, or that this host has not entered."""
    NOT_HERE = "not here"
    """For a partition that is not on this host, or over an edge it does not have."""


class Inbox:
    """The blocks of one partition's next batches."""

    def __init__(self, streams: Iterable[Stream]) -> None:
        """Take the partition's input streams, in the order in which they are processed."""
        self.streams = tuple(streams)
        self._known = frozenset(self.streams)
        self._queued: dict[BatchId, dict[Stream, Block]] = {}
        self._bytes: dict[BatchId, int] = {}

    def put(self, block: Block, frontier: BatchId) -> Delivery:
        """Queue a block; a clean one takes the place of a queued tentative one."""
        head = block.header
        if head.stream not in self._known:
            return Delivery.NOT_HERE
        if head.batch <= frontier:
            return Delivery.DUPLICATE
        batch = self._queued.setdefault(head.batch, {})
        held = batch.get(head.stream)
        if held is not None and not (held.header.tentative and not head.tentative):
            return Delivery.DUPLICATE
        batch[head.stream] = block
        if block.rows is not None:
            self._bytes[head.batch] = self._bytes.get(head.batch, 0) + block.rows.nbytes
        return Delivery.QUEUED

    def complete(self, batch: BatchId) -> list[Block] | None:
        """Return a batch's blocks in the fixed order of the streams, once all are there."""
        found = self._queued.get(batch, {})
        return [found[stream] for stream in self.streams] if len(found) == len(self.streams) else None

    def done(self, batch: BatchId) -> None:
        """Forget what is processed."""
        for old in [number for number in self._queued if number <= batch]:
            del self._queued[old]
            self._bytes.pop(old, None)

    def clear(self) -> None:
        """Forget everything: the partition goes back."""
        self._queued.clear()
        self._bytes.clear()

    def missing(self, batch: BatchId) -> list[Stream]:
        """Return the streams whose barrier for a batch has not come."""
        found = self._queued.get(batch, {})
        return [stream for stream in self.streams if stream not in found]

    @property
    def blocks(self) -> int:
        """How many blocks wait."""
        return sum(len(batch) for batch in self._queued.values())

    @property
    def bytes(self) -> int:
        """How many bytes of rows wait."""
        return sum(self._bytes.values())


# -- hosted ------------------------------------------------------------------------------------------------------------


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
    held_back: bool = False
    """Whether it is a second copy: what it makes stays in its outbox, also for consumers on this host."""
    regenerated: frozenset[PartitionId] = frozenset()
    """Consumers that get from regenerators what is not kept here: nobody makes it again for them."""
    place: int = 0
    """Counts the places of partitions on this host: in a new one the inbox is empty."""

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
