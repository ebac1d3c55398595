"""Kafka to Kafka, by one command: `python -m holdfast_lab.kafka_to_kafka`. Visits come in, counts by page go out.

It starts the broker of the tests and an embedded cluster, writes visits with plain clients, runs the application until
it has read them all, and prints the counts as a reader of committed records gets them.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import holdfast as hf
from holdfast.errors import HoldfastError
from holdfast_lab.kafka_broker import KafkaBroker

PAGES = ("/", "/news", "/about")
PARTITIONS = 4
SECONDS = 60.0


def application(servers: str, visits: str = "visits", counts: str = "counts") -> hf.Application:
    """Count visits by page and minute, from one topic into another."""
    app = hf.Application("kafka-to-kafka")
    read = app.source(
        "visits",
        hf.kafka(servers, visits, key="user"),
        schema="user string, page string, at timestamp",
        event_time="at",
        lateness="10 minutes",  # partitions of the topic are read at a pace of their own
        parallelism=2,
    )
    by_page = read.key_by("page").window(hf.tumbling("1 minute"))
    by_page.count(id="counts", parallelism=2).output("counts", sink=hf.kafka_topic(servers, counts, key="page"))
    return app


def create_topics(servers: str, *names: str) -> None:
    """Create topics, each with a few partitions."""
    from confluent_kafka.admin import AdminClient, NewTopic

    client = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    for future in client.create_topics([NewTopic(name, PARTITIONS, 1) for name in names]).values():
        future.result(SECONDS)


def write_visits(servers: str, topic: str, count: int, first: int = 0) -> None:
    """Write visits, ten a second by their event time, spread over pages and users."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": servers, "log_level": 0})
    for number in range(first, first + count):
        second = number // 10
        at = f"2026-01-01T{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
        value = json.dumps({"page": PAGES[number % len(PAGES)], "at": at}).encode()
        producer.produce(topic, value, f"user-{number % 7}".encode(), partition=number % PARTITIONS)
        producer.poll(0)
    if producer.flush(SECONDS):
        raise OSError("the broker does not take the visits")


def read_rows(servers: str, topic: str) -> list[dict[str, Any]]:
    """Return the rows of all committed records of a topic."""
    from confluent_kafka import Consumer, TopicPartition

    settings = {"bootstrap.servers": servers, "group.id": "kafka-to-kafka", "log_level": 0}
    settings |= {"enable.auto.commit": False, "enable.partition.eof": True}
    reader = Consumer({**settings, "isolation.level": "read_committed"})
    any_record = Consumer({**settings, "isolation.level": "read_uncommitted"})
    numbers = reader.list_topics(topic, timeout=SECONDS).topics[topic].partitions
    # A broker answers a commit before it has written its marker: the end is where all records end.
    left = {one: any_record.get_watermark_offsets(TopicPartition(topic, one), timeout=SECONDS)[1] for one in numbers}
    any_record.close()
    reader.assign([TopicPartition(topic, number, 0) for number in numbers])
    found, deadline = [], time.monotonic() + SECONDS
    while left and time.monotonic() < deadline:
        one = reader.poll(1.0)
        if one is not None and one.error() is not None:
            if one.offset() >= left.get(one.partition(), 0):
                left.pop(one.partition(), None)
        elif one is not None:
            found.append(json.loads(one.value() or b"{}"))
    reader.close()
    return found


@contextmanager
def served(servers: str | None) -> Iterator[str]:
    """Yield brokers: those that are named, or one that is started for the time being."""
    if servers is not None:
        yield servers
    else:
        with KafkaBroker() as broker:
            yield broker.servers


def main(arguments: list[str] | None = None) -> int:
    """Run the example; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m holdfast_lab.kafka_to_kafka", description=__doc__)
    parser.add_argument("--visits", type=int, default=1800, help="how many visits to write")
    parser.add_argument("--servers", help="brokers to use; by default one is started")
    asked = parser.parse_args(arguments)
    try:
        with served(asked.servers) as servers, tempfile.TemporaryDirectory() as folder:
            create_topics(servers, "visits", "counts")
            write_visits(servers, "visits", asked.visits)
            run = hf.start(application(servers), directory=folder, available_now=True, close=True)
            run.awaitTermination()
            rows = read_rows(servers, "counts")
    except HoldfastError as error:
        sys.stderr.write(f"{error}\n")
        return error.status
    return print_counts(rows, asked.visits)


def print_counts(rows: Sequence[Mapping[str, Any]], visits: int) -> int:
    """Print the counts; return the exit status: 0 where every visit was counted once."""
    for row in sorted(rows, key=lambda one: (one["window_start"], one["page"])):
        sys.stdout.write(f"{row['window_start']}  {row['page']:<8}{row['count']:>6}\n")
    counted = sum(row["count"] for row in rows)
    sys.stdout.write(f"{counted} of {visits} visits counted\n")
    return 0 if counted == visits else 1


if __name__ == "__main__":
    sys.exit(main())
