"""Blocks that have come and find inboxes full go to disk. Runs on a node.

The batch that a consumer needs next is admitted on every stream, whatever is there already: where senders are many or
blocks are large, that alone may be more than a process should hold. Beyond a bound, what comes is written to a file
without a name and mapped: its pages are the system's to drop, and the file ends with the last table that refers to it,
or with the process.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from pathlib import Path
from threading import Lock
from typing import Any

import pyarrow as pa

from holdfast.runtime.worker.inbox_room import InboxRoom


class InboxSpill:
    """What has come and is not processed: in memory up to a bound, beyond it in mapped files. Used by any thread."""

    def __init__(self, folder: Path, most: int) -> None:
        """`most`: bytes in inboxes, and on their way to them, beyond which what comes goes to disk."""
        self._folder, self._room = folder, InboxRoom(most)
        self._lock = Lock()
        self.spilled = 0
        """Bytes that went to disk so far."""

    def arrived(self, body: Any) -> pa.Buffer:
        """Take what a connection brought; return it as it is, or as it is on disk."""
        data = pa.py_buffer(body)
        with self._lock:
            has_room = self._room.arrived(data.size)
        if has_room or not data.size:
            return data
        try:
            kept = self._keep(data)
        except OSError:  # a disk that is full is noticed where state is written
            return data
        with self._lock:
            self.spilled += data.size
        return kept

    def taken(self, size: int, in_inboxes: int) -> None:
        """So many bytes that had come are in inboxes now, or were of no use; inboxes hold so many in all."""
        with self._lock:
            self._room.taken(size, in_inboxes)

    def _keep(self, data: pa.Buffer) -> pa.Buffer:
        self._folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=self._folder, buffering=0) as file:
            left = memoryview(data)
            while left:
                left = left[os.write(file.fileno(), left) :]
            return pa.py_buffer(mmap.mmap(file.fileno(), data.size, prot=mmap.PROT_READ))
