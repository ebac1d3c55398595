"""Gathered outputs of Delta tables: each row once, by the library and by the log alone, whatever fails or is frozen."""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

import holdfast as hf
from holdfast import Application
from holdfast.errors import BadInput, CheckFailed
from holdfast.ids import BatchId, Epoch, PartitionId
from holdfast.runtime.coordinator import left_staged
from holdfast.runtime.in_process import InProcess
from holdfast.runtime.io.delta_sink import DeltaSink, gathered_folder
from holdfast.runtime.io.delta_types import delta_rows
from holdfast.runtime.io.gathered_delta import GatheredDeltaSink, list_staged
from holdfast.runtime.io.named_sinks import delta
from holdfast.runtime.io.sinks import Gathered, OutputKey, StagedRows
from holdfast.storage.memory import MemoryStorage
from holdfast.storage.storage import Storage, open_storage
from holdfast_lab.s3_server import S3Server

S, U = PartitionId.parse("s[0]"), PartitionId.parse("s[1]")
T = TypeVar("T")
AT = Epoch.of(1, 1)
BATCHES = 5
EMPTY = 2
"""The batch that has no rows."""


def key(batch: int, query: PartitionId = S, generation: int = 0) -> OutputKey:
    return OutputKey(query, BatchId(batch), generation=generation, run="run")


def rows_of(batch: int) -> pa.Table:
    return pa.table({"n": [10 * batch, 10 * batch + 1], "day": ["a", "b"] if batch % 2 else ["a", None]})


def all_rows(batches: Iterable[int]) -> list[int]:
    return sorted(n for batch in batches if batch != EMPTY for n in (10 * batch, 10 * batch + 1))


def flush(sink: GatheredDeltaSink, through: int, now: float = math.inf, generation: int = 0) -> None:
    known = Gathered({S: BatchId(through), U: BatchId(through)}, generation, now)
    sink.flush(known, AT)
    while sink._round is not None:
        assert sink.due(-math.inf), "each call makes one commit"
        sink.flush(known, AT)


def begun(place: Path | str, *given: Any, **named: Any) -> GatheredDeltaSink:
    sink = GatheredDeltaSink(place, *given, **named)
    sink.begin("run", AT)
    return sink


def by_the_log(place: Path) -> list[dict[str, Any]]:
    """Read a table by its log alone, as the protocol describes it: what is added and not removed."""
    live: dict[str, dict[str, Any]] = {}
    for entry in sorted((place / "_delta_log").glob("*.json")):
        for line in entry.read_text().splitlines():
            action = json.loads(line)
            if "add" in action:
                live[action["add"]["path"]] = action["add"]["partitionValues"]
            elif "remove" in action:
                live.pop(action["remove"]["path"])
    return [{**row, **values} for path, values in live.items() for row in pq.read_table(place / path).to_pylist()]


def numbers_in(place: Path) -> list[int]:
    found = sorted(pa.table(DeltaTable(str(place)).to_pyarrow_table())["n"].to_pylist())
    assert found == sorted(row["n"] for row in by_the_log(place)), "both readers see the same"
    return found


class Killed(BaseException):
    """A driver ends at once."""


class World:
    """A table, and what drivers have acknowledged."""

    def __init__(self, place: Path, partition_by: tuple[str, ...]) -> None:
        self.place, self.partition_by = place, partition_by
        self.published = -1

    def look(self) -> None:
        if not (self.place / "_delta_log").exists():
            return
        plain = sorted(row["n"] for row in by_the_log(self.place))
        assert len(plain) == len(set(plain)), "a reader of the table sees a row twice"
        assert set(plain) <= set(all_rows(range(BATCHES)))
        everything = GatheredDeltaSink(self.place).rows()
        ours = [] if everything is None else everything["n"].to_pylist()
        assert len(ours) == len(set(ours)), "a reader of everything sees a row twice"
        assert set(all_rows(range(self.published + 1))) <= set(ours), "a row that was out is gone"

    def drive(self, calls: Calls | None = None, *, through: int = BATCHES - 1) -> None:
        """Run a driver: it begins where the progress is, and commits twice."""
        sink = GatheredDeltaSink(self.place, 60, partition_by=self.partition_by)
        if calls is not None:
            calls.watch(sink)
        sink.begin("run", AT)
        start = self.published
        if sink.due(0.0):
            flush(sink, start, 0.0)
        for batch in range(start + 1, through + 1):
            if batch != EMPTY:
                sink.publish(key(batch), rows_of(batch), AT)
            self.published = max(self.published, batch)
            if batch == 1 and sink.due(0.0) is False and sink.due(61.0):
                flush(sink, batch, 61.0)
        flush(sink, through)


