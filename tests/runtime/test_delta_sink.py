"""Delta tables as sinks: each batch once, whoever is late; read back by the library and by a reader of our own."""

from __future__ import annotations

import datetime
import json
import random
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

import holdfast as hf
from holdfast.errors import BadInput
from holdfast.ids import BatchId, Epoch, PartitionId
from holdfast.runtime import InProcess
from holdfast.runtime.io.delta_sink import DeltaSink
from holdfast.runtime.io.delta_types import delta_rows
from holdfast.runtime.io.sinks import Output, OutputKey, StagedRows
from holdfast_lab.s3_server import S3Server

AT = Epoch.of(1, 1)


def key(batch: int, query: str = "q[0]", run: str = "web-1", revision: int = 0) -> OutputKey:
    return OutputKey(PartitionId.parse(query), BatchId(batch), revision, run=run)


def table(*numbers: int) -> pa.Table:
    return pa.table({"n": pa.array(numbers, pa.int64())})


def numbers_in(place: Path | str) -> list[int]:
    return sorted(pa.table(DeltaTable(str(place)).to_pyarrow_table())["n"].to_pylist())


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


def test_an_output_is_added_once(tmp_path: Path) -> None:
    first, second = DeltaSink(tmp_path / "t"), DeltaSink(tmp_path / "t")
    assert first.rows() is None
    assert first.count() == 0
    assert first.publish(key(0), table(1, 2), AT)
    assert second.publish(key(1), table(3), AT)
    assert not first.publish(key(1), table(3), AT), "another driver has added it since"
    assert not second.publish(key(0), table(1, 2), AT)
    assert first.publish(key(0, "q[1]"), table(4), AT)
    assert first.publish(key(0, run="web-2"), table(5), AT), "another run's batch is another one"
    assert numbers_in(tmp_path / "t") == [1, 2, 3, 4, 5]
    assert sorted(row["n"] for row in by_the_log(tmp_path / "t")) == [1, 2, 3, 4, 5]
    assert first.count() == 5


@pytest.mark.parametrize("seed", range(6))
def test_two_drivers_at_once_and_one_that_dies_add_each_batch_once(tmp_path: Path, seed: int) -> None:
    """The log of one driver's table is as old as its last look, up to the commit: at every call of either one."""
    draw = random.Random(seed)
    place = tmp_path / "t"
    drivers = [DeltaSink(place), DeltaSink(place)]
    reached = [0, 0]
    while min(reached) < 12:
        one = draw.randrange(2)
        sink, batch = drivers[one], reached[one]
        if batch >= 12:
            drivers[one], reached[one] = DeltaSink(place), draw.randrange(12)  # the next driver, from its checkpoint
            if all(at >= 12 for at in reached):
                break
            one = 1 - one
            continue
        many = draw.randrange(1, 4)
        outputs = [
            Output(key(at, query), table(at * 10 + int(query[2])))
            for at in range(batch, min(12, batch + many))
            for query in ("q[0]", "q[1]")
        ]
        other = drivers[1 - one]
        add = sink._add

        def late(*given: Any, add: Any = add, other: DeltaSink = other, outputs: list[Output] = outputs) -> None:
            """Frozen between its look at the table and its commit, while the other one commits."""
            if draw.random() < 0.5:
                other.publish_all(outputs[: draw.randrange(len(outputs) + 1)], AT)
            add(*given)

        sink._add = late  # type: ignore[method-assign]
        assert sink.publish_all(outputs, AT) == [output.key for output in outputs]
        sink._add = add  # type: ignore[method-assign]
        if draw.random() < 0.7:
            reached[one] = batch + many  # else: it dies before it notes that
        if draw.random() < 0.2:
            break
    DeltaSink(place).publish_all(
        [Output(key(at, q), table(at * 10 + int(q[2]))) for at in range(12) for q in ("q[0]", "q[1]")], AT
    )
    expected = sorted(at * 10 + q for at in range(12) for q in (0, 1))
    assert numbers_in(place) == expected
    assert sorted(row["n"] for row in by_the_log(place)) == expected


def test_many_outputs_are_one_commit(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path / "t")
    outputs = [Output(key(batch, query), table(batch)) for batch in range(5) for query in ("q[0]", "q[1]")]
    sink.publish_all(outputs, AT)
    made = DeltaTable(str(tmp_path / "t"))
    assert made.version() == 1, "one that creates the table, one with all rows"
    assert made.transaction_version("holdfast/web-1/q[0]") == 4
    assert len(by_the_log(tmp_path / "t")) == 10


