"""Tentative rows of a Delta table that others have rewritten: final rows replace them wherever they are."""

from __future__ import annotations

import datetime
import random
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field
from deltalake.exceptions import CommitFailedError

from holdfast.errors import BadInput, CheckFailed
from holdfast.ids import BatchId, Epoch, PartitionId
from holdfast.runtime.io import delta_sink
from holdfast.runtime.io.delta_sink import DeltaSink
from holdfast.runtime.io.sinks import Output, OutputKey
from holdfast_lab.s3_server import S3Server
from sizes import share

AT = Epoch.of(1, 1)


def key(batch: int, query: str = "q[0]", run: str = "web-1") -> OutputKey:
    return OutputKey(PartitionId.parse(query), BatchId(batch), run=run)


def table(*numbers: int) -> pa.Table:
    return pa.table({"n": pa.array(numbers, pa.int64())})


def shown(place: Path | str) -> list[tuple[int, bool]]:
    """Return the rows as a reader of the table has them, and whether they are tentative."""
    rows = pa.table(DeltaTable(str(place)).to_pyarrow_table()).to_pylist()
    return sorted((row["n"], row["tentative"]) for row in rows)


def compact(place: Path | str) -> int:
    return int(DeltaTable(str(place)).optimize.compact()["numFilesRemoved"])


def sink(place: Path | str, *partition_by: str) -> DeltaSink:
    return DeltaSink(place, partition_by, tentative=True)


def test_final_rows_replace_tentative_ones_that_optimize_has_moved(tmp_path: Path) -> None:
    """They were found by the names of their files: both stayed beside the final rows, for good."""
    place, one = tmp_path / "t", sink(tmp_path / "t")
    one.publish(key(0), table(1), AT)
    one.publish_tentative(key(1), table(20), 0.5, AT)
    one.publish_tentative(key(2), table(30, 31), 0.5, AT)
    assert compact(place) == 3
    before = DeltaTable(str(place)).version()
    one.publish(key(1), table(2), AT)
    assert DeltaTable(str(place)).version() == before + 1, "in one commit"
    assert shown(place) == [(1, False), (2, False), (30, True), (31, True)]
    one.publish(key(2), table(3), AT)
    assert shown(place) == [(1, False), (2, False), (3, False)]
    assert not one.publish(key(2), table(3), AT)
    assert one.count() == 3


def test_final_rows_replace_tentative_ones_of_a_file_from_which_others_have_deleted_rows(tmp_path: Path) -> None:
    place, one = tmp_path / "t", sink(tmp_path / "t")

    def rows(*numbers: int) -> pa.Table:
        about = [
            {
                "n": n,
                "text": f"é{n}",
                "raw": b"\xff",
                "list": [f"{n}", None],
                "object": {"text": "x", "list": [b"y"]},
                "at": datetime.datetime(2026, 11, 17, tzinfo=datetime.UTC),
                "cost": Decimal("1.50"),
            }
            for n in numbers
        ]
        return pa.Table.from_pylist(about)

    one.publish_tentative(key(1), rows(20, 21, 22), 0.5, AT)
    one.publish_tentative(key(1, "q[1]"), rows(30, 31), 0.5, AT)
    DeltaTable(str(place)).delete("n = 21 or n = 31")
    compact(place)
    assert shown(place) == [(20, True), (22, True), (30, True)]
    one.publish(key(1), rows(2), AT)
    assert shown(place) == [(2, False), (30, True)]
    found = pa.table(DeltaTable(str(place)).to_pyarrow_table()).sort_by("n")
    assert found.select(rows(2).column_names).to_pylist() == rows(2, 30).to_pylist()


def test_a_final_version_without_rows_removes_what_optimize_has_moved(tmp_path: Path) -> None:
    place, one = tmp_path / "t", sink(tmp_path / "t")
    for batch in range(3):
        one.publish_tentative(key(batch), table(batch), 0.5, AT)
    compact(place)
    late = sink(place)
    late.publish_all([Output(key(0), table(7)), Output(key(1), table(), retracts=True)], AT)
    assert shown(place) == [(2, True), (7, False)]
    late.retract(key(2), table(), AT)
    assert shown(place) == [(7, False)]


def test_the_rows_of_other_queries_runs_and_writers_stay_and_the_large_file_is_rewritten_once(tmp_path: Path) -> None:
    place, one = tmp_path / "t", sink(tmp_path / "t")
    one.publish(key(0), table(*range(100)), AT)
    one.publish_tentative(key(1), table(201), 0.5, AT)
    one.publish_tentative(key(2), table(202), 0.5, AT)
    one.publish_tentative(key(1, "q[1]"), table(211), 0.5, AT)
    one.publish_tentative(key(1, run="web-2"), table(221), 0.5, AT)
    assert compact(place) == 5
    one.publish(key(1), table(301), AT)
    expected = {(n, False) for n in (*range(100), 301)} | {(n, True) for n in (202, 211, 221)}
    assert shown(place) == sorted(expected)

    def large() -> list[str]:
        found = pa.table(DeltaTable(str(place)).get_add_actions()).to_pylist()
        return [one["path"] for one in found if one["num_records"] >= 100]

    was = large()
    one.publish(key(2), table(302), AT)
    sink(place).publish(key(1, "q[1]"), table(311), AT)  # another driver
    one.publish(key(1, run="web-2"), table(321), AT)
    assert large() == was, "tentative rows that were left have a small file"
    assert shown(place) == [(n, False) for n in (*range(100), 301, 302, 311, 321)]


