"""Which offsets of a topic come next, without a broker: starts, growth, open transactions, deaths of drivers."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from threading import Event, Thread
from typing import Any

import pytest

import holdfast as hf
from holdfast.application.kafka_topics import StartAt
from holdfast.errors import BadInput, CheckFailed
from holdfast.ids import OperatorId
from holdfast.runtime.io.file_ranges import FileRange
from holdfast.runtime.io.kafka_reader import KafkaReader
from holdfast.runtime.io.offset_ranges import OffsetRange, source_range_fields, source_range_of
from holdfast.runtime.io.offset_tracker import (
    OffsetPosition,
    OffsetTracker,
    PartitionSeen,
    TakenOffsets,
    TopicSeen,
    offset_fields,
    offsets_of,
)
from holdfast.storage.source_files import SourceFile


def seen(*ends: int, earliest: int = 0, start: int | None = None, topic: str = "id") -> TopicSeen:
    return TopicSeen(
        topic, {at: PartitionSeen(earliest, end, earliest if start is None else start) for at, end in enumerate(ends)}
    )


def tracker(partitions: int = 1, start: StartAt = StartAt(), **given: Any) -> OffsetTracker:  # noqa: B008
    return OffsetTracker("t", start, partitions, record_bytes=10, **given)


def take(one: OffsetTracker, most: int = 1 << 30) -> list[tuple[int, int, int, int]]:
    taken = one.take(most)
    one.logged(taken)
    return [(part.partition, part.topic_partition, part.start, part.end) for part in taken.ranges]


def test_a_batch_takes_what_there_is_and_the_next_one_goes_on_after_it() -> None:
    one = tracker(2)
    assert not one.look(seen(5, 3, 0))
    assert one.pending
    assert take(one) == [(0, 0, 0, 5), (1, 1, 0, 3)]
    assert not one.pending
    one.look(seen(5, 4, 2))
    assert take(one) == [(1, 1, 3, 4), (0, 2, 0, 2)], "a topic partition stays with its partition of the source"


def test_a_batch_is_bounded_and_topic_partitions_get_to_their_ends_together() -> None:
    one = tracker()
    one.look(seen(300, 100))
    assert take(one, 400) == [(0, 0, 0, 30), (0, 1, 0, 10)]
    few = tracker(max_records=4)
    few.look(seen(300, 100))
    assert take(few) == [(0, 0, 0, 3), (0, 1, 0, 1)]
    uneven = tracker(max_records=100)
    uneven.look(seen(9990, 3, 7, 0))
    assert take(uneven) == [(0, 0, 0, 98), (0, 1, 0, 1), (0, 2, 0, 1)], "none in which records wait is left out"
    tight = tracker(max_records=2)
    tight.look(seen(5, 5, 5))
    assert take(tight) == [(0, 0, 0, 1), (0, 1, 0, 1), (0, 2, 0, 1)], "whatever the bound"
    large = tracker()
    large.look(seen(3))
    assert take(large, 1) == [(0, 0, 0, 1)], "one record at least, however large"


def test_a_start_position_is_logged_before_there_is_anything_to_read() -> None:
    one = tracker(start=StartAt("latest"))
    one.look(seen(7, 9, start=7))
    assert one.pending
    assert take(one) == [(0, 1, 7, 9)]
    empty = tracker(start=StartAt("latest"))
    empty.look(TopicSeen("id", {0: PartitionSeen(0, 7, 7)}))
    assert take(empty) == []
    assert empty.position.next == {0: 7}
    again = replace(tracker(start=StartAt("latest")), position=empty.position, begun=True)
    again.look(TopicSeen("id", {0: PartitionSeen(0, 9, 9)}))
    assert take(again) == [(0, 0, 7, 9)], "a new driver goes on from the start that was logged"


def test_topic_partitions_that_appear_are_read_from_their_beginning() -> None:
    one = tracker(start=StartAt("latest"))
    one.look(TopicSeen("id", {0: PartitionSeen(0, 4, 4)}))
    assert take(one) == []
    lines = one.look(TopicSeen("id", {0: PartitionSeen(0, 4, 4), 1: PartitionSeen(0, 3, 3)}))
    assert lines == ["partition 1 of topic t is new: it is read from its beginning"]
    assert take(one) == [(0, 1, 0, 3)]


def test_with_a_fixed_end_the_rest_is_left_for_the_next_run() -> None:
    one = tracker()
    one.look(seen(5))
    one.fix_end()
    one.look(seen(9, 2))
    assert take(one) == [(0, 0, 0, 5)]
    assert not one.pending
    assert one.is_taken({0: 5})


def test_a_topic_that_is_another_one_is_refused() -> None:
    one = tracker()
    one.look(seen(5))
    take(one)
    with pytest.raises(CheckFailed, match="topic t was deleted and created again"):
        one.look(seen(5, topic="other"))
    with pytest.raises(CheckFailed, match="ends at offset 3, and was read up to 5"):
        one.look(seen(3))


def test_offsets_that_went_are_logged_so_that_reading_them_fails_or_passed_over_where_that_is_wanted() -> None:
    one = tracker()
    one.look(seen(5))
    take(one)
    one.look(seen(20, earliest=12))
    assert take(one) == [(0, 0, 5, 20)]
    skipping = tracker(skip_lost=True)
    skipping.look(seen(5))
    take(skipping)
    assert skipping.look(seen(20, earliest=12)) == ["offsets 5 to 12 of t-0 are not there any more: passed over"]
    assert take(skipping) == [(0, 0, 12, 20)]
    fresh = tracker()
    fresh.look(seen(5))
    fresh.look(seen(20, earliest=12))
    assert take(fresh) == [(0, 0, 12, 20)], "before the first batch nothing was promised"


def test_a_look_that_is_late_does_not_bring_ends_back() -> None:
    """The thread that looks was slow, and one who waits for all that is there has looked meanwhile: ends went back."""
    asked, answered = Event(), Event()

    class Slow:
        end = 5

        def look(self, *, begun: bool) -> TopicSeen:
            found = seen(self.end)
            if not asked.is_set():
                asked.set()
                assert answered.wait(60)
            return found

    topic, problems = Slow(), list[BaseException]()
    source = KafkaReader(OperatorId("s"), hf.kafka("a", "t"), 1, topic)

    def look() -> None:
        source.look()

    def wait_for_all() -> None:
        try:
            look()
            while (taken := source.take(1 << 30)) is not None:
                source.logged(taken)
        except BaseException as problem:
            problems.append(problem)

    first, second = Thread(target=look), Thread(target=wait_for_all)
    first.start()
    assert asked.wait(60)
    topic.end = 8
    second.start()
    second.join(0.2)  # it is over by then, where it does not wait for the look that is under way
    answered.set()
    first.join()
    second.join()
    assert not problems
    assert source._tracker.ends == {0: 8}
    assert source._tracker.position.next == {0: 8}


def test_ranges_and_positions_as_json() -> None:
    one = OffsetRange(1, "t", 2, 3, 4, 5)
    assert source_range_of(source_range_fields(one)) == one
    file = FileRange(0, SourceFile("a", 1, 2), 0, 1)
    assert source_range_of(source_range_fields(file)) == file
    position = OffsetPosition("id", {0: 5, 11: 7})
    assert offsets_of(offset_fields("t", position)) == position


def test_what_a_source_may_say() -> None:
    secret = "s3cr3t-of-mine"
    made = hf.kafka(["a:1", "b:2"], "t", settings={"sasl.password": secret, "ssl": True})
    assert (made.servers, made.settings) == ("a:1,b:2", (("sasl.password", secret), ("ssl", "true")))
    assert secret not in repr(made)
    assert secret not in str(made)
    assert hf.kafka("a", "t", start={1: 5}).start == StartAt("offsets", ((1, 5),))
    at = datetime(2026, 1, 1, tzinfo=UTC)
    assert hf.kafka("a", "t", start=at).start == hf.kafka("a", "t", start="2026-01-01T00:00:00Z").start
    for wrong, given in {
        "kafka.servers: is empty": lambda: hf.kafka("", "t"),
        "kafka.topic: is empty": lambda: hf.kafka("a", " "),
        "kafka.value: 'jsn' is not a kind of value": lambda: hf.kafka("a", "t", "jsn"),
        "kafka.avro_schema: is missing": lambda: hf.kafka("a", "t", "avro"),
        "kafka.avro_schema: is not JSON": lambda: hf.kafka("a", "t", "avro", avro_schema="{"),
        "kafka.start: 'soon' is not a place to start": lambda: hf.kafka("a", "t", start="soon"),
        "kafka.settings: 'isolation.level' cannot be set": lambda: hf.kafka(
            "a", "t", settings={"isolation.level": "read_uncommitted"}
        ),
        "kafka.settings: the value of 'error_cb' is function": lambda: hf.kafka(
            "a", "t", settings={"error_cb": hf.kafka}
        ),
    }.items():
        with pytest.raises(BadInput, match=wrong):
            given()


def test_columns_take_parts_of_records() -> None:
    app = hf.Application("a")
    raw = app.source("raw", hf.kafka("a", "t", "raw"))
    assert raw.columns is not None
    assert list(raw.columns) == ["key", "value", "headers", "timestamp", "partition", "offset"]
    for wrong, reader, schema in [
        (r"j\.schema: json values do not say", hf.kafka("a", "t"), None),
        (r"there is no column 'k' for the key of records", hf.kafka("a", "t", key="k"), "v string"),
        (r"column 'v' is int64, which the key of a record is not", hf.kafka("a", "t", key="v"), "v long"),
        (r"raw records have no column 'page'", hf.kafka("a", "t", "raw"), "value string, page string"),
    ]:
        with pytest.raises(BadInput, match=wrong):
            app.source("j", reader, schema=schema)


# -- a model of a topic, with everything that happens to it ------------------------------------------------------------


class ModelTopic:
    """Topic partitions that grow, with transactions that stay open for a while; and the run's log."""

    def __init__(self, draw: random.Random) -> None:
        self.draw, self.ends, self.stable = draw, [0], [0]
        self.log: list[TakenOffsets] = []

    def happen(self) -> None:
        match self.draw.randrange(5):
            case 0 if len(self.ends) < 8:
                self.ends.append(0)
                self.stable.append(0)
            case 1 | 2:
                at = self.draw.randrange(len(self.ends))
                self.ends[at] += self.draw.randrange(6)
            case _:
                at = self.draw.randrange(len(self.ends))
                self.stable[at] = self.draw.randint(self.stable[at], self.ends[at])

    def seen(self) -> TopicSeen:
        return TopicSeen("id", {at: PartitionSeen(0, end, 0) for at, end in enumerate(self.stable)})

    def driver(self) -> OffsetTracker:
        """A driver that starts: it goes on where the log says."""
        if not self.log:
            return tracker(3)
        return replace(tracker(3), position=self.log[-1].position, begun=True)


