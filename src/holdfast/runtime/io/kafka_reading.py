"""What a batch has of a topic for one source partition, read from the brokers. Runs on a node.

The batch's record says which offsets. Where a reading before has left its checksum, the records must be the same: a
compacted topic, or one that somebody changed, would give others. What the brokers no longer give as it was logged is
read from the run's copy of it. Without one it is an error that names what is lost, before a row of it goes anywhere.
Where the source goes on without what is lost, it is a dead letter, and the rest of the range is read, and copied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from holdfast.application.kafka_topics import KafkaTopic
from holdfast.errors import CheckFailed
from holdfast.runtime.io.file_ranges import HowRead
from holdfast.runtime.io.kafka_records import Records, record_rows
from holdfast.runtime.io.kafka_stream import OffsetsGone, stream_of
from holdfast.runtime.io.offset_ranges import OffsetRange
from holdfast.runtime.io.range_rows import RangeRows, Rejected
from holdfast.runtime.program import SourceProgram

Fetch = Callable[[KafkaTopic, OffsetRange, HowRead], Records]
"""Returns the records of a range; `OffsetsGone` where the brokers do not have them all."""


def fetch_offsets(reader: KafkaTopic, one: OffsetRange, how: HowRead) -> Records:
    """Fetch a range with this process's stream of its topic partition."""
    return stream_of(reader, one.topic, one.topic_partition, headers=wants_headers(how)).read(one.start, one.end)


def wants_headers(how: HowRead) -> bool:
    """Whether rows need the headers of records; they are in checksums then, too."""
    return how.format == "raw" or "headers" in dict(how.options)


def read_offsets(
    source: SourceProgram,
    one: OffsetRange,
    how: HowRead,
    expected: int | None,
    copy: Callable[[], Records | None],
    *,
    fetch: Fetch = fetch_offsets,
) -> RangeRows:
    """Read a range; refuse it where it is not the one that the batch has."""
    reader = source.reader
    if not isinstance(reader, KafkaTopic):
        raise CheckFailed(
            f"batches of it have {one}, and it does not read Kafka any more",
            where=f"source {source.id}",
            remedy="read it as before: app.source(…, hf.kafka(…)); or begin in another directory",
        )

    def copied() -> Records | None:
        held = copy()
        return None if held is None or (held.gone_to is not None and reader.fail_on_data_loss) else held

    try:
        records = fetch(reader, one, how)
    except OffsetsGone as gone:
        held = copied()
        if held is not None:
            records = held
        elif reader.fail_on_data_loss or gone.end < one.end:
            raise _lost(_what_is_gone(one, gone), one) from None
        else:
            records = _rest(reader, one, how, gone, fetch)
            # Where the rest is what was first read, the same was passed over then.
            if expected is not None and records.check() != expected:
                raise _lost(_what_is_gone(one, gone), one) from None
    except CheckFailed:
        held = copied()
        if held is None:
            raise
        records = held
    else:
        # Compaction removes records also before they are first read; the copy was made as soon as they were logged.
        gaps = expected is None and len(records.offsets) < one.end - one.start
        if gaps and (held := copied()) is not None and len(held.offsets) > len(records.offsets):
            records = held
    if expected is not None and records.check() != expected:
        held = copied()
        if held is None or held.check() != expected:
            raise _lost("does not have the records any more that were first read", one)
        records = held
    found = record_rows(records, how, source.schema, one.topic_partition)
    if records.gone_to is None:
        return found
    lost = Rejected(one.start, "", f"the brokers do not have offsets {one.start} to {records.gone_to} any more")
    return replace(found, rejected=(lost, *found.rejected))


def records_to_copy(reader: KafkaTopic, one: OffsetRange, how: HowRead, *, fetch: Fetch) -> Records:
    """Return what the run keeps a copy of: a range, or what is left of it where the source goes on without the rest.

    `LookupError`: it is gone, and without all of it nothing can be read.
    """
    try:
        return fetch(reader, one, how)
    except OffsetsGone as gone:
        if reader.fail_on_data_loss or gone.end < one.end:
            raise LookupError(str(one)) from None
        return _rest(reader, one, how, gone, fetch)


def _rest(reader: KafkaTopic, one: OffsetRange, how: HowRead, gone: OffsetsGone, fetch: Fetch) -> Records:
    """Return what is left of a range whose beginning is gone; the beginning may move on meanwhile."""
    while True:
        rest = replace(one, start=min(gone.earliest, one.end))
        try:
            return replace(fetch(reader, rest, how), gone_to=rest.start)
        except OffsetsGone as more:
            if more.end < one.end or more.earliest <= rest.start:
                raise _lost(_what_is_gone(rest, more), rest) from None
            gone = more


def _what_is_gone(one: OffsetRange, gone: OffsetsGone) -> str:
    if gone.end < one.end:
        return f"ends at offset {gone.end}: records were lost, or the topic was deleted and created again"
    first = min(gone.earliest, one.end)
    return f"begins at offset {gone.earliest}: offsets {one.start} to {first} went by its retention"


def _lost(what: str, one: OffsetRange) -> CheckFailed:
    return CheckFailed(
        f"{what}: the records of {one} are lost to their batch, and nothing is published from it",
        where=f"topic {one.topic}, partition {one.topic_partition}",
        remedy="raise the topic's retention and begin in another directory; or go on without what is lost: "
        "hf.kafka(…, fail_on_data_loss=False), then run `holdfast resume`",
    )
