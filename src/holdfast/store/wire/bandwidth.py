"""A token bucket for bytes: how long to wait so that a rate is kept. Pure; time is an argument. Runs in peers.

Used three times in a peer: for everything it receives, for everything it sends, and for repair traffic alone.
"""

from __future__ import annotations


class Bandwidth:
    """At most `rate` bytes per second with bursts of `burst` bytes; without a rate, no limit.

    Invariant: over any stretch of t seconds at most rate * t + burst + (the last single amount) bytes pass.
    """

    __slots__ = ("_burst", "_rate", "_room", "_then", "total")

    def __init__(self, rate: float | None, burst: float | None = None) -> None:
        if rate is not None and rate <= 0:
            raise ValueError("a bandwidth must be above zero")
        self._rate = rate
        # A twentieth of a second's worth: long enough for timers, short enough not to fool a measurement.
        self._burst = burst if burst is not None else (rate or 0) / 20
        self._room = self._burst
        self._then: float | None = None
        self.total = 0

    def delay(self, amount: int, now: float) -> float:
        """Account for `amount` bytes that pass now; return for how many seconds nothing more may pass."""
        self.total += amount
        if self._rate is None:
            return 0.0
        if self._then is not None:
            self._room = min(self._burst, self._room + (now - self._then) * self._rate)
        self._then = now
        self._room -= amount
        return max(0.0, -self._room / self._rate)
