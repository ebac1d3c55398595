"""Marks of checkpoints as the record of a batch holds them: by segment. Pure.

Where a run has several segments, a mark of one of them has its name; a mark of all of them is that of `*`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.ids import SegmentId
from holdfast.recovery.segments import ALL_PARTITIONS


@dataclass(frozen=True, slots=True)
class LoggedMark:
    """That a segment's partitions take a snapshot at a batch."""

    durable: bool
    step: int = 0
    """0: the segment's checkpoint moves to it; else, of which step between two checkpoints it is (`intermediate`)."""


LoggedMarks = Mapping[SegmentId, LoggedMark]
"""Of one batch; segments that are not named take no snapshot at it."""


def mark_fields(marks: LoggedMarks) -> dict[str, dict[str, int]]:
    """Return marks as a record holds them."""
    return {
        segment: {"durable": mark.durable} | ({"step": mark.step} if mark.step else {})
        for segment, mark in marks.items()
    }


def marks_of(fields: Mapping[str, Any]) -> LoggedMarks:
    """Read the marks of a record; one that an earlier version wrote has none."""
    return {
        SegmentId(name): LoggedMark(bool(one["durable"]), int(one.get("step", 0)))
        for name, one in fields.get("marks", {}).items()
    }


__all__ = ["ALL_PARTITIONS", "LoggedMark", "LoggedMarks", "mark_fields", "marks_of"]
