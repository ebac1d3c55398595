"""A copy of a range of a file in the run's log: the bytes that a reading of the range asks for. Driver and nodes.

The driver finds them by reading the range, and makes a copy only of the bytes that were logged. A node reads the copy
where the file is gone or has changed.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Sequence
from typing import Any

import pyarrow as pa

from holdfast.errors import CheckFailed
from holdfast.runtime.io.file_ranges import FileRange, HowRead
from holdfast.runtime.io.in_place import OpenFiles, read_checked
from holdfast.runtime.program import SourceProgram
from holdfast.storage.source_files import OpenFile, SourceFile

_LENGTH = 8
"""Bytes that say how long the description before the bytes of a copy is."""


class _Recorded:
    """A file that is being read, and what was read of it."""

    def __init__(self, file: OpenFile) -> None:
        self._file, self.seen = file, file.seen
        self.parts: list[tuple[int, pa.Buffer]] = []
        self.ends: set[int] = set()
        """Where a read ended before all that it had asked for: a file that was cut since has the range all the same."""

    def read(self, start: int, count: int) -> pa.Buffer:
        found = self._file.read(start, count)
        self.parts.append((start, found))
        if found.size < count:
            self.ends.add(start + found.size)
        return found

    def look(self) -> SourceFile:
        return self._file.look()

    def close(self) -> None:
        self._file.close()


def encode_copy(parts: Sequence[tuple[int, pa.Buffer]], ends: Collection[int] = ()) -> pa.Buffer:
    """Return the parts of a file as one object: each byte once, with a checksum. `ends`: where reads ended early."""
    merged: list[tuple[int, bytearray]] = []
    for start, data in sorted(parts, key=lambda one: one[0]):
        if merged and start <= merged[-1][0] + len(merged[-1][1]):
            begin, held = merged[-1]
            held += memoryview(data)[max(0, begin + len(held) - start) :]
        else:
            merged.append((start, bytearray(memoryview(data))))
    contents = b"".join(held for _, held in merged)
    about: dict[str, Any] = {"parts": [[start, len(held)] for start, held in merged], "crc": zlib.crc32(contents)}
    if ends:
        about["ends"] = sorted(ends)
    head = json.dumps(about, separators=(",", ":")).encode()
    return pa.py_buffer(len(head).to_bytes(_LENGTH, "little") + head + contents)


class CopiedFile:
    """See OpenFile: what a copy has of a file, as the file was when its batch was logged."""

    def __init__(self, data: pa.Buffer, file: SourceFile) -> None:
        self.seen = file
        length = int.from_bytes(data.slice(0, _LENGTH).to_pybytes(), "little")
        about = json.loads(data.slice(_LENGTH, length).to_pybytes())
        contents = data.slice(_LENGTH + length)
        if zlib.crc32(memoryview(contents)) != about["crc"]:
            raise CheckFailed(
                "the copy of it in the run's log is damaged",
                where=file.path,
                remedy="bring the file back as it was, then run `holdfast resume`",
            )
        self._ends = frozenset(about.get("ends", ()))
        self._parts, at = list[tuple[int, pa.Buffer]](), 0
        for start, size in about["parts"]:
            self._parts.append((start, contents.slice(at, size)))
            at += size

    def read(self, start: int, count: int) -> pa.Buffer:
        """See OpenFile; what the copy does not have is an error."""
        end = min(start + count, self.seen.size)
        if end <= start:
            return pa.py_buffer(b"")
        for begin, held in self._parts:
            last = begin + held.size
            if begin <= start <= last and (end <= last or last in self._ends):
                return held.slice(start - begin, min(end, last) - start)
        raise CheckFailed(
            f"is gone, and the copy in the run's log has not bytes {start} to {end}",
            where=self.seen.path,
            remedy="read it with the columns and options of before, or bring the file back; then run `holdfast resume`",
        )

    def look(self) -> SourceFile:
        """See OpenFile."""
        return self.seen

    def close(self) -> None:
        """See OpenFile."""


def copy_range(
    source: SourceProgram, one: FileRange, how: HowRead, expected: int | None, files: OpenFiles
) -> pa.Buffer:
    """Return a copy of a range. `CheckFailed`: its file is not what was logged; `OSError`: it cannot be read."""
    file = _Recorded(files(one.file.path).open(one.file.path))
    try:
        read_checked(source, one, how, expected, file)
    finally:
        file.close()
    return encode_copy(file.parts, file.ends)
