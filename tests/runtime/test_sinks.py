"""Sinks: outputs whole or not at all, and once."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.dataset
import pytest

from holdfast import Application, tumbling
from holdfast.errors import BadInput
from holdfast.ids import BatchId, Epoch, PartitionId
from holdfast.runtime import (
    ConsoleSink,
    FunctionSink,
    MemorySink,
    OutputKey,
    ParquetSink,
    TransactionalSink,
    run_in_process,
)
from holdfast.runtime.coordinator.outputs import as_sink
from holdfast.runtime.io.sinks import Sink
from holdfast.runtime.state.store import StaleEpoch

S = PartitionId.parse("s[0]")


def rows(*at: float | None) -> pa.Table:
    return pa.table({"n": list(range(len(at))), "at": pa.array(at, pa.float64())})


def key(batch: int, revision: int = 0) -> OutputKey:
    return OutputKey(S, BatchId(batch), revision)


def table(*numbers_: int) -> pa.Table:
    return pa.table({"n": list(numbers_)})


@pytest.mark.parametrize("kind", ["memory", "parquet"])
def test_an_output_is_taken_once_and_a_later_revision_holds(kind: str, tmp_path: Path) -> None:
    memory = MemorySink()

    def sink() -> MemorySink | ParquetSink:
        return memory if kind == "memory" else ParquetSink(tmp_path)

    assert sink().rows() is None
    assert sink().publish(key(0), table(1, 2), Epoch(1))
    assert not sink().publish(key(0), table(9, 9), Epoch(1))
    assert sink().publish(key(1), table(3), Epoch(1))
    assert sink().publish(key(0, 1), table(4), Epoch.of(2, 1))
    if kind == "memory":
        with pytest.raises(StaleEpoch, match=r"s\[0\], batch 2, revision 0: claim 0 is over"):
            sink().publish(key(2), table(5), Epoch(1))
    found = sink().rows()
    assert found is not None
    assert found["n"].to_pylist() == [4, 3]
    if kind == "parquet":
        plain = pyarrow.dataset.dataset(tmp_path, format="parquet").to_table()
        assert sorted(plain["n"].to_pylist()) == [3, 4], "any Parquet reader sees the same"


def test_functions_and_the_console() -> None:
    stored: dict[OutputKey, pa.Table] = {}
    exactly = TransactionalSink(stored.__contains__, lambda rows_out, at: stored.update({at: rows_out}))
    assert [exactly.publish(key(0), table(1), Epoch(1)) for _ in range(2)] == [True, False]
    seen: list[OutputKey] = []
    least = FunctionSink(lambda rows_out, at: seen.append(at))
    assert [least.publish(key(0), table(1), Epoch(1)) for _ in range(2)] == [True, True]
    assert seen == [key(0), key(0)], "at least once, with its key"
    lines: list[str] = []
    console = ConsoleSink(lines.append, most_rows=2)
    assert [console.publish(key(3), table(7, 8, 9), Epoch(1)) for _ in range(2)] == [True, False]
    assert lines == ["s[0], batch 3, revision 0: 3 rows", "  n=7", "  n=8", "  and 1 more"]
    for sink in (exactly, least):
        sink.publish(key(1), table(1), Epoch.of(5, 1))
        with pytest.raises(StaleEpoch):
            sink.publish(key(2), table(1), Epoch.of(4, 9))


def test_rows_of_another_run_do_not_pass_for_written() -> None:
    """Finding 4, of a table that keeps keys: a new run found those of the one before, and dropped its rows."""
    stored: dict[str, list[int]] = {}
    for _ in range(2):
        app = Application("x")
        sink = TransactionalSink(
            lambda at: str(at) in stored, lambda rows_out, at: stored.update({str(at): rows_out["n"].to_pylist()})
        )
        app.source("s", schema={"n": "int64", "at": "double"}).output(sink=sink)
        run_in_process(app, [{"s": rows(0.5, 0.7)}])
    assert list(stored.values()) == [[0, 1], [0, 1]]
    assert len({name.partition(": ")[0] for name in stored}) == 2, "a key names its run"


def test_a_write_that_fails_because_an_earlier_driver_has_written_is_none() -> None:
    stored: dict[str, pa.Table] = {}

    def write(rows_out: pa.Table, at: OutputKey) -> None:
        if at == key(0):
            stored[str(at)] = rows_out  # the other driver, between the question and the insert
        raise OSError("duplicate key")

    sink = TransactionalSink(lambda at: str(at) in stored, write)
    assert not sink.publish(key(0), table(1), Epoch(1))
    with pytest.raises(OSError, match="duplicate key"):
        sink.publish(key(1), table(1), Epoch(1))


def test_an_application_names_its_sinks(tmp_path: Path) -> None:
    kept: list[int] = []
    app = Application("x")
    stream = app.source("s", schema={"n": "int64", "at": "double"}, event_time="at")
    stream.window(tumbling(1)).count(id="files").output(sink=str(tmp_path / "out"))
    stream.output(sink=lambda rows_out, at: kept.extend(rows_out["n"].to_pylist()))
    done = run_in_process(app, [{"s": rows(0.5, 0.7)}, {"s": rows(1.5)}])
    assert done.rows("files")["count"].to_pylist() == [2, 1]
    assert kept == [0, 1, 0]
    with pytest.raises(BadInput, match="no sink that keeps rows"):
        done.rows("s")
    for given, kind in ((None, MemorySink), (tmp_path, ParquetSink), (print, FunctionSink), (MemorySink(), MemorySink)):
        made: Sink = as_sink(given)
        assert isinstance(made, kind)
    with pytest.raises(BadInput, match="3 is not a sink"):
        as_sink(3)


def test_a_sink_of_the_user_s_needs_only_publish() -> None:
    class Own:
        def __init__(self) -> None:
            self.taken: list[int] = []

        def publish(self, key: OutputKey, rows: pa.Table, epoch: Epoch) -> bool:
            self.taken.append(rows.num_rows)
            return True

    class Knows(Own):
        run = ""

        def begin(self, run: str, epoch: Epoch) -> None:
            self.run = run

    own = Own()
    sink = as_sink(own)
    sink.begin("a run", Epoch(1))
    assert sink.stager("start") is None
    sink.sweep_staged()
    sink.end_staging()
    assert sink.publish(key(0), pa.table({"n": [1, 2]}), Epoch(1))
    assert own.taken == [2]
    knows = Knows()
    as_sink(knows).begin("a run", Epoch(1))
    assert knows.run == "a run", "what it has of the protocol is its own"
