"""The journal of a node: a process that dies anywhere, a twin that lives on, a full disk, files mostly dead."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.ids import BatchId, Epoch, OperatorId, PartitionId
from holdfast.runtime.state import journal_frames, journal_store
from holdfast.runtime.state.journal_frames import encode_frame, read_frames
from holdfast.runtime.state.journal_index import JournalIndex, Place
from holdfast.runtime.state.journal_store import JournalStore, Superseded
from holdfast.runtime.state.state_files import AppendFile, StateFiles
from holdfast.runtime.state.store import FRESH, Addition, MemoryStore
from holdfast.runtime.state.versions import Commit, FileName, Pointer, SegmentRef, VersionId
from runtime import journal_processes as processes
from runtime.journal_processes import PARTITIONS, Step, count_calls, do, draw_steps, view

STEPS = 18
SEEDS = st.integers(0, 2**32)
SIZES = st.sampled_from([1, 6_000, 2**20])
"""Every record a file of its own; a file for some records, which are moved; one file."""


@settings(max_examples=40)
@given(seed=SEEDS, file_bytes=SIZES, place=st.floats(0, 1))
def test_a_process_dies_at_any_call(seed: int, file_bytes: int, place: float) -> None:
    steps = draw_steps(seed, STEPS)
    processes.dies_and_goes_on(steps, file_bytes, 1 + int(place * count_calls(steps, file_bytes)))


@settings(max_examples=40)
@given(seed=SEEDS, file_bytes=SIZES, place=st.floats(0, 1))
def test_a_twin_is_fenced_wherever_it_is(seed: int, file_bytes: int, place: float) -> None:
    steps = draw_steps(seed, STEPS)
    processes.twin_goes_on(steps, file_bytes, 1 + int(place * count_calls(steps, file_bytes)))


@settings(max_examples=40)
@given(seed=SEEDS, file_bytes=SIZES, at=st.integers(1, 8))
def test_a_twin_works_while_its_successor_starts(seed: int, file_bytes: int, at: int) -> None:
    processes.twin_works_during_start(draw_steps(seed, STEPS), file_bytes, at)


@settings(max_examples=40)
@given(seed=SEEDS, file_bytes=SIZES, place=st.floats(0, 1), long=st.integers(1, 60), then_dies=st.booleans())
def test_a_full_disk_is_reported_and_loses_nothing(
    seed: int, file_bytes: int, place: float, long: int, then_dies: bool
) -> None:
    steps = draw_steps(seed, STEPS)
    begin = int(place * count_calls(steps, file_bytes))
    processes.disk_is_full(steps, file_bytes, range(begin, begin + long), then_dies=then_dies)


def any_property_fails(seeds: range) -> bool:
    """Whether one of the properties above finds something wrong."""
    for seed in seeds:
        steps, file_bytes = draw_steps(seed, STEPS), [1, 6_000, 2**20][seed % 3]
        calls = count_calls(steps, file_bytes)
        try:
            for at in range(1 + seed % 3, calls + 1, 1 + calls // 8):
                processes.dies_and_goes_on(steps, file_bytes, at)
                processes.twin_goes_on(steps, file_bytes, at)
                processes.disk_is_full(steps, file_bytes, range(at, at + 9), then_dies=at % 2 == 0)
            for at in range(1, 9):
                processes.twin_works_during_start(steps, file_bytes, at)
        except (AssertionError, ValueError, KeyError):
            return True
    return False


def torn_tail_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(journal_frames, "is_whole", lambda head, body, check, head_check: True)


def body_not_compared(patch: pytest.MonkeyPatch) -> None:
    right = journal_frames.is_whole

    def head_alone(head: memoryview, body: memoryview, check: int, head_check: int) -> bool:
        return right(head, body, check, head_check) or len(body) > 0

    patch.setattr(journal_frames, "is_whole", head_alone)


def older_process_taken(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(journal_store, "newest_first", lambda names: sorted(names, key=lambda n: (n[:6], -int(n[7:13]))))


def twin_not_fenced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(JournalStore, "_check_newest", lambda self: None)


def twin_fenced_before_it_writes(patch: pytest.MonkeyPatch) -> None:
    right_put, right_check = JournalStore._put, JournalStore._check_newest

    def put(self: JournalStore, frame: object, length: int) -> None:
        right_check(self)
        right_put(self, frame, length)  # type: ignore[arg-type]

    patch.setattr(JournalStore, "_put", put)
    patch.setattr(JournalStore, "_check_newest", lambda self: None)


def reads_before_it_takes_its_number(patch: pytest.MonkeyPatch) -> None:
    take, recover = JournalStore._take_number, JournalStore._recover

    def early(self: JournalStore) -> int:
        self._newest = ""
        self.__dict__["found"] = recover(self)
        return take(self)

    patch.setattr(JournalStore, "_take_number", early)
    patch.setattr(JournalStore, "_recover", lambda self: self.__dict__["found"])


def goes_on_behind_a_torn_record(patch: pytest.MonkeyPatch) -> None:
    right = JournalStore._seal

    def seal(self: JournalStore) -> None:
        if self._size >= self._limit:
            right(self)

    patch.setattr(JournalStore, "_seal", seal)


def moved_after_it_is_removed(patch: pytest.MonkeyPatch) -> None:
    right = JournalStore._move

    def move(self: JournalStore, file: str) -> None:
        self._files.remove(self._directory / file)
        right(self, file)

    patch.setattr(JournalStore, "_move", move)


def index_without_the_data(patch: pytest.MonkeyPatch) -> None:
    right = JournalIndex.fields

    def fields(self: JournalIndex) -> list[dict[str, object]]:
        return [{**one, "data": one["data"][-1:]} for one in right(self)]

    patch.setattr(JournalIndex, "fields", fields)


def forgets_in_memory_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(JournalStore, "_note", lambda self, record: None)


BUGS = [
    torn_tail_believed,
    body_not_compared,
    older_process_taken,
    twin_not_fenced,
    twin_fenced_before_it_writes,
    reads_before_it_takes_its_number,
    goes_on_behind_a_torn_record,
    moved_after_it_is_removed,
    index_without_the_data,
    forgets_in_memory_alone,
]


@pytest.mark.parametrize("plant", BUGS, ids=lambda plant: plant.__name__)
def test_planted_bugs_are_found(plant: object, monkeypatch: pytest.MonkeyPatch) -> None:
    assert callable(plant)
    plant(monkeypatch)
    assert any_property_fails(range(12))


def test_nothing_is_found_without_a_bug() -> None:
    assert not any_property_fails(range(3))


# -- one thing at a time -----------------------------------------------------------------------------------------------


def filled(store: JournalStore, count: int) -> MemoryStore:
    """Do the same with a store and with memory."""
    model = MemoryStore()
    for number in range(count):
        for one in (store, model):
            do(one, Step("commit", PARTITIONS[number % 2], number))
    return model


def test_a_file_is_believed_up_to_where_it_is_cut(tmp_path: Path) -> None:
    store = JournalStore(tmp_path)
    filled(store, 7)
    store.close()
    path = next(tmp_path.glob("*.journal"))
    data = path.read_bytes()
    ends = [frame.end for frame in read_frames(data)]
    assert ends[-1] == len(data)
    views = []
    for end in ends:
        path.write_bytes(data[:end])
        views.append(view(JournalStore(tmp_path)))
    for cut in range(0, len(data), 64):
        path.write_bytes(data[:cut])
        whole = sum(end <= cut for end in ends)
        assert view(JournalStore(tmp_path)) in ([views[whole - 1]] if whole else [view(MemoryStore())])


@pytest.mark.parametrize("place", [0.1, 0.5, 0.9])
def test_behind_a_changed_byte_nothing_is_believed(place: float) -> None:
    frames = [encode_frame({"do": "drop", "partition": f"O3[{number}]"}, [b"abc" * 20]) for number in range(5)]
    data = bytearray(b"".join(bytes(piece) for pieces, _, _ in frames for piece in pieces))
    at = int(place * len(data)) // 64 * 64 + 20
    data[at] ^= 1
    assert len(list(read_frames(bytes(data)))) == at // (len(data) // 5)


def test_a_disk_that_cannot_be_read_is_no_empty_disk(tmp_path: Path) -> None:
    class Unreadable(StateFiles):
        def read(self, path: Path) -> bytes:
            raise OSError(errno.EIO, "Input/output error")

    store = JournalStore(tmp_path)
    model = filled(store, 5)
    with pytest.raises(OSError, match="Input/output error"):
        JournalStore(tmp_path, files=Unreadable())
    assert view(JournalStore(tmp_path)) == view(model)


def test_files_that_are_mostly_dead_are_written_again(tmp_path: Path) -> None:
    """A large state that stays, beside many batches that do not: the disk holds a small multiple of what is needed."""
    store, p = JournalStore(tmp_path, file_bytes=20_000), PARTITIONS[0]
    store.point(p, Pointer(Epoch(1), None))
    large = pa.table({"n": list(range(5_000))})
    before = store.commit(
        Commit(p, VersionId(BatchId(0), Epoch(1)), None, 0, {"large": (SegmentRef(FRESH, 0),)}),
        Addition({"large": [large]}),
    )
    for batch in range(1, 200):
        version = VersionId(BatchId(batch), Epoch(1))
        lists = {"large": before.segments["large"], "small": (SegmentRef(FRESH, 0),)}
        small = pa.table({"n": list(range(batch, batch + 100))})
        before = store.commit(Commit(p, version, before.id, 0, lists), Addition({"small": [small]}))
        if batch % 4 == 0:
            store.forget(p, {version}, BatchId(batch))
    there = sum(path.stat().st_size for path in tmp_path.glob("*.journal"))
    assert there == store.file_bytes
    assert there < 3 * large.nbytes + 3 * 20_000
    for one in (store, JournalStore(tmp_path)):
        state = one.load(before)
        assert state is not None
        assert state["large"][0].equals(large)
        assert state["small"][0].equals(small)


def test_the_newest_file_stays_also_where_it_has_no_data_and_the_disk_is_full(tmp_path: Path) -> None:
    """It says what there is: without it the next process would go on from a batch long ago."""

    class Filling(StateFiles):
        full = False

        def begin(self, path: Path) -> AppendFile:
            if self.full:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().begin(path)

    files = Filling()
    store, (p, q) = JournalStore(tmp_path, files=files, file_bytes=6_000), PARTITIONS[:2]
    for one in (p, q):
        store.point(one, Pointer(Epoch(1), None))
    for batch, rows in enumerate((400, 10)):
        parent = None if batch == 0 else VersionId(BatchId(0), Epoch(1))
        version = VersionId(BatchId(batch), Epoch(1))
        table = pa.table({"n": list(range(rows))})
        store.commit(Commit(p, version, parent, 0, {"t": (SegmentRef(FRESH, 0),)}), Addition({"t": [table]}))
    store.forget(p, set(), BatchId(1))
    last: VersionId | None = None
    while len(list(tmp_path.glob("*.journal"))) < 2 or store._size < store._limit:
        version = VersionId(BatchId(0 if last is None else last.batch + 1), Epoch(1))
        store.commit(Commit(q, version, last, 0, {}), Addition())
        last = version
    assert last is not None
    files.full = True
    store.forget(q, set(), last.batch)
    files.full = False
    found = JournalStore(tmp_path).chain(q)
    assert found is not None
    assert found.frontier == last.batch


def test_the_process_of_an_earlier_number_ends(tmp_path: Path) -> None:
    first = JournalStore(tmp_path)
    model = filled(first, 4)
    second = JournalStore(tmp_path)
    assert (first.process, second.process) == (1, 2)
    with pytest.raises(Superseded, match="process 2 of the node has taken over from process 1"):
        filled(first, 1)
    assert view(second) == view(model)
    do(second, Step("commit", PARTITIONS[0], 9))
    do(model, Step("commit", PARTITIONS[0], 9))
    assert view(JournalStore(tmp_path)) == view(model), "what the first one wrote last was never reported"


def test_a_file_of_very_many_small_commits_is_written_again(tmp_path: Path) -> None:
    """More pieces than one call takes, and one of them is lost: its file goes, and what else was in it stays."""
    store, model = JournalStore(tmp_path, cache_bytes=0), MemoryStore()
    many = [PartitionId(OperatorId("O3"), index) for index in range(150)]
    for one in (store, model):
        for p in many:
            do(one, Step("commit", p, 1))
        for number in (1, 2):
            for p in many:
                do(one, Step("commit", p, number))
    store._begin_file()
    (sealed,) = store._sizes
    store._index.partitions[many[0]].data[FileName("lost")] = Place("lost.journal", 0, 9)
    store._index.live["lost.journal"] = 9
    store._sizes["lost.journal"] = 9
    for file in (sealed, "lost.journal"):
        store._move(file)
    assert not store._sizes
    assert store._index.place(many[0], FileName("lost")) is None
    anew = JournalStore(tmp_path)
    for p in many:
        for one in (store, anew):
            chain, right = one.chain(p), model.chain(p)
            assert chain is not None
            assert chain.last is not None
            assert right is not None
            assert right.last is not None
            assert processes.contents(one, chain.last) == processes.contents(model, right.last)


def test_a_write_may_stop_half_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.writev
    monkeypatch.setattr(os, "writev", lambda handle, pieces: real(handle, [pieces[0][: 1 + len(pieces[0]) // 2]]))
    file = AppendFile(tmp_path / "file")
    file.append([b"abcdefg", memoryview(b""), b"h", b"ijk"])
    file.close()
    assert (tmp_path / "file").read_bytes() == b"abcdefghijk"
