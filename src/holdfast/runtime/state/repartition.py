"""The state of an operator for another number of partitions. Runs anywhere.

A partition has a range of hashes (decision 0005), and so has its state: every row of a keyed state has its key, so the
hash that routes rows says which of the new partitions it belongs to. It is the very function of `worker.routing`: a
row and the state of its key meet again.

Runs are cut, never put together: what holds for all rows of a run (they are of one pane) holds for its pieces. A new
partition has the pieces in the order of the old partitions, then of the runs, rows in the order they had. All rows of
a key come from one old partition, so the rows of a key are in the order in which they were kept.

What follows for outputs, against a run that never changed: per batch, an operator gives the same rows over all of its
partitions, apart from their order. Counts, sums of whole numbers, extremes, distinct values, the best rows, pairs and
count windows are exactly the same. Sums and averages of floating-point numbers are put together from other parts, and
may differ in their last bits; those of the same change are the same in every attempt. An operator further on that
depends on the order of rows of different keys (`apply`, count windows under another key) sees another order, as with
any change of parallelism. What an `apply` keeps is taken to be by key: one that counts over all rows of its partition
counts over those of the new one.

Watermarks: at one batch, all partitions of an operator stand at the same watermark, as the sources' partitions do.
Where they do not, the lowest holds: a window that is open somewhere is not lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from holdfast.errors import CheckFailed
from holdfast.ids import Epoch, PartitionId
from holdfast.runtime.state.snapshots import Snapshot
from holdfast.runtime.state.versions import Commit, FileName, SegmentRef, VersionId
from holdfast.runtime.tables import one_chunk
from holdfast.runtime.times import lowest
from holdfast.runtime.worker.routing import cut, hash_rows, partition_of

State: TypeAlias = Mapping[str, tuple[pa.Table, ...]]

_FILE = FileName("repartitioned")


def old_partitions(index: int, count: int, before: int) -> range:
    """Return the old partitions, among `before`, whose state a new one among `count` may have rows of.

    >>> [list(old_partitions(index, 2, 4)) for index in range(2)]
    [[0, 1], [2, 3]]
    >>> [list(old_partitions(index, 3, 2)) for index in range(3)]
    [[0], [0, 1], [1]]
    """
    return range(index * before // count, -(-(index + 1) * before // count))


def state_of(
    partition: PartitionId, count: int, states: Mapping[int, State], before: int, keys: Sequence[str]
) -> dict[str, tuple[pa.Table, ...]]:
    """Return the state of one new partition among `count`, from those of `old_partitions` among the `before` old ones.

    `keys` are the kernel's `state_keys`, in the order in which rows are routed by them.
    """
    found: dict[str, list[pa.Table]] = {}
    for old in old_partitions(partition.index, count, before):
        for name, runs in states[old].items():
            for run in runs:
                if not run.num_rows:
                    continue
                piece = _piece(run, partition, count, name, PartitionId(partition.operator, old), before, keys)
                if piece is not None:
                    found.setdefault(name, []).append(piece)
    for name, runs_of in found.items():
        for run in runs_of[1:]:
            if not run.schema.equals(runs_of[0].schema):
                raise CheckFailed(
                    f"the partitions of {partition.operator} have different columns in state table {name!r}",
                    remedy="keep its parallelism, or give it another id",
                )
    return {name: tuple(found[name]) for name in sorted(found)}


def repartition(
    operator: str, states: Sequence[State], count: int, keys: Sequence[str]
) -> list[dict[str, tuple[pa.Table, ...]]]:
    """Return the states of `count` partitions of an operator, from those of all its old ones, in their order."""
    named = [PartitionId.parse(f"{operator}[{index}]") for index in range(count)]
    before = dict(enumerate(states))
    return [state_of(partition, count, before, len(states), keys) for partition in named]


def snapshot_of(
    partition: PartitionId,
    count: int,
    olds: Mapping[int, tuple[Commit, State]],
    before: int,
    keys: Sequence[str],
    epoch: Epoch,
) -> Snapshot:
    """Return a whole snapshot of one new partition, from the commits of all old ones at one batch.

    States are looked at only of `old_partitions`; the others may be left empty. The counts of rows so far are shared
    out, so that their sums over the operator stay. It has no outbox: whoever begins from it begins with all others.
    """
    commits = [olds[index][0] for index in range(before)]
    batches = {commit.id.batch for commit in commits}
    if len(batches) != 1:
        raise CheckFailed(
            f"the partitions of {partition.operator} stand at different batches: {sorted(batches)}",
            remedy="begin from a checkpoint of all of them",
        )
    needed = old_partitions(partition.index, count, before)
    state = state_of(partition, count, {index: olds[index][1] for index in needed}, before, keys)
    commit = replace(
        commits[0],
        partition=partition,
        watermark=lowest(commit.watermark for commit in commits),
        late_rows=_share(sum(commit.late_rows for commit in commits), partition.index, count),
        rows_in=_share(sum(commit.rows_in for commit in commits), partition.index, count),
        rows_out=_share(sum(commit.rows_out for commit in commits), partition.index, count),
        tentative=any(commit.tentative for commit in commits),
    )
    return whole_snapshot(commit, state, epoch)


def whole_snapshot(commit: Commit, state: State, epoch: Epoch) -> Snapshot:
    """Return a snapshot of a partition that begins with this state: nothing before it, and no outbox."""
    number = 0
    refs: dict[str, tuple[SegmentRef, ...]] = {}
    segments: dict[SegmentRef, pa.Table] = {}
    for name, runs in sorted(state.items()):
        refs[name] = tuple(SegmentRef(_FILE, number + place) for place in range(len(runs)))
        segments.update(zip(refs[name], runs, strict=True))
        number += len(runs)
    begun = replace(
        commit,
        id=VersionId(commit.id.batch, epoch),
        parent=None,
        segments=refs,
        blocks=None,
        state_bytes=sum(run.nbytes for run in segments.values()),
    )
    return Snapshot(begun, None, segments)


def _piece(
    run: pa.Table,
    partition: PartitionId,
    count: int,
    name: str,
    old: PartitionId,
    before: int,
    keys: Sequence[str],
) -> pa.Table | None:
    """Return the rows of a run that belong to a partition; refuse a run whose rows did not belong where they were."""
    if not keys:
        raise CheckFailed(
            f"state table {name!r} of {old} has no key to spread its rows by",
            remedy="keep its parallelism, or give it another id",
        )
    hashes = hash_rows(run, keys)
    strayed = np.flatnonzero(partition_of(hashes, before) != old.index)
    if len(strayed):
        raise CheckFailed(
            f"row {int(strayed[0])} of state table {name!r} of {old} has a key of another partition: its state is not "
            f"split by {', '.join(keys)}",
            remedy="keep its parallelism, or give it another id",
        )
    pieces = cut(run, (partition_of(hashes, count) == partition.index).astype(np.int64), 2)
    return None if pieces[1] is None else one_chunk([pieces[1]])


def _share(total: int, index: int, count: int) -> int:
    return total // count + (index < total % count)