def test_files_that_nodes_write_are_committed_by_the_driver(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path / "t")
    stager = sink.stager("web-0a1b")
    assert stager is not None
    assert "is not shared with this node" in str(stager.stage(key(0), table(1))), "the driver has not begun"
    sink.begin("web-1", AT)
    staged = [stager.stage(key(batch), table(batch)) for batch in (0, 1, 2, 0)]
    assert all(isinstance(one, StagedRows) for one in staged)
    assert staged[0] == staged[3], "staged again, it is the same"
    assert not (tmp_path / "t" / "_delta_log").exists(), "nothing is in the table yet"
    outputs = [Output(key(batch), None, one) for batch, one in enumerate(staged[:3]) if isinstance(one, StagedRows)]
    gone = json.loads(outputs[1].staged.place)["files"][0][0] if outputs[1].staged else ""
    (tmp_path / "t" / gone).unlink()  # by a VACUUM, after a week in which the query was parked
    assert sink.publish_all(outputs, AT) == [key(0)], "and nothing after what is gone"
    with pytest.raises(FileNotFoundError):
        sink.adopt(outputs[1].key, outputs[1].staged, AT)  # type: ignore[arg-type]
    assert sink.publish_all([Output(key(1), table(1)), outputs[2]], AT) == [key(1), key(2)], "its rows come again"
    assert numbers_in(tmp_path / "t") == [0, 1, 2]
    sink.end_staging()
    assert not list((tmp_path / "t" / "_holdfast").rglob("web-0a1b"))


def test_a_revision_replaces_the_rows_of_its_output_in_one_commit(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path / "t")
    sink.publish_all([Output(key(0), table(1)), Output(key(1), table(2)), Output(key(1, run="other"), table(7))], AT)
    before = DeltaTable(str(tmp_path / "t")).version()
    assert sink.publish(key(1, revision=1), table(20, 21), AT)
    assert DeltaTable(str(tmp_path / "t")).version() == before + 1
    assert not sink.publish(key(1, revision=1), table(20, 21), AT)
    assert not DeltaSink(tmp_path / "t").publish(key(1), table(2), AT), "a late driver does not bring the old rows back"
    assert numbers_in(tmp_path / "t") == [1, 7, 20, 21]
    assert sorted(row["n"] for row in by_the_log(tmp_path / "t")) == [1, 7, 20, 21]


def versions_in(place: Path) -> list[tuple[int, bool, float, int]]:
    rows = by_the_log(place)
    assert sorted(row["n"] for row in rows) == numbers_in(place), "both readers see the same"
    return sorted((row["n"], row["tentative"], row["fidelity"], row["revision"]) for row in rows)


def test_final_rows_replace_tentative_ones_in_one_commit(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path / "t", tentative=True)
    assert sink.corrects
    sink.publish(key(0), table(1), AT)
    assert sink.publish_tentative(key(1), table(20, 21), 0.5, AT)
    assert not DeltaSink(tmp_path / "t", tentative=True).publish_tentative(key(1), table(22), 0.75, AT)
    sink.publish_tentative(key(2), table(30), 0.75, AT)
    sink.publish_tentative(key(1, "q[1]"), table(40), 0.5, AT)
    assert versions_in(tmp_path / "t") == [
        *((1, False, 1.0, 1), (20, True, 0.5, 0), (21, True, 0.5, 0), (30, True, 0.75, 0), (40, True, 0.5, 0))
    ]
    before = DeltaTable(str(tmp_path / "t")).version()
    assert sink.publish_all([Output(key(1), table(2)), Output(key(2), table(), retracts=True)], AT) == [key(1), key(2)]
    assert DeltaTable(str(tmp_path / "t")).version() == before + 1
    expected = [(1, False, 1.0, 1), (2, False, 1.0, 1), (40, True, 0.5, 0)]
    assert versions_in(tmp_path / "t") == expected
    late = DeltaSink(tmp_path / "t", tentative=True)
    assert not late.publish_tentative(key(2), table(30), 0.75, AT), "also where the final version has no rows"
    assert not late.publish(key(1), table(2), AT)
    late.retract(key(2), pa.table({}), AT)
    assert versions_in(tmp_path / "t") == expected


def test_tentative_rows_of_a_second_outage_are_not_those_whose_commit_failed(tmp_path: Path) -> None:
    """A file that an earlier attempt has left under the batch's name stood for other rows, and for another count."""
    sink = DeltaSink(tmp_path / "t", tentative=True)
    sink.publish(key(0), table(1), AT)
    sink._write(Output(key(1), table(20, 21), fidelity=0.5), table(20, 21))  # and its commit fails: nothing names it
    assert sink.publish_tentative(key(1), table(30, 31, 32), 0.75, AT)
    assert sink.count() == 4
    assert versions_in(tmp_path / "t") == [(1, False, 1.0, 1), *((n, True, 0.75, 0) for n in (30, 31, 32))]
    sink.publish(key(1), table(2), AT)
    assert versions_in(tmp_path / "t") == [(1, False, 1.0, 1), (2, False, 1.0, 1)]


