"""Pieces of the batch log: rows as they came, cut for the source's partitions. Runs on a node or the driver.

A batch of a source is a list of pieces. Whoever has rows writes a piece, under a name that nobody else takes; a piece
counts once a batch names it, and the order of pieces there is the order of the rows. A piece has one section for
each partition of the source that gets rows: an Arrow IPC stream, found by place and length and checked by a checksum,
so a reader takes what its partition needs and copies nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from uuid import uuid4

import pyarrow as pa

from holdfast.erasure.checksums import crc32
from holdfast.errors import BadInput, CheckFailed
from holdfast.ids import OperatorId
from holdfast.runtime.io.event_bound import LatestEvents, latest_events
from holdfast.runtime.program import SourceProgram
from holdfast.runtime.schemas import conform
from holdfast.runtime.tables import decode_rows, encode_rows
from holdfast.runtime.times import event_times
from holdfast.runtime.worker.routing import spread_by_key
from holdfast.storage.storage import Storage

_ALIGN = 64


@dataclass(frozen=True, slots=True)
class Section:
    """Where the rows for one partition are in a piece."""

    partition: int
    start: int
    bytes: int
    rows: int
    check: int
    """CRC-32 of the bytes."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some rows of a source."""

    file: str
    """Its name in the run's storage."""
    sections: tuple[Section, ...]
    latest: int | None
    """The latest event in it, in microseconds; None: no row has an event time."""
    within: int | None = None
    """The latest event up to the bound that held when it was written, where rows are beyond that one."""
    ahead: int = 0
    """How many rows were beyond it."""

    @property
    def events(self) -> LatestEvents:
        """Its latest events."""
        return LatestEvents(self.latest, self.within if self.ahead else self.latest, self.ahead)

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


def write_piece(storage: Storage, source: SourceProgram, rows: pa.Table, name: str, bound: int | None = None) -> Piece:
    """Write rows as a piece; they are safe when this returns. The name must be one that nobody else takes.

    `bound`: events up to it move the watermark, as the time is now.
    """
    tables, latest = cut_rows(source, rows)
    events = LatestEvents(latest, latest, 0)
    if bound is not None and latest is not None and latest > bound:
        events = latest_events(source, rows, bound)
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
    storage.create(name, b"".join(parts))
    return Piece(name, tuple(sections), latest, events.within if events.ahead else None, events.ahead)


def read_pieces(storage: Storage, pieces: Sequence[Piece], partition: int) -> pa.Table | None:
    """Return the rows of one partition, piece by piece; None where there are none. A piece that is gone is an error."""
    tables = []
    for piece in pieces:
        for section in piece.sections:
            if section.partition == partition:
                tables.append(_read(storage, piece.file, section))
    return pa.concat_tables(tables) if tables else None


def _read(storage: Storage, name: str, section: Section) -> pa.Table:
    held = storage.read(name)
    if held is None:
        raise CheckFailed(
            "is not there any more",
            where=f"{storage.url}/{name}",
            remedy="bring it back: a batch that is still needed names it",
        )
    data = held.slice(section.start, section.bytes)
    if len(data) != section.bytes or crc32(memoryview(data)) != section.check:
        raise CheckFailed(
            "rows in it have another checksum than their batch says",
            where=f"{storage.url}/{name}",
            remedy="restore it from a copy of the log",
        )
    return decode_rows(data)


def piece_fields(piece: Piece) -> dict[str, Any]:
    """Return a piece as JSON has it."""
    fields = asdict(piece)
    if not piece.ahead:
        del fields["within"], fields["ahead"]
    return fields


def piece_of(fields: Mapping[str, Any]) -> Piece:
    """Read a piece from JSON."""
    sections = tuple(Section(**section) for section in fields["sections"])
    return Piece(fields["file"], sections, fields["latest"], fields.get("within"), fields.get("ahead", 0))


def piece_name(source: OperatorId, claim: int, label: str) -> str:
    """Return a name for a piece that no other has, with the claim under which it is written."""
    return f"pieces/{source}/{claim:08d}-{label}-{uuid4().hex[:12]}"


def claim_of(name: str) -> int:
    """Return the claim in a piece's name."""
    return int(name.rpartition("/")[2].partition("-")[0])
