"""A run whose directory and outputs are on object storage: a real cluster, a real S3 server, a driver killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from holdfast.examples.registry import EXAMPLES
from holdfast.runtime import ParquetSink, run_in_process
from holdfast.storage.storage import open_storage
from holdfast_lab.benches.storage import STEPS, bench_storage
from holdfast_lab.s3_server import S3Server

BATCHES, ROWS, SEED = 30, 50, 5


def test_a_killed_driver_on_object_storage_loses_and_repeats_nothing(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    url = f"{s3.url}/killed"
    words = [sys.executable, "-m", "holdfast.cli.main", "run", "word-count", "--directory", url, "--json"]
    words += ["--batches", str(BATCHES), "--rows", str(ROWS), "--seed", str(SEED)]
    words += ["--checkpoint-every", "3", "--nodes", "2"]
    first = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ)
    storage, deadline = open_storage(f"{url}/run"), time.monotonic() + 300
    while len(storage.list("batches/")) < 5:
        assert first.poll() is None, "it ended before its first batches"
        assert time.monotonic() < deadline, "no batch was logged"
        time.sleep(0.1)
    first.send_signal(signal.SIGKILL)
    first.wait()
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["batches"], result["directory"]) == (BATCHES, url)
    example = EXAMPLES["word-count"]
    expected = run_in_process(example.application(), example.batches(SEED, BATCHES, ROWS), close=False)
    for name in result["rows"]:
        found = ParquetSink(f"{url}/out/{name}").rows()
        assert found is not None
        assert sorted(map(str, found.to_pylist())) == sorted(map(str, expected.rows(name).to_pylist()))


def test_the_bench_takes_both_sides_in_turns(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    found = bench_storage(open_storage(f"{s3.url}/bench"), rounds=3, rows=10, state_bytes=1000)
    assert [one.step for one in found] == list(STEPS)
    assert all(one.files.count == one.objects.count == 3 for one in found)
