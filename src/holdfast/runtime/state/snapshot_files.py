"""A snapshot written to a file, in bounded memory. Runs on a node, in a thread beside the stream.

The same bytes as `encode_snapshot` gives. Segments go from the mapped files of the state straight into the file; their
checksums are read back from it in small parts; the outbox is written group by group. So beside the state itself, which
is mapped, memory holds one group of blocks, not a second and third copy of everything.
"""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa

from holdfast.erasure.checksums import crc32
from holdfast.runtime.blocks import outbox_groups
from holdfast.runtime.state.snapshots import SIZES, SNAPSHOT_MAGIC, Snapshot, snapshot_head
from holdfast.runtime.state.versions import SEGMENTS_MAGIC, index_entry, segments_index, write_stream

_READ_BYTES = 4 << 20
_ALIGN = 64


def write_snapshot_file(snapshot: Snapshot, path: Path) -> None:
    """Write a snapshot to a file that is not there yet; what is there after a failure is of no use."""
    head = snapshot_head(snapshot)
    with pa.OSFile(str(path), "wb") as sink:
        sink.write(bytes(SIZES.size))  # sizes are known in the end
        sink.write(head + bytes(-(SIZES.size + len(head)) % _ALIGN))
        segments_at = sink.tell()
        spans = _write_segments(snapshot, sink, segments_at)
        index = [
            index_entry(str(number), begin - segments_at, end - begin, _crc_of(path, begin, end), number, counts)
            for number, (begin, end, counts) in enumerate(spans)
        ]
        sink.write(segments_index(index))
        segments_size = sink.tell() - segments_at
        sink.write(bytes(-segments_size % _ALIGN))
        blocks_at = sink.tell()
        for pieces in outbox_groups(snapshot.outbox):
            for piece in pieces:
                sink.write(piece)
        sizes = SIZES.pack(SNAPSHOT_MAGIC, len(head), segments_size, sink.tell() - blocks_at)
    with path.open("r+b") as file:
        file.write(sizes)


def _write_segments(snapshot: Snapshot, sink: pa.NativeFile, begin: int) -> list[tuple[int, int, list[int]]]:
    """Write each segment as a stream of its own; return where they are, and in how many record batches."""
    sink.write(SEGMENTS_MAGIC)
    spans = []
    for number, segment in enumerate(snapshot.segments.values()):
        sink.write(bytes(-(sink.tell() - begin) % _ALIGN))
        at = sink.tell()
        counts = write_stream(sink, str(number), [segment])
        spans.append((at, sink.tell(), counts))
    return spans


def _crc_of(path: Path, begin: int, end: int) -> int:
    value = 0
    with path.open("rb") as file:
        file.seek(begin)
        while begin < end:
            data = file.read(min(_READ_BYTES, end - begin))
            if not data:
                raise OSError(f"{path} ends before it was written")
            value, begin = crc32(data, value), begin + len(data)
    return value


def remove_file(path: Path) -> None:
    """Remove a file, if it is there."""
    path.unlink(missing_ok=True)


def clean_folder(folder: Path) -> None:
    """Make a folder for files that no other process uses, and remove what an earlier process left in it."""
    folder.mkdir(parents=True, exist_ok=True)
    for entry in os.scandir(folder):
        Path(entry.path).unlink(missing_ok=True)
