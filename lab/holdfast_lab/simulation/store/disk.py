"""The disk of a simulated machine: a folder, with what no sync has made sure of remembered, and errors on demand.

A process that is killed leaves the folder as it is. A machine that loses power also loses, by chance, each rename,
removal and write that was not synced. What is removed and quarantined is shown to the model first.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Protocol

from holdfast.store.peer.disk import Disk
from holdfast_lab.simulation.store.threads import Killed, Process, Scheduler

PAUSES = 0.3
"""Share of the file operations between which other threads get a turn."""


class FileObserver(Protocol):
    """Sees what a peer does to its published fragments."""

    def removes(self, disk: SimulatedDisk, path: Path) -> None:
        """Note that a fragment goes."""

    def quarantines(self, disk: SimulatedDisk, path: Path) -> None:
        """Note that a fragment is put away as damaged."""


class SimulatedDisk(Disk):
    """The disk of one machine, as the peer on it that runs now sees it."""

    def __init__(self, folder: Path, scheduler: Scheduler, random: Random, observer: FileObserver) -> None:
        super().__init__()
        self.folder = folder
        self.scheduler, self._random, self._observer = scheduler, random, observer
        self.process: Process | None = None
        """Who uses it; dead: nothing that it does has an effect."""
        self.full = False
        self.quietly_full = False
        """Writes fail although free space is reported."""
        self.no_handles = False
        self._open: dict[int, Path] = {}
        self._unsynced_files: dict[Path, int] = {}
        self._renames: dict[Path, list[tuple[Path, Path, bytes | None]]] = {}
        self._removed: dict[Path, list[tuple[Path, bytes]]] = {}

    def _step(self, *, writes: bool = False, opens: bool = False) -> None:
        if self.process is not None and self.process.dead:
            raise Killed
        self.scheduler.pause(PAUSES)
        if self.process is not None and self.process.dead:
            raise Killed
        if writes and (self.full or self.quietly_full):
            raise OSError(errno.ENOSPC, "No space left on device")
        if opens and self.no_handles:
            raise OSError(errno.EMFILE, "Too many open files")

    def make_folder(self, path: Path) -> None:
        """See Disk."""
        if not path.is_dir():
            self._step(writes=True)
            path.mkdir(parents=True, exist_ok=True)

    def open_new(self, path: Path) -> int:
        """See Disk."""
        self._step(writes=True, opens=True)
        handle = super().open_new(path)
        self._open[handle] = path
        self._unsynced_files[path] = 0
        return handle

    def append(self, handle: int, pieces: Sequence[bytes | bytearray | memoryview]) -> None:
        """See Disk."""
        self._step(writes=True)
        super().append(handle, pieces)

    def sync_file(self, handle: int) -> None:
        """See Disk."""
        self._step()
        self._unsynced_files.pop(self._open[handle], None)

    def close(self, handle: int) -> None:
        """See Disk."""
        if self._open.pop(handle, None) is not None:
            os.close(handle)

    def rename(self, source: Path, target: Path) -> None:
        """See Disk."""
        self._step()
        if target.parent.name == "quarantine":
            self._observer.quarantines(self, source)
        before = target.read_bytes() if target.exists() else None
        super().rename(source, target)
        if source in self._unsynced_files:
            self._unsynced_files[target] = self._unsynced_files.pop(source)
        self._renames.setdefault(target.parent, []).append((source, target, before))

    def remove(self, path: Path) -> None:
        """See Disk."""
        if path.exists():
            self._step()
        if path.exists():
            if path.suffix == ".fragment":
                self._observer.removes(self, path)
            self._removed.setdefault(path.parent, []).append((path, path.read_bytes()))
            super().remove(path)

    def remove_empty(self, path: Path) -> None:
        """See Disk."""
        self._step()
        super().remove_empty(path)

    def sync_folder(self, path: Path) -> None:
        """See Disk."""
        self._step()
        self._renames.pop(path, None)
        self._removed.pop(path, None)

    def read(self, path: Path, start: int, length: int) -> bytes:
        """See Disk."""
        self._step(opens=True)
        return super().read(path, start, length)

    def free(self, path: Path) -> int:
        """See Disk."""
        return 0 if self.full else 1 << 40

    # What happens to machines

    def let_go(self) -> None:
        """The process is gone: the system closes its files."""
        for handle in self._open:
            os.close(handle)
        self._open.clear()

    def lose_power(self) -> None:
        """Undo, by chance, what no sync has made sure of."""
        for undone in reversed([one for some in self._renames.values() for one in some]):
            source, target, before = undone
            if target.exists() and self._random.random() < 0.5:
                source.parent.mkdir(parents=True, exist_ok=True)
                os.rename(target, source)
                if target in self._unsynced_files:
                    self._unsynced_files[source] = self._unsynced_files.pop(target)
                if before is not None:
                    target.write_bytes(before)
        for path, contents in [one for some in self._removed.values() for one in some]:
            if not path.exists() and self._random.random() < 0.5:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(contents)
        for path in self._unsynced_files:
            if path.exists() and self._random.random() < 0.7:
                os.truncate(path, self._random.randrange(path.stat().st_size + 1))
        self.forget_history()

    def forget_history(self) -> None:
        """All that is on the disk now stays."""
        self._renames.clear()
        self._removed.clear()
        self._unsynced_files.clear()

    def wipe(self) -> None:
        """An empty disk takes its place."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.forget_history()

    def fragments(self) -> list[Path]:
        """Return the published fragments, in a fixed order."""
        return sorted(self.folder.glob("fragments/*/*/*.fragment"))

    def flip(self, path: Path) -> None:
        """Damage a file."""
        data = bytearray(path.read_bytes())
        data[self._random.randrange(len(data))] ^= 1 << self._random.randrange(8)
        path.write_bytes(data)
