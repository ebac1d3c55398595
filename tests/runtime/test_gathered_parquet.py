"""Gathered Parquet outputs: each row once for every reader, whatever fails, dies or is frozen at whatever call."""

from __future__ import annotations

import contextlib
import json
import math
import random
import secrets
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from holdfast import Application
from holdfast.errors import BadInput
from holdfast.ids import BatchId, Epoch, PartitionId
from holdfast.runtime.coordinator import outputs
from holdfast.runtime.coordinator.parking import ErrorSettings
from holdfast.runtime.in_process import InProcess
from holdfast.runtime.io import gathered_files, gathered_folders
from holdfast.runtime.io.gathered_files import Content, content_of
from holdfast.runtime.io.gathered_parquet import GatheredParquetSink, GatheredStager
from holdfast.runtime.io.gathered_reading import see
from holdfast.runtime.io.named_sinks import parquet
from holdfast.runtime.io.parquet_sink import ParquetSink, reached
from holdfast.runtime.io.sinks import Gathered, OutputKey, StagedRows
from holdfast.storage.files import FileStorage
from holdfast.storage.memory import MemoryStorage
from holdfast.storage.storage import Storage, open_storage
from holdfast_lab.s3_server import S3Server

S = PartitionId.parse("s[0]")
T = TypeVar("T")
BATCHES = 6
GOLDEN = Path(__file__).parent.parent / "data" / "gathered" / "2026-11"
EMPTY = 2
"""The batch that has no rows."""


def key(batch: int, generation: int = 0) -> OutputKey:
    return OutputKey(S, BatchId(batch), generation=generation)


def rows_of(batch: int) -> pa.Table:
    return pa.table({"n": [10 * batch, 10 * batch + 1], "day": ["a", "b"] if batch % 2 else ["a", None]})


def all_rows(batches: Iterable[int]) -> list[int]:
    return sorted(n for batch in batches if batch != EMPTY for n in (10 * batch, 10 * batch + 1))


def end(sink: GatheredParquetSink, through: int, generation: int = 0) -> None:
    flush(sink, through, math.inf, generation)


def flush(sink: GatheredParquetSink, through: int, now: float, generation: int = 0) -> None:
    sink.flush(Gathered({S: BatchId(through)}, generation, now), Epoch(1))
    while sink._round is not None:
        assert sink.due(-math.inf), "each call publishes one group"
        sink.flush(Gathered({S: BatchId(through)}, generation, now), Epoch(1))


def shown(storage: Storage) -> list[str]:
    """Return what readers of Parquet see."""
    return [name for name in storage.list() if not name.startswith("_")]


class Killed(BaseException):
    """A driver ends at once."""


class World:
    """A folder, those who read it after every call that changes it, and what drivers have acknowledged."""

    def __init__(self, storage: Storage, partition_by: tuple[str, ...]) -> None:
        self.storage, self.partition_by = storage, partition_by
        self.published = -1
        self._known: dict[str, list[int]] = {}

    def _numbers(self, name: str) -> list[int]:
        data = self.storage.read(name)
        assert data is not None
        if name not in self._known:
            self._known[name] = pq.ParquetFile(pa.BufferReader(data)).read()["n"].to_pylist()
        return self._known[name]

    def look(self) -> None:
        plain = [n for name in shown(self.storage) for n in self._numbers(name)]
        assert len(plain) == len(set(plain)), "a plain reader sees a row twice"
        seen = see(self.storage)
        ours = [n for name in (*seen.files, *seen.staged) for n in self._numbers(name)]
        assert len(ours) == len(set(ours)), "a reader of everything sees a row twice"
        assert set(plain) <= set(all_rows(range(BATCHES)))
        assert set(all_rows(range(self.published + 1))) <= set(ours), "a row that was out is gone"

    def drive(self, storage: Storage, *, through: int = BATCHES - 1, first: int | None = None) -> None:
        """Run a driver: it begins where the progress is, and publishes twice."""
        sink = GatheredParquetSink(storage, 60, partition_by=self.partition_by)
        sink.begin("run", Epoch(1))
        start = self.published if first is None else first
        if sink.due(0.0):
            flush(sink, start, 0.0)
        for batch in range(start + 1, through + 1):
            if batch != EMPTY:
                sink.publish(key(batch), rows_of(batch), Epoch(1))
            self.published = max(self.published, batch)
            if batch == BATCHES // 2:
                assert not sink.due(1.0)
                assert sink.due(61.0)
                flush(sink, batch, 61.0)
        end(sink, through)


