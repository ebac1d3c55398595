"""Many rows through Kafka to a Delta table and to Kafka, with broker, two nodes and the driver killed; each row once.

Run: `python tools/kafka_to_delta_and_kafka.py --rows 24000000 --folder out/kafka-24m --minutes 14`, as often as it ends
with status 3: rows are written to a topic of the tests' broker, an application passes them to both sinks, and each kill
comes when a share of them is out. All of it is kept in the folder: a further call goes on where the one before stopped.
The last compares what readers of both targets get with what was written. Ends with status 1 if a row is missing or
comes twice.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.spark.cluster import EmbeddedCluster
from holdfast_lab.driver_processes import Driver, send
from holdfast_lab.kafka_broker import KafkaBroker

PARTITIONS = 4
NODES = 4
"""Two are killed."""
SECONDS = 60.0
STUCK = 600.0
AWAY = 3.0
"""Seconds for which the broker is away."""
BATCHES = 100
"""At least: so that kills come on the way."""
KILLS = ("broker", "first node", "second node", "driver")
NOT_DONE = 3
APPLICATION = """
import holdfast as hf

app = hf.Application("kafka-to-both")
topic = hf.kafka({servers!r}, "in", value="raw", max_records={most})
rows = app.source("rows", topic, schema="value binary", parallelism=2)
passed = rows.map(lambda given: given, schema="value binary", id="passed")
passed.output("to_delta", sink=hf.delta({table!r}))
rows.filter(lambda given: given["value"].is_valid(), id="valid").output(
    "to_kafka", sink=hf.kafka_topic({servers!r}, "out", value="raw")
)
"""


class Attempt:
    """What a folder holds of a run, and what is left to do."""

    def __init__(self, folder: Path, rows: int) -> None:
        self.folder, self.rows = folder, rows
        self._file = folder / "state.json"
        self.state: dict[str, Any] = {"rows": rows, "written": 0, "killed": [], "done": False, "seconds": 0.0}
        if self._file.exists():
            self.state = json.loads(self._file.read_text())
            if self.state["rows"] != rows:
                raise SystemExit(f"{folder} is of {self.state['rows']:,} rows: name that number, or another folder")

    def note(self, **given: Any) -> None:
        """Write down what has been reached."""
        self.state |= given
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps(self.state))
        new.rename(self._file)


def main() -> int:
    """Go on with a run; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows in all")
    parser.add_argument("--folder", type=Path, default=Path("out/kafka-to-both"), help="where all of it is kept")
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after so many, to be continued")
    parser.add_argument("--anew", action="store_true", help="forget what is in the folder")
    options = parser.parse_args()
    if options.anew:
        shutil.rmtree(options.folder, ignore_errors=True)
    options.folder.mkdir(parents=True, exist_ok=True)
    folder = options.folder.absolute()
    attempt, began = Attempt(folder, options.rows), time.monotonic()
    until = began + 60 * options.minutes
    before = attempt.state["seconds"]
    with KafkaBroker(folder=folder / "broker") as broker:
        create_topics(broker.servers)
        write(broker.servers, attempt, until)
        if not attempt.state["done"] and time.monotonic() < until:
            process(broker, attempt, until)
        attempt.note(seconds=before + time.monotonic() - began)
        say(f"killed so far: {', '.join(attempt.state['killed']) or 'nothing'}; load {os.getloadavg()[0]:.1f}")
        if not attempt.state["done"]:
            say("not done: call it again")
            return NOT_DONE
        wrong = [
            problem
            for name, found in (("Delta", read_delta(folder)), ("Kafka", read_kafka(broker.servers, "out")))
            if (problem := compare(name, found, options.rows)) is not None
        ]
    for problem in wrong:
        say(problem)
    say(f"{options.rows:,} rows, {attempt.state['seconds']:.0f} s in all, {len(wrong)} problems")
    return 1 if wrong or set(attempt.state["killed"]) != set(KILLS) else 0


def say(line: str) -> None:
    """Print a line at once."""
    print(line, flush=True)


def create_topics(servers: str) -> None:
    """Create the topics, where they are not there."""
    from confluent_kafka.admin import AdminClient, NewTopic

    client = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    there = client.list_topics(timeout=SECONDS).topics
    missing = [NewTopic(name, PARTITIONS, 1) for name in ("in", "out") if name not in there]
    for future in client.create_topics(missing).values() if missing else ():
        future.result(SECONDS)


