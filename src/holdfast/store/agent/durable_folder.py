"""Copies of snapshots in the durable folder: storage that outlives every node and that all nodes reach. Runs in agents.

    FOLDER/RUN/KEY.snapshot            the snapshot file that the task wrote
    FOLDER/RUN/.epoch-12               the highest epoch that wrote here: lower ones may neither write nor remove

A snapshot is written beside its place, synced, renamed, and the folder synced: it is there whole or not at all.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from pathlib import Path

from holdfast.durable_files import replacing_durably
from holdfast.erasure.fragment import StateId
from holdfast.ids import Epoch
from holdfast.store.agent.snapshot_files import check_snapshot
from holdfast.store.agent.snapshot_names import state_of
from holdfast.store.peer.disk import Disk
from holdfast.store.wire.failures import Corrupt, NoRoom, StaleEpoch

ABANDONED_SECONDS = 3600.0
"""Seconds after which a partly written file belongs to an agent that has exited."""
_EPOCH = ".epoch-"


class DurableFolder:
    """Copies of snapshots in a folder."""

    def __init__(self, folder: Path) -> None:
        """Use this folder; the first save creates it."""
        self.folder = folder
        self._disk = Disk()

    def save(self, name: str, snapshot: Path, epoch: Epoch) -> None:
        """Copy a snapshot's file; returns when it will survive a power cut."""
        target = self._place(name)
        try:
            self._disk.make_folder(target.parent)
            self._enter(state_of(name), epoch)
            if target.exists():
                return
            with replacing_durably(target) as file, snapshot.open("rb") as source:
                shutil.copyfileobj(source, file, 1 << 20)
        except OSError as error:
            raise NoRoom(
                f"cannot write the durable copy: {error.strerror or error}",
                where=str(self.folder),
                remedy="make the folder writable on every node and free disk space",
            ) from None

    def fetch(self, name: str, target: Path) -> bool:
        """Copy a snapshot's file to this node; false where there is none, `Corrupt` where it is damaged."""
        try:
            source = self._place(name).open("rb")
        except FileNotFoundError:
            return False
        with source, target.open("wb") as file:
            shutil.copyfileobj(source, file, 1 << 20)
        try:
            check_snapshot(target, name)
        except Corrupt as corrupt:
            target.unlink()
            raise Corrupt(f"the durable copy is damaged: {corrupt.what}", where=str(self._place(name))) from None
        return True

    def forget(self, name: str, epoch: Epoch | None) -> None:
        """Remove a snapshot if it exists. No epoch: the caller has never written here, and fences nothing."""
        place = self._place(name)
        if place.exists():
            if epoch is not None:
                self._enter(state_of(name), epoch)
            place.unlink(missing_ok=True)

    def has(self, name: str) -> bool:
        """Return whether there is a copy."""
        return self._place(name).exists()

    def tidy(self) -> None:
        """Remove partly written files of agents that have exited."""
        for part in self.folder.glob("*/.*.part"):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - part.stat().st_mtime > ABANDONED_SECONDS:
                    part.unlink()

    def _place(self, name: str) -> Path:
        state = state_of(name)
        return self.folder / state.namespace / f"{state.name}.snapshot"

    def _enter(self, state: StateId, epoch: Epoch) -> None:
        """Fence lower epochs; `StaleEpoch` if this one is fenced. One file per epoch: agents cannot race."""
        within = self.folder / state.namespace
        marks = [int(path.name.removeprefix(_EPOCH)) for path in within.glob(f"{_EPOCH}*")]
        if epoch < max(marks, default=0):
            raise StaleEpoch(f"epoch {epoch} of {state.namespace!r} is fenced: epoch {max(marks)} has started")
        if epoch not in marks:
            (within / f"{_EPOCH}{int(epoch)}").touch()
            for lower in marks:
                (within / f"{_EPOCH}{lower}").unlink(missing_ok=True)
