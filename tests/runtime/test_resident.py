"""Workers that stay, without Spark: the rows of cycles, also under a window of one block and after failures."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from holdfast.examples import EXAMPLES
from holdfast.ids import BatchId, Epoch, NodeId
from holdfast.recovery.strategy import RecoverySettings
from holdfast.runtime import InProcess, in_process, run_in_process
from holdfast.runtime.blocks import LATE
from holdfast.runtime.coordinator.coordinator import Coordinator
from holdfast.runtime.coordinator.event_log import Observation
from holdfast.runtime.coordinator.pacing import CycleSettings
from holdfast.runtime.coordinator.progress import Progress
from holdfast.runtime.io.batch_log import BatchLog
from holdfast.runtime.io.sinks import MemorySink
from holdfast.runtime.io.source_blocks import SourceBlocks
from holdfast.runtime.messages import DesiredState, Missing, NodeReport, Report
from holdfast.runtime.program import Program
from holdfast.runtime.state.journal_store import JournalStore
from holdfast.runtime.state.snapshot_store import MemorySnapshotStore, SnapshotStore
from holdfast.runtime.state.store import MemoryStore
from holdfast.storage.memory import MemoryStorage
from holdfast_lab.simulation.recovery.faults import Fault, Mischief
from holdfast_lab.simulation.recovery.files import Disk
from holdfast_lab.simulation.recovery.state_disk import SimulatedStateFiles
from runtime.resident_loop import ResidentLoop
from runtime.test_coordinator import late_batches, late_words
from sizes import LONG, share

COUNT, ROWS = 10, 80


def outputs(name: str, *, fails: bool = False) -> dict[str, list[str]]:
    """Run an example on three nodes; with `fails`, lose a partition in the middle and recover it."""
    example = EXAMPLES[name]
    running = InProcess(example.application(), nodes=3)
    for number, batch in enumerate(example.batches(3, COUNT, ROWS)):
        running.feed(batch)
        if number == 4:
            running.checkpoint()
        if fails and number == 6:
            running.fail(running.program.partitions[-1])
            running.recover()
    running.close()
    return {one: sorted(map(str, running.rows(one).to_pylist())) for one in running.program.output_names.values()}


@pytest.mark.parametrize("processes", [1, 3])
@pytest.mark.parametrize("seed", range(share(3)))
def test_operator_processes_die_anywhere_and_no_node_is_lost(
    seed: int, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal has all that a process reported: the next one goes on, without a rollback."""
    expected = outputs("hashtags")
    draw = random.Random(seed)
    rates = dict.fromkeys(Fault, 0.0) | {Fault.TASK_KILLED: 0.02}
    mischief = Mischief(draw, rates, active=False)
    disks: dict[NodeId, Disk] = {}
    backends: list[ResidentLoop] = []

    def journal(node: NodeId) -> JournalStore:
        disk = disks.setdefault(node, Disk(mischief, lambda: 0.0))
        files = SimulatedStateFiles(disk)
        return JournalStore(Path("/state"), files=files, file_bytes=20_000, cache_bytes=draw.choice((0, 2**20)))

    def backend(
        program: Program, log: BatchLog, snapshots: SnapshotStore, *rest: object, **named: object
    ) -> ResidentLoop:
        backends.append(ResidentLoop(program, log, snapshots, journal, processes=processes))
        return backends[-1]

    monkeypatch.setattr(in_process, "LoopBackend", backend)
    example = EXAMPLES["hashtags"]
    running = InProcess(example.application(), nodes=3)
    epoch = running._coordinator.state.epoch
    mischief.active = True
    for batch in example.batches(3, COUNT, ROWS):
        running.feed(batch)
    running.close()
    mischief.active = False
    assert backends[0].restarts > 2
    assert running._coordinator.state.epoch == epoch, "no partition was missing"
    assert {
        one: sorted(map(str, running.rows(one).to_pylist())) for one in running.program.output_names.values()
    } == expected


