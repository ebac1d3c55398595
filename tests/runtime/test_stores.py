"""One suite for all stores: the first attempt wins, nothing changes in place, old epochs and torn files are out."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.errors import CheckFailed
from holdfast.ids import BatchId, Epoch, OperatorId, PartitionId
from holdfast.runtime.blocks import Block, Edge, Header
from holdfast.runtime.state import versions
from holdfast.runtime.state.directory_store import DirectoryStore
from holdfast.runtime.state.durable_snapshots import DurableSnapshotStore
from holdfast.runtime.state.journal_store import JournalStore
from holdfast.runtime.state.snapshot_files import write_snapshot_file
from holdfast.runtime.state.snapshots import (
    SIZES,
    assemble,
    decode_snapshot,
    encode_snapshot,
    snapshot_head,
    take_snapshot,
)
from holdfast.runtime.state.store import FRESH, Addition, MemoryStore, StaleEpoch, VersionStore
from holdfast.runtime.state.versions import Commit, Pointer, SegmentRef, VersionId, decode_segments, encode_segments
from holdfast.storage.files import FileStorage
from holdfast.storage.memory import MemoryStorage

P = PartitionId.parse("O3[0]")
Q = PartitionId.parse("O5[1]")


def version(batch: int, epoch: int = 1) -> VersionId:
    return VersionId(BatchId(batch), Epoch(epoch))


def run(*values: int) -> pa.Table:
    return pa.table({"n": list(values)})


def block(batch: int, *values: int) -> Block:
    edge = Edge(OperatorId("O3"), OperatorId("O5"))
    return Block(Header(edge, P, Q, BatchId(batch), Epoch(1), batch), run(*values))


def commit(store: VersionStore, batch: int, *values: int, epoch: int = 1, keep: Commit | None = None) -> Commit:
    """Commit a batch that adds one run to the state of the one before."""
    before = () if keep is None else keep.segments["t"]
    made = Commit(
        P,
        version(batch, epoch),
        None if keep is None else keep.id,
        batch * 10,
        {"t": (*before, SegmentRef(FRESH, 0))},
    )
    return store.commit(made, Addition({"t": [run(*values)]}, [block(batch, *values)]))


def values(store: VersionStore, one: Commit) -> list[list[int]] | None:
    state = store.load(one)
    return None if state is None else [found["n"].to_pylist() for found in state["t"]]


@pytest.fixture(
    params=[
        "memory",
        "directory",
        "directory without a cache",
        "directory read anew",
        "journal",
        "journal without a cache",
        "journal read anew",
        "journal of small files, read anew",
    ]
)
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], VersionStore]:
    """A function that gives the store; `read anew` gives a new object over the same files each time."""
    if request.param == "memory":
        memory = MemoryStore()
        return lambda: memory
    bytes_ = 0 if "without" in request.param else 2**20
    if "journal" in request.param:
        small = 1 if "small" in request.param else 2**20
        opened = JournalStore(tmp_path, cache_bytes=bytes_, file_bytes=small)
        return (lambda: JournalStore(tmp_path, file_bytes=small)) if "anew" in request.param else (lambda: opened)
    one = DirectoryStore(tmp_path, cache_bytes=bytes_)
    return (lambda: DirectoryStore(tmp_path)) if "anew" in request.param else (lambda: one)


def test_what_outboxes_hold_is_counted_of_all_partitions_or_of_some(stores: Callable[[], VersionStore]) -> None:
    stores().point(P, Pointer(Epoch(1), None))
    commit(stores(), 0, 1, 2)
    assert stores().kept_bytes() == stores().kept_bytes([P]) > 0
    assert stores().kept_bytes([Q]) == stores().kept_bytes([]) == 0


def test_a_state_is_the_runs_of_its_commits(stores: Callable[[], VersionStore]) -> None:
    assert stores().chain(P) is None
    stores().point(P, Pointer(Epoch(1), None))
    first = commit(stores(), 0, 1, 2)
    second = commit(stores(), 1, 3, keep=first)
    line = stores().chain(P)
    assert line is not None
    assert line.frontier == 1
    assert line.last == second
    assert values(stores(), second) == [[1, 2], [3]]
    assert values(stores(), first) == [[1, 2]], "nothing changed in place"
    found = stores().sent(second)
    assert found is not None
    assert found[Q][0].rows.equals(run(3))
    assert stores().chain(Q) is None


def test_of_two_attempts_the_first_wins(stores: Callable[[], VersionStore]) -> None:
    stores().point(P, Pointer(Epoch(1), None))
    first = commit(stores(), 0, 1)
    assert commit(stores(), 0, 99) == first
    assert values(stores(), first) == [[1]]
    found = stores().sent(first)
    assert found is not None
    assert found[Q][0].rows.equals(run(1)), "state and output are of one attempt"


def test_going_back_is_a_pointer_and_old_lines_do_not_count(stores: Callable[[], VersionStore]) -> None:
    stores().point(P, Pointer(Epoch(1), None))
    line = [commit(stores(), 0, 0)]
    for batch in range(1, 4):
        line.append(commit(stores(), batch, batch, keep=line[-1]))
    stores().point(P, Pointer(Epoch(2), version(1)))
    found = stores().chain(P)
    assert found is not None
    assert found.frontier == 1
    again = commit(stores(), 2, 22, epoch=2, keep=line[1])
    found = stores().chain(P)
    assert found is not None
    assert found.frontier == 2, "batch 3 of epoch 1 is not on the line"
    assert values(stores(), again) == [[0], [1], [22]]


def test_an_old_epoch_writes_nothing(stores: Callable[[], VersionStore]) -> None:
    stores().point(P, Pointer(Epoch(2), None))
    with pytest.raises(StaleEpoch, match=r"epoch 1 is over: O3\[0\] is in epoch 2"):
        commit(stores(), 0, 1)
    with pytest.raises(StaleEpoch):
        stores().point(P, Pointer(Epoch(1), None))
    found = stores().chain(P)
    assert found is not None
    assert not found.commits
    with pytest.raises(CheckFailed, match="no version"):
        stores().point(P, Pointer(Epoch(3), version(5)))


def test_what_nobody_needs_is_forgotten(stores: Callable[[], VersionStore], tmp_path: Path) -> None:
    stores().point(P, Pointer(Epoch(1), None))
    line = [commit(stores(), 0, 0)]
    for batch in range(1, 10):
        # Each state has the run of the batch before and its own.
        before = Commit(P, line[-1].id, None, 0, {"t": line[-1].segments["t"][-1:]})
        line.append(commit(stores(), batch, batch, keep=before))
    stores().forget(P, {version(4)}, BatchId(7))
    found = stores().chain(P)
    assert found is not None
    assert found.frontier == 9
    assert values(stores(), line[9]) == [[8], [9]]
    assert values(stores(), line[4]) == [[3], [4]], "a checkpoint's state stays"
    assert values(stores(), line[6]) is None
    assert stores().sent(line[6]) is None
    assert all(stores().sent(line[batch]) is not None for batch in (7, 8, 9))
    after = commit(stores(), 10, 10, keep=Commit(P, version(9), None, 0, {"t": line[9].segments["t"][-1:]}))
    assert values(stores(), after) == [[9], [10]]
    stores().drop(P)
    assert stores().chain(P) is None
    assert stores().load(line[9]) is None
    assert not list(tmp_path.glob("*/*"))


@pytest.mark.parametrize("kind", ["segments", "blocks", "commit", "pointer"])
@pytest.mark.parametrize("damage", ["cut", "flip", "gone"])
def test_a_damaged_file_counts_as_lost(kind: str, damage: str, tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    store.point(P, Pointer(Epoch(1), None))
    made = commit(store, 0, 1, 2, 3)
    path = next(path for path in tmp_path.glob("*/*") if path.name.endswith(kind))
    data = bytearray(path.read_bytes())
    if damage == "gone":
        path.unlink()
    else:
        data[len(data) // 2] ^= 1
        path.write_bytes(bytes(data[: len(data) // 2] if damage == "cut" else data))
    anew = DirectoryStore(tmp_path)
    line = anew.chain(P)
    if kind == "pointer":
        assert line is None
    elif kind == "commit":
        assert line is not None
        assert not line.commits
    else:
        found = anew.load(made) if kind == "segments" else anew.sent(made)
        assert found is None


def test_memory_stays_within_its_bound(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path, cache_bytes=10_000)
    store.point(P, Pointer(Epoch(1), None))
    made = commit(store, 0, *range(500))
    for batch in range(1, 10):
        made = commit(store, batch, *range(500), keep=made)
        assert store.cached_bytes <= 10_000
    found = values(store, made)
    assert found == [list(range(500))] * 10, "what fell out of the cache is mapped again"


def test_thin_files_are_written_again(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    store.point(P, Pointer(Epoch(1), None))
    large = pa.table({"n": list(range(200_000))})
    made = Commit(P, version(0), None, 0, {"t": (SegmentRef(FRESH, 0), SegmentRef(FRESH, 1))})
    kept = store.commit(made, Addition({"t": [large, run(1)]}))
    assert store.rewrite(kept) == set()
    thin = Commit(P, version(1), version(0), 0, {"t": kept.segments["t"][1:]})
    assert store.rewrite(thin) == kept.files


def test_a_version_that_another_process_has_dropped_is_committed_anew(tmp_path: Path) -> None:
    """Its first commit is in this process's memory, and not on the disk any more: it must not count."""
    one, other = DirectoryStore(tmp_path), DirectoryStore(tmp_path)
    one.point(P, Pointer(Epoch(1), None))
    first = commit(one, 0, 1, 2)
    other.drop(P)
    with pytest.raises(CheckFailed, match="has no version"):
        one.point(P, Pointer(Epoch(1), first.id))
    other.point(P, Pointer(Epoch(1), None))
    again = commit(one, 0, 1, 2)
    chain = other.chain(P)
    assert chain is not None
    assert chain.frontier == 0
    assert values(other, again) == [[1, 2]]


