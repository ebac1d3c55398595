"""A simulated file system for the journal of a node: its process dies between any two calls, disks fill up and fail.

Runs anywhere. A process that is killed inside an append leaves a part of it, and so does one that finds no room. A
process that lives beside its successor goes on: it sees the same disk.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from holdfast.runtime.state.state_files import AppendFile, Piece, StateFiles
from holdfast_lab.simulation.recovery.faults import Fault
from holdfast_lab.simulation.recovery.files import Disk, ProcessDied, SimulatedFile


class SimulatedStateFiles(StateFiles):
    """The disk as one operator process sees it: once that is dead, it does nothing any more."""

    def __init__(self, disk: Disk, killed: Fault = Fault.TASK_KILLED) -> None:
        """`killed` is the fault by which this process dies between two calls."""
        self._disk, self._killed = disk, killed
        self.dead = False

    def call(self) -> Disk:
        """Return the disk; or die here."""
        if self.dead or self._disk.mischief.strikes(self._killed):
            self.dead = True
            raise ProcessDied
        return self._disk

    def make_folder(self, path: Path) -> None:
        """See StateFiles."""
        self.call().folders.add(path)

    def names(self, folder: Path) -> list[str]:
        """See StateFiles."""
        return self.call().names(folder)

    def exists(self, path: Path) -> bool:
        """See StateFiles."""
        return str(path) in self.call().files

    def create(self, path: Path) -> None:
        """See StateFiles: an empty file needs no room."""
        disk = self.call()
        if str(path) in disk.files:
            raise FileExistsError(errno.EEXIST, "File exists")
        disk.files[str(path)] = SimulatedFile(b"", disk.clock())

    def begin(self, path: Path) -> AppendFile:
        """See StateFiles."""
        self.create(path)
        return _Appended(self, self._disk.files[str(path)])

    def read(self, path: Path) -> bytes:
        """See StateFiles."""
        return self._file(path).data

    def size(self, path: Path) -> int:
        """See StateFiles."""
        return len(self._file(path, damaged=False).data)

    def buffer(self, path: Path) -> pa.Buffer:
        """See StateFiles."""
        return pa.py_buffer(self._file(path).data)

    def remove(self, path: Path) -> None:
        """See StateFiles."""
        self.call().files.pop(str(path), None)

    def _file(self, path: Path, *, damaged: bool = True) -> SimulatedFile:
        disk = self.call()
        file = disk.files.get(str(path))
        if file is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        if damaged and disk.mischief.strikes(Fault.READ_ERROR):
            raise OSError(errno.EIO, "Input/output error")
        return file


class _Appended(AppendFile):
    """A file that stays when its name is removed, as an open one does."""

    def __init__(self, files: SimulatedStateFiles, file: SimulatedFile) -> None:
        self._files, self._file = files, file

    def append(self, pieces: Sequence[Piece]) -> None:
        """See AppendFile."""
        disk = self._files.call()
        before, data = self._file.data, b"".join(bytes(piece) for piece in pieces)
        self._file.data = before + data[: disk.mischief.draw.randrange(len(data) + 1)]
        if disk.is_full():
            raise OSError(errno.ENOSPC, "No space left on device")
        self._files.call()
        self._file.data = before + data

    def close(self) -> None:
        """See AppendFile."""
