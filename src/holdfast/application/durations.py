"""Lengths of time as users write them: seconds, a timedelta, or words like "10 seconds". Runs anywhere."""

from __future__ import annotations

import math
import re
from datetime import timedelta

from holdfast.errors import BadInput

Duration = float | timedelta | str
"""Seconds as a number, a timedelta, or a text such as `10 s`, `90 seconds`, `1.5 minutes`, `2h`, `250 ms`."""

_UNITS = {
    "ms": 0.001,
    "millisecond": 0.001,
    "s": 1.0,
    "sec": 1.0,
    "second": 1.0,
    "m": 60.0,
    "min": 60.0,
    "minute": 60.0,
    "h": 3600.0,
    "hour": 3600.0,
    "d": 86400.0,
    "day": 86400.0,
}
_WORDS = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)\s*")


def seconds(length: Duration, *, field: str, zero: bool = False) -> float:
    """Return a length of time in seconds; it must be above zero, or zero where that is allowed."""
    value: float
    if isinstance(length, timedelta):
        value = length.total_seconds()
    elif isinstance(length, str):
        found = _WORDS.fullmatch(length)
        unit = found.group(2).lower() if found else ""
        unit = unit if unit in _UNITS else unit.removesuffix("s")
        if not found or unit not in _UNITS:
            raise BadInput(f"{length!r} is not a length of time", field=field, remedy='write "10 seconds" or 10.0')
        value = float(found.group(1)) * _UNITS[unit]
    elif isinstance(length, int | float) and not isinstance(length, bool):
        value = float(length)
    else:
        raise BadInput(f"{length!r} is not a length of time", field=field, remedy='write "10 seconds" or 10.0')
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        raise BadInput(f"{length!r} is not above zero", field=field, remedy='write "10 seconds" or 10.0')
    return value
