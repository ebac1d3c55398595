"""Where a node keeps its partitions' versions and outboxes: in memory, in a directory, in a journal. Runs on a node.

All keep to one contract (tests run one suite on them):

- a commit happens whole or not at all; of two attempts at one version the first wins, and the second gets the first's
  commit: retries and attempts at the same time are harmless;
- nothing changes in place; going back is pointing at another version;
- a commit in a lower epoch than the partition's pointer is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import pyarrow as pa

from holdfast.errors import CheckFailed, HoldfastError
from holdfast.ids import BatchId, Epoch, PartitionId
from holdfast.runtime.blocks import Block
from holdfast.runtime.state.versions import Commit, FileName, Pointer, SegmentRef, VersionChain, VersionId, chain_of

NewSegments = Mapping[str, Sequence[pa.Table]]
Sent = Mapping[PartitionId, Sequence[Block]]
"""The blocks with rows that a batch gave, by receiver."""


MOST_FILES = 256
"""A state in more files than this has the older half of them written again."""
_LEAST_LIVE = 4
"""A file of which less than the fourth part is still needed is written again, once it is worth it."""
_WORTH_BYTES = 2**20


class StaleEpoch(HoldfastError):
    """A write in an epoch that is over: a zombie's, a thawed node's, an old driver's."""


@dataclass(frozen=True, slots=True)
class Addition:
    """What a commit adds beside itself: new segments (of the file FRESH in its lists), and output blocks with rows."""

    segments: NewSegments = field(default_factory=dict)
    blocks: Sequence[Block] = ()


FRESH = FileName("")
"""Stands in a commit's lists for the file that the commit itself adds; the store puts the real name there."""


class VersionStore(Protocol):
    """What a partition host needs of the place where versions are."""

    def held_partitions(self) -> tuple[PartitionId, ...]:
        """Return the partitions of which there is something here."""
        ...

    def chain(self, partition: PartitionId) -> VersionChain | None:
        """Return the partition's chain; None where it is not here, or what it points at is lost."""
        ...

    def begin(self, partition: PartitionId, epoch: Epoch) -> None:
        """Let a partition go on in an epoch from where it stands, or from nothing; nothing happens where it does."""
        ...

    def point(self, partition: PartitionId, pointer: Pointer) -> None:
        """Adopt a version, or go back to one; a lower epoch than the present pointer's is refused."""
        ...

    def commit(self, commit: Commit, added: Addition) -> Commit:
        """Complete a batch; return the commit that counts, which is an earlier attempt's where there was one."""
        ...

    def load(self, commit: Commit) -> dict[str, tuple[pa.Table, ...]] | None:
        """Return the segments of a version's state; None where some are lost. Unchanged ones are the same objects."""
        ...

    def sent(self, commit: Commit) -> Sent | None:
        """Return what a batch gave; None where it is gone."""
        ...

    def forget(self, partition: PartitionId, states: set[VersionId], blocks_from: BatchId) -> None:
        """Keep the state of these versions and of the frontier, and the blocks of these batches on; drop the rest."""
        ...

    def drop(self, partition: PartitionId) -> None:
        """Lose everything of a partition."""
        ...

    def rewrite(self, commit: Commit) -> set[FileName]:
        """Name files of which so little is still needed that their segments should be written again."""
        ...

    def alone(self, partition: PartitionId) -> AbstractContextManager[None]:
        """Let one attempt at a time put a partition in place: of two, the later sees what the earlier did."""
        ...

    def kept_bytes(self, partitions: Collection[PartitionId] | None = None) -> int:
        """Return what the outboxes of these partitions hold here; None: all outboxes."""
        ...


def by_receiver(blocks: Iterable[Block]) -> Sent:
    """Put blocks in order by receiver: outboxes are asked for one receiver's at a time."""
    found: dict[PartitionId, list[Block]] = {}
    for block in blocks:
        found.setdefault(block.header.receiver, []).append(block)
    return found


def check_epoch(partition: PartitionId, epoch: Epoch, pointer: Pointer | None) -> None:
    """Refuse a write in an epoch that is over."""
    if pointer is not None and epoch < pointer.epoch:
        raise StaleEpoch(
            f"epoch {epoch} is over: {partition} is in epoch {pointer.epoch}",
            remedy="nothing was written; start again from the log",
        )


def with_file(commit: Commit, segments: FileName, blocks: FileName | None) -> Commit:
    """Put the names of the files a commit adds into its lists."""
    named = {
        name: tuple(SegmentRef(segments, ref.number) if ref.file == FRESH else ref for ref in refs)
        for name, refs in commit.segments.items()
    }
    return replace(commit, segments=named, blocks=blocks or commit.blocks)


def reach(
    chain: VersionChain, blocks_from: BatchId, states: set[VersionId]
) -> tuple[Pointer, set[VersionId], set[VersionId]]:
    """Say what to keep of a chain: where it then begins, the commits, and those among them whose state is kept."""
    last = chain.last
    with_state = {one.id for one in chain.commits.values() if one.id in states or one is last}
    kept = {one.id for one in chain.commits.values() if one.id in with_state or one.id.batch >= blocks_from}
    # Commits are found by their parents, so those between the earliest kept and the last stay too, without their state.
    earliest = min((one.batch for one in kept), default=chain.frontier)
    kept |= {one.id for one in chain.commits.values() if one.id.batch >= earliest}
    at = chain.pointer.at
    if at not in kept:
        # Its commits all lie after the old beginning, so they are of the pointer's own epoch.
        at = min(kept)
    return Pointer(chain.pointer.epoch, at), kept, with_state