class Broken:
    """A driver's view of a storage, in which something happens at one call."""

    def __init__(
        self, inner: Storage, at: int, event: Callable[[Callable[[], object], bool], object], look: Callable[[], object]
    ) -> None:
        """`event` gets the call, which it may make, and whether it is a listing."""
        self._inner, self._at, self._event, self._look = inner, at, event, look
        self.calls, self.url = 0, inner.url

    def _call(self, call: Callable[[], T], *, lists: bool = False, changes: bool = False) -> T:
        self.calls += 1
        found = self._event(call, lists) if self.calls == self._at + 1 else call()
        if changes:
            self._look()
        return found  # type: ignore[return-value]

    def create(self, name: str, data: bytes | memoryview | pa.Buffer) -> bool:
        return self._call(lambda: self._inner.create(name, data), changes=True)

    def read(self, name: str) -> pa.Buffer | None:
        return self._call(lambda: self._inner.read(name))

    def list(self, prefix: str = "", *, after: str = "") -> list[str]:
        return self._call(lambda: self._inner.list(prefix, after=after), lists=True)

    def delete(self, names: Iterable[str]) -> None:
        for name in names:  # one after the other
            self._call(lambda name=name: self._inner.delete([name]), changes=True)  # type: ignore[misc]

    def within(self, folder: str) -> Storage:
        raise NotImplementedError


def events(world: World, seed: int) -> dict[str, Callable[[Callable[[], object], bool], object]]:
    """Return what may happen at a call."""
    draw = random.Random(seed)

    def died_before(call: Callable[[], object], lists: bool) -> object:
        raise Killed

    def died_after(call: Callable[[], object], lists: bool) -> object:
        call()
        raise Killed

    def failed_before(call: Callable[[], object], lists: bool) -> object:
        raise OSError("away")

    def failed_after(call: Callable[[], object], lists: bool) -> object:
        call()
        raise OSError("the answer was lost")

    def frozen_before(call: Callable[[], object], lists: bool) -> object:
        world.drive(Broken(world.storage, -1, died_before, world.look))
        return call()

    def frozen_within(call: Callable[[], object], lists: bool) -> object:
        before = call()
        other = Broken(world.storage, draw.randrange(5, 60), died_before, world.look)
        with contextlib.suppress(Killed):
            world.drive(other)
        if not lists:
            return before
        now = call()
        assert isinstance(before, list)
        assert isinstance(now, list)
        return [
            name
            for name in sorted({*before, *now})
            if (name in before and name in now) or draw.random() < 0.5  # what others do meanwhile is seen or not
        ]

    return {
        one.__name__: one
        for one in (died_before, died_after, failed_before, failed_after, frozen_before, frozen_within)
    }


@pytest.mark.parametrize(
    "event", ["died_before", "died_after", "failed_before", "failed_after", "frozen_before", "frozen_within"]
)
@pytest.mark.parametrize("partition_by", [(), ("day",)], ids=["one file", "partitioned"])
def test_whatever_happens_at_whatever_call_each_row_is_there_once(event: str, partition_by: tuple[str, ...]) -> None:
    at, calls = 0, 1
    while calls > at:
        world = World(MemoryStorage(), partition_by)
        storage = Broken(world.storage, at, events(world, at)[event], world.look)
        for _ in range(3):  # a driver that dies is followed by another, and a call that fails is made again
            try:
                world.drive(storage)
            except Killed:
                world.drive(world.storage)
            except BadInput as refused:  # frozen as it looked whether the folder was used
                assert "nothing says of which run" in str(refused)
                world.drive(world.storage)
            except OSError:
                continue
            break
        happened = storage.calls > at
        world.published = max(-1, world.published - 2)  # its progress is behind
        world.drive(world.storage)
        world.look()
        files = shown(world.storage)
        assert sorted(n for name in files for n in world._numbers(name)) == all_rows(range(BATCHES)), at
        assert world.storage.list("_staged/") == []
        assert sorted(ParquetSink(world.storage).rows()["n"].to_pylist()) == all_rows(range(BATCHES))  # type: ignore[index]
        at += happened
        calls = at + happened
    assert at > 30, "there are so many calls"


