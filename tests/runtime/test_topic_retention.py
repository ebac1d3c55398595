"""Brokers that delete by size: what a waiting query still needs is copied before its segment goes."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
import pytest

from holdfast.ids import BatchId, OperatorId
from holdfast.runtime.io.file_ranges import HowRead
from holdfast.runtime.io.kafka_client import topic_retention
from holdfast.runtime.io.kafka_records import Records
from holdfast.runtime.io.offset_ranges import OffsetRange
from holdfast.runtime.io.offset_tracker import PartitionSeen, TopicSeen
from holdfast.runtime.io.range_copies import CopyStore, Needed, RetentionWatch
from holdfast.runtime.io.topic_retention import TopicRetention, first_kept_by_size, moves_to, soon_gone
from holdfast.storage.memory import MemoryStorage
from sizes import share

HOW = HowRead("json", (), 0, by_stream=True)
NAME = OperatorId("s")


@dataclass
class Broker:
    """Topic partitions whose brokers delete by size as Kafka does: whole segments, while enough is left behind them."""

    kept: TopicRetention
    segments: list[list[tuple[int, int]]] = field(default_factory=lambda: [[(0, 0)]])
    """Of each topic partition the first offsets of its segments, and their bytes so far."""
    ends: list[int] = field(default_factory=lambda: [0])
    asked: list[OffsetRange] = field(default_factory=list)

    def write(self, number: int, sizes: list[int]) -> None:
        for size in sizes:
            first, so_far = self.segments[number][-1]
            if so_far and so_far + size > self.kept.segment_bytes:
                self.segments[number].append((self.ends[number], 0))
                first, so_far = self.segments[number][-1]
            self.segments[number][-1] = first, so_far + size
            self.ends[number] += 1

    def delete(self) -> None:
        for segments in self.segments:
            while len(segments) > 1 and sum(size for _, size in segments[1:]) >= (self.kept.bytes or 0):
                del segments[0]

    def seen(self) -> TopicSeen:
        both = enumerate(zip(self.segments, self.ends, strict=True))
        return TopicSeen("id", {at: PartitionSeen(of[0][0], end, of[0][0]) for at, (of, end) in both})

    def retention(self) -> TopicRetention:
        return self.kept

    def offsets_at(self, numbers: list[int], milliseconds: int) -> dict[int, int | None]:
        raise AssertionError("nothing goes by age")

    def read(self, one: OffsetRange, how: HowRead) -> Records:
        self.asked.append(one)
        if one.start < self.segments[one.topic_partition][0][0]:
            raise LookupError(str(one))
        none: list[None] = [None] * (one.end - one.start)
        offsets = np.arange(one.start, one.end)
        return Records(offsets, offsets, [b"k"] * len(none), [b"v"] * len(none), none)


def needed(number: int, first: int, many: int, batch: int = 0, size: int = 0) -> list[Needed]:
    """Return so many ranges of ten offsets; `size`: their bytes, as the driver estimated them."""
    return [
        (BatchId(batch + at), number, 0, OffsetRange(number, "t", number, start, start + 10, size), HOW)
        for at, start in enumerate(range(first, first + 10 * many, 10))
    ]


def watched(broker: Broker, ranges: list[Needed]) -> tuple[CopyStore, RetentionWatch]:
    copies = CopyStore(MemoryStorage())
    return copies, RetentionWatch(NAME, broker, lambda: ranges, copies, broker.read, clock=lambda: 0.0)


def looks(watch: RetentionWatch, broker: Broker, many: int, record_bytes: float) -> list[str]:
    """Look so often; each look may copy a few ranges."""
    lines = []
    for _ in range(many):
        watch._looked = -1e9  # the time between two looks is over
        lines += watch.look(broker.seen(), record_bytes)
    return lines


@pytest.mark.parametrize(("record_bytes", "logged"), [(100.0, 0), (1.0, 1000), (1.0, 0)])
def test_ranges_of_a_waiting_query_are_copied_before_segments_go_by_size(record_bytes: float, logged: int) -> None:
    """None were copied: nothing was due before the first segment went, then only what had gone with it.

    Also where records are much larger than was taken: then what has gone once is the measure.
    """
    broker = Broker(TopicRetention(bytes=300_000, segment_bytes=100_000))
    broker.write(0, [100] * 4000)
    ranges = needed(0, 0, 400, size=logged)
    copies, watch = watched(broker, ranges)
    lost = list[str]()
    for _ in range(3):
        lost += [one for one in looks(watch, broker, 60, record_bytes) if "went before" in one]
        broker.delete()
        broker.write(0, [100] * 1000)
    lost += [one for one in looks(watch, broker, 60, record_bytes) if "went before" in one]
    kept = sum(copies.has(NAME, *one[:3]) for one in ranges)
    if max(record_bytes, logged / 10) == 100.0:
        assert (kept, lost) == (400, [])
    else:
        assert kept == 300, "what went with the first segment could not be foreseen"
        assert len(lost) == 100


def test_what_is_there_is_copied_before_what_is_gone_is_looked_at() -> None:
    """The eight that were looked at first were those that had gone; those behind them went meanwhile."""
    broker = Broker(TopicRetention())
    broker.write(0, [1] * 4000)
    ranges = needed(0, 0, 400)
    copies, watch = watched(broker, ranges)
    assert looks(watch, broker, 3, 1.0) == [], "no setting announces that records are deleted by hand"
    for beginning in (1000, 1080):
        broker.segments[0] = [(beginning, 1)]
        broker.asked.clear()
        looks(watch, broker, 1, 1.0)
        assert [one.start for one in broker.asked] == list(range(beginning, beginning + 80, 10))
    looks(watch, broker, 60, 1.0)
    assert [copies.has(NAME, *one[:3]) for one in ranges] == [False] * 100 + [True] * 300, (
        "that the beginning stands still does not end it"
    )


@pytest.mark.parametrize("seed", range(share(16)))
def test_no_range_is_lost_by_size_whatever_segments_and_records_are_like(seed: int) -> None:
    """Two topic partitions; a query waits from some batch on; the brokers delete at any time between two looks."""
    draw = random.Random(seed)
    segment = draw.choice([2_000, 10_000, 200_000])
    broker = Broker(
        TopicRetention(bytes=draw.choice([20_000, 100_000]), segment_bytes=segment), [[(0, 0)], [(0, 0)]], [0, 0]
    )
    uncompressed = draw.choice([1.0, 3.0])
    sizes = [draw.randrange(10, 200) for _ in range(50)]
    mean = uncompressed * sum(sizes) / len(sizes)
    ranges, waits_from = list[Needed](), draw.randrange(100)
    copies, watch = watched(broker, ranges)
    lines = list[str]()
    for batch in range(300):
        for number in (0, 1):
            start = broker.ends[number]
            broker.write(number, draw.choices(sizes, k=10))
            ranges += needed(number, start, 1, batch)
        if batch < waits_from:
            del ranges[:-4]  # two durable checkpoints cover all before
        lines += looks(watch, broker, 2, mean)
        if draw.random() < 0.3:
            broker.delete()
    lines += looks(watch, broker, 2, mean)
    assert not [one for one in lines if "went before" in one], f"seed {seed}"
    gone = [one for one in ranges if one[3].start < broker.segments[one[3].topic_partition][0][0]]
    assert gone or segment == 200_000
    assert all(copies.has(NAME, *one[:3]) for one in gone), f"seed {seed}"


def test_queries_that_keep_up_need_no_copies() -> None:
    broker = Broker(TopicRetention(bytes=100_000, segment_bytes=20_000))
    ranges = list[Needed]()
    _, watch = watched(broker, ranges)
    for batch in range(300):
        start = broker.ends[0]
        broker.write(0, [100] * 10)
        ranges += needed(0, start, 1, batch)
        del ranges[:-20]
        assert looks(watch, broker, 1, 100.0) == []
        broker.delete()
    assert not broker.asked


def test_what_may_go_soon() -> None:
    assert not soon_gone(50, 0)
    assert soon_gone(50, 0, aged=51), "by its age"
    assert soon_gone(50, 0, sized=51), "by the size of what comes after it"
    assert soon_gone(50, 40, reach=80), "the topic's beginning comes near"
    assert not soon_gone(500, 40, reach=80, aged=60, sized=70)
    assert soon_gone(50, 0, compacted=True)
    assert moves_to(40, 30, 0) == 80
    assert moves_to(40, 40, 80) == 80, "a beginning that stands still may move on as before"
    assert first_kept_by_size(PartitionSeen(0, 100, 0), TopicRetention(), 10.0) is None
    assert first_kept_by_size(PartitionSeen(0, 100, 0), TopicRetention(bytes=1000), 10.0) == 50
    assert first_kept_by_size(PartitionSeen(60, 100, 60), TopicRetention(bytes=1000), 10.0) == 80
    assert first_kept_by_size(PartitionSeen(60, 100, 60), TopicRetention(bytes=0), 10.0) == 100


def test_what_a_topic_s_settings_say() -> None:
    def settings(policy: str, age: int, size: int) -> dict[str, str | None]:
        return {
            "cleanup.policy": policy,
            "retention.ms": str(age),
            "retention.bytes": str(size),
            "segment.bytes": "1000",
        }

    assert topic_retention(settings("delete", 5000, -1)) == TopicRetention(5.0, None, 1000)
    assert topic_retention(settings("delete", -1, 300)) == TopicRetention(None, 300, 1000)
    assert topic_retention(settings("compact,delete", 5000, 300)) == TopicRetention(5.0, 300, 1000, compacted=True)
    assert topic_retention(settings("compact", 5000, 300)) == TopicRetention(compacted=True)
    assert topic_retention({}) == TopicRetention(), "brokers that say nothing"
