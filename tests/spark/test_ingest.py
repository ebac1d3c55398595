"""From streaming DataFrames through the source log to outputs, on a real cluster."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast import Application, count, tumbling
from holdfast.errors import BadInput
from holdfast.spark.ingest import Ingestion
from holdfast.spark.run import SparkRun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.cluster


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
    counted.aggregate(id="counts", parallelism=2, n=count()).output()
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