@pytest.mark.parametrize("partition_by", [(), ("day",)], ids=["one file", "partitioned"])
def test_two_drivers_make_the_same_groups_from_what_each_knows(partition_by: tuple[str, ...]) -> None:
    """One is frozen before it takes a number, when it knows less than the other, or more."""
    for frozen_knows, other_knows in ((3, 4), (4, 3), (4, 4)):
        world = World(MemoryStorage(), partition_by)
        sinks = [GatheredParquetSink(world.storage, 60, partition_by=partition_by) for _ in range(2)]
        for sink, knows in zip(sinks, (frozen_knows, other_knows), strict=True):
            sink.begin("run", Epoch(1))
            for batch in range(knows + 1):
                if batch != EMPTY:
                    sink.publish(key(batch), rows_of(batch), Epoch(1))
        world.published = max(frozen_knows, other_knows)
        end(sinks[1], other_knows)
        world.look()
        sinks[0].publish(key(0), rows_of(0), Epoch(1))  # its nodes stage it again
        world.look()
        end(sinks[0], frozen_knows)
        world.look()
        end(sinks[1], other_knows)
        world.look()
        plain = [n for name in shown(world.storage) for n in world._numbers(name)]
        assert sorted(plain) == all_rows(range(max(frozen_knows, other_knows) + 1))


# -- when ----------------------------------------------------------------------------------------------------------


def test_rows_are_published_when_the_first_has_waited_or_the_file_is_large() -> None:
    sink = GatheredParquetSink(MemoryStorage(), 60)
    sink.begin("run", Epoch(1))
    assert not sink.due(math.inf), "nothing waits"
    sink.publish(key(0), rows_of(0), Epoch(1))
    assert not sink.due(100.0)
    sink.publish(key(1), rows_of(1), Epoch(1))
    assert not sink.due(159.0)
    assert sink.due(160.0)
    flush(sink, 1, 160.0)
    assert not sink.due(1000.0)
    small = GatheredParquetSink(MemoryStorage(), 60, file_mb=0.002)
    small.begin("run", Epoch(1))
    for batch in (0, 1, 3, 4, 5):
        small.publish(key(batch), rows_of(batch), Epoch(1))
    assert small.due(0.0)
    flush(small, 5, 0.0)
    files = shown(small._storage)
    assert len(files) > 1, "a file ends where it is large"
    assert small.count() == 10


def test_what_an_earlier_driver_left_staged_is_published_by_the_next_look() -> None:
    storage = MemoryStorage()
    first = GatheredParquetSink(storage, 60)
    first.begin("run", Epoch(1))
    for batch in (0, 1, 3):
        first.publish(key(batch), rows_of(batch), Epoch(1))
    following = GatheredParquetSink(storage, 60)
    following.begin("run", Epoch(1))
    assert following.due(0.0)
    flush(following, 1, 0.0)
    assert shown(storage) == ["s-00000-0000000000-0000000001-g0.parquet"]
    assert len(storage.list("_staged/")) == 1, "batch 2 may still come, so 3 waits"
    assert not following.due(math.inf), "it comes again, from the driver"
    following.publish(key(3), rows_of(3), Epoch(1))
    end(following, 1)
    assert sorted(following.rows()["n"].to_pylist()) == all_rows([0, 1, 3])  # type: ignore[index]
    assert shown(storage)[1:] == ["s-00000-0000000003-0000000003-g0.parquet"]


def test_outputs_of_an_earlier_layout_are_published_by_the_next_and_later_ones_are_left_alone() -> None:
    storage = MemoryStorage()
    first = GatheredParquetSink(storage, 60)
    first.begin("run", Epoch(1))
    for batch in (0, 1):
        first.publish(key(batch), rows_of(batch), Epoch(1))
    second = GatheredParquetSink(storage, 60)
    second.begin("run", Epoch(2))
    second.publish(key(3, generation=1), rows_of(3), Epoch(2))
    flush(second, 3, 0.0, 1)
    names = ["s-00000-0000000000-0000000001-g0.parquet", "s-00000-0000000003-0000000003-g1.parquet"]
    assert shown(storage) == names
    second.publish(key(4, generation=1), rows_of(4), Epoch(2))
    end(first, 1)
    assert shown(storage) == names, "a driver of the earlier layout knows nothing of the later one"
    assert sorted(one.generation for one in second.outputs()) == [0, 0, 1, 1]


# -- files ---------------------------------------------------------------------------------------------------------


def test_a_partitioned_folder_is_one_table_for_any_reader(tmp_path: Path) -> None:
    sink = GatheredParquetSink(tmp_path, 60, partition_by=["day", "n"])
    sink.begin("run", Epoch(1))
    values = ["2026-01-01", "a/b=c", "Zürich %25 日本", "..", None, 'quo"te\\:*?#{}[]^']
    table = pa.table({"day": values, "x": list(range(6)), "n": pa.array([1, 2, 3, 4, 5, None], pa.int32())})
    sink.publish(key(0), table, Epoch(1))
    end(sink, 0)
    found = pq.read_table(tmp_path).to_pylist()
    assert {row["x"]: (row["day"], row["n"]) for row in found} == {
        row["x"]: (row["day"], row["n"]) for row in table.to_pylist()
    }
    names = sorted(path.relative_to(tmp_path).parts[0] for path in tmp_path.glob("day=*"))
    assert "day=a%2Fb%3Dc" in names
    assert "day=__HIVE_DEFAULT_PARTITION__" in names
    ours = sink.rows()
    assert ours is not None
    assert ours.schema.remove_metadata() == table.schema
    assert ours.sort_by("x").to_pylist() == table.to_pylist()
    assert pyarrow.dataset.dataset(tmp_path, partitioning="hive").count_rows() == 6


