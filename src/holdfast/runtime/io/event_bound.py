"""How far in the future an event may be for the watermark to follow it. Runs anywhere; pure.

A watermark never goes back. One row with an event time years ahead (a device whose clock is wrong, milliseconds read as
seconds) would move it there, and every row after it would be late. So events later than the batch's own time by more
than a bound do not advance the watermark. The time is the one in the batch's record, which every replay reads; the
bound is in the record too where nodes need it. Rows beyond it are processed like all others, and counted.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from holdfast.runtime.program import SourceProgram
from holdfast.runtime.times import MICROSECONDS, event_times


@dataclass(frozen=True, slots=True)
class LatestEvents:
    """The latest events among some rows, in microseconds."""

    latest: int | None
    """None: no row has an event time."""
    within: int | None
    """The latest that is within the bound; None: none is."""
    ahead: int
    """How many rows are beyond it."""


def until(logged_at: float, ahead: float) -> int:
    """Return the last event time, in microseconds, that the watermark follows in a batch that is logged at a time.

    >>> until(1000.0, 60.0)
    1060000000
    """
    return round((logged_at + ahead) * MICROSECONDS)


def latest_events(source: SourceProgram, rows: pa.Table, bound: int | None) -> LatestEvents:
    """Look for the latest events among rows: of all, and of those up to a bound."""
    if source.event_time is None:
        return LatestEvents(None, None, 0)
    times, known = event_times(rows, source.event_time)
    if not known.any():
        return LatestEvents(None, None, 0)
    latest = int(times[known].max())
    if bound is None or latest <= bound:
        return LatestEvents(latest, latest, 0)
    near = known & (times <= bound)
    within = int(times[near].max()) if near.any() else None
    return LatestEvents(latest, within, int(known.sum() - near.sum()))


def followed(events: LatestEvents, bound: int | None) -> tuple[int | None, int]:
    """Return the event that the watermark follows, and how many rows are beyond the bound that holds now.

    The rows were looked at with the bound of the time when they came. Where the clock was set back since, nothing that
    is beyond the bound now counts.
    """
    if events.latest is None or bound is None or events.latest <= bound:
        return events.latest, 0
    near = events.within if events.within is not None and events.within <= bound else None
    return near, max(1, events.ahead)
