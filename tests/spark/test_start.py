"""`hf.start` and its handle on a real cluster: reading, stopping, starting again, failing."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.streaming.listener import StreamingQueryListener

import holdfast as hf
from holdfast.runtime.coordinator.profile_records import last_profile
from holdfast.runtime.coordinator.progress import last_driver
from holdfast.spark.run import SparkRun
from holdfast.storage.files import FileStorage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.cluster

SCHEMA = "word string, at timestamp"


def write(folder: Path, number: int) -> None:
    """Write a minute: two of `a`, one of `b`."""
    folder.mkdir(exist_ok=True)
    rows = [{"word": word, "at": f"2026-01-01T00:{number:02d}:00Z"} for word in "aab"]
    path = folder / f"{number:03d}.json"
    path.with_suffix(".draft").write_text("\n".join(json.dumps(row) for row in rows))
    os.utime(path.with_suffix(".draft"), (1_700_000_000 + number,) * 2)
    path.with_suffix(".draft").rename(path)


def words(folder: Path, sink: object = None) -> hf.Application:
    app = hf.Application("words")
    source = app.source(
        "words",
        hf.files(str(folder), format="json", maxFilesPerTrigger=1, pathGlobFilter="*.json"),
        schema=SCHEMA,
        event_time="at",
        parallelism=2,
    )
    counted = source.key_by("word").window(hf.tumbling("1 minute")).agg(n=hf.count(), id="counts", parallelism=2)
    counted.output("minutes", priority=[5, 1], sink=sink)
    return app


@pytest.fixture
def start(spark: SparkSession) -> Iterator[Callable[..., hf.Run]]:
    """Start runs on the shared session; those that a failed test leaves are stopped."""
    runs: list[hf.Run] = []

    def started(app: hf.Application, **options: Any) -> hf.Run:
        runs.append(hf.start(app, spark, **options))
        return runs[-1]

    yield started
    for run in runs:
        run.stop()


class Heard(StreamingQueryListener):
    """Counts what PySpark's own listener gets."""

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.rows = 0
        self.over = threading.Event()

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        self.kinds.append("started")

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        self.kinds.append("progress")
        self.rows += event.progress.numInputRows

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        self.kinds.append("terminated")
        self.over.set()


def counts(table: pa.Table) -> list[tuple[str, str, int]]:
    return sorted((row["word"], f"{row['window_start']:%H:%M}", row["n"]) for row in table.to_pylist())


def minutes(*numbers: int) -> list[tuple[str, str, int]]:
    return sorted((word, f"00:{number:02d}", n) for number in numbers for word, n in (("a", 2), ("b", 1)))


