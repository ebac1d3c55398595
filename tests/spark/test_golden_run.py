"""A run of an earlier version that read files with Spark goes on: no file is read again, and none is left out.

`tests/data/spark-runs/MONTH` is such a run as it was written then: three files of four rows are read, and the windows
are open. Spark's list of files that it has seen has their paths; `@FOLDER@` stands for the folder they were in. A
version that cannot continue it must keep a reader for its formats, and add a directory of its own.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import holdfast as hf
from holdfast.runtime.io.parquet_sink import ParquetSink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RUNS = sorted((Path(__file__).parent.parent / "data" / "spark-runs").iterdir())
READ, FILES = 3, 5


def application(folder: Path) -> hf.Application:
    app = hf.Application("read")
    rows = app.source(
        "rows",
        hf.files(str(folder), format="json", maxFilesPerTrigger=1),
        schema="id long, key string, at timestamp",
        event_time="at",
        lateness="1 second",
        parallelism=2,
    )
    rows.output("all")
    rows.key_by("key").window(hf.tumbling("10 seconds")).count(id="counts", parallelism=2).output("counts")
    return app


def write(folder: Path, number: int) -> None:
    lines = [
        json.dumps({"id": 4 * number + one, "key": f"k{one % 2}", "at": f"2026-01-01T00:00:{4 * number + one:02d}.000"})
        for one in range(4)
    ]
    path = folder / f"{number:05d}.json"
    path.write_text("\n".join(lines))
    os.utime(path, (1_000_000 + number, 1_000_000 + number))


def test_there_is_a_run_of_an_earlier_version() -> None:
    assert [path for run in RUNS for path in (run / "run" / "readers" / "rows").iterdir()]


@pytest.mark.cluster
@pytest.mark.parametrize("run", RUNS, ids=lambda path: path.name)
def test_a_reader_of_an_earlier_version_goes_on(unhurried: SparkSession, run: Path, tmp_path: Path) -> None:
    place, folder = tmp_path / "place", tmp_path / "in"
    shutil.copytree(run, place)
    for path in (place / "run" / "readers").rglob("*"):
        if path.is_file():
            path.write_text(path.read_text().replace("@FOLDER@", str(folder)))
    folder.mkdir()
    for number in range(FILES):
        write(folder, number)
    running = hf.start(application(folder), unhurried, directory=place, available_now=True, close=True)
    running.awaitTermination()
    found = ParquetSink(place / "out" / "all").rows()
    assert found is not None
    assert sorted(found["id"].to_pylist()) == list(range(4 * FILES))
    counts = ParquetSink(place / "out" / "counts").rows()
    assert counts is not None
    assert sorted(counts["count"].to_pylist()) == [5, 5, 5, 5]