def thin_files(live: Mapping[FileName, int], sizes: Mapping[FileName, int]) -> set[FileName]:
    """Name files to write again: by how much of them a state still needs, and how large they are."""
    thin = {name for name, size in sizes.items() if size > _WORTH_BYTES and live.get(name, 0) * _LEAST_LIVE < size}
    if len(live) > MOST_FILES:
        thin |= set(sorted(live, key=batch_of)[: len(live) // 2])
    return thin


def batch_of(name: str) -> int:
    """Return the batch a file belongs to; one being written beside its place belongs to none yet."""
    head = name.partition(".")[0]
    return int(head) if head.isdigit() else 2**62


def next_pointer(chain: VersionChain | None, pointer: Pointer | None, epoch: Epoch) -> Pointer | None:
    """Say what a partition's pointer becomes when an epoch begins; None: it stays."""
    if pointer is None:
        return Pointer(epoch, None)
    if pointer.epoch >= epoch or chain is None:
        return None
    return Pointer(epoch, None if chain.last is None else chain.last.id)


class _Outbox(NamedTuple):
    """What a batch gave, and how much that is."""

    sent: Sent
    nbytes: int


class MemoryStore:
    """Versions in memory, for tests, the simulator and a first try."""

    def __init__(self) -> None:
        self._pointers: dict[PartitionId, Pointer] = {}
        self._commits: dict[PartitionId, dict[VersionId, Commit]] = {}
        self._segments: dict[PartitionId, dict[FileName, list[pa.Table]]] = {}
        self._blocks: dict[PartitionId, dict[FileName, _Outbox]] = {}
        self._counter = 0

    def held_partitions(self) -> tuple[PartitionId, ...]:
        """See VersionStore."""
        return tuple(self._pointers)

    def chain(self, partition: PartitionId) -> VersionChain | None:
        """See VersionStore."""
        pointer = self._pointers.get(partition)
        return None if pointer is None else chain_of(pointer, self._commits.get(partition, {}))

    def begin(self, partition: PartitionId, epoch: Epoch) -> None:
        """See VersionStore."""
        held = self._pointers.get(partition)
        check_epoch(partition, epoch, held)
        pointer = next_pointer(self.chain(partition), held, epoch)
        if pointer is not None:
            self._pointers[partition] = pointer

    def point(self, partition: PartitionId, pointer: Pointer) -> None:
        """See VersionStore."""
        check_epoch(partition, pointer.epoch, self._pointers.get(partition))
        if pointer.at is not None and pointer.at not in self._commits.get(partition, {}):
            raise CheckFailed(f"{partition} has no version {pointer.at}", remedy="restore it from a checkpoint")
        self._pointers[partition] = pointer

    def commit(self, commit: Commit, added: Addition) -> Commit:
        """See VersionStore."""
        partition = commit.partition
        check_epoch(partition, commit.id.epoch, self._pointers.get(partition))
        commits = self._commits.setdefault(partition, {})
        if commit.id in commits:
            return commits[commit.id]
        self._counter += 1
        name = FileName(f"{commit.id.batch}.{commit.id.epoch}.{self._counter}")
        segments = [segment for table in added.segments.values() for segment in table]
        kept = with_file(commit, name, name if added.blocks else None)
        if segments:
            self._segments.setdefault(partition, {})[name] = segments
        if added.blocks:
            size = sum(block.rows.nbytes for block in added.blocks if block.rows is not None)
            self._blocks.setdefault(partition, {})[name] = _Outbox(by_receiver(added.blocks), size)
        commits[commit.id] = kept
        return kept

    def load(self, commit: Commit) -> dict[str, tuple[pa.Table, ...]] | None:
        """See VersionStore."""
        files = self._segments.get(commit.partition, {})
        if not all(name in files for name in commit.files):
            return None
        return {name: tuple(files[ref.file][ref.number] for ref in refs) for name, refs in commit.segments.items()}

    def sent(self, commit: Commit) -> Sent | None:
        """See VersionStore."""
        if commit.blocks is None:
            return {}
        held = self._blocks.get(commit.partition, {}).get(commit.blocks)
        return None if held is None else held.sent

    def forget(self, partition: PartitionId, states: set[VersionId], blocks_from: BatchId) -> None:
        """See VersionStore."""
        chain = self.chain(partition)
        if chain is None or not chain.commits:
            return
        pointer, kept, with_state = reach(chain, blocks_from, states)
        self._pointers[partition] = pointer
        commits = self._commits[partition]
        files = {name for one in with_state for name in commits[one].files}
        blocks = {commits[one].blocks for one in kept if one.batch >= blocks_from}
        self._commits[partition] = {one: commit for one, commit in commits.items() if one in kept}
        for of, needed in ((self._segments, files), (self._blocks, blocks)):
            held = of.get(partition, {})
            for name in [name for name in held if name not in needed]:
                del held[name]

    def drop(self, partition: PartitionId) -> None:
        """See VersionStore."""
        for of in (self._pointers, self._commits, self._segments, self._blocks):
            of.pop(partition, None)

    def rewrite(self, commit: Commit) -> set[FileName]:
        """See VersionStore: memory is not kept in files."""
        return set()

    def alone(self, partition: PartitionId) -> AbstractContextManager[None]:
        """See VersionStore: one process, one attempt."""
        return nullcontext()

    def kept_bytes(self, partitions: Collection[PartitionId] | None = None) -> int:
        """See VersionStore."""
        counted = self._blocks.keys() if partitions is None else self._blocks.keys() & set(partitions)
        return sum(held.nbytes for p in counted for held in self._blocks[p].values())
