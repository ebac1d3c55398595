"""Versions of a partition's state: one per batch and epoch, each a list of segments that never change. Runs anywhere.

A *commit* is the record that a partition has completed a batch: which segments make its state, where its output is, the
watermark. It is written last and at once, so what it names is there; what no commit names never happened. Most segments
of a commit were written by earlier ones: a commit is a base and changes without either being copied.

A *pointer* says which commit a partition goes on from, and in which epoch. The pointer, the commits before it by their
parents and those after it in its epoch are the partition's *chain*. Going back to an earlier batch is writing a
pointer; commits of an abandoned chain, and those an old epoch still writes, are not on the chain.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NewType

from holdfast.errors import CheckFailed
from holdfast.ids import BatchId, Epoch, PartitionId
from holdfast.runtime.times import Watermark

NO_BATCH = BatchId(-1)
"""The frontier of a partition that has completed nothing."""

GONE = "@gone"
"""The state table of a version whose output is kept but whose state is not: loading it finds nothing."""

FileName = NewType("FileName", str)
"""A file of segments or blocks, within its partition."""


@dataclass(frozen=True, slots=True, order=True)
class VersionId:
    """One version of a partition's state."""

    batch: BatchId
    epoch: Epoch


@dataclass(frozen=True, slots=True, order=True)
class SegmentRef:
    """Where a run is: a file, and its number there."""

    file: FileName
    number: int


@dataclass(frozen=True, slots=True)
class Commit:
    """That a partition has completed a batch, and all that came of it."""

    partition: PartitionId
    id: VersionId
    parent: VersionId | None
    watermark: Watermark
    segments: Mapping[str, tuple[SegmentRef, ...]]
    blocks: FileName | None = None
    """Its output blocks that have rows; None: barriers alone."""
    late_rows: int = 0
    """Rows kept aside so far, over all batches of the chain."""
    rows_in: int = 0
    rows_out: int = 0
    """Rows taken and given so far, over all batches of the chain."""
    state_bytes: int = 0
    tentative: bool = False

    @property
    def files(self) -> set[FileName]:
        """The files its state is in."""
        return {ref.file for refs in self.segments.values() for ref in refs}


@dataclass(frozen=True, slots=True)
class Pointer:
    """Which version a partition goes on from (None: from nothing), and in which epoch."""

    epoch: Epoch
    at: VersionId | None


@dataclass(frozen=True, slots=True)
class VersionChain:
    """The commits that count for a partition, by batch."""

    pointer: Pointer
    commits: Mapping[BatchId, Commit]

    @property
    def frontier(self) -> BatchId:
        """The last batch completed."""
        return max(self.commits, default=NO_BATCH)

    @property
    def last(self) -> Commit | None:
        """The commit at the frontier."""
        return self.commits.get(self.frontier)


def chain_of(pointer: Pointer, commits: Mapping[VersionId, Commit]) -> VersionChain | None:
    """Find the chain; None where the version pointed at is not there."""
    found: dict[BatchId, Commit] = {}
    at = pointer.at
    if at is not None and at not in commits:
        return None
    earlier = at
    while earlier is not None and (commit := commits.get(earlier)) is not None:
        found[earlier.batch] = commit
        earlier = commit.parent
    while (commit := commits.get(VersionId(BatchId((at.batch if at else NO_BATCH) + 1), pointer.epoch))) is not None:
        if commit.parent != at:
            break
        at = commit.id
        found[at.batch] = commit
    return VersionChain(pointer, found)


def encode_record(record: Commit | Pointer) -> bytes:
    """Write a record as one chain of JSON with its CRC-32 before it."""
    text = json.dumps(_plain(record), separators=(",", ":"), ensure_ascii=False, sort_keys=True).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def decode_commit(data: bytes) -> Commit:
    """Read a commit; what is torn or changed is refused."""
    fields = _checked(data)
    return Commit(
        PartitionId.parse(fields["partition"]),
        _version(fields["id"]),
        None if fields["parent"] is None else _version(fields["parent"]),
        fields["watermark"],
        {name: tuple(SegmentRef(FileName(f), n) for f, n in refs) for name, refs in fields["segments"].items()},
        fields["blocks"],
        fields["late_rows"],
        fields["rows_in"],
        fields["rows_out"],
        fields["state_bytes"],
        fields["tentative"],
    )


def decode_pointer(data: bytes) -> Pointer:
    """Read a pointer; what is torn or changed is refused."""
    fields = _checked(data)
    return Pointer(Epoch(fields["epoch"]), None if fields["at"] is None else _version(fields["at"]))


def _plain(record: Commit | Pointer) -> dict[str, Any]:
    if isinstance(record, Pointer):
        return {"epoch": record.epoch, "at": _pair(record.at)}
    return {
        "partition": str(record.partition),
        "id": _pair(record.id),
        "parent": _pair(record.parent),
        "watermark": record.watermark,
        "segments": {name: [[ref.file, ref.number] for ref in refs] for name, refs in record.segments.items()},
        "blocks": record.blocks,
        "late_rows": record.late_rows,
        "rows_in": record.rows_in,
        "rows_out": record.rows_out,
        "state_bytes": record.state_bytes,
        "tentative": record.tentative,
    }


def _pair(version: VersionId | None) -> list[int] | None:
    return None if version is None else [version.batch, version.epoch]


def _version(pair: list[int]) -> VersionId:
    return VersionId(BatchId(pair[0]), Epoch(pair[1]))


def _checked(data: bytes) -> dict[str, Any]:
    check, _, text = data.removesuffix(b"\n").partition(b" ")
    if not data.endswith(b"\n") or check != b"%08x" % zlib.crc32(text):
        raise CheckFailed("a record is torn or changed", remedy="it counts as lost: restore from a checkpoint")
    fields: dict[str, Any] = json.loads(text)
    return fields
