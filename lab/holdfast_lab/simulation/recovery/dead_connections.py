"""Which dead connections of a simulated run should have been replaced by now. Pure.

Neither side is told that a connection is dead. A consumer finds out once it misses something: nothing is asked over a
connection while nothing is to come, however long it has been dead by then.
"""

from __future__ import annotations

from holdfast.runtime.worker.quiet_links import LONGEST_STEP
from holdfast.runtime.worker.resident import REQUEST_SECONDS
from holdfast_lab.simulation.recovery.connections import Connection

REPLACED_SECONDS = 40.0
"""So long a dead connection may stay whose other end can be reached, and that something is missing from."""
LAPSE_SECONDS = 2 * (REQUEST_SECONDS + LONGEST_STEP)
"""What is missing is found missing more often than this; otherwise nothing was, in between."""


class DeadConnections:
    """Since when something has been missing from each of them that could have been found out."""

    def __init__(self) -> None:
        self._missing: dict[Connection, tuple[float, float]] = {}
        """Since when, and when it was seen last."""

    def stays(self, link: Connection, now: float, *, reachable: bool, hindered_at: float) -> bool:
        """Take that something is missing from a dead connection now; say whether it has stayed for too long.

        `reachable`: whether its other end can be dialled; `hindered_at`: when something last held up either end.
        """
        since, last = self._missing.get(link, (now, now))
        if not reachable or now - last > LAPSE_SECONDS:
            since = now
        self._missing[link] = since, now
        return now - max(since, hindered_at) > REPLACED_SECONDS
