"""Putting a partition's state back into a node's store from its snapshots. Runs on a node, also beside a running host.

Nothing counts before the last pointer is written: a restore that is cut off leaves a partition that is missing, and can
be done again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from holdfast.ids import Epoch
from holdfast.runtime.blocks import Block
from holdfast.runtime.state.snapshots import Snapshot, assemble
from holdfast.runtime.state.store import FRESH, Addition, VersionStore, check_epoch
from holdfast.runtime.state.versions import GONE, Commit, FileName, Pointer, SegmentRef, VersionChain, VersionId


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
    assert chain is not None, "it was written just now"
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
