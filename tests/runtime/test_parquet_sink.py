"""Parquet sinks: whole files or none, each once, also where nodes write the rows."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.dataset
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
from holdfast.runtime.program import Program
from holdfast.runtime.state.store import StaleEpoch

S = PartitionId.parse("s[0]")


def key(batch: int, revision: int = 0) -> OutputKey:
    return OutputKey(S, BatchId(batch), revision)


def table(*numbers: int) -> pa.Table:
    return pa.table({"n": list(numbers)})


def staged(folder: str, cycle: int, *numbers: int) -> StagedRows:
    found = ParquetStager(folder).stage(cycle, table(*numbers))
    assert isinstance(found, StagedRows)
    return found


def staging(sink: ParquetSink, start: str) -> str:
    """Return the folder in which nodes write during a start."""
    stager = sink.stager(start)
    assert stager is not None
    return stager.folder


def numbers(sink: ParquetSink) -> list[int]:
    found = sink.rows()
    return [] if found is None else found["n"].to_pylist()


def test_a_parquet_sink_that_fails_half_way_shows_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_parquet_sink_counts_without_reading_rows(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path)
    for number in range(3):
        sink.publish(key(number), table(1, 2), Epoch(1))
    sink.publish(key(1, revision=1), table(9), Epoch(1))
    assert sink.count() == 5
    sink.sync()
    assert not sink._unsynced


def test_a_directory_belongs_to_one_run(tmp_path: Path) -> None:
    """A second run counts its batches from 0 as well: its rows would pass for written already."""
    first = ParquetSink(tmp_path)
    first.begin("run-1", Epoch.of(1, 1))
    assert first.publish(key(0), table(1), Epoch.of(1, 1))
    with pytest.raises(BadInput, match=r"has rows of another run \(run-1\); give this run an output directory"):
        ParquetSink(tmp_path).begin("run-2", Epoch.of(1, 1))
    following = ParquetSink(tmp_path)
    following.begin("run-1", Epoch.of(2, 1))
    with pytest.raises(StaleEpoch, match="claim 1 is over"):
        first.publish(key(1), table(2), Epoch.of(1, 5))
    assert not following.publish(key(0), table(1), Epoch.of(2, 1)), "it was here already"
    assert numbers(following) == [1]


# -- rows that nodes write ------------------------------------------------------------------------------------------


def test_what_a_node_wrote_counts_once_it_is_adopted(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path)
    folder = staging(sink, "first")
    one = staged(folder, 0, 1, 2)
    assert numbers(sink) == []
    assert pyarrow.dataset.dataset(tmp_path, format="parquet").to_table().num_rows == 0, "readers do not see it either"
    assert sink.adopt(key(0), one, Epoch(1))
    assert not sink.adopt(key(0), staged(folder, 1, 9, 9), Epoch(1)), "it was here already"
    assert sink.adopt(key(0, 1), staged(folder, 1, 4), Epoch.of(1, 1)), "a later revision holds"
    assert numbers(sink) == [4]
    assert sink.count() == 1
    with pytest.raises(StaleEpoch, match="claim 0 is over"):
        sink.adopt(key(1), staged(folder, 2, 5), Epoch.of(0, 9))
    plain = pyarrow.dataset.dataset(tmp_path, format="parquet").to_table()
    assert plain["n"].to_pylist() == [4]


def test_what_nothing_names_is_swept_away(tmp_path: Path) -> None:
    earlier = ParquetSink(tmp_path)
    staged(staging(earlier, "first"), 7, 1)
    sink = ParquetSink(tmp_path)
    folder = staging(sink, "second")
    staged(folder, 2, 1)  # of an attempt that came to nothing
    last, next_one = staged(folder, 3, 2), staged(folder, 3, 3)
    sink.adopt(key(0), last, Epoch(2))
    sink.sync()
    assert [path.name for path in Path(folder).iterdir()] == [Path(next_one.place).name], (
        "this cycle's may still be named"
    )
    assert Path(folder).parent.joinpath("first").exists(), "an earlier driver may not be over yet"
    sink.sweep_staged()
    assert [path.name for path in Path(folder).parent.iterdir()] == ["second"]
    sink.adopt(key(1), next_one, Epoch(2))
    sink.end_staging()
    assert not list(Path(folder).parent.iterdir())
    assert numbers(sink) == [2, 3]


def test_where_a_node_cannot_write_it_says_so_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "FileNotFoundError" in str(ParquetStager(str(tmp_path / "not shared")).stage(0, table(1)))
    folder = staging(ParquetSink(tmp_path), "first")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        assert "No space left" in str(ParquetStager(folder).stage(0, table(1)))
    odd = pa.table({"n": pa.array([{}], pa.struct([]))})
    assert "Parquet" in str(ParquetStager(folder).stage(0, odd)), "Parquet has no such type"
    assert not list(Path(folder).iterdir())


def test_tidying_never_ends_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = ParquetSink(tmp_path)
    folder = staging(sink, "first")
    (Path(folder) / "of somebody else.staged").touch()
    staged(folder, 0, 1)
    sink.adopt(key(0), staged(folder, 5, 2), Epoch(1))

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refused)
        sink.sync()
    sink.sync()
    assert [path.name for path in Path(folder).iterdir()] == ["of somebody else.staged"]


def test_an_earlier_revision_stays_where_the_later_one_was_swept_away(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path)
    folder = staging(sink, "first")
    sink.adopt(key(0), staged(folder, 0, 1), Epoch(1))
    with pytest.raises(FileNotFoundError):
        sink.adopt(key(0, 1), StagedRows(f"{folder}/1-gone.staged", 1, 1), Epoch(1))
    assert numbers(sink) == [1]


def test_blocks_without_rows_are_out_with_what_nodes_wrote(tmp_path: Path) -> None:
    app = Application("x")
    source = app.source("s", schema={"n": "int64", "at": "double"}, event_time="at")
    source.window(tumbling(1)).count(id="c").output()
    program, query, sink = Program(app), PartitionId(OperatorId("c"), 0), ParquetSink(tmp_path)
    outputs = Outputs(program, {OperatorId("c"): sink}, lambda operator, feed: MemorySink())
    folder = staging(sink, "first")

    def block(batch: int) -> Block:
        edge = Edge(query.operator, SINK)
        return Block(Header(edge, query, PartitionId(SINK, 0), BatchId(batch), Epoch(1), 0))

    written = {(query, BatchId(0)): staged(folder, 0, 1, 2), (query, BatchId(2)): staged(folder, 0, 3)}
    done = outputs.publish([block(0), block(1), block(2)], {query: BatchId(-1)}, NOTHING, Epoch(1), written)
    assert done.out == [(query, 0, 2), (query, 1, 0), (query, 2, 1)], "a batch without rows is out too"
    assert numbers(sink) == [1, 2, 3]
    gone = {(query, BatchId(3)): StagedRows(f"{folder}/3-gone.staged", 3, 1)}
    swept = outputs.publish([block(3), block(4)], done.reached, NOTHING, Epoch(1), gone)
    assert (swept.out, swept.reached, swept.problem) == ([], {}, None), "it is not out, and comes again"
