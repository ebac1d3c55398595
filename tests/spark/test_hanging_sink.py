"""A sink that does not return, on a cluster: its query alone is parked, the run stops all the same, nothing is lost."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from holdfast import Application
from holdfast.runtime.coordinator.parking import ErrorSettings
from holdfast.runtime.coordinator.publishing import PublishSettings
from holdfast.runtime.in_process import InProcess
from holdfast.runtime.io.sinks import OutputKey
from holdfast.runtime.messages import OperatorFailed
from holdfast.spark.feed import drain
from holdfast.spark.run import SparkRun
from holdfast.spark.settings import Settings

SCHEMA = {"n": "int64"}
LONGEST = 120.0
"""Seconds that a test waits for something that comes soon."""


def two_queries() -> Application:
    app = Application("hanging")
    source = app.source("s", schema=SCHEMA)
    source.map(lambda rows: rows, schema=SCHEMA, id="good").output("good", priority=9)
    source.map(lambda rows: rows, schema=SCHEMA, id="bad").output("bad", priority=1)
    return app


class InOneProcess:
    """A run in one process, as the end of a run on a cluster sees it."""

    def __init__(self, running: InProcess) -> None:
        self.coordinator = running._coordinator
        self.advance = self.coordinator.advance


def test_a_drain_waits_for_a_slow_sink_and_gives_up_one_that_does_not_return() -> None:
    opened, entered, given = threading.Event(), threading.Event(), list[int]()

    def hangs(rows: pa.Table, key: OutputKey) -> None:
        if key.batch == 3:
            entered.set()
            assert opened.wait(LONGEST)
        given.append(key.batch)

    now = 0.0

    def clock() -> float:
        nonlocal now  # time passes only while all that is out is the call that does not return
        now += entered.is_set() and len(running._coordinator.outputs.publishing._calls) == 1
        return now

    running = InProcess(
        two_queries(), sinks={"bad": hangs}, errors=ErrorSettings(), publishing=PublishSettings(seconds=10), clock=clock
    )
    for batch in range(6):
        running.batch_log.append({"s": pa.table({"n": [batch]})})
    drain(InOneProcess(running))  # type: ignore[arg-type]
    assert given == [0, 1, 2]
    assert [str(query) for query in running.parked] == ["bad[0]"]
    assert running.rows("good")["n"].to_pylist() == list(range(6))
    opened.set()


@pytest.mark.cluster
@pytest.mark.parametrize("exchange", ["resident", "shuffle"])
def test_a_sink_that_does_not_return_parks_its_query_alone(
    unhurried: SparkSession, tmp_path: Path, exchange: str
) -> None:
    opened, calls = threading.Event(), list[int]()
    given: dict[int, list[int]] = {}

    def hangs(rows: pa.Table, key: OutputKey) -> None:
        calls.append(key.batch)
        if key.batch == 1 and not opened.is_set():
            assert opened.wait(LONGEST)
        given[key.batch] = sorted(rows["n"].to_pylist())

    events: list[Any] = []
    lines: list[str] = []
    settings = replace(Settings.read(unhurried), exchange=exchange, errors_sink_seconds=5)

    def start() -> SparkRun:
        return SparkRun(
            two_queries(),
            unhurried,
            tmp_path / "run",
            settings=settings,
            sinks={"bad": hangs, "good": str(tmp_path / "good")},
            emit=events.append,
            log=lines.append,
        )

    run = start()
    try:
        for batch in range(6):
            run.log({"s": pa.table({"n": [10 * batch + one for one in range(10)]})})
        with pytest.raises(OperatorFailed, match=r"bad\[0\], batch 1: its sink has not returned for 5 s"):
            run.run()
        assert set(map(str, run.coordinator.state.parked)) == {"bad[0]"}
        assert sorted(run.rows("good")["n"].to_pylist()) == list(range(60)), "the highest query is complete"
        assert calls == [0, 1], "it is not called again before it has returned"
        assert not {"node-lost", "node-silent", "rolled-back"} & {seen.kind for seen in events}
    finally:
        run.close()
    assert [line for line in lines if "the sink of bad[0] has not returned from batch 1" in line], "a stop gives it up"
    opened.set()
    again = start()
    try:
        assert set(map(str, again.coordinator.state.parked)) == {"bad[0]"}
        again.resume("bad")
        again.coordinator.step(0.1)
        again.run()
        again.checkpoint()
    finally:
        again.close()
    assert given == {batch: [10 * batch + one for one in range(10)] for batch in range(6)}
