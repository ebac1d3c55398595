"""What a commit costs on a node: the journal, the directory store and memory, beside a plain write of the same bytes.

A commit adds one segment to a partition's state and sends one block to each of two consumers; versions and outboxes
older than four batches are forgotten, as a host does. `plain write` writes the bytes that the journal has, frame by
frame, to one file, and encodes nothing. Seconds are CPU seconds, the kernel's for files among them, so that the figures
hold on a machine with other work; nobody syncs, so there is nothing else to wait for.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from holdfast.ids import BatchId, Epoch, OperatorId, PartitionId
from holdfast.runtime.blocks import Block, Edge, Header, encode_blocks
from holdfast.runtime.state.directory_store import DirectoryStore
from holdfast.runtime.state.journal_store import JournalStore
from holdfast.runtime.state.state_files import AppendFile
from holdfast.runtime.state.store import FRESH, Addition, MemoryStore, VersionStore
from holdfast.runtime.state.versions import Commit, Pointer, SegmentRef, VersionId, encode_segments
from holdfast_lab.benches.limits.sides import Measured, take_turns

SEGMENTS = 8
"""A state is so many segments of the last batches."""


def commit(store: VersionStore, partition: PartitionId, batch: int, rows: pa.Table, last: Commit | None) -> Commit:
    """Complete a batch of one partition."""
    before = () if last is None else last.segments["t"][-(SEGMENTS - 1) :]
    version = VersionId(BatchId(batch), Epoch(1))
    made = Commit(partition, version, None if last is None else last.id, batch, {"t": (*before, SegmentRef(FRESH, 0))})
    return store.commit(made, Addition({"t": [rows]}, blocks(partition, batch, rows)))


def blocks(partition: PartitionId, batch: int, rows: pa.Table) -> list[Block]:
    """Return what a batch sends: half of the rows to each of two consumers."""
    edge, half = Edge(partition.operator, OperatorId("O5")), rows.num_rows // 2
    found = []
    for index, part in enumerate((rows.slice(0, half), rows.slice(half))):
        to = PartitionId(OperatorId("O5"), index)
        found.append(Block(Header(edge, partition, to, BatchId(batch), Epoch(1), batch), part))
    return found


def turn(store: VersionStore, partitions: int, batches: int, rows: pa.Table) -> float:
    """Return the seconds of one commit."""
    mine = [PartitionId(OperatorId("O3"), index) for index in range(partitions)]
    last: dict[PartitionId, Commit] = {}
    for p in mine:
        store.point(p, Pointer(Epoch(1), None))
    began = time.process_time()
    for batch in range(batches):
        for p in mine:
            last[p] = commit(store, p, batch, rows, last.get(p))
        if batch % 4 == 3:
            for p in mine:
                store.forget(p, {last[p].id}, BatchId(batch - 3))
    return (time.process_time() - began) / (partitions * batches)


def plain(folder: Path, partitions: int, batches: int, rows: pa.Table) -> float:
    """Return the seconds of one write of the bytes that a commit has."""
    p = PartitionId(OperatorId("O3"), 0)
    data = encode_segments({"t": [rows]}) + encode_blocks(blocks(p, 0, rows)) + bytes(600)
    file = AppendFile(folder / "plain")
    began = time.process_time()
    for number in range(partitions * batches):
        file.append([data])
        if number * len(data) > 64 * 2**20:  # as large as journal files become
            break
    seconds = (time.process_time() - began) / (number + 1)
    file.close()
    return seconds


def encoding(rows: pa.Table, count: int) -> float:
    """Return the seconds that encoding one commit's rows takes."""
    p = PartitionId(OperatorId("O3"), 0)
    began = time.process_time()
    for batch in range(count):
        encode_segments({"t": [rows]})
        encode_blocks(blocks(p, batch, rows))
    return (time.process_time() - began) / count


def sides_of(partitions: int, batches: int, rows: pa.Table) -> dict[str, Callable[[], float]]:
    """Return what measures each side once, in a folder of its own."""
    sides: dict[str, Callable[[Path], float]] = {
        "plain write": lambda folder: plain(folder, partitions, batches, rows),
        "encoding alone": lambda folder: encoding(rows, batches),
        "memory": lambda folder: turn(MemoryStore(), partitions, batches, rows),
        "journal": lambda folder: turn(JournalStore(folder), partitions, batches, rows),
        "directory": lambda folder: turn(DirectoryStore(folder), partitions, batches, rows),
    }

    def in_folder(measure: Callable[[Path], float]) -> float:
        folder = Path(tempfile.mkdtemp(prefix="holdfast-state-"))
        try:
            return measure(folder)
        finally:
            shutil.rmtree(folder)

    return {name: lambda one=one: in_folder(one) for name, one in sides.items()}  # type: ignore[misc]


def rows_of(count: int) -> pa.Table:
    """Return the rows of a commit."""
    draw = np.random.default_rng(1)
    return pa.table({"key": draw.integers(0, 1000, count), "n": draw.random(count)})


def measure_state(count: int, partitions: int, commits: int, turns: int) -> Measured:
    """Measure commits of so many rows, of each partition at most so many in a turn."""
    batches, rows = max(8, min(commits, 2_000_000 // (count * partitions))), rows_of(count)
    found = take_turns(sides_of(partitions, batches, rows), turns)
    return Measured(
        "state", f"commits of {count:,} rows", "plain write", "commit", found, rows=count, size=int(rows.nbytes)
    )
