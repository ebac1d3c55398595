"""Parquet sinks: whole objects or none, each once, whoever creates them and however late."""

from __future__ import annotations

import pickle
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterable
from itertools import combinations
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from holdfast import Application, tumbling
from holdfast.errors import BadInput
from holdfast.ids import BatchId, Epoch, OperatorId, PartitionId
from holdfast.recovery.checkpoints import NOTHING
from holdfast.runtime import MemorySink, OutputKey, ParquetSink
from holdfast.runtime.blocks import SINK, Block, Edge, Header
from holdfast.runtime.coordinator.outputs import Outputs
from holdfast.runtime.io.parquet_sink import ParquetStager
from holdfast.runtime.io.sinks import StagedRows
from holdfast.runtime.io.unread_records import UnreadRecords
from holdfast.runtime.program import Program
from holdfast.storage.files import FileStorage
from holdfast.storage.memory import MemoryStorage
from holdfast.storage.storage import Storage, open_storage
from holdfast_lab.s3_server import S3Server

S = PartitionId.parse("s[0]")
FIRST = "s-00000-0000000000-g0-r0.parquet"

T = TypeVar("T")


def key(batch: int, revision: int = 0, generation: int = 0) -> OutputKey:
    return OutputKey(S, BatchId(batch), revision, generation)


def table(*numbers: int) -> pa.Table:
    return pa.table({"n": list(numbers)})


def numbers(sink: ParquetSink) -> list[int]:
    found = sink.rows()
    return [] if found is None else found["n"].to_pylist()


def shown(storage: Storage) -> list[str]:
    """Return what readers of Parquet see."""
    return [name for name in storage.list() if not name.startswith("_")]


def test_a_folder_with_files_of_others_is_refused(tmp_path: Path) -> None:
    pq.write_table(table(1), tmp_path / "by_hand.parquet")
    with pytest.raises(BadInput, match=r"no run of Holdfast has written \(by_hand\.parquet\).*directory of its own"):
        ParquetSink(tmp_path).begin("web-1", Epoch(1))
    (tmp_path / "by_hand.parquet").rename(tmp_path / "_by_hand.parquet")  # no reader takes it
    (tmp_path / "notes.txt").write_text("")
    ParquetSink(tmp_path).begin("web-1", Epoch(1))


def test_records_that_cannot_be_read_are_reported() -> None:
    lines: list[str] = []
    sink = UnreadRecords(MemoryStorage(), OperatorId("payments"), lines.append)
    letters = [pa.table({"error": [f"'{batch}' is not double"] * 4}) for batch in range(30)]
    for batch, rows in enumerate(letters):
        assert sink.publish(key(batch), rows, Epoch(1))
        assert not sink.publish(key(batch), rows, Epoch(1)), "after a failure they come again"
    assert sink.count() == 120
    totals = [line.partition(" so far")[0] for line in lines]
    assert totals == ["source payments: 4 records", "source payments: 40 records"]
    assert "one of them because '0' is not double; they are in memory:" in lines[0]


