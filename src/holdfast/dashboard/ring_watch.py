"""Asks the ring of store agents how safe snapshots are, in a thread of its own, while a browser is connected.

Runs on the driver. A ring that does not answer takes seconds to ask: who makes a view gets the last answer, and never
waits.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.errors import HoldfastError, one_line
from holdfast.store.client.overview import RingOverview

EVERY_SECONDS = 10.0


class RingWatch:
    """The last answer of the ring; asking for it starts the next question where it is old."""

    def __init__(self, ask: Callable[[], RingOverview | None], *, every: float = EVERY_SECONDS) -> None:
        """`ask` asks every peer; None: there is no ring now."""
        self._ask, self._every = ask, every
        self._lock = threading.Lock()
        self._asked_at = -1e9
        self._busy = False
        self._last: Mapping[str, Any] | None = None
        self.cpu_seconds = 0.0
        """CPU time of all questions."""

    def __call__(self) -> Mapping[str, Any] | None:
        """Return the last answer."""
        with self._lock:
            if not self._busy and time.monotonic() - self._asked_at >= self._every:
                self._busy = True
                threading.Thread(target=self._look, name="holdfast-page-ring", daemon=True).start()
            return self._last

    def _look(self) -> None:
        found: Mapping[str, Any] | None
        try:
            seen = self._ask()
            found = None if seen is None else ring_of(seen, time.time())
        except (HoldfastError, OSError) as error:
            found = {"at": time.time(), "problem": one_line(str(error), 200)}
        with self._lock:
            self._last, self._busy, self._asked_at = found, False, time.monotonic()
            self.cpu_seconds += time.thread_time()


def ring_of(seen: RingOverview, at: float) -> dict[str, Any]:
    """Return what the page shows of a ring: peers, and how many snapshots have how much redundancy left."""
    left = Counter(one.redundancy for one in seen.states)
    return {
        "at": at,
        "problem": None,
        "peers": [
            {
                "address": str(one["address"]),
                "domain": one.get("domain"),
                "fragments": int(one["fragments"]["fragments"]),
                "bytes": int(one["fragments"]["bytes"]),
            }
            for one in seen.peers
        ],
        "silent": list(seen.silent),
        "states": len(seen.states),
        "bytes": sum(one.bytes for one in seen.states),
        "redundancy": {str(many): count for many, count in sorted(left.items())},
        "least": min(left, default=None),
        "code": _code(seen),
        "to_rebuild": int(seen.repair.get("to_rebuild", 0)),
    }


def _code(seen: RingOverview) -> list[int] | None:
    """Return m and k of most states."""
    codes = Counter((one.data, one.parity) for one in seen.states)
    return list(codes.most_common(1)[0][0]) if codes else None
