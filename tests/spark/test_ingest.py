"""From streaming DataFrames through the source log to outputs, on a real cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from holdfast import Application, count, tumbling
from holdfast.errors import BadInput
from holdfast.ids import BatchId, Epoch, OperatorId
from holdfast.runtime.io.batch_log import BatchLog
from holdfast.runtime.io.source_pieces import write_piece
from holdfast.runtime.program import Program
from holdfast.runtime.state.store import StaleEpoch
from holdfast.spark import reader_checkpoint
from holdfast.spark.ingest import Ingestion, IngestionStopped
from holdfast.spark.reader_checkpoint import ReaderCheckpoint, sweep_folders, through_file_system
from holdfast.spark.run import SparkRun
from holdfast.spark.source_commits import drops_committed, sources_of
from holdfast.storage.memory import MemoryStorage
from holdfast.storage.storage import Storage

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
    drain(Ingestion(words(folder), spark, first), first)
    first.close()
    # A driver that dies when a micro-batch has arrived and is in no batch yet.
    write(folder, 3)
    dying = SparkRun(words(folder), spark, place, sinks=sinks)
    ingestion = Ingestion(words(folder), spark, dying)
    ingestion.start(available_now=True)
    while ingestion.reading:
        time.sleep(0.05)
    assert ingestion.intake.pending
    before = dying.logged
    ingestion.stop()
    dying.close()
    last = SparkRun(words(folder), spark, place, sinks=sinks)
    assert last.logged == before
    again = Ingestion(words(folder), spark, last)
    drain(again, last)
    last.log({}, last=True)
    last.run()
    found = sorted((row["word"], str(row["window_start"]), row["n"]) for row in last.rows("counts").to_pylist())
    assert found == sorted(
        (word, f"2026-01-01 00:{number:02d}:00", n) for number in range(4) for word, n in (("a", 2), ("b", 2), ("c", 1))
    )
    last.close()


@pytest.mark.cluster
def test_a_query_writes_its_checkpoint_through_the_file_system_and_later_ones_as_the_session_says(
    spark: SparkSession, tmp_path: Path
) -> None:
    def managers() -> set[str]:
        """Start a query, and return what its logs are written through."""
        frame = spark.readStream.schema("word string").json(str(tmp_path))
        writer = frame.writeStream.foreachBatch(lambda rows, number: None)
        query = writer.option("checkpointLocation", str(tmp_path / f"{len(list(tmp_path.iterdir()))}")).start()
        query.processAllAvailable()
        stream = query._jsq.streamingQuery()
        query.stop()
        return {str(log.fileManager().getClass().getSimpleName()) for log in (stream.offsetLog(), stream.commitLog())}

    write(tmp_path / "in", 0)
    with through_file_system(spark):
        assert managers() == {"FileSystemBasedCheckpointFileManager"}
    assert managers() == {"FileContextBasedCheckpointFileManager"}
    key = "spark.sql.streaming.checkpointFileManagerClass"
    spark.conf.set(key, "org.example.Own")
    try:
        with through_file_system(spark):
            assert spark.conf.get(key) == "org.example.Own", "what a user has chosen stays"
        assert spark.conf.get(key) == "org.example.Own"
    finally:
        spark.conf.unset(key)


@pytest.mark.cluster
def test_sources_that_cannot_be_read_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    bare = Application("bare")
    bare.source("s", schema={"a": "int64"}).output()
    run = SparkRun(bare, spark, tmp_path / "bare")
    with pytest.raises(BadInput, match="no streaming DataFrame"):
        Ingestion(bare, spark, run)
    for name, frame, problem in (
        ("batch", lambda spark: spark.range(3), "is not a streaming DataFrame"),
        ("columns", lambda spark: spark.readStream.format("rate").load(), "has no column 'a'"),
    ):
        app = Application(name)
        app.source("s", frame, schema={"a": "int64"}).output()
        run = SparkRun(app, spark, tmp_path / name)
        with pytest.raises(BadInput, match=problem):
            Ingestion(app, spark, run).start()


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
    """A run as far as ingestion knows it, and its ingestion."""

    def __init__(self, storage: Storage, *, claim: int = 1, most_behind: int = 10, **options: Any) -> None:
        self.program, self.storage, self.claim = Program(two_streams()), storage, claim
        self.batch_log = BatchLog(self.program.sources, "two", storage, claim=claim)
        self.leading_frontier = BatchId(-1)
        options = {**options, "most_behind": most_behind}
        self.ingestion = Ingestion(two_streams(), None, self, **options)  # type: ignore[arg-type]
        self.places = {name: self._reader(name) for name in self.program.sources}

    def _reader(self, name: OperatorId) -> ReaderCheckpoint:
        return ReaderCheckpoint(self.storage, name, self.claim, self.ingestion.intake.reader(name)[1])

    def arrive(self, name: str, number: int, *tasks: list[float], offsets: str = "") -> None:
        frame = Frame(*(pa.table({"n": range(len(at)), "at": pa.array(at, pa.float64())}) for at in tasks))
        self.deliver(name, number, frame, offsets or f"up to {number}")

    def deliver(self, name: str, number: int, frame: Frame, offsets: str, *, drops: bool = False) -> None:
        source = OperatorId(name)
        place = self.places[source]
        for file, text in ((f"offsets/{number}", f"v1\n{{}}\n{offsets}"), (f"sources/0/{number}", f"files {number}")):
            (place.folder / file).parent.mkdir(parents=True, exist_ok=True)
            (place.folder / file).write_text(text)
        turn = self.ingestion.intake.reader(source)[0]
        self.ingestion._arrived(source, turn, place, frame, number, drops=drops)  # type: ignore[arg-type]

    def wake(self) -> None:
        """Nobody waits."""

    def reads_sources(self) -> None:
        """There is room for it."""

    def times(self, name: str, batch: int) -> list[float]:
        rows = self.batch_log.block(OperatorId(name), BatchId(batch), 0, Epoch(1)).rows
        return [] if rows is None else rows["at"].to_pylist()

    def pieces(self) -> list[str]:
        return self.storage.list("pieces/")


def test_micro_batches_are_logged_in_the_order_of_their_tasks() -> None:
    storage = MemoryStorage()
    bench = Bench(storage)
    bench.arrive("left", 0, [1.0, 2.0], [], [3.0])
    bench.arrive("right", 0, [5.0])
    assert bench.ingestion.make_batch() == 0
    assert (bench.times("left", 0), bench.times("right", 0)) == ([1.0, 2.0, 3.0], [5.0])
    anew = Bench(storage, claim=2)
    anew.arrive("left", 0, [9.0])
    assert anew.ingestion.make_batch() is None, "Spark delivers the last one again, and it is known"
    anew.arrive("left", 1, [4.0])
    assert anew.ingestion.make_batch() == 1
    assert (anew.times("left", 1), anew.times("right", 1)) == ([4.0], [])


def test_what_a_driver_had_read_and_not_logged_is_swept_away_and_read_again() -> None:
    storage = MemoryStorage()
    dead = Bench(storage)
    dead.arrive("left", 0, [1.0])
    assert len(dead.pieces()) == 1
    anew = Bench(storage, claim=2)
    assert anew.ingestion.make_batch() is None
    anew.arrive("left", 0, [2.0])
    assert anew.ingestion.make_batch() == 0
    assert (anew.times("left", 0), len(anew.pieces())) == ([2.0], 1)


def test_what_spark_would_delete_is_committed_once_a_batch_names_it() -> None:
    """A driver that died in between left a file that was deleted and whose rows no batch had."""
    bench = Bench(MemoryStorage())
    rows = Frame(pa.table({"n": [1], "at": [1.0]}))
    reader = Thread(target=lambda: bench.deliver("left", 0, rows, "up to 0", drops=True), daemon=True)
    reader.start()
    until(lambda: bench.ingestion.uncommitted == {"left"})
    assert bench.ingestion.intake.pending, "its rows are written, and no batch names them"
    assert reader.is_alive(), "Spark would commit it"
    assert bench.ingestion.make_batch() == 0
    reader.join(30)
    assert not reader.is_alive()
    assert not bench.ingestion.uncommitted
    problems: list[BaseException] = []

    def stopped() -> None:
        try:
            bench.deliver("left", 1, rows, "up to 1", drops=True)
        except IngestionStopped as error:
            problems.append(error)

    reader = Thread(target=stopped, daemon=True)
    reader.start()
    until(lambda: bench.ingestion.uncommitted == {"left"})
    bench.ingestion.stop()
    reader.join(30)
    assert problems, "returning would commit it"


def until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("sources", "drops"),
    [
        ([("FileSource[/in]", {"path": "/in"})], False),
        ([("FileSource[/in]", {"cleansource": "OFF"})], False),
        ([("FileSource[/in]", {"CLEANSOURCE": "archive"})], True),
        ([("FileSource[/in]", {}), ("FileSource[/other]", {"cleanSource": "delete"})], True),
        ([("kafka", {}), ("rate", {})], False),
        ([("a-queue-of-ones-own", {})], True),
    ],
)
def test_which_sources_drop_what_is_committed(sources: list[tuple[str, dict[str, str]]], drops: bool) -> None:
    assert drops_committed(sources) is drops


@pytest.mark.cluster
def test_spark_says_which_sources_a_stream_has(spark: SparkSession, tmp_path: Path) -> None:
    files = spark.readStream.schema("a int").option("CleanSource", "delete").json(str(tmp_path)).where("a > 1")
    kept = spark.readStream.schema("a int").json(str(tmp_path))
    rate = spark.readStream.format("rate").load()
    assert drops_committed(sources_of(files.select("a")))
    assert not drops_committed(sources_of(kept))
    assert not drops_committed(sources_of(rate))
    assert drops_committed(sources_of(rate.selectExpr("cast(value as int) a").union(files)))


def test_attempts_that_did_not_count_leave_nothing() -> None:
    bench = Bench(MemoryStorage())
    row = pa.table({"n": [1], "at": [1.0]})
    write_piece(bench.storage, bench.program.sources[OperatorId("left")], row, "pieces/left/00000001-0-1-lost")
    bench.arrive("left", 0, [2.0])
    assert len(bench.pieces()) == 1
    assert bench.ingestion.make_batch() == 0
    assert bench.times("left", 0) == [2.0]


def test_a_driver_frozen_in_a_micro_batch_takes_nothing_from_the_next() -> None:
    """Finding 2: it woke after another one had logged the micro-batch, and swept its pieces away."""
    storage = MemoryStorage()
    frozen, woken = Bench(storage), Bench(storage, claim=2)
    woken.arrive("left", 0, [1.0])
    assert woken.ingestion.make_batch() == 0
    frozen.arrive("left", 0, [1.0])
    with pytest.raises(StaleEpoch):
        frozen.ingestion.make_batch()
    assert Bench(storage, claim=3).times("left", 0) == [1.0]
    woken.arrive("left", 1, [2.0])
    assert woken.ingestion.make_batch() == 1
    assert woken.times("left", 1) == [2.0]


def test_what_an_earlier_reader_sweeps_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is late with that; the next reader has delivered the same micro-batch meanwhile, and it is logged."""
    storage = MemoryStorage()
    old, bench = Bench(storage), Bench(storage, claim=2)
    late: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(bench.ingestion, "_sweep", lambda *given: late.append(given))
        bench.arrive("left", 0, [1.0])
    old.arrive("right", 0, [5.0])
    assert old.ingestion.make_batch() == 0
    assert bench.ingestion.make_batch() == 0, "the driver before has logged a batch, and readers begin anew"
    bench.arrive("left", 0, [1.0])
    bench.arrive("right", 0, [5.0])
    assert bench.ingestion.make_batch() == 1
    bench.ingestion._sweep(*late[0])
    assert bench.times("left", 1) == [1.0]


