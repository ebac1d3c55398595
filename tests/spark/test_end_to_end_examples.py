"""The examples from the sources to the sinks that people have, each by its one command, on a cluster of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from holdfast_lab.kafka_broker import KafkaBroker
from holdfast_lab.s3_server import S3Server

VISITS = 1200


def run_example(name: str, *words: str) -> str:
    """Run an example; return what it prints."""
    command = [sys.executable, "-m", f"holdfast_lab.{name}", "--visits", str(VISITS), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.cluster
def test_kafka_to_delta(broker: KafkaBroker) -> None:
    assert run_example("kafka_to_delta", "--servers", broker.servers).endswith(f"{VISITS} of {VISITS} visits counted\n")


@pytest.mark.cluster
def test_files_to_parquet_on_s3(s3: S3Server) -> None:
    assert run_example("files_to_s3").endswith(f"{VISITS} of {VISITS} visits counted\n")
