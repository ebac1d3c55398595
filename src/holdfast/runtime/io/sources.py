"""The source log: what came in, batch by batch, cut into blocks for the source's partitions. Runs on the driver.

A batch is in the log when its manifest is: content without a manifest never happened. A batch that is delivered again
finds its manifest and is not written again. A log belongs to one query and refuses another's. The watermark is in the
manifest: it is a function of the logged batches, the latest event so far less the source's allowed lateness, and never
goes back, so that every replay sees the same. Nodes read the log; pieces of a batch may be written by nodes too, then
the driver commits them (see source_pieces.py).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import pyarrow as pa

from holdfast.durable_files import link_durably
from holdfast.errors import BadInput, CheckFailed
from holdfast.ids import BatchId, Epoch, OperatorId, PartitionId
from holdfast.runtime.blocks import OUTSIDE, Block, Edge, Header
from holdfast.runtime.io.source_pieces import Piece, cut_rows, piece_of, read_pieces, write_piece
from holdfast.runtime.program import Program, SourceProgram
from holdfast.runtime.schemas import conform
from holdfast.runtime.state.versions import NO_BATCH
from holdfast.runtime.times import END_OF_TIME, NOT_YET, Watermark, highest, microseconds

_VERSION = 2
MANIFESTS_KEPT = 1000
"""Of trimmed batches, so many manifests stay."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """That a batch is in the log."""

    source: str
    query: str
    batch: BatchId
    watermark: Watermark
    rows: tuple[int, ...]
    """Rows per partition of the source."""
    pieces: tuple[Piece, ...]
    """Where the rows are, in their order."""


class SourceLog(Protocol):
    """What came in from one source."""

    def append(self, batch: BatchId, rows: pa.Table, *, last: bool = False) -> Manifest:
        """Log a batch, the next one or one that is there already; `last`: nothing comes after it, windows close."""
        ...

    def manifest(self, batch: BatchId) -> Manifest | None:
        """Return a batch's manifest, if it is in the log."""
        ...

    def block(self, batch: BatchId, index: int, epoch: Epoch) -> Block:
        """Return a batch's block for one partition of the source, with or without rows."""
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


def watermark_after(source: SourceProgram, before: Watermark, latest: int | None, *, last: bool) -> Watermark:
    """Move a source's watermark on by the latest event of a batch; None where the source has no event time."""
    if source.event_time is None:
        return None
    if last:
        return END_OF_TIME
    lateness = microseconds(source.lateness) if source.lateness else 0
    return highest(highest(before, NOT_YET), None if latest is None else latest - lateness)


def _block(source: SourceProgram, manifest: Manifest, index: int, epoch: Epoch, rows: pa.Table | None) -> Block:
    """Return the block for one partition: with the rows logged for it, or the barrier alone."""
    sender, receiver = PartitionId(OUTSIDE, index), PartitionId(source.id, index)
    header = Header(Edge(OUTSIDE, source.id), sender, receiver, manifest.batch, epoch, manifest.watermark)
    return Block(header, rows)


def _check_next(source: SourceProgram, batch: BatchId, frontier: BatchId, before: Manifest | None) -> None:
    if batch != frontier + 1:
        raise BadInput(
            f"batch {batch} cannot follow batch {frontier}", where=f"source {source.id}", remedy="batches come in order"
        )
    _check_open(source, before)


def _check_open(source: SourceProgram, last: Manifest | None) -> None:
    if last is not None and last.watermark == END_OF_TIME:
        raise BadInput(
            f"was closed with batch {last.batch}: all windows are, and rows that come now would all be late",
            where=f"source {source.id}",
            remedy="begin in another directory; a run that is to go on later must not be closed",
        )