Event = Callable[[Callable[[], object]], object]


class Calls:
    """A driver's calls of storage and of the table's log; something happens at one of them."""

    def __init__(self, at: int, event: Event, look: Callable[[], object]) -> None:
        self.at, self.event, self.look = at, event, look
        self.calls = 0

    def watch(self, sink: GatheredDeltaSink) -> None:
        sink._storage_of = _Watched(sink._storage, self)
        commit = sink._append
        sink._append = lambda *given: self.call(lambda: commit(*given), changes=True)  # type: ignore[method-assign]

    def call(self, call: Callable[[], T], *, changes: bool = False) -> T:
        self.calls += 1
        found = self.event(call) if self.calls == self.at + 1 else call()
        if changes:
            self.look()
        return found  # type: ignore[return-value]


class _Watched:
    def __init__(self, inner: Storage, calls: Calls) -> None:
        self._inner, self._calls, self.url = inner, calls, inner.url

    def create(self, name: str, data: bytes | memoryview | pa.Buffer) -> bool:
        return self._calls.call(lambda: self._inner.create(name, data), changes=True)

    def read(self, name: str) -> pa.Buffer | None:
        return self._calls.call(lambda: self._inner.read(name))

    def list(self, prefix: str = "", *, after: str = "") -> list[str]:
        return self._calls.call(lambda: self._inner.list(prefix, after=after))

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            self._calls.call(lambda name=name: self._inner.delete([name]), changes=True)  # type: ignore[misc]

    def within(self, folder: str) -> Storage:
        return _Watched(self._inner.within(folder), self._calls)


def events(world: World, seed: int) -> dict[str, Event]:
    """Return what may happen at a call."""
    draw = random.Random(seed)

    def died_before(call: Callable[[], object]) -> object:
        raise Killed

    def died_after(call: Callable[[], object]) -> object:
        call()
        raise Killed

    def failed_before(call: Callable[[], object]) -> object:
        raise OSError("away")

    def failed_after(call: Callable[[], object]) -> object:
        call()
        raise OSError("the answer was lost")

    def frozen_before(call: Callable[[], object]) -> object:
        world.drive()
        return call()

    def frozen_after(call: Callable[[], object]) -> object:
        before = call()
        with contextlib.suppress(Killed):
            world.drive(Calls(draw.randrange(3, 30), died_before, world.look))
        return before

    known = (died_before, died_after, failed_before, failed_after, frozen_before, frozen_after)
    return {one.__name__: one for one in known}


@pytest.mark.parametrize(
    ("event", "partition_by"),
    [
        *((one, ()) for one in ("died_before", "died_after", "failed_before", "failed_after", "frozen_before")),
        *(("frozen_after", columns) for columns in ((), ("day",))),
    ],
)
def test_whatever_happens_at_whatever_call_each_row_is_there_once(
    tmp_path: Path, event: str, partition_by: tuple[str, ...]
) -> None:
    at, happens = 0, True
    while happens:
        world = World(tmp_path / str(at), partition_by)
        calls = Calls(at, events(world, at)[event], world.look)
        for _ in range(3):  # a driver that dies is followed by another, and a call that fails is made again
            try:
                world.drive(calls)
            except Killed:
                world.drive()
            except OSError:
                continue
            break
        happens = calls.calls > at
        world.published = max(-1, world.published - 2)  # its progress is behind
        world.drive()
        assert numbers_in(world.place) == all_rows(range(BATCHES)), at
        assert list_staged(open_storage(world.place)) == []
        at += 1
    assert at > 20, "there are so many calls"


