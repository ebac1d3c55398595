"""Deliberate bugs of sources that read topics: ranges that move, vanish and change, positions. Each is found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from holdfast.runtime.io import in_place as reading
from holdfast.runtime.io.in_place import PartitionRows
from holdfast.runtime.io.kafka_reader import KafkaReader
from holdfast.runtime.io.kafka_stream import OffsetsGone
from holdfast.runtime.io.range_copies import CopyStore
from simulation.bugs import Bug, Patch


def moved_range_not_looked_for_in_copies(patch: Patch) -> None:
    """A node reads from the brokers alone: what their retention has taken is lost, though the run has a copy."""
    patch.setattr(CopyStore, "read", lambda self, *place: None)


def moved_range_begins_where_its_topic_does(patch: Patch) -> None:
    """Of a range whose beginning is gone, what is left is read, and the copy is not."""
    right = reading.read_offsets

    def read(source: Any, one: Any, how: Any, expected: Any, copy: Any, *, fetch: Any) -> Any:
        def rest(reader: Any, asked: Any, how: Any) -> Any:
            try:
                return fetch(reader, asked, how)
            except OffsetsGone as gone:
                return fetch(reader, replace(asked, start=min(gone.earliest, asked.end)), how)

        return right(source, one, how, None, lambda: None, fetch=rest)

    patch.setattr(reading, "read_offsets", read)


def range_that_ends_early_taken_as_it_is(patch: Patch) -> None:
    """Where a topic ends before a range does, what there is counts as the range."""
    right = reading.read_offsets

    def read(source: Any, one: Any, how: Any, expected: Any, copy: Any, *, fetch: Any) -> Any:
        def there(reader: Any, asked: Any, how: Any) -> Any:
            try:
                return fetch(reader, asked, how)
            except OffsetsGone as gone:
                if gone.end >= asked.end:
                    raise
                return fetch(reader, replace(asked, end=max(asked.start, gone.end)), how)

        return right(source, one, how, expected, copy, fetch=there)

    patch.setattr(reading, "read_offsets", read)


def other_records_accepted(patch: Patch) -> None:
    """A range is read again, and nobody compares it with what was read first."""
    right = reading.read_offsets

    def read(source: Any, one: Any, how: Any, expected: Any, copy: Any, *, fetch: Any) -> Any:
        return right(source, one, how, None, copy, fetch=fetch)

    patch.setattr(reading, "read_offsets", read)


def offsets_of_the_last_batch_alone_remembered(patch: Patch) -> None:
    """A record says where the topic partitions are of which its batch has something, and nothing of the others."""
    right = KafkaReader.fields

    def fields(self: Any, taken: Any) -> dict[str, Any]:
        found = right(self, taken)
        mine = {str(one.topic_partition) for one in taken.ranges}
        known = found["kafka"]["next"]
        return {"kafka": found["kafka"] | {"next": {number: at for number, at in known.items() if number in mine}}}

    patch.setattr(KafkaReader, "fields", fields)


def silent_topic_partitions_passed_over(patch: Patch) -> None:
    """The watermark follows the topic partitions that have rows, though one of a range is silent."""
    right = PartitionRows.followed

    def followed(self: PartitionRows, source: Any, how: Any) -> Any:
        return right(replace(self, streams=tuple(one for one in self.streams if one[1])), source, how)

    patch.setattr(PartitionRows, "followed", followed)


TOPIC_SOURCE_BUGS = tuple(
    Bug(one.__name__.replace("_", " "), one.__doc__ or "", one)
    for one in (
        moved_range_not_looked_for_in_copies,
        moved_range_begins_where_its_topic_does,
        range_that_ends_early_taken_as_it_is,
        other_records_accepted,
        offsets_of_the_last_batch_alone_remembered,
        silent_topic_partitions_passed_over,
    )
)
