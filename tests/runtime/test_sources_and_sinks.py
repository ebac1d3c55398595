"""Source logs and sinks: whole or not at all, once, and only for whom they belong to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset
import pytest

from holdfast import Application, tumbling
from holdfast.errors import BadInput, CheckFailed
from holdfast.ids import BatchId, Epoch, OperatorId, PartitionId
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
from holdfast.runtime.io.sources import DirectoryLog, MemoryLog, SourceLog
from holdfast.runtime.program import Program, SourceProgram
from holdfast.runtime.state.store import StaleEpoch
from holdfast.runtime.times import END_OF_TIME, NOT_YET

S = PartitionId.parse("s[0]")


def source(lateness: float = 1.0, **options: object) -> SourceProgram:
    app = Application("x")
    schema = {"n": "int64", "at": "double"}
    app.source("s", schema=schema, event_time="at", lateness=lateness, parallelism=2, **options)  # type: ignore[arg-type]
    return Program(app).sources[OperatorId("s")]


def rows(*at: float | None) -> pa.Table:
    return pa.table({"n": list(range(len(at))), "at": pa.array(at, pa.float64())})


def numbers(log: SourceLog, batch: int) -> list[list[int]]:
    blocks = log.blocks(BatchId(batch), Epoch(3))
    assert [block.header.receiver.index for block in blocks] == [0, 1]
    assert {block.header.epoch for block in blocks} == {3}
    return [[] if block.rows is None else block.rows["n"].to_pylist() for block in blocks]


@pytest.fixture(params=["memory", "directory", "read anew"])
def logs(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], SourceLog]:
    made = source()
    if request.param == "memory":
        memory = MemoryLog(made, "q1")
        return lambda: memory
    one = DirectoryLog(made, "q1", tmp_path)
    return (lambda: DirectoryLog(made, "q1", tmp_path)) if request.param == "read anew" else (lambda: one)


def test_a_log_keeps_batches_and_its_watermark_goes_on(logs: Callable[[], SourceLog]) -> None:
    assert logs().frontier == -1
    first = logs().append(BatchId(0), rows())
    assert (first.watermark, first.rows) == (NOT_YET, (0, 0))
    assert logs().append(BatchId(1), rows(3.0, None, 5.5)).watermark == 4_500_000
    assert logs().append(BatchId(2), rows(1.0)).watermark == 4_500_000, "never back"
    again = logs().append(BatchId(1), rows(99.0, 99.0))
    assert again.watermark == 4_500_000, "delivered again: the manifest wins"
    assert numbers(logs(), 1) == [[0], [1, 2]]
    assert numbers(logs(), 0) == [[], []]
    assert logs().frontier == 2
    with pytest.raises(BadInput, match="batch 4 cannot follow batch 2"):
        logs().append(BatchId(4), rows())
    logs().trim(BatchId(1))
    with pytest.raises(CheckFailed, match="batch 1 is not in the log"):
        logs().blocks(BatchId(1), Epoch(1))
    assert numbers(logs(), 2) == [[], [0]]
    assert logs().append(BatchId(3), rows(), last=True).watermark == END_OF_TIME


def test_content_without_a_manifest_never_happened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = DirectoryLog(source(), "q1", tmp_path)

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("os.link", crash)
        with pytest.raises(KeyboardInterrupt):
            log.append(BatchId(0), rows(1.0, 2.0))
    assert list(tmp_path.glob("*.blocks")), "the content is there"
    anew = DirectoryLog(source(), "q1", tmp_path)
    assert anew.frontier == -1
    anew.append(BatchId(0), rows(7.0))
    assert anew.manifest(BatchId(0)).rows == (0, 1)  # type: ignore[union-attr]
    assert len(list(tmp_path.glob("*.blocks"))) == 1, "what never happened is swept away"


def test_a_log_refuses_another_query(tmp_path: Path) -> None:
    DirectoryLog(source(), "q1", tmp_path)
    DirectoryLog(source(), "q1", tmp_path)
    with pytest.raises(BadInput, match="belongs to source s of query q1, not to source s of query q2"):
        DirectoryLog(source(), "q2", tmp_path)


def test_a_damaged_manifest_is_named(tmp_path: Path) -> None:
    DirectoryLog(source(), "q1", tmp_path).append(BatchId(0), rows(1.0))
    (tmp_path / "0.manifest").write_text("{")
    with pytest.raises(CheckFailed, match=r"0\.manifest: the manifest is damaged"):
        DirectoryLog(source(), "q1", tmp_path)


def test_rows_of_a_key_are_logged_for_its_partition() -> None:
    log = MemoryLog(source(key="n"), "q1")
    log.append(BatchId(0), pa.table({"n": [5, 6, 7, 5, 6, 7], "at": [1.0] * 6}))
    found = numbers(log, 0)
    assert sorted(n for part in found for n in part) == [5, 5, 6, 6, 7, 7]
    assert not set(found[0]) & set(found[1])


# -- sinks ----------------------------------------------------------------------------------------------------------


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


# -- ends -----------------------------------------------------------------------------------------------------------


def test_nothing_follows_a_log_that_is_closed(logs: Callable[[], SourceLog]) -> None:
    logs().append(BatchId(0), rows(1.0))
    logs().append(BatchId(1), rows(), last=True)
    assert logs().append(BatchId(1), rows()).watermark == END_OF_TIME, "said again, it is what it was"
    with pytest.raises(BadInput, match=r"source s: was closed with batch 1.*begin in another directory"):
        logs().append(BatchId(2), rows(2.0))
    assert logs().frontier == 1


def test_manifests_of_long_trimmed_batches_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.runtime.io.sources.MANIFESTS_KEPT", 3)
    log = DirectoryLog(source(), "q1", tmp_path)
    for number in range(20):
        log.append(BatchId(number), rows(float(number)))
    log.trim(BatchId(15))
    assert sorted(int(path.stem) for path in tmp_path.glob("*.manifest")) == list(range(13, 20))
    anew = DirectoryLog(source(), "q1", tmp_path)
    assert anew.frontier == 19
    assert anew.append(BatchId(20), rows()).watermark == 18_000_000, "the watermark goes on"
    assert numbers(anew, 17) == [[], [0]]
    anew.trim(BatchId(17))
    assert sorted(int(path.stem) for path in tmp_path.glob("*.manifest")) == list(range(15, 21))


def test_a_log_that_is_read_for_long_keeps_few_manifests_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.runtime.io.sources.MANIFESTS_KEPT", 4)
    writer, reader = DirectoryLog(source(), "q1", tmp_path), DirectoryLog(source(), "q1", tmp_path)
    for number in range(40):
        writer.append(BatchId(number), rows(1.0))
        assert numbers(reader, number) == [[], [0]]
    assert len(reader._manifests) <= 8
    assert reader.frontier == 39
