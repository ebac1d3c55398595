"""Functions of outputs on a cluster: called on the nodes, beside the loop, and not on the driver."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast import Application
from holdfast.runtime.io.sinks import Sink
from holdfast.runtime.messages import OperatorFailed
from holdfast.spark.run import SparkRun
from holdfast.spark.settings import Settings

SCHEMA = {"n": "int64"}


def two_queries(good: Sink, bad: Sink) -> Application:
    app = Application("on-nodes")
    source = app.source("s", schema=SCHEMA, parallelism=2)
    source.map(lambda rows: rows, schema=SCHEMA, id="good").output("good", priority=9, sink=good)
    source.map(lambda rows: rows, schema=SCHEMA, id="bad").output("bad", priority=1, sink=bad)
    return app


def note(folder: Path, rows: Any, key: hf.OutputKey) -> None:
    """Write down a call: one file for each process, a line for each."""
    line = {"query": str(key.query), "batch": key.batch, "n": rows["n"].tolist(), "kind": type(rows).__name__}
    with (folder / f"{os.getpid()}").open("a") as file:
        file.write(json.dumps(line) + "\n")


def noted(folder: Path) -> list[dict[str, Any]]:
    return [
        {**json.loads(line), "process": int(one.name)}
        for one in folder.iterdir()
        for line in one.read_text().splitlines()
    ]


@pytest.mark.cluster
def test_functions_run_on_the_nodes_and_one_that_hangs_parks_its_query_alone(
    unhurried: SparkSession, tmp_path: Path
) -> None:
    folders = {name: tmp_path / name for name in ("good", "bad")}
    for folder in folders.values():
        folder.mkdir()
    opened, good_folder, bad_folder = tmp_path / "opened", folders["good"], folders["bad"]

    def good(rows: Any, key: hf.OutputKey) -> None:
        note(good_folder, rows, key)

    def bad(rows: Any, key: hf.OutputKey) -> None:
        import time

        if key.batch == 1 and key.query.index == 0:
            while not opened.exists():
                time.sleep(0.05)
        note(bad_folder, rows.to_pandas(), key)

    lines: list[str] = []
    settings = replace(Settings.read(unhurried), exchange="resident", errors_sink_seconds=5)
    app = two_queries(hf.foreach_batch(good, format="pandas"), hf.foreach_batch(bad))
    run = SparkRun(app, unhurried, tmp_path / "run", settings=settings, log=lines.append)
    try:
        for batch in range(6):
            run.log({"s": pa.table({"n": [10 * batch + one for one in range(10)]})})
        with pytest.raises(OperatorFailed, match=r"bad\[0\], batch 1: its sink has not returned for 5 s"):
            run.run()
        assert "bad[0]" in set(map(str, run.coordinator.state.parked)) <= {"bad[0]", "bad[1]"}
        calls = noted(good_folder)
        assert sorted(n for one in calls for n in one["n"]) == list(range(60)), "the other output is complete"
        assert {one["kind"] for one in calls} == {"DataFrame"}
        assert os.getpid() not in {one["process"] for one in calls}, "not on the driver"
        opened.touch()
        run.resume("bad")
        run.coordinator.step(0.1)
        run.run()
        run.checkpoint()
    finally:
        run.close()
    calls = noted(bad_folder)
    assert Counter((one["query"], one["batch"]) for one in calls).most_common(1)[0][1] == 1, "the late return counts"
    assert sorted(n for one in calls for n in one["n"]) == list(range(60))


def test_a_function_that_cannot_be_sent_is_refused_before_anything_is_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    held = threading.Lock()

    def keeps(rows: Any, key: hf.OutputKey) -> None:
        with held:
            pass

    app = two_queries(hf.memory(), hf.foreach_batch(keeps))
    with pytest.raises(hf.BadInput, match=r'output bad: foreach_batch: its function cannot be sent.*where="driver"'):
        SparkRun(app, spark, tmp_path / "run", settings=replace(Settings.read(spark), exchange="resident"))
    assert not list(tmp_path.rglob("*.json")), "nothing claims the run"