def test_files_are_written_in_bounded_memory_and_say_which_rows_are_of_which_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathered_files, "ROW_GROUP_BYTES", 20_000)
    monkeypatch.setattr(gathered_files, "OPEN_FILES", 2)
    sink = GatheredParquetSink(tmp_path, 60, partition_by=["day"])
    sink.begin("run", Epoch(1))
    for batch in range(12):
        many = 1000 + batch
        table = pa.table({"n": [batch] * many, "day": [f"day {number % 5}" for number in range(many)]})
        sink.publish(key(batch), table, Epoch(1))
    end(sink, 11)
    files = sorted(tmp_path.glob("day=*/*.parquet"))
    assert len(files) == 5
    for path in files:
        file = pq.ParquetFile(path)
        assert file.metadata.num_row_groups > 1
        content = content_of(pa.py_buffer(path.read_bytes()), str(path))
        numbers = file.read()["n"].to_pylist()
        assert numbers == [batch for batch, many in content.rows.items() for _ in range(many)]
    assert {one.batch: rows.num_rows for one, rows in sink.outputs().items()} == {b: 1000 + b for b in range(12)}
    assert sink.count() == sum(1000 + batch for batch in range(12))


MIXED: dict[str, list[dict[str, Any]]] = {
    "another column": [{"n": [1]}, {"n": [2], "y": [3]}, {"n": [4], "y": [5]}],
    "no type yet": [{"n": [1], "y": pa.nulls(1)}, {"n": [2], "y": [3]}, {"n": [4], "y": pa.nulls(1)}],
    "another type": [{"n": [1], "y": [1]}, {"n": [2], "y": [1.5]}, {"n": [4], "y": [2.5]}],
}


@pytest.mark.parametrize("partition_by", [(), ("n",)], ids=["one file", "partitioned"])
@pytest.mark.parametrize("kind", MIXED)
def test_outputs_with_other_columns_or_types_are_in_a_file_of_their_own(
    kind: str, partition_by: tuple[str, ...]
) -> None:
    storage = MemoryStorage()
    sink = GatheredParquetSink(storage, 60, partition_by=partition_by)
    sink.begin("run", Epoch(1))
    given = [pa.table({**columns, "m": [0]}) for columns in MIXED[kind]]
    for batch, rows in enumerate(given):
        sink.publish(key(batch), rows, Epoch(1))
    end(sink, 2)
    assert storage.list("_staged/") == []
    assert sink.count() == 3
    names = {name.rpartition("/")[2] for name in shown(storage)}
    assert names == {"s-00000-0000000000-0000000000-g0.parquet", "s-00000-0000000001-0000000002-g0.parquet"}
    found = sink.outputs()
    assert [found[key(batch)].to_pylist() for batch in range(3)] == [rows.to_pylist() for rows in given]
    sink.expire(BatchId(0), 100)
    assert [one.batch for one in sink.outputs()] == [1, 2]
    later = GatheredParquetSink(storage, 60, partition_by=partition_by)
    later.begin("run", Epoch(1))
    later.publish(key(3), given[0], Epoch(1))
    end(later, 3)
    assert later.count() == 3


