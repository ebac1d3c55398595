"""Topics of the tests' broker: made, filled, cut and read by plain clients."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from typing import Any
from uuid import uuid4

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from holdfast_lab.kafka_broker import KafkaBroker

DEADLINE = 120.0


class TestTopic:
    """One topic, under a name that no other test has."""

    __test__ = False

    def __init__(self, broker: KafkaBroker, partitions: int = 1, **config: str) -> None:
        self.broker, self.name = broker, f"t-{uuid4().hex[:8]}"
        self.admin = AdminClient({"bootstrap.servers": broker.servers, "log_level": 0})
        # Records of the tests may be old: the broker must not delete them by itself.
        named = {"retention.ms": "-1"} | {name.replace("_", "."): value for name, value in config.items()}
        new = NewTopic(self.name, partitions, replication_factor=1, config=named)
        for future in self.admin.create_topics([new]).values():
            future.result(DEADLINE)
        self._producer = Producer({"bootstrap.servers": broker.servers, "log_level": 0})

    def write(
        self,
        values: Iterable[Any],
        *,
        partition: int = 0,
        producer: Producer | None = None,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes]] | None = None,
        at: int = 0,
    ) -> None:
        """Write records; values that are not bytes as JSON."""
        chosen = producer or self._producer
        for one in values:
            value = one if isinstance(one, bytes) or one is None else json.dumps(one).encode()
            more: dict[str, Any] = {} if not at else {"timestamp": at}
            chosen.produce(self.name, value, key, partition, headers=list(headers) if headers else None, **more)
        assert chosen.flush(DEADLINE) == 0

    def transactional(self, name: str) -> Producer:
        """Return a producer that has transactions."""
        found = Producer({"bootstrap.servers": self.broker.servers, "transactional.id": name, "log_level": 0})
        found.init_transactions(DEADLINE)
        return found

    def await_stable(self, end: int, partition: int = 0) -> None:
        """Wait until the last stable offset is here: a broker answers a commit before it has written its marker."""
        await_that(lambda: self._end("read_committed", partition) >= end)

    def _end(self, isolation: str, partition: int) -> int:
        config = {"bootstrap.servers": self.broker.servers, "group.id": uuid4().hex, "log_level": 0}
        reader = Consumer({**config, "isolation.level": isolation})
        end: int = reader.get_watermark_offsets(TopicPartition(self.name, partition), timeout=DEADLINE)[1]
        reader.close()
        return end

    def grow(self, partitions: int) -> None:
        """Give the topic more partitions."""
        for future in self.admin.create_partitions([NewPartitions(self.name, partitions)]).values():
            future.result(DEADLINE)
        self._producer = Producer({"bootstrap.servers": self.broker.servers, "log_level": 0})  # it knows the new ones
        await_that(
            lambda: len(self.admin.list_topics(self.name, timeout=10).topics[self.name].partitions) == partitions
        )

    def cut(self, offset: int, partition: int = 0) -> None:
        """Let retention pass: records before an offset are gone."""
        for future in self.admin.delete_records([TopicPartition(self.name, partition, offset)]).values():
            future.result(DEADLINE)

    def committed(self) -> list[dict[str, Any]]:
        """Return the values of all committed records, as a reader of committed records gets them."""
        return [json.loads(value) for _, value in self.records()]

    def records(self) -> list[tuple[bytes | None, bytes]]:
        """Return keys and values of all committed records, partition by partition."""
        return [(one.key(), one.value()) for one in self.messages()]

    def messages(self) -> list[Any]:
        """Return all committed records, partition by partition; no transaction may be open for good."""
        reader = Consumer(
            {
                "bootstrap.servers": self.broker.servers,
                "group.id": uuid4().hex,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "log_level": 0,
            }
        )
        found: list[Any] = []
        numbers = sorted(reader.list_topics(self.name, timeout=DEADLINE).topics[self.name].partitions)
        for number in numbers:
            self.await_stable(self._end("read_uncommitted", number), number)
            reader.assign([TopicPartition(self.name, number, 0)])
            deadline = time.monotonic() + DEADLINE
            while True:
                assert time.monotonic() < deadline, "the broker does not answer"
                one = reader.poll(1.0)
                if one is None:
                    continue
                if one.error() is not None:
                    break
                found.append(one)
        reader.close()
        return found


def await_that(condition: Any) -> None:
    """Wait for a condition, with a deadline."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