def run_model(seed: int) -> str | None:
    """Let drivers read a topic, die, and be frozen; return what is wrong with the log, None: nothing."""
    draw = random.Random(seed)
    topic = ModelTopic(draw)
    driver = topic.driver()
    for _ in range(60):
        topic.happen()
        what = draw.randrange(8)
        if what == 0:
            driver = topic.driver()
            continue
        driver.look(topic.seen())
        if not driver.pending:
            continue
        taken = driver.take(draw.choice((5, 40, 1000)))
        if what == 1:
            continue  # it died, or logging failed, between taking and logging
        if what == 2 and topic.log:
            # The driver before has logged meanwhile: what was taken does not count.
            other = topic.driver()
            other.look(topic.seen())
            if other.pending:
                topic.log.append(other.take(1000))
            driver = topic.driver()
            continue
        topic.log.append(taken)
        driver.logged(taken)
    topic.stable = list(topic.ends)
    driver = topic.driver()
    driver.look(topic.seen())
    while driver.pending:
        topic.log.append(taken := driver.take(200))
        driver.logged(taken)
        driver.look(topic.seen())
    found = [
        (part.topic_partition, offset)
        for one in topic.log
        for part in one.ranges
        for offset in range(part.start, part.end)
    ]
    wanted = [(number, offset) for number, end in enumerate(topic.ends) for offset in range(end)]
    if len(found) != len(set(found)):
        return "offsets were taken twice"
    return None if sorted(found) == wanted else "offsets were not taken"


