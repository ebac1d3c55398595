"""`kill -9` of the driver in the middle of `holdfast run`: the next run goes on, and every row comes out once."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.examples.registry import EXAMPLES
from holdfast.runtime import run_in_process
from holdfast.runtime.coordinator.progress import last_driver
from holdfast.runtime.io.parquet_sink import ParquetSink
from holdfast.storage.files import FileStorage

pytestmark = pytest.mark.cluster

BATCHES, ROWS, SEED = 9, 200, 5


def command(directory: Path) -> list[str]:
    options = {"--batches": BATCHES, "--rows": ROWS, "--seed": SEED, "--nodes": 2, "--checkpoint-every": 3}
    words = [str(word) for pair in options.items() for word in pair]
    start = [sys.executable, "-m", "holdfast.cli.main", "run", "word-count"]
    return [*start, "--directory", str(directory), "--json", *words]


def checkpoint_of(run: Path) -> int:
    """Return the last global checkpoint that is written; -1: there is none, or the driver has only taken its claim."""
    last = last_driver(FileStorage(run))
    return -1 if last is None or last["machine"] is None else int(last["machine"]["checkpoints"]["global"])


def test_a_killed_driver_loses_and_repeats_nothing(tmp_path: Path) -> None:
    first = subprocess.Popen(command(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while checkpoint_of(tmp_path / "run") < 2:
        assert first.poll() is None, "it ended before its first checkpoint"
        assert time.monotonic() < deadline, "no checkpoint came"
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.wait()
    done = subprocess.run(command(tmp_path), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["batches"] == BATCHES
    last = last_driver(FileStorage(tmp_path / "run"))
    assert last is not None
    assert (last["claim"], last["ended"]) == (2, True), "a second driver took over, and ended in order"
    example = EXAMPLES["word-count"]
    expected = run_in_process(example.application(), example.batches(SEED, BATCHES, ROWS), close=False)
    for name in result["rows"]:
        found = ParquetSink(tmp_path / "out" / name).rows()
        assert found is not None
        assert sorted(map(str, found.to_pylist())) == sorted(map(str, expected.rows(name).to_pylist()))