@pytest.mark.parametrize("seed", range(8))
def test_two_drivers_commit_each_batch_once_whatever_each_knows(tmp_path: Path, seed: int) -> None:
    """Each has staged another part of the outputs; one is frozen between its look at the table and its commit."""
    draw = random.Random(seed)
    place = tmp_path / "t"
    sinks = [begun(place), begun(place)]
    reached = [-1, -1]
    commit = sinks[0]._append

    def late(*given: Any) -> None:
        if draw.random() < 0.7:
            advance(1)
        commit(*given)

    def advance(one: int) -> None:
        for _ in range(draw.randint(1, 4)):
            reached[one] += 1
            for query in (S, U):
                rows = pa.table({"n": [10 * reached[one] + query.index]})
                sinks[one].publish(key(reached[one], query), rows, AT)
        flush(sinks[one], reached[one])

    sinks[0]._append = late  # type: ignore[method-assign]
    for _ in range(6):
        advance(draw.randrange(2))
    last = max(reached)
    while reached[1] < last:
        advance(1)
    last = reached[1]
    assert numbers_in(place) == sorted(10 * batch + query for batch in range(last + 1) for query in (0, 1))


def test_the_groups_of_many_batches_and_queries_are_one_commit_with_one_file_for_each_query(tmp_path: Path) -> None:
    sink = begun(tmp_path / "t", 60)
    for batch in range(8):
        for query in (S, U):
            sink.publish(key(batch, query), rows_of(batch), AT)
    made = DeltaTable(str(tmp_path / "t"))
    assert made.version() == 0, "the table is there, so that other columns are refused before they are out"
    assert not sink.due(100.0)
    assert not sink.due(159.0)
    assert sink.due(160.0)
    flush(sink, 7, 160.0)
    assert not sink.due(1000.0)
    made.update_incremental()
    assert made.version() == 1
    assert len(made.file_uris()) == 2
    assert [made.transaction_version(f"holdfast/run/{query}") for query in (S, U)] == [7, 7]
    assert sink.count() == 32


def test_a_commit_is_made_early_where_much_waits_and_files_stay_of_that_size(tmp_path: Path) -> None:
    sink = begun(tmp_path / "t", 3600, file_mb=0.004)
    for batch in range(9):
        for query in (S, U):
            sink.publish(key(batch, query), rows_of(batch), AT)
    assert sink.due(0.0), "it is large"
    flush(sink, 8, 0.0)
    made = DeltaTable(str(tmp_path / "t"))
    assert made.version() > 1
    assert len(made.file_uris()) > 2
    assert len(by_the_log(tmp_path / "t")) == 36


def test_columns_to_partition_by_and_one_table_for_any_reader(tmp_path: Path) -> None:
    rows = pa.table(
        {
            "day": [datetime.date(2026, 11, 17), None, datetime.date(2026, 11, 17), datetime.date(2026, 11, 18)],
            "page": ["a'b", "é/? %25", None, "a=b"],
            "n": pa.array([1, 2, 3, 4], pa.int32()),
            "at": pa.array([datetime.datetime(2026, 11, 17, 1, 2, 3)] * 4, pa.timestamp("ns")),
        }
    )
    sink = begun(tmp_path / "t", 60, partition_by=["day", "page"])
    for batch in range(3):
        sink.publish(key(batch), rows, AT)
    flush(sink, 2)
    made = DeltaTable(str(tmp_path / "t"))
    assert made.metadata().partition_columns == ["day", "page"]
    assert len(made.file_uris()) == 4, "one for each pair of values, of all batches"
    found = pa.table(made.to_pyarrow_table()).select(rows.column_names).to_pylist()
    expected = [one for one in delta_rows(rows).to_pylist() for _ in range(3)]
    assert sorted(map(str, found)) == sorted(map(str, expected))
    only = made.to_pyarrow_table(filters=[("day", "=", datetime.date(2026, 11, 18))])
    assert pa.table(only)["n"].to_pylist() == [4, 4, 4]
    with pytest.raises(BadInput, match="is partitioned by day, page, not by nothing"):
        begun(tmp_path / "t")


