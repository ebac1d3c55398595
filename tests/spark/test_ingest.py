"""From streaming DataFrames through the source log to outputs, on a real cluster."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from holdfast import Application, count, tumbling
from holdfast.errors import BadInput
from holdfast.ids import BatchId, Epoch
from holdfast.runtime.io.sources import DirectoryLog
from holdfast.runtime.program import Program
from holdfast.spark.ingest import Ingestion, IngestionStopped
from holdfast.spark.run import SparkRun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def words(folder: Path) -> Application:
    app = Application("words")
    path = str(folder)
    stream = app.source(
        "words",
        lambda spark: spark.readStream.schema("word string, at timestamp").option("maxFilesPerTrigger", 1).json(path),
        schema={"word": "string", "at": "timestamp"},
        event_time="at",
        parallelism=2,
    )
    counted = stream.key_by("word").window(tumbling("1 minute"))
    counted.agg(id="counts", parallelism=2, n=count()).output()
    return app


def write(folder: Path, number: int) -> None:
    folder.mkdir(exist_ok=True)
    rows = [{"word": word, "at": f"2026-01-01T00:{number:02d}:{second:02d}"} for second, word in enumerate("abcab")]
    path = folder / f"{number:03d}.json"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    os.utime(path, (1_000_000 + number, 1_000_000 + number))  # Spark reads files in the order they were changed


def drain(ingestion: Ingestion, run: SparkRun) -> None:
    ingestion.start(available_now=True)
    while ingestion.reading:
        time.sleep(0.05)
    while ingestion.make_batch() is not None:
        pass
    run.run()


@pytest.mark.cluster
def test_files_are_counted_once_over_two_drivers(spark: SparkSession, tmp_path: Path) -> None:
    folder, place, sinks = tmp_path / "in", tmp_path / "run", {"counts": str(tmp_path / "out")}
    for number in range(3):
        write(folder, number)
    first = SparkRun(words(folder), spark, place, sinks=sinks)
    drain(Ingestion(words(folder), spark, first, place), first)
    first.close()
    # A driver that died after it had listed a batch and before it had logged it.
    write(folder, 3)
    dying = SparkRun(words(folder), spark, place, sinks=sinks)
    ingestion = Ingestion(words(folder), spark, dying, place)
    ingestion._log = lambda batch, taken: None  # type: ignore[method-assign]
    ingestion.start(available_now=True)
    while ingestion.reading:
        time.sleep(0.05)
    before = dying.logged
    assert ingestion.make_batch() == before + 1
    assert dying.logged == before, "listed, not logged"
    dying.close()
    last = SparkRun(words(folder), spark, place, sinks=sinks)
    again = Ingestion(words(folder), spark, last, place)
    assert last.logged == before + 1, "the listed batch is in the log now"
    drain(again, last)
    last.log({}, last=True)
    last.run()
    found = sorted((row["word"], str(row["window_start"]), row["n"]) for row in last.rows("counts").to_pylist())
    assert found == sorted(
        (word, f"2026-01-01 00:{number:02d}:00", n) for number in range(4) for word, n in (("a", 2), ("b", 2), ("c", 1))
    )
    last.close()


@pytest.mark.cluster
def test_sources_that_cannot_be_read_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    bare = Application("bare")
    bare.source("s", schema={"a": "int64"}).output()
    run = SparkRun(bare, spark, tmp_path / "bare")
    with pytest.raises(BadInput, match="no streaming DataFrame"):
        Ingestion(bare, spark, run, tmp_path / "bare")
    for name, frame, problem in (
        ("batch", lambda spark: spark.range(3), "is not a streaming DataFrame"),
        ("columns", lambda spark: spark.readStream.format("rate").load(), "has no column 'a'"),
    ):
        app = Application(name)
        app.source("s", frame, schema={"a": "int64"}).output()
        run = SparkRun(app, spark, tmp_path / name)
        with pytest.raises(BadInput, match=problem):
            Ingestion(app, spark, run, tmp_path / name).start()


# -- what needs no cluster: micro-batches are handed in as Spark would -------------------------------------------------


class Frame:
    """A micro-batch of so many tasks, as far as ingestion knows a DataFrame."""

    def __init__(self, *tasks: pa.Table) -> None:
        self._tasks = tasks

    def mapInArrow(self, work: Any, schema: str) -> Frame:  # noqa: N802
        self._found = [batch for rows in self._tasks for batch in work(iter(rows.to_batches()))]
        return self

    def toArrow(self) -> pa.Table:  # noqa: N802
        return pa.Table.from_batches(self._found)


def two_streams() -> Application:
    app = Application("two")
    for name in ("left", "right"):
        stream = app.source(name, lambda spark: None, schema={"n": "int64", "at": "double"}, event_time="at")
        stream.output()
    return app


class Bench:
    """A run as far as ingestion knows it, its ingestion and its logs."""

    def __init__(self, directory: Path, *, most_behind: int = 10, **options: Any) -> None:
        self.program = Program(two_streams())
        self.logs = {
            name: DirectoryLog(source, "two", directory / "sources" / name)
            for name, source in self.program.sources.items()
        }
        self.live_frontier = BatchId(-1)
        options = {**options, "most_behind": most_behind}
        self.ingestion = Ingestion(two_streams(), None, self, directory, **options)  # type: ignore[arg-type]

    @property
    def logged(self) -> BatchId:
        return min(log.frontier for log in self.logs.values())

    def arrive(self, name: str, number: int, *tasks: list[float]) -> None:
        frame = Frame(*(pa.table({"n": range(len(at)), "at": pa.array(at, pa.float64())}) for at in tasks))
        self.ingestion._arrived(name, frame, number)  # type: ignore[arg-type]

    def times(self, name: str, batch: int) -> list[float]:
        rows = self.logs[name].block(BatchId(batch), 0, Epoch(1)).rows
        return [] if rows is None else rows["at"].to_pylist()

    def watermark(self, name: str, batch: int) -> float:
        manifest = self.logs[name].manifest(BatchId(batch))
        assert manifest is not None
        assert manifest.watermark is not None
        return manifest.watermark / 1e6


def test_a_micro_batch_that_comes_again_is_taken_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.arrive("left", 0, [1.0, 2.0], [], [3.0])
    bench.arrive("left", 0, [9.0])
    bench.arrive("right", 0, [5.0])
    assert bench.ingestion.make_batch() == 0
    bench.arrive("left", 0, [9.0])  # after it was taken
    assert bench.ingestion.make_batch() is None
    assert (bench.times("left", 0), bench.times("right", 0)) == ([1.0, 2.0, 3.0], [5.0]), "in the order of the tasks"
    anew = Bench(tmp_path)
    anew.arrive("left", 0, [9.0])
    assert anew.ingestion.make_batch() is None, "another driver knows it too"
    anew.arrive("left", 1, [4.0])
    assert anew.ingestion.make_batch() == 1
    assert (anew.times("left", 1), anew.times("right", 1)) == ([4.0], [])


def test_pieces_without_a_list_never_happened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path)

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("os.link", crash)
        with pytest.raises(KeyboardInterrupt):
            bench.arrive("left", 0, [1.0])
    pieces = tmp_path / "sources" / "left"
    assert len(list(pieces.glob("*.rows"))) == 1
    anew = Bench(tmp_path)
    assert anew.ingestion.make_batch() is None
    anew.arrive("left", 0, [2.0])
    assert len(list(pieces.glob("*.rows"))) == 1, "what the dead driver left is swept away"
    assert anew.ingestion.make_batch() == 0
    assert anew.times("left", 0) == [2.0]
    anew.logs["left"].trim(BatchId(0))
    assert not list(pieces.glob("*.rows")), "trimmed with its batch"


def test_a_source_waits_when_too_much_is_waiting(tmp_path: Path) -> None:
    bench = Bench(tmp_path, most_behind=2, most_arrivals=1)
    for number in range(2):
        bench.arrive("left", number, [float(number)])
    assert bench.ingestion.make_batch() == 0
    assert bench.ingestion.waiting == {"left": 2, "right": 0}, "one arrived, one logged and not processed"
    third = Thread(target=bench.arrive, args=("left", 2, [2.0]))
    third.start()
    bench.arrive("right", 0, [7.0])  # another source does not wait for it
    assert bench.ingestion.waiting["left"] == 2
    bench.live_frontier = BatchId(0)
    third.join(120)
    assert bench.ingestion.waiting["left"] == 2, "the third is in"
    bench.ingestion.stop()
    with pytest.raises(IngestionStopped):
        bench.arrive("left", 3, [3.0])


def test_an_idle_source_lets_the_watermark_go_where_asked_to(tmp_path: Path) -> None:
    for idle, stands in ((None, [5.0] * 6), (2, [5.0, 5.0, 5.0, 30.0, 40.0, 50.0])):
        bench = Bench(tmp_path / str(idle), idle_batches=idle)
        for batch in range(6):
            bench.arrive("left", batch, [10.0 * batch + 10])
            if batch == 0:
                bench.arrive("right", 0, [5.0])
            assert bench.ingestion.make_batch() == batch
        assert [bench.watermark("right", batch) for batch in range(6)] == stands
        bench.arrive("right", 1, [100.0])
        assert bench.ingestion.make_batch() == 6
        assert bench.watermark("right", 6) == 100.0


def test_rows_of_another_type_are_named(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    with pytest.raises(BadInput, match="column 'n' of a batch of source left is string, declared as int64"):
        bench.ingestion._arrived("left", Frame(pa.table({"n": ["x"], "at": [1.0]})), 0)  # type: ignore[arg-type]
    failed = SimpleNamespace(exception=lambda: "PythonException", isActive=False)
    bench.ingestion._queries["left"] = failed  # type: ignore[index,assignment]
    with pytest.raises(BadInput, match="source left is string"):
        bench.ingestion.reading  # noqa: B018


@pytest.mark.cluster
def test_a_source_without_the_checkpoint_it_was_read_with_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Spark would count its micro-batches anew, and what they bring would pass for delivered already."""
    folder, place = tmp_path / "in", tmp_path / "run"
    write(folder, 0)
    run = SparkRun(words(folder), spark, place)
    drain(Ingestion(words(folder), spark, run, place), run)
    again = Ingestion(words(folder), spark, run, place)
    shutil.rmtree(place / "ingest" / "words" / "checkpoint")
    with pytest.raises(BadInput, match=r"source words: .*checkpoint: Spark's checkpoint of this source is gone"):
        again.start(available_now=True)
    run.close()
