"""Measure whether two operator processes of a node use two cores, on an embedded cluster of one node.

    python tools/measure_processes.py [--turns 3] [--batches 8]

One application, whose one costly operator burns CPU in two partitions, runs in turn with one and with two operator
processes per node. Printed for each: the seconds that the batches took, the CPU seconds of the operator processes, and
their ratio, which is the number of cores that were busy with operators. Outputs are compared. Only the ratio of the two
sides in one run says something: on a machine that is busy with other things, two processes do not get two cores.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
from pyspark import cloudpickle

import holdfast as hf
from holdfast.spark.cluster import EmbeddedCluster
from holdfast.spark.run import SparkRun
from holdfast.spark.session import start_session
from holdfast.spark.settings import Settings

ROWS = 200
ROUNDS = 4000
"""Hashes per row: a partition's batch takes some 0.2 s of a core."""

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def application(folder: str) -> hf.Application:
    """Return an application with one costly operator; its processes leave the CPU seconds and the memory they use."""

    def burn(rows: pa.Table) -> pa.Table:
        for word in rows["word"].to_pylist():
            digest = word.encode()
            for _ in range(ROUNDS):
                digest = hashlib.sha256(digest).digest()
        used = {"cpu": time.process_time(), "kb": _unique_kb()}
        Path(folder, f"{os.getpid()}.json").write_text(json.dumps(used))
        return rows

    app = hf.Application("burning")
    schema = {"word": "string", "at": "timestamp"}
    words = app.source("words", schema=schema, event_time="at", parallelism=2)
    words.map(burn, schema=schema, id="burned", parallelism=2).output("burned")
    return app


def _unique_kb() -> int:
    """Return the memory that a process shares with no other."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Clean", "Private_Dirty")))


def turn(spark: object, folder: Path, processes: int, batches: int) -> tuple[float, float, list[int], list[str]]:
    """Run once; return seconds, CPU seconds of operator processes, their memory, and the outputs."""
    marks = folder / "marks"
    marks.mkdir(parents=True)

    def used() -> dict[str, dict[str, float]]:
        return {one.name: json.loads(one.read_text() or "{}") for one in marks.iterdir()}

    run = SparkRun(
        application(str(marks)),
        spark,
        folder / "run",
        settings=replace(Settings.read(spark), node_processes=processes),
    )

    def log(number: int) -> None:
        at = datetime(2026, 1, 1) + timedelta(seconds=number)
        words = [f"{number}-{one}" for one in range(2 * ROWS)]
        run.log({"words": pa.table({"word": words, "at": pa.array([at] * len(words))})})

    log(0)
    run.run()
    before, began = used(), time.perf_counter()
    for number in range(1, batches + 1):
        log(number)
    run.run()
    seconds, after = time.perf_counter() - began, used()
    rows = sorted(map(str, run.rows("burned").to_pylist()))
    run.close()
    cpu = sum(one["cpu"] - before.get(name, {}).get("cpu", 0.0) for name, one in after.items())
    return seconds, cpu, [int(one["kb"]) for one in after.values()], rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--batches", type=int, default=8)
    given = parser.parse_args()
    found: dict[int, list[tuple[float, float, list[int]]]] = {1: [], 2: []}
    outputs: list[list[str]] = []
    with EmbeddedCluster(1, cores=3) as cluster, tempfile.TemporaryDirectory() as folder:
        secret = {"spark.holdfast.store.secretFile": str(cluster.secret_file)}
        spark = start_session("measure-processes", cluster.master_url, settings=secret)
        for number in range(given.turns):
            for processes in (1, 2):
                place = Path(folder) / f"{number}-{processes}"
                took, cpu, private, rows = turn(spark, place, processes, given.batches)
                found[processes].append((took, cpu, private))
                outputs.append(rows)
        spark.stop()
    assert all(one == outputs[0] for one in outputs), "all outputs are equal"
    print(f"{given.turns} turns of {given.batches} batches, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print("processes  seconds (median, all)            busy cores (median)  private MB of each (largest turn)")
    for processes, turns in found.items():
        seconds = [one[0] for one in turns]
        busy = statistics.median(one[1] / one[0] for one in turns)
        memory = max(turns, key=lambda one: sum(one[2]))[2]
        every = ", ".join(f"{one:.2f}" for one in seconds)
        megabytes = ", ".join(f"{one / 1024:.0f}" for one in memory)
        print(f"{processes:9d}  {statistics.median(seconds):6.2f} ({every})   {busy:.2f}   {megabytes}")
    one, two = (statistics.median(turn[0] for turn in found[processes]) for processes in (1, 2))
    print(f"two processes take {two / one:.2f} of the time of one; {len(outputs[0])} rows, equal in all turns")


if __name__ == "__main__":
    main()
