"""Whether the ranges that a run has logged cover what arrived, each byte and each offset once. Runs anywhere; pure.

The ranges are those of the batch log's records, the arrivals those that the drill has made; so files and topics are
accounted for without reading any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from holdfast.drill.history import Event
from holdfast.ids import OperatorId
from holdfast.runtime.io.batch_records import SourceBatch
from holdfast.runtime.io.file_ranges import FileRange
from holdfast.runtime.io.offset_ranges import OffsetRange, SourceRange

Streams = dict[str, dict[str, int]]
"""Source -> file, or topic partition -> how many bytes, or offsets, there are."""


def ranges_of(sources: Mapping[OperatorId, SourceBatch]) -> dict[str, tuple[SourceRange, ...]]:
    """Return the ranges of a batch by source."""
    return {str(name): one.ranges for name, one in sources.items() if one.ranges}


def stream_of(one: SourceRange) -> str:
    """Return what a range is part of: a file, or a topic partition."""
    return one.file.path if isinstance(one, FileRange) else str(one.topic_partition)


def arrived_in_place(history: Sequence[Event]) -> Streams:
    """Return what arrived for sources that are read in place."""
    found: Streams = {}
    for event in history:
        if event.kind != "arrived" or event.fields.get("by_spark"):
            continue
        there = found.setdefault(str(event.fields["source"]), {})
        if "file" in event.fields:
            there[str(event.fields["file"])] = int(event.fields["bytes"])
        for number, end in event.fields.get("ends", {}).items():
            there[str(number)] = max(int(end), there.get(str(number), 0))
    return found


def uncovered(history: Sequence[Event], batches: Sequence[Mapping[str, Sequence[SourceRange]]]) -> list[str]:
    """Return what is wrong with the ranges of the batches: each stream must be covered from 0 to its end, in order."""
    arrived = arrived_in_place(history)
    read: Streams = {source: {} for source in arrived}
    problems: list[str] = []
    for number, batch in enumerate(batches):
        for source, ranges in batch.items():
            for one in ranges:
                stream = stream_of(one)
                through = read.setdefault(source, {}).setdefault(stream, 0)
                if one.start != through:
                    what = "again" if one.start < through else "with a gap before it"
                    problems.append(f"batch {number} has {one} {what}: {through} was next")
                read[source][stream] = max(through, one.end)
                size = one.file.size if isinstance(one, FileRange) else None
                if size is not None and size != arrived.get(source, {}).get(stream, size):
                    problems.append(f"batch {number} has {one}, of {size} bytes: it arrived with other bytes")
    for source, streams in read.items():
        for stream in streams.keys() - arrived.get(source, {}).keys():
            problems.append(f"{source}: {stream} was read and did not arrive")
    for source, streams in arrived.items():
        for stream, size in streams.items():
            if (through := read[source].get(stream, 0)) != size:
                problems.append(f"{source}: {through} of {size} of {stream} are in batches")
    return problems


def due_of(history: Sequence[Event]) -> Callable[[str, SourceRange], int]:
    """Return what says in which interval a range of a source was due: that in which its end arrived."""
    files: dict[tuple[str, str], int] = {}
    offsets: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for event in history:
        if event.kind != "arrived":
            continue
        source, at = str(event.fields["source"]), int(event.fields["due"])
        if "file" in event.fields:
            files[source, str(event.fields["file"])] = at
        for number, end in event.fields.get("ends", {}).items():
            offsets.setdefault((source, str(number)), []).append((int(end), at))

    def due(source: str, one: SourceRange) -> int:
        stream = stream_of(one)
        if isinstance(one, OffsetRange):
            return next((at for end, at in sorted(offsets.get((source, stream), ())) if end >= one.end), 0)
        return files.get((source, stream), 0)

    return due
