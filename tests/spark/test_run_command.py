"""`holdfast run` on files that come over time, and the same application by spark-submit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.runtime.io.parquet_sink import ParquetSink
from holdfast.spark.cluster import EmbeddedCluster
from holdfast.spark.java import find_java_home
from holdfast.spark.start_progress import PHASES

APPLICATION = """
import holdfast as hf

app = hf.Application("words")
stream = app.source(
    "words",
    lambda spark: spark.readStream.schema("word string, at timestamp").option("maxFilesPerTrigger", 1).json({folder!r}),
    schema={{"word": "string", "at": "timestamp"}},
    event_time="at",
    parallelism=2,
)
by_word = stream.key_by("word").window(hf.tumbling("1 minute"))
by_word.agg(parallelism=2, n=hf.count()).output("counts")

if __name__ == "__main__":
    hf.submit(app)
"""


def write(folder: Path, number: int) -> None:
    rows = [{"word": word, "at": f"2026-01-01T00:{number:02d}:00"} for word in "aab"]
    path = folder / f"{number:03d}.json"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    os.utime(path, (1_700_000_000 + number,) * 2)  # Spark reads files by age: of one age, in any order


@pytest.mark.cluster
def test_a_file_runs_by_spark_submit_and_by_holdfast_run_and_goes_on_until_it_is_closed(tmp_path: Path) -> None:
    import pyspark

    folder, file, place = tmp_path / "in", tmp_path / "words.py", tmp_path / "run"
    folder.mkdir()
    file.write_text(APPLICATION.format(folder=str(folder)))
    surroundings = os.environ | {
        "JAVA_HOME": str(find_java_home()),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }

    def call(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, check=False, capture_output=True, text=True, env=surroundings, cwd=tmp_path)

    def result(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
        assert done.returncode == 0, done.stdout + done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        assert sum(one["late_rows"] for one in found["partitions"]) == 0
        return found

    def events() -> list[dict[str, Any]]:
        return [json.loads(line) for line in (place / "run" / "events.jsonl").read_text().splitlines()]

    with EmbeddedCluster(2) as cluster:
        write(folder, 0)
        write(folder, 1)
        settings = {
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
            "spark.holdfast.directory": str(place),
            "spark.holdfast.checkpoint.batches": "1",
        }
        given = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
        script = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
        first = result(call(script, "--master", cluster.master_url, *given, str(file), "--available-now", "--json"))
        assert first["directory"] == str(place), "spark-submit's settings hold"
        assert first["rows"] == {"counts": 2}, "the second minute's window is still open"
        assert {"node-arrived", "planned", "cycle", "published", "checkpoint"} <= {one["event"] for one in events()}
        started = [one for one in events() if one["event"] == "started"]
        assert [set(one["phases"]) for one in started] == [set(PHASES) - {"driver"}], (
            "spark-submit has the driver's JVM"
        )

        run = [sys.executable, "-m", "holdfast.cli.main", "run", str(file), "--master", cluster.master_url]
        on = ["--directory", str(place), "--available-now"]
        write(folder, 2)
        shown = call(*run, *on, "--close")
        assert shown.returncode == 0, shown.stderr
        lines = [line.partition(" s  ")[2] for line in shown.stderr.splitlines()]
        for line in ("the driver's JVM is up", "the Spark session is up", "reading words"):
            assert line in lines, shown.stderr
        assert any(line.startswith("first output: ") for line in lines), shown.stderr
        rows = ParquetSink(place / "out" / "counts").rows()
        assert rows is not None
        counts = sorted((row["word"], row["n"]) for row in rows.to_pylist())
        assert counts == [("a", 2)] * 3 + [("b", 1)] * 3, "each word of each minute, once, and none of it late"