def test_a_closed_run_is_brought_to_its_end_and_then_refused() -> None:
    storage = MemoryStorage()
    Bench(storage).batch_log.append({}, last=True)
    bench = Bench(storage, claim=2)
    status = SimpleNamespace(settled=False)
    bench.coordinator = SimpleNamespace(status=status)  # type: ignore[attr-defined]
    bench.ingestion.start()
    assert not bench.ingestion.reading
    status.settled = True
    with pytest.raises(BadInput, match="its sources were closed with batch 0"):
        bench.ingestion.start()


def test_a_reader_s_files_that_the_driver_before_has_put_together_meanwhile_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.spark.reader_checkpoint.MOST_BUNDLES", 2)
    storage = MemoryStorage()
    old = Bench(storage)
    for number in range(2):
        old.arrive("left", number, [float(number)])
        old.ingestion.make_batch()
    new = Bench(storage, claim=2)
    begun: list[tuple[str, int]] = []

    def begin(name: OperatorId) -> None:
        state = new.ingestion.intake.reader(name)[1]
        ReaderCheckpoint(storage, name, 2, state).remove()
        begun.append((name, new.ingestion.intake.last(name)))

    monkeypatch.setattr(new.ingestion, "_start_query", begin)
    monkeypatch.setattr(new.ingestion, "_frames", {})
    old.arrive("left", 2, [2.0])
    old.ingestion.make_batch()
    old.places[OperatorId("left")].logged(old.ingestion.intake.reader(OperatorId("left"))[1])
    new.ingestion.start()
    assert begun == [("left", 2), ("right", -1)]


