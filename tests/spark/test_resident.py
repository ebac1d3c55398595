"""Workers that stay: crashes of operator processes, tasks that are repeated or misplaced, runs without a free slot."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark import cloudpickle

from holdfast.application import Application
from holdfast.errors import BadInput, CheckFailed
from holdfast.examples.registry import EXAMPLES
from holdfast.ids import BatchId, Epoch, NodeId, OperatorId, PartitionId
from holdfast.runtime import run_in_process
from holdfast.runtime.worker.subscriptions import Request
from holdfast.spark.resident_backend import ResidentBackend
from holdfast.spark.resident_node import NodeIdentity, decode_requests, encode_requests
from holdfast.spark.resident_task import ENDED, MISPLACED, REPEATED, ResidentTask, supervise
from holdfast.spark.run import SparkRun
from holdfast.spark.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Workers cannot import the tests: what is defined here travels by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def as_rows(rows: pa.Table) -> list[str]:
    return sorted(map(str, rows.to_pylist()))


def crashing(marker: str) -> Application:
    """Counts words; the process that first sees the word `crash` is killed, once."""

    def look(rows: pa.Table) -> pa.Table:
        if "crash" in rows["word"].to_pylist():
            try:
                os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return rows
            os.kill(os.getpid(), signal.SIGKILL)
        return rows

    app = Application("crashing")
    words = app.source("words", schema={"word": "string", "at": "timestamp"}, event_time="at", parallelism=2)
    looked = words.map(look, schema={"word": "string", "at": "timestamp"}, id="looked")
    looked.output("words")
    return app


def word_batches(count: int) -> list[dict[str, pa.Table]]:
    times = pa.array([1_000_000, 2_000_000, 3_000_000], pa.timestamp("us"))
    return [
        {"words": pa.table({"word": [f"w{number}", "crash" if number == 4 else "b", "c"], "at": times})}
        for number in range(count)
    ]


@pytest.mark.cluster
def test_an_operator_process_that_crashes_is_started_again_and_no_node_is_lost(
    unhurried: SparkSession, tmp_path: Path
) -> None:
    given = word_batches(8)
    events: list[str] = []
    run = SparkRun(
        crashing(str(tmp_path / "crashed")),
        unhurried,
        tmp_path / "run",
        settings=replace(Settings.read(unhurried), exchange="resident"),
        emit=lambda seen: events.append(seen.kind),
    )
    for batch in given:
        run.log(batch)
        run.run()
    found = as_rows(run.rows("words"))
    run.close()
    assert (tmp_path / "crashed").exists(), "a process was killed"
    assert "nodes-lost" not in events
    assert run.rollbacks == 0
    expected = run_in_process(crashing(str(tmp_path / "crashed")), given, close=False)
    assert found == as_rows(expected.rows("words"))


@pytest.mark.cluster
def test_jobs_of_nodes_carry_names_and_end_with_the_run(unhurried: SparkSession, tmp_path: Path) -> None:
    example = EXAMPLES["word-count"]
    chosen = replace(Settings.read(unhurried), exchange="resident")
    run = SparkRun(example.application(), unhurried, tmp_path / "run", settings=chosen)
    run.log(next(iter(example.batches(1, 1, 20))))
    run.run()
    tracker = unhurried.sparkContext.statusTracker()
    jobs = [tracker.getJobIdsForGroup(f"holdfast-{run.start_id}-{node}") for node in run.coordinator.state.nodes]
    assert jobs
    assert all(len(of_node) == 1 for of_node in jobs), "one job holds each node"
    run.close()
    until(lambda: not set(tracker.getActiveJobsIds()) & {job for of_node in jobs for job in of_node})


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def task(host: str) -> ResidentTask:
    return ResidentTask(None, NodeIdentity(NodeId("n"), host, "t", "127.0.0.1:1"), b"s")  # type: ignore[arg-type]


def test_a_task_that_spark_repeats_and_one_on_a_wrong_host_end_at_once() -> None:
    assert task("127.0.0.1").run(1) == REPEATED
    assert task("203.0.113.7").run(0) == MISPLACED


def test_what_crashes_is_run_again_until_it_ends_in_order(tmp_path: Path) -> None:
    def crash_twice() -> None:
        tries = tmp_path / "tries"
        with tries.open("ab") as file:
            file.write(b"x")
        if tries.stat().st_size == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if tries.stat().st_size == 2:
            raise ValueError("a crash")

    assert supervise(crash_twice) == ENDED
    assert (tmp_path / "tries").read_bytes() == b"xxx"


def test_what_crashes_again_and_again_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.spark import resident_task

    monkeypatch.setattr(resident_task, "CRASHES", 2)
    with pytest.raises(RuntimeError, match="crashed 3 times"):
        supervise(lambda: os._exit(3))


def test_requests_come_through_and_garbage_is_refused() -> None:
    one, other = PartitionId(OperatorId("a"), 1), PartitionId(OperatorId("b"), 0)
    requests = [
        Request(Epoch.of(2, 3), one, other, BatchId(-1), BatchId(7), 12),
        Request(Epoch.of(2, 3), one, other, None, BatchId(9), 12),
    ]
    assert decode_requests(encode_requests(requests)) == requests
    for garbage in (b"", b"[1]", b"{}", b"[[1,2,3,4,5,6]]", encode_requests(requests)[:-3]):
        with pytest.raises(CheckFailed, match="cannot be read"):
            decode_requests(garbage)


def test_a_run_that_leaves_no_slot_for_its_sources_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = object.__new__(ResidentBackend)
    held = SimpleNamespace(node=NodeId("n"), executor=SimpleNamespace(host="h"), link=object())
    backend._watch = SimpleNamespace(known={})  # type: ignore[assignment]
    backend._held, backend._expected, backend._started_at = {NodeId("n"): held}, 1, 0.0  # type: ignore[dict-item]
    backend._admits = lambda host: True
    backend._program = SimpleNamespace(name="app")  # type: ignore[assignment]
    backend.needs_free_slot = True
    monkeypatch.setattr(ResidentBackend, "free_slots", lambda self: 0)
    with pytest.raises(BadInput, match=r"none is left to read sources.*spark\.holdfast\.exchange=shuffle"):
        backend._admit()
