"""A save finds no state: the partition is missing where its last state is gone, and goes on where only a mark's is."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.examples import EXAMPLES
from holdfast.ids import BatchId, Epoch, NodeId, PartitionId
from holdfast.recovery.checkpoints import NOTHING
from holdfast.recovery.cluster_state import Start
from holdfast.recovery.strategy import RecoverySettings
from holdfast.runtime.coordinator.coordinator import Coordinator
from holdfast.runtime.coordinator.event_log import Observation
from holdfast.runtime.coordinator.pacing import CycleSettings
from holdfast.runtime.coordinator.progress import Progress
from holdfast.runtime.in_process import LoopBackend
from holdfast.runtime.io.batch_log import BatchLog
from holdfast.runtime.io.sinks import MemorySink
from holdfast.runtime.messages import (
    Answer,
    DesiredState,
    Missing,
    NodeReport,
    PartitionAssignment,
    SnapshotNotStored,
    SnapshotStored,
)
from holdfast.runtime.program import Program
from holdfast.runtime.state.directory_store import DirectoryStore
from holdfast.runtime.state.journal_store import JournalStore
from holdfast.runtime.state.snapshot_store import MemorySnapshotStore
from holdfast.runtime.state.store import MemoryStore, VersionStore
from holdfast.runtime.state.versions import NO_BATCH, VersionChain, VersionId
from holdfast.runtime.worker.resident import RESEND_SECONDS, ResidentWorker
from holdfast.runtime.worker.worker import NodeWorker
from holdfast.storage.memory import MemoryStorage
from runtime.resident_loop import ResidentLoop
from runtime.test_host import P, words

PROGRAM = words(1, 1)
SOURCE, COUNTED = P("s[0]"), P("c[0]")
HERE, LAST = NodeId("here"), 7
STORES: dict[str, Callable[[Path], VersionStore]] = {
    "memory": lambda path: MemoryStore(),
    "directory": DirectoryStore,
    "journal": JournalStore,
}


def log() -> BatchLog:
    made = BatchLog(PROGRAM.sources, PROGRAM.name)
    for number in range(LAST + 1):
        made.append({"s": pa.table({"word": ["a", "b"], "n": [number, 1], "at": [number + 0.25] * 2})})
    return made


LOG = log()


def node(store: VersionStore) -> NodeWorker:
    return NodeWorker(PROGRAM, store, MemorySnapshotStore(), LOG, name=HERE, clock=lambda: 0.0, cpu_clock=lambda: 0.0)


def desired(
    through: int, *marks: int, number: int = 1, epoch: int = 1, start_epoch: int = 1, frontier: int = NO_BATCH
) -> DesiredState:
    """Both partitions on one node; the sink has all rows, and nothing is kept for it."""
    start, at = Start(Epoch(start_epoch), NOTHING, ()), BatchId(through)
    saved = tuple(BatchId(mark) for mark in marks)
    tasks = {
        SOURCE: PartitionAssignment(HERE, start, BatchId(frontier), BatchId(through + 1), at),
        COUNTED: PartitionAssignment(HERE, start, BatchId(frontier), BatchId(through + 1), at, saved),
    }
    return DesiredState("run", number, Epoch(epoch), tasks, {COUNTED: at})


def of_counted(report: NodeReport | None) -> list[Answer]:
    return [] if report is None else [one for one in report.answers if one.partition == COUNTED]


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> VersionStore:
    return STORES[request.param](tmp_path)


def test_a_partition_without_its_last_state_is_missing(store: VersionStore) -> None:
    """Seed 734037494486: it was said for ever that a mark cannot be saved, and the partition was never restored."""
    worker = node(store)
    worker.reconcile(desired(LAST), 0, [])
    store.drop(COUNTED)
    assert of_counted(worker.reconcile(desired(LAST, LAST, frontier=LAST), 0, [])) == [Missing(COUNTED, BatchId(LAST))]


def test_a_worker_that_stays_says_so_once_in_a_while(store: VersionStore) -> None:
    worker, now = node(store), [0.0]
    resident = ResidentWorker(worker, PROGRAM, clock=lambda: now[0], cpu_clock=lambda: 0.0)
    resident.hand_out(desired(LAST))
    while not resident.work().idle:
        pass
    assert worker.host.frontier(COUNTED) == LAST
    store.drop(COUNTED)
    resident.hand_out(desired(LAST, LAST, number=2, frontier=LAST))
    missing: list[Answer] = [Missing(COUNTED, BatchId(LAST))]
    assert of_counted(resident.work().report) == missing
    assert of_counted(resident.work().report) == []
    now[0] += RESEND_SECONDS
    assert of_counted(resident.work().report) == missing, "the report may have been lost"


class Vanishing(MemoryStore):
    """Loses all files of a partition when it drops what is not needed; a late task begins the partition again."""

    def forget(self, partition: PartitionId, states: set[VersionId], blocks_from: BatchId) -> None:
        if partition == COUNTED:
            self.drop(partition)
            self.begin(partition, Epoch(1))
        super().forget(partition, states, blocks_from)


def test_a_partition_that_turns_out_to_be_gone_before_the_save_is_missing() -> None:
    """Seed 7200001418: the save asked for it on the node, and the task of the cycle failed."""
    store = Vanishing()
    worker = node(store)
    assert Missing(COUNTED, BatchId(LAST)) in of_counted(worker.reconcile(desired(LAST, LAST), 0, []))


def test_a_partition_without_the_state_at_a_mark_alone_goes_on(store: VersionStore) -> None:
    worker = node(store)
    worker.reconcile(desired(LAST), 0, [])
    answers = of_counted(worker.reconcile(desired(LAST, 0, LAST, frontier=LAST), 0, []))
    given_up, saved = answers
    assert isinstance(given_up, SnapshotNotStored)
    assert (given_up.batch, given_up.gone) == (0, True)
    assert isinstance(saved, SnapshotStored), "the next mark is saved at"


def test_where_another_attempt_went_on_nothing_is_missing() -> None:
    shared = MemoryStore()
    first, second = node(shared), node(shared)
    first.reconcile(desired(1), 0, [])
    second.reconcile(replace(desired(LAST), trim_outboxes=True), 0, [])
    (answer,) = of_counted(first.reconcile(desired(1, 1, frontier=1), 0, []))
    assert isinstance(answer, SnapshotNotStored)
    assert answer.gone


def test_a_version_that_another_attempt_has_made_again_is_saved() -> None:
    shared = MemoryStore()
    first = node(shared)
    first.reconcile(desired(LAST), 0, [])
    shared.drop(COUNTED)
    shared.drop(SOURCE)
    node(shared).reconcile(desired(LAST), 0, [])
    (given_up,) = of_counted(first.reconcile(desired(LAST, LAST, frontier=LAST), 0, []))
    assert isinstance(given_up, SnapshotNotStored)
    (saved,) = of_counted(first.reconcile(desired(LAST, LAST, frontier=LAST), 0, []))
    assert isinstance(saved, SnapshotStored)


def test_a_worker_whose_epoch_is_over_does_not_say_that_a_partition_is_missing_that_went_back() -> None:
    shared = MemoryStore()
    first, second = node(shared), node(shared)
    first.reconcile(desired(LAST), 0, [])
    second.reconcile(desired(1, epoch=2, start_epoch=2), 0, [])
    (answer,) = of_counted(first.reconcile(desired(LAST, LAST, frontier=LAST), 0, []))
    assert isinstance(answer, SnapshotNotStored)


def test_files_that_cannot_be_read_now_are_not_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    worker = node(store)
    worker.reconcile(desired(LAST), 0, [])
    store.drop(COUNTED)

    def chain(partition: object) -> VersionChain | None:
        raise OSError("the disk does not answer")

    monkeypatch.setattr(store, "chain", chain)
    (answer,) = of_counted(worker.reconcile(desired(LAST, LAST, frontier=LAST), 0, []))
    assert answer == SnapshotNotStored(COUNTED, BatchId(LAST), "OSError: the disk does not answer")


@pytest.mark.parametrize("backend_of", [LoopBackend, ResidentLoop])
def test_a_last_checkpoint_is_taken_though_all_files_of_a_partition_are_gone(
    backend_of: type[LoopBackend] | type[ResidentLoop],
) -> None:
    example, storage = EXAMPLES["hashtags"], MemoryStorage()
    program, progress = Program(example.application()), Progress(storage, "hashtags")
    batches = BatchLog(program.sources, program.name, claim=progress.claim)
    store, seen, asked = MemoryStore(), list[Observation](), count()
    backend = backend_of(program, batches, MemorySnapshotStore(), lambda one: store)
    backend.add_nodes({HERE: 100.0})
    coordinator = Coordinator(
        program,
        backend,
        batches,
        {p.operator: MemorySink() for p in program.outputs},
        lambda operator, feed: MemorySink(),
        progress,
        recovery=RecoverySettings(),
        pace=CycleSettings(checkpoint_batches=100),
        now=time.time,
        log=lambda line: None,
        emit=seen.append,
    )
    for batch in example.batches(3, 5, 20):
        batches.append(batch)
    coordinator.run()
    lost = program.outputs[0]
    store.drop(lost)
    assert coordinator.checkpoint(gives_up=lambda: next(asked) > 1000) == 4
    causes = Counter(str(one.fields.get("cause")) for one in seen if one.kind == "state")
    assert causes["state-missing"] == 1
