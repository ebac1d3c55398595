"""How long a snapshot of a large state stops the stream, and what memory it takes: written in its way, and beside it.

    python tools/measure_snapshots.py                       # 100 and 400 MB
    python tools/measure_snapshots.py --megabytes 50 --tries 1

One process does both. The state is in mapped files, as on a node; the snapshot goes to a spool on the disk. Before:
`encode_snapshot` and `Spool.save` in the thread of the stream. After: `SavesBeside`. The stream is a loop that turns
every millisecond: the pause is its longest turn. Memory is what the process holds beside mapped files (RssAnon), above
what it held before; another process samples it every 5 ms, which the writer cannot hold up.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from holdfast.ids import BatchId, Epoch, OperatorId, PartitionId
from holdfast.runtime.state.snapshots import Snapshot, encode_snapshot
from holdfast.runtime.state.versions import Commit, FileName, SegmentRef, VersionId
from holdfast.runtime.worker.saving_beside import SavesBeside
from holdfast.spark.snapshot_store import NodeSnapshotStore
from holdfast.storage.memory import MemoryStorage
from holdfast.store.agent.spool import Spool

SEGMENTS = 4
SAMPLER = """
import sys, time
most = 0
while True:
    try:
        text = open(f"/proc/{sys.argv[1]}/status").read()
    except OSError:
        break
    now = int(text.split("RssAnon:")[1].split()[0])
    if now > most:
        most = now
        print(most, flush=True)
    time.sleep(0.005)
"""


def mapped_state(folder: Path, megabytes: int) -> Snapshot:
    """Return a snapshot of a state of so many megabytes in mapped files: keys, numbers, and text."""
    rows = megabytes * (1 << 20) // SEGMENTS // 64
    segments = {}
    for number in range(SEGMENTS):
        draw = np.random.default_rng(number)
        text = draw.bytes(36 * rows)
        table = pa.table(
            {
                "key": draw.integers(0, 1 << 60, rows),
                "sum": draw.random(rows),
                "count": draw.integers(0, 1000, rows),
                "text": pa.FixedSizeBinaryArray.from_buffers(pa.binary(36), rows, [None, pa.py_buffer(text)]),
            }
        )
        path = folder / f"{number}.arrow"
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as reader:
            segments[SegmentRef(FileName(path.name), number)] = reader.read_all()
    partition = PartitionId(OperatorId("state"), 0)
    commit = Commit(partition, VersionId(BatchId(1), Epoch.of(1, 1)), None, None, {"t": tuple(segments)})
    return Snapshot(commit, None, segments)


def measured(begin: Callable[[], Callable[[], bool]]) -> tuple[float, float, float]:
    """Turn a loop while a snapshot is saved; return its longest turn, the whole time, and the memory, in MB."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    held = int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0])
    sampler = subprocess.Popen([sys.executable, "-c", SAMPLER, str(os.getpid())], stdout=subprocess.PIPE, text=True)
    assert sampler.stdout is not None
    first = int(sampler.stdout.readline())
    began = last = time.perf_counter()
    longest = 0.0
    done: Callable[[], bool] | None = None
    while done is None or not done():
        if done is None:
            done = begin()
        else:
            time.sleep(0.001)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    took = time.perf_counter() - began
    sampler.terminate()
    most = max([first, *(int(line) for line in sampler.stdout.read().split() if line.isdigit())])
    sampler.wait()
    return longest, took, (most - held) / 1024


def in_the_way(snapshot: Snapshot, spool: Spool, name: str) -> Callable[[], bool]:
    """As it was: encoded and spooled by the thread of the stream."""
    spool.save(name, encode_snapshot(snapshot), epoch=1, durable=False)
    return lambda: True


def beside(saves: SavesBeside, snapshot: Snapshot, name: str) -> Callable[[], bool]:
    """As it is: a thread writes it down and spools it."""
    saves.begin(name, snapshot, epoch=1, durable=False)
    return lambda: not saves.pending(name)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[100, 400])
    parser.add_argument("--tries", type=int, default=3)
    asked = parser.parse_args()
    print("| state | side | longest pause of the stream | until it is spooled | memory above the state |")
    print("|---|---|---|---|---|")
    for megabytes in asked.megabytes:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            snapshot = mapped_state(folder, megabytes)
            size = snapshot.nbytes / (1 << 20)
            spool = Spool(folder / "spool")
            saves = SavesBeside(NodeSnapshotStore(MemoryStorage(), spool), folder / "beside")
            found: dict[str, list[tuple[float, float, float]]] = {"in the way": [], "beside": []}
            for number in range(asked.tries):
                found["in the way"].append(measured(partial(in_the_way, snapshot, spool, f"run/a-0/c1.{number}-1.1")))
                found["beside"].append(measured(partial(beside, saves, snapshot, f"run/a-0/c2.{number}-1.1")))
                for path in (folder / "spool" / "orders").iterdir():
                    path.unlink()
            for side, tries in found.items():
                pause, took, memory = (sorted(one) for one in zip(*tries, strict=True))
                shown = [f"{statistics.median(one):.3f} s ({one[0]:.3f} to {one[-1]:.3f})" for one in (pause, took)]
                print(f"| {size:.0f} MB | {side} | {shown[0]} | {shown[1]} | {statistics.median(memory):.0f} MB |")


if __name__ == "__main__":
    main()