class MemoryLog:
    """A source log in memory."""

    def __init__(self, source: SourceProgram, query: str) -> None:
        self._source, self._query = source, query
        self._manifests: dict[BatchId, Manifest] = {}
        self._rows: dict[BatchId, list[pa.Table | None]] = {}

    @property
    def frontier(self) -> BatchId:
        """See SourceLog."""
        return max(self._manifests, default=NO_BATCH)

    def append(self, batch: BatchId, rows: pa.Table, *, last: bool = False) -> Manifest:
        """See SourceLog."""
        if batch in self._manifests:
            return self._manifests[batch]
        before = self._manifests.get(BatchId(batch - 1))
        _check_next(self._source, batch, self.frontier, before)
        tables, latest = cut_rows(self._source, rows)
        mark = watermark_after(self._source, None if before is None else before.watermark, latest, last=last)
        counts = tuple(0 if table is None else table.num_rows for table in tables)
        self._rows[batch] = tables
        self._manifests[batch] = Manifest(self._source.id, self._query, batch, mark, counts, ())
        return self._manifests[batch]

    def manifest(self, batch: BatchId) -> Manifest | None:
        """See SourceLog."""
        return self._manifests.get(batch)

    def block(self, batch: BatchId, index: int, epoch: Epoch) -> Block:
        """See SourceLog."""
        manifest = self._manifests.get(batch)
        if manifest is None or batch not in self._rows:
            raise _gone(self._source, batch)
        rows = self._rows[batch][index]
        return _block(self._source, manifest, index, epoch, rows if rows is not None and rows.num_rows else None)

    def blocks(self, batch: BatchId, epoch: Epoch) -> list[Block]:
        """See SourceLog."""
        return [self.block(batch, index, epoch) for index in range(self._source.parallelism)]

    def trim(self, through: BatchId) -> None:
        """See SourceLog."""
        for batch in [batch for batch in self._rows if batch <= through]:
            del self._rows[batch]


