"""The profile of a running job, kept current in its storage: numbered records, of which the last two stay.

Runs on the driver. Storage has no overwriting, so each profile is the next record; a driver that finds a number taken
uses a later one. Nothing depends on it: a write that fails is tried again at a later checkpoint, and a damaged record
is passed over. A record is a topology file, so that a reader needs no other object of the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from holdfast.errors import BadInput, HoldfastError
from holdfast.runtime.coordinator.progress import last_driver
from holdfast.storage.records import Records, Written
from holdfast.storage.storage import Storage, open_storage
from holdfast.topology import Topology, fingerprint, from_document

FORMAT = 1
KEPT = 2
EVERY_SECONDS = 30.0
"""A profile is written at a checkpoint, at most so often."""


class ProfileRecords:
    """Writes the profile of one driver's run."""

    def __init__(self, storage: Storage, claim: int) -> None:
        self._records, self._claim = Records(storage, "profile", version=FORMAT), claim
        self._written_at: float | None = None
        self.before: Mapping[str, Any] | None = None
        """What the driver before measured; None: nothing is known."""
        with suppress(OSError):
            self.before = (last_profile(storage) or {}).get("measured")

    def due(self, now: float) -> bool:
        """Whether the last one is old enough."""
        return self._written_at is None or now - self._written_at >= EVERY_SECONDS

    def write(self, now: float, document: Mapping[str, Any]) -> None:
        """Write the next record, and drop older ones."""
        self._written_at = now
        numbers = self._records.numbers()
        number = numbers[-1] + 1 if numbers else 0
        if self._records.create(number, {"claim": self._claim, "at": now, "profile": document}) is Written.CREATED:
            self._records.drop([one for one in numbers if one <= number - KEPT])


def measured_topology(storage: Storage, topology: Topology) -> Topology | None:
    """Return a topology as an earlier driver measured it; None: it left no profile of this one."""
    with suppress(OSError, HoldfastError):
        if (document := last_profile(storage)) is not None:
            known = from_document(document)
            if fingerprint(known) == fingerprint(topology):
                return known
    return None


def last_profile(storage: Storage) -> dict[str, Any] | None:
    """Return the newest profile that can be read, as a topology file's document; None: there is none."""
    records = Records(storage, "profile", version=FORMAT)
    for number in reversed(records.numbers()):
        with suppress(HoldfastError):
            found = records.read(number)
            if found is not None and isinstance(found.get("profile"), dict):
                return dict(found["profile"])
    return None


def profile_of_run(directory: str) -> tuple[Topology, dict[str, Any]]:
    """Return the profile that the driver of the run in a directory keeps, and what was measured."""
    storage = open_storage(f"{directory.rstrip('/')}/run")
    found = last_profile(storage)
    if found is None and last_driver(storage) is None:
        raise BadInput(
            "no run began here, and it is not an application",
            where=directory,
            remedy="give the directory of a run, my_app.py, or an example's name",
        )
    if found is None:
        raise BadInput(
            "the run has no profile yet",
            where=directory,
            remedy="its driver writes one at its first checkpoint: try again then",
        )
    return from_document(found), found.get("measured") or {}