def test_a_run_is_read_watched_stopped_and_continued(
    spark: SparkSession, start: Callable[..., hf.Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, place = tmp_path / "in", tmp_path / "run"
    for number in range(3):
        write(folder, number)
    run = start(words(folder), directory=place)
    heard = Heard()
    run.addListener(heard)
    assert run.isActive
    assert run.name == "words"
    run.processAllAvailable()
    assert counts(run.rows("minutes")) == minutes(0, 1), "the last minute's window is open"
    progress = run.lastProgress
    assert progress is not None
    assert progress.keys() >= {"id", "runId", "name", "timestamp", "batchId", "numInputRows", "sources", "sinks"}
    assert sum(one["numInputRows"] for one in run.recentProgress) == 9
    assert sum(one["sinks"][0]["numOutputRows"] for one in run.recentProgress) == 4
    assert progress["sources"][0]["description"] == "words"
    assert progress["sinks"][0]["description"] == "minutes"
    assert [(one.id, one.output, one.priority, one.state, one.lag) for one in run.queries] == [
        ("counts[0]", "minutes", 5, "running", 0),
        ("counts[1]", "minutes", 1, "running", 0),
    ]
    assert len(run.nodes) == 3
    assert sorted(p for node in run.nodes for p in node.partitions) == [
        "counts[0]",
        "counts[1]",
        "words[0]",
        "words[1]",
    ]
    hosts = {node.host for node in run.nodes}  # which ones: other tests kill nodes of the cluster and start new ones
    assert len(hosts) == 3
    assert all(host.startswith("127.0.0.") for host in hosts)
    assert run.recovery is None
    assert run.status["message"] == "Processing"
    assert run.status["isDataAvailable"] is False
    run.explain(extended=True)
    assert "counts x 2 <- words (full) -> output minutes" in capsys.readouterr().out
    assert run.awaitTermination(0.01) is False
    write(folder, 3)
    run.processAllAvailable()
    assert counts(run.rows("minutes")) == minutes(0, 1, 2)
    run.stop()
    assert heard.over.wait(60)
    assert heard.kinds[0] == "started"
    assert "progress" in heard.kinds
    assert heard.rows >= 3, "of the file that came after the listener at least"
    assert not run.isActive
    assert run.exception() is None
    assert run.awaitTermination(1) is True
    assert run.awaitTermination() is None
    assert run.status["message"] == "Stopped"
    last = last_driver(FileStorage(place / "run"))
    assert last is not None
    assert last["machine"]["checkpoints"]["global"] == run.lastProgress["loggedBatchId"], "a checkpoint of all"  # type: ignore[index]
    assert spark.range(3).count() == 3, "the session that was passed goes on"

    write(folder, 4)
    assert run.plan is None
    wanted = hf.targets(overhead=0.5)  # whatever was measured on a busy machine, there is a plan
    again = start(words(folder), directory=place, available_now=True, close=True, plan=wanted)
    assert again.plan is not None
    assert again.plan["assumptions"]["nodes"] == {"value": 3, "from": "measured"}, "by the profile of the run before"
    assert {one["query"] for one in again.plan["predicted"]} == {"counts[0]", "counts[1]", None}
    assert (again.id == run.id, again.runId == run.runId) == (True, False)
    again.awaitTermination()
    assert counts(again.rows("minutes")) == minutes(0, 1, 2, 3, 4)
    assert again.count("minutes") == 10
    read = hf.read(spark, place / "out" / "minutes")
    assert counts(read.toArrow()) == minutes(0, 1, 2, 3, 4)
    events = [json.loads(line) for line in (place / "run" / "events.jsonl").read_text().splitlines()]
    assert {"node-arrived", "planned", "cycle", "published", "checkpoint"} <= {one["event"] for one in events}
    (planned,) = [one for one in events if one["event"] == "plan"]
    assert planned["predicted"] == again.plan["predicted"]
    kept = last_profile(FileStorage(place / "run"))
    assert kept is not None
    assert kept["measured"]["settings"]["checkpoint_seconds"] == pytest.approx(planned["interval_seconds"], rel=1e-4)


def test_columns_come_from_the_files_and_rows_go_to_the_user_s_sinks(
    spark: SparkSession, start: Callable[..., hf.Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(
        pa.table({"word": ["a", "b", "a"], "n": pa.array([1, 2, 3], pa.int32())}), tmp_path / "in" / "0.parquet"
    )
    monkeypatch.chdir(tmp_path)
    app = hf.Application("pairs")
    source = app.source("words", hf.files("in"))  # relative, and without a schema
    seen: list[tuple[str, int]] = []
    kept = hf.memory()
    pairs = source.key_by("word").window(hf.rows(2)).agg(n=hf.sum("n"), id="pairs")
    pairs.output("pairs", sink=hf.foreach_batch(lambda rows, key: seen.append((str(key.query), rows.num_rows))))
    source.filter(lambda rows: rows["word"].is_valid(), id="all").output("all", sink=kept)
    wrong = hf.Application("wrong")
    wrong.source("words", hf.files("in")).key_by("word").window(hf.rows(2)).agg(n=hf.sum("m"))
    with pytest.raises(hf.BadInput, match="there is no column 'm'"):
        hf.start(wrong, spark, directory=tmp_path / "wrong")
    run = start(app, directory="run", available_now=True, sinks={"pairs": str(tmp_path / "pairs")})
    run.awaitTermination()
    assert run.rows("pairs").to_pylist() == [{"word": "a", "n": 4}], "sinks that are passed replace the application's"
    assert not seen
    rows = kept.rows()
    assert rows is not None
    assert (rows.num_rows, rows.schema.field("n").type) == (3, pa.int32())


def test_what_fails_in_the_background_is_raised_where_the_run_is_awaited(
    start: Callable[..., hf.Run], tmp_path: Path
) -> None:
    def divide(rows: pa.Table) -> pa.Table:
        raise ZeroDivisionError("by nothing")

    def batches() -> Iterator[dict[str, Any]]:
        yield {"s": pa.table({"a": [1, 2]})}

    app = hf.Application("failing")
    app.source("s", schema="a bigint").map(divide, id="divide").output("divided")
    run = start(app, directory=tmp_path, batches=batches())
    with pytest.raises(hf.OperatorFailed, match="by nothing"):
        run.awaitTermination()
    assert isinstance(run.exception(), hf.OperatorFailed)
    assert not run.isActive
    with pytest.raises(hf.OperatorFailed):
        run.processAllAvailable()
    run.stop()  # nothing is left to stop


def test_starts_that_cannot_work_are_refused_at_once(spark: SparkSession, tmp_path: Path) -> None:
    app = hf.Application("bare")
    app.source("s", schema="a bigint").output("rows")

    class Connected:
        """A session of Spark Connect, as far as it differs."""

    with pytest.raises(hf.BadInput, match="Spark Connect"):
        hf.start(app, Connected(), directory=tmp_path)  # type: ignore[arg-type]
    with pytest.raises(hf.BadInput, match=r"a Spark session is active in this process.*pass it"):
        hf.start(app)
    with pytest.raises(hf.BadInput, match="has no streaming DataFrame"):
        hf.start(app, spark, directory=tmp_path)
    with pytest.raises(hf.BadInput, match=r"spark.executor.memory: the session has started already"):
        hf.start(app, spark, directory=tmp_path, conf={"spark.executor.memory": "1g"})
    with pytest.raises(hf.BadInput, match=r"'nothing' is not an output.*there are rows"):
        hf.start(app, spark, directory=tmp_path, batches=[], sinks={"nothing": hf.memory()})
    with pytest.raises(hf.BadInput, match="there are no rows yet"):
        hf.read(spark, tmp_path / "out" / "rows")


def test_a_stop_does_not_wait_for_rows_that_may_come(start: Callable[..., hf.Run], tmp_path: Path) -> None:
    app = hf.Application("rate")
    source = app.source("rate", lambda session: session.readStream.format("rate").option("rowsPerSecond", 50).load())
    source.window(hf.rows(10)).count(id="tens").output("tens")
    run = start(app, directory=tmp_path)
    deadline = time.monotonic() + 300
    while run.lastProgress is None or not run.lastProgress["numInputRows"]:
        assert run.isActive, run.exception()
        assert time.monotonic() < deadline, "no rows came"
        time.sleep(0.05)
    run.stop()
    assert run.exception() is None
    assert all(query.lag == 0 for query in run.queries), "what was logged is out"


def test_a_run_that_was_closed_and_not_processed_is_brought_to_its_end(
    spark: SparkSession, start: Callable[..., hf.Run], tmp_path: Path
) -> None:
    """Its driver died with the last batch logged: no start could open it, and its last windows never came out."""
    folder, place = tmp_path / "in", tmp_path / "run"
    write(folder, 0)
    start(words(folder), directory=place, available_now=True).awaitTermination()
    dying = SparkRun(words(folder), spark, place / "run", sinks={"minutes": str(place / "out" / "minutes")})
    dying.log({}, last=True)
    dying.close()
    run = start(words(folder), directory=place, available_now=True, close=True)
    run.awaitTermination()
    assert counts(run.rows("minutes")) == minutes(0)
    with pytest.raises(hf.BadInput, match="its sources were closed"):
        hf.start(words(folder), spark, directory=place, available_now=True, close=True)


def test_a_start_that_fails_gives_its_claim_up(
    spark: SparkSession, start: Callable[..., hf.Run], tmp_path: Path
) -> None:
    """It had the claim, and its signs of life went on: every further start was told that a driver is alive."""
    folder, place = tmp_path / "in", tmp_path / "run"
    write(folder, 0)
    start(words(folder, tmp_path / "out"), directory=tmp_path / "other", available_now=True).awaitTermination()
    with pytest.raises(hf.BadInput, match="has rows of another run"):
        hf.start(words(folder, tmp_path / "out"), spark, directory=place, available_now=True)
    storage = FileStorage(place / "run")
    last = last_driver(storage)
    assert last is not None
    assert last["ended"]
    assert storage.list("alive/") == []
    start(words(folder), directory=place, available_now=True).awaitTermination()