@pytest.mark.parametrize("partition_by", [(), ("day",)], ids=["one file", "partitioned"])
def test_whatever_happens_where_columns_change_each_row_is_there_once(
    partition_by: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    same = rows_of

    def changing(batch: int) -> pa.Table:
        return same(batch) if batch < 2 or batch == 4 else same(batch).append_column("y", [[1.5, 2.5]])

    monkeypatch.setitem(globals(), "rows_of", changing)
    for event in ("died_after", "failed_before", "frozen_before", "frozen_within"):
        test_whatever_happens_at_whatever_call_each_row_is_there_once(event, partition_by)


def test_rows_come_to_their_folders_in_their_order_and_null_is_where_the_empty_text_is() -> None:
    draw = random.Random(8)
    rows = [
        {
            "a": draw.choice(["", None, "x", "y", "ü"]),
            "b": draw.choice([None, 1, 2, 3]),
            "c": draw.random() < 0.5,
            "n": n,
        }
        for n in range(500)
    ]
    storage = MemoryStorage()
    sink = GatheredParquetSink(storage, 60, partition_by=["a", "b", "c"])
    sink.begin("run", Epoch(1))
    sink.publish(key(0), pa.Table.from_pylist(rows), Epoch(1))
    end(sink, 0)
    expected: dict[str, list[int]] = {}
    for row in rows:
        a, b = (gathered_folders.NULL if value in (None, "") else value for value in (row["a"], row["b"]))
        expected.setdefault(f"a={a}/b={b}/c={str(row['c']).lower()}", []).append(row["n"])  # type: ignore[arg-type]
    found = {}
    for name in shown(storage):
        data = storage.read(name)
        assert data is not None
        found[name.rpartition("/")[0]] = pq.ParquetFile(pa.BufferReader(data)).read()["n"].to_pylist()
    assert found == expected
    ours = sink.rows()
    assert ours is not None
    assert ours.sort_by("n").to_pylist() == [{**row, "a": row["a"] or None} for row in rows]


def test_columns_that_are_not_there_or_cannot_name_folders_are_refused() -> None:
    sink = GatheredParquetSink(MemoryStorage(), 60, partition_by=["week"])
    with pytest.raises(BadInput, match=r"has no column 'week'.*name one of n, day"):
        sink.publish(key(0), rows_of(0), Epoch(1))
    with pytest.raises(BadInput, match=r"column 'x' is double, and folders can be named by.*a date for example"):
        GatheredParquetSink(MemoryStorage(), 60, partition_by=["x"]).publish(
            key(0), pa.table({"x": [1.5], "n": [1]}), Epoch(1)
        )
    with pytest.raises(BadInput, match=r"by all its columns"):
        GatheredParquetSink(MemoryStorage(), 60, partition_by=["day", "n"]).publish(key(0), rows_of(0), Epoch(1))
    with pytest.raises(BadInput, match=r"begins with `_`"):
        parquet("out", partition_by="_day")
    with pytest.raises(BadInput, match=r"0 is not a size"):
        parquet("out", every="1 minute", file_mb=0)
    with pytest.raises(BadInput, match="no revisions"):
        GatheredParquetSink(MemoryStorage(), 60).publish(OutputKey(S, BatchId(0), 1), rows_of(0), Epoch(1))


DAYS = pa.date32()


@pytest.mark.parametrize(
    "value",
    [pa.array(["x" * 300]), pa.array(["ü" * 130]), pa.array([3_000_000], DAYS), pa.array([-800_000], DAYS)],
    ids=["long", "long in UTF-8", "after 9999", "before 1"],
)
def test_values_that_no_folder_can_be_named_by_are_refused_before_they_are_staged(
    value: pa.Array, tmp_path: Path
) -> None:
    sink = GatheredParquetSink(tmp_path, 60, partition_by=["v"])
    stager = sink.stager("start-1")
    assert isinstance(stager, GatheredStager)
    sink.begin("run", Epoch(1))
    reached.cache_clear()
    sink.publish(key(0), pa.table({"v": value.slice(0, 0), "n": pa.array([], pa.int64())}), Epoch(1))
    rows = pa.table({"v": value, "n": [1]})
    with pytest.raises(BadInput, match=r"column 'v' has a value in batch 1 that no folder can be named by.*shorten"):
        sink.publish(key(1), rows, Epoch(1))
    assert "column 'v' has a value in batch 1" in str(stager.stage(key(1), rows))
    assert [name.rpartition("/")[2] for name in FileStorage(tmp_path).list("_staged/")] == [
        "s-00000-0000000000-g0-r0.parquet"
    ]
    end(sink, 0)
    assert FileStorage(tmp_path).list("_staged/") == []


def test_every_text_that_is_short_enough_names_a_folder(tmp_path: Path) -> None:
    points = [0x10FFFF, 0x10FFFE, 0xFFFF, 0xFFFE, 0xFDD0, 0xE000, 0x80, 0x7F, 0x20, 0x0A, 0x00, 0x2028, 0xFEFF, 0x301]
    values = [*map(chr, points), "." * 3, "~", "x" * 253]
    sink = GatheredParquetSink(tmp_path, 60, partition_by=["v"])
    sink.begin("run", Epoch(1))
    sink.publish(key(0), pa.table({"v": values, "n": list(range(len(values)))}), Epoch(1))
    end(sink, 0)
    assert {row["n"]: row["v"] for row in pq.read_table(tmp_path).to_pylist()} == dict(enumerate(values))


def test_a_folder_has_one_form() -> None:
    storage = MemoryStorage()
    GatheredParquetSink(storage, 60, partition_by=["day"]).begin("run", Epoch(1))
    GatheredParquetSink(storage, 3600, 8, partition_by=["day"]).begin("run", Epoch(1))  # an interval may change
    with pytest.raises(BadInput, match=r"is partitioned by day, not by nothing; name its columns"):
        GatheredParquetSink(storage, 60).begin("run", Epoch(1))
    with pytest.raises(BadInput, match=r"were gathered .*name `every` as before"):
        ParquetSink(storage).begin("run", Epoch(1))
    with pytest.raises(BadInput, match=r"rows of another run \(run\)"):
        GatheredParquetSink(storage, 60, partition_by=["day"]).begin("other", Epoch(1))
    plain = MemoryStorage()
    ParquetSink(plain).begin("run", Epoch(1))
    with pytest.raises(BadInput, match=r"has one file for each batch.*a folder of its own"):
        GatheredParquetSink(plain, 60).begin("run", Epoch(1))


# -- nodes, tentative rows, expiry ---------------------------------------------------------------------------------


def test_nodes_stage_and_the_driver_publishes(tmp_path: Path) -> None:
    sink = GatheredParquetSink(tmp_path, 60, partition_by=["day"])
    stager = sink.stager("start-1")
    assert isinstance(stager, GatheredStager)
    sink.begin("run", Epoch(1))
    reached.cache_clear()
    for batch in (0, 1):
        staged = stager.stage(key(batch), rows_of(batch))
        assert isinstance(staged, StagedRows)
        assert sink.adopt(key(batch), staged, Epoch(1))
    assert "has no column 'day'" in str(stager.stage(key(2), pa.table({"n": [1]})))
    assert shown(FileStorage(tmp_path)) == []
    assert sorted(ParquetSink(tmp_path).rows()["n"].to_pylist()) == all_rows([0, 1])  # type: ignore[index]
    end(sink, 1)
    assert sorted(pq.read_table(tmp_path)["n"].to_pylist()) == all_rows([0, 1])
    assert GatheredParquetSink(MemoryStorage(), 60).stager("start-1") is None


def test_tentative_rows_are_corrected_by_rows_that_wait_and_by_those_in_files() -> None:
    sink = GatheredParquetSink(MemoryStorage(), 60)
    sink.begin("run", Epoch(1))
    for batch in (0, 1, 3):
        assert sink.publish_tentative(key(batch), pa.table({"n": [-batch - 1]}), 0.5, Epoch(1))

    def versions() -> list[tuple[int, bool, int]]:
        found = sink.versions()
        assert found is not None
        return [(row["n"], row["tentative"], row["revision"]) for row in found.to_pylist()]

    assert versions() == [(-1, True, 0), (-2, True, 0), (-4, True, 0)]
    sink.publish(key(0), pa.table({"n": [1]}), Epoch(1))
    sink.retract(key(1), pa.table({"n": pa.array([], pa.int64())}), Epoch(1))
    expected = [(1, False, 1), (-4, True, 0)]
    assert versions() == expected
    end(sink, 1)
    assert versions() == expected
    for batch in (3, 4):
        sink.publish(key(batch), pa.table({"n": [batch]}), Epoch(1))
    end(sink, 4)
    assert versions() == [(1, False, 1), (3, False, 1), (4, False, 0)]


def test_files_expire_when_all_their_batches_may_go_and_numbers_are_never_taken_again() -> None:
    storage = MemoryStorage()
    sink = GatheredParquetSink(storage, 60)
    sink.begin("run", Epoch(1))
    frozen = GatheredParquetSink(storage, 60)
    frozen.begin("run", Epoch(1))
    frozen.publish(key(0), rows_of(0), Epoch(1))
    frozen._last_group((S, 0))
    for batch in (0, 1, 3, 4, 5):
        sink.publish(key(batch), rows_of(batch), Epoch(1))
        end(sink, batch)
    assert sink.expire(BatchId(3), 100) > 0
    assert sorted(one.batch for one in sink.outputs()) == [4, 5]
    records = [name.rpartition("/")[2] for name in storage.list("_holdfast/groups/")]
    assert [name for name in records if "-" not in name] == ["0000000003", "0000000004", "over"]
    sink.expire(BatchId(5), 100)
    assert sink.outputs() == {}
    # One that was frozen before it took number 0 finds that it was taken once, and its rows with it.
    frozen.publish(key(0), rows_of(0), Epoch(1))
    end(frozen, 0)
    assert shown(storage) == []
    assert storage.list("_staged/") == []
    sink.publish(key(6), rows_of(6), Epoch(1))
    end(sink, 6)
    assert sorted(one.batch for one in sink.outputs()) == [6]


def test_an_interval_is_asked_for_with_the_sink(tmp_path: Path) -> None:
    assert type(parquet(tmp_path)) is ParquetSink
    sink = parquet(tmp_path, partition_by="day")
    assert isinstance(sink, GatheredParquetSink)
    assert (sink._every, sink.partition_by) == (60.0, ("day",))
    slow = parquet(tmp_path, every="2 minutes", file_mb=1)
    assert isinstance(slow, GatheredParquetSink)
    assert (slow._every, slow._most_bytes) == (120.0, 1 << 20)


def test_what_a_file_says_of_itself_is_read_back_and_another_version_is_refused() -> None:
    content = Content({BatchId(3): 2, BatchId(4): 1, BatchId(9): 5}, ("n", "day"), pa.table({"day": ["x"]}))
    assert Content.decode({gathered_files.METADATA: content.encode()}, "x") == content
    later = json.dumps({"version": 2}).encode()
    with pytest.raises(Exception, match="cannot read what it says"):
        Content.decode({gathered_files.METADATA: later}, "x")


# -- runs ----------------------------------------------------------------------------------------------------------


def application(sink: object, name: str = "gathered") -> Application:
    app = Application(name)
    app.source("s", schema={"n": "int64", "day": "string"}).output("out", sink=sink)
    return app


def batch_of(number: int) -> dict[str, pa.Table]:
    return {"s": pa.table({"n": [number], "day": [f"day {number % 2}"]})}


def names_in(place: Path) -> list[str]:
    return sorted(
        path.name for path in place.rglob("*.parquet") if not path.relative_to(place).parts[0].startswith("_")
    )


def test_an_idle_run_publishes_its_last_rows_and_one_that_ends_all_of_them(tmp_path: Path) -> None:
    now = [0.0]
    run = InProcess(application(parquet(tmp_path / "out", every=60, partition_by="day")), clock=lambda: now[0])
    for number in range(3):
        run.feed(batch_of(number))
    assert names_in(tmp_path / "out") == []
    assert sorted(run.rows("out")["n"].to_pylist()) == [0, 1, 2], "they are out"
    now[0] = 61.0
    run.run()
    assert len(names_in(tmp_path / "out")) == 2
    run.feed(batch_of(3))
    run.run()
    assert len(names_in(tmp_path / "out")) == 2
    run.close()
    run.publish_gathered()
    assert sorted(pq.read_table(tmp_path / "out")["n"].to_pylist()) == [0, 1, 2, 3]


def _two_outputs(one: Path, two: Path | None) -> Application:
    app = Application("moved")
    rows = app.source("s", schema="n long")
    for name, place in (("one", one), ("two", two)):
        if place is not None:
            rows.map(lambda rows: rows, schema="n long", id=name).output(name, sink=parquet(place, every="1 hour"))
    return app


def _killed_with_staged_rows(tmp_path: Path) -> None:
    run = InProcess(_two_outputs(tmp_path / "a", tmp_path / "two"), directory=tmp_path / "run", checkpoint_every=1)
    for number in range(4):
        run.feed({"s": pa.table({"n": [number]})})
    run.checkpoint()


def test_rows_that_a_killed_driver_left_staged_come_out_where_the_next_start_writes_elsewhere(tmp_path: Path) -> None:
    """They are out: no start makes them again, and no sink had their folder any more."""
    _killed_with_staged_rows(tmp_path)
    assert (names_in(tmp_path / "a"), names_in(tmp_path / "two")) == ([], [])
    # Another folder for one output, and the other is removed: a new layout.
    run = InProcess(_two_outputs(tmp_path / "b", None), directory=tmp_path / "run", checkpoint_every=1)
    for folder in ("a", "two"):
        assert [pq.read_table(tmp_path / folder)["n"].to_pylist(), len(names_in(tmp_path / folder))] == [
            [0, 1, 2, 3],
            1,
        ]
    run.feed({"s": pa.table({"n": [9]})})
    run.publish_gathered()
    assert pq.read_table(tmp_path / "b")["n"].to_pylist() == [9]
    assert len(run._storage.list("gathered/")) == 1, "the folder that rows are gathered in now"


def test_rows_in_a_folder_that_cannot_be_written_are_published_by_a_later_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _killed_with_staged_rows(tmp_path)
    app = _two_outputs(tmp_path / "b", None)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("holdfast.runtime.io.gathered_parquet.write_group", full)
        InProcess(app, directory=tmp_path / "run", checkpoint_every=1)
    assert names_in(tmp_path / "a") == []
    InProcess(app, directory=tmp_path / "run", checkpoint_every=1)
    assert pq.read_table(tmp_path / "a")["n"].to_pylist() == [0, 1, 2, 3]


def test_a_folder_in_which_nothing_is_staged_is_left_alone(tmp_path: Path) -> None:
    run = InProcess(_two_outputs(tmp_path / "a", None), directory=tmp_path / "run", checkpoint_every=1)
    run.feed({"s": pa.table({"n": [1]})})
    run.checkpoint()
    run.publish_gathered()
    shutil.rmtree(tmp_path / "a")
    InProcess(_two_outputs(tmp_path / "b", None), directory=tmp_path / "run", checkpoint_every=1)
    assert not (tmp_path / "a").exists()


def test_a_sink_that_cannot_publish_parks_its_query_until_it_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    run = InProcess(
        application(parquet(tmp_path / "out", every=60)), clock=lambda: now[0], errors=ErrorSettings(retries=1)
    )
    run.feed(batch_of(0))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("holdfast.runtime.io.gathered_parquet.write_group", full)
        for moment in (61.0, 70.0):
            now[0] = moment
            run.run()
        (why,) = run.parked.values()
        assert "could not publish gathered rows, which stay staged: OSError: [Errno 28] No space left" in why.error
    assert run.rows("out").num_rows == 1
    run.resume("s")
    run.run()
    assert not run.parked
    assert names_in(tmp_path / "out") == ["s-00000-0000000000-0000000000-g0.parquet"]


def test_a_run_that_ends_does_not_try_again_what_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = InProcess(application(parquet(tmp_path / "out", every=60)), clock=lambda: 0.0)
    run.feed(batch_of(0))
    tried: list[object] = []

    def away(*given: object) -> None:
        tried.append(given)
        raise OSError("away")

    with monkeypatch.context() as patch:
        patch.setattr("holdfast.runtime.io.gathered_parquet.write_group", away)
        run.close()
        run.publish_gathered()
    assert len(tried) == 1
    run.publish_gathered()
    assert names_in(tmp_path / "out") == ["s-00000-0000000000-0000000000-g0.parquet"]


def test_a_column_that_the_output_does_not_have_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"application gathered: output out: has no column 'week'.*name one of n, day"):
        InProcess(application(parquet(tmp_path / "out", partition_by="week")))