class DirectoryLog:
    """A source log in a directory on durable storage; what it says is written is on the disk.

    DIR/identity, DIR/12.4f1e77-0.blocks (a piece written by `append`), DIR/12.manifest; pieces that others wrote for
    `commit` have names of their own. Manifests of the last trimmed batches stay: the watermark goes on from them.
    Several processes may have the log open: what one commits the others see. Manifests are read when they are needed.
    """

    def __init__(self, source: SourceProgram, query: str, directory: Path) -> None:
        """Open or begin a log; one that belongs to another query is refused."""
        self._source, self._query, self.directory = source, query, Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self._attempts = (f"{uuid4().hex[:12]}-{number:x}" for number in itertools.count())
        identity = {"holdfast-source-log": _VERSION, "source": source.id, "query": query}
        if not link_durably(self.directory / "identity", json.dumps(identity).encode()):
            self._check_identity(json.loads((self.directory / "identity").read_bytes()), identity)
        self._manifests: dict[BatchId, Manifest] = {}
        numbers = [BatchId(int(path.stem)) for path in self.directory.glob("[0-9]*.manifest")]
        self._frontier = max(numbers, default=NO_BATCH)
        self._trimmed = BatchId(min(numbers, default=0) - 1)
        self.manifest(self._frontier)  # one that is damaged is named at once

    @property
    def frontier(self) -> BatchId:
        """See SourceLog."""
        while self.manifest(BatchId(self._frontier + 1)) is not None:
            self._frontier = BatchId(self._frontier + 1)
        return self._frontier

    def append(self, batch: BatchId, rows: pa.Table, *, last: bool = False) -> Manifest:
        """See SourceLog."""
        there = self.manifest(batch)
        if there is not None:
            return there
        _check_next(self._source, batch, self.frontier, self.manifest(BatchId(batch - 1)))
        content = self.directory / f"{batch}.{next(self._attempts)}.blocks"
        piece = write_piece(self._source, rows, content) if rows.num_rows else None
        manifest = self.commit(batch, [] if piece is None else [piece], last=last)
        if piece is not None and piece not in manifest.pieces:
            content.unlink(missing_ok=True)
        self._sweep(batch)
        return manifest

    def commit(
        self, batch: BatchId, pieces: Sequence[Piece], *, last: bool = False, at_least: Watermark = None
    ) -> Manifest:
        """Log a batch of pieces that are written; if the batch is there already, what is there holds.

        `at_least`: where the watermark must stand whatever the rows say (a source that has been idle).
        """
        there = self.manifest(batch)
        if there is not None:
            return there
        before = self.manifest(BatchId(batch - 1))
        _check_next(self._source, batch, self.frontier, before)
        known = [piece.latest for piece in pieces if piece.latest is not None]
        past = None if before is None else before.watermark
        mark = watermark_after(self._source, past, max(known, default=None), last=last)
        if mark is not None:
            mark = highest(mark, at_least)
        counts = [0] * self._source.parallelism
        for piece in pieces:
            for section in piece.sections:
                counts[section.partition] += section.rows
        full = tuple(piece for piece in pieces if piece.rows)
        manifest = Manifest(self._source.id, self._query, batch, mark, tuple(counts), full)
        if not link_durably(self.directory / f"{batch}.manifest", json.dumps(asdict(manifest)).encode()):
            return self._need(batch)
        self._manifests[batch] = manifest
        return manifest

    def manifest(self, batch: BatchId) -> Manifest | None:
        """See SourceLog."""
        held = self._manifests.get(batch)
        if held is None:
            held = self._read(self.directory / f"{batch}.manifest")
            if held is not None:
                self._manifests[batch] = held
                if len(self._manifests) > 2 * MANIFESTS_KEPT:
                    for old in sorted(self._manifests)[:MANIFESTS_KEPT]:
                        del self._manifests[old]
        return held

    def block(self, batch: BatchId, index: int, epoch: Epoch) -> Block:
        """See SourceLog."""
        manifest = self._need(batch)
        try:
            rows = read_pieces(self.directory, manifest.pieces, index)
        except FileNotFoundError:
            raise _gone(self._source, batch) from None
        return _block(self._source, manifest, index, epoch, rows)

    def blocks(self, batch: BatchId, epoch: Epoch) -> list[Block]:
        """See SourceLog."""
        return [self.block(batch, index, epoch) for index in range(self._source.parallelism)]

    def trim(self, through: BatchId) -> None:
        """See SourceLog."""
        for number in range(self._trimmed + 1, through + 1):
            manifest = self.manifest(BatchId(number))
            for piece in () if manifest is None else manifest.pieces:
                (self.directory / piece.file).unlink(missing_ok=True)
            old = BatchId(number - MANIFESTS_KEPT)
            self._manifests.pop(old, None)
            (self.directory / f"{old}.manifest").unlink(missing_ok=True)
        self._trimmed = max(self._trimmed, through)

    def check_open(self) -> None:
        """Refuse a log that is closed: nothing can follow."""
        _check_open(self._source, self.manifest(self.frontier))

    def _need(self, batch: BatchId) -> Manifest:
        manifest = self.manifest(batch)
        if manifest is None:
            raise _gone(self._source, batch)
        return manifest

    def _check_identity(self, found: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
        if found == identity:
            return
        if found.get("holdfast-source-log") != _VERSION:
            raise BadInput(
                f"the log has format {found.get('holdfast-source-log')}, and this Holdfast reads {_VERSION}",
                where=str(self.directory),
                remedy="finish the run with the Holdfast that began it, or begin in another directory",
            )
        raise BadInput(
            f"the log belongs to source {found.get('source')} of query {found.get('query')}, "
            f"not to source {self._source.id} of query {self._query}",
            where=str(self.directory),
            remedy="give every query a directory of its own",
        )

    def _read(self, path: Path) -> Manifest | None:
        try:
            fields = json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError:
            raise CheckFailed(
                "the manifest is damaged", where=str(path), remedy="restore it from a copy of the log"
            ) from None
        pieces = tuple(piece_of(piece) for piece in fields["pieces"])
        return Manifest(**{**fields, "rows": tuple(fields["rows"]), "pieces": pieces})

    def _sweep(self, batch: BatchId) -> None:
        """Remove content of this and earlier batches that no manifest names: attempts that never happened."""
        for path in self.directory.glob("*.blocks"):
            number = BatchId(int(path.name.partition(".")[0]))
            manifest = self.manifest(number) if number <= batch else None
            if manifest is not None and path.name not in [piece.file for piece in manifest.pieces]:
                path.unlink(missing_ok=True)


def _gone(source: SourceProgram, batch: BatchId) -> CheckFailed:
    return CheckFailed(
        f"batch {batch} is not in the log", where=f"source {source.id}", remedy="it was trimmed or never logged"
    )


def log_batch(
    program: Program,
    logs: Mapping[OperatorId, SourceLog],
    batch: Mapping[str, pa.Table],
    *,
    last: bool = False,
    number: BatchId | None = None,
) -> BatchId:
    """Put one batch into the source logs; sources that are not named have no rows in it. Returns its number."""
    if strange := set(batch) - set(logs):
        raise BadInput(f"there is no source {min(strange)!r}", remedy=f"there are {', '.join(sorted(logs))}")
    # A batch is refused before any source has logged it: a source ahead of the others would be cut differently.
    for name, rows in batch.items():
        if not isinstance(rows, pa.Table):
            raise BadInput(f"the rows of source {name!r} are {type(rows).__name__}", remedy="give a pyarrow.Table")
        conform(rows, program.sources[OperatorId(name)].schema, f"a batch of source {name}")
    at = BatchId(min(log.frontier for log in logs.values()) + 1) if number is None else number
    for name, log in logs.items():
        log.append(at, batch.get(name, program.sources[name].schema.empty_table()), last=last)
    return at
