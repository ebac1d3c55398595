"""The shuffle backend without a cluster: jobs in a thread, what cancels them, and what waits for their end."""

from __future__ import annotations

import math
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.examples.registry import EXAMPLES
from holdfast.ids import BatchId, Epoch, NodeId, PartitionId
from holdfast.recovery.checkpoints import NOTHING
from holdfast.recovery.cluster_state import Start
from holdfast.recovery.events import NodesArrived, NodesLost
from holdfast.runtime.messages import CycleEnded, DesiredState, NodeReport, PartitionAssignment, Report
from holdfast.runtime.program import Program
from holdfast.spark import backend as module
from holdfast.spark import executors
from holdfast.spark.backend import SparkBackend
from holdfast.spark.pinned_jobs import Executor, Outcome

PROGRAM = Program(EXAMPLES["word-count"].application())
FIRST, SECOND, SPARE = (NodeId(f"host-{number}") for number in range(3))


class Slots:
    """Stands for executors: a job ends when it is told to, well or not, or when it is cancelled."""

    def __init__(self) -> None:
        self.begun, self.end = threading.Event(), threading.Event()
        self.error: Exception | None = None
        self.reports: list[tuple[int, bytes]] = []
        self.jobs = 0

    def run(self, work: Any, name: str = "") -> Outcome:
        self.jobs += 1
        self.begun.set()
        assert self.end.wait(60)
        if self.error is not None:
            raise self.error
        return Outcome(tuple(self.reports), ())

    def close(self) -> None:
        pass


@pytest.fixture
def slots() -> Slots:
    return Slots()


@pytest.fixture
def backend(slots: Slots, monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkBackend]:
    """A backend with two nodes; `alive` is what Spark would say."""
    context = SimpleNamespace(
        setJobGroup=lambda *given, **more: None,
        cancelJobGroup=lambda group: slots.end.set(),
        broadcast=lambda one: None,
    )
    monkeypatch.setattr(module, "WATCH_SECONDS", 0.01)
    made = SparkBackend(context, PROGRAM, SimpleNamespace(start="s"))  # type: ignore[arg-type]
    alive = {FIRST: Executor("0", "host"), SECOND: Executor("1", "host")}
    made._started = True
    monkeypatch.setattr(made._watch, "alive", lambda: dict(alive))
    monkeypatch.setattr(executors, "WATCH_SECONDS", 0.01)
    monkeypatch.setattr(made, "_warm", lambda node, executor: None)
    monkeypatch.setattr(made, "_pin", lambda nodes: slots)
    made.alive = alive  # type: ignore[attr-defined]
    assert until(made, lambda found: any(isinstance(one, NodesArrived) for one in found))
    yield made
    slots.end.set()


def until(backend: SparkBackend, enough: Callable[[list[Report]], bool]) -> list[Report]:
    """Read reports until they are enough."""
    found: list[Report] = []
    deadline = time.monotonic() + 300
    while not enough(found):
        assert time.monotonic() < deadline, found
        found += backend.reports(0.05)
    return found


def ended(found: list[Report]) -> bool:
    return any(isinstance(one, CycleEnded) for one in found)


def desired(number: int, epoch: int, *nodes: NodeId) -> DesiredState:
    start = Start(Epoch.of(1, epoch), NOTHING, ())
    places = zip(PROGRAM.partitions, [*nodes] * len(PROGRAM.partitions), strict=False)
    tasks: dict[PartitionId, PartitionAssignment] = {
        p: PartitionAssignment(node, start, NOTHING, BatchId(0), BatchId(0)) for p, node in places
    }
    return DesiredState("run", number, Epoch.of(1, epoch), tasks, {})


def test_reports_of_a_job_come_when_it_ends(backend: SparkBackend, slots: Slots) -> None:
    report = NodeReport(FIRST, Epoch.of(1, 1))
    slots.reports = [(0, pickle.dumps((report, b"", None)))]
    backend.reconcile(desired(1, 1, FIRST, SECOND))
    assert slots.begun.wait(60)
    assert backend.reports(0.05) == [], "it is still running"
    backend.reconcile(desired(2, 1, FIRST, SECOND))
    assert slots.jobs == 1, "of the same epoch: it finishes first"
    slots.end.set()
    first, last = until(backend, ended)
    assert isinstance(first, NodeReport)
    assert last == CycleEnded(1, Epoch.of(1, 1))


def test_a_new_epoch_ends_the_job_and_its_reports_do_not_come(backend: SparkBackend, slots: Slots) -> None:
    slots.reports = [(0, pickle.dumps((NodeReport(FIRST, Epoch.of(1, 1)), b"", None)))]
    backend.reconcile(desired(1, 1, FIRST))
    assert slots.begun.wait(60)
    backend.reconcile(desired(2, 2, FIRST))
    (over, done, *rest) = [one for one in until(backend, lambda found: len(found) >= 3) if isinstance(one, CycleEnded)]
    assert (over.number, over.problem) == (1, "epoch 1.2 has begun")
    assert (done.number, done.problem, rest) == (2, None, [])


def test_only_a_node_that_the_job_needs_ends_it(backend: SparkBackend, slots: Slots) -> None:
    backend.reconcile(desired(1, 1, FIRST))
    assert slots.begun.wait(60)
    del backend.alive[SECOND]  # type: ignore[attr-defined]
    assert until(backend, lambda found: NodesLost((SECOND,)) in found) == [NodesLost((SECOND,))]
    del backend.alive[FIRST]  # type: ignore[attr-defined]
    found = until(backend, lambda found: NodesLost((FIRST,)) in found)
    assert found == [CycleEnded(1, Epoch.of(1, 1), f"{FIRST} is gone"), NodesLost((FIRST,))]


