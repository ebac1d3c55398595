"""Flips bits in files of a node, as a failing disk does. Runs beside the cluster.

A file is replaced by a copy with one bit of every few kilobytes flipped: who opens it from now on reads other bytes,
while what a process has mapped stays as it was, as with pages that are in memory when a disk goes bad.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from random import Random

EVERY = 4096
"""One bit of so many bytes is flipped, at least one of a file."""


def flipped(data: bytes, draw: Random) -> bytes:
    """Return the data with one drawn bit flipped in every few kilobytes."""
    changed = bytearray(data)
    for start in range(0, len(changed), EVERY):
        place = draw.randrange(start, min(start + EVERY, len(changed)))
        changed[place] ^= 1 << draw.randrange(8)
    return bytes(changed)


def corrupt_file(path: Path, draw: Random) -> bool:
    """Replace a file by a corrupted copy; False: it is empty, or gone meanwhile."""
    try:
        data = path.read_bytes()
        if not data:
            return False
        beside = path.with_name(f".corrupt-{path.name}")
        beside.write_bytes(flipped(data, draw))
        shutil.copymode(path, beside)
        os.replace(beside, path)
    except FileNotFoundError:
        return False
    return True


def corrupt_files(paths: Iterable[Path], draw: Random) -> list[str]:
    """Corrupt files; return the names of those that were."""
    return [path.name for path in sorted(paths) if corrupt_file(path, draw)]


def state_files(local: Path) -> list[Path]:
    """Return the files in which the operator processes of a node keep state and outboxes."""
    return [path for path in local.rglob("*.journal") if "holdfast" in path.parts]
