"""Kafka to Kafka on a cluster: each visit counted once, with the broker killed and the run stopped on the way."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

import holdfast as hf
from holdfast_lab.kafka_broker import KafkaBroker
from holdfast_lab.kafka_to_kafka import application, create_topics, read_rows, write_visits

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VISITS = 2400


@pytest.mark.cluster
def test_each_visit_is_counted_once(unhurried: SparkSession, broker: KafkaBroker, tmp_path: Path) -> None:
    visits, counts = (f"{name}-{uuid4().hex[:8]}" for name in ("visits", "counts"))
    create_topics(broker.servers, visits, counts)
    write_visits(broker.servers, visits, VISITS // 3)
    app = application(broker.servers, visits, counts)
    run = hf.start(app, unhurried, directory=tmp_path)
    try:
        run.processAllAvailable()
        write_visits(broker.servers, visits, VISITS // 3, VISITS // 3)
        broker.kill()  # while the run reads what was just written
        broker.start()
        run.processAllAvailable()
    finally:
        run.stop()
    write_visits(broker.servers, visits, VISITS // 3, 2 * VISITS // 3)
    again = hf.start(app, unhurried, directory=tmp_path, available_now=True, close=True)
    again.awaitTermination()
    rows = read_rows(broker.servers, counts)
    assert len(rows) == len({(row["window_start"], row["page"]) for row in rows}) == 3 * VISITS // 600
    assert sum(row["count"] for row in rows) == VISITS
    stored = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert stored
