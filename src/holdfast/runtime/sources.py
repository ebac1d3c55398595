"""The source log: what came in, batch by batch, cut into blocks for the source's partitions. Runs on the driver.

A batch is in the log when its manifest is: content without a manifest never happened. A batch that is delivered again
finds its manifest and is not written again. A log belongs to one query and refuses another's. The watermark is in the
manifest: it is a function of the logged batches, the latest event so far less the source's allowed lateness, and never
goes back, so that every replay sees the same.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from holdfast.errors import BadInput, CheckFailed
from holdfast.ids import BatchId, Epoch, PartitionId
from holdfast.runtime.blocks import OUTSIDE, Block, Edge, Header, decode_blocks, encode_blocks
from holdfast.runtime.program import SourceProgram
from holdfast.runtime.routing import spread_by_key
from holdfast.runtime.schemas import conform
from holdfast.runtime.times import END_OF_TIME, NOT_YET, Watermark, event_times, highest, microseconds
from holdfast.runtime.versions import NO_BATCH


@dataclass(frozen=True, slots=True)
class Manifest:
    """That a batch is in the log."""

    source: str
    query: str
    batch: BatchId
    watermark: Watermark
    rows: tuple[int, ...]
    """Rows per partition of the source."""
    file: str | None
    """Where the rows are; None: there are none."""


class SourceLog(Protocol):
    """What came in from one source."""

    def append(self, batch: BatchId, rows: pa.Table, *, last: bool = False) -> Manifest:
        """Log a batch, the next one or one that is there already; `last`: nothing comes after it, windows close."""
        ...

    def manifest(self, batch: BatchId) -> Manifest | None:
        """Return a batch's manifest, if it is in the log."""
        ...

    def blocks(self, batch: BatchId, epoch: Epoch) -> list[Block]:
        """Return one block per partition of the source, with or without rows."""
        ...

    def trim(self, through: BatchId) -> None:
        """Drop the rows of batches that no recovery can need."""
        ...

    @property
    def frontier(self) -> BatchId:
        """The last batch in the log."""
        ...


def cut_batch(
    source: SourceProgram, rows: pa.Table, before: Watermark, *, last: bool
) -> tuple[list[pa.Table | None], Watermark]:
    """Check a batch's rows, spread them over the source's partitions and move the watermark on."""
    rows = conform(rows, source.schema, f"a batch of source {source.id}")
    watermark: Watermark = None
    if source.event_time is not None:
        watermark = highest(before, NOT_YET)
        times, known = event_times(rows, source.event_time)
        if known.any():
            lateness = microseconds(source.lateness) if source.lateness else 0
            watermark = highest(watermark, int(times[known].max()) - lateness)
        if last:
            watermark = END_OF_TIME
    try:
        return spread_by_key(rows, source.keys, source.parallelism), watermark
    except BadInput as error:
        raise error.placed(f"source {source.id}") from None


def blocks_of(source: SourceProgram, manifest: Manifest, rows: Sequence[Block], epoch: Epoch) -> list[Block]:
    """Return a block for each partition: with the rows logged for it, or the barrier alone."""
    found = {block.header.receiver.index: block for block in rows}
    return [
        found[index].stamped(epoch)
        if index in found
        else Block(_header(source, index, manifest.batch, epoch, manifest.watermark))
        for index in range(source.parallelism)
    ]


def _header(source: SourceProgram, index: int, batch: BatchId, epoch: Epoch, watermark: Watermark) -> Header:
    edge = Edge(OUTSIDE, source.id)
    return Header(edge, PartitionId(OUTSIDE, index), PartitionId(source.id, index), batch, epoch, watermark)


def _logged(source: SourceProgram, tables: Sequence[pa.Table | None], batch: BatchId, mark: Watermark) -> list[Block]:
    return [
        Block(_header(source, index, batch, Epoch(0), mark), rows)
        for index, rows in enumerate(tables)
        if rows is not None and rows.num_rows
    ]


def _check_next(source: SourceProgram, batch: BatchId, frontier: BatchId) -> None:
    if batch != frontier + 1:
        raise BadInput(
            f"batch {batch} cannot follow batch {frontier}", where=f"source {source.id}", remedy="batches come in order"
        )


class MemoryLog:
    """A source log in memory."""

    def __init__(self, source: SourceProgram, query: str) -> None:
        self._source, self._query = source, query
        self._manifests: dict[BatchId, Manifest] = {}
        self._blocks: dict[BatchId, list[Block]] = {}

    @property
    def frontier(self) -> BatchId:
        """See SourceLog."""
        return max(self._manifests, default=NO_BATCH)

    def append(self, batch: BatchId, rows: pa.Table, *, last: bool = False) -> Manifest:
        """See SourceLog."""
        if batch in self._manifests:
            return self._manifests[batch]
        _check_next(self._source, batch, self.frontier)
        before = self._manifests.get(BatchId(batch - 1))
        tables, mark = cut_batch(self._source, rows, None if before is None else before.watermark, last=last)
        counts = tuple(0 if table is None else table.num_rows for table in tables)
        self._blocks[batch] = _logged(self._source, tables, batch, mark)
        self._manifests[batch] = Manifest(self._source.id, self._query, batch, mark, counts, str(batch))
        return self._manifests[batch]

    def manifest(self, batch: BatchId) -> Manifest | None:
        """See SourceLog."""
        return self._manifests.get(batch)

    def blocks(self, batch: BatchId, epoch: Epoch) -> list[Block]:
        """See SourceLog."""
        manifest = self._manifests.get(batch)
        if manifest is None or batch not in self._blocks:
            raise _gone(self._source, batch)
        return blocks_of(self._source, manifest, self._blocks[batch], epoch)

    def trim(self, through: BatchId) -> None:
        """See SourceLog."""
        for batch in [batch for batch in self._blocks if batch <= through]:
            del self._blocks[batch]