def test_files_of_a_reader_stay_while_the_last_batch_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_checkpoint, "MOST_BUNDLES", 2)
    storage, name = MemoryStorage(), OperatorId("s")
    place = ReaderCheckpoint(storage, name, 1, {})

    def wrote(number: int) -> dict[str, Any]:
        path = place.folder / "sources" / "0" / str(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"files {number}")
        return place.after(number)

    wrote(0)
    state = wrote(1)
    right = ReaderCheckpoint._files

    def slow(self: ReaderCheckpoint, *given: Any, **more: Any) -> dict[str, str]:
        found = right(self, *given, **more)
        place.logged(state)  # the run's thread logs the batch before, while the reader's reads its files
        return found

    with monkeypatch.context() as patch:
        patch.setattr(ReaderCheckpoint, "_files", slow)
        later = wrote(2)
    # The driver dies here: the next one goes on from the batch that was logged last.
    ReaderCheckpoint(storage, name, 2, state).remove()
    place.logged(later)
    assert storage.list("readers/") == later["bundles"], "those that were put together go once a batch says so"
    place.remove()


def test_a_source_waits_when_too_much_is_waiting() -> None:
    bench = Bench(MemoryStorage(), most_behind=2, most_arrivals=1)
    for number in range(2):
        bench.arrive("left", number, [float(number)])
    assert bench.ingestion.make_batch() == 0
    assert bench.ingestion.waiting == {"left": 2, "right": 0}, "one arrived, one logged and not processed"
    third = Thread(target=bench.arrive, args=("left", 2, [2.0]))
    third.start()
    bench.arrive("right", 0, [7.0])  # another source does not wait for it
    assert bench.ingestion.waiting["left"] == 2
    bench.leading_frontier = BatchId(0)
    third.join(120)
    assert bench.ingestion.waiting["left"] == 2, "the third is in"
    bench.ingestion.stop()
    with pytest.raises(IngestionStopped):
        bench.arrive("left", 3, [3.0])


