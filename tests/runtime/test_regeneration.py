"""What is kept for a query that waits is dropped at its bound, and regenerated beside the live partitions."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast.ids import BatchId, Epoch, NodeId, OperatorId, PartitionId
from holdfast.recovery.cluster_state import Start
from holdfast.recovery.strategy import RecoverySettings
from holdfast.runtime import in_process
from holdfast.runtime.coordinator.event_log import Observation
from holdfast.runtime.in_process import InProcess
from holdfast.runtime.io.parquet_sink import ParquetSink
from holdfast.runtime.messages import DesiredState, RegeneratorAssignment
from holdfast.runtime.state.store import MemoryStore
from holdfast.runtime.worker.host import PartitionHost
from holdfast.runtime.worker.regenerating import Regenerating, Regeneration
from holdfast.runtime.worker.step_guard import NoGuard, SharedGuard
from holdfast.runtime.worker.worker import NodeWorker
from runtime.resident_loop import ResidentLoop
from runtime.test_parking import NOW, Trouble, found, numbers, two_queries

sys.path.append(str(Path(__file__).parent.parent.parent / "tools"))
from wait_for_a_node import Run, wrong

SOURCE, BAD = PartitionId(OperatorId("s"), 0), PartitionId(OperatorId("bad"), 0)


class TickingClock:
    """A clock that goes on by itself, a little with every look: workers that stay save once a second at most."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.02
        return self.now


class Watched:
    """A run with two queries, of which one can be parked; nothing is kept for it beyond a bound of no bytes."""

    def __init__(self, directory: Path, trouble: Trouble, nodes: int = 2, waiting_bytes: float = 0.0) -> None:
        self.events: list[Observation] = []
        self.running = InProcess(
            two_queries(trouble),
            directory=directory,
            errors=NOW,
            nodes=nodes,
            checkpoint_every=2,
            sinks={name: ParquetSink(directory / "out" / name) for name in ("good", "after")},
            recovery=RecoverySettings(waiting_bytes=waiting_bytes),
            emit=self.events.append,
            clock=TickingClock(),
        )

    @property
    def state(self) -> object:
        return self.running._coordinator.state

    def kinds(self) -> list[str]:
        return [one.kind for one in self.events]

    def rolled_back(self) -> list[str]:
        return [name for one in self.events if one.kind == "rolled-back" for name in one.fields["partitions"]]


