"""Rows per second, and CPU seconds per million, of a windowed count over a Kafka topic that is read in place.

    python tools/measure_kafka.py

In one process, JSON values of about 70 bytes in two topic partitions, against the broker of the tests on the same
machine. Marginal: the larger topic less the smaller one. Beside it, the same records taken by a consumer alone.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "lab")]

SMALL, LARGE = 100_000, 600_000
PARTITIONS = 2


def fill(servers: str, topic: str, rows: int) -> None:
    """Create a topic and write records: pages, times 50 microseconds apart, milliseconds."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    for future in AdminClient({"bootstrap.servers": servers}).create_topics([NewTopic(topic, PARTITIONS, 1)]).values():
        future.result(60)
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 50, "queue.buffering.max.messages": 1_000_000})
    for number in range(rows):
        seconds = number * 50e-6
        value = (
            f'{{"page": "p{number * 7 % 100}", "at": "2026-01-01T00:00:{seconds:09.6f}", "ms": {number % 1000 / 1000}}}'
        )
        producer.produce(topic, value.encode(), partition=number % PARTITIONS)
        if not number % 10_000:
            producer.poll(0)
    if producer.flush(120):
        raise OSError("the broker does not take the records")


def counted(servers: str, topic: str, rows: int) -> tuple[float, float]:
    """Return the seconds, and the CPU seconds, of a run over a topic."""
    import holdfast as hf
    from holdfast.runtime.in_process import InProcess

    app = hf.Application("pages")
    schema = "page string, at timestamp, ms double"
    reader = hf.kafka(servers, topic, timeout="60 seconds")
    visits = app.source("visits", reader, schema=schema, event_time="at", lateness=1)
    visits.key_by("page").window(hf.tumbling("10 seconds")).count(id="counts").output("counts")
    running = InProcess(app)
    began = time.perf_counter(), time.process_time()
    running.read()
    took = time.perf_counter() - began[0], time.process_time() - began[1]
    running.close()
    found = sum(running.rows("counts")["count"].to_pylist())
    if found != rows:
        raise ValueError(f"{found} of {rows} rows were counted")
    return took


def consumed(servers: str, topic: str, rows: int) -> tuple[float, float]:
    """Return the seconds, and the CPU seconds, of a consumer alone."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": servers, "group.id": "measure", "isolation.level": "read_committed"})
    began = time.perf_counter(), time.process_time()
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    left = rows
    while left:
        left -= len(consumer.consume(min(left, 10_000), 1.0))
    took = time.perf_counter() - began[0], time.process_time() - began[1]
    consumer.close()
    return took


def main() -> None:
    """Measure and print."""
    from holdfast_lab.kafka_broker import KafkaBroker

    with KafkaBroker() as broker:
        for topic, rows in (("small", SMALL), ("large", LARGE)):
            fill(broker.servers, topic, rows)
        for name, measure in (("windowed count in place", counted), ("consumer alone", consumed)):
            small, large = measure(broker.servers, "small", SMALL), measure(broker.servers, "large", LARGE)
            seconds, cpu = large[0] - small[0], large[1] - small[1]
            rows = LARGE - SMALL
            print(f"{name}: {rows / seconds:,.0f} rows per second, {cpu / rows * 1e6:.2f} CPU s per million rows")


if __name__ == "__main__":
    main()
