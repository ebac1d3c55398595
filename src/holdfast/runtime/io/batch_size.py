"""How many bytes of files the next batch takes: as many as are processed in a target time. Pure; on the driver.

A batch that takes long delays everything behind it, also what is urgent; one that is short has its fixed cost. The rate
is measured from batches that all queries have completed that lead: one that catches up, or is worth less, says nothing
about how fast batches are processed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.ids import BatchId

LEAST_BYTES = 256 << 10
FIRST_BYTES = 8 << 20
_WEIGHT = 0.5
"""Of the latest measurement."""


@dataclass(slots=True)
class BatchSize:
    """The sizes of batches."""

    seconds: float
    """How long a batch should take."""
    most_bytes: int
    _rate: float | None = None
    """Bytes a second."""
    _logged: dict[BatchId, tuple[int, float]] = field(default_factory=dict)
    """Bytes of batches that those that lead have not completed, and when they were logged."""
    _since: float = 0.0
    """When the last batch was completed."""

    @property
    def limit(self) -> int:
        """Bytes that the next batch takes at most."""
        wanted = FIRST_BYTES if self._rate is None else int(self._rate * self.seconds)
        return min(self.most_bytes, max(LEAST_BYTES, wanted))

    def logged(self, batch: BatchId, size: int, now: float) -> None:
        """A batch of so many bytes is logged."""
        self._logged[batch] = (size, now)

    def completed(self, through: BatchId, now: float) -> None:
        """All queries that lead have completed a batch."""
        done = [batch for batch in self._logged if batch <= through]
        if not done:
            return
        sizes = [self._logged.pop(batch) for batch in sorted(done)]
        size, took = sum(size for size, _ in sizes), now - max(self._since, min(at for _, at in sizes))
        self._since = now
        if size < LEAST_BYTES // 4 or took <= 0:
            return  # what is little says nothing about how fast much would be
        rate = size / took
        self._rate = rate if self._rate is None else _WEIGHT * rate + (1 - _WEIGHT) * self._rate
