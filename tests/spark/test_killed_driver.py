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
from holdfast.runtime.io.parquet_sink import ParquetSink

pytestmark = pytest.mark.cluster

BATCHES, ROWS, SEED = 9, 200, 5


def command(directory: Path) -> list[str]:
    options = {"--batches": BATCHES, "--rows": ROWS, "--seed": SEED, "--nodes": 2, "--checkpoint-every": 3}
    words = [str(word) for pair in options.items() for word in pair]
    start = [sys.executable, "-m", "holdfast.cli.main", "run", "word-count"]
    return [*start, "--directory", str(directory), "--json", *words]


def checkpoint_of(progress: Path) -> int:
    """Return the last global checkpoint that is written; -1: there is none, or the driver has only taken its claim."""
    machine = json.loads(progress.read_bytes())["machine"] if progress.exists() else None
    return -1 if machine is None else int(machine["checkpoints"]["global"])


def test_a_killed_driver_loses_and_repeats_nothing(tmp_path: Path) -> None:
    progress = tmp_path / "run" / "progress.json"
    first = subprocess.Popen(command(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while checkpoint_of(progress) < 2:
        assert first.poll() is None, "it ended before its first checkpoint"
        assert time.monotonic() < deadline, "no checkpoint came"
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.wait()
    done = subprocess.run(command(tmp_path), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["batches"] == BATCHES
    assert json.loads(progress.read_bytes())["claim"] == 2, "a second driver took over"
    example = EXAMPLES["word-count"]
    expected = run_in_process(example.application(), example.batches(SEED, BATCHES, ROWS), close=False)
    for name in result["rows"]:
        found = ParquetSink(tmp_path / "out" / name).rows()
        assert found is not None
        assert sorted(map(str, found.to_pylist())) == sorted(map(str, expected.rows(name).to_pylist()))
