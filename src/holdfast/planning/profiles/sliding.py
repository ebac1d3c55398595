"""Sums over the last so many seconds of a partition's own running time, in a few buckets. Pure; runs anywhere.

Time in which a partition is lost or waits for its node does not pass here: a partition that was down for an hour is
described by the minutes before, and not by nothing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

BUCKETS = 10


@dataclass(slots=True)
class Sums:
    """What was counted in some seconds."""

    seconds: float = 0.0
    """How long it was counted."""
    rows_in: int = 0
    rows_out: int = 0
    bytes_in: int = 0
    busy_seconds: float = 0.0
    """Processing, of these seconds."""
    cpu_seconds: float = 0.0
    written_bytes: int = 0
    batches: int = 0

    def add(self, more: Sums) -> None:
        """Add what another has."""
        self.seconds += more.seconds
        self.rows_in += more.rows_in
        self.rows_out += more.rows_out
        self.bytes_in += more.bytes_in
        self.busy_seconds += more.busy_seconds
        self.cpu_seconds += more.cpu_seconds
        self.written_bytes += more.written_bytes
        self.batches += more.batches


@dataclass(slots=True)
class SlidingSums:
    """The sums of at least `period` seconds, and of at most a tenth more."""

    period: float
    _buckets: deque[Sums] = field(default_factory=lambda: deque([Sums()]))

    def add(self, more: Sums) -> None:
        """Count something; the oldest bucket goes once the others hold a whole period."""
        if self._buckets[-1].seconds >= self.period / BUCKETS:
            self._buckets.append(Sums())
        self._buckets[-1].add(more)
        while len(self._buckets) > 1 and sum(one.seconds for one in self._buckets) - self._buckets[0].seconds >= (
            self.period
        ):
            self._buckets.popleft()

    @property
    def total(self) -> Sums:
        """What was counted in the period."""
        found = Sums()
        for one in self._buckets:
            found.add(one)
        return found
