"""SIGTERM and Ctrl-C of a program: it drains, takes a checkpoint, ends with status 0, and the next start continues."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.runtime.coordinator.progress import last_driver
from holdfast.runtime.io.parquet_sink import ParquetSink
from holdfast.storage.files import FileStorage

APPLICATION = """
import holdfast as hf

app = hf.Application("ticks")
ticks = app.source("ticks", lambda spark: spark.readStream.format("rate").option("rowsPerSecond", 20).load())
ticks.map(lambda rows: rows.select(["value"]), schema="value bigint", id="values").output("values")

if __name__ == "__main__":
    hf.submit(app)
"""


@pytest.mark.cluster
def test_signals_end_a_run_in_order(tmp_path: Path) -> None:
    file, place = tmp_path / "ticks.py", tmp_path / "run"
    file.write_text(APPLICATION)
    options = ["--nodes", "1", "--directory", str(place), "--json"]

    def published() -> int:
        events = place / "run" / "events.jsonl"
        return events.read_text().count('"event": "published"') if events.exists() else 0

    def run(command: list[str], number: signal.Signals) -> dict[str, Any]:
        before = published()
        with (tmp_path / "err").open("w+") as err:
            process = subprocess.Popen(
                [sys.executable, *command, *options], stdout=subprocess.PIPE, stderr=err, text=True, cwd=tmp_path
            )
            deadline = time.monotonic() + 300
            while published() < before + 3:
                assert process.poll() is None, (tmp_path / "err").read_text()
                assert time.monotonic() < deadline, "nothing was published"
                time.sleep(0.1)
            process.send_signal(number)
            out, _ = process.communicate(timeout=300)
        assert process.returncode == 0, (tmp_path / "err").read_text()
        found: dict[str, Any] = json.loads(out)
        last = last_driver(FileStorage(place / "run"))
        assert last is not None
        assert last["ended"]
        assert last["machine"]["checkpoints"]["global"] == found["batches"] - 1, "the checkpoint covers every batch"
        return found

    first = run([str(file)], signal.SIGTERM)  # hf.submit
    assert first["rows"]["values"] > 0
    second = run(["-m", "holdfast.cli.main", "run", str(file)], signal.SIGINT)
    assert second["batches"] > first["batches"]
    rows = ParquetSink(place / "out" / "values").rows()
    assert rows is not None
    values = sorted(rows["value"].to_pylist())
    assert values == list(range(len(values))), "each row once, and none is missing"
    assert len(values) == second["rows"]["values"] > first["rows"]["values"]
