"""Topics of a real broker, read in place in one process: every committed record once, through everything."""

from __future__ import annotations

import io
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import fastavro
import pytest

import holdfast as hf
from holdfast.errors import BadInput, CheckFailed, HoldfastError
from holdfast.ids import BatchId
from holdfast.runtime.in_process import InProcess
from holdfast.runtime.io import range_copies
from holdfast.runtime.io.kafka_client import Topic
from holdfast.runtime.io.kafka_stream import close_streams
from holdfast.runtime.io.topic_retention import TopicRetention
from holdfast_lab.kafka_broker import USER, KafkaBroker
from kafka.topics import TestTopic

SCHEMA = "id long, word string, at timestamp"


def row(number: int, **more: object) -> dict[str, object]:
    return {"id": number, "word": "ab"[number % 2], "at": f"2026-01-01T00:00:{number % 60:02d}", **more}


def rows(numbers: Iterable[int]) -> list[dict[str, object]]:
    return [row(number) for number in numbers]


def application(topic: TestTopic, *, parallelism: int = 1, schema: str = SCHEMA, **options: Any) -> hf.Application:
    app = hf.Application("words")
    options = {"timeout": "30 seconds", **options}
    reader = hf.kafka(options.pop("servers", topic.broker.servers), topic.name, **options)
    source = app.source("words", reader, schema=schema, event_time="at", lateness="1 minute", parallelism=parallelism)
    source.map(lambda found: found, schema=schema, id="all").output("all")
    source.key_by("word").window(hf.tumbling("1 second")).count(id="counts", parallelism=2).output("counts")
    return app


def started(app: hf.Application, place: Path) -> InProcess:
    sinks = {name: place / "out" / name for name in ("all", "counts")}
    return InProcess(app, directory=place, checkpoint_every=2, sinks=sinks)


def ids(running: InProcess) -> list[int]:
    return sorted(running.rows("all")["id"].to_pylist())


def test_records_become_rows_once_and_a_run_goes_on_after_them(broker: KafkaBroker, tmp_path: Path) -> None:
    topic = TestTopic(broker, 2)
    topic.write(rows(range(10)), partition=0)
    topic.write(rows(range(10, 15)), partition=1)
    first = started(application(topic, parallelism=2, max_records=4), tmp_path)
    first.read()
    assert ids(first) == list(range(15))
    assert first.frontier >= 3, "a batch has 4 records at most"
    topic.write(rows(range(15, 20)), partition=1)
    again = started(application(topic, parallelism=2), tmp_path)
    again.read()
    again.close()
    assert ids(again) == list(range(20))
    assert sum(again.rows("counts")["count"].to_pylist()) == 20


def test_parts_of_records_are_columns_and_what_does_not_parse_goes_aside(broker: KafkaBroker) -> None:
    topic = TestTopic(broker)
    at = 1_767_225_600_000
    topic.write([{"id": 1, "word": "a\nb"}], key=b"k1", headers=[("h", b"x"), ("bin", b"\xff")], at=at)
    topic.write([b'{"id": 2,\n  "word": "pretty"}', b"no json", b"", b'{"id": "x"}', b'{"id": 3}{"id": 4}'], at=at)
    topic.write([{"id": 5}], key=b"\xff\xfe", at=at)
    topic.write([None], key=b"gone", at=at)
    schema = "id long, word string, k string, h string, at timestamp, p int, o long"
    parts: dict[str, Any] = {"key": "k", "headers": "h", "timestamp": "at", "partition": "p", "offset": "o"}
    running = InProcess(application(topic, schema=schema, **parts))
    running.read()
    found = {one["o"]: one for one in running.rows("all").to_pylist()}
    assert [(o, one["id"], one["word"], one["k"]) for o, one in found.items()] == [
        (0, 1, "a\nb", "k1"),
        (1, 2, "pretty", None),
        (7, None, None, "gone"),
    ]
    assert found[0]["h"] == '[["h", "x"], ["bin", "ff"]]'
    assert {one["at"].isoformat() for one in found.values()} == {"2026-01-01T00:00:00"}
    aside = running.dead_letters("words")
    assert aside is not None
    assert aside["position"].to_pylist() == [2, 3, 4, 5, 6]
    assert aside["row"].to_pylist()[0] == "no json"
    assert "is not int64" in aside["error"].to_pylist()[2]
    assert "its key is not UTF-8" in aside["error"].to_pylist()[4]


