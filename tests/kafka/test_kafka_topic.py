"""Outputs to a topic of a real broker: each batch once, through crashes, repeats, frozen drivers and restarts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import KafkaException

import holdfast as hf
from holdfast.errors import BadInput, CheckFailed, HoldfastError
from holdfast.ids import BatchId, Epoch, OperatorId, PartitionId
from holdfast.runtime.in_process import InProcess
from holdfast.runtime.io.kafka_sink import Committed, KafkaSink, read_committed
from holdfast.runtime.io.sinks import Output, OutputKey
from holdfast.runtime.state.store import StaleEpoch
from holdfast_lab.kafka_broker import KafkaBroker
from kafka.topics import TestTopic

SCHEMA = "id long, word string"


def key(batch: int, index: int = 0, revision: int = 0, run: str = "run") -> OutputKey:
    return OutputKey(PartitionId(OperatorId("O"), index), BatchId(batch), revision, 0, run)


def table(*numbers: int) -> pa.Table:
    return pa.table({"id": list(numbers), "word": ["ab"[n % 2] for n in numbers]})


def ids(topic: TestTopic) -> list[int]:
    return sorted(one["id"] for one in topic.committed())


def test_how_far_queries_are_as_metadata() -> None:
    held = Committed(3).after([key(4), key(7, 1), key(7, 1, 2)], 5)
    assert read_committed(held.encode()) == held == Committed(5, {0: (0, 4, 0), 1: (0, 7, 2)})
    assert [held.has(one) for one in (key(4), key(3), key(5), key(7, 1, 1), key(7, 1, 3), key(0, 2))] == [
        *(True, True, False, True, False, False)
    ]
    assert read_committed(None) == read_committed("") == Committed()
    tentative = held.after_tentative(key(9), 5).after_tentative(key(8, 1), 5)
    assert read_committed(tentative.encode()) == tentative
    assert [tentative.has_tentative(one) for one in (key(9), key(4), key(10), key(8, 1))] == [True, True, False, True]
    assert not tentative.has(key(9))
    assert tentative.after([key(9)], 5).tentative == {1: 8}, "what is final is tentative no more"
    with pytest.raises(CheckFailed, match="has format 9"):
        read_committed('{"format": 9}')


def test_what_a_sink_may_say() -> None:
    for wrong, given in {
        "kafka_topic.topic: is empty": lambda: hf.kafka_topic("a", ""),
        "kafka_topic.value: 'avro' is not": lambda: hf.kafka_topic("a", "t", "avro"),
        "kafka_topic.settings: 'transactional.id' cannot be set": lambda: hf.kafka_topic(
            "a", "t", settings={"transactional.id": "x"}
        ),
    }.items():
        with pytest.raises(BadInput, match=wrong):
            given()


def test_a_batch_that_comes_again_is_recognised_by_this_driver_and_by_the_next(broker: KafkaBroker) -> None:
    topic = TestTopic(broker)
    first = hf.kafka_topic(broker.servers, topic.name, key="word")
    first.begin("run", Epoch.of(1, 0))
    assert first.publish_all([Output(key(0), table(1, 2)), Output(key(0, 1), table(3))], Epoch.of(1, 0)) == [
        *(key(0), key(0, 1))
    ]
    assert not first.publish(key(0), table(1, 2), Epoch.of(1, 0))
    second = hf.kafka_topic(broker.servers, topic.name, key="word")
    assert not second.publish(key(0, 1), table(3), Epoch.of(2, 0)), "a new driver reads how far the topic is"
    assert second.publish(key(1), table(4), Epoch.of(2, 0))
    assert ids(topic) == [1, 2, 3, 4]
    assert sorted(topic.records())[0] == (b"a", b'{"id":2,"word":"a"}')
    with pytest.raises(CheckFailed, match="another producer of this run has been opened, and this one is over"):
        first.publish(key(1), table(4), Epoch.of(1, 0))
    with pytest.raises(StaleEpoch, match="claim 1 is over: the topic has seen claim 2"):
        first.publish(key(1), table(4), Epoch.of(1, 0))
    with pytest.raises(CheckFailed, match="this one is over"):
        second.publish(key(2), table(5), Epoch.of(2, 0))  # the one that is over has ended its producer
    assert second.publish(key(2), table(5), Epoch.of(2, 0)), "the coordinator asks again, and it goes on"
    assert ids(topic) == [1, 2, 3, 4, 5]
    other = hf.kafka_topic(broker.servers, topic.name)
    assert other.publish(key(0, run="other"), table(9), Epoch.of(1, 0)), "another run has batches of its own"


def newest(topic: TestTopic) -> dict[tuple[str, int], tuple[int, str | None, list[int]]]:
    """Read a topic as its page says: of a query and batch the highest revision counts."""
    found: dict[tuple[str, int], tuple[int, str | None, list[int]]] = {}
    for one in topic.messages():
        headers = {name.removeprefix("holdfast-"): text.decode() for name, text in one.headers()}
        place, revision = (headers["query"], int(headers["batch"])), int(headers["revision"])
        held = found.get(place)
        if held is None or held[0] < revision:
            held = found[place] = (revision, headers.get("fidelity"), [])
        if held[0] == revision and "empty" not in headers:
            held[2].append(json.loads(one.value())["id"])
    return {place: (revision, fidelity, sorted(held)) for place, (revision, fidelity, held) in found.items()}


def test_final_rows_replace_tentative_ones_for_readers_who_take_the_highest_revision(broker: KafkaBroker) -> None:
    topic = TestTopic(broker)
    first = hf.kafka_topic(broker.servers, topic.name, key="word", tentative=True)
    epoch = Epoch.of(1, 0)
    first.publish(key(0), table(1), epoch)
    assert first.publish_tentative(key(1), table(20, 21), 0.5, epoch)
    assert not first.publish_tentative(key(1), table(22), 0.75, epoch)
    first.publish_tentative(key(2), table(30), 0.75, epoch)
    assert newest(topic) == {
        ("O[0]", 0): (1, None, [1]),
        ("O[0]", 1): (0, "0.5", [20, 21]),
        ("O[0]", 2): (0, "0.75", [30]),
    }
    second, later = hf.kafka_topic(broker.servers, topic.name, key="word", tentative=True), Epoch.of(2, 0)
    assert not second.publish_tentative(key(2), table(31), 0.9, later), "a new driver reads how far the topic is"
    assert second.publish(key(1), table(2), later)
    second.retract(key(2), table(), later)
    assert not second.publish_tentative(key(2), table(31), 0.9, later)
    assert newest(topic) == {("O[0]", 0): (1, None, [1]), ("O[0]", 1): (1, None, [2]), ("O[0]", 2): (1, None, [])}
    with pytest.raises(CheckFailed, match="this one is over"):
        first.publish_tentative(key(3), table(40), 0.5, epoch)
    assert len(topic.messages()) == 6


def test_a_transaction_that_a_dead_driver_left_open_is_aborted(broker: KafkaBroker) -> None:
    topic = TestTopic(broker)
    frozen = topic.transactional("holdfast-run-O")
    frozen.begin_transaction()
    topic.write([{"id": 1, "word": "half"}], producer=frozen)
    sink = hf.kafka_topic(broker.servers, topic.name)
    assert sink.publish(key(0), table(1, 2), Epoch.of(1, 0))
    assert ids(topic) == [1, 2], "nothing of the open transaction, and readers do not wait for it"
    with pytest.raises(KafkaException):
        frozen.commit_transaction()


class Dies:
    """A sink whose driver dies after its commit, before it reports."""

    grouped = True

    def __init__(self, inner: KafkaSink, after: int) -> None:
        self._inner, self._left = inner, after

    def publish(self, key: OutputKey, rows: pa.Table, epoch: Epoch) -> bool:
        raise AssertionError

    def publish_all(self, outputs: Sequence[Output], epoch: Epoch) -> Sequence[OutputKey]:
        found = self._inner.publish_all(outputs, epoch)
        self._left -= 1
        if self._left < 0:
            raise RuntimeError("died here")
        return found


def test_kafka_to_kafka_each_row_once_through_crashes_and_a_restart_of_the_broker(
    broker: KafkaBroker, tmp_path: Path
) -> None:
    source, target = TestTopic(broker, 2), TestTopic(broker, 3)

    def application(sink: object) -> hf.Application:
        app = hf.Application("copy")
        reader = hf.kafka(broker.servers, source.name, max_records=3)
        read = app.source("rows", reader, schema=SCHEMA, parallelism=2)
        read.map(lambda rows: rows, schema=SCHEMA, id="all").output("all", sink=sink)
        return app

    written = 0
    for number in range(4):
        for partition in range(2):
            source.write([{"id": written + n, "word": "x"} for n in range(5)], partition=partition)
            written += 5
        running = InProcess(
            application(Dies(hf.kafka_topic(broker.servers, target.name, key="id"), after=1)),
            directory=tmp_path,
            checkpoint_every=2,
        )
        with pytest.raises(HoldfastError, match="died here"):
            running.read()
        if number == 1:
            broker.kill()
            broker.start()
    last = InProcess(application(hf.kafka_topic(broker.servers, target.name, key="id")), directory=tmp_path)
    last.read()
    assert ids(target) == list(range(written))
    assert {
        json.loads(value)["id"] for name, value in target.records() if name != str(json.loads(value)["id"]).encode()
    } == set()


def test_a_topic_that_is_not_there_and_brokers_that_do_not_answer(broker: KafkaBroker) -> None:
    with pytest.raises(CheckFailed, match="there is no topic no-such-topic"):
        hf.kafka_topic(broker.servers, "no-such-topic").begin("run", Epoch.of(1, 0))
    sink = hf.kafka_topic("127.0.0.1:1", "t", timeout="1 second", settings={"sasl.password": "s3cr3t"})
    with pytest.raises(CheckFailed, match=r"brokers 127\.0\.0\.1:1: topic t cannot be looked at"):
        sink.begin("run", Epoch.of(1, 0))
    with pytest.raises(CheckFailed, match="topic t: no transaction can be had"):
        sink.publish(key(0), table(1), Epoch.of(1, 0))
    raw = hf.kafka_topic(broker.servers, "t", "raw")
    with pytest.raises(BadInput, match="output O: kafka_topic: has no column 'value'; there are id, word"):
        raw.publish(key(0), table(1), Epoch.of(1, 0))
