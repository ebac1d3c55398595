"""Large snapshots are written beside the stream: the same bytes, and none counts before the store has it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.examples import EXAMPLES
from holdfast.ids import BatchId, Epoch, NodeId, OperatorId, PartitionId
from holdfast.recovery.checkpoints import NOTHING, SavedSnapshot, snapshot_name
from holdfast.recovery.cluster_state import Start
from holdfast.runtime.blocks import Block, Edge, Header
from holdfast.runtime.io.batch_log import BatchLog
from holdfast.runtime.messages import (
    DesiredState,
    NodeReport,
    PartitionAssignment,
    SnapshotNotStored,
    SnapshotStored,
)
from holdfast.runtime.program import Program
from holdfast.runtime.state.journal_store import JournalStore
from holdfast.runtime.state.snapshot_files import write_snapshot_file
from holdfast.runtime.state.snapshot_store import MemorySnapshotStore
from holdfast.runtime.state.snapshots import Snapshot, decode_snapshot, encode_snapshot
from holdfast.runtime.state.versions import Commit, FileName, SegmentRef, VersionId
from holdfast.runtime.worker import saving_beside
from holdfast.runtime.worker.saving_beside import SavesBeside
from holdfast.runtime.worker.worker import NodeWorker

NODE, EPOCH, MARK = NodeId("n0"), Epoch.of(1, 1), BatchId(3)
A, B = PartitionId(OperatorId("a"), 0), PartitionId(OperatorId("b"), 1)
EXAMPLE = EXAMPLES["hashtags"]


def snapshot_with(segments: list[pa.Table], outbox: list[Block], since: VersionId | None = None) -> Snapshot:
    refs = {SegmentRef(FileName(f"file-{number}"), number): one for number, one in enumerate(segments)}
    commit = Commit(A, VersionId(MARK, EPOCH), since, 17, {"t": tuple(refs)})
    return Snapshot(commit, since, refs, tuple(outbox))


def block(batch: int, rows: pa.Table | None) -> Block:
    return Block(Header(Edge(A.operator, B.operator), A, B, BatchId(batch), EPOCH, 5), rows)


ROWS = pa.table({"n": range(1000), "word": [f"word {n % 7}" if n % 5 else None for n in range(1000)]})


@pytest.mark.parametrize(
    "snapshot",
    [
        snapshot_with([], []),
        snapshot_with([ROWS], []),
        snapshot_with([ROWS.slice(3, 70), pa.concat_tables([ROWS, ROWS])], []),
        snapshot_with(
            [ROWS], [block(1, ROWS.slice(9, 9)), block(2, None), block(3, ROWS)], VersionId(BatchId(1), EPOCH)
        ),
        snapshot_with([], [block(1, None)]),
    ],
    ids=["empty", "one", "slices and chunks", "with an outbox", "a barrier"],
)
def test_a_file_has_the_bytes_of_a_snapshot_in_memory(snapshot: Snapshot, tmp_path: Path) -> None:
    write_snapshot_file(snapshot, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == encode_snapshot(snapshot)
    again = decode_snapshot((tmp_path / "file").read_bytes())
    assert list(again.segments) == list(snapshot.segments)


class ByHand:
    """Does what was submitted when it is told to."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, work: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append((future, lambda: work(*given, **named)))
        return future

    def go(self) -> int:
        done = len(self.waiting)
        while self.waiting:
            future, work = self.waiting.pop(0)
            try:
                future.set_result(work())
            except Exception as error:
                future.set_exception(error)
        return done


