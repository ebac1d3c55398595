"""Windows: which rows are looked at together. Runs anywhere.

Event-time windows follow the time in the rows (the source's `event_time` column). A window's result comes out once, in
the first batch whose watermark has passed the window's end; the watermark trails the latest event by the source's
allowed lateness. Rows that come later still are counted and kept aside, never silently dropped. Count windows follow
the order of rows in a partition.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.application.durations import Duration, seconds
from holdfast.errors import BadInput


@dataclass(frozen=True, slots=True)
class Sliding:
    """Windows of `size` seconds, one starting every `every` seconds; they overlap where `every` is shorter."""

    size: float
    every: float


@dataclass(frozen=True, slots=True)
class Session:
    """Windows that end after `gap` seconds without a row of the same key."""

    gap: float


@dataclass(frozen=True, slots=True)
class Rows:
    """Windows of `size` rows of the same key (of the partition, where there is no key), one every `every` rows."""

    size: int
    every: int


Window = Sliding | Session | Rows


def sliding(size: Duration, every: Duration) -> Sliding:
    """Overlapping event-time windows, one starting every so often.

    >>> import holdfast as hf
    >>> hf.sliding("10 seconds", every="1 second")
    Sliding(size=10.0, every=1.0)
    """
    window = Sliding(seconds(size, field="size"), seconds(every, field="every"))
    if window.every > window.size:
        raise BadInput("is longer than the window, so rows between would be lost", field="every", remedy="shorten it")
    return window


def tumbling(size: Duration) -> Sliding:
    """Event-time windows side by side.

    >>> import holdfast as hf
    >>> hf.tumbling("1 minute")
    Sliding(size=60.0, every=60.0)
    """
    length = seconds(size, field="size")
    return Sliding(length, length)


def session(gap: Duration) -> Session:
    """Event-time windows that close after a pause.

    >>> import holdfast as hf
    >>> hf.session(gap="5 minutes")
    Session(gap=300.0)
    """
    return Session(seconds(gap, field="gap"))


def rows(size: int, every: int | None = None) -> Rows:
    """Windows of so many rows: side by side, or with `every` overlapping.

    >>> import holdfast as hf
    >>> hf.rows(100)
    Rows(size=100, every=100)
    >>> hf.rows(100, every=10)
    Rows(size=100, every=10)
    """
    step = size if every is None else every
    for name, value in (("size", size), ("every", step)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise BadInput(f"{value!r} is not a number of rows", field=name, remedy="give a whole number of 1 or more")
    if step > size:
        raise BadInput("is more than the window has, so rows between would be lost", field="every", remedy="lower it")
    return Rows(size, step)
