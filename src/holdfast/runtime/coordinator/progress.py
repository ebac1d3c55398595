"""Progress of a run: claim, epoch, checkpoints, placement, on durable storage before any effect. Runs on the driver.

A driver begins by taking a *claim*: it reads what is written and puts a claim of its own over it, in one step. From
then on an earlier driver is refused: only a higher claim ends a driver. Progress is one small file, replaced at once: a
driver that dies between two writes finds the one or the other.
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

from holdfast.durable_files import replace_durably
from holdfast.errors import BadInput, CheckFailed
from holdfast.ids import Epoch, folder_name
from holdfast.runtime.state.store import StaleEpoch

LOCK_SECONDS = 10.0
"""How long a driver waits for another one's write to end."""
FORMAT = 3


class Progress(Protocol):
    """Where a run's progress is written down, by the driver that has this claim."""

    run: str
    """Names the run, over all its drivers: its snapshots in the store are apart from every other's."""
    claim: int
    """This driver's number for the run."""
    machine: Mapping[str, Any] | None
    """What the recovery machine of the driver before wrote last; None: the run begins."""
    measures: Mapping[str, Any]
    """What partitions had taken then, by their names: a new driver plans with it."""

    def write(self, epoch: Epoch, machine: Mapping[str, Any], measures: Mapping[str, Any]) -> None:
        """Replace the progress; refused where another driver has taken a higher claim."""
        ...


def check_claim(mine: int, current: int, where: str | None = None) -> None:
    """Refuse a driver that another one has followed."""
    if current != mine:
        raise StaleEpoch(
            f"claim {mine} is over: another driver has taken claim {current}",
            where=where,
            remedy="another driver runs this application: end this one",
        )


@dataclass(slots=True)
class ProgressRecord:
    """What is written of a run that does not outlive its process, whoever its driver is."""

    claim: int = 0
    machine: Mapping[str, Any] | None = None
    measures: Mapping[str, Any] = field(default_factory=dict)


class MemoryProgress:
    """Progress of a run that does not outlive its process; each driver has one of its own, over one record."""

    def __init__(self, run: str = "run", record: ProgressRecord | None = None) -> None:
        """Take the next claim."""
        self.run = run
        self._record = record or ProgressRecord()
        self._record.claim += 1
        self.claim, self.machine, self.measures = self._record.claim, self._record.machine, self._record.measures

    def write(self, epoch: Epoch, machine: Mapping[str, Any], measures: Mapping[str, Any]) -> None:
        """See Progress."""
        check_claim(self.claim, self._record.claim)
        self.machine = self._record.machine = machine
        self.measures = self._record.measures = measures


class ProgressFile:
    """The file of a run's progress."""

    def __init__(self, path: Path, application: str, *, lock_seconds: float = LOCK_SECONDS) -> None:
        """Take the next claim of a run, or begin one; a file of another application is refused."""
        self._path, self._application, self._lock_seconds = path, application, lock_seconds
        with self._alone():
            fields = self._read()
            if fields is not None and fields["application"] != application:
                raise BadInput(
                    f"belongs to application {fields['application']!r}, not {application!r}",
                    where=str(path),
                    remedy="give every application a directory of its own",
                )
            self.run: str = f"{folder_name(application)}-{uuid4().hex[:12]}" if fields is None else fields["run"]
            self.claim: int = 1 if fields is None else fields["claim"] + 1
            self.machine: Mapping[str, Any] | None = None if fields is None else fields["machine"]
            self.measures: Mapping[str, Any] = {} if fields is None else fields.get("measures", {})
            # What was written stays as it is: taking a claim changes nothing else.
            self._replace(0 if fields is None else fields["epoch"])

    def write(self, epoch: Epoch, machine: Mapping[str, Any], measures: Mapping[str, Any]) -> None:
        """See Progress; it is on the disk when this returns."""
        with self._alone():
            written = self._read()
            check_claim(self.claim, 0 if written is None else written["claim"], str(self._path))
            self.machine, self.measures = machine, measures
            self._replace(epoch.number)

    def _replace(self, epoch: int) -> None:
        fields = {
            "holdfast-progress": FORMAT,
            "application": self._application,
            "run": self.run,
            "claim": self.claim,
            "epoch": epoch,
            "machine": self.machine,
            "measures": self.measures,
        }
        replace_durably(self._path, json.dumps(fields).encode())

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Look and write in one step: of two drivers, the later sees what the earlier wrote."""
        with self._path.with_name(f".{self._path.name}.lock").open("a") as file:
            deadline = time.monotonic() + self._lock_seconds
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= deadline:
                        raise CheckFailed(
                            f"another driver has been writing for {self._lock_seconds:.0f} s",
                            where=str(self._path),
                            remedy="end it (it may be frozen), and start this run again: nothing is lost",
                        ) from None
                    time.sleep(0.005)
            yield

    def _read(self) -> dict[str, Any] | None:
        try:
            fields = json.loads(self._path.read_bytes())
            if isinstance(fields, dict) and fields.get("holdfast-progress", FORMAT) != FORMAT:
                raise BadInput(
                    f"has format {fields['holdfast-progress']!r}, and this version of Holdfast reads {FORMAT}",
                    where=str(self._path),
                    remedy="continue this run with the version that began it, or begin in another directory",
                )
            if not isinstance(fields["machine"], dict | None) or not isinstance(fields["claim"], int):
                raise TypeError
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            raise CheckFailed("is damaged", where=str(self._path), remedy="restore it from a copy") from None
        return dict(fields)
