"""Pieces of the source log: rows as they came, cut for the source's partitions, in files. Runs on a node or the driver.

A batch of a source is a list of pieces. Whoever has rows writes a piece, under a name that nobody else takes; a piece
counts once a manifest names it, and the order of pieces there is the order of the rows. A piece has one section for
each partition of the source that gets rows: an Arrow IPC stream, found by place and length and checked by a checksum,
so a reader takes what its partition needs and copies nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from holdfast import durable_files
from holdfast.erasure.checksums import crc32
from holdfast.errors import BadInput, CheckFailed
from holdfast.runtime.program import SourceProgram
from holdfast.runtime.schemas import conform
from holdfast.runtime.tables import decode_rows, encode_rows
from holdfast.runtime.times import event_times
from holdfast.runtime.worker.routing import spread_by_key

_ALIGN = 64


@dataclass(frozen=True, slots=True)
class Section:
    """Where the rows for one partition are in a piece's file."""

    partition: int
    start: int
    bytes: int
    rows: int
    check: int
    """CRC-32 of the bytes."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some rows of a source, in a file of its log."""

    file: str
    sections: tuple[Section, ...]
    latest: int | None
    """The latest event in it, in microseconds; None: no row has an event time."""

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return sum(section.rows for section in self.sections)


def cut_rows(source: SourceProgram, rows: pa.Table) -> tuple[list[pa.Table | None], int | None]:
    """Check rows and spread them over the source's partitions; give the latest event among them too."""
    rows = conform(rows, source.schema, f"a batch of source {source.id}")
    latest: int | None = None
    if source.event_time is not None:
        times, known = event_times(rows, source.event_time)
        if known.any():
            latest = int(times[known].max())
    try:
        return spread_by_key(rows, source.keys, source.parallelism), latest
    except BadInput as error:
        raise error.placed(f"source {source.id}") from None


def write_piece(source: SourceProgram, rows: pa.Table, path: Path) -> Piece:
    """Write rows as a piece; they are on the disk when this returns. The name must be one that nobody else takes."""
    tables, latest = cut_rows(source, rows)
    sections: list[Section] = []
    parts: list[bytes | memoryview] = []
    start = 0
    for partition, table in enumerate(tables):
        if table is None or not table.num_rows:
            continue
        data = memoryview(encode_rows(table))
        sections.append(Section(partition, start, len(data), table.num_rows, crc32(data)))
        parts += [data, bytes(-len(data) % _ALIGN)]
        start += len(data) + -len(data) % _ALIGN
    durable_files.write_durably(path, parts)
    return Piece(path.name, tuple(sections), latest)


def read_pieces(directory: Path, pieces: Sequence[Piece], partition: int) -> pa.Table | None:
    """Return the rows of one partition, piece by piece; None where there are none. A file that is gone is an error."""
    tables = []
    for piece in pieces:
        for section in piece.sections:
            if section.partition == partition:
                tables.append(_read(directory / piece.file, section))
    return pa.concat_tables(tables) if tables else None


def _read(path: Path, section: Section) -> pa.Table:
    with pa.memory_map(str(path)) as file:
        data = file.read_buffer().slice(section.start, section.bytes)
    if len(data) != section.bytes or crc32(memoryview(data)) != section.check:
        raise CheckFailed(
            "rows in it have another checksum than their manifest says",
            where=str(path),
            remedy="restore the file from a copy of the log",
        )
    return decode_rows(data)


def piece_fields(piece: Piece) -> dict[str, Any]:
    """Return a piece as JSON has it."""
    return asdict(piece)


def piece_of(fields: Mapping[str, Any]) -> Piece:
    """Read a piece from JSON."""
    return Piece(fields["file"], tuple(Section(**section) for section in fields["sections"]), fields["latest"])
