"""Ranges of files: what a batch has of a source that is read in place. Runs anywhere; pure.

A range is part of one file, by bytes: a line belongs to the range in which its first byte is, a row group of a Parquet
file to the one in which its first byte is. So ranges that cover a file hold each of its rows once, and nobody has to
look into a file to cut it. The record of a batch holds its ranges, with size and version of each file, and how they are
read: a replay reads the same bytes in the same way, also where the application has other options by then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.application.readers import FileOptions, Files, file_options
from holdfast.storage.source_files import SourceFile

COMPRESSED = (".gz", ".gzip", ".bz2", ".zst", ".zstd", ".lz4")
"""Endings of files that are read whole."""


@dataclass(frozen=True, slots=True)
class FileRange:
    """Part of a file, for one partition of a source."""

    partition: int
    file: SourceFile
    start: int
    end: int

    @property
    def bytes(self) -> int:
        """How many bytes it has."""
        return self.end - self.start

    def __str__(self) -> str:
        return f"bytes {self.start} to {self.end} of {self.file.path}"


@dataclass(frozen=True, slots=True)
class HowRead:
    """How the ranges of a batch are read, as it was when the batch was logged."""

    format: str
    options: tuple[tuple[str, str], ...]
    lateness: int
    """Microseconds that the watermark trails the latest event."""
    until: int | None = None
    """Rows with a later event time do not move the watermark; None: there is no bound."""
    by_stream: bool = False
    """Whether the watermark follows the stream (topic partition) that is furthest behind; False: the latest event.

    Where a range of a stream has no record (a marker of a transaction), it is not known, and nothing is followed.

    The record says it, so that batches that an earlier version logged are replayed as they were processed.
    """

    @property
    def file_options(self) -> FileOptions:
        """The options as the reader has them."""
        return file_options(Files("", self.format, self.options))


@dataclass(frozen=True, slots=True)
class RangesRead:
    """What the first reading of a partition's ranges in a batch found."""

    rows: int
    checks: tuple[int, ...]
    """CRC-32 of the bytes of each range, in their order: every later reading must find the same."""
    ahead: int = 0
    """Rows whose event is too far in the future to move the watermark."""
    furthest: int | None = None
    """Where the watermark would stand by the stream that is furthest on; None: it does, or nothing is known."""


def is_split(format: str, options: FileOptions, path: str) -> bool:  # noqa: A002
    """Whether a file can be read in parts."""
    return not path.lower().endswith(COMPRESSED) and not (format == "csv" and options.multi_line)


# -- as JSON -----------------------------------------------------------------------------------------------------------


def range_fields(one: FileRange) -> list[Any]:
    """Return a range as JSON has it."""
    file = one.file
    return [one.partition, file.path, file.size, file.modified, file.version, one.start, one.end]


def range_of(fields: Sequence[Any]) -> FileRange:
    """Read a range from JSON."""
    partition, path, size, modified, version, start, end = fields
    return FileRange(partition, SourceFile(path, size, modified, version), start, end)


def how_fields(how: HowRead) -> dict[str, Any]:
    """Return how ranges are read as JSON has it."""
    fields = {"format": how.format, "options": dict(how.options), "lateness": how.lateness, "until": how.until}
    return {**fields, "by-stream": True} if how.by_stream else fields


def how_of(fields: Mapping[str, Any]) -> HowRead:
    """Read how ranges are read from JSON."""
    options = tuple(sorted(fields["options"].items()))
    return HowRead(fields["format"], options, fields["lateness"], fields["until"], fields.get("by-stream", False))
