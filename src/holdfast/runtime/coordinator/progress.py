"""The batch log: epoch, checkpoints, placement of a run, on durable storage, before any effect. Runs on the driver.

One small file, replaced at once: a driver that dies between two writes finds the one or the other. A driver that
another one has followed is refused: its epoch is over.
"""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from holdfast.errors import BadInput, CheckFailed
from holdfast.ids import Epoch, folder_name
from holdfast.runtime.io.durable_files import replace_durably
from holdfast.runtime.state.store import StaleEpoch

PATIENCE = 10.0
"""Seconds that a driver waits for another one's write to end."""
NO_EPOCH = Epoch(0)
"""Before the first."""


class Progress(Protocol):
    """Where a run's progress is written down."""

    run: str
    """Names the run, over all its drivers: its snapshots in the store are apart from every other's."""
    epoch: Epoch
    """The last epoch that was begun."""
    machine: Mapping[str, Any] | None
    """What the recovery machine wrote last; None: the run begins."""
    measures: Mapping[str, Any]
    """What partitions had taken then, by their names: a new driver plans with it."""

    def write(self, epoch: Epoch, machine: Mapping[str, Any], measures: Mapping[str, Any]) -> None:
        """Put new progress in the place of the old."""
        ...


def check_writer(seen: Epoch, there: int, where: str | None = None) -> None:
    """Refuse a driver that has not seen what is written: another one has followed it.

    Epochs alone would not do: an old driver counts its own on, past those of the new one.
    """
    if there != seen:
        raise StaleEpoch(
            f"epoch {seen} is over: another driver has begun {there}",
            where=where,
            remedy="this driver is not the run's any more: end it",
        )


@dataclass(slots=True)
class ProgressShelf:
    """What is written of a run that does not outlive its process, whoever its driver is."""

    epoch: Epoch = NO_EPOCH
    machine: Mapping[str, Any] | None = None
    measures: Mapping[str, Any] = field(default_factory=dict)


class MemoryProgress:
    """Progress of a run that does not outlive its process; each driver has one of its own, on one shelf."""

    def __init__(self, run: str = "run", shelf: ProgressShelf | None = None) -> None:
        self.run = run
        self._shelf = shelf or ProgressShelf()
        self.epoch, self.machine, self.measures = self._shelf.epoch, self._shelf.machine, self._shelf.measures

    def write(self, epoch: Epoch, machine: Mapping[str, Any], measures: Mapping[str, Any]) -> None:
        """See Progress."""
        check_writer(self.epoch, self._shelf.epoch)
        self.epoch = self._shelf.epoch = epoch
        self.machine = self._shelf.machine = machine
        self.measures = self._shelf.measures = measures


class ProgressFile:
    """The file of a run's progress."""

    def __init__(self, path: Path, application: str, *, patience: float = PATIENCE) -> None:
        """Open or begin it; one of another application is refused. Another writer is waited for with some patience."""
        self._path, self._application, self._stalls = path, application, patience
        fields = self._read()
        self.run: str = f"{folder_name(application)}-{uuid4().hex[:12]}" if fields is None else fields["run"]
        self.epoch = NO_EPOCH if fields is None else Epoch(fields["epoch"])
        self.machine: Mapping[str, Any] | None = None if fields is None else fields["machine"]
        self.measures: Mapping[str, Any] = {} if fields is None else fields.get("measures", {})
        if fields is not None and fields["application"] != application:
            raise BadInput(
                f"belongs to application {fields['application']!r}, not {application!r}",
                where=str(path),
                remedy="give every application a directory of its own",
            )

    def write(self, epoch: Epoch, machine: Mapping[str, Any], measures: Mapping[str, Any]) -> None:
        """Put new progress in the place of the old, on the disk when this returns; an earlier driver's is refused."""
        with self._alone():
            there = self._read()
            check_writer(self.epoch, NO_EPOCH if there is None else there["epoch"], str(self._path))
            fields = {
                "holdfast-progress": 2,
                "application": self._application,
                "run": self.run,
                "epoch": epoch,
                "machine": machine,
                "measures": measures,
            }
            replace_durably(self._path, json.dumps(fields).encode())
        self.epoch, self.machine, self.measures = epoch, machine, measures

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Look and write in one step: of two drivers, the later sees what the earlier wrote."""
        with self._path.with_name(f".{self._path.name}.lock").open("a") as file:
            deadline = time.monotonic() + self._stalls
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= deadline:
                        raise CheckFailed(
                            "another driver is in the middle of writing",
                            where=str(self._path),
                            remedy="end it (it may be frozen), and start this run again: nothing is lost",
                        ) from None
                    time.sleep(0.005)
            yield

    def _read(self) -> dict[str, Any] | None:
        try:
            fields = json.loads(self._path.read_bytes())
            if not isinstance(fields["machine"], dict) or not isinstance(fields["epoch"], int):
                raise TypeError
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            raise CheckFailed("is damaged", where=str(self._path), remedy="restore it from a copy") from None
        return dict(fields)
