"""`holdfast run` on files that come over time, and the same application by spark-submit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.spark.cluster import EmbeddedCluster
from holdfast.spark.java import find_java_home

APPLICATION = """
from holdfast import Application, count, tumbling

app = Application("words")
stream = app.source(
    "words",
    lambda spark: spark.readStream.schema("word string, at timestamp").option("maxFilesPerTrigger", 1).json({folder!r}),
    schema={{"word": "string", "at": "timestamp"}},
    event_time="at",
    parallelism=2,
)
stream.key_by("word").window(tumbling("1 minute")).aggregate(id="counts", parallelism=2, n=count()).output()

if __name__ == "__main__":
    from holdfast.cli.main import submit

    submit(__file__)
"""


def write(folder: Path, number: int) -> None:
    rows = [{"word": word, "at": f"2026-01-01T00:{number:02d}:00"} for word in "aab"]
    (folder / f"{number:03d}.json").write_text("\n".join(json.dumps(row) for row in rows))


@pytest.mark.cluster
def test_a_run_goes_on_where_it_stood_until_it_is_closed(tmp_path: Path) -> None:
    folder, file = tmp_path / "in", tmp_path / "words.py"
    folder.mkdir()
    file.write_text(APPLICATION.format(folder=str(folder)))
    place = str(tmp_path / "run")

    command = [sys.executable, "-m", "holdfast.cli.main", "run", str(file), "--nodes", "2", "--directory", place]

    def run(*options: str) -> dict[str, object]:
        done = subprocess.run(
            [*command, "--available-now", "--json", *options], check=False, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        found: dict[str, object] = json.loads(done.stdout)
        return found

    write(folder, 0)
    write(folder, 1)
    assert run()["rows"] == {"counts": 2}, "the second minute's window is still open"
    write(folder, 2)
    closed = run("--close")
    assert closed["rows"] == {"counts": 6}, "each word of each minute, once, and none of it late"
    assert sum(one["late_rows"] for one in closed["partitions"]) == 0  # type: ignore[attr-defined]
    write(folder, 3)
    refused = subprocess.run([*command, "--available-now"], check=False, capture_output=True, text=True)
    assert refused.returncode == 2
    assert "source words: was closed with batch" in refused.stderr
    log = tmp_path / "run" / "run" / "events.jsonl"
    events = [json.loads(line)["event"] for line in log.read_text().splitlines()]
    assert {"node-arrived", "planned", "cycle", "published"} <= set(events)


@pytest.mark.cluster
def test_the_same_file_runs_by_spark_submit_with_its_master_and_its_settings(tmp_path: Path) -> None:
    import pyspark

    folder, file = tmp_path / "in", tmp_path / "words.py"
    folder.mkdir()
    file.write_text(APPLICATION.format(folder=str(folder)))
    for number in range(3):
        write(folder, number)
    surroundings = os.environ | {
        "JAVA_HOME": str(find_java_home()),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }

    def submit(*arguments: str) -> subprocess.CompletedProcess[str]:
        script = Path(pyspark.__file__).parent / "bin" / "spark-submit"
        return subprocess.run(
            [str(script), *arguments], check=False, capture_output=True, text=True, env=surroundings, cwd=tmp_path
        )

    with EmbeddedCluster(2) as cluster:
        settings = {
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.holdfast.directory": str(tmp_path / "run"),
            "spark.holdfast.checkpoint.batches": "2",
        }
        given = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
        done = submit("--master", cluster.master_url, *given, str(file), "--available-now", "--close", "--json")
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout)
        assert result["rows"] == {"counts": 6}
        assert result["directory"] == str(tmp_path / "run")
        log = tmp_path / "run" / "run" / "events.jsonl"
        events = [json.loads(line) for line in log.read_text().splitlines()]
        assert any(one["event"] == "node-arrived" for one in events), "it ran on the cluster's nodes"
        assert any(one["event"] == "checkpoint" for one in events)
        wrong = submit("--master", cluster.master_url, "--conf", "spark.speculation=true", *given, str(file))
        assert wrong.returncode == 2
        assert "spark.speculation: true does not do" in wrong.stderr