def test_a_line_says_how_to_have_fewer_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "MANY_FILES", 2)
    lines: list[str] = []
    for name, sink in (("plain", parquet(tmp_path / "plain")), ("every", parquet(tmp_path / "every", every=60))):
        run = InProcess(application(sink, name))
        run._coordinator.outputs.log = lines.append
        for number in range(5):
            run.feed(batch_of(number))
    (line,) = lines
    assert line.startswith("output out: more than 2 files were published into its folder since this start, one for")
    assert line.endswith('hf.parquet(…, every="1 minute") and a folder of its own it gets one a minute for each query')


# -- storages ------------------------------------------------------------------------------------------------------


def test_it_works_on_an_object_store(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    world = World(open_storage(f"{s3.url}/gathered-{secrets.token_hex(6)}"), ("day",))
    world.drive(world.storage)
    world.look()
    assert len(shown(world.storage)) == 6
    assert sorted(n for name in shown(world.storage) for n in world._numbers(name)) == all_rows(range(BATCHES))


def test_records_and_files_of_earlier_versions_are_read(tmp_path: Path) -> None:
    """What this version wrote in November 2026; it never changes."""
    shutil.copytree(GOLDEN, tmp_path / "out")
    sink = GatheredParquetSink(tmp_path / "out", 60, partition_by=("day",))
    assert sorted(sink.rows()["n"].to_pylist()) == all_rows(range(5))  # type: ignore[index]
    sink.begin("run", Epoch(1))
    sink.publish(key(5), rows_of(5), Epoch(1))
    end(sink, 5)
    assert {one.batch: sorted(rows["n"].to_pylist()) for one, rows in sink.outputs().items()} == {
        batch: all_rows([batch]) for batch in range(BATCHES) if batch != EMPTY
    }
    assert sorted(pq.read_table(tmp_path / "out")["n"].to_pylist()) == all_rows(range(BATCHES))


def test_it_works_on_a_folder(tmp_path: Path) -> None:
    for number, partition_by in enumerate(((), ("day",))):
        place = tmp_path / str(number)
        world = World(open_storage(place), partition_by)
        world.drive(world.storage)
        world.look()
        assert sorted(pq.read_table(place)["n"].to_pylist()) == all_rows(range(BATCHES))