@pytest.fixture
def bucket(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """A place of its own on an object store."""
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    return f"{s3.url}/sink-{secrets.token_hex(6)}"


@pytest.fixture(params=["memory", "files", "objects"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "memory":
        return MemoryStorage()
    return open_storage(tmp_path / "out" if request.param == "files" else request.getfixturevalue("bucket"))


class Watched:
    """Storage that lets a test see every call before it is made."""

    def __init__(self, inner: Storage, around: Callable[[str, Callable[[], object]], object]) -> None:
        self._inner, self._around, self.url = inner, around, inner.url

    def _call(self, kind: str, call: Callable[[], T]) -> T:
        found: list[T] = []
        self._around(kind, lambda: found.append(call()))
        return found[0]

    def create(self, name: str, data: bytes | memoryview | pa.Buffer) -> bool:
        return self._call("create", lambda: self._inner.create(name, data))

    def read(self, name: str) -> pa.Buffer | None:
        return self._call("read", lambda: self._inner.read(name))

    def list(self, prefix: str = "", *, after: str = "") -> list[str]:
        return self._call("list", lambda: self._inner.list(prefix, after=after))

    def delete(self, names: Iterable[str]) -> None:
        self._call("delete", lambda: self._inner.delete(names))

    def within(self, folder: str) -> Storage:
        return Watched(self._inner.within(folder), self._around)


# -- once -----------------------------------------------------------------------------------------------------------


def test_an_output_is_one_object_that_is_created_once(storage: Storage) -> None:
    sink, other = ParquetSink(storage), ParquetSink(storage)
    assert (sink.rows(), sink.count()) == (None, 0)
    assert sink.publish(key(0), table(1, 2), Epoch(1))
    assert not sink.publish(key(0), table(1, 2), Epoch(1))
    assert not other.publish(key(0), table(1, 2), Epoch.of(2, 1)), "nor by another"
    assert other.publish(key(1), table(3), Epoch.of(2, 1))
    assert sink.publish(key(2), table(4), Epoch.of(1, 1)), "a driver that is over creates what the next one would"
    assert shown(storage) == [FIRST, FIRST.replace("0-g", "1-g"), FIRST.replace("0-g", "2-g")]
    assert numbers(sink) == numbers(other) == [1, 2, 3, 4]
    assert sink.count() == 4


def test_one_of_many_that_publish_at_once_is_the_first(storage: Storage) -> None:
    together = threading.Barrier(8)
    new: list[bool] = []

    def publish() -> None:
        sink = ParquetSink(storage)
        together.wait()
        new.extend([sink.publish(key(batch), table(batch), Epoch(1)) for batch in range(5)])

    threads = [threading.Thread(target=publish) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(new) == 5
    assert numbers(ParquetSink(storage)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("published", [True, False])
def test_a_writer_that_was_frozen_changes_nothing(published: bool) -> None:
    """It stops before its create, and goes on when another driver has the run."""
    storage = MemoryStorage()
    reached, goes_on = threading.Event(), threading.Event()
    new: list[bool] = []

    def freeze(kind: str, call: Callable[[], object]) -> None:
        if kind == "create":
            reached.set()
            assert goes_on.wait(30)
        call()

    frozen = ParquetSink(Watched(storage, freeze))
    thread = threading.Thread(target=lambda: new.append(frozen.publish(key(0), table(1), Epoch.of(1, 1))))
    thread.start()
    assert reached.wait(30)
    following = ParquetSink(storage)
    following.begin("run-1", Epoch.of(2, 1))
    if published:
        assert following.publish(key(0), table(1), Epoch.of(2, 1))
    goes_on.set()
    thread.join()
    assert new == [not published]
    assert following.publish(key(0), table(1), Epoch.of(2, 1)) is False
    assert numbers(following) == [1]


def test_an_output_costs_one_create_and_no_listing() -> None:
    calls: list[str] = []

    def note(kind: str, call: Callable[[], object]) -> None:
        calls.append(kind)
        call()

    sink = ParquetSink(Watched(MemoryStorage(), note))
    assert calls == [], "nothing is done before"
    for batch in range(3):
        sink.publish(key(batch), table(1), Epoch(1))
    assert calls == ["create", "read"] * 3


def test_readers_see_one_table(tmp_path: Path) -> None:
    sink = ParquetSink(str(tmp_path))
    sink.begin("run-1", Epoch.of(1, 1))
    names = ["s", "a-b", "_hidden", "x-00001-0000000002-g3-r4"]
    for batch, name in enumerate(names):
        query = PartitionId(OperatorId(name), 11)
        assert sink.publish(OutputKey(query, BatchId(batch)), table(batch), Epoch(1))
        assert not sink.publish(OutputKey(query, BatchId(batch)), table(batch), Epoch(1))
    assert numbers(sink) == [0, 1, 2, 3]
    plain = pyarrow.dataset.dataset(tmp_path, format="parquet").to_table()
    assert sorted(plain["n"].to_pylist()) == [0, 1, 2, 3], "also of an operator whose name begins with _"
    assert sorted(pq.read_table(tmp_path)["n"].to_pylist()) == [0, 1, 2, 3]


def test_rows_come_by_batch_then_by_partition(storage: Storage) -> None:
    sink = ParquetSink(storage)
    for number, (index, batch, generation) in enumerate([(10, 0, 0), (2, 0, 1), (2, 0, 0), (10, 1, 1), (2, 1, 1)]):
        at = OutputKey(PartitionId(OperatorId("s"), index), BatchId(batch), 0, generation)
        assert sink.publish(at, table(number), Epoch(1))
    assert numbers(sink) == [2, 1, 0, 4, 3]
    assert str(key(3)) == "s[0], batch 3, revision 0"
    assert str(key(3, 1, 2)) == "s[0], batch 3, revision 1, generation 2"


def test_a_disk_that_is_full_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = ParquetSink(tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(OSError, match="No space"):
            sink.publish(key(0), table(1), Epoch(1))
    assert sink.rows() is None
    assert not list(tmp_path.glob("*.parquet"))
    assert sink.publish(key(0), table(1), Epoch(1))


# -- whose it is ----------------------------------------------------------------------------------------------------


def test_a_directory_belongs_to_one_run(storage: Storage) -> None:
    """A second run counts its batches from 0 as well: its rows would pass for written already."""
    first = ParquetSink(storage)
    first.begin("run-1", Epoch.of(1, 1))
    assert first.publish(key(0), table(1), Epoch.of(1, 1))
    with pytest.raises(BadInput, match=r"has rows of another run \(run-1\); give this run an output directory"):
        ParquetSink(storage).begin("run-2", Epoch.of(1, 1))
    following = ParquetSink(storage)
    following.begin("run-1", Epoch.of(2, 1))
    assert not following.publish(key(0), table(1), Epoch.of(2, 1)), "it was here already"
    assert numbers(following) == [1]


def test_of_two_runs_that_begin_at_once_one_is_refused() -> None:
    storage = MemoryStorage()

    def other_begins(kind: str, call: Callable[[], object]) -> None:
        if kind == "create":
            storage.create("_holdfast/run.json", b'{"run": "run-2"}')
        call()

    with pytest.raises(BadInput, match=r"another run \(run-2\)"):
        ParquetSink(Watched(storage, other_begins)).begin("run-1", Epoch.of(1, 1))


def test_outputs_that_nothing_names_are_refused(storage: Storage) -> None:
    storage.create("somebody-elses.parquet", b"x")
    ParquetSink(storage.within("mine")).begin("run-1", Epoch.of(1, 1))
    ParquetSink(storage).publish(key(0), table(1), Epoch(1))
    with pytest.raises(BadInput, match=r"nothing says of which run .*; give this run an output directory of its own"):
        ParquetSink(storage).begin("run-1", Epoch.of(1, 1))
    storage.create("_holdfast/claim", b'{"claim": 1, "run": "run-1"}')
    with pytest.raises(BadInput, match=r"format of an earlier version of Holdfast; give this run"):
        ParquetSink(storage).begin("run-1", Epoch.of(1, 1))
    assert storage.read("_holdfast/run.json") is None, "a directory that is refused stays as it was"


# -- revisions ------------------------------------------------------------------------------------------------------


def test_a_higher_revision_replaces_and_a_lower_one_comes_too_late(storage: Storage) -> None:
    sink, other = ParquetSink(storage), ParquetSink(storage)
    for number in range(3):
        sink.publish(key(number), table(1, 2), Epoch(1))
    assert sink.publish(key(1, 1), table(9), Epoch(1))
    assert not sink.publish(key(1, 1), table(9), Epoch(1))
    assert (sink.count(), numbers(sink)) == (5, [1, 2, 9, 1, 2])
    assert not other.publish(key(1), table(1, 2), Epoch(1)), "its name is free again, and it does not count"
    assert other.publish(key(1, 3), table(7), Epoch(1))
    assert not sink.publish(key(1, 2), table(8), Epoch(1))
    assert sink.publish(key(1, 0, generation=1), table(5), Epoch(1)), "another layout's is another output"
    assert [name for name in shown(storage) if "-0000000001-" in name] == [
        "s-00000-0000000001-g0-r3.parquet",
        "s-00000-0000000001-g1-r0.parquet",
    ]
    assert numbers(sink) == [1, 2, 7, 5, 1, 2]


class Turns:
    """Lets two writers make their calls in a given order."""

    def __init__(self, order: Iterable[int]) -> None:
        self._left, self._free = deque(order), threading.Condition()

    def storage(self, inner: Storage, who: int) -> Storage:
        def around(kind: str, call: Callable[[], object]) -> None:
            with self._free:
                assert self._free.wait_for(lambda: not self._left or self._left[0] == who, 30)
                if self._left:
                    self._left.popleft()
                call()
                self._free.notify_all()

        return Watched(inner, around)

    def end(self, who: int) -> None:
        with self._free:
            self._left = deque(one for one in self._left if one != who)
            self._free.notify_all()


@pytest.mark.parametrize("revision", [0, 1])
@pytest.mark.parametrize("there", [True, False])
def test_in_whatever_order_two_revisions_come_the_higher_one_stays(revision: int, there: bool) -> None:
    calls = 5
    for mine in combinations(range(2 * calls), calls):
        storage = MemoryStorage()
        if there:
            ParquetSink(storage).publish(key(0, revision), table(1), Epoch(1))
        turns = Turns(0 if at in mine else 1 for at in range(2 * calls))

        def publish(who: int, turns: Turns = turns, storage: Storage = storage) -> None:
            ParquetSink(turns.storage(storage, who)).publish(key(0, revision + who), table(1 + who), Epoch(1))
            turns.end(who)

        threads = [threading.Thread(target=publish, args=[who]) for who in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert shown(storage) == [f"s-00000-0000000000-g0-r{revision + 1}.parquet"], mine


def test_what_a_late_writer_left_when_it_died_goes_at_the_next_start(storage: Storage) -> None:
    class Killed(BaseException):
        pass

    sink = ParquetSink(storage)
    sink.begin("run-1", Epoch.of(1, 1))
    sink.publish(key(0), table(1), Epoch(1))
    sink.publish(key(0, 1), table(2), Epoch(1))

    def die(kind: str, call: Callable[[], object]) -> None:
        if kind != "create":
            raise Killed
        call()

    with pytest.raises(Killed):
        ParquetSink(Watched(storage, die)).publish(key(0), table(1), Epoch(1))
    assert len(shown(storage)) == 2
    assert (numbers(sink), sink.count()) == ([2], 1), "it is passed over"
    ParquetSink(storage).begin("run-1", Epoch.of(2, 1))
    assert shown(storage) == ["s-00000-0000000000-g0-r1.parquet"]


def test_a_revision_that_comes_while_rows_are_read_is_seen_whole() -> None:
    storage = MemoryStorage()
    for batch in range(2):
        ParquetSink(storage).publish(key(batch), table(batch), Epoch(1))
    reads: list[str] = []

    def replace(kind: str, call: Callable[[], object]) -> None:
        if kind == "read":
            reads.append(kind)
            if len(reads) == 2:
                ParquetSink(storage).publish(key(1, 1), table(9), Epoch(1))
        call()

    assert numbers(ParquetSink(Watched(storage, replace))) == [0, 9]


# -- rows that nodes write ------------------------------------------------------------------------------------------


def begun(place: Path | str, start: str) -> tuple[ParquetSink, ParquetStager]:
    """Return a sink of a driver that has begun, and what its nodes write with."""
    sink, before = ParquetSink(place), open_storage(place).list()
    stager = sink.stager(start)
    assert stager is not None
    assert open_storage(place).list() == before, "nothing is written before"
    sink.begin("run-1", Epoch.of(1, 1))
    sent = pickle.loads(pickle.dumps(stager))
    assert isinstance(sent, ParquetStager)
    return sink, sent


def test_what_a_node_wrote_is_the_output(tmp_path: Path) -> None:
    sink, stager = begun(tmp_path, "first-1")
    staged = stager.stage(key(0), table(1, 2))
    assert staged == StagedRows(f"{tmp_path}/{FIRST}", 2)
    assert numbers(sink) == [1, 2], "it is there before the driver hears of it"
    assert sink.adopt(key(0), staged, Epoch(1))
    assert stager.stage(key(0), table(1, 2)) == staged, "once more, it is what it was"
    assert not sink.publish(key(0), table(1, 2), Epoch(1))
    assert stager.stage(key(0, 1), table(4)) == StagedRows(f"{tmp_path}/{FIRST.replace('r0', 'r1')}", 1)
    assert numbers(sink) == [4], "a later revision holds"


def test_nodes_write_to_an_object_store(bucket: str) -> None:
    sink, stager = begun(bucket, "objects-1")
    assert stager.stage(key(0), table(1, 2)) == StagedRows(f"{bucket}/{FIRST}", 2)
    assert isinstance(stager.stage(key(0), table(1, 2)), StagedRows)
    assert not ParquetSink(bucket).publish(key(0), table(1, 2), Epoch(1))
    assert (numbers(sink), sink.count()) == ([1, 2], 2)
    assert "is not shared" in str(ParquetStager(bucket, "objects-2").stage(key(1), table(3)))
    sink.end_staging()
    assert open_storage(bucket).list("_holdfast/") == ["_holdfast/run.json"]


def test_a_node_of_a_driver_that_is_over_creates_what_the_next_one_would(tmp_path: Path) -> None:
    _, stager = begun(tmp_path, "second-1")
    assert isinstance(stager.stage(key(0), table(1)), StagedRows)
    following, next_stager = begun(tmp_path, "second-2")
    following.sweep_staged()
    assert [path.name for path in (tmp_path / "_holdfast" / "starts").iterdir()] == ["second-2"]
    assert isinstance(stager.stage(key(1), table(2)), StagedRows)
    assert isinstance(next_stager.stage(key(1), table(2)), StagedRows)
    assert numbers(following) == [1, 2]
    following.end_staging()
    assert not list((tmp_path / "_holdfast" / "starts").iterdir())


def test_a_node_that_does_not_share_the_directory_leaves_the_rows_to_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "node" / "out"
    line = f"FileNotFoundError: {elsewhere} is not shared with this node"
    assert ParquetStager(str(elsewhere), "third-1").stage(key(0), table(1)) == line
    assert not elsewhere.exists()
    begun(elsewhere, "third-0")
    assert ParquetStager(str(elsewhere), "third-1").stage(key(0), table(1)) == line, "its own folder of that name"
    sink, stager = begun(tmp_path / "out", "third-1")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        assert "No space left" in str(stager.stage(key(0), table(1)))
    odd = pa.table({"n": pa.array([{}], pa.struct([]))})
    assert "Parquet" in str(stager.stage(key(0), odd)), "Parquet has no such type"
    assert numbers(sink) == []
    assert not list((tmp_path / "out").glob("*.parquet"))
    assert isinstance(stager.stage(key(0), table(1)), StagedRows), "what failed is tried again"


def test_nodes_write_only_what_the_sink_would_write(tmp_path: Path) -> None:
    class Masked(ParquetSink):
        def publish(self, key: OutputKey, rows: pa.Table, epoch: Epoch) -> bool:
            return super().publish(key, rows.drop_columns(["secret"]), epoch)

    assert Masked(tmp_path).stager("start") is None, "its own publish would be passed over"
    assert ParquetSink(MemoryStorage()).stager("start") is None, "nodes have a memory of their own"
    assert not list(tmp_path.iterdir())


def test_tidying_never_ends_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(tmp_path, "fourth-1")
    sink, _ = begun(tmp_path, "fourth-2")

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(FileStorage, "delete", refused)
        sink.sweep_staged()
        sink.end_staging()
    assert len(list((tmp_path / "_holdfast" / "starts").iterdir())) == 2


def test_blocks_without_rows_are_out_with_what_nodes_wrote(tmp_path: Path) -> None:
    class Swept(ParquetSink):
        gone = False

        def adopt(self, key: OutputKey, staged: StagedRows, epoch: Epoch) -> bool:
            if self.gone:
                raise FileNotFoundError(staged.place)
            return super().adopt(key, staged, epoch)

    app = Application("x")
    source = app.source("s", schema={"n": "int64", "at": "double"}, event_time="at")
    source.window(tumbling(1)).count(id="c").output()
    program, query, sink = Program(app), PartitionId(OperatorId("c"), 0), Swept(tmp_path)
    outputs = Outputs(program, {OperatorId("c"): sink}, lambda operator, feed: MemorySink())
    stager = sink.stager("fifth-1")
    assert stager is not None
    outputs.begin("run-1", Epoch.of(1, 1))

    def block(batch: int) -> Block:
        edge = Edge(query.operator, SINK)
        return Block(Header(edge, query, PartitionId(SINK, 0), BatchId(batch), Epoch(1), 0))

    def staged(batch: int, *numbers: int) -> StagedRows:
        found = stager.stage(OutputKey(query, BatchId(batch)), table(*numbers))
        assert isinstance(found, StagedRows)
        return found

    written = {(query, BatchId(0)): staged(0, 1, 2), (query, BatchId(2)): staged(2, 3)}
    done = outputs.publish([block(0), block(1), block(2)], {query: BatchId(-1)}, {query: NOTHING}, Epoch(1), written)
    assert done.out == [(query, 0, 2), (query, 1, 0), (query, 2, 1)], "a batch without rows is out too"
    assert numbers(sink) == [1, 2, 3]
    sink.gone = True
    gone = {(query, BatchId(3)): StagedRows("gone", 1)}
    swept = outputs.publish([block(3), block(4)], done.reached, {query: NOTHING}, Epoch(1), gone)
    assert (swept.out, swept.reached, swept.problem) == ([], {}, None), "it is not out, and comes again"
