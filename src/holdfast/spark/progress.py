"""The batch log: epoch and checkpoint of a run, on durable storage, before any effect. Runs on the driver.

One small file, replaced at once: a driver that dies between two writes finds the one or the other.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from holdfast.errors import BadInput, CheckFailed
from holdfast.ids import BatchId, Epoch
from holdfast.runtime.stores import StaleEpoch
from holdfast.runtime.versions import NO_BATCH

NO_EPOCH = Epoch(0)
"""Before the first."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands."""

    application: str
    epoch: Epoch = NO_EPOCH
    checkpoint: BatchId = NO_BATCH
    checkpoint_epoch: Epoch = NO_EPOCH
    """The epoch the checkpoint was taken in."""


class ProgressFile:
    """The file of a run's progress."""

    def __init__(self, path: Path, application: str) -> None:
        """Open or begin it; one of another application is refused."""
        self._path = path
        self.now = self._read() or Progress(application)
        if self.now.application != application:
            raise BadInput(
                f"belongs to application {self.now.application!r}, not {application!r}",
                where=str(path),
                remedy="give every application a directory of its own",
            )

    def write(self, progress: Progress) -> None:
        """Put new progress in the place of the old, on the disk when this returns; an earlier driver's is refused."""
        there = self._read()
        if there is not None and there.epoch > progress.epoch:
            raise StaleEpoch(
                f"epoch {progress.epoch} is over: another driver has begun {there.epoch}",
                where=str(self._path),
                remedy="this driver is not the run's any more: end it",
            )
        beside = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        with beside.open("w") as file:
            json.dump({"holdfast-progress": 1, **asdict(progress)}, file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self._path)
        self.now = progress

    def _read(self) -> Progress | None:
        try:
            fields = json.loads(self._path.read_bytes())
            return Progress(
                str(fields["application"]),
                Epoch(int(fields["epoch"])),
                BatchId(int(fields["checkpoint"])),
                Epoch(int(fields["checkpoint_epoch"])),
            )
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            raise CheckFailed("is damaged", where=str(self._path), remedy="restore it from a copy") from None
