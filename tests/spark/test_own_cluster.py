"""A standalone cluster of the user's own, started by Spark's scripts alone: spark-submit, and tasks that stay on it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from holdfast.spark.class_archive import spark_home
from holdfast.spark.java import find_java_home

APPLICATION = """
import holdfast as hf

app = hf.Application("words")
words = app.source("words", hf.files({folder!r}, format="json", maxFilesPerTrigger=1),
                   schema="word string, at timestamp", event_time="at", parallelism=2)
counts = words.key_by("word").window(hf.tumbling("1 minute")).agg(parallelism=2, n=hf.count())
counts.output("counts")

if __name__ == "__main__":
    hf.submit(app)
"""
WAIT_SECONDS = 120.0


def await_line(log: Path, pattern: str, count: int = 1) -> list[str]:
    deadline = time.monotonic() + WAIT_SECONDS
    while len(found := re.findall(pattern, log.read_text())) < count:
        assert time.monotonic() < deadline, f"no {pattern!r} in {log.read_text()}"
        time.sleep(0.1)
    return found


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """A master and two workers of two cores each. Nothing of Holdfast is in their environment."""
    home, started = spark_home(), []
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST", "PYTHON"))}
    surroundings |= {"JAVA_HOME": str(find_java_home()), "SPARK_HOME": str(home), "SPARK_DAEMON_MEMORY": "192m"}

    def start(name: str, host: str, *words: str) -> Path:
        log = tmp_path / f"{name}.log"
        with log.open("wb") as out:
            started.append(
                subprocess.Popen(
                    [str(home / "bin" / "spark-class"), *words],
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    env=surroundings | {"SPARK_LOCAL_IP": host, "SPARK_LOCAL_DIRS": str(tmp_path / name)},
                    start_new_session=True,
                )
            )
        return log

    try:
        ports = ["--port", "0", "--webui-port", "0"]
        log = start("master", "127.0.0.1", "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", *ports)
        url = await_line(log, r"Starting Spark master at (spark://\S+)")[0]
        for number in (1, 2):
            host, work = f"127.0.0.{number + 1}", str(tmp_path / f"work-{number}")
            worker = ["org.apache.spark.deploy.worker.Worker", "--host", host, *ports, "--cores", "2"]
            start(f"worker-{number}", host, *worker, "--memory", "700m", "--work-dir", work, url)
        await_line(log, "Registering worker", 2)
        yield url
    finally:
        for process in started:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.mark.cluster
def test_tasks_stay_on_the_executors_that_spark_submit_gets(master: str, tmp_path: Path) -> None:
    folder, file, place, logged = (tmp_path / name for name in ("in", "words.py", "run", "events"))
    folder.mkdir()
    logged.mkdir()
    for minute in range(4):
        lines = [json.dumps({"word": word, "at": f"2026-01-01T00:{minute:02d}:00"}) for word in "aab"]
        path = folder / f"{minute}.json"
        path.write_text("\n".join(lines))
        os.utime(path, (1_700_000_000 + minute,) * 2)  # Spark reads files by age
    file.write_text(APPLICATION.format(folder=str(folder)))
    settings = {
        "spark.executor.memory": "512m",
        "spark.executor.cores": "2",
        "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": logged.as_uri(),
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
        "spark.holdfast.directory": str(place),
        "spark.holdfast.checkpoint.batches": "1",
    }
    given = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    surroundings = os.environ | {
        "JAVA_HOME": str(find_java_home()),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    command = [str(spark_home() / "bin" / "spark-submit"), "--master", master, *given, str(file)]
    done = subprocess.run(
        [*command, "--available-now", "--close", "--json"],
        capture_output=True,
        text=True,
        env=surroundings,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    assert result["rows"] == {"counts": 8}, "two words of each minute"
    rows = [row for one in (place / "out" / "counts").glob("*.parquet") for row in pq.read_table(one).to_pylist()]
    assert sorted((row["word"], row["n"]) for row in rows) == [("a", 2)] * 4 + [("b", 1)] * 4
    # Spark's own log: one job for each node, with one task, which stays; and both executors have the cores that it got.
    events = [json.loads(line) for log in logged.iterdir() for line in log.read_text().splitlines()]
    jobs = [one["Properties"] for one in events if one["Event"] == "SparkListenerJobStart"]
    named = {str(job.get("spark.job.description")) for job in jobs}
    nodes = {re.fullmatch(r"holdfast words: (.+)", name) for name in named} - {None}
    assert len(nodes) == 2, named
    cores = [one["Executor Info"]["Total Cores"] for one in events if one["Event"] == "SparkListenerExecutorAdded"]
    assert cores == [2, 2]
    arrived = [json.loads(line) for line in (place / "run" / "events.jsonl").read_text().splitlines()]
    assert sum(len(one["nodes"]) for one in arrived if one["event"] == "node-arrived") == 2
