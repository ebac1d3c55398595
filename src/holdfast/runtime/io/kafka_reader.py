"""A source of a Kafka topic on the driver: it looks at the topic and says what the next batch has.

Looking asks the brokers and runs in a thread of its own or where a caller wants it; it never takes anything. With every
look, ranges that are still needed and may go soon are copied into the run's log (`range_copies`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from threading import Lock
from typing import Any, Protocol

from holdfast.application.kafka_topics import KafkaTopic
from holdfast.errors import BadInput, HoldfastError
from holdfast.ids import OperatorId
from holdfast.runtime.io.batch_log import BatchLog
from holdfast.runtime.io.file_ranges import HowRead
from holdfast.runtime.io.file_tracker import Notice
from holdfast.runtime.io.kafka_client import Topic
from holdfast.runtime.io.kafka_reading import records_to_copy, wants_headers
from holdfast.runtime.io.kafka_records import Records, check_avro
from holdfast.runtime.io.kafka_stream import OffsetsGone, OffsetStream
from holdfast.runtime.io.needed_ranges import NeededRanges
from holdfast.runtime.io.offset_ranges import OffsetRange
from holdfast.runtime.io.offset_tracker import (
    OffsetPosition,
    OffsetTracker,
    TakenOffsets,
    TopicSeen,
    offset_fields,
    offsets_of,
)
from holdfast.runtime.io.range_copies import RetentionWatch

SAMPLE_SECONDS = 60.0
"""How often it is looked how large records are."""
SAMPLED = 200
FRESH_SECONDS = 1.0
"""How old what is known of a topic may be, but for its ends."""
OVERHEAD = 48
"""Bytes that a record has beside its key and value, about."""


class SeenTopic(Protocol):
    """What the driver asks the brokers."""

    def look(self, *, begun: bool) -> TopicSeen:
        """Return what the topic has now; not begun: also where reading starts."""
        ...


class KafkaReader:
    """Reads one source's topic."""

    what = "its topic"
    look_seconds, pause_factor = 0.02, 1.0  # a look is one request for offsets
    unsettled = False

    def __init__(
        self,
        source: OperatorId,
        reader: KafkaTopic,
        partitions: int,
        topic: SeenTopic,
        *,
        watch: RetentionWatch | None = None,
        sample: Callable[[int, int, int], Records] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`sample` fetches a few records of a topic partition, between two offsets: how large they are."""
        self.source, self.reader, self._topic = source, reader, topic
        self._partitions, self._watch, self._sample, self._clock = partitions, watch, sample, clock
        self._guard, self._looking = Lock(), Lock()
        self._sampled = -1e9
        self._tracker = self._new_tracker(OffsetPosition(), begun=False)
        self.listed = 0
        """How many looks there were since reading began, or began anew."""

    def _new_tracker(self, position: OffsetPosition, *, begun: bool) -> OffsetTracker:
        reader = self.reader
        return OffsetTracker(
            reader.topic,
            reader.start,
            self._partitions,
            reader.max_records,
            not reader.fail_on_data_loss,
            position,
            begun,
        )

    def begin(self, position: Mapping[str, Any]) -> None:
        """Begin, or begin anew, after the batch whose record has this position; empty: at the start position."""
        if "files" in position or position.get("offsets"):
            raise BadInput(
                "was read in another way in this run",
                where=f"source {self.source}",
                remedy="read it as before, or begin in another directory",
            )
        begun = "kafka" in position
        if begun and position["kafka"]["topic"] != self.reader.topic:
            raise BadInput(
                f"was read from topic {position['kafka']['topic']} in this run, not from {self.reader.topic}",
                where=f"source {self.source}",
                remedy="name that topic, or begin in another directory",
            )
        at = offsets_of(position["kafka"]) if begun else OffsetPosition()
        with self._guard:
            before = self._tracker
            self._tracker = self._new_tracker(at, begun=begun)
            self._tracker.limits, self._tracker.record_bytes = before.limits, before.record_bytes
            self.listed = 0

    def look(self) -> list[Notice]:
        """Ask the brokers; return what people should know.

        One at a time: what an earlier look was told must not come after what a later one was.
        """
        with self._looking:
            return self._look()

    def _look(self) -> list[Notice]:
        tracker = self._tracker
        try:
            seen = self._topic.look(begun=tracker.begun)
            with self._guard:
                if tracker is not self._tracker:
                    return []  # reading has begun anew meanwhile, and looks itself
                lines = tracker.look(seen)
                self.listed += 1
        except HoldfastError as error:
            raise type(error)(
                error.what, where=f"source {self.source}, {error.where}" if error.where else f"source {self.source}",
                field=error.field, remedy=error.remedy,
            ) from None  # fmt: skip
        self._measure(tracker)
        if self._watch is not None:
            lines += self._watch.look(seen, tracker.record_bytes)
        return [Notice("topic", None, line) for line in lines]

    def _measure(self, tracker: OffsetTracker) -> None:
        """See how large records are, now and then: a batch is so many bytes, and the log has offsets."""
        if self._sample is None or self._clock() - self._sampled < SAMPLE_SECONDS:
            return
        with self._guard:
            waiting, position = tracker.waiting(), tracker.position.next
        if not waiting:
            return
        number = max(waiting, key=lambda one: waiting[one])
        try:
            found = self._sample(number, position[number], position[number] + waiting[number])
        except (HoldfastError, OffsetsGone):
            return  # whoever reads the range says what is wrong
        self._sampled = self._clock()
        if len(found.offsets):
            with self._guard:
                tracker.record_bytes = found.bytes / len(found.offsets) + OVERHEAD

    @property
    def pending(self) -> bool:
        """Whether the next batch can have something of this source."""
        with self._guard:
            return self._tracker.pending

    def take(self, most_bytes: int) -> TakenOffsets | None:
        """Return what the next batch has, about so many bytes at most; None: nothing."""
        with self._guard:
            return self._tracker.take(most_bytes) if self._tracker.pending else None

    def fields(self, taken: TakenOffsets) -> dict[str, Any]:
        """Return where the source is after a batch, as its record holds it."""
        return {"kafka": offset_fields(self.reader.topic, taken.position)}

    def how(self, lateness: int) -> HowRead:
        """Return how ranges are read, as the record of a batch holds it."""
        return HowRead(self.reader.format, self.reader.options, lateness, by_stream=True)

    def logged(self, taken: TakenOffsets) -> None:
        """What was taken is in the log."""
        with self._guard:
            self._tracker.logged(taken)

    def fix_end(self) -> None:
        """Leave what comes from now on for the next run."""
        with self._guard:
            self._tracker.fix_end()

    @property
    def ended(self) -> bool:
        """Whether everything up to the end that was fixed is taken."""
        with self._guard:
            limits = self._tracker.limits
            return limits is not None and self._tracker.is_taken(limits) and not self._tracker.pending

    def taken_now(self) -> Callable[[], bool]:
        """Return what says whether everything that is there now is taken."""
        with self._guard:
            limits = self._tracker.limits
            ends = {
                number: end if limits is None else min(end, limits.get(number, 0))
                for number, end in self._tracker.ends.items()
            }

        def taken() -> bool:
            with self._guard:
                return self._tracker.is_taken(ends)

        return taken


def kafka_reader(
    source: OperatorId, reader: KafkaTopic, partitions: int, log: BatchLog, *, fresh_seconds: float = FRESH_SECONDS
) -> KafkaReader:
    """Return the reader of a source's topic; no broker is asked yet."""
    check_avro(reader.options)
    topic = Topic(reader, fresh_seconds)

    def fetch(reader: KafkaTopic, one: OffsetRange, how: HowRead) -> Records:
        headers = wants_headers(how)
        stream = OffsetStream(reader, one.topic, one.topic_partition, headers=headers, small=True)
        try:
            return stream.read(one.start, one.end)
        finally:
            stream.close()

    def sample(number: int, start: int, end: int) -> Records:
        stream = OffsetStream(reader, reader.topic, number, headers=False, small=True)
        try:
            return stream.sample(start, end, SAMPLED)
        finally:
            stream.close()

    needed = NeededRanges(log, source, OffsetRange)
    read = partial(records_to_copy, reader, fetch=fetch)
    watch = RetentionWatch(source, topic, needed, log.copies, read, check=needed.check)
    return KafkaReader(source, reader, partitions, topic, watch=watch, sample=sample)
