"""`holdfast run` on files that come over time: it goes on where it stood, and says when a run is over."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

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
