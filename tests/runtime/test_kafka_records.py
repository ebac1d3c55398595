"""Records of a topic without a broker: rows, checksums and copies, and what is refused when they are read again."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.application.kafka_topics import KafkaTopic
from holdfast.errors import BadInput, CheckFailed
from holdfast.ids import BatchId, OperatorId
from holdfast.runtime.io import kafka_client, range_copies
from holdfast.runtime.io.file_ranges import HowRead
from holdfast.runtime.io.kafka_reading import read_offsets, records_to_copy
from holdfast.runtime.io.kafka_records import Records, check_avro, decode_records, header_text, record_rows
from holdfast.runtime.io.kafka_stream import OffsetsGone
from holdfast.runtime.io.offset_ranges import OffsetRange
from holdfast.runtime.io.offset_tracker import PartitionSeen, TopicSeen
from holdfast.runtime.io.range_copies import CopyStore, RetentionWatch
from holdfast.runtime.io.topic_retention import TopicRetention
from holdfast.runtime.program import SourceProgram
from holdfast.storage.memory import MemoryStorage

SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string()), ("at", pa.timestamp("us"))])


def records(*values: bytes | None, keys: list[bytes | None] | None = None, first: int = 0) -> Records:
    count = len(values)
    return Records(
        np.arange(first, first + count),
        np.full(count, 1000),
        keys or [None] * count,
        list(values),
        [header_text([("h", b"x")]) if at % 2 else None for at in range(count)],
    )


def how(**options: Any) -> HowRead:
    made = hf.kafka("a", "t", **options)
    return HowRead(made.format, made.options, 0)


def test_every_record_gives_its_row_or_a_reason_wherever_bad_ones_stand() -> None:
    draw = random.Random(1)
    good = [
        lambda n: json.dumps({"id": n, "word": "w", "more": [1]}).encode(),
        lambda n: json.dumps({"id": n, "word": "a\nb\r"}, indent=1).encode(),
        lambda n: f'{{"id": {n}, "at": "2026-01-01T00:00:0{n % 10}Z", "word": 5}}'.encode(),
    ]
    bad = [b"", b"  ", b"nonsense", b'{"id": 1', b"[1]", b'{"id": 1}{"id": 2}', b'{"id": "x"}', b"\xff\xfe", b"null"]
    for _ in range(30):
        values: list[bytes | None] = []
        wanted, aside = list[int | None](), list[int]()
        for at in range(draw.randrange(120)):
            if draw.random() < 0.05:
                values.append(draw.choice(bad))
                aside.append(at)
            elif draw.random() < 0.05:
                values.append(None)
                wanted.append(None)
            else:
                values.append(draw.choice(good)(at))
                wanted.append(at)
        found = record_rows(records(*values), how(), SCHEMA)
        assert found.rows["id"].to_pylist() == wanted
        assert [one.position for one in found.rejected] == aside
        assert found.rows.schema == SCHEMA


def test_two_malformed_values_do_not_become_two_rows() -> None:
    """One after the other they are two objects; neither is one."""
    found = record_rows(records(b'{"id":1}{"word":', b'"x"}', b'{"id":1}{"id":', b"2}"), how(), SCHEMA)
    assert found.rows.num_rows == 0
    assert [one.position for one in found.rejected] == [0, 1, 2, 3]


def test_a_null_first_among_values_is_aside() -> None:
    found = record_rows(records(b"null", b'{"id": 3}'), how(), SCHEMA)
    assert found.rows["id"].to_pylist() == [3]
    assert [one.position for one in found.rejected] == [0]


def test_rows_without_a_column_of_the_value() -> None:
    schema = pa.schema([("k", pa.binary()), ("n", pa.int64()), ("p", pa.int32())])
    parts = how(key="k", offset="n", partition="p")
    found = record_rows(records(b"{}", b"no", b'{"x": 1}', keys=[b"a", b"b", b"c"]), parts, schema, 5)
    assert found.rows.to_pylist() == [{"k": b"a", "n": 0, "p": 5}, {"k": b"c", "n": 2, "p": 5}]
    assert [one.position for one in found.rejected] == [1]


def test_a_key_that_is_no_text_takes_its_row_along() -> None:
    schema = pa.schema([("id", pa.int64()), ("k", pa.string())])
    values = [b'{"id": 0}', b'{"id": 1}', b"no", b'{"id": 3}']
    found = record_rows(records(*values, keys=[b"a", b"\xff", b"c", b"d"]), how(key="k"), schema)
    assert found.rows.to_pylist() == [{"id": 0, "k": "a"}, {"id": 3, "k": "d"}]
    assert [(one.position, one.record) for one in found.rejected] == [(1, '{"id": 1}'), (2, "no")]


def test_avro_values_one_by_one_where_some_are_wrong() -> None:
    fields = [{"name": "id", "type": ["null", "long"]}, {"name": "word", "type": "string"}]
    schema: dict[str, Any] = {"type": "record", "name": "r", "fields": fields}

    def value(number: int | None) -> bytes:
        data = io.BytesIO()
        fastavro.schemaless_writer(data, schema, {"id": number, "word": "w"})
        return data.getvalue()

    values = [value(0), value(1)[:-1], value(2) + b"x", b"", value(None), None]
    found = record_rows(records(*values), how(value="avro", avro_schema=schema), SCHEMA)
    assert found.rows["id"].to_pylist() == [0, None, None]
    assert [one.position for one in found.rejected] == [1, 2, 3]
    assert "bytes after its end" in found.rejected[1].reason
    with pytest.raises(BadInput, match=r"kafka\.avro_schema: is not an Avro schema"):
        check_avro(how(value="avro", avro_schema='{"type": "recrd"}').options)


def test_the_checksum_is_of_everything_and_a_copy_has_it_too() -> None:
    one = records(b"ab", None, b"", keys=[b"k", None, b""])
    assert decode_records(one.encode()).check() == one.check()
    different = [
        records(b"ab", b"", b"", keys=[b"k", None, b""]),
        records(b"a", b"b", b"", keys=[b"k", None, b""]),
        records(b"ab", None, b"", keys=[b"", b"k", b""]),
        records(b"ab", None, b"", keys=[b"k", None, b""], first=1),
        records(b"ab", None, keys=[b"k", None]),
    ]
    assert len({one.check(), *(other.check() for other in different)}) == 6
    assert records().check() == 0


# -- reading again -----------------------------------------------------------------------------------------------------

RANGE = OffsetRange(0, "t", 0, 0, 3)
FOUND = records(b'{"id": 0}', b'{"id": 1}', b'{"id": 2}')


def source(**options: Any) -> SourceProgram:
    return SourceProgram(OperatorId("s"), 1, SCHEMA, (), None, 0.0, hf.kafka("a", "t", **options))


def gone(earliest: int, end: int = 9) -> Callable[..., Records]:
    def fetch(reader: object, one: OffsetRange, how: HowRead) -> Records:
        if one.start < min(earliest, one.end):
            raise OffsetsGone(earliest, end)
        return records(*FOUND.values[one.start : one.end], first=one.start)

    return fetch


def none() -> Records | None:
    return None


def test_other_records_than_at_the_first_reading_are_refused_unless_there_is_a_copy() -> None:
    def fetch(*_: object) -> Records:
        return FOUND

    assert read_offsets(source(), RANGE, how(), FOUND.check(), none, fetch=fetch).rows.num_rows == 3
    other = records(b'{"id": 7}')
    with pytest.raises(
        CheckFailed, match=r"does not have the records any more that were first read.*nothing is publish"
    ):
        read_offsets(source(), RANGE, how(), other.check(), none, fetch=fetch)
    found = read_offsets(source(), RANGE, how(), other.check(), lambda: other, fetch=fetch)
    assert found.rows["id"].to_pylist() == [7]
    with pytest.raises(CheckFailed, match="were first read"):
        read_offsets(source(), RANGE, how(), other.check(), lambda: FOUND, fetch=fetch)


def test_what_is_gone_is_named_or_passed_over_where_that_is_wanted() -> None:
    with pytest.raises(CheckFailed, match="topic t, partition 0: begins at offset 2: offsets 0 to 2 went by its reten"):
        read_offsets(source(), RANGE, how(), None, none, fetch=gone(2))
    assert read_offsets(source(), RANGE, how(), None, lambda: FOUND, fetch=gone(2)).rows.num_rows == 3
    lenient = source(fail_on_data_loss=False)
    found = read_offsets(lenient, RANGE, how(), None, none, fetch=gone(2))
    assert found.rows["id"].to_pylist() == [2]
    assert [(one.position, one.reason) for one in found.rejected] == [
        (0, "the brokers do not have offsets 0 to 2 any more")
    ]
    with pytest.raises(CheckFailed, match="begins at offset 2"):
        read_offsets(lenient, RANGE, how(), FOUND.check(), none, fetch=gone(2))
    with pytest.raises(CheckFailed, match="ends at offset 1: records were lost, or the topic was deleted"):
        read_offsets(lenient, RANGE, how(), None, none, fetch=gone(2, end=1))
    files = SourceProgram(OperatorId("s"), 1, SCHEMA, (), None, 0.0, hf.files("in"))
    with pytest.raises(CheckFailed, match="it does not read Kafka any more"):
        read_offsets(files, RANGE, how(), None, none, fetch=gone(0))


def test_a_batch_from_which_lost_records_were_passed_over_can_be_read_again() -> None:
    lenient = source(fail_on_data_loss=False)
    first = read_offsets(lenient, RANGE, how(), None, none, fetch=gone(2))
    again = read_offsets(lenient, RANGE, how(), first.check, none, fetch=gone(2))
    assert again.rows.equals(first.rows)
    assert again.rejected == first.rejected
    with pytest.raises(CheckFailed, match="begins at offset 3: offsets 0 to 3 went"):
        read_offsets(lenient, RANGE, how(), first.check, none, fetch=gone(3))
    nothing = read_offsets(lenient, RANGE, how(), None, none, fetch=gone(5))
    assert read_offsets(lenient, RANGE, how(), nothing.check, none, fetch=gone(7)).rows.num_rows == 0


def test_records_that_compaction_removes_before_they_are_first_read_come_from_the_copy() -> None:
    left = records(b'{"id": 2}', first=2)

    def compacted(*_: object) -> Records:
        return left

    found = read_offsets(source(), RANGE, how(), None, lambda: FOUND, fetch=compacted)
    assert found.rows["id"].to_pylist() == [0, 1, 2], "a partition that was lost meanwhile would have fewer rows"
    assert found.check == FOUND.check()
    assert read_offsets(source(), RANGE, how(), None, none, fetch=compacted).rows["id"].to_pylist() == [2]
    assert read_offsets(source(), RANGE, how(), left.check(), lambda: FOUND, fetch=compacted).rows.num_rows == 1

    def whole(*_: object) -> Records:
        return FOUND

    def not_asked() -> Records | None:
        raise AssertionError

    assert read_offsets(source(), RANGE, how(), None, not_asked, fetch=whole).rows.num_rows == 3


class Kept:
    """A topic whose records go after a hundred seconds; each offset is a second old."""

    def __init__(self, *, compacted: bool = False) -> None:
        self.compacted, self.asked = compacted, 0

    def retention(self) -> TopicRetention:
        return TopicRetention(100.0, compacted=self.compacted)

    def offsets_at(self, numbers: list[int], milliseconds: int) -> dict[int, int | None]:
        self.asked += 1
        return dict.fromkeys(numbers, milliseconds // 1000 if milliseconds < 50000 else None)


def test_ranges_are_copied_before_they_go_once_and_dropped_with_their_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_copies, "LOOK_SECONDS", 0.0)
    store, name, now = CopyStore(MemoryStorage()), OperatorId("s"), [0.0]
    ranges = [OffsetRange(0, "t", 0, 10 * at, 10 * at + 10) for at in range(4)]
    needed = [(BatchId(at), 0, 0, one, how()) for at, one in enumerate(ranges)]
    read = list[OffsetRange]()

    def fetch(one: OffsetRange, how: HowRead) -> Records:
        read.append(one)
        if one.start == 20:
            raise LookupError
        return FOUND

    watch = RetentionWatch(name, Kept(), lambda: iter(needed), store, fetch, wall=lambda: now[0])
    seen = TopicSeen("id", {0: PartitionSeen(0, 40, 0)})
    assert watch.look(seen) == []
    now[0] = 90.0  # what is older than 75 s: offsets before 15
    assert watch.look(seen) == [
        "offsets 0 to 10 of t-0 and 1 more ranges may go soon and are still needed: copied into the run's log"
    ]
    assert watch.look(seen) == [], "once"
    assert read == ranges[:2]
    now[0] = 1000.0
    lines = watch.look(seen)
    assert lines[0].startswith("offsets 20 to 30 of t-0 (batch 2) went before a copy was made")
    assert [store.has(name, BatchId(at), 0, 0) for at in range(4)] == [True, True, False, True]
    again = store.read(name, BatchId(0), 0, 0)
    assert again is not None
    assert again.check() == FOUND.check()
    store.drop(BatchId(1))
    assert [store.has(name, BatchId(at), 0, 0) for at in range(4)] == [False, False, False, True]
    compacted = RetentionWatch(name, Kept(compacted=True), lambda: iter(needed[:1]), store, fetch, wall=lambda: 0.0)
    assert len(compacted.look(seen)) == 1, "a replay could find fewer records"


def test_the_rest_of_a_range_whose_beginning_is_gone_is_copied_before_more_of_it_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Replays failed again and again where the beginning had moved on, though what is lost is to be passed over."""
    monkeypatch.setattr(range_copies, "LOOK_SECONDS", 0.0)
    lenient, strict = source(fail_on_data_loss=False), source()
    store, name, needed = CopyStore(MemoryStorage()), OperatorId("s"), [(BatchId(7), 0, 0, RANGE, how())]
    copied = partial(store.read, name, BatchId(7), 0, 0)

    def watch(of: SourceProgram, beginning: int) -> list[str]:
        def read(one: OffsetRange, how: HowRead) -> Records:
            assert isinstance(of.reader, KafkaTopic)
            return records_to_copy(of.reader, one, how, fetch=gone(beginning))

        seen = TopicSeen("id", {0: PartitionSeen(beginning, 9, beginning)})
        return RetentionWatch(name, Kept(), lambda: needed, store, read, wall=lambda: 0.0).look(seen)

    assert "went before a copy was made: a recovery that reads it again fails" in watch(strict, 2)[0]
    first = read_offsets(lenient, RANGE, how(), None, copied, fetch=gone(2))
    assert watch(lenient, 2)[0] == (
        "offsets 0 to 2 of t-0 (batch 7) went before a copy was made: a recovery passes over them"
    )
    for expected in (first.check, None):
        for fetch in (gone(3), gone(9), away):
            again = read_offsets(lenient, RANGE, how(), expected, copied, fetch=fetch)
            assert again.rows.equals(first.rows)
            assert again.rejected == first.rejected, "what is not in the copy is a dead letter all the same"
    with pytest.raises(CheckFailed, match="begins at offset 3: offsets 0 to 3 went by its retention"):
        read_offsets(strict, RANGE, how(), first.check, copied, fetch=gone(3))
    with pytest.raises(CheckFailed, match="were first read"):
        read_offsets(lenient, RANGE, how(), FOUND.check(), copied, fetch=gone(3))