def test_tentative_rows_that_came_before_there_was_a_table_to_refuse_them_go_with_the_next_final_ones(
    tmp_path: Path,
) -> None:
    sink = DeltaSink(tmp_path / "t", tentative=True)
    sink.retract(key(0), pa.table({}), AT)  # no table, and no columns to make one with
    DeltaSink(tmp_path / "t", tentative=True).publish_tentative(key(0), table(9), 0.5, AT)
    sink.publish(key(3), table(3), AT)
    assert versions_in(tmp_path / "t") == [(3, False, 1.0, 1)]


def test_a_run_whose_name_ends_like_another_one_s_does_not_remove_its_tentative_rows(tmp_path: Path) -> None:
    """Files were told apart by their names, in which the run `eu-orders` ends as the run `orders` does."""
    place = tmp_path / "t"
    sinks = {run: DeltaSink(place, tentative=True) for run in ("orders", "eu-orders", "a", "a-q")}
    for number, (run, one) in enumerate(sinks.items()):
        one.stager(f"{run}-0123456789ab")
        query = "q-q[0]" if run == "a" else "q[0]"
        one.publish_tentative(key(0, query, run), table(100 + number), 0.5, AT)
    seen = [(100, True, 0.5, 0), (101, True, 0.5, 0), (102, True, 0.5, 0), (103, True, 0.5, 0)]
    assert versions_in(place) == seen
    for number, (run, one) in enumerate(sinks.items()):
        query = "q-q[0]" if run == "a" else "q[0]"
        one.publish(key(0, query, run), table(number), AT)
        seen = sorted([*(row for row in seen if row[0] != 100 + number), (number, False, 1.0, 1)])
        assert versions_in(place) == seen


def test_tentative_rows_in_a_file_that_an_earlier_version_has_named_are_removed(tmp_path: Path) -> None:
    """Its name does not say which query it is of without doubt; its rows do."""
    place = tmp_path / "t"
    one = DeltaSink(place, tentative=True)
    one.publish_tentative(key(0), table(7), 0.5, AT)
    one.publish_tentative(key(0, run="eu-web-1"), table(8), 0.5, AT)
    for path in [*place.glob("hf-*.parquet"), *place.glob("_delta_log/*.json")]:
        named = re.sub(r"-q[0-9a-f]{16}-t", "-t", path.name)
        if path.suffix == ".json":
            path.write_text(re.sub(r"-q[0-9a-f]{16}-t", "-t", path.read_text()))
        else:
            path.rename(path.with_name(named))
    late = DeltaSink(place, tentative=True)
    late.publish(key(0), table(1), AT)
    assert versions_in(place) == [(1, False, 1.0, 1), (8, True, 0.5, 0)]


def test_final_rows_that_nodes_have_written_replace_tentative_ones(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path / "t", tentative=True)
    stager = sink.stager("web-0a1b")
    assert stager is not None
    sink.begin("web-1", AT)
    sink.publish_tentative(key(0), table(9), 0.5, AT)
    staged = stager.stage(key(0), table(1, 2))
    assert isinstance(staged, StagedRows)
    assert sink.adopt(key(0), staged, AT)
    assert versions_in(tmp_path / "t") == [(1, False, 1.0, 1), (2, False, 1.0, 1)]


@pytest.mark.parametrize("seed", range(8))
def test_a_late_driver_s_tentative_rows_never_stay_beside_final_ones(tmp_path: Path, seed: int) -> None:
    """One driver gives tentative rows and is frozen between look and commit; another one gives the final rows."""
    draw, place = random.Random(seed), tmp_path / "t"
    old, new = DeltaSink(place, tentative=True), DeltaSink(place, tentative=True)
    final = [
        Output(key(batch), table(), retracts=True) if draw.random() < 0.3 else Output(key(batch), table(batch))
        for batch in range(8)
    ]
    given, add = 0, old._add

    def late(*rest: Any) -> None:
        nonlocal given
        many = draw.randrange(3)
        new.publish_all(final[given : given + many], AT)
        given = min(len(final), given + many)
        add(*rest)

    old._add = late  # type: ignore[method-assign]
    for batch in range(8):
        old.publish_tentative(key(batch), table(100 + batch), 0.5, AT)
    new.publish_all(final[given:], AT)
    assert versions_in(place) == [(one.key.batch, False, 1.0, 1) for one in final if not one.retracts]


