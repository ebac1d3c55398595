"""The snapshot file: name and epoch of a snapshot, then its bytes, aligned, with a checksum. Runs anywhere.

The same bytes travel end to end: the task that takes a snapshot writes the file; the agent encodes the file; the
durable folder holds a copy of the file; the task that restores the snapshot maps it. The checksum that the first task
computed is therefore the one that the last agent compares.

    magic, lengths, CRC-32 of the bytes     fixed
    name, epoch, durable                    JSON, with its own CRC-32
    zeros up to a multiple of 64
    the bytes
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.ids import Epoch
from holdfast.store.agent.snapshot_names import key_of
from holdfast.store.agent.spool_files import FILES, SpoolFiles
from holdfast.store.wire.failures import Corrupt

if TYPE_CHECKING:
    import pyarrow as pa

MAGIC = b"HFIMGF01"
ALIGNED = 64
_HEAD = struct.Struct("<8sIIQI")
"""Magic, bytes of the JSON, its CRC, bytes of the snapshot, their CRC."""
_LONGEST_JSON = 4096
_PIECE = 1 << 22


@dataclass(frozen=True, slots=True)
class SnapshotHead:
    """The header of a snapshot file."""

    name: str
    epoch: Epoch
    durable: bool
    """A copy in the durable folder was asked for."""
    bytes: int
    checksum: int
    start: int
    """Where the bytes begin in the file."""

    @property
    def file_bytes(self) -> int:
        """How long the file is."""
        return self.start + self.bytes


def write_snapshot(
    folder: Path, name: str, data: bytes | pa.Buffer, *, epoch: int, durable: bool, files: SpoolFiles = FILES
) -> Path:
    """Write a snapshot into a new file of this folder and return it; the caller publishes it by a rename.

    Not synced: the file need not survive a power cut, and readers compare the checksum. After an error (for example a
    full disk) no file is left behind.
    """
    view = memoryview(data).cast("B")
    about = json.dumps({"name": name, "epoch": epoch, "durable": durable}).encode()
    head = _HEAD.pack(MAGIC, len(about), zlib.crc32(about), len(view), _checksum(view)) + about
    path = folder / f"{files.new_name()}.part"
    files.write(path, [head + bytes(-len(head) % ALIGNED), view])
    return path


def read_head(path: Path, files: SpoolFiles = FILES) -> SnapshotHead:
    """Read the header; `Corrupt` where it is not a snapshot file, or is truncated."""
    head = _parse(path, files.read(path, _HEAD.size + _LONGEST_JSON))
    size = files.size(path)
    if size != head.file_bytes:
        raise Corrupt(f"the file has {size} bytes; its header states {head.file_bytes}", where=str(path))
    return head


def check_snapshot(path: Path, name: str, files: SpoolFiles = FILES) -> SnapshotHead:
    """Read a whole file and compare its checksum; `Corrupt` where it is damaged or another snapshot."""
    head = read_head(path, files)
    if head.name != name:
        raise Corrupt(f"the file holds snapshot {head.name}, not {name}", where=str(path))
    if _checksum(files.mapped(path)[head.start :]) != head.checksum:
        raise Corrupt(f"the checksum of snapshot {name} does not match", where=str(path))
    return head


def mapped_data(path: Path, files: SpoolFiles = FILES) -> pa.Buffer:
    """Return the bytes of a snapshot without copying them."""
    head = read_head(path, files)
    return files.buffer(path).slice(head.start, head.bytes)


def _parse(path: Path, begin: bytes) -> SnapshotHead:
    try:
        magic, length, about_crc, size, checksum = _HEAD.unpack_from(begin)
        about = begin[_HEAD.size : _HEAD.size + length]
        if magic != MAGIC or length > _LONGEST_JSON or len(about) != length or zlib.crc32(about) != about_crc:
            raise ValueError("not as a snapshot's file begins")
        fields = json.loads(about)
        name, epoch, durable = str(fields["name"]), Epoch(int(fields["epoch"])), bool(fields["durable"])
        key_of(name)
    except (ValueError, KeyError, TypeError, struct.error) as error:
        raise Corrupt(f"not a snapshot file: {error}", where=str(path)) from None
    start = _HEAD.size + length
    return SnapshotHead(name, epoch, durable, size, checksum, start + -start % ALIGNED)


def _checksum(view: memoryview) -> int:
    from holdfast.erasure.checksums import crc32  # numpy and the code's library, for those who check

    crc = 0
    for at in range(0, len(view), _PIECE):
        crc = crc32(view[at : at + _PIECE], crc)
    return crc
