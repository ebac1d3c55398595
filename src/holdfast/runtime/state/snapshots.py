"""Snapshots: a partition's state at a batch as bytes, for the store. A base, or the changes since another version.

Runs anywhere. A snapshot holds a commit's record and those of its segments that an earlier snapshot does not have; the
segments are known by where they were written. During a recovery it holds the outbox as well, so that a second failure
costs only the partition itself. States are Arrow, never pickles.

Putting a partition's state back into a node's store from its snapshots. Runs on a node, also beside a running host.

Nothing counts before the last pointer is written: a restore that is cut off leaves a partition that is missing, and can
be done again.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from holdfast.errors import CheckFailed
from holdfast.ids import BatchId, Epoch
from holdfast.runtime.blocks import Block, decode_blocks, encode_outbox
from holdfast.runtime.state.store import FRESH, Addition, VersionStore, check_epoch
from holdfast.runtime.state.versions import (
    GONE,
    Commit,
    FileName,
    Pointer,
    SegmentRef,
    VersionChain,
    VersionId,
    decode_commit,
    decode_segments,
    encode_record,
    encode_segments,
)


def install(store: VersionStore, snapshots: Sequence[Snapshot], epoch: Epoch) -> VersionChain:
    """Write a base and the changes since as one version, in an epoch; what was there of the partition goes."""
    snapshot = snapshots[-1]
    partition, batch = snapshot.commit.partition, snapshot.commit.id.batch
    state = assemble(snapshots)
    there = store.chain(partition)
    check_epoch(partition, epoch, None if there is None else there.pointer)
    store.drop(partition)
    store.point(partition, Pointer(epoch, None))
    sent_before = [block for one in snapshots for block in one.outbox]
    parent = _install_outbox(store, snapshot, sent_before, epoch)
    number, refs = 0, {}
    for name in sorted(state):
        refs[name] = tuple(SegmentRef(FRESH, number + place) for place in range(len(state[name])))
        number += len(state[name])
    blocks = [block for block in snapshot.outbox if block.header.batch == batch]
    # Without its outbox a snapshot does not know what the batch sent, which is not the same as barriers alone.
    sent = None if blocks else FileName(GONE)
    commit = replace(snapshot.commit, id=VersionId(batch, epoch), parent=parent, segments=refs, blocks=sent)
    segments = {name: list(state[name]) for name in sorted(state)}
    store.commit(commit, Addition(segments, [block for block in blocks if block.row_count]))
    store.point(partition, Pointer(epoch, commit.id))
    chain = store.chain(partition)
    if chain is None:  # somebody deletes files here: an answer, and no end of the process with all its partitions
        raise FileNotFoundError(f"the files of {partition} at batch {batch} vanished while it was restored")
    return chain


def _install_outbox(store: VersionStore, snapshot: Snapshot, outbox: Sequence[Block], epoch: Epoch) -> VersionId | None:
    """Commit the batches before the snapshot's, of which only the output is known; return the last of them."""
    parent = None
    for batch in sorted({block.header.batch for block in outbox} - {snapshot.commit.id.batch}):
        blocks = [block for block in outbox if block.header.batch == batch]
        commit = Commit(
            snapshot.commit.partition,
            VersionId(batch, epoch),
            parent,
            blocks[0].header.watermark,
            {GONE: (SegmentRef(FileName(GONE), 0),)},
        )
        store.commit(commit, Addition(blocks=[block for block in blocks if block.row_count]))
        parent = commit.id
    return parent


# -- snapshots ---------------------------------------------------------------------------------------------------------


SNAPSHOT_MAGIC = b"HFSNAPS1"
SIZES = struct.Struct("<8sQQQ")


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """A partition's state at a batch, or what is new in it since another version."""

    commit: Commit
    since: VersionId | None
    """The version whose snapshot must be there too; None: this one is whole."""
    segments: Mapping[SegmentRef, pa.Table]
    outbox: Sequence[Block] = ()
    """Blocks that consumers may still ask for."""

    @property
    def nbytes(self) -> int:
        """About how many bytes of rows it holds."""
        sent = [block.rows.nbytes for block in self.outbox if block.rows is not None]
        return int(sum([*sent, *(segment.nbytes for segment in self.segments.values())]))


def take_snapshot(
    commit: Commit, state: Mapping[str, tuple[pa.Table, ...]], since: Commit | None, outbox: Sequence[Block] = ()
) -> Snapshot:
    """Make a snapshot of a version: of all of it, or of what an earlier one does not have."""
    held = set() if since is None else {ref for refs in since.segments.values() for ref in refs}
    segments = {
        ref: segment
        for name, refs in commit.segments.items()
        for ref, segment in zip(refs, state[name], strict=True)
        if ref not in held
    }
    return Snapshot(commit, None if since is None else since.id, segments, tuple(outbox))


