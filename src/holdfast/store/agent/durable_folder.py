"""Snapshots on storage that outlives every node: a folder all nodes reach, named by the user. Runs in agents.

    FOLDER/RUN/KEY.snapshot            a snapshot's file, as the task wrote it
    FOLDER/RUN/.epoch-12            the highest epoch that wrote here: lower ones may neither write nor remove

A snapshot is written beside its place, synced, renamed, and the folder synced: it is there whole or not at all.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from pathlib import Path

from holdfast.erasure.fragment import StateId
from holdfast.ids import Epoch
from holdfast.store.agent.snapshot_files import check_image
from holdfast.store.agent.snapshot_names import state_of
from holdfast.store.peer.disk import Disk
from holdfast.store.peer.publishing import published
from holdfast.store.wire.failures import Corrupt, NoRoom, StaleEpoch

ABANDONED_SECONDS = 3600.0
"""A file that was being written for so long belongs to an agent that is gone."""
_EPOCH = ".epoch-"


class DurableFolder:
    """Copies of snapshots in a folder."""

    def __init__(self, folder: Path) -> None:
        """Use this folder; it is made when the first snapshot comes."""
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
            with published(target) as file, snapshot.open("rb") as source:
                shutil.copyfileobj(source, file, 1 << 20)
        except OSError as error:
            raise NoRoom(
                f"cannot write the durable copy: {error.strerror or error}",
                where=str(self.folder),
                remedy="see that every node can write there and that there is room",
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
            check_image(target, name)
        except Corrupt as corrupt:
            target.unlink()
            raise Corrupt(f"the durable copy is damaged: {corrupt.what}", where=str(self._place(name))) from None
        return True

    def forget(self, name: str, epoch: Epoch | None) -> None:
        """Remove a snapshot; fine when it is not there. No epoch: whoever asks has never written here."""
        place = self._place(name)
        if place.exists():
            if epoch is not None:
                self._enter(state_of(name), epoch)
            place.unlink(missing_ok=True)

    def has(self, name: str) -> bool:
        """Say whether there is a copy."""
        return self._place(name).exists()

    def tidy(self) -> None:
        """Remove what agents that are gone left half-written."""
        for part in self.folder.glob("*/.*.part"):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - part.stat().st_mtime > ABANDONED_SECONDS:
                    part.unlink()

    def _place(self, name: str) -> Path:
        state = state_of(name)
        return self.folder / state.namespace / f"{state.name}.snapshot"

    def _enter(self, state: StateId, epoch: Epoch) -> None:
        """Fence lower epochs, or be refused as one. Marks are only added, so that no two agents lose one."""
        within = self.folder / state.namespace
        marks = [int(path.name.removeprefix(_EPOCH)) for path in within.glob(f"{_EPOCH}*")]
        if epoch < max(marks, default=0):
            raise StaleEpoch(f"epoch {epoch} of {state.namespace!r} is over: epoch {max(marks)} has begun")
        if epoch not in marks:
            (within / f"{_EPOCH}{epoch}").touch()
            for lower in marks:
                (within / f"{_EPOCH}{lower}").unlink(missing_ok=True)