@pytest.mark.parametrize(
    ("nodes", "backend"),
    [
        (1, None),
        (3, None),
        (1, partial(ResidentLoop)),
        (2, partial(ResidentLoop, window=1)),
        (3, partial(ResidentLoop)),
        (2, partial(ResidentLoop, processes=2)),
    ],
)
def test_a_parked_query_comes_back_exact_after_what_was_kept_for_it_is_dropped(
    tmp_path: Path, nodes: int, backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if backend is not None:
        monkeypatch.setattr(in_process, "LoopBackend", backend)
    trouble = Trouble()
    watched = Watched(tmp_path, trouble, nodes)
    running, state = watched.running, watched.running._coordinator.state
    for number in range(40):
        running.feed(numbers(13 if number == 5 else 100 + number))
    assert BAD in state.dropped
    assert "kept-no-more" in watched.kinds()
    # Workers that stay save once a second at most: their checkpoints are behind here.
    assert state.partitions[SOURCE].kept_from > (35 if backend is None else 6), "the sender keeps nothing for it"
    last = state.checkpoints.last(SOURCE)
    assert last is not None
    assert last.outbox_from is None or last.outbox_from > (20 if backend is None else 4), "nor do its snapshots"
    good = state.partitions[PartitionId(OperatorId("good"), 0)].frontier
    trouble.on = False
    running.resume("after")
    wanted = [100 + n if n != 5 else 13 for n in range(40)]
    assert found(running, "after") == found(running, "good") == wanted
    assert watched.rolled_back() == [], "no live partition rolled back"
    assert state.partitions[PartitionId(OperatorId("good"), 0)].frontier >= good
    for number in range(40, 44):
        running.feed(numbers(100 + number))
    running.checkpoint()
    assert not state.dropped
    assert "regenerated" in watched.kinds()
    assert set(state.checkpoints.line.values()) == {43}
    assert found(running, "after") == [*wanted, *range(140, 144)]


def test_a_step_that_once_ended_its_process_is_regenerated_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source came through batch 8 in its second attempt. Attempts of regenerators have numbers of their own."""
    guard, trouble = SharedGuard(), Trouble()
    monkeypatch.setattr(in_process, "NodeWorker", partial(NodeWorker, guard=guard))
    watched = Watched(tmp_path, trouble, nodes=1)
    for number in range(30):
        watched.running.feed(numbers(13 if number == 5 else 100 + number))
    assert BAD in watched.running._coordinator.state.dropped
    assert guard.begin(SOURCE, BatchId(8), 0) is None
    guard.died(-9)
    trouble.on = False
    watched.running.resume("after")
    assert not watched.running.parked
    assert found(watched.running, "after") == [100 + n if n != 5 else 13 for n in range(30)]


def test_a_driver_that_starts_again_regenerates_what_the_one_before_had_dropped(tmp_path: Path) -> None:
    trouble = Trouble()
    watched = Watched(tmp_path, trouble)
    for number in range(30):
        watched.running.feed(numbers(13 if number == 5 else 100 + number))
    assert BAD in watched.running._coordinator.state.dropped
    trouble.on = False
    again = Watched(tmp_path, trouble, waiting_bytes=float("inf"))
    assert BAD in again.running._coordinator.state.dropped, "it is in the record of progress"
    again.running.resume("after")
    wanted = [100 + n if n != 5 else 13 for n in range(30)]
    assert found(again.running, "after") == found(again.running, "good") == wanted


def test_below_the_bound_everything_is_kept(tmp_path: Path) -> None:
    trouble = Trouble()
    watched = Watched(tmp_path, trouble, waiting_bytes=1 << 30)
    for number in range(20):
        watched.running.feed(numbers(13 if number == 5 else 100 + number))
    state = watched.running._coordinator.state
    assert not state.dropped
    assert state.partitions[SOURCE].kept_from <= 5


def test_a_query_that_waited_for_a_node_comes_back_exact(tmp_path: Path) -> None:
    """Its node is lost, and what is kept for it is dropped; then a node comes, is lost, and another comes."""
    run = Run(tmp_path, checkpoint_batches=4, waiting_bytes=2000)
    for _ in range(10):
        run.feed(3, 100, 0.05)
    waiting, live = PartitionId.parse("waiting[0]"), PartitionId.parse("live[0]")
    state = run.coordinator.state
    run.backend.lose_nodes(state.placement[waiting])
    run.settle()
    for _ in range(40):
        run.feed(3, 100, 0.05)
    assert state.dropped == {waiting}
    assert state.partitions[PartitionId.parse("words[0]")].kept_from > 40
    assert state.checkpoints.line[live] > state.checkpoints.line[waiting] + 30
    run.backend.add_nodes({NodeId("late"): 1.3})
    run.coordinator.read_reports()
    run.coordinator.step()
    run.backend.lose_nodes(NodeId("late"))
    run.settle()
    for _ in range(10):
        run.feed(3, 100, 0.05)
    run.backend.add_nodes({NodeId("later"): 1.3})
    run.coordinator.run()
    run.coordinator.checkpoint()
    back = [one["at"] for one in run.seen if one["kind"] == "rolled-back"]
    assert back in ([], [0.5]), "with the first loss at most, as always; for nobody who returns"
    for name in ("live", "waiting"):
        assert wrong(run.coordinator, name, 60, 3) is None
    assert not state.dropped


def test_a_regenerator_that_begins_anew_reads_nothing_before_the_checksums_it_was_given(tmp_path: Path) -> None:
    """The process before had come to batch 6, and checksums after it were asked for: here nothing is read yet."""
    watched = Watched(tmp_path, Trouble())
    for number in range(10):
        watched.running.feed(numbers(100 + number))
    program, log = watched.running.program, watched.running._coordinator.batch_log
    epoch, run = Epoch(1), "run"
    asked: list[tuple[int, object]] = []

    class Seen:
        def block(self, source: OperatorId, batch: BatchId, index: int, epoch: Epoch, checks: object) -> object:
            asked.append((batch, checks))
            return log.block(source, batch, index, epoch)

        def reads_of(self, *about: object) -> None:
            pass

    host = PartitionHost(program, MemoryStore(), node=NodeId("n"), epoch=epoch, clock=lambda: 0.0)
    regenerating = Regenerating(program, host, None, Seen(), NoGuard(), clock=lambda: 0.0)  # type: ignore[arg-type]
    own = PartitionHost(program, MemoryStore(), node=NodeId("n regenerating"), epoch=epoch, clock=lambda: 0.0)
    own.take(SOURCE, BatchId(-1))

    def read(since: int) -> bool:
        checks = tuple((BatchId(number), (number,)) for number in range(since + 1, 10))
        given = {SOURCE: RegeneratorAssignment(Start(epoch, BatchId(-1), ()), BatchId(9), {}, checks, BatchId(since))}
        desired = DesiredState(run, 1, epoch, {}, {}, regenerators=given)
        done = Regeneration()
        assert regenerating._read(own, desired, SOURCE, BatchId(2), done) is None
        return done.waits

    assert read(since=6)
    assert asked == []
    assert not read(since=-1), "once it has reported where it is, it has them from there on"
    assert asked == [(number, (number,)) for number in range(3)]
