"""Event time and watermarks as whole microseconds. Runs anywhere.

A watermark w says: no row with an event time before w is expected any more. A barrier carries one, or None from a
source that has no event time; where barriers meet, the smallest of those there are holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from holdfast.errors import BadInput

Ints: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]
Watermark: TypeAlias = int | None

MICROSECONDS = 1_000_000
NOT_YET = -(2**62)
"""The watermark of a source with event time before its first row."""
END_OF_TIME = 2**62
"""The watermark of a source that has ended: every window closes."""
WINDOW_END = "window_end"
"""The event-time column of what windows give: the row happened in the last microsecond before it."""

_UNITS = {"s": MICROSECONDS, "ms": 1000, "us": 1, "ns": 1}


def microseconds(length: float) -> int:
    """Turn a length of time in seconds into whole microseconds, at least one."""
    return max(1, round(length * MICROSECONDS))


def event_times(table: pa.Table, column: str) -> tuple[Ints, Mask]:
    """Return the event time of every row, and whether it has one (null, NaN and infinity are none)."""
    if column not in table.column_names:
        raise BadInput(
            f"the rows have no event-time column {column!r}",
            remedy=f"they have {', '.join(table.column_names) or 'none'}",
        )
    values = table[column]
    kind = values.type
    known = np.asarray(values.is_valid(), dtype=bool) if values.null_count else np.ones(len(values), bool)
    if pa.types.is_timestamp(kind):
        whole = values.cast(pa.int64())
        times = np.asarray(whole.fill_null(0) if values.null_count else whole, dtype=np.int64)
        if kind.unit != "us":
            times = times // 1000 if kind.unit == "ns" else _scaled(times, _UNITS[kind.unit])
    elif pa.types.is_integer(kind):
        numbers = values.fill_null(0)
        if pa.types.is_uint64(kind):
            numbers = pc.min_element_wise(numbers, pa.scalar(END_OF_TIME, pa.uint64()))
        times = _scaled(np.asarray(numbers).astype(np.int64), MICROSECONDS)
    elif pa.types.is_floating(kind):
        seconds = np.asarray(values.cast(pa.float64()).fill_null(np.nan), dtype=np.float64)
        known = np.isfinite(seconds) & (np.abs(seconds) < END_OF_TIME / MICROSECONDS)
        times = np.rint(np.where(known, seconds, 0.0) * MICROSECONDS).astype(np.int64)
    else:
        raise BadInput(
            f"the event-time column {column!r} is {kind}",
            remedy="give a timestamp, or a number of seconds",
        )
    if len(times) and (times.min() <= NOT_YET or times.max() >= END_OF_TIME):
        known = known & (times > NOT_YET) & (times < END_OF_TIME)
        times = np.where(known, times, 0)
    if column == WINDOW_END:
        times = times - 1
    return times, known


def _scaled(times: Ints, size: int) -> Ints:
    """Turn numbers of a unit into microseconds; one that is too large for that is taken to the end, not around it."""
    scaled: Ints = np.clip(times, NOT_YET // size, END_OF_TIME // size + 1) * size
    return scaled


def lowest(watermarks: Iterable[Watermark]) -> Watermark:
    """Combine the watermarks of barriers that meet."""
    known = [one for one in watermarks if one is not None]
    return min(known) if known else None


def highest(*watermarks: Watermark) -> Watermark:
    """Return the watermark furthest on: one never goes back."""
    known = [one for one in watermarks if one is not None]
    return max(known) if known else None


def in_seconds(watermark: Watermark) -> float:
    """Return a watermark as seconds, for people and for custom operators; before any it is minus infinity."""
    if watermark is None or watermark <= NOT_YET:
        return float("-inf")
    return float("inf") if watermark >= END_OF_TIME else watermark / MICROSECONDS


def as_timestamps(times: Any) -> pa.Array:
    """Return microseconds as the timestamps that window columns hold."""
    return pa.array(times, pa.int64()).cast(pa.timestamp("us"))