def test_every_offset_is_taken_once_through_growth_open_transactions_and_deaths() -> None:
    for seed in range(200):
        assert run_model(seed) is None, f"seed {seed}"


def _forget_partitions(patch: pytest.MonkeyPatch) -> None:
    """The position has only the topic partitions of the last batch's ranges."""
    right = OffsetTracker.take

    def wrong(self: OffsetTracker, most_bytes: int) -> TakenOffsets:
        taken = right(self, most_bytes)
        named = {part.topic_partition for part in taken.ranges}
        left = {number: at for number, at in taken.position.next.items() if number in named}
        return replace(taken, position=OffsetPosition("id", left))

    patch.setattr(OffsetTracker, "take", wrong)


def _take_before_logging(patch: pytest.MonkeyPatch) -> None:
    """What is taken counts as read before it is logged."""
    right = OffsetTracker.take

    def wrong(self: OffsetTracker, most_bytes: int) -> TakenOffsets:
        taken = right(self, most_bytes)
        self.position = taken.position
        return taken

    patch.setattr(OffsetTracker, "take", wrong)


def _new_partitions_from_their_end(patch: pytest.MonkeyPatch) -> None:
    """Topic partitions that appear are read from where they are when they are first seen."""
    right = OffsetTracker.look

    def wrong(self: OffsetTracker, found: TopicSeen) -> list[str]:
        known = self.position.next
        late = {
            number: one if number in known or not self.begun else replace(one, earliest=one.end)
            for number, one in found.partitions.items()
        }
        return right(self, TopicSeen(found.id, late))

    patch.setattr(OffsetTracker, "look", wrong)


def _range_overlaps(patch: pytest.MonkeyPatch) -> None:
    """A range begins with the last offset of the one before."""
    right = OffsetTracker.take

    def wrong(self: OffsetTracker, most_bytes: int) -> TakenOffsets:
        taken = right(self, most_bytes)
        return replace(taken, ranges=tuple(replace(one, start=max(0, one.start - 1)) for one in taken.ranges))

    patch.setattr(OffsetTracker, "take", wrong)


@pytest.mark.parametrize(
    "plant", [_forget_partitions, _take_before_logging, _new_partitions_from_their_end, _range_overlaps]
)
def test_planted_bugs_are_found(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert any(run_model(seed) is not None for seed in range(50))