def test_avro_values_and_raw_ones(broker: KafkaBroker) -> None:
    topic = TestTopic(broker)
    fields = [{"name": "id", "type": "long"}, {"name": "word", "type": ["null", "string"]}]
    fields.append({"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}})
    schema: dict[str, Any] = {"type": "record", "name": "r", "fields": fields}
    values = []
    for number in range(3):
        data = io.BytesIO()
        fastavro.schemaless_writer(data, schema, {"id": number, "word": None, "at": number})
        values.append(b"\0\0\0\0\x07" + data.getvalue())
    topic.write([values[0], values[1][:-1], b"\x01", values[2]])
    running = InProcess(application(topic, value="avro", avro_schema=schema, avro_framing="confluent"))
    running.read()
    assert ids(running) == [0, 2]
    aside = running.dead_letters("words")
    assert aside is not None
    assert aside["position"].to_pylist() == [1, 2]
    raw = hf.Application("raw")
    raw.source("raw", hf.kafka(broker.servers, topic.name, "raw")).output("all")
    other = InProcess(raw)
    other.read()
    assert [one["value"] for one in other.rows("all").to_pylist()] == [values[0], values[1][:-1], b"\x01", values[2]]


def test_where_reading_starts(broker: KafkaBroker) -> None:
    for start, wanted in [
        ("earliest", [*range(8), 10, 11, 20]),
        ("latest", [20]),
        ({0: 6}, [6, 7, 10, 11, 20]),
        ("1970-01-01T00:30:00Z", [4, 5, 6, 7, 20]),
    ]:
        topic = TestTopic(broker, 2)
        topic.write(rows(range(4)), at=1_000_000)
        topic.write(rows(range(4, 8)), at=2_000_000)
        topic.write(rows(range(10, 12)), partition=1, at=1_000_000)
        running = InProcess(application(topic, start=start))
        running.read()
        topic.write(rows([20]), partition=1, at=3_000_000)
        running.read()
        assert ids(running) == wanted, start
    with pytest.raises(BadInput, match=r"-0 has offsets 0 to 8, not 9"):
        InProcess(application(topic, start={0: 9})).read()
    with pytest.raises(BadInput, match=r"has no partition 2; it has 2"):
        InProcess(application(topic, start={2: 0})).read()
    app = hf.Application("none")
    app.source("none", hf.kafka(broker.servers, "no-such-topic"), schema="id long").output("all")
    with pytest.raises(CheckFailed, match="there is no topic"):
        InProcess(app).read()


def test_open_transactions_hold_back_what_is_behind_them_and_aborted_ones_leave_gaps(broker: KafkaBroker) -> None:
    topic = TestTopic(broker)
    first, second = topic.transactional(f"{topic.name}-1"), topic.transactional(f"{topic.name}-2")
    running = InProcess(application(topic))
    for number in range(3):  # a marker after each: gaps in the offsets
        first.begin_transaction()
        topic.write(rows([number]), producer=first)
        first.commit_transaction()
    first.begin_transaction()
    topic.write(rows([100]), producer=first)
    second.begin_transaction()
    topic.write(rows([3]), producer=second)
    second.commit_transaction()
    topic.await_stable(6)  # three records, each with its marker
    running.read()
    assert ids(running) == [0, 1, 2], "what lies behind an open transaction waits, though it is committed"
    first.abort_transaction()
    topic.await_stable(10)
    running.read()
    assert ids(running) == [0, 1, 2, 3]
    second.begin_transaction()
    topic.write(rows([101]), producer=second)
    second.abort_transaction()
    topic.await_stable(12)
    running.read()
    assert ids(running) == [0, 1, 2, 3], "a range without a record"
    running.fail("words[0]", "all[0]")
    running.recover()
    topic.write(rows([4]))
    running.read()
    assert ids(running) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("parallelism", [1, 2])
def test_no_row_is_late_because_another_topic_partition_is_hours_ahead(
    broker: KafkaBroker, tmp_path: Path, parallelism: int
) -> None:
    """A backlog: the partitions of a topic begin at different hours, and are read beside each other."""
    topic = TestTopic(broker, 2)
    for partition, hour in ((0, 0), (1, 10)):
        found = [row(100 * partition + n, at=f"2026-01-01T{hour:02d}:{n:02d}:00") for n in range(24)]
        topic.write(found, partition=partition)
    running = started(application(topic, parallelism=parallelism, max_records=4), tmp_path)
    running.read()
    assert running.frontier >= 6, "many batches"
    assert sum(running.rows("counts")["count"].to_pylist()) >= 46, "all is read: the furthest closes windows"
    running.close()
    assert len(ids(running)) == 48
    assert sum(running.rows("counts")["count"].to_pylist()) == 48, "no row was late"


def test_ranges_that_have_only_markers_of_transactions_make_no_row_late(broker: KafkaBroker, tmp_path: Path) -> None:
    topic = TestTopic(broker, 2)
    producer = topic.transactional(f"{topic.name}-1")
    for number in range(4):  # offsets 0, 2, 4, 6 are records; 1, 3, 5, 7 are markers
        producer.begin_transaction()
        topic.write([row(number, at=f"2026-01-01T00:0{number}:00")], producer=producer)
        producer.commit_transaction()
    topic.await_stable(8)
    later = [row(100 + n, at=f"2026-01-01T10:{n // 60:02d}:{n % 60:02d}") for n in range(400)]
    topic.write(later, partition=1)
    running = started(application(topic, max_records=20), tmp_path)
    running.read()
    running.close()
    assert len(ids(running)) == 404
    assert sum(running.rows("counts")["count"].to_pylist()) == 404, "no row was late"


def test_a_topic_that_grows_from_2_to_8_partitions_is_read_once(broker: KafkaBroker, tmp_path: Path) -> None:
    topic = TestTopic(broker, 2)
    for number in range(2):
        topic.write(rows(range(10 * number, 10 * number + 5)), partition=number)
    running = started(application(topic, parallelism=3, max_records=3, start="latest"), tmp_path)
    running.read()
    assert ids(running) == []
    topic.grow(8)
    for number in range(8):
        topic.write(rows(range(100 * number, 100 * number + 5)), partition=number)
    running.read()
    wanted = sorted(100 * number + n for number in range(8) for n in range(5))
    assert ids(running) == wanted
    again = started(application(topic, parallelism=3), tmp_path)
    topic.write(rows([999]), partition=7)
    again.read()
    again.close()
    assert ids(again) == [*wanted, 999]


def test_lost_partitions_read_the_same_records_again_and_others_are_refused(broker: KafkaBroker) -> None:
    topic = TestTopic(broker, 2)
    for number in range(2):
        topic.write(rows(range(10 * number, 10 * number + 4)), partition=number)
    running = InProcess(application(topic, parallelism=2, max_records=3), nodes=2)
    running.read()
    running.fail("words[0]", "words[1]", "counts[0]", "all[1]")
    running.recover()
    assert ids(running) == [0, 1, 2, 3, 10, 11, 12, 13]
    topic.cut(2)
    running.fail("words[0]", "all[0]")
    with pytest.raises(HoldfastError, match=r"offsets 0 to 2 went by its retention.*are lost to their batch"):
        running.recover()


def test_what_retention_will_pass_is_copied_and_read_from_the_copy(
    broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_copies, "LOOK_SECONDS", 0.0)
    topic = TestTopic(broker, 1, retention_ms="36000000")
    topic.write(rows(range(4)), at=round(1000 * (time.time() - 9 * 3600)))
    topic.write(rows(range(4, 6)))
    running = InProcess(application(topic, max_records=4))
    running.read()
    running.read()  # the next look finds what was logged
    copies = running.batch_log.copies
    source = next(iter(running.program.sources))
    assert [copies.read(source, BatchId(batch), 0, 0) is not None for batch in (0, 1)] == [True, False], (
        "the old ones only"
    )
    topic.cut(4)
    running.fail("words[0]", "all[0]", "counts[0]", "counts[1]")
    running.recover()
    running.checkpoint()
    running.close()
    assert ids(running) == list(range(6))
    assert sum(running.rows("counts")["count"].to_pylist()) == 6


def test_what_a_broker_says_about_records_that_go(broker: KafkaBroker) -> None:
    def kept(**config: str) -> TopicRetention:
        return Topic(hf.kafka(broker.servers, TestTopic(broker, 1, **config).name)).retention()

    assert kept(retention_bytes="300000", segment_bytes="1048576") == TopicRetention(None, 300_000, 1 << 20)
    assert kept(retention_ms="5000").seconds == 5.0
    assert kept(cleanup_policy="compact").compacted


def test_records_that_went_before_they_were_logged_are_an_error(broker: KafkaBroker, tmp_path: Path) -> None:
    topic = TestTopic(broker)
    topic.write(rows(range(3)))
    running = started(application(topic), tmp_path)
    running.read()
    close_streams()  # else they are fetched ahead, as soon as they are written
    topic.write(rows(range(3, 9)))
    topic.cut(6)
    with pytest.raises(HoldfastError, match=r"begins at offset 6: offsets 3 to 6 went by its retention"):
        running.read()
    assert ids(running) == [0, 1, 2], "nothing was published"


def test_a_broker_that_is_killed_and_started_again(broker: KafkaBroker) -> None:
    topic = TestTopic(broker, 2)
    topic.write(rows(range(5)))
    running = InProcess(application(topic, parallelism=2, timeout="1 second"), nodes=2)
    running.read()
    topic.write(rows(range(5, 9)), partition=1)
    broker.kill()
    try:
        with pytest.raises(CheckFailed, match=r"source words, brokers 127\.0\.0\.1:\d+: topic .* cannot be looked at"):
            running.read()
        running.fail("words[0]", "all[0]")
        with pytest.raises(HoldfastError, match="cannot be read"):
            running.recover()
    finally:
        broker.start()
    patient = time.monotonic() + 60
    while True:
        try:
            running.recover()
            running.read()
            break
        except HoldfastError:
            assert time.monotonic() < patient
    assert ids(running) == list(range(9))
    assert Counter(running.rows("all")["word"].to_pylist()) == {"a": 5, "b": 4}


def test_security_settings_are_passed_on_and_shown_nowhere(
    broker: KafkaBroker, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    topic = TestTopic(broker)
    topic.write([*rows(range(3)), b"no json"])
    settings = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": USER}
    right = {**settings, "sasl.password": broker.password}
    app = application(topic, servers=broker.sasl_servers, settings=right)
    running = started(app, tmp_path)
    running.read()
    assert ids(running) == [0, 1, 2]
    wrong = application(
        topic, servers=broker.sasl_servers, timeout="2 seconds", settings={**settings, "sasl.password": "wr0ng-one"}
    )
    with pytest.raises(HoldfastError, match="cannot be looked at") as refused:
        InProcess(wrong).read()
    assert "wr0ng-one" not in str(refused.value)
    with pytest.raises(BadInput, match=r"kafka\.settings: .*sasl\.pasword") as unknown:
        InProcess(application(topic, settings={"sasl.pasword": broker.password})).read()
    shown = "".join([str(refused.value), str(unknown.value), *capfd.readouterr(), repr(running.program.sources)])
    assert broker.password not in shown
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any("batches" in str(path) for path in files)
    assert not [path for path in files if broker.password.encode() in path.read_bytes()]
