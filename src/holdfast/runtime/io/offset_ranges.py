"""Ranges of offsets: what a batch has of a Kafka topic that is read in place. Runs anywhere; pure.

A range is part of one topic partition: from an offset up to, and without, another one. Offsets have gaps (markers of
transactions, aborted records, what compaction has removed), so a range may have fewer records than offsets, or none.
Ends of ranges are last stable offsets at most: whether the records below them are committed does not change any more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.runtime.io.file_ranges import FileRange, range_fields, range_of


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Part of a topic partition, for one partition of a source."""

    partition: int
    topic: str
    topic_partition: int
    start: int
    end: int
    bytes: int = 0
    """About how many bytes its records have, as the driver estimated them when it logged the batch."""

    def __str__(self) -> str:
        return f"offsets {self.start} to {self.end} of {self.topic}-{self.topic_partition}"


SourceRange = FileRange | OffsetRange
"""What a source partition reads in place."""


def stream_name(one: SourceRange) -> str:
    """Return the name of what a range is part of, whose events are about in order: a topic partition, or a file."""
    return one.file.path if isinstance(one, FileRange) else f"{one.topic}-{one.topic_partition}"


def source_range_fields(one: SourceRange) -> Any:
    """Return a range as JSON has it: of a file a list, of a topic an object."""
    if isinstance(one, FileRange):
        return range_fields(one)
    return {
        "partition": one.partition,
        "topic": one.topic,
        "topic-partition": one.topic_partition,
        "start": one.start,
        "end": one.end,
        "bytes": one.bytes,
    }


def source_range_of(fields: Sequence[Any] | Mapping[str, Any]) -> SourceRange:
    """Read a range from JSON."""
    if not isinstance(fields, Mapping):
        return range_of(fields)
    return OffsetRange(
        fields["partition"],
        fields["topic"],
        fields["topic-partition"],
        fields["start"],
        fields["end"],
        fields["bytes"],
    )