def test_what_waits_survives_vacuum_and_optimize_and_files_of_no_commit_are_written_again(tmp_path: Path) -> None:
    sink = begun(tmp_path / "t", 60)
    sink.publish(key(0), rows_of(0), AT)
    flush(sink, 0)
    sink.publish(key(1), rows_of(1), AT)
    commit = sink._append

    def vacuumed(*given: Any) -> None:
        sink._append = commit  # type: ignore[method-assign]
        table = DeltaTable(str(tmp_path / "t"))
        assert table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True), (
            "the file that is in no commit yet"
        )
        table.optimize.compact()
        raise sink._refused("another commit came between")

    sink._append = vacuumed  # type: ignore[method-assign]
    flush(sink, 1)
    assert numbers_in(tmp_path / "t") == all_rows([0, 1])
    DeltaTable(str(tmp_path / "t")).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    sink.publish(key(3), rows_of(3), AT)
    assert sorted(sink.rows()["n"].to_pylist()) == all_rows([0, 1, 3])  # type: ignore[index]
    assert sink.count() == 6
    flush(sink, 3)
    assert numbers_in(tmp_path / "t") == all_rows([0, 1, 3])


def test_nodes_stage_and_the_driver_commits(tmp_path: Path) -> None:
    sink = GatheredDeltaSink(tmp_path / "t", 60, partition_by=["day"])
    stager = sink.stager("run-0a1b")
    assert "is not shared with this node" in str(stager.stage(key(0), rows_of(0))), "the driver has not begun"
    sink.begin("run", AT)
    for batch in (0, 1):
        staged = stager.stage(key(batch), rows_of(batch))
        assert isinstance(staged, StagedRows)
        assert staged == stager.stage(key(batch), rows_of(batch)), "staged again, it is the same"
        assert sink.adopt(key(batch), staged, AT)
    assert "has no column 'day'" in str(stager.stage(key(3), pa.table({"n": [1]})))
    assert numbers_in(tmp_path / "t") == []
    flush(sink, 1)
    assert numbers_in(tmp_path / "t") == all_rows([0, 1])


def test_a_run_that_had_a_commit_for_each_batch_may_gather_and_the_other_way_once_nothing_waits(tmp_path: Path) -> None:
    place = tmp_path / "t"
    plain = DeltaSink(place)
    plain.publish(key(0), rows_of(0), AT)
    frozen = DeltaSink(place)
    frozen.publish(key(1), rows_of(1), AT)
    sink = begun(place)
    for batch in (1, 3, 4):  # the progress is behind: batch 1 comes again
        sink.publish(key(batch), rows_of(batch), AT)
    assert sorted(sink.rows()["n"].to_pylist()) == all_rows([0, 1, 3, 4])  # type: ignore[index]
    commit = sink._append

    def late(*given: Any) -> None:
        sink._append = commit  # type: ignore[method-assign]
        frozen._looked_for_staged.add(S)  # it was frozen before its commit
        frozen.publish(key(3), rows_of(3), AT)
        commit(*given)

    sink._append = late  # type: ignore[method-assign]
    later = DeltaSink(place)
    later.begin("run", AT)
    with pytest.raises(BadInput, match=r"s\[0\]: has rows that wait for their commit .*name `every` as before"):
        later.publish(key(5), rows_of(5), AT)
    flush(sink, 4)
    assert numbers_in(place) == all_rows([0, 1, 3, 4])
    later.publish(key(5), rows_of(5), AT)
    assert numbers_in(place) == all_rows([0, 1, 3, 4, 5])


def test_rows_of_an_earlier_layout_are_added_before_those_of_the_next(tmp_path: Path) -> None:
    first = begun(tmp_path / "t")
    for batch in (0, 1):
        first.publish(key(batch), rows_of(batch), AT)
    second = begun(tmp_path / "t")
    for batch in (3, 4):
        second.publish(key(batch, generation=1), rows_of(batch), AT)
    flush(second, 4, 0.0, 1)
    assert numbers_in(tmp_path / "t") == all_rows([0, 1, 3, 4])
    first.publish(key(1), rows_of(1), AT)
    flush(first, 1)
    assert numbers_in(tmp_path / "t") == all_rows([0, 1, 3, 4])
    assert list_staged(open_storage(tmp_path / "t")) == []