@pytest.mark.parametrize("at", [0, 1])
def test_optimize_between_the_look_at_the_table_and_the_commit(tmp_path: Path, at: int) -> None:
    """The library commits the removal of a file that another commit has removed since: its rows had moved on."""
    place, one = tmp_path / "t", sink(tmp_path / "t")
    one.publish_tentative(key(1), table(20), 0.5, AT)
    one.publish_tentative(key(2), table(30), 0.5, AT)
    if at:
        compact(place)
        one.publish_tentative(key(3), table(40), 0.5, AT)
    add, moved = one._add, list[int]()

    def late(*given: Any) -> None:
        if not moved:
            moved.append(compact(place))
        add(*given)

    one._add = late  # type: ignore[method-assign]
    one.publish(key(2), table(3), AT)
    assert moved == [2]
    assert shown(place) == ([(3, False), (40, True)] if at else [(3, False)])


def test_an_optimize_that_began_before_the_final_rows_does_not_bring_tentative_ones_back(tmp_path: Path) -> None:
    place, one = tmp_path / "t", sink(tmp_path / "t")
    for batch in range(3):
        one.publish_tentative(key(batch), table(batch), 0.5, AT)
    began = DeltaTable(str(place))
    one.publish(key(1), table(11), AT)
    with pytest.raises(CommitFailedError, match="concurrent transaction"):
        began.optimize.compact()
    assert shown(place) == [(2, True), (11, False)]


@pytest.mark.parametrize("partition_by", [["page"], ["page", "tentative"], ["holdfast_batch"]])
def test_tables_that_are_partitioned(tmp_path: Path, partition_by: list[str]) -> None:
    place, one = tmp_path / "t", sink(tmp_path / "t", *partition_by)

    def rows(first: int) -> pa.Table:
        return pa.table({"page": ["a'b é/?%", None], "n": [first, first + 1]})

    one.publish(key(0), rows(0), AT)
    for batch in (1, 2, 3):
        one.publish_tentative(key(batch), rows(10 * batch), 0.5, AT)
        one.publish_tentative(key(batch, "q[1]"), rows(100 + 10 * batch), 0.5, AT)
    assert compact(place) > 0
    one.publish(key(2), rows(2), AT)
    left = [(30, True), (31, True), *((n + m, True) for n in (110, 120, 130) for m in (0, 1))]
    assert shown(place) == [(0, False), (1, False), (2, False), (3, False), *left]
    found = pa.table(DeltaTable(str(place)).to_pyarrow_table())
    assert {row["page"] for row in found.to_pylist() if row["n"] % 2} == {None}
    one.publish_all([Output(key(3), rows(4)), Output(key(3, "q[1]"), rows(6))], AT)
    assert shown(place) == [(n, False) for n in range(8)]


@pytest.mark.parametrize("seed", range(share(24)))
def test_no_batch_ever_has_both_kinds_of_rows_whatever_moves_them(tmp_path: Path, seed: int) -> None:
    """Two drivers, two queries; OPTIMIZE, also by columns, at any time, also between a look and its commit."""
    draw, place = random.Random(seed), tmp_path / "t"
    drivers, batches = [sink(place), sink(place)], 6
    reached = {"q[0]": 0, "q[1]": 0}
    final = dict[tuple[str, int], bool]()

    def number(query: str, batch: int) -> int:
        return 10 * batch + int(query[2])

    def move() -> None:
        if drivers[0].count() and draw.random() < 0.6:
            optimize = DeltaTable(str(place)).optimize
            found = optimize.z_order(["n"]) if draw.random() < 0.3 else optimize.compact()
            assert found["numFilesAdded"] >= 0

    def check() -> None:
        if not drivers[0].count():
            return
        rows = pa.table(DeltaTable(str(place)).to_pyarrow_table()).to_pylist()
        kinds = [(row["holdfast_query"], row["holdfast_batch"], row["tentative"]) for row in rows]
        assert len(set(kinds)) == len(kinds), f"seed {seed}"
        there = {(query.partition("/")[2], batch): tentative for query, batch, tentative in kinds}
        assert len(there) == len(kinds), f"seed {seed}: both kinds of a batch"
        assert {one for one, tentative in there.items() if not tentative} == {
            one for one, empty in final.items() if not empty
        }, f"seed {seed}"

    while min(reached.values()) < batches:
        one = draw.choice(drivers)
        query = draw.choice([name for name, at in reached.items() if at < batches])
        add = one._add

        def late(*given: Any, add: Any = add) -> None:
            move()
            add(*given)

        one._add = late  # type: ignore[method-assign]
        if draw.random() < 0.5:
            batch = draw.randrange(batches)
            one.publish_tentative(key(batch, query), table(100 + number(query, batch)), 0.5, AT)
        else:
            first, reached[query] = reached[query], min(batches, reached[query] + draw.randrange(1, 3))
            outputs = list[Output]()
            for batch in range(first, reached[query]):
                empty = draw.random() < 0.3
                final[query, batch] = empty
                rows = table() if empty else table(number(query, batch))
                outputs.append(Output(key(batch, query), rows, retracts=empty))
            assert one.publish_all(outputs, AT) == [output.key for output in outputs]
        one._add = add  # type: ignore[method-assign]
        check()
        move()
        check()
        if draw.random() < 0.2:
            drivers[draw.randrange(2)] = sink(place)
    for query in reached:  # what was tentative behind the last final batch goes with the next one
        drivers[0].publish(key(batches, query), table(number(query, batches)), AT)
    assert all(not tentative for _, tentative in shown(place)), f"seed {seed}"