def test_rows_of_another_type_are_named() -> None:
    bench = Bench(MemoryStorage())
    with pytest.raises(BadInput, match="column 'n' of a batch of source left is string, declared as int64"):
        bench.deliver("left", 0, Frame(pa.table({"n": ["x"], "at": [1.0]})), "up to 0")
    failed = SimpleNamespace(exception=lambda: "PythonException", isActive=False)
    bench.ingestion._queries["left"] = failed  # type: ignore[index,assignment]
    with pytest.raises(BadInput, match="source left is string"):
        bench.ingestion.reading  # noqa: B018


def test_a_source_with_state_of_spark_s_own_is_refused() -> None:
    bench = Bench(MemoryStorage())
    (bench.places[OperatorId("left")].folder / "state").mkdir()
    with pytest.raises(BadInput, match="source left: keeps state of Spark's own"):
        bench.arrive("left", 0, [1.0])


# -- Spark's checkpoint of a reader --------------------------------------------------------------------------------


def test_the_files_of_a_reader_are_there_again_for_the_next_driver() -> None:
    storage = MemoryStorage()
    bench = Bench(storage)
    for number in range(3):
        bench.arrive("left", number, [float(number)])
        bench.ingestion.make_batch()
    anew = Bench(storage, claim=2)
    folder = anew.places[OperatorId("left")].folder
    assert sorted(path.name for path in (folder / "sources" / "0").iterdir()) == ["0", "1", "2"]
    assert sorted(path.name for path in (folder / "offsets").iterdir()) == ["1", "2"]
    assert (folder / "sources" / "0" / "1").read_text() == "files 1"


def test_many_copies_become_one_and_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.spark.reader_checkpoint.MOST_BUNDLES", 4)
    storage = MemoryStorage()
    bench = Bench(storage, most_behind=100)
    place = bench.places[OperatorId("left")]
    for number in range(20):
        bench.arrive("left", number, [float(number)])
        bench.ingestion.make_batch()
        place.logged(bench.ingestion.intake.reader(OperatorId("left"))[1])
        assert len(storage.list("readers/")) <= 5
    anew = Bench(storage, claim=2)
    assert len(list((anew.places[OperatorId("left")].folder / "sources" / "0").iterdir())) == 20


def test_folders_of_drivers_that_were_killed_are_removed_by_the_next_start_and_those_of_living_ones_stay(
    tmp_path: Path,
) -> None:
    begin = (
        "import os, sys; from holdfast.ids import OperatorId; from holdfast.spark.reader_checkpoint import *; "
        "from holdfast.storage.memory import MemoryStorage; "
        "one = ReaderCheckpoint(MemoryStorage(), OperatorId('words'), 1, {'files': {'metadata': '{}'}}); "
        "print(one.folder, flush=True); sys.stdin.read()"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
    killed, living = (subprocess.Popen([sys.executable, "-c", begin], **pipes) for _ in range(2))  # type: ignore[call-overload]
    places = [Path(one.stdout.readline().strip()).parent for one in (killed, living)]
    assert sweep_folders(tmp_path) == []
    killed.kill()
    killed.communicate()
    assert sweep_folders(tmp_path) == places[:1]
    assert not places[0].exists()
    assert (places[1] / "checkpoint" / "metadata").read_text() == "{}"
    living.communicate()