def test_a_table_without_the_columns_of_versions_takes_no_tentative_rows(tmp_path: Path) -> None:
    DeltaSink(tmp_path / "t").publish(key(0), table(1), AT)
    with pytest.raises(BadInput, match="has no columns tentative, fidelity, revision"):
        DeltaSink(tmp_path / "t", tentative=True).begin("web-1", AT)


def test_columns_to_partition_by(tmp_path: Path) -> None:
    rows = pa.table(
        {
            "day": pa.array([datetime.date(2026, 11, 17), None, datetime.date(2026, 11, 17)]),
            "page": ["a'b", "é/?", None],
            "n": pa.array([1, 2, 3], pa.int32()),
        }
    )
    DeltaSink(tmp_path / "t", ["day", "page"]).publish(key(0), rows, AT)
    made = DeltaTable(str(tmp_path / "t"))
    found = pa.table(made.to_pyarrow_table()).select(["day", "page", "n"]).sort_by("n")
    assert found.to_pylist() == rows.to_pylist()
    assert made.metadata().partition_columns == ["day", "page"]
    with pytest.raises(BadInput, match="is partitioned by day, page, not by nothing") as refused:
        DeltaSink(tmp_path / "t").begin("web-1", AT)
    assert "partition_by=['day', 'page']" in str(refused.value)
    with pytest.raises(BadInput, match="has no column 'hour' to partition by; there are n"):
        DeltaSink(tmp_path / "u", ["hour"]).publish(key(0), table(1), AT)


def test_a_table_with_other_columns_is_refused_in_one_line(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "t"), pa.table({"other": ["x"]}))
    with pytest.raises(BadInput, match=r"has the columns other string, and the output has n int64") as refused:
        DeltaSink(tmp_path / "t").publish(key(0), table(1), AT)
    assert "\n" not in str(refused.value)


def test_types_are_those_of_delta() -> None:
    rows = pa.table(
        {
            "t": pa.array([datetime.datetime(2026, 11, 17, 1, 2, 3, 4)], pa.timestamp("ns")),
            "z": pa.array([datetime.datetime(2026, 11, 17, tzinfo=datetime.UTC)], pa.timestamp("ms", "Europe/Berlin")),
            "u": pa.array([255], pa.uint8()),
            "d": pa.array(["x"]).dictionary_encode(),
            "l": pa.array([[1, 2]], pa.list_(pa.uint32())),
        }
    )
    made = delta_rows(rows).schema
    assert made.types == [
        pa.timestamp("us"),
        pa.timestamp("us", "UTC"),
        pa.int16(),
        pa.string(),
        pa.list_(pa.int64()),
    ]
    with pytest.raises(BadInput, match="column 'd' is duration"):
        delta_rows(pa.table({"d": pa.array([datetime.timedelta(1)])}))


def visits(count: int) -> pa.Table:
    return pa.table({"page": [f"p{n % 3}" for n in range(count)], "at": [float(n) for n in range(count)]})


def test_a_run_adds_its_outputs_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    def application() -> hf.Application:
        app = hf.Application("web")
        source = app.source("visits", schema="page string, at double", event_time="at")
        counts = source.key_by("page").window(hf.tumbling(10)).count(id="counts")
        counts.output("pages", sink=hf.delta(tmp_path / "lake"))
        return app

    expected = InProcess(application(), sinks={"pages": hf.memory()})
    expected.feed({"visits": visits(100)})
    expected.close()
    run = InProcess(application(), directory=tmp_path / "run")
    run.feed({"visits": visits(60)})
    run.checkpoint()
    run.feed({"visits": visits(100).slice(60, 20)})  # published, and in no checkpoint when the driver dies
    run = InProcess(application(), directory=tmp_path / "run")
    run.feed({"visits": visits(100).slice(80)})
    run.close()
    found = pa.table(DeltaTable(str(tmp_path / "lake")).to_pyarrow_table()).to_pylist()
    assert sorted(map(str, found)) == sorted(map(str, expected.rows("pages").to_pylist()))


def test_a_table_on_object_storage(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    place = f"{s3.url}/lake/pages"
    first, late = DeltaSink(place), DeltaSink(place)
    stager = first.stager("web-0c")
    first.begin("web-1", AT)
    assert stager is not None
    staged = stager.stage(key(0), table(1))
    assert isinstance(staged, StagedRows), staged
    assert first.publish_all([Output(key(0), None, staged), Output(key(1), table(2))], AT) == [key(0), key(1)]
    add = late._add

    def frozen(*given: Any) -> None:
        first.publish_all([Output(key(2), table(3))], AT)
        add(*given)

    late._add = frozen  # type: ignore[method-assign]
    assert late.publish_all([Output(key(2), table(3))], AT) == [key(2)]
    assert numbers_in(place) == [1, 2, 3]