def test_ranges_that_are_about_to_go_are_all_copied_however_many_they_are() -> None:
    """Eight were copied every two seconds: of a query that was parked for long, most ranges went before their turn."""
    store, name = CopyStore(MemoryStorage()), OperatorId("s")
    needed = [(BatchId(at), 0, 0, OffsetRange(0, "t", 0, at, at + 1), how()) for at in range(30)]
    answers, asked = True, 0

    def fetch(*_: object) -> Records:
        nonlocal asked
        asked += 1
        return FOUND if answers else away()

    watch = RetentionWatch(
        name, Kept(compacted=True), lambda: needed, store, fetch, clock=lambda: 0.0, wall=lambda: 0.0
    )
    seen = TopicSeen("id", {0: PartitionSeen(0, 40, 0)})
    for _ in range(4):
        assert len(watch.look(seen)) == 1
    assert all(store.has(name, *one[:3]) for one in needed)
    assert watch.look(seen) == []
    answers, asked = False, 0
    lost = RetentionWatch(
        name, Kept(compacted=True), lambda: needed, CopyStore(MemoryStorage()), fetch, clock=lambda: 0.0
    )
    assert "cannot be copied, and is tried again" in lost.look(seen)[0]
    assert lost.look(seen) == [], "brokers that do not answer are not asked in every look"
    assert asked == 1