def write(servers: str, attempt: Attempt, until: float) -> None:
    """Write the rows that the topic has not: their numbers, as text. Row n is record n // PARTITIONS there."""
    from confluent_kafka import Producer

    ends = offsets(servers, "in")
    attempt.note(written=sum(ends))
    if sum(ends) >= attempt.rows:
        return
    producer = Producer({"bootstrap.servers": servers, "log_level": 0, "enable.idempotence": True, "linger.ms": 50})
    began, many = time.monotonic(), 0
    for partition in range(PARTITIONS):
        for number in range(ends[partition] * PARTITIONS + partition, attempt.rows, PARTITIONS):
            while True:
                try:
                    producer.produce("in", b"%d" % number, partition=partition)
                    break
                except BufferError:
                    producer.poll(0.5)
            many += 1
            if many % 10_000 == 0:
                producer.poll(0)
                if time.monotonic() > until:
                    break
    if producer.flush(SECONDS):
        raise OSError("the broker does not take the rows")
    attempt.note(written=sum(offsets(servers, "in")))
    say(f"{attempt.state['written']:,} rows written, {many / (time.monotonic() - began):,.0f} a second")


def offsets(servers: str, topic: str) -> list[int]:
    """Return where each partition of a topic ends; a broker that has just started is asked again."""
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    deadline = time.monotonic() + SECONDS
    while True:
        reader = Consumer({"bootstrap.servers": servers, "group.id": "look", "log_level": 0})
        try:
            places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
            return [reader.get_watermark_offsets(place, timeout=SECONDS)[1] for place in places]
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
        finally:
            reader.close()


def process(broker: KafkaBroker, attempt: Attempt, until: float) -> None:
    """Run the application until all is out or time is up, with a kill at each share of the rows."""
    folder = attempt.folder
    most = max(1000, attempt.rows // BATCHES)
    app = APPLICATION.format(servers=broker.servers, table=str(folder / "table"), most=most)
    (folder / "both_app.py").write_text(app)
    with EmbeddedCluster(NODES, cores=2) as cluster:
        nodes = sorted(cluster.nodes)

        def restart_broker() -> None:
            broker.kill()
            time.sleep(AWAY)
            broker.start()

        kills: dict[str, Callable[[], None]] = {
            "broker": restart_broker,
            "first node": lambda: cluster.kill_node(nodes[0]),
            "second node": lambda: cluster.kill_node(nodes[1]),
        }
        driver = begin(cluster, folder)
        looked = 0.0
        while time.monotonic() < until:
            if driver.ended:
                if driver._process.returncode == 0:
                    attempt.note(done=True)
                    say("the run has ended: all is out")
                    return
                say(f"the driver ended with status {driver._process.returncode}:\n{driver.last_lines()[-1500:]}")
                driver = begin(cluster, folder)
            if time.monotonic() - looked < 1.0:
                time.sleep(0.05)
                continue
            looked = time.monotonic()
            out = sum(offsets(broker.servers, "out"))
            for number, name in enumerate(KILLS):
                share = (number + 1) / (len(KILLS) + 1)
                if name in attempt.state["killed"] or out < share * attempt.rows:
                    continue
                say(f"{out:,} of {attempt.rows:,} rows are in the topic: the {name} is killed")
                if name == "driver":
                    send(driver.tree, signal.SIGKILL)
                    driver = begin(cluster, folder)
                else:
                    kills[name]()
                attempt.note(killed=[*attempt.state["killed"], name])
                break
        send(driver.tree, signal.SIGKILL)


def begin(cluster: EmbeddedCluster, folder: Path) -> Driver:
    """Start a driver of the run."""
    words = [
        *("holdfast.cli.main", "run", str(folder / "both_app.py"), "--master", cluster.master_url),
        *("--directory", str(folder / "run"), "--available-now", "--close", "--take-over"),
        *("--conf", f"spark.holdfast.store.secretFile={cluster.secret_file}"),
    ]
    return Driver(words, str(folder / "run"), folder / "log", stuck_after=STUCK)


def read_delta(folder: Path) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the numbers of all rows of the table."""
    from deltalake import DeltaTable

    column = DeltaTable(str(folder / "table")).to_pyarrow_table(columns=["value"])["value"]
    return np.asarray(column.cast("string").cast("int64").to_numpy())


def read_kafka(servers: str, topic: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the numbers of all committed records of a topic."""
    from confluent_kafka import Consumer, TopicPartition

    reader = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "compare",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    left = set(range(PARTITIONS))
    reader.assign([TopicPartition(topic, number, 0) for number in left])
    parts, deadline = [], time.monotonic() + STUCK
    while left and time.monotonic() < deadline:
        values = []
        for one in reader.consume(50_000, 1.0):
            if one.error() is not None:
                left.discard(one.partition())
            else:
                values.append(int(one.value() or b"-1"))
        if values:
            parts.append(np.array(values, np.int64))
    reader.close()
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def compare(name: str, found: np.ndarray[Any, np.dtype[np.int64]], rows: int) -> str | None:
    """Say what is wrong with the numbers that came out; None: each is there once."""
    times = np.bincount(found[(found >= 0) & (found < rows)], minlength=rows)
    missing, twice = int((times == 0).sum()), int((times > 1).sum())
    say(f"{name}: {len(found):,} rows, {missing:,} missing, {twice:,} more than once")
    return f"{name} is wrong" if missing or twice or len(found) != rows else None


if __name__ == "__main__":
    sys.exit(main())