class DirectoryLog:
    """A source log in a directory on durable storage; what it says is written is on the disk.

    DIR/identity, DIR/12.4f1-7.blocks, DIR/12.manifest. Manifests of trimmed batches stay: they are small, and the
    watermark goes on from them.
    """

    def __init__(self, source: SourceProgram, query: str, directory: Path) -> None:
        """Open or begin a log; one that belongs to another query is refused."""
        self._source, self._query, self._directory = source, query, Path(directory)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._attempts = itertools.count()
        identity = {"holdfast-source-log": 1, "source": source.id, "query": query}
        if not self._link("identity", json.dumps(identity).encode()):
            found = json.loads((self._directory / "identity").read_bytes())
            if found != identity:
                raise BadInput(
                    f"the log belongs to source {found.get('source')} of query {found.get('query')}, "
                    f"not to source {source.id} of query {query}",
                    where=str(directory),
                    remedy="give every query a directory of its own",
                )
        self._manifests = {
            manifest.batch: manifest
            for path in self._directory.glob("*.manifest")
            if (manifest := self._read(path)) is not None
        }

    @property
    def frontier(self) -> BatchId:
        """See SourceLog."""
        return max(self._manifests, default=NO_BATCH)

    def append(self, batch: BatchId, rows: pa.Table, *, last: bool = False) -> Manifest:
        """See SourceLog."""
        there = self.manifest(batch)
        if there is not None:
            return there
        _check_next(self._source, batch, self.frontier)
        before = self._manifests.get(BatchId(batch - 1))
        tables, mark = cut_batch(self._source, rows, None if before is None else before.watermark, last=last)
        counts = tuple(0 if table is None else table.num_rows for table in tables)
        manifest = Manifest(self._source.id, self._query, batch, mark, counts, None)
        content = None
        if sum(counts):
            content = self._directory / f"{batch}.{os.getpid():x}-{next(self._attempts):x}.blocks"
            _write_durably(content, encode_blocks(_logged(self._source, tables, batch, mark)))
            manifest = replace(manifest, file=content.name)
        first = self._link(f"{batch}.manifest", json.dumps(asdict(manifest)).encode())
        if not first:
            if content is not None:
                content.unlink(missing_ok=True)
            return self._need(batch)
        self._manifests[batch] = manifest
        self._sweep(batch)
        return manifest

    def manifest(self, batch: BatchId) -> Manifest | None:
        """See SourceLog."""
        if batch not in self._manifests:
            found = self._read(self._directory / f"{batch}.manifest")
            if found is not None:
                self._manifests[batch] = found
        return self._manifests.get(batch)

    def blocks(self, batch: BatchId, epoch: Epoch) -> list[Block]:
        """See SourceLog."""
        manifest = self._need(batch)
        rows: list[Block] = []
        if manifest.file is not None:
            try:
                with pa.memory_map(str(self._directory / manifest.file)) as file:
                    rows = decode_blocks(file.read_buffer())
            except FileNotFoundError:
                raise _gone(self._source, batch) from None
        return blocks_of(self._source, manifest, rows, epoch)

    def trim(self, through: BatchId) -> None:
        """See SourceLog."""
        for batch, manifest in self._manifests.items():
            if batch <= through and manifest.file is not None:
                (self._directory / manifest.file).unlink(missing_ok=True)

    def _need(self, batch: BatchId) -> Manifest:
        manifest = self.manifest(batch)
        if manifest is None:
            raise _gone(self._source, batch)
        return manifest

    def _read(self, path: Path) -> Manifest | None:
        try:
            fields = json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError:
            raise CheckFailed(
                "the manifest is damaged", where=str(path), remedy="restore it from a copy of the log"
            ) from None
        return Manifest(**{**fields, "rows": tuple(fields["rows"])})

    def _sweep(self, batch: BatchId) -> None:
        """Remove content of this and earlier batches that no manifest names: attempts that never happened."""
        named = {manifest.file for manifest in self._manifests.values()}
        for path in self._directory.glob("*.blocks"):
            if path.name not in named and int(path.name.partition(".")[0]) <= batch:
                path.unlink(missing_ok=True)

    def _link(self, name: str, data: bytes) -> bool:
        """Write a file to disk and give it its name, at once and only if there is none."""
        beside = self._directory / f".{name}.{os.getpid():x}-{next(self._attempts):x}"
        _write_durably(beside, data)
        try:
            os.link(beside, self._directory / name)
        except FileExistsError:
            return False
        finally:
            beside.unlink(missing_ok=True)
        _sync_directory(self._directory)
        return True


def _write_durably(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _gone(source: SourceProgram, batch: BatchId) -> CheckFailed:
    return CheckFailed(
        f"batch {batch} is not in the log", where=f"source {source.id}", remedy="it was trimmed or never logged"
    )
