"""Small file systems for the local files of nodes, which can be filled. Runs beside the cluster, as root."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from pathlib import Path

from holdfast.errors import BadInput, CheckFailed

_CHUNK = 1 << 20


def check_small_disks() -> None:
    """Refuse, with one line, where this process cannot mount a file system."""
    if os.geteuid() != 0:
        raise BadInput("mounts a small file system, and that needs root", field="--fill-disk", remedy="run it as root")
    if shutil.which("mount") is None:
        raise BadInput("needs the command mount, which is not there", field="--fill-disk", remedy="install util-linux")


def mount_small_disk(folder: Path, megabytes: int) -> None:
    """Mount a file system of so many MB, in memory, on a folder that is made where it is not there."""
    check_small_disks()
    folder.mkdir(parents=True, exist_ok=True)
    words = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=0755", "holdfast-small-disk", str(folder)]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["no reason was given"])[-1]
        raise CheckFailed(f"a small disk cannot be mounted: {why}", where=str(folder), remedy="see that mounting works")


def fill_up(path: Path) -> int:
    """Write a file until its file system takes no more; return its size."""
    written = 0
    with path.open("wb", buffering=0) as file:
        for size in (_CHUNK, 4096, 1):
            try:
                while True:
                    written += file.write(b"\0" * size)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
    return written
