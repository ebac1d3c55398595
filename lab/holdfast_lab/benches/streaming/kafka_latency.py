"""How long a row takes from Kafka to Kafka: from its scheduled creation until a reader of committed records has it.

Rows come at a rate that nobody delays: row i is due at the start plus i / rate, and its value is that moment. A process
of its own writes them to a topic, another reads what the run writes in transactions, and takes the time; all read
CLOCK_MONOTONIC, which the processes of one machine share. So all is counted: the producer's linger, both brokers' logs,
the batch, the exchange, the transaction, and a run that cannot keep up (no coordinated omission). With checkpoints as
they are by default, and without. Runs on the driver.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import Empty
from typing import TYPE_CHECKING, Any

import numpy as np

import holdfast as hf
from holdfast.errors import CheckFailed
from holdfast_lab.benches.streaming.kafka_phases import KafkaPhases, recorded
from holdfast_lab.kafka_broker import KafkaBroker

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from holdfast_lab.baselines.structured_streaming import Session

PARTITIONS = 2
START_SECONDS = 0.5
"""From the start of the writer's process until its first row is due."""
LINGER_MILLISECONDS = 5
"""Of the producer: with 1 the broker gets thousands of requests with one row each, and these are what is measured."""
LONGEST = 300.0
NEVER = {"spark.holdfast.checkpoint.batches": str(10**9), "spark.holdfast.checkpoint.seconds": str(10**9)}


@dataclass(frozen=True, slots=True)
class KafkaLatency:
    """What rows took at one rate."""

    rate: float
    checkpoints: bool
    nanoseconds: NDArray[np.int64]
    phases: KafkaPhases

    def quantile(self, share: float) -> float:
        """Return the milliseconds within which this share of the rows came out."""
        return float(np.quantile(self.nanoseconds, share)) / 1e6


def passing(servers: str, given: str, out: str) -> hf.Application:
    """Return an application that passes every record on, behind an exchange."""
    app = hf.Application("kafka-latency")
    schema = "value binary, partition int, timestamp timestamp"
    rows = app.source("rows", hf.kafka(servers, given, value="raw"), schema=schema, parallelism=2)
    passed = rows.key_by("partition").map(_unchanged, schema=schema, id="passed", parallelism=2)
    passed.output("passed", sink=hf.kafka_topic(servers, out, value="raw"))
    return app


def _unchanged(rows: Any) -> Any:
    return rows


def measure_kafka(
    spark: Session,
    folder: Path,
    *,
    rate: float,
    seconds: float,
    progress: Callable[[str], object] = lambda text: None,
) -> list[KafkaLatency]:
    """Measure with and without checkpoints: a warm-up of as long, then the rows that count."""
    from confluent_kafka.admin import AdminClient, NewTopic

    found = []
    with KafkaBroker() as broker:
        for number, checkpoints in enumerate((False, True)):
            given, out = f"given-{number}", f"out-{number}"
            client = AdminClient({"bootstrap.servers": broker.servers, "log_level": 0})
            appended = {"message.timestamp.type": "LogAppendTime"}
            topics = [NewTopic(given, PARTITIONS, 1, config=appended), NewTopic(out, PARTITIONS, 1)]
            for future in client.create_topics(topics).values():
                future.result(LONGEST)
            run = hf.start(
                passing(broker.servers, given, out),
                spark,
                directory=folder / str(number),
                conf={} if checkpoints else NEVER,
                page=False,
            )
            try:
                for turn in range(2):
                    what = "warm-up" if turn == 0 else "rows that count"
                    progress(f"{rate:g} rows a second, {'with' if checkpoints else 'without'} checkpoints: {what}")
                    with recorded() as phases:
                        taken = _turn(broker.servers, given, out, rate, max(1, int(rate * seconds)))
            finally:
                run.stop()
            found.append(KafkaLatency(rate, checkpoints, taken, phases))
    return found


def _turn(servers: str, given: str, out: str, rate: float, rows: int) -> NDArray[np.int64]:
    """Write rows and read what comes of them."""
    spawn = multiprocessing.get_context("spawn")
    ready, answers = spawn.Event(), spawn.Queue()
    reader = spawn.Process(target=_read, args=(servers, out, rows, ready, answers), daemon=True)
    reader.start()
    if not ready.wait(LONGEST):
        raise CheckFailed("the reader does not start", where="bench latency")
    writer = spawn.Process(target=_write, args=(servers, given, rate, rows), daemon=True)
    writer.start()
    try:
        found = answers.get(timeout=LONGEST + rows / rate)
    except Empty:
        raise CheckFailed(f"not all of {rows} rows came out", where="bench latency") from None
    writer.join()
    reader.join()
    return np.asarray(found, np.int64)


def _write(servers: str, topic: str, rate: float, rows: int) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": servers, "log_level": 0, "linger.ms": LINGER_MILLISECONDS, "acks": 1})
    start = time.monotonic_ns() + int(START_SECONDS * 1e9)
    written = 0
    while written < rows:
        due = min(rows, int((time.monotonic_ns() - start) * rate / 1e9) + 1)
        for number in range(written, due):
            producer.produce(topic, b"%d" % (start + int(number * 1e9 / rate)), partition=number % PARTITIONS)
        producer.poll(0)
        written = max(written, due)
        time.sleep(LINGER_MILLISECONDS / 1000)
    producer.flush(LONGEST)


def _read(servers: str, topic: str, rows: int, ready: Any, answers: Any) -> None:
    from confluent_kafka import Consumer, TopicPartition

    reader = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "latency",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 5,
            "log_level": 0,
        }
    )
    places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    for one in places:
        one.offset = reader.get_watermark_offsets(one, timeout=LONGEST)[1]
    reader.assign(places)
    ready.set()
    taken: list[int] = []
    while len(taken) < rows:
        for one in reader.consume(1000, 0.01):
            if one.error() is None:
                taken.append(time.monotonic_ns() - int(one.value()))
    reader.close()
    answers.put(taken)
