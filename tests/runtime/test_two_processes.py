"""Two workers of one node attempt the same batches at the same time, on the same files: each version has one winner."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from holdfast.runtime.state.directory_store import DirectoryStore
from runtime.test_host import batch_of, make, published, words

ROOT = Path(__file__).resolve().parent.parent.parent
BATCHES = 30

WORKER = """
import sys
from pathlib import Path
from runtime.test_host import batch_of, make, words
from holdfast.runtime.messages import Done
from holdfast.runtime.state.directory_store import DirectoryStore

directory, batches = Path(sys.argv[1]), int(sys.argv[2])
program = words()
print("ready", flush=True)
sys.stdin.readline()
for number in range(batches):
    host = make(program, DirectoryStore(directory))  # recycled after every batch
    for again in range(max(0, number - 3), number + 1):
        host.deliver(batch_of(again))
    answers = host.run()
    assert all(isinstance(answer, Done) for answer in answers), answers
"""


def test_two_processes_at_once(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])}
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(tmp_path), str(BATCHES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for _ in range(2)
    ]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    for worker in workers:
        _, errors = worker.communicate(timeout=300)
        assert worker.returncode == 0, errors
    plain = make(words())
    for number in range(BATCHES):
        plain.deliver(batch_of(number))
    plain.run()
    both = make(words(), DirectoryStore(tmp_path))
    both.run()
    assert [both.frontier(p) for p in both.partitions] == [BATCHES - 1] * 4
    assert published(both) == published(plain)
