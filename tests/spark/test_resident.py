"""Workers that stay: crashes of operator processes, tasks that are repeated or misplaced, runs without a free slot."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pyarrow as pa
import pytest
from pyspark import cloudpickle

from holdfast.application import Application, tumbling
from holdfast.errors import BadInput, CheckFailed
from holdfast.examples.registry import EXAMPLES
from holdfast.ids import BatchId, Epoch, NodeId, OperatorId, PartitionId
from holdfast.recovery.events import NodesArrived
from holdfast.runtime import run_in_process
from holdfast.runtime.blocks import Block, Edge, Header, in_messages
from holdfast.runtime.messages import OperatorFailed
from holdfast.runtime.worker.step_guard import SharedGuard, StepGuard
from holdfast.runtime.worker.subscriptions import Request
from holdfast.spark import pinned_jobs, resident_backend, supervisor
from holdfast.spark.executors import FirstPlacement
from holdfast.spark.held_nodes import Came, HeldNode, HeldProcess
from holdfast.spark.link_keepalive import KeepAliveNews
from holdfast.spark.resident_backend import ResidentBackend
from holdfast.spark.resident_node import NodeIdentity, decode_requests, encode_requests
from holdfast.spark.resident_task import MISPLACED, REPEATED, ResidentTask
from holdfast.spark.run import SparkRun
from holdfast.spark.run_secret import CarriedSecret
from holdfast.spark.settings import Settings
from holdfast.spark.supervisor import ENDED, GIVEN_UP, supervise

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


def counting(folder: str) -> Application:
    """Counts words; every process that looks at words leaves its number, its parent's, and the partitions it saw."""

    def look(rows: pa.Table) -> pa.Table:
        with open(os.path.join(folder, f"{os.getpid()}-{os.getppid()}"), "a"):
            return rows

    app = Application("counting")
    words = app.source("words", schema={"word": "string", "at": "timestamp"}, event_time="at", parallelism=4)
    looked = words.map(look, schema={"word": "string", "at": "timestamp"}, id="looked", parallelism=8)
    looked.key_by("word").window(tumbling("2 seconds")).count(id="counts", parallelism=8).output("counts")
    return app


@pytest.mark.cluster
def test_a_node_has_several_operator_processes_and_one_that_is_killed_disturbs_no_other(
    unhurried: SparkSession, tmp_path: Path
) -> None:
    """Its partitions go on from its journal; no node is lost, and nothing rolls back."""
    times = [datetime(2026, 1, 1) + timedelta(seconds=number) for number in range(12)]
    given = [
        {"words": pa.table({"word": [f"w{one % 40}" for one in range(160)], "at": pa.array([at] * 160)})}
        for at in times
    ]
    marks = tmp_path / "processes"
    marks.mkdir()

    def processes() -> dict[int, int]:
        """The processes that have looked at words, each with its task."""
        return {int(name.partition("-")[0]): int(name.partition("-")[2]) for name in os.listdir(marks)}

    events: list[str] = []
    run = SparkRun(
        counting(str(marks)),
        unhurried,
        tmp_path / "run",
        settings=replace(Settings.read(unhurried), exchange="resident", node_processes=2),
        emit=lambda seen: events.append(seen.kind),
    )
    for number, batch in enumerate(given):
        run.log(batch)
        run.run()
        if number == 5:
            before = processes()
            nodes = len(run.coordinator.state.nodes)
            assert len(before) == 2 * nodes, "each process of each node has partitions"
            assert len(set(before.values())) == nodes, "the processes of a node are children of its task"
            victim = min(before)
            os.kill(victim, signal.SIGKILL)
    found = as_rows(run.rows("counts"))
    rollbacks, after = run.rollbacks, processes()
    run.close()
    assert len(after) == len(before) + 1, "one process was started again, the others stayed"
    (new,) = set(after) - set(before)
    assert after[new] == before[victim], "by the same task"
    assert "nodes-lost" not in events
    assert rollbacks == 0
    expected = run_in_process(counting(str(marks)), given, close=False)
    assert found
    assert found == as_rows(expected.rows("counts"))