def test_a_batch_is_marked_before_workers_may_process_it() -> None:
    """Workers that stay go on while the coordinator decides: what they have passed they may not have any more."""
    application, storage = EXAMPLES["hashtags"].application(), MemoryStorage()
    program, progress = Program(application), Progress(storage, "hashtags")
    log = BatchLog(program.sources, program.name, claim=progress.claim)
    backend = ResidentLoop(program, log, MemorySnapshotStore(), lambda node: MemoryStore())
    backend.add_nodes({NodeId(f"n{number}"): 100.0 for number in range(3)})
    sinks = {p.operator: MemorySink() for p in program.outputs}
    seen: list[Observation] = []
    coordinator = Coordinator(
        program,
        backend,
        log,
        sinks,
        lambda operator, feed: MemorySink(),
        progress,
        recovery=RecoverySettings(),
        pace=CycleSettings(checkpoint_batches=2),
        now=time.time,
        log=lambda line: None,
        emit=seen.append,
    )
    given: list[tuple[BatchId, set[BatchId]]] = []
    right = backend.reconcile

    def reconcile(desired: DesiredState) -> None:
        assigned = desired.assignments.values()
        given.append((max(one.through for one in assigned), {mark for one in assigned for mark in one.marks}))
        right(desired)

    backend.reconcile = reconcile  # type: ignore[method-assign]
    for number, batch in enumerate(EXAMPLES["hashtags"].batches(3, 24, 5)):
        log.append(batch)
        if number % 4 == 3:
            coordinator.step(0.0)  # while workers are still busy with those before
    coordinator.run()
    assert given[3][0] == 15, "desired states were replaced while workers were busy"
    known = set(given[0][1])
    for (before, _), (_, marks) in pairwise(given):
        assert all(mark > before for mark in marks - known)
        known |= marks
    assert len(known) > 1


def test_late_rows_of_a_report_that_was_lost_come_with_the_next() -> None:
    """A frontier acknowledges the late rows up to it: a report after the lost one must not leave them out."""
    program, progress = Program(late_words()), Progress(MemoryStorage(), "late")
    log = BatchLog(program.sources, program.name, claim=progress.claim)
    backend = ResidentLoop(program, log, MemorySnapshotStore(), lambda node: MemoryStore())
    backend.add_nodes({NodeId("n0"): 100.0})
    late, lost = MemorySink(), list[NodeReport]()

    def loses(report: NodeReport) -> bool:
        if not lost and any(one.header.receiver.operator == LATE and one.row_count for one in report.outputs):
            lost.append(report)
            return True
        return False

    backend.loses = loses
    coordinator = Coordinator(
        program,
        backend,
        log,
        {p.operator: MemorySink() for p in program.outputs},
        lambda operator, feed: late,
        progress,
        recovery=RecoverySettings(),
        pace=CycleSettings(),
        now=time.time,
        log=lambda line: None,
        emit=lambda one: None,
    )
    for batch in late_batches():
        log.append(batch)
        coordinator.step(0.0)
    coordinator.run()
    found = late.rows()
    assert lost
    assert found is not None
    assert found.num_rows == 4, "each late row, once"