def test_runs_of_one_table_must_have_one_schema() -> None:
    data = encode_segments({"t": [run(1), run(2, 3)], "u": [pa.table({"x": ["é", None]})]})
    assert [found.num_rows for found in decode_segments(pa.py_buffer(data))] == [1, 2, 2]
    assert encode_segments({"t": [run(1), run(2, 3)], "u": [pa.table({"x": ["é", None]})]}) == data
    with pytest.raises(Exception, match="state table 't' changed from n int64 to n string"):
        encode_segments({"t": [run(1), pa.table({"n": ["a"]})]})


def test_an_image_is_a_base_and_changes() -> None:
    store = MemoryStore()
    store.point(P, Pointer(Epoch(1), None))
    first = commit(store, 0, 1, 2)
    second = commit(store, 1, 3, keep=first)
    third = Commit(P, version(2), second.id, 0, {"t": second.segments["t"][1:]})
    states = [store.load(one) or {} for one in (first, second, third)]
    base = take_snapshot(first, states[0], None, [block(0, 1), block(0)])
    change = take_snapshot(second, states[1], first)
    last = take_snapshot(third, states[2], second)
    assert [len(snapshot.segments) for snapshot in (base, change, last)] == [1, 1, 0]
    again = [decode_snapshot(encode_snapshot(snapshot)) for snapshot in (base, change, last)]
    assert [found["n"].to_pylist() for found in assemble(again)["t"]] == [[3]]
    assert [found["n"].to_pylist() for found in assemble(again[:2])["t"]] == [[1, 2], [3]]
    assert [one.row_count for one in again[0].outbox] == [1, 0]
    with pytest.raises(CheckFailed, match="does not follow"):
        assemble([again[0], again[2]])
    data = encode_snapshot(base)
    for cut in (0, 10, len(data) // 2, len(data) - 1):
        with pytest.raises(CheckFailed):
            decode_snapshot(data[:cut])


def test_a_snapshot_with_a_damaged_head_counts_as_lost() -> None:
    """Anything but `CheckFailed` ends the process that restores it, again and again: no earlier one would be taken."""
    store = MemoryStore()
    store.point(P, Pointer(Epoch(1), None))
    first = commit(store, 0, 1, 2)
    second = commit(store, 1, 3, keep=first)
    base = take_snapshot(first, store.load(first) or {}, None)
    data = encode_snapshot(take_snapshot(second, store.load(second) or {}, first))
    for at in range(SIZES.size + len(snapshot_head(base)) + 64):
        for flipped in (0x01, 0x10, 0x80, 0xFF):
            damaged = bytearray(data)
            damaged[at] ^= flipped
            with suppress(CheckFailed):
                assert assemble([base, decode_snapshot(bytes(damaged))])["t"][0]["n"].to_pylist() == [1, 2]


def test_what_a_dead_driver_had_not_forgotten_is_swept_away(tmp_path: Path) -> None:
    snapshot_store = DurableSnapshotStore(FileStorage(tmp_path))
    needed, mine = "run-1/O1-0/c1.0-9.2-d", "run-1/O1-0/c2.0-12.3-d"
    for name in ("run-1/O1-0/c1.0-5.1-d", needed, mine, "run-2/O1-0/c1.0-5.1-d"):
        snapshot_store.save(name, b"snapshot", epoch=1, durable=True)
    snapshot_store.sweep("run-1", {needed}, claim=2)
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert left == [needed, mine, "run-2/O1-0/c1.0-5.1-d"], (
        "other runs' snapshots are not ours, nor is what is being saved"
    )
    snapshot_store.sweep("run-3", set(), claim=1)


def test_a_durable_snapshot_is_read_back_before_it_counts() -> None:
    class Forgetful(MemoryStorage):
        def read(self, name: str) -> pa.Buffer | None:
            found = super().read(name)
            return None if found is None else found.slice(1)

    snapshot_store = DurableSnapshotStore(Forgetful())
    with pytest.raises(CheckFailed, match="does not read back as it was written"):
        snapshot_store.save("run-1/O1-0/c1.0-5.1-d", b"snapshot", epoch=1, durable=True)
    assert snapshot_store.saved("run-1/O1-0/c1.0-5.1-d") is None


def test_segments_in_several_record_batches_and_without_rows_can_be_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """More than 2 GiB of text in a column are several record batches, and a table without rows is none, for Arrow."""
    empty = run().cast(run(1).schema)
    found = decode_segments(pa.py_buffer(encode_segments({"t": [run(1), empty, run(2)]})))
    assert [one["n"].to_pylist() for one in found] == [[1], [], [2]]
    assert found[1].schema == run(1).schema
    plain = encode_segments({"t": [run(1), run(2, 3)]})
    monkeypatch.setattr(versions, "_batches", lambda segment: segment.to_batches(max_chunksize=2))
    assert encode_segments({"t": [run(1), run(2, 3)]}) == plain, "what fits is written as before"
    data = encode_segments({"t": [run(1), run(2, 3, 4, 5, 6)], "u": [pa.table({"x": ["a", "b", "c"]})]})
    found = decode_segments(pa.py_buffer(data))
    assert [one.to_pydict() for one in found] == [{"n": [1]}, {"n": [2, 3, 4, 5, 6]}, {"x": ["a", "b", "c"]}]
    snapshot = take_snapshot(
        Commit(P, version(0), None, 0, {"t": (SegmentRef(FRESH, 0), SegmentRef(FRESH, 1))}),
        {"t": (run(1, 2, 3), run(4))},
        None,
    )
    write_snapshot_file(snapshot, tmp_path / "file")
    written = (tmp_path / "file").read_bytes()
    assert written == encode_snapshot(snapshot)
    again = decode_snapshot(written)
    assert [one["n"].to_pylist() for one in again.segments.values()] == [[1, 2, 3], [4]]


def test_a_store_gives_back_a_state_without_rows(stores: Callable[[], VersionStore]) -> None:
    stores().point(P, Pointer(Epoch(1), None))
    made = Commit(P, version(0), None, 0, {"t": (SegmentRef(FRESH, 0),)})
    stores().commit(made, Addition({"t": [run(1).slice(0, 0)]}))
    chain = stores().chain(P)
    assert chain is not None
    assert chain.last is not None
    loaded = stores().load(chain.last)
    assert loaded is not None
    assert [one.num_rows for one in loaded["t"]] == [0]
