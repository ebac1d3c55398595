"""Whether a process that stays may work: the driver has received its answers lately. Pure; runs on nodes.

A process that is cut off from its driver must not go on staging rows and running ahead: others have its partitions
before long. Each ping of the driver has a number, and names the last answer that the driver has got. The lease counts
from when that answer was *sent*: the driver has received an answer of the process then or later, so it declares it
silent no earlier than the lease ends, whatever is lost, delayed or frozen in between.
"""

from __future__ import annotations

import math

from holdfast.runtime.detection import PINGS

_KEPT = 64
"""Answers that are remembered, of which the driver may still say that it has got them."""


class DriverLease:
    """The lease of one process."""

    def __init__(self, seconds: float) -> None:
        """The driver declares a process silent that has answered nothing for so many seconds.

        The lease ends one interval of pings before that: the driver counts time by pings, and an answer between two of
        them counts from the one before.
        """
        self._seconds = seconds - seconds / PINGS
        self._from = -math.inf
        self._sent: dict[int, float] = {}

    def connected(self, dialled_at: float) -> None:
        """The driver has accepted a connection that was dialled then."""
        self._from = max(self._from, dialled_at)
        self._sent.clear()

    def pinged(self, number: int, received: int, now: float) -> None:
        """A ping has come and is answered now; the driver has got the answer to ping `received`."""
        self._from = max(self._from, self._sent.get(received, -math.inf))
        self._sent = {one: at for one, at in self._sent.items() if one > received}
        self._sent[number] = now
        while len(self._sent) > _KEPT:
            del self._sent[min(self._sent)]

    def holds(self, now: float) -> bool:
        """Whether the process may work."""
        return now - self._from < self._seconds
