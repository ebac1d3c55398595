"""Progress of a run: claim, epoch, checkpoints, placement, on durable storage before any effect. Runs on the driver.

Claims and progress are one sequence of numbered records (`storage.records`). A driver begins by writing the next
record: with it, it takes the next *claim*, and what was written before is what it goes on from. Every later write is
the next number again. A driver that finds its next number taken is over: another one has the run. So an earlier driver
can write nothing that a later one has not read, wherever and for however long it was frozen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from holdfast.errors import BadInput
from holdfast.ids import Epoch, folder_name
from holdfast.runtime.state.store import StaleEpoch
from holdfast.storage.records import Records, Written
from holdfast.storage.storage import Storage

FORMAT = 4
KEPT = 16
"""So many records stay, for people who want to see what happened; the newest would do."""


class Progress:
    """A run's progress, as the driver with this claim reads and writes it."""

    def __init__(
        self,
        storage: Storage,
        application: str,
        *,
        driver: Mapping[str, Any] | None = None,
        run: str | None = None,
        kept: int = KEPT,
    ) -> None:
        """Take the next claim of the run in this storage, or begin one; another application's is refused.

        `driver` says who this is, for people and for the next driver. `run` names a run that begins. `kept`: so many
        records stay.
        """
        self._kept = kept
        self._records = Records(storage, "progress", version=FORMAT)
        self._application = application
        self._driver = {"id": uuid4().hex, **(driver or {})}
        while True:
            numbers = self._records.numbers()
            self._number = numbers[-1] if numbers else -1
            before = self._records.read(self._number) if numbers else None
            if numbers and before is None:
                continue  # the driver before has just written the next one, and dropped this
            _check_application(before, application, storage.url)
            self.run: str = (
                (run or f"{folder_name(application)}-{uuid4().hex[:12]}") if before is None else before["run"]
            )
            """Names the run, over all its drivers: its snapshots in the store are apart from every other's."""
            self.claim: int = 1 if before is None else before["claim"] + 1
            """This driver's number for the run."""
            self.machine: Mapping[str, Any] | None = None if before is None else before["machine"]
            """What the recovery machine of the driver before wrote last; None: the run begins."""
            self.measures: Mapping[str, Any] = {} if before is None else before["measures"]
            """What partitions had taken then, by their names: a new driver plans with it."""
            self.identity: Mapping[str, Any] | None = None if before is None else before["identity"]
            """What the run is, as the driver before described it."""
            self.generation: int = 0 if before is None else before["generation"]
            """The number of the run's layout: operators, keys, parallelism."""
            self.program: str | None = None if before is None else before["program"]
            """The object of the run's storage that has the application of this layout, where one was kept."""
            self._epoch = 0 if before is None else before["epoch"]
            if self._append(ended=False):
                return

    def write(self, epoch: Epoch, machine: Mapping[str, Any], measures: Mapping[str, Any]) -> None:
        """Write the next record; it is safe when this returns. Refused where another driver has taken a claim."""
        self._epoch, self.machine, self.measures = epoch.number, machine, measures
        self._next(ended=False)

    def describe(self, identity: Mapping[str, Any], program: str | None = None) -> None:
        """Have what the run is, and where its application is kept, in the records from the next one on."""
        self.identity, self.program = identity, program

    def change(
        self,
        generation: int,
        identity: Mapping[str, Any],
        machine: Mapping[str, Any] | None,
        program: str | None = None,
    ) -> None:
        """Write that the run has another layout, and where it begins; what was measured of the old one is dropped."""
        self.generation, self.identity, self.program = generation, identity, program
        self.machine, self.measures = machine, {}
        self._next(ended=False)

    def end(self) -> None:
        """Write down that this driver has ended in order: the next one need not look whether it lives."""
        self._next(ended=True)

    def check(self) -> None:
        """Refuse to go on where another driver has taken a claim; writes nothing."""
        if self._records.numbers(after=self._number):
            raise self._over()

    def _over(self) -> StaleEpoch:
        return StaleEpoch(
            f"claim {self.claim} is over: another driver has taken a later one",
            where=f"application {self._application}",
            remedy="another driver runs this application: end this one",
        )

    def _next(self, *, ended: bool) -> None:
        if not self._append(ended=ended):
            raise self._over()
        if self._number % self._kept == 0:
            self._records.drop([number for number in self._records.numbers() if number <= self._number - self._kept])

    def _append(self, *, ended: bool) -> bool:
        fields = {
            "application": self._application,
            "run": self.run,
            "claim": self.claim,
            "driver": self._driver,
            "ended": ended,
            "epoch": self._epoch,
            "generation": self.generation,
            "identity": self.identity,
            "program": self.program,
            "machine": self.machine,
            "measures": self.measures,
        }
        if self._records.create(self._number + 1, fields) is not Written.CREATED:
            return False
        self._number += 1
        return True


def last_driver(storage: Storage) -> Mapping[str, Any] | None:
    """Return the last record of a run's progress: who wrote it, and whether that driver ended; None: there is none."""
    records = Records(storage, "progress", version=FORMAT)
    while numbers := records.numbers():
        found = records.read(numbers[-1])
        if found is not None:
            return found
    return None


def _check_application(before: Mapping[str, Any] | None, application: str, where: str) -> None:
    if before is not None and before["application"] != application:
        raise BadInput(
            f"belongs to application {before['application']!r}, not {application!r}",
            where=where,
            remedy="give every application a directory of its own",
        )