@pytest.mark.cluster
def test_a_run_below_tls_gives_the_same_and_shows_no_key(unhurried: SparkSession, tmp_path: Path) -> None:
    """Certificates of the run's own, of driver and nodes; an operator process that crashes dials below TLS again."""
    given = word_batches(6)
    lines: list[str] = []
    run = SparkRun(
        crashing(str(tmp_path / "crashed")),
        unhurried,
        tmp_path / "run",
        settings=replace(Settings.read(unhurried), exchange="resident", tls_mode="run"),
        emit=lambda seen: lines.append(str(seen)),
    )
    for batch in given:
        run.log(batch)
        run.run()
    found = as_rows(run.rows("words"))
    run.close()
    expected = run_in_process(crashing(str(tmp_path / "crashed")), given, close=False)
    assert found == as_rows(expected.rows("words"))
    shown = "".join(lines) + str(unhurried.sparkContext.getConf().getAll())
    kept = b"".join(path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert "PRIVATE KEY" not in shown
    assert b"PRIVATE KEY" not in kept


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
    return ResidentTask(None, NodeIdentity(NodeId("n"), "1", host, "t", "127.0.0.1:1"), CarriedSecret(bytes(32)))  # type: ignore[arg-type]


def test_a_task_that_spark_repeats_and_one_on_a_wrong_host_end_at_once() -> None:
    assert task("127.0.0.1").run(1) == REPEATED
    assert task("203.0.113.7").run(0) == MISPLACED


def test_a_task_on_another_executor_of_its_host_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accepted, its processes would go with that executor, and the node be lost with the one it was meant for."""
    monkeypatch.setattr(pinned_jobs, "own_executor_id", lambda: "2")
    assert task("127.0.0.1").run(0) == MISPLACED


def test_what_crashes_is_run_again_until_it_ends_in_order(tmp_path: Path) -> None:
    def crash_twice(index: int, guard: StepGuard) -> None:
        tries = tmp_path / "tries"
        with tries.open("ab") as file:
            file.write(b"x")
        if tries.stat().st_size == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if tries.stat().st_size == 2:
            raise ValueError("a crash")

    assert supervise(crash_twice) == ENDED
    assert (tmp_path / "tries").read_bytes() == b"xxx"


def test_what_crashes_again_and_again_is_given_up(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(supervisor, "CRASHES", 2)
    assert supervise(lambda index, guard: os._exit(3)) == GIVEN_UP
    assert "crashed 3 times in 60 s: given up" in capfd.readouterr().err


def held_node(*, link: object = None, left_at: float = -math.inf, outcome: str | None = None) -> HeldNode:
    process = HeldProcess(NodeId("n"), link=link, left_at=left_at)  # type: ignore[arg-type]
    return HeldNode(NodeId("n"), Mock(), [process], outcome=outcome)


def backend_with(held: HeldNode) -> ResidentBackend:
    backend = object.__new__(ResidentBackend)
    backend._held, backend._cycle, backend._task_cpus = {held.node: held}, None, 1
    backend._watch = SimpleNamespace(known={held.node: held.executor})  # type: ignore[assignment]
    backend._pings = Mock()
    backend._run_context = SimpleNamespace(settings=SimpleNamespace(keepalive_seconds=1.0), start="s")  # type: ignore[assignment]
    return backend


@pytest.mark.parametrize(("outcome", "lost"), [(None, []), (REPEATED, []), (GIVEN_UP, [NodeId("n")])])
def test_a_node_that_gave_up_is_lost_though_its_process_has_dialled(outcome: str | None, lost: list[NodeId]) -> None:
    """Otherwise its partitions wait for ever: each process dials, and crashes before the node counts as left."""
    held = held_node(left_at=100.0, outcome=outcome)
    assert backend_with(held)._lost({held.node: held.executor}, 100.5) == lost


def test_a_node_is_ready_with_all_its_processes_and_left_with_one() -> None:
    one, other = (HeldProcess(NodeId(f"n#{index}"), link=Mock()) for index in range(2))
    held = HeldNode(NodeId("n"), Mock(), [one, other])
    assert held.is_ready
    assert not held.is_left(1000.0, 5.0)
    other.link, other.left_at = None, 100.0
    assert not held.is_ready
    assert not held.is_left(104.0, 5.0), "it has time to come back"
    assert held.is_left(106.0, 5.0)


def test_a_node_whose_task_ended_has_time_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a task may be known before the end of its connection."""
    held = held_node(link=Mock(), outcome=ENDED)
    backend = backend_with(held)
    monkeypatch.setattr(ResidentBackend, "_hold", lambda self, one: None)
    backend._see_to_job(held)
    assert backend._lost({held.node: held.executor}, time.monotonic()) == []


def test_a_process_without_a_connection_when_its_node_was_released_is_told_to_end_when_it_comes() -> None:
    """Its task would hold a core of the executor until the run ends, and a decommissioned executor would not go."""
    held, link = held_node(), Mock()
    backend = backend_with(held)
    backend.release_nodes([held.node])
    backend._take(Came(held.node, 0, link, hello={"address": "127.0.0.1:1"}))
    link.send.assert_called_once_with({"do": "end"})


def test_a_node_that_was_released_is_not_watched_and_so_never_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its task has ended. As a silent node, its executor would be killed while it hands its blocks over to others."""
    held = held_node(link=Mock())
    backend = backend_with(held)
    backend._watch = Mock(known={held.node: held.executor}, fenced=set())
    backend._watch.alive.return_value = {held.node: held.executor}
    backend._watch.leaving.return_value = {held.node}
    backend._pings.take.return_value = KeepAliveNews()
    backend._started_at, backend._looked_at, backend._stopped, backend._announced = 0.0, -math.inf, False, None
    backend._reports, backend._leaving, backend._log = [], set(), Mock()
    monkeypatch.setattr(ResidentBackend, "_see_to_job", lambda self, one: None)
    monkeypatch.setattr(ResidentBackend, "_admit", lambda self: None)
    watched: list[list[NodeId]] = []
    backend._pings.watch.side_effect = lambda nodes: watched.append(list(nodes))
    backend._look()
    backend.release_nodes([held.node])
    backend._looked_at = -math.inf
    backend._look()
    assert watched == [[held.node], []]


def test_a_task_that_finds_no_free_core_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another run may hold all cores of the executor: then nothing else says why no node comes."""
    waits = threading.Event()
    held = held_node()
    backend = backend_with(held)
    lines: list[str] = []
    backend._log = lines.append
    monkeypatch.setattr(ResidentBackend, "_hold", lambda self, one: waits.wait(60))
    monkeypatch.setattr(resident_backend, "CORE_SECONDS", 0.0)
    for _ in range(3):
        backend._see_to_job(held)
        time.sleep(0.001)
    waits.set()
    assert held.job is not None
    held.job.join()
    (line,) = lines
    assert line.startswith("n has not started its task for 0 s: is a core of its executor free?")


def test_a_node_whose_task_spark_places_elsewhere_again_and_again_is_not_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Mixed drill 9103 at a load of 30: five tasks in a row were misplaced, and two queries waited for ever."""
    held, now = held_node(), [0.0]
    begun: list[float] = []
    backend = backend_with(held)
    lines: list[str] = []
    backend._log = lines.append

    def hold(self: ResidentBackend, one: HeldNode) -> None:
        begun.append(now[0])
        one.outcome = MISPLACED

    monkeypatch.setattr(ResidentBackend, "_hold", hold)
    monkeypatch.setattr(resident_backend, "time", SimpleNamespace(monotonic=lambda: now[0]))
    while now[0] < 400:
        backend._see_to_job(held)
        assert held.job is not None
        held.job.join()
        now[0] += 0.5
    pauses = [after - before for before, after in pairwise(begun)]
    assert pauses[:8] == [0.5, 0.5, 0.5, 0.5, 5.5, 10.5, 20.5, 40.5]
    assert pauses[8:] == [60.5] * len(pauses[8:])
    assert len(pauses) > 10
    assert lines == ["n cannot be used: misplaced; it is tried again from time to time"]


def test_a_step_in_which_the_process_dies_again_and_again_is_answered_as_failed(tmp_path: Path) -> None:
    """The other steps of the node are processed meanwhile, and no more processes die."""
    bad, good = PartitionId(OperatorId("bad"), 1), PartitionId(OperatorId("good"), 0)

    def work(index: int, guard: StepGuard) -> None:
        with (tmp_path / "log").open("a") as log:
            assert guard.begin(good, BatchId(3), 0) is None
            log.write("good\n")
            log.flush()
            guard.end()
            attempt = min(2, (tmp_path / "log").read_text().count("good") - 1)
            problem = guard.begin(bad, BatchId(3), attempt)
            log.write(f"bad: {problem}\n")
            log.flush()
            if problem is None:
                os.kill(os.getpid(), signal.SIGSEGV)

    assert supervise(work) == ENDED
    told = (tmp_path / "log").read_text().splitlines()
    last = "bad: the operator process was ended in this batch by SIGSEGV"
    assert told == ["good", "bad: None"] * 3 + ["good", last], "once for each attempt"


def test_a_process_that_dies_between_steps_is_nobody_s_fault() -> None:
    guard, one = SharedGuard(), PartitionId(OperatorId("a"), 0)
    for batch in range(4):
        assert guard.begin(one, BatchId(batch), 0) is None
        guard.end()
        assert guard.died(-9) is None
        assert guard.begin(one, BatchId(batch), 0) is None
        assert guard.died(-9) == (one, batch), "once, in another batch each time"


@pytest.mark.cluster
def test_a_row_that_kills_its_process_is_told_in_one_line_and_takes_no_node(
    unhurried: SparkSession, tmp_path: Path
) -> None:
    def look(rows: pa.Table) -> pa.Table:
        if "crash" in rows["word"].to_pylist():
            os.kill(os.getpid(), signal.SIGSEGV)
        return rows

    app = Application("poisoned")
    words = app.source("words", schema={"word": "string", "at": "timestamp"}, event_time="at")
    words.map(look, schema={"word": "string", "at": "timestamp"}, id="looked").output("words")
    events: list[str] = []
    run = SparkRun(
        app,
        unhurried,
        tmp_path / "run",
        settings=replace(Settings.read(unhurried), exchange="resident"),
        emit=lambda seen: events.append(seen.kind),
    )
    for batch in word_batches(5):
        run.log(batch)
    with pytest.raises(
        OperatorFailed, match=r"looked\[0\].*batch 4.*was ended in this batch by SIGSEGV; parked: looked\[0\]"
    ):
        run.run()
    run.close()
    assert "nodes-lost" not in events


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


def test_much_goes_in_several_messages_and_earlier_batches_first() -> None:
    """A message has a bound: one that is larger would end the process, and the next one would send it again."""
    sender, receiver = PartitionId(OperatorId("a"), 0), PartitionId(OperatorId("b"), 0)

    def block(batch: int, rows: int) -> Block:
        edge = Edge(sender.operator, receiver.operator)
        table = pa.table({"n": pa.array(range(rows), pa.int64())}) if rows else None
        return Block(Header(edge, sender, receiver, BatchId(batch), Epoch(1), None), table)

    blocks = [block(2, 10), block(1, 100), block(0, 10), block(3, 0)]
    parts = list(in_messages(blocks, most=160))
    assert [[one.header.batch for one in part] for part in parts] == [[0], [1], [2, 3]]
    assert list(in_messages([])) == []


def without_a_free_slot(monkeypatch: pytest.MonkeyPatch, cpus: int = 1) -> ResidentBackend:
    """Return a backend with one node that is ready, in an application whose tasks that stay hold all cores."""
    backend = object.__new__(ResidentBackend)
    backend._watch = Mock(known={})
    backend._held, backend._expected, backend._started_at = {NodeId("n"): held_node(link=Mock())}, 1, 0.0
    backend._task_cpus, backend._capacity = cpus, 4.0
    backend._admits = lambda host: True
    backend._ready, backend._first = lambda count, wanted: None, FirstPlacement(0.0)
    backend._program = SimpleNamespace(name="app")  # type: ignore[assignment]
    backend._announced, backend._sent, backend._reports = None, None, []
    backend.needs_free_slot, backend._has_no_slot = True, False
    monkeypatch.setattr(ResidentBackend, "free_slots", lambda self: 0)
    return backend


@pytest.mark.parametrize(("cpus", "cores"), [(1, 2), (2, 4)])
def test_a_run_that_leaves_no_slot_for_its_sources_is_refused(
    cpus: int, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers of sources are tasks like those that stay, and claim as many cores."""
    backend = without_a_free_slot(monkeypatch, cpus)
    remedy = rf"none is left to read sources.*give executors {cores} cores, or set spark\.holdfast\.exchange=shuffle"
    with pytest.raises(BadInput, match=remedy):
        backend._admit()


def test_a_later_executor_without_a_free_core_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is used for what is logged; one line says that sources wait, and it comes again after a core was free."""
    backend, lines = without_a_free_slot(monkeypatch), list[str]()
    backend._announced, backend._log = {"do": "peers"}, lines.append

    def arrive(name: str) -> None:
        backend._held[NodeId(name)] = held = held_node(link=Mock())
        held.node = NodeId(name)
        backend._admit()

    backend._admit()
    arrive("m")
    (line,) = lines
    assert "none is left to read sources" in line
    assert "give executors 2 cores, or set spark.holdfast.exchange=shuffle" in line
    arrived = [node for report in backend._reports if isinstance(report, NodesArrived) for node in report.nodes]
    assert arrived == ["n", "m"]
    monkeypatch.setattr(ResidentBackend, "free_slots", lambda self: 1)
    arrive("k")
    monkeypatch.setattr(ResidentBackend, "free_slots", lambda self: 0)
    arrive("j")
    assert lines == [line, line]


@pytest.mark.parametrize(("expected", "waits"), [(None, False), (2, True)])
def test_the_first_node_does_not_wait_for_as_long_as_the_cluster_took_to_give_it(
    expected: int | None, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows how many executors come; one that is there and hangs holds the others back for a moment only."""
    backend = without_a_free_slot(monkeypatch)
    (ready,) = backend._held.values()
    ready.came_at, backend._expected, backend._came_at = 60.0, expected, 61.0
    backend._held[NodeId("hangs")] = hangs = held_node()
    hangs.came_at = 60.5
    monkeypatch.setattr("holdfast.spark.resident_backend.time.monotonic", lambda: backend_now[0])
    backend_now = [65.0]
    assert backend._waits_for_more([ready])
    backend_now[0] = 71.0
    assert backend._waits_for_more([ready]) is waits, "the embedded cluster's nodes all come, and are waited for longer"