def test_other_columns_are_refused_before_they_are_out(tmp_path: Path) -> None:
    sink = GatheredDeltaSink(tmp_path / "t", 60)
    stager = sink.stager("run-1")
    sink.begin("run", AT)
    sink.publish(key(0), rows_of(0), AT)
    other = pa.table({"n": ["x"], "day": ["y"]})
    with pytest.raises(BadInput, match=r"has the columns n int64, day string, and the output has n string"):
        sink.publish(key(1), other, AT)
    staged = stager.stage(key(1), other)
    assert isinstance(staged, StagedRows)
    with pytest.raises(BadInput, match=r"has the columns n int64"):
        sink.adopt(key(1), staged, AT)
    mended = stager.stage(key(1), rows_of(1))  # the application was mended; the copy was not
    assert isinstance(mended, StagedRows)
    with pytest.raises(
        BadInput, match=r"was staged with columns that the table does not have; delete .*/_staged/"
    ) as no:
        sink.adopt(key(1), mended, AT)
    assert "\n" not in str(no.value)
    flush(sink, 0)
    assert numbers_in(tmp_path / "t") == all_rows([0])


def test_a_staged_output_that_somebody_has_deleted_is_named(tmp_path: Path) -> None:
    sink = begun(tmp_path / "t")
    for batch in (0, 1):
        sink.publish(key(batch), rows_of(batch), AT)
    (gone,) = (tmp_path / "t" / gathered_folder("run")).glob("_staged/s-00000-0000000001-*")
    fits = sink._as_many_as_fit

    def seen(staged: Any) -> Any:
        gone.unlink()  # after the driver has looked
        return fits(staged)

    sink._as_many_as_fit = seen  # type: ignore[method-assign]
    with pytest.raises(CheckFailed, match="is gone, and in no commit yet"):
        flush(sink, 1)


def test_an_interval_is_asked_for_with_the_sink(tmp_path: Path) -> None:
    assert type(delta(tmp_path)) is DeltaSink
    assert type(delta(tmp_path, partition_by="day")) is DeltaSink
    sink = delta(tmp_path, partition_by="day", every="2 minutes", file_mb=1)
    assert isinstance(sink, GatheredDeltaSink)
    assert (sink._every, sink._most_bytes, sink.partition_by) == (120.0, 1 << 20, ("day",))
    with pytest.raises(BadInput, match=r"delta\.every: .*cannot wait.*leave out `every`, or tentative=True"):
        delta(tmp_path, every="1 minute", tentative=True)
    with pytest.raises(BadInput, match=r"delta\.file_mb: 0 is not a size"):
        delta(tmp_path, every="1 minute", file_mb=0)
    with pytest.raises(BadInput, match="no revisions"):
        begun(tmp_path).publish(OutputKey(S, BatchId(0), 1, run="run"), rows_of(0), AT)


def test_several_runs_gather_into_one_table(tmp_path: Path) -> None:
    sinks = {run: GatheredDeltaSink(tmp_path / "t", 60) for run in ("orders", "eu-orders")}
    for number, (run, sink) in enumerate(sinks.items()):
        sink.begin(run, AT)
        for batch in range(3):
            sink.publish(OutputKey(S, BatchId(batch), run=run), pa.table({"n": [100 * number + batch]}), AT)
    for sink in sinks.values():
        assert sink.count() == 6
        flush(sink, 2)
    assert numbers_in(tmp_path / "t") == [0, 1, 2, 100, 101, 102]


def application(sink: object) -> Application:
    app = Application("gathered")
    app.source("s", schema={"n": "int64", "day": "string"}).output("out", sink=sink)
    return app


def batch_of(number: int) -> dict[str, pa.Table]:
    return {"s": pa.table({"n": [number], "day": [f"day {number % 2}"]})}


def test_a_run_commits_by_the_interval_and_goes_on_after_a_crash(tmp_path: Path) -> None:
    now = [0.0]
    place = tmp_path / "lake"

    def started() -> InProcess:
        sink = hf.delta(place, partition_by="day", every=60)
        return InProcess(application(sink), directory=tmp_path / "run", clock=lambda: now[0])

    run = started()
    for number in range(3):
        run.feed(batch_of(number))
    assert numbers_in(place) == []
    assert sorted(run.rows("out")["n"].to_pylist()) == [0, 1, 2], "they are out"
    now[0] = 61.0
    run.run()
    assert numbers_in(place) == [0, 1, 2]
    assert DeltaTable(str(place)).version() == 1
    run.checkpoint()
    for number in (3, 4):
        run.feed(batch_of(number))
    run = started()  # after a kill
    run.feed(batch_of(5))
    run.close()
    run.publish_gathered()
    assert numbers_in(place) == [0, 1, 2, 3, 4, 5]


