"""A simulated file system for the spool of a node: processes die between any two calls, disks fill up, machines crash.

Runs anywhere. A process that is killed leaves every file as it is. A machine that crashes loses what was not synced,
and a spool never syncs: each file that was written since is there, torn, empty or gone, whatever its name says.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from holdfast.store.agent.spool_files import SpoolFiles
from holdfast_lab.simulation.recovery.faults import Fault, Mischief


class ProcessDied(BaseException):
    """The process whose code ran is killed: a task, or an agent."""


@dataclass(slots=True)
class SimulatedFile:
    """One file, whatever names it has."""

    data: bytes
    changed_at: float
    synced: bool = False


class Disk:
    """What is on a machine's disk, whoever uses it."""

    def __init__(self, mischief: Mischief, clock: Callable[[], float]) -> None:
        self.mischief, self.clock = mischief, clock
        self.files: dict[str, SimulatedFile] = {}
        """By path."""
        self.folders: set[Path] = set()
        self.full_until = -1.0
        self.count = 0

    def crash(self) -> None:
        """Lose what was not synced."""
        draw = self.mischief.draw
        for path, file in list(self.files.items()):
            fate = draw.random()
            if file.synced or fate < 0.4:
                file.synced = True
            elif fate < 0.6:
                del self.files[path]
            elif fate < 0.8:
                file.data = b""
            else:
                file.data = file.data[: draw.randrange(len(file.data) + 1)]

    def names(self, folder: Path) -> list[str]:
        """Return the names of the files in a folder."""
        prefix = f"{folder}/"
        inside = [path.removeprefix(prefix) for path in self.files if path.startswith(prefix)]
        return sorted(name for name in inside if "/" not in name)

    def is_full(self) -> bool:
        """Whether there is no room now: it stays so for a while."""
        now = self.clock()
        if self.mischief.active and now >= self.full_until and self.mischief.strikes(Fault.DISK_FULL):
            self.full_until = now + self.mischief.draw.uniform(5, 120)
        return self.mischief.active and now < self.full_until


class ProcessFiles(SpoolFiles):
    """The disk as one process sees it: once that is dead, it does nothing any more."""

    def __init__(self, disk: Disk, killed: Fault) -> None:
        """`killed` is the fault by which this process dies between two calls."""
        self._disk, self._killed = disk, killed
        self.dead = False

    def _call(self) -> Disk:
        if self.dead or self._disk.mischief.strikes(self._killed):
            self.dead = True
            raise ProcessDied
        return self._disk

    def now(self) -> float:
        """See SpoolFiles."""
        return self._disk.clock()

    def new_name(self) -> str:
        """See SpoolFiles."""
        self._disk.count += 1
        return f"{self._disk.count:08d}"

    def make_folder(self, path: Path) -> None:
        """See SpoolFiles."""
        self._call().folders.add(path)

    def is_folder(self, path: Path) -> bool:
        """See SpoolFiles."""
        return path in self._call().folders

    def exists(self, path: Path) -> bool:
        """See SpoolFiles."""
        return str(path) in self._call().files

    def names(self, folder: Path) -> list[str]:
        """See SpoolFiles."""
        return self._call().names(folder)

    def write(self, path: Path, pieces: Sequence[bytes | memoryview]) -> None:
        """See SpoolFiles: who is killed inside leaves a part, who finds no room leaves nothing."""
        disk = self._call()
        if str(path) in disk.files:
            raise FileExistsError(errno.EEXIST, "File exists")
        if disk.is_full():
            raise OSError(errno.ENOSPC, "No space left on device")
        data = b"".join(bytes(piece) for piece in pieces)
        disk.files[str(path)] = SimulatedFile(data[: len(data) // 2], disk.clock())
        self._call().files[str(path)] = SimulatedFile(data, disk.clock())

    def read(self, path: Path, most: int | None = None) -> bytes:
        """See SpoolFiles."""
        data = self._file(path).data
        return data if most is None else data[:most]

    def size(self, path: Path) -> int:
        """See SpoolFiles."""
        return len(self._file(path).data)

    def mapped(self, path: Path) -> memoryview:
        """See SpoolFiles."""
        return memoryview(self._file(path).data)

    def buffer(self, path: Path) -> pa.Buffer:
        """See SpoolFiles."""
        return pa.py_buffer(self._file(path).data)

    def rename(self, path: Path, target: Path) -> None:
        """See SpoolFiles."""
        file = self._file(path, damaged=False)
        del self._disk.files[str(path)]
        self._disk.files[str(target)] = file

    def link(self, path: Path, target: Path) -> None:
        """See SpoolFiles."""
        file = self._file(path, damaged=False)
        if str(target) in self._disk.files:
            raise FileExistsError(errno.EEXIST, "File exists")
        self._disk.files[str(target)] = file

    def remove(self, path: Path) -> None:
        """See SpoolFiles."""
        self._call().files.pop(str(path), None)

    def changed_at(self, path: Path) -> float:
        """See SpoolFiles."""
        return self._file(path, damaged=False).changed_at

    def touch(self, path: Path) -> None:
        """See SpoolFiles."""
        self._file(path, damaged=False).changed_at = self._disk.clock()

    def _file(self, path: Path, *, damaged: bool = True) -> SimulatedFile:
        disk = self._call()
        file = disk.files.get(str(path))
        if file is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        if damaged and disk.mischief.strikes(Fault.READ_ERROR):
            raise OSError(errno.EIO, "Input/output error")
        return file
