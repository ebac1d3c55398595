"""Deliberate bugs of fences: what becomes of a change of layout whose driver is late, and of a driver that is over."""

from __future__ import annotations

from typing import Any

from holdfast.runtime.coordinator.cycles import Cycles
from holdfast.runtime.io.batch_log import BatchLog
from holdfast.runtime.io.batch_records import BatchRecord
from holdfast.runtime.messages import SnapshotNotStored
from simulation.bugs import Bug, Patch


def late_fence_ends_the_run(patch: Patch) -> None:
    """A driver ends where it finds a fence, also one of a driver that is over."""
    right = BatchLog._check_earlier

    def check(self: BatchLog, record: BatchRecord) -> None:
        right(self, record)
        if record.generation > self.generation:
            raise self._over(f"batch {record.batch} was logged under claim {record.claim}")

    patch.setattr(BatchLog, "_check_earlier", check)


def fenced_driver_saves_on(patch: Patch) -> None:
    """A driver whose snapshots are refused as fenced does not look whether its claim is over."""
    patch.setattr(Cycles, "_not_stored", _unfenced(Cycles._not_stored))


def _unfenced(right: Any) -> Any:
    def not_stored(self: Cycles, answer: SnapshotNotStored) -> None:
        check, self._decisions.check_claim = self._decisions.check_claim, lambda: None  # type: ignore[method-assign]
        try:
            right(self, answer)
        finally:
            self._decisions.check_claim = check  # type: ignore[method-assign]

    return not_stored


FENCE_BUGS = [
    Bug(put_in.__name__.replace("_", " "), put_in.__doc__ or "", put_in) for put_in in (late_fence_ends_the_run,)
]
CLAIM_BUGS = [
    Bug(put_in.__name__.replace("_", " "), put_in.__doc__ or "", put_in) for put_in in (fenced_driver_saves_on,)
]
