"""The blocks of logged batches: what each partition of a source takes in. Runs on a node.

Rows come from pieces, or from ranges that are read in place. What was found in ranges is kept until it is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import pyarrow as pa

from holdfast.errors import CheckFailed
from holdfast.ids import BatchId, Epoch, OperatorId, PartitionId
from holdfast.runtime.blocks import OUTSIDE, Block, Edge, Header
from holdfast.runtime.io.batch_records import BatchRecords, SourceBatch
from holdfast.runtime.io.file_copies import CopiedFile
from holdfast.runtime.io.file_ranges import FileRange, RangesRead
from holdfast.runtime.io.in_place import OpenFiles, read_ranges, rejected_rows
from holdfast.runtime.io.kafka_reading import Fetch
from holdfast.runtime.io.offset_ranges import SourceRange
from holdfast.runtime.io.range_copies import CopyStore
from holdfast.runtime.io.source_pieces import read_pieces
from holdfast.runtime.program import SourceProgram
from holdfast.runtime.times import highest
from holdfast.storage.source_files import OpenFile
from holdfast.storage.storage import Storage


class SourceBlocks:
    """Those of one layout of a run."""

    def __init__(
        self,
        sources: Mapping[OperatorId, SourceProgram],
        application: str,
        generation: int,
        storage: Storage,
        records: BatchRecords,
        copies: CopyStore,
        files: OpenFiles,
        fetch: Fetch,
        begun: Callable[[SourceProgram], SourceBatch],
    ) -> None:
        """`begun` says what a batch has of a source that begins after it."""
        self._sources, self._application, self._generation = sources, application, generation
        self._storage, self._records, self._copies, self._files = storage, records, copies, files
        self._fetch, self._begun = fetch, begun
        self._reads: dict[PartitionId, dict[BatchId, RangesRead]] = {}
        """What partitions found in their ranges, here."""

    def block(
        self,
        source: OperatorId,
        batch: BatchId,
        index: int,
        epoch: Epoch,
        expected: Sequence[int] | None = None,
    ) -> Block:
        """Return a batch's block for one partition of a source: with its rows, or the barrier alone.

        `expected`: checksums of the partition's ranges, where they have been read before.
        """
        record = self._records.need(batch)
        if record.generation != self._generation and not (record.empty and record.generation > self._generation):
            of, here = record.generation, self._generation
            raise CheckFailed(
                f"batch {batch} belongs to layout {of} of the run, and this is layout {here}",
                where=f"application {self._application}",
                remedy="end this driver: the run goes on with another layout",
            )
        # A source that was added with this layout is not in its first batch.
        logged = record.sources.get(source) or self._begun(self._sources[source])
        rows = read_pieces(self._storage, logged.pieces, index)
        sender, receiver = PartitionId(OUTSIDE, index), PartitionId(source, index)
        mine, watermark, rejected = logged.ranges_of(index), logged.watermark, None
        if mine and logged.how is not None:
            found = read_ranges(
                self._sources[source],
                mine,
                logged.how,
                expected,
                files=self._files,
                copy_of=partial(self._copied_file, source, batch, index, mine),
                records_of=partial(self._copies.read, source, batch, index),
                fetch=self._fetch,
            )
            latest, read = found.followed(self._sources[source], logged.how)
            self._reads.setdefault(receiver, {})[batch] = read
            if watermark is not None and latest is not None:
                watermark = highest(watermark, latest - logged.how.lateness)
            rows = found.rows if rows is None else pa.concat_tables([rows, found.rows])
            if found.rejected:
                rejected = rejected_rows(receiver, batch, record.logged_at or 0.0, found.rejected)
        header = Header(Edge(OUTSIDE, source), sender, receiver, batch, epoch, watermark)
        return Block(header, rows if rows is not None and rows.num_rows else None, rejected)

    def _copied_file(
        self, source: OperatorId, batch: BatchId, index: int, ranges: Sequence[SourceRange], number: int
    ) -> OpenFile | None:
        """Return the copy of a range of a file, where the run has made one."""
        one, held = ranges[number], self._copies.data(source, batch, index, number)
        return None if held is None or not isinstance(one, FileRange) else CopiedFile(held, one.file)

    def reads_of(self, partition: PartitionId, after: BatchId, through: BatchId) -> dict[BatchId, RangesRead]:
        """Return what a partition found in its ranges of these batches, as far as they were read here."""
        found = self._reads.get(partition, {})
        for batch in [batch for batch in found if batch <= after]:
            del found[batch]
        return {batch: read for batch, read in found.items() if batch <= through}

    def blocks(self, source: OperatorId, batch: BatchId, epoch: Epoch) -> list[Block]:
        """Return one block per partition of a source, with or without rows."""
        return [self.block(source, batch, index, epoch) for index in range(self._sources[source].parallelism)]