@pytest.mark.parametrize("processes", [1, 2, 3] if LONG else [1, 3])
@pytest.mark.parametrize("window", [1, 8])
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("name", ["traffic", "hashtags"])
def test_rows_are_those_of_cycles(
    name: str, fails: bool, window: int, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = outputs(name)
    assert all(expected.values())
    monkeypatch.setattr(in_process, "LoopBackend", partial(ResidentLoop, window=window, processes=processes))
    assert outputs(name, fails=fails) == expected


def test_outputs_that_are_too_much_for_one_report_come_with_several() -> None:
    """A sink that was away for long gets them in parts: a report beyond what a link takes would end the process."""
    most: list[int] = []

    class Loop(ResidentLoop):
        def reports(self, timeout: float) -> Sequence[Report]:
            found = super().reports(timeout)
            for one in found:
                if isinstance(one, NodeReport):
                    with_rows = [block for block in one.outputs if block.row_count]
                    most.append(len({block.header.batch for block in with_rows}))
            return found

    example = EXAMPLES["hashtags"]
    program, progress = Program(example.application()), Progress(MemoryStorage(), "hashtags")
    log = BatchLog(program.sources, program.name, claim=progress.claim)
    backend = Loop(program, log, MemorySnapshotStore(), lambda node: MemoryStore(), report_bytes=1)
    backend.add_nodes({NodeId("n0"): 100.0})
    sinks = {p.operator: MemorySink() for p in program.outputs}
    coordinator = Coordinator(
        program,
        backend,
        log,
        sinks,
        lambda operator, feed: MemorySink(),
        progress,
        recovery=RecoverySettings(),
        pace=CycleSettings(),
        now=time.time,
        log=lambda line: None,
        emit=lambda one: None,
    )
    resident = next(iter(backend.residents.values()))
    right = resident._outputs
    resident._outputs = lambda *given: []  # type: ignore[method-assign]
    for batch in example.batches(3, COUNT, ROWS):
        log.append(batch)
    for _ in range(3 * COUNT):
        coordinator.step(0.0)
    resident._outputs = right  # type: ignore[method-assign]
    most.clear()
    coordinator.run()
    assert max(most) == 1
    expected = run_in_process(example.application(), example.batches(3, COUNT, ROWS), close=False)
    for name, sink in sinks.items():
        found = sink.rows()
        assert found is not None
        assert sorted(map(str, found.to_pylist())) == sorted(map(str, expected.rows(name).to_pylist()))


def test_storage_that_is_away_for_a_while_ends_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = outputs("hashtags")
    read, tries = SourceBlocks.block, list[int]()

    def block(self: SourceBlocks, *given: object) -> object:
        tries.append(len(tries))
        if len(tries) % 3 == 0:
            raise OSError("the storage is away")
        return read(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(in_process, "LoopBackend", ResidentLoop)
    monkeypatch.setattr(SourceBlocks, "block", block)
    assert outputs("hashtags") == expected
    assert len(tries) > 3


def test_snapshots_that_cannot_be_deleted_now_are_deleted_later() -> None:
    class Away(MemorySnapshotStore):
        away = True

        def forget(self, names: Sequence[str]) -> None:
            if self.away:
                raise OSError("the storage is away")
            super().forget(names)

    program, store = Program(EXAMPLES["hashtags"].application()), Away()
    backend = ResidentLoop(program, BatchLog(program.sources, program.name), store, lambda node: MemoryStore())
    backend.add_nodes({NodeId("n0"): 100.0})
    resident = backend.residents[NodeId("n0")]
    desired = DesiredState("run", 1, Epoch(1), {}, {}, None, 1.0, 0, False, ("a", "b"))
    for name in desired.forget:
        store.save(name, b"", epoch=1, durable=False)
    resident.hand_out(desired)
    resident.work()
    assert set(store.snapshots) == {"a", "b"}
    store.away = False
    resident.hand_out(replace(desired, number=2, forget=()))
    resident.work()
    assert not store.snapshots


def test_what_was_reported_is_not_held_for_ever() -> None:
    """An epoch may last for months, and a snapshot that is small is in its answer."""
    program = Program(EXAMPLES["hashtags"].application())
    backend = ResidentLoop(
        program, BatchLog(program.sources, program.name), MemorySnapshotStore(), lambda n: MemoryStore()
    )
    backend.add_nodes({NodeId("n0"): 100.0})
    resident, partition = backend.residents[NodeId("n0")], program.partitions[0]
    answers = [Missing(partition, BatchId(number)) for number in range(100)]
    assert all(resident._is_news(one, float(number)) for number, one in enumerate(answers))
    assert not resident._is_news(answers[-1], 99.5)
    assert resident._is_news(answers[-1], 100.0)
    assert len(resident._reported_at) == 1


class BusyDriver(ResidentLoop):
    """A driver that reads nothing for a minute after every report with rows: its sink is slow."""

    copies: dict[tuple[object, object], int]

    def __init__(self, *given: Any, **named: Any) -> None:
        self.copies, self.now = {}, 0.0
        BusyDriver.last = self
        super().__init__(*given, **{**named, "clock": lambda: self.now})

    last: BusyDriver

    def reports(self, timeout: float) -> Sequence[Report]:
        before = len(self._reports)
        if not self._reports:
            self._turn()
        if any(isinstance(one, NodeReport) and one.outputs for one in self._reports[before:]):
            for _ in range(60):
                self.now += 1.0
                self._turn()
        found = super().reports(timeout)
        for report in found:
            if isinstance(report, NodeReport):
                for block in report.outputs:
                    key = block.header.sender, block.header.batch
                    self.copies[key] = self.copies.get(key, 0) + 1
        return found


def test_a_driver_whose_sink_is_slow_gets_no_copies_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = outputs("hashtags")
    monkeypatch.setattr(in_process, "LoopBackend", BusyDriver)
    assert outputs("hashtags") == expected
    assert BusyDriver.last.copies
    assert max(BusyDriver.last.copies.values()) == 1, "what waits for the driver is there once"