def test_a_table_of_an_earlier_version_is_refused_with_what_makes_it_fit(tmp_path: Path) -> None:
    place = tmp_path / "t"
    earlier = pa.schema(
        [("n", pa.int64()), ("tentative", pa.bool_()), ("fidelity", pa.float64()), ("revision", pa.int32())]
    )
    DeltaTable.create(str(place), earlier)
    with pytest.raises(BadInput, match="has no columns holdfast_query, holdfast_batch") as refused:
        sink(place).begin("web-1", AT)
    line = str(refused.value)
    assert str(place) in line
    assert "\n" not in line
    remedy = re.search(r"`(.*)`", line)
    assert remedy is not None
    exec(remedy[1], {"Field": Field})
    one = sink(place)
    one.begin("web-1", AT)
    one.publish_tentative(key(0), table(9), 0.5, AT)
    one.publish(key(0), table(1), AT)
    assert shown(place) == [(1, False)]


def test_moved_tentative_rows_that_do_not_say_where_they_are_from_are_one_clear_line(tmp_path: Path) -> None:
    place, one = tmp_path / "t", sink(tmp_path / "t")
    one.publish_tentative(key(0), table(9), 0.5, AT)
    compacted = pa.table(DeltaTable(str(place)).to_pyarrow_table())
    nowhere = compacted.set_column(4, compacted.schema.field(4), pa.nulls(1, pa.string()))
    from deltalake import write_deltalake

    write_deltalake(str(place), nowhere, mode="append")
    with pytest.raises(CheckFailed, match="tentative rows that do not say which query and batch") as refused:
        one.publish(key(0), table(1), AT)
    assert str(place) in str(refused.value)
    DeltaTable(str(place)).delete("tentative and holdfast_query is null")
    assert one.publish(key(0), table(1), AT)
    assert shown(place) == [(1, False)]


def test_a_file_that_is_gone_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was vacuumed since the look; or the table is broken for every reader."""
    monkeypatch.setattr(delta_sink, "WAIT_SECONDS", 0.0)
    place, one = tmp_path / "t", sink(tmp_path / "t")
    for batch in range(2):
        one.publish_tentative(key(batch), table(batch), 0.5, AT)
    compact(place)
    (moved,) = place.glob("part-*.parquet")
    rows = pq.read_table(moved)
    moved.unlink()
    with pytest.raises(CheckFailed, match=rf"20 attempts: {re.escape(moved.name)} is not there"):
        one.publish(key(0), table(5), AT)
    pq.write_table(rows, moved)
    one.publish(key(0), table(5), AT)
    assert shown(place) == [(1, True), (5, False)]


def test_a_rewrite_that_vacuum_has_removed_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was committed from memory: the table named a file that was gone, and its final rows were lost."""
    place, one = tmp_path / "t", sink(tmp_path / "t")
    one.publish(key(0), table(1), AT)
    one.publish_tentative(key(1), table(20), 0.5, AT)
    compact(place)

    def fails(*given: Any, **named: Any) -> None:
        raise OSError("storage does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(DeltaTable, "create_write_transaction", fails)
        with pytest.raises(OSError, match="does not answer"):
            one.publish(key(1), table(2), AT)
    DeltaTable(str(place)).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True)
    one.publish(key(1), table(2), AT)
    assert shown(place) == [(1, False), (2, False)]


def test_rows_that_are_marked_as_deleted_are_not_brought_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Protocol:
        reader_features = ("deletionVectors",)

    place, one = tmp_path / "t", sink(tmp_path / "t")
    for batch in range(2):
        one.publish_tentative(key(batch), table(batch), 0.5, AT)
    compact(place)
    monkeypatch.setattr(DeltaTable, "protocol", lambda _: Protocol)
    with pytest.raises(CheckFailed, match="switch deletion vectors off"):
        one.publish(key(0), table(5), AT)


def test_on_object_storage(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    place = f"{s3.url}/lake/tentative-pages"
    one = sink(place)
    for batch in range(3):
        one.publish_tentative(key(batch), table(batch), 0.5, AT)
    assert compact(place) == 3
    one.publish(key(1), table(11), AT)
    assert shown(place) == [(2, True), (11, False)]
