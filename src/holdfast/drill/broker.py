"""The Kafka broker of a drill: the lab's, with a topic for every source, killed and started again. Beside the cluster.

Records are written by an idempotent producer that tries again while the broker is away: each is in its topic once.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.drill.source_files import Record
from holdfast.errors import BadInput, CheckFailed
from holdfast.lab import has_lab, lab_module

DELIVERY_SECONDS = 300
"""How long a record is tried to be delivered."""
ADMIN_SECONDS = 60.0
_POLL = 0.1


def check_broker(needed_by: str) -> None:
    """Refuse a drill that needs a broker where there is none: no lab, no client, no jars and no way to fetch them."""
    if not has_lab():
        raise BadInput(
            "needs a Kafka broker, which is part of the lab and not in the wheel",
            field=needed_by,
            remedy="run it from a checkout of the repository, after `make setup`; mixed drills: --without kafka",
        )
    module = lab_module("kafka_broker", needed_by=needed_by)
    try:
        module.check_available()
    except BadInput as error:
        more = f"{error.remedy}; mixed drills: --without kafka"
        raise BadInput(error.what, field=needed_by, remedy=more) from None


class DrillBroker:
    """A running broker with the drill's topics."""

    def __init__(self, folder: Path, topics: Mapping[str, int], host: str | None = None) -> None:
        """Start it and create the topics, each with so many partitions; it listens on `host` (None: loopback)."""
        module = lab_module("kafka_broker", needed_by="a drill of Kafka")
        made = {"folder": folder} if host is None else {"folder": folder, "host": host}
        self._broker: Any = module.KafkaBroker(**made)
        self.servers: str = self._broker.servers
        self._topics = dict(topics)
        self._closed = False
        self._guard = threading.Lock()
        self._producers: dict[str, Any] = {}
        try:
            self._create_topics()
        except BaseException:
            self.close()
            raise

    def kill(self) -> None:
        """End it with `kill -9`; its data stays."""
        self._broker.kill()

    def start(self) -> None:
        """Start it again, on the same port with the same data."""
        with self._guard:
            if not self._closed:
                self._broker.start()

    def close(self) -> None:
        """End it."""
        with self._guard:
            self._closed = True
            self._broker.close()

    def write(self, topic: str, records: Sequence[Record], stopped: threading.Event) -> dict[int, int]:
        """Write records, in turn into the partitions of the topic; return the end of each after them.

        Returns once the broker has them all, or when it is stopped.
        """
        ends: dict[int, int] = {}
        problems: list[str] = []

        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                problems.append(str(error))
            else:
                ends[message.partition()] = max(ends.get(message.partition(), 0), message.offset() + 1)

        producer, count = self._producer(topic), self._topics[topic]
        for number, one in enumerate(records):
            more = {} if one.milliseconds is None else {"timestamp": one.milliseconds}
            producer.produce(
                topic,
                one.value,
                one.key,
                partition=number % count,
                headers=list(one.headers) or None,
                on_delivery=delivered,
                **more,
            )
            producer.poll(0)
        while producer.flush(_POLL) and not stopped.is_set():
            pass
        if problems:
            raise CheckFailed(f"records were not delivered: {problems[0]}", where=f"topic {topic}")
        return ends

    def _producer(self, topic: str) -> Any:
        from confluent_kafka import Producer

        if topic not in self._producers:
            self._producers[topic] = Producer(
                {
                    "bootstrap.servers": self.servers,
                    "enable.idempotence": True,
                    "acks": "all",
                    "message.timeout.ms": DELIVERY_SECONDS * 1000,
                    "reconnect.backoff.max.ms": 1000,
                    "log_level": 0,
                }
            )
        return self._producers[topic]

    def _create_topics(self) -> None:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient, NewTopic

        client = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        wanted = [NewTopic(name, count, 1) for name, count in self._topics.items()]
        for name, future in client.create_topics(wanted).items():
            try:
                future.result(ADMIN_SECONDS)
            except KafkaException as error:
                raise CheckFailed(f"cannot be created: {error}", where=f"topic {name}") from None