def test_a_column_that_the_output_does_not_have_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"application gathered: output out: has no column 'week'.*name one of n, day"):
        InProcess(application(hf.delta(tmp_path / "out", every=60, partition_by="week")))


def test_a_table_on_object_storage(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    place = f"{s3.url}/lake/gathered"
    first, late = begun(place, partition_by=["day"]), begun(place, partition_by=["day"])
    for batch in (0, 1):
        for sink in (first, late):
            sink.publish(key(batch), rows_of(batch), AT)
    commit = late._append

    def frozen(*given: Any) -> None:
        flush(first, 1)
        commit(*given)

    late._append = frozen  # type: ignore[method-assign]
    flush(late, 1)
    assert sorted(pa.table(DeltaTable(place).to_pyarrow_table())["n"].to_pylist()) == all_rows([0, 1])
    assert DeltaTable(place).version() == 1


def test_all_that_waits_is_one_commit_once_the_first_row_has_waited(tmp_path: Path) -> None:
    """Each query had an interval of its own, and so a commit of its own for each interval."""
    sink = begun(tmp_path / "t", 60)
    for round_ in range(3):
        for query, at in ((S, 100.0 * round_), (U, 100.0 * round_ + 1)):
            sink.publish(key(round_, query), rows_of(round_), AT)
            assert not sink.due(at)
        at = 100.0 * round_ + 60
        assert sink.due(at)
        flush(sink, round_, at)
        assert not sink.due(at + 30), "nothing waits"
    assert DeltaTable(str(tmp_path / "t")).version() == 3
    # By size it is the same: what all queries have together makes a commit.
    size = sum(path.stat().st_size for path in (tmp_path / "t").glob("*.parquet")) / 6
    small = begun(tmp_path / "u", 3600, file_mb=1.5 * size / (1 << 20))
    for query in (S, U):
        assert not small.due(0.0)
        small.publish(key(0, query), rows_of(0), AT)
    assert small.due(0.0)
    flush(small, 0, 0.0)
    assert not small.due(0.0)
    assert numbers_in(tmp_path / "u") == sorted(2 * all_rows([0]))


def test_only_rows_that_wait_keep_an_output_without_an_interval_from_its_commits(tmp_path: Path) -> None:
    """A driver had died between a commit and the deletion of its staged copies: the next one parked the query."""
    place = tmp_path / "t"
    sink = begun(place)
    for batch in (0, 1):
        sink.publish(key(batch), rows_of(batch), AT)
    sink._delete = lambda names: None  # type: ignore[method-assign,assignment]
    sink.flush(Gathered({S: BatchId(1)}, 0, math.inf), AT)
    assert len(list_staged(open_storage(place))) == 2
    sink.publish(key(3), rows_of(3), AT)  # a node has staged it, and its driver never knew
    plain = DeltaSink(place)
    plain.begin("run", AT)
    plain.publish(key(3), rows_of(3), AT)
    plain.publish(key(4), rows_of(4), AT)
    assert numbers_in(place) == all_rows([0, 1, 3, 4])
    again = begun(place)
    assert again.count() == 8
    flush(again, 4)
    assert numbers_in(place) == all_rows([0, 1, 3, 4])
    assert list_staged(open_storage(place)) == []


def two_outputs(one: Any, two: Any | None) -> Application:
    app = Application("moved")
    rows = app.source("s", schema={"n": "int64", "day": "string"})
    for name, sink in (("one", one), ("two", two)):
        if sink is not None:
            columns = {"n": "int64", "day": "string"}
            rows.map(lambda rows: rows, schema=columns, id=name).output(name, sink=sink)
    return app


def killed_with_staged_rows(tmp_path: Path) -> None:
    app = two_outputs(hf.delta(tmp_path / "a", every="1 hour"), hf.delta(tmp_path / "two", "day", every="1 hour"))
    run = InProcess(app, directory=tmp_path / "run", checkpoint_every=1)
    for number in range(4):
        run.feed(batch_of(number))
    run.checkpoint()


def test_rows_that_a_killed_driver_left_staged_are_committed_where_the_next_start_writes_elsewhere(
    tmp_path: Path,
) -> None:
    """They are out: no start makes them again, and no sink had their table any more."""
    killed_with_staged_rows(tmp_path)
    assert (numbers_in(tmp_path / "a"), numbers_in(tmp_path / "two")) == ([], [])
    # Another table for one output, and the other is removed: a new layout.
    app = two_outputs(hf.delta(tmp_path / "b", every="1 hour"), None)
    run = InProcess(app, directory=tmp_path / "run", checkpoint_every=1)
    assert (numbers_in(tmp_path / "a"), numbers_in(tmp_path / "two")) == ([0, 1, 2, 3], [0, 1, 2, 3])
    assert DeltaTable(str(tmp_path / "two")).metadata().partition_columns == ["day"]
    run.feed(batch_of(9))
    run.publish_gathered()
    assert numbers_in(tmp_path / "b") == [9]
    assert len(run._storage.list("gathered/")) == 1, "the table that rows are gathered for now"


def test_rows_of_a_table_that_cannot_be_reached_are_committed_by_a_later_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_with_staged_rows(tmp_path)
    app = two_outputs(hf.memory(), None)
    with monkeypatch.context() as patch:
        patch.setattr(GatheredDeltaSink, "_append", Mock(side_effect=ValueError("the library does not like it")))
        InProcess(app, directory=tmp_path / "run", checkpoint_every=1)
    assert numbers_in(tmp_path / "a") == []
    InProcess(app, directory=tmp_path / "run", checkpoint_every=1)
    assert numbers_in(tmp_path / "a") == [0, 1, 2, 3]


def test_an_output_that_leaves_out_its_interval_first_commits_what_waits(tmp_path: Path) -> None:
    killed_with_staged_rows(tmp_path)
    app = two_outputs(hf.delta(tmp_path / "a"), hf.delta(tmp_path / "two", "day"))
    run = InProcess(app, directory=tmp_path / "run", checkpoint_every=1)
    run.feed(batch_of(9))
    assert (numbers_in(tmp_path / "a"), numbers_in(tmp_path / "two")) == ([0, 1, 2, 3, 9], [0, 1, 2, 3, 9])


@pytest.mark.parametrize("event", ["died_before", "died_after", "failed_before", "failed_after", "frozen_before"])
def test_whatever_happens_while_rows_left_staged_are_committed_each_is_there_once(
    tmp_path: Path, event: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No sink has the table; the start that commits what waits dies, fails or is frozen at any of its calls."""

    def start(notes: MemoryStorage, calls: Calls | None = None) -> None:
        class Watched(GatheredDeltaSink):
            def __init__(self, *given: Any, **named: Any) -> None:
                super().__init__(*given, **named)
                if calls is not None:
                    calls.watch(self)

        monkeypatch.setattr(left_staged, "_KINDS", {2: Watched})
        left_staged.publish_left_staged(notes, [], "run", AT, {S: BatchId(4)}, 0)

    at, happens = 0, True
    while happens:
        world, notes = World(tmp_path / str(at), ("day",)), MemoryStorage()
        sink = GatheredDeltaSink(world.place, partition_by=["day"])
        sink.begin("run", AT)
        monkeypatch.setattr(left_staged, "_KINDS", {2: GatheredDeltaSink})
        left_staged.publish_left_staged(notes, [sink], "run", AT, {}, 0)
        for batch in (0, 1, 3, 4):
            sink.publish(key(batch), rows_of(batch), AT)
        world.published = 4

        def gathers_again(world: World = world) -> None:
            """Another driver has the run, and gathers for the table."""
            other = begun(world.place, partition_by=["day"])
            other.publish(key(5), rows_of(5), AT)
            flush(other, 5)
            world.published = 5

        known = events(world, at)
        if event == "frozen_before":
            known["frozen_before"] = lambda call, again=gathers_again: (again(), call())[1]  # type: ignore[misc]
        calls = Calls(at, known[event], lambda: None)
        with contextlib.suppress(Killed):
            start(notes, calls)
        happens = calls.calls > at
        start(notes)
        assert numbers_in(world.place) == all_rows(range(world.published + 1)), at
        assert (list_staged(open_storage(world.place)), notes.list()) == ([], [])
        at += 1
    assert at > 15, "there are so many calls"