class Bench:
    """A node whose snapshots are all written beside the stream, by hand."""

    def __init__(self, folder: Path, store: MemorySnapshotStore | None = None) -> None:
        self.program, self.store, self.threads = (
            Program(EXAMPLE.application()),
            store or MemorySnapshotStore(),
            ByHand(),
        )
        self.log = BatchLog(self.program.sources, self.program.name)
        for batch in EXAMPLE.batches(3, 6, 40):
            self.log.append(batch)
        self.folder = folder / "beside"
        self.worker = NodeWorker(
            self.program,
            JournalStore(folder / "state"),
            self.store,
            self.log,
            name=NODE,
            clock=lambda: 0.0,
            cpu_clock=lambda: 0.0,
            small_snapshot=0,
            beside=SavesBeside(self.store, self.folder, threads=self.threads, beside_bytes=-1),
        )

    def cycle(self, through: int = MARK) -> NodeReport:
        start = Start(EPOCH, NOTHING, ())
        assignments = {
            p: PartitionAssignment(NODE, start, NOTHING, BatchId(0), BatchId(through), (MARK,), frozenset(), None)
            for p in self.program.partitions
        }
        published = dict.fromkeys(self.program.partitions, NOTHING)
        return self.worker.reconcile(DesiredState("run", 1, EPOCH, assignments, published), 0, [])


def stored(report: NodeReport) -> dict[PartitionId, SavedSnapshot]:
    return {one.partition: one.snapshot for one in report.answers if isinstance(one, SnapshotStored)}


def test_batches_go_on_and_nothing_counts_before_the_store_has_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    assert stored(bench.cycle()) == {}
    assert len(bench.threads.waiting) == len(bench.program.partitions)
    report = bench.cycle(through=5)
    assert (stored(report), bench.store.snapshots) == ({}, {}), "it is still being written"
    assert set(report.frontiers.values()) == {5}, "and the stream went on"
    assert len(bench.threads.waiting) == len(bench.program.partitions), "once each"
    bench.threads.go()
    found = stored(bench.cycle(through=5))
    assert set(found) == set(bench.program.partitions)
    for partition, one in found.items():
        held = bench.store.fetched(snapshot_name("run", partition, one))
        assert held is not None
        assert decode_snapshot(held).commit.id.batch == MARK, "the state at the mark, whatever came after it"
    assert list(bench.folder.iterdir()) == [], "no file is left"


def test_a_snapshot_that_cannot_be_written_is_reported_and_begun_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.cycle()
    bench.folder.write_text("in the way")
    bench.threads.go()
    report = bench.cycle()
    problems = [one.problem for one in report.answers if isinstance(one, SnapshotNotStored)]
    assert len(problems) == len(bench.program.partitions)
    assert all("Error" in problem for problem in problems)
    assert stored(report) == {}
    bench.folder.unlink()
    assert bench.threads.go() == len(bench.program.partitions), "they were begun again"
    assert set(stored(bench.cycle())) == set(bench.program.partitions)


def test_what_a_process_left_that_died_is_removed(tmp_path: Path) -> None:
    dead = Bench(tmp_path)
    dead.cycle()
    dead.folder.mkdir()
    (dead.folder / "0.snapshot").write_bytes(b"half of it")
    anew = Bench(tmp_path, dead.store)
    assert stored(anew.cycle()) == {}, "the store has nothing: it is begun again"
    anew.threads.go()
    assert set(stored(anew.cycle())) == set(anew.program.partitions)
    assert list(anew.folder.iterdir()) == []


def test_a_process_that_was_replaced_saves_nothing_of_the_one_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread still writes when the next one, of the same folder, begins: a name has its own rows, or none."""
    first, second = snapshot_with([ROWS], []), snapshot_with([ROWS.slice(500)], [])
    stores = MemorySnapshotStore(), MemorySnapshotStore()
    old, new = (SavesBeside(store, tmp_path, beside_bytes=0) for store in stores)
    written, goes_on = threading.Event(), threading.Event()

    def write(snapshot: Snapshot, path: Path) -> None:
        write_snapshot_file(snapshot, path)
        if snapshot is first:
            new.begin("second", second, epoch=EPOCH, durable=False)
            assert written.wait(60)
        else:
            written.set()
            assert goes_on.wait(60)

    monkeypatch.setattr(saving_beside, "write_snapshot_file", write)
    old.begin("first", first, epoch=EPOCH, durable=False)
    old._begun["first"].exception(60)
    goes_on.set()
    assert new._begun["second"].exception(60) is None
    assert stores[1].snapshots["second"].equals(pa.py_buffer(encode_snapshot(second)))
    saved = stores[0].snapshots.get("first")
    assert saved is None or saved.equals(pa.py_buffer(encode_snapshot(first)))