def test_nodes_that_arrive_wait_for_the_end_of_the_job(backend: SparkBackend, slots: Slots) -> None:
    """Placing partitions on them begins an epoch: taken at once, every arrival would cost the running job."""
    backend.reconcile(desired(1, 1, FIRST))
    assert slots.begun.wait(60)
    backend.alive[SPARE] = Executor("2", "host")  # type: ignore[attr-defined]
    for _ in range(20):
        assert backend.reports(0.02) == []
    slots.end.set()
    found = until(backend, lambda found: any(isinstance(one, NodesArrived) for one in found))
    assert [type(one) for one in found] == [CycleEnded, NodesArrived]


def test_a_job_that_fails_and_a_node_that_is_gone_are_cycles_that_ended(backend: SparkBackend, slots: Slots) -> None:
    slots.error = RuntimeError("Job aborted due to stage failure\n  at x.y")
    slots.end.set()
    backend.reconcile(desired(1, 1, FIRST))
    (failed,) = until(backend, ended)
    assert failed == CycleEnded(1, Epoch.of(1, 1), "a job failed: Job aborted due to stage failure")
    backend.reconcile(desired(2, 1, SPARE))
    assert until(backend, ended) == [CycleEnded(2, Epoch.of(1, 1), f"{SPARE} is gone")]


def test_a_job_that_is_cancelled_before_it_is_submitted_is_not_submitted(
    backend: SparkBackend, slots: Slots, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinning, go_on = threading.Event(), threading.Event()

    def slowly(nodes: Any) -> Slots:
        pinning.set()
        assert go_on.wait(60)
        return slots

    monkeypatch.setattr(backend, "_pin", slowly)
    monkeypatch.setattr(module, "CANCEL_SECONDS", 0.01)
    backend.reconcile(desired(1, 1, FIRST))
    job = backend._job
    assert job is not None
    assert pinning.wait(60)
    backend.stop()
    go_on.set()
    job._thread.join(60)
    assert job.ended
    assert slots.jobs == 0


def test_nodes_warm_up_side_by_side_and_a_straggler_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first two can only end once both have begun; the third does not end before the first are used."""
    monkeypatch.setattr(module, "WATCH_SECONDS", 0.01)
    monkeypatch.setattr(executors, "SETTLE_SECONDS", 0.01)
    shown: list[tuple[int, int | None]] = []
    made = SparkBackend(
        SimpleNamespace(),  # type: ignore[arg-type]
        PROGRAM,
        SimpleNamespace(start="s"),  # type: ignore[arg-type]
        expected=3,
        ready=lambda count, wanted: shown.append((count, wanted)),
    )
    made._started = True
    alive = {node: Executor(str(number), "host") for number, node in enumerate((FIRST, SECOND, SPARE))}
    monkeypatch.setattr(made._watch, "alive", lambda: dict(alive))
    both, used = threading.Barrier(2), threading.Event()

    def warm(node: NodeId, executor: Executor) -> None:
        assert used.wait(60) if node == SPARE else both.wait(60) >= 0

    monkeypatch.setattr(made, "_warm", warm)

    def arrived(found: list[Report]) -> list[NodeId]:
        return [node for one in found if isinstance(one, NodesArrived) for node in one.nodes]

    assert sorted(arrived(until(made, lambda found: len(arrived(found)) >= 1))) in ([FIRST, SECOND], [FIRST], [SECOND])
    used.set()
    until(made, lambda found: SPARE in arrived(found))
    assert shown[-1] == (3, 3)
    assert set(made._watch.known) == {FIRST, SECOND, SPARE}


def test_the_first_placement_waits_for_others_as_long_again_as_the_first_node_took() -> None:
    first = executors.FirstPlacement(began=10.0)
    assert first.waits(200.0, 0, 3), "without a node nothing can be placed"
    assert first.waits(205.0, 1, 3)
    assert first.waits(399.0, 2, 3)
    assert not first.waits(400.0, 2, 3), "the third takes more than twice as long"
    assert not executors.FirstPlacement(began=10.0).waits(11.0, 3, 3)
    quick = executors.FirstPlacement(began=10.0)
    assert quick.waits(10.1, 1, 2)
    assert quick.waits(10.1 + executors.SETTLE_SECONDS / 2, 1, 2), "others may be a moment later"


def test_time_before_executors_came_is_none_that_nodes_need() -> None:
    """The cluster gave the first executor after a minute; another one that hangs has twice the time of a node."""
    first = executors.FirstPlacement(began=10.0)
    assert first.waits_for(74.0, 70.0, [71.0]), "the first took four seconds"
    assert first.waits_for(78.9, 70.0, [71.0]), "a later one has twice as long, from when it came"
    assert not first.waits_for(79.0, 70.0, [71.0])
    assert not first.waits_for(74.0, 70.0, []), "all are there"
    assert not first.waits_for(76.0, 70.0, [75.5]), "who comes after the first was ready is used later"
    early = executors.FirstPlacement(began=10.0)
    assert early.waits_for(19.0, -math.inf, [-math.inf]), "executors that were there before count from the run's start"
    assert not early.waits_for(28.0, -math.inf, [-math.inf])
    quick = executors.FirstPlacement(began=10.0)
    assert quick.waits_for(20.1, 20.0, [20.0]), "others may be a moment later"
    assert quick.waits_for(21.9, 20.0, [20.0])
    assert not quick.waits_for(22.0, 20.0, [20.0])