def assemble(snapshots: Sequence[Snapshot]) -> dict[str, tuple[pa.Table, ...]]:
    """Put a state together from a base and the changes since, oldest first."""
    segments: dict[SegmentRef, pa.Table] = {}
    for number, snapshot in enumerate(snapshots):
        before = snapshots[number - 1].commit.id if number else None
        if snapshot.since != before:
            raise CheckFailed(
                f"a snapshot of {snapshot.commit.partition} at batch {snapshot.commit.id.batch} does not follow the "
                "one before",
                remedy="give the base and every change after it, oldest first",
            )
        segments.update(snapshot.segments)
    last = snapshots[-1].commit
    if any(ref not in segments for refs in last.segments.values() for ref in refs):
        raise CheckFailed(
            f"the snapshots of {last.partition} at batch {last.id.batch} do not have all of its segments",
            remedy="they count as lost: take another checkpoint's",
        )
    return {name: tuple(segments[ref] for ref in refs) for name, refs in last.segments.items()}


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """Write a snapshot down; a large one better with `snapshot_files`."""
    head = snapshot_head(snapshot)
    # Each segment is a table of its own here: segments of one state table come in any order and number.
    segments = encode_segments({str(number): [segment] for number, segment in enumerate(snapshot.segments.values())})
    blocks = encode_outbox(snapshot.outbox)
    parts = (head, bytes(-(SIZES.size + len(head)) % 64), segments, bytes(-len(segments) % 64), blocks)
    return SIZES.pack(SNAPSHOT_MAGIC, len(head), len(segments), len(blocks)) + b"".join(parts)


def snapshot_head(snapshot: Snapshot) -> bytes:
    """Return what a snapshot begins with: the commit's record, the version it follows, where its segments were."""
    record = encode_record(snapshot.commit)
    since = b"" if snapshot.since is None else b"%d %d" % (snapshot.since.batch, snapshot.since.epoch)
    names = "\n".join(f"{ref.number} {ref.file}" for ref in snapshot.segments).encode()
    return b"%d %d %d\n" % (len(record), len(since), len(names)) + record + since + names


def decode_snapshot(data: pa.Buffer | bytes) -> Snapshot:
    """Read a snapshot without copying its segments; what is torn or changed is refused."""
    buffer = data if isinstance(data, pa.Buffer) else pa.py_buffer(data)
    if buffer.size < SIZES.size:
        raise _torn()
    magic, head_size, runs_size, blocks_size = SIZES.unpack_from(memoryview(buffer), 0)
    runs_at = SIZES.size + head_size + -(SIZES.size + head_size) % 64
    blocks_at = runs_at + runs_size + -runs_size % 64
    if magic != SNAPSHOT_MAGIC or blocks_at + blocks_size != buffer.size:
        raise _torn()
    head = bytes(memoryview(buffer)[SIZES.size : SIZES.size + head_size])
    try:
        commit, since, refs = _read_head(head)
    except ValueError:  # of the head, only the record has a checksum
        raise _torn() from None
    segments = decode_segments(buffer.slice(runs_at, runs_size))
    if len(segments) != len(refs):
        raise _torn()
    outbox = decode_blocks(buffer.slice(blocks_at, blocks_size)) if blocks_size else []
    return Snapshot(commit, since, dict(zip(refs, segments, strict=True)), tuple(outbox))


def _read_head(head: bytes) -> tuple[Commit, VersionId | None, list[SegmentRef]]:
    """Return what `snapshot_head` wrote."""
    sizes, _, rest = head.partition(b"\n")
    record_size, since_size, names_size = (int(size) for size in sizes.split())
    if len(rest) != record_size + since_size + names_size:
        raise _torn()
    commit = decode_commit(rest[:record_size])
    since_text = rest[record_size : record_size + since_size]
    refs = []
    for line in rest[record_size + since_size :].decode().splitlines():
        number, _, file = line.partition(" ")
        refs.append(SegmentRef(FileName(file), int(number)))
    since = None
    if since_text:
        batch, epoch = since_text.split()
        since = VersionId(BatchId(int(batch)), Epoch(int(epoch)))
    return commit, since, refs


def _torn() -> CheckFailed:
    return CheckFailed("a snapshot is torn or changed", remedy="it counts as lost: take another checkpoint's")
