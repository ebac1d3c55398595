"""The records of ranges of offsets, fetched by consumers that read on from range to range. Runs on a node.

A process keeps one consumer for each topic partition that it reads. Nobody joins a group: the log says who reads what.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from typing import TYPE_CHECKING

import numpy as np

from holdfast.application.kafka_topics import KafkaTopic
from holdfast.errors import CheckFailed
from holdfast.runtime.io.kafka_client import LastError, client_configuration, kafka_library, made, unreachable
from holdfast.runtime.io.kafka_records import NO_TIME, Records, header_text

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

MOST_STREAMS = 32
"""Topic partitions that a process keeps a connection for at most."""
TAKEN_AT_ONCE = 10_000
"""Messages that are asked of the client at once."""
_WAIT = 0.01
"""Seconds that one call for messages waits at most for as many as were asked for.

Of a topic written in transactions fewer come than there are offsets: every read waits once for what does not come.
"""
_QUEUED_KILOBYTES = 16 << 10
"""Of each topic partition that is read ahead at most."""


class OffsetsGone(Exception):
    """Records that a range has are not on the brokers any more; what the topic partition has now."""

    def __init__(self, earliest: int, end: int) -> None:
        super().__init__(f"{earliest} to {end}")
        self.earliest, self.end = earliest, end


class OffsetStream:
    """The records of one topic partition, read on from range to range by one consumer, which reads ahead."""

    def __init__(self, reader: KafkaTopic, topic: str, number: int, *, headers: bool, small: bool = False) -> None:
        self._reader, self._topic, self._number, self._headers = reader, topic, number, headers
        self._last_error = LastError(reader.settings)
        self._consumer: Consumer | None = None
        self._small = small
        self._next: int | None = None
        """Where the last range ended; None: reading has to begin anew."""
        self._reached = 0
        """Every record before this offset has been fetched."""
        self._ahead: deque[Message] = deque()
        """Records that were fetched and are in no range yet."""
        self._guard = threading.Lock()

    def read(self, start: int, end: int) -> Records:
        """Return the records of a range; `OffsetsGone` where the brokers do not have all of them any more."""
        with self._guard:
            try:
                if self._next != start:
                    self._begin(start)
                found = self._up_to(end)
            except kafka_library().KafkaException as error:
                self._next = None
                raise self._unreachable(error.args[0]) from None
            except BaseException:
                self._next = None
                raise
            self._next = end
            return _records(found, headers=self._headers)

    def sample(self, start: int, end: int, most: int) -> Records:
        """Return a few of the first records of a range: those of the first fetch."""
        with self._guard:
            self._next = None
            try:
                self._begin(start)
                found = self._up_to(min(end, start + most))
            except kafka_library().KafkaException as error:
                raise self._unreachable(error.args[0]) from None
            return _records(found, headers=False)

    def close(self) -> None:
        """End the consumer."""
        with self._guard:
            if self._consumer is not None:
                self._consumer.close()
                self._consumer, self._next = None, None

    def _begin(self, start: int) -> None:
        library = kafka_library()
        if self._consumer is None:
            configuration = client_configuration(self._reader.servers, self._reader.settings, self._last_error) | {
                "group.id": dict(self._reader.settings).get("group.id", "holdfast"),
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "queued.max.messages.kbytes": 1024 if self._small else _QUEUED_KILOBYTES,
            }
            self._consumer = made(library.Consumer, configuration, self._reader.settings)
        self._ahead.clear()
        self._reached = start
        self._consumer.assign([library.TopicPartition(self._topic, self._number, start)])

    def _up_to(self, end: int) -> list[Message]:
        library = kafka_library()
        codes = library.KafkaError
        assert self._consumer is not None
        found: list[Message] = []
        while self._ahead and _offset(self._ahead[0]) < end:
            found.append(self._ahead.popleft())
        deadline = time.monotonic() + self._reader.timeout
        while self._reached < end:
            got = self._consumer.consume(min(TAKEN_AT_ONCE, end - self._reached), _WAIT)
            for one in got:
                problem = one.error()
                if problem is None:
                    offset = _offset(one)
                    (found if offset < end else self._ahead).append(one)
                    self._reached = max(self._reached, offset + 1)
                elif problem.code() == codes._PARTITION_EOF:
                    self._reached = max(self._reached, one.offset() or 0)
                elif problem.code() in (codes._AUTO_OFFSET_RESET, codes.OFFSET_OUT_OF_RANGE):
                    raise OffsetsGone(*self._there())
                elif problem.code() in (codes.UNKNOWN_TOPIC_OR_PART, codes._UNKNOWN_TOPIC, codes._UNKNOWN_PARTITION):
                    self._last_error.text = f"there is no {self._topic}-{self._number}"
                elif not problem.retriable():
                    self._last_error(problem)
            if got:
                deadline = time.monotonic() + self._reader.timeout
            elif self._last_error.refused or time.monotonic() > deadline:
                raise self._unreachable(self._last_error.text or f"nothing came in {self._reader.timeout:g} s")
        self._last_error.text = ""
        return found

    def _there(self) -> tuple[int, int]:
        """Return what the topic partition has now."""
        library = kafka_library()
        assert self._consumer is not None
        place = library.TopicPartition(self._topic, self._number)
        try:
            found = self._consumer.get_watermark_offsets(place, timeout=self._reader.timeout)
        except library.KafkaException as error:
            raise self._unreachable(error.args[0].str()) from None
        if found is None:
            raise self._unreachable("no answer")
        return found[0], found[1]

    def _unreachable(self, why: object) -> CheckFailed:
        what = f"{self._topic}-{self._number} cannot be read"
        return unreachable(what, self._reader.servers, why, self._reader.settings)


def _offset(message: Message) -> int:
    found: int = message.offset()
    return found


def _records(messages: list[Message], *, headers: bool) -> Records:
    count = len(messages)
    times = (one.timestamp() for one in messages)
    return Records(
        np.fromiter((_offset(one) for one in messages), np.int64, count),
        np.fromiter((at if kind else NO_TIME for kind, at in times), np.int64, count),
        [_bytes(one.key()) for one in messages],
        [_bytes(one.value()) for one in messages],
        [header_text(one.headers()) for one in messages] if headers else [None] * count,
    )


def _bytes(given: str | bytes | None) -> bytes | None:
    return given.encode() if isinstance(given, str) else given


_streams: OrderedDict[tuple[object, ...], OffsetStream] = OrderedDict()
_streams_guard = threading.Lock()


def stream_of(reader: KafkaTopic, topic: str, number: int, *, headers: bool) -> OffsetStream:
    """Return this process's stream of a topic partition; those that were not used for longest are closed."""
    key = (reader.servers, reader.settings, reader.timeout, topic, number, headers)
    over: list[OffsetStream] = []
    with _streams_guard:
        found = _streams.pop(key, None) or OffsetStream(reader, topic, number, headers=headers)
        _streams[key] = found
        while len(_streams) > MOST_STREAMS:
            over.append(_streams.popitem(last=False)[1])
    for one in over:
        one.close()
    return found


def close_streams() -> None:
    """Close all streams of this process."""
    with _streams_guard:
        held = list(_streams.values())
        _streams.clear()
    for one in held:
        one.close()
