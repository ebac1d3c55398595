"""What reading a range of a file gives: rows, records that do not parse, and a checksum. Runs anywhere; values."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

LONGEST_RECORD = 4096
"""Characters of a record that does not parse which are kept."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A record that does not parse."""

    position: int
    """Its number among the records of its range."""
    record: str
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class RangeRows:
    """What a range holds."""

    rows: pa.Table
    rejected: tuple[Rejected, ...]
    check: int
    """CRC-32 of the bytes that were read."""


class Unreadable(Exception):
    """A file is not what its format says: nothing of it can be read. Holds the checksum of what was read."""

    def __init__(self, reason: str, check: int) -> None:
        super().__init__(reason)
        self.reason, self.check = reason, check
