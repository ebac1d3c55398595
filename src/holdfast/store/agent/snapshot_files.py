"""A snapshot as a file: who it is, then its bytes, aligned, under a checksum. Runs anywhere.

One file from end to end: the task that makes a snapshot writes it; the agent codes it as it is; the durable folder
holds a copy of it; the task that takes the snapshot over maps it. So the checksum that the first computed is what the
last one's agent compares.

    magic, lengths, CRC-32 of the bytes     fixed
    name, epoch, durable                    JSON, with its own CRC-32
    zeros up to a multiple of 64
    the bytes
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import secrets
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.ids import Epoch
from holdfast.store.agent.snapshot_names import key_of
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
class ImageHead:
    """What a snapshot's file says about it."""

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


def write_image(folder: Path, name: str, data: bytes | pa.Buffer, *, epoch: int, durable: bool) -> Path:
    """Write a snapshot into a new file of this folder and return it; the caller publishes it by a rename.

    Not synced: it need not outlive the machine, and whoever reads it compares the checksum. After an error (the disk is
    full, say) nothing is left behind.
    """
    view = memoryview(data).cast("B")
    about = json.dumps({"name": name, "epoch": epoch, "durable": durable}).encode()
    head = _HEAD.pack(MAGIC, len(about), zlib.crc32(about), len(view), _checksum(view)) + about
    path = folder / f"{os.getpid()}-{secrets.token_hex(6)}.part"
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            for piece in (head + bytes(-len(head) % ALIGNED), view):
                rest = memoryview(piece)
                while rest.nbytes:
                    rest = rest[os.write(handle, rest[: 1 << 30]) :]
        finally:
            os.close(handle)
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink()
        raise
    return path


def read_head(path: Path) -> ImageHead:
    """Read what a file says of itself; `Corrupt` where it is not a snapshot's file, or is cut off."""
    with path.open("rb") as file:
        head = _parse(path, file.read(_HEAD.size + _LONGEST_JSON))
        size = os.fstat(file.fileno()).st_size
    if size != head.file_bytes:
        raise Corrupt(f"{size} bytes where {head.file_bytes} should be", where=str(path))
    return head


def check_image(path: Path, name: str) -> ImageHead:
    """Read a whole file and compare its checksum; `Corrupt` where it is not this snapshot, unharmed."""
    head = read_head(path)
    if head.name != name:
        raise Corrupt(f"holds {head.name}, not {name}", where=str(path))
    if _checksum(mapped(path)[head.start :]) != head.checksum:
        raise Corrupt(f"{name} fails its checksum", where=str(path))
    return head


def mapped(path: Path) -> memoryview:
    """Map a file for reading; it stays readable after its name is removed, and is unmapped with its last view."""
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def mapped_data(path: Path) -> pa.Buffer:
    """Return the bytes of a snapshot without copying them."""
    import pyarrow as pa

    head = read_head(path)
    with pa.memory_map(str(path)) as file:
        whole = file.read_buffer()
    return whole.slice(head.start, head.bytes)


def _parse(path: Path, begin: bytes) -> ImageHead:
    try:
        magic, length, about_crc, size, checksum = _HEAD.unpack_from(begin)
        about = begin[_HEAD.size : _HEAD.size + length]
        if magic != MAGIC or length > _LONGEST_JSON or len(about) != length or zlib.crc32(about) != about_crc:
            raise ValueError("not as a snapshot's file begins")
        said = json.loads(about)
        name, epoch, durable = str(said["name"]), Epoch(int(said["epoch"])), bool(said["durable"])
        key_of(name)
    except (ValueError, KeyError, TypeError, struct.error) as error:
        raise Corrupt(f"not a snapshot's file: {error}", where=str(path)) from None
    start = _HEAD.size + length
    return ImageHead(name, epoch, durable, size, checksum, start + -start % ALIGNED)


def _checksum(view: memoryview) -> int:
    from holdfast.erasure.checksums import crc32  # numpy and the code's library, for those who check

    crc = 0
    for at in range(0, len(view), _PIECE):
        crc = crc32(view[at : at + _PIECE], crc)
    return crc
