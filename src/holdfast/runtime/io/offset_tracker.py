"""Which offsets of a topic a source has taken, and which come next: a Kafka source's position. Pure; on the driver.

The position is the next offset of every topic partition, and the id of the topic. It is in the record of each batch, so
it is part of the same decision as the ranges: a driver that dies between looking and logging has taken nothing.

- *Ends* are last stable offsets: what lies behind an open transaction waits until it has ended.
- *A batch* takes of every topic partition in proportion to what it has waiting, so that all get to their ends together
  and their event times stay close.
- *A topic partition* always goes to the same partition of the source, which so keeps its connection and its order.
- *Topic partitions that appear* are read from their beginning: whoever added them did so after the run had started.
- *A topic that was deleted and created again*, or that ends before the position, is an error: its offsets mean other
  records now.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.application.kafka_topics import StartAt
from holdfast.errors import CheckFailed
from holdfast.runtime.io.offset_ranges import OffsetRange

FIRST_RECORD_BYTES = 512
"""What a record is taken to have until some were seen."""


@dataclass(frozen=True, slots=True)
class PartitionSeen:
    """A topic partition as the brokers say it is."""

    earliest: int
    end: int
    """The last stable offset: where reading has to stop now."""
    start: int
    """Where reading would start, by the source's start position."""


@dataclass(frozen=True, slots=True)
class TopicSeen:
    """A topic as the brokers say it is."""

    id: str
    """Of this creation of the topic; empty: the brokers have no ids."""
    partitions: Mapping[int, PartitionSeen]


@dataclass(frozen=True, slots=True)
class OffsetPosition:
    """What a source has taken."""

    topic_id: str = ""
    next: Mapping[int, int] = field(default_factory=dict)
    """The next offset of each topic partition."""


@dataclass(frozen=True, slots=True)
class TakenOffsets:
    """What the next batch has of a source, and where the source is after it."""

    ranges: tuple[OffsetRange, ...]
    position: OffsetPosition

    @property
    def bytes(self) -> int:
        """About how many bytes it has."""
        return sum(one.bytes for one in self.ranges)


@dataclass(slots=True)
class OffsetTracker:
    """The topic partitions of one source."""

    topic: str
    start: StartAt
    partitions: int
    """Of the source."""
    max_records: int | None = None
    skip_lost: bool = False
    """Whether offsets that the brokers no longer have are passed over; else they are logged, and reading them fails."""
    position: OffsetPosition = field(default_factory=OffsetPosition)
    begun: bool = False
    """Whether the log has a position of this source."""
    record_bytes: float = FIRST_RECORD_BYTES
    ends: dict[int, int] = field(default_factory=dict)
    """As the brokers said last."""
    limits: Mapping[int, int] | None = None
    """Where reading ends in this run; topic partitions that are not named are left for the next one. None: nowhere."""

    def look(self, seen: TopicSeen) -> list[str]:
        """Take in what the brokers say; return lines about what people should know."""
        lines, known = list[str](), dict(self.position.next)
        if self.position.topic_id and seen.id and self.position.topic_id != seen.id:
            raise CheckFailed(
                f"topic {self.topic} was deleted and created again: its offsets mean other records now",
                remedy="start in another directory, or with another topic",
            )
        for number, one in seen.partitions.items():
            there = known.get(number)
            if there is None or (not self.begun and self.start.kind == "earliest"):
                there = one.earliest if self.begun else max(one.start, one.earliest)
                if self.begun:
                    lines.append(f"partition {number} of topic {self.topic} is new: it is read from its beginning")
            if one.end < there and self.begun:
                raise CheckFailed(
                    f"partition {number} of topic {self.topic} ends at offset {one.end}, and was read up to {there}: "
                    "the brokers have lost records",
                    remedy="start in another directory, or bring the records back",
                )
            if there < one.earliest and self.skip_lost:
                lines.append(
                    f"offsets {there} to {one.earliest} of {self.topic}-{number} are not there any more: passed over"
                )
                there = one.earliest
            known[number] = there
        self.ends = {number: one.end for number, one in seen.partitions.items()}
        self.position = OffsetPosition(self.position.topic_id or seen.id, known)
        return lines

    def fix_end(self) -> None:
        """Leave what comes from now on for the next run."""
        self.limits = dict(self.ends)

    def is_taken(self, ends: Mapping[int, int]) -> bool:
        """Whether everything before these offsets is taken."""
        return all(self.position.next.get(number, 0) >= end for number, end in ends.items())

    def waiting(self) -> dict[int, int]:
        """Return how many offsets of each topic partition can be taken."""
        found = {}
        for number, end in self.ends.items():
            last = end if self.limits is None else min(end, self.limits.get(number, 0))
            if (count := last - self.position.next.get(number, last)) > 0:
                found[number] = count
        return found

    @property
    def pending(self) -> bool:
        """Whether there is something to take; also a start position that is not logged."""
        first = not self.begun and self.start.kind != "earliest" and bool(self.ends)
        return first or bool(self.waiting())

    def take(self, most_bytes: int) -> TakenOffsets:
        """Return what the next batch has, about so many bytes at most; `logged` makes it so.

        Every topic partition in which records wait has one at least, whatever the bounds: the watermark follows those
        that are read, and the rows of one that is left out could be late because of the others.
        """
        waiting = {number: many for number, many in self.waiting().items() if many}
        total = sum(waiting.values())
        most = max(1, int(most_bytes / max(1.0, self.record_bytes)))
        most = min(most, total, self.max_records or total)
        few = [many for many in waiting.values() if many * most < total]
        rest, of = most - len(few), max(1, total - sum(few))  # what is left for the others, and what they have
        counts = {number: max(1, min(many, many * rest // of)) for number, many in sorted(waiting.items())}
        after, ranges, left = dict(self.position.next), list[OffsetRange](), most - sum(counts.values())
        for number, share in counts.items():
            more = left > 0 and share < waiting[number]
            count, left = share + more, left - more
            first = after[number]
            size = round(count * self.record_bytes)
            ranges.append(OffsetRange(number % self.partitions, self.topic, number, first, first + count, size))
            after[number] = first + count
        return TakenOffsets(tuple(ranges), OffsetPosition(self.position.topic_id, after))

    def logged(self, taken: TakenOffsets) -> None:
        """What was taken is in the log."""
        known = {**self.position.next, **taken.position.next}
        self.position, self.begun = OffsetPosition(taken.position.topic_id, known), True


# -- as JSON -----------------------------------------------------------------------------------------------------------


def offset_fields(topic: str, position: OffsetPosition) -> dict[str, Any]:
    """Return a position as the record of a batch holds it."""
    return {
        "topic": topic,
        "topic-id": position.topic_id,
        "next": {str(number): offset for number, offset in sorted(position.next.items())},
    }


def offsets_of(fields: Mapping[str, Any]) -> OffsetPosition:
    """Read a position from the record of a batch."""
    return OffsetPosition(fields["topic-id"], {int(number): offset for number, offset in fields["next"].items()})
