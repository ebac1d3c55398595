"""Deliberate bugs of fences: what becomes of a change of layout whose driver is late."""

from __future__ import annotations

from holdfast.runtime.io.batch_log import BatchLog
from holdfast.runtime.io.batch_records import BatchRecord
from simulation.bugs import Bug, Patch


def late_fence_ends_the_run(patch: Patch) -> None:
    """A driver ends where it finds a fence, also one of a driver that is over."""
    right = BatchLog._check_earlier

    def check(self: BatchLog, record: BatchRecord) -> None:
        right(self, record)
        if record.generation > self.generation:
            raise self._over(f"batch {record.batch} was logged under claim {record.claim}")

    patch.setattr(BatchLog, "_check_earlier", check)


FENCE_BUGS = [
    Bug(put_in.__name__.replace("_", " "), put_in.__doc__ or "", put_in) for put_in in (late_fence_ends_the_run,)
]