def test_a_topic_partition_that_does_not_answer_does_not_keep_others_from_being_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(range_copies, "LOOK_SECONDS", 0.0)
    store, name = CopyStore(MemoryStorage()), OperatorId("s")
    needed = [(BatchId(at), 0, 0, OffsetRange(0, "t", at % 2, at, at + 1), how()) for at in range(40)]
    down = True

    def fetch(one: OffsetRange, how: HowRead) -> Records:
        return away() if down and not one.topic_partition else FOUND

    watch = RetentionWatch(name, Kept(compacted=True), lambda: needed, store, fetch, wall=lambda: 0.0)
    seen = TopicSeen("id", {number: PartitionSeen(0, 40, 0) for number in range(2)})
    for _ in range(4):
        watch.look(seen)
    assert all(store.has(name, *one[:3]) for one in needed if one[3].topic_partition), "20 ranges, 8 at a time"
    down = False
    for _ in range(3):
        watch.look(seen)
    assert all(store.has(name, *one[:3]) for one in needed)


def test_a_range_with_other_records_than_were_first_read_is_copied_once_it_has_them_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The copy stood for the range for good: when the beginning had moved on, its batch could not be read any more."""
    monkeypatch.setattr(range_copies, "LOOK_SECONDS", 0.0)
    store, name, now = CopyStore(MemoryStorage()), OperatorId("s"), [0.0]
    needed = [(BatchId(at), 0, 0, OffsetRange(0, "t", 0, at, at + 1), how()) for at in range(2)]
    other = replace(FOUND, values=[b"other" for _ in FOUND.values])
    has = [other]
    checks = {(BatchId(0), 0, 0): FOUND.check()}
    watch = RetentionWatch(
        name, Kept(compacted=True), lambda: needed, store, lambda one, how: has[0],
        check=lambda *place: checks.get(place), clock=lambda: now[0], wall=lambda: 0.0,
    )  # fmt: skip
    seen = TopicSeen("id", {0: PartitionSeen(0, 40, 0)})
    lines = watch.look(seen)
    assert lines[0] == "offsets 0 to 1 of t-0 (batch 0) does not have the records that were first read: not copied"
    assert [store.has(name, *one[:3]) for one in needed] == [False, True], "nobody has read batch 1 yet"
    has[0] = FOUND
    assert watch.look(seen) == [], "the brokers are asked again after a minute"
    now[0] = 61.0
    assert "copied into the run's log" in watch.look(seen)[0]
    held = store.read(name, BatchId(0), 0, 0)
    assert held is not None
    assert held.check() == FOUND.check()


def away(*_: object) -> Records:
    raise CheckFailed("the brokers do not answer")


def test_a_beginning_that_moves_on_while_the_rest_is_read_is_passed_over_too() -> None:
    moves = iter([gone(1), gone(2), gone(2)])

    def fetch(*about: Any) -> Records:
        return next(moves)(*about)

    found = read_offsets(source(fail_on_data_loss=False), RANGE, how(), None, none, fetch=fetch)
    assert found.rows["id"].to_pylist() == [2]
    assert [one.reason for one in found.rejected] == ["the brokers do not have offsets 0 to 2 any more"]


def test_brokers_are_asked_for_the_age_of_records_once_however_many_ranges_are_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread that asks also looks for new records: a question for each range stopped it for seconds."""
    monkeypatch.setattr(range_copies, "LOOK_SECONDS", 0.0)
    topic, now = Kept(), [75.0]
    needed = [(BatchId(at), 0, 0, OffsetRange(0, "t", 0, 50 + at, 51 + at), how()) for at in range(100)]
    watch = RetentionWatch(
        OperatorId("s"), topic, lambda: needed, CopyStore(MemoryStorage()), lambda *about: FOUND, wall=lambda: now[0]
    )
    seen = TopicSeen("id", {0: PartitionSeen(0, 150, 0)})
    watch.look(seen)
    watch.look(seen)
    assert topic.asked == 1, "the answer holds for a hundredth of the retention time"
    now[0] += 1.0
    watch.look(seen)
    assert topic.asked == 2


def test_a_missing_library_is_one_line_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(BadInput, match=r"confluent_kafka is not installed; run `pip install 'holdfast\[kafka\]'`"):
        kafka_client.kafka_library()


def test_an_offset_that_a_dying_broker_did_not_give_is_no_end_of_a_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was taken for an end below what was read: that the brokers had lost records, which ends a start."""
    library = pytest.importorskip("confluent_kafka")
    topic = kafka_client.Topic(hf.kafka("b:9092", "t"))
    offsets = {0: 7, 1: -1}
    monkeypatch.setattr(topic, "_client", lambda: (None, SimpleNamespace(list_offsets=lambda request, **_: request)))
    monkeypatch.setattr(
        topic, "_answer", lambda asked: {one: SimpleNamespace(offset=offsets[one.partition]) for one in asked}
    )
    assert topic.offsets(dict.fromkeys(offsets)) == offsets, "-1: no record is as late as a time"
    offsets[1] = library.OFFSET_INVALID
    with pytest.raises(kafka_client.BrokersAway, match="topic t cannot be looked at: a broker gave no offset"):
        topic.offsets(dict.fromkeys(offsets))
