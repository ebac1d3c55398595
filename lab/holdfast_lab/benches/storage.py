"""What a batch and a checkpoint cost on object storage, against local files, in one run. Runs anywhere.

The steps are those of a run: a piece of rows and the batch's record; an output; a snapshot, written and read back; a
record of progress. Both sides take turns, round by round.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from holdfast import Application
from holdfast.ids import BatchId, Epoch, PartitionId
from holdfast.runtime.coordinator.progress import Progress
from holdfast.runtime.io.batch_log import BatchLog
from holdfast.runtime.io.parquet_sink import ParquetSink
from holdfast.runtime.io.sinks import OutputKey
from holdfast.runtime.program import Program
from holdfast.runtime.state.durable_snapshots import DurableSnapshotStore
from holdfast.storage.files import FileStorage
from holdfast.storage.storage import Storage
from holdfast_lab.benches.streaming.spread import Spread, median_with_interval

STEPS = ("batch", "output", "snapshot", "progress")


@dataclass(frozen=True, slots=True)
class StorageCost:
    """Seconds of one step on both sides."""

    step: str
    files: Spread
    objects: Spread
    ratio: Spread
    """Of the two, round by round."""


class _Side:
    """One storage with a run on it."""

    def __init__(self, storage: Storage, rows: int, state_bytes: int) -> None:
        app = Application("bench")
        app.source("rows", schema={"n": "int64", "at": "double"}, parallelism=2).output()
        program = Program(app)
        self._progress = Progress(storage, "bench")
        self._log = BatchLog(program.sources, "bench", storage, claim=self._progress.claim)
        self._sink = ParquetSink(storage.within("out"))
        self._sink.begin(self._progress.run, Epoch.of(1, 1))
        self._snapshots = DurableSnapshotStore(storage.within("checkpoints"))
        self._rows = pa.table({"n": list(range(rows)), "at": [float(number) for number in range(rows)]})
        self._state = pa.py_buffer(bytes(state_bytes))
        self._round = -1

    def steps(self) -> Iterator[tuple[str, Callable[[], object]]]:
        """Return the steps of one more round."""
        self._round += 1
        batch, epoch = BatchId(self._round), Epoch.of(1, 1)
        name = f"{self._progress.run}/rows-0/c1.0-{batch}.1-d"
        yield "batch", lambda: self._log.append({"rows": self._rows})
        key = OutputKey(PartitionId.parse("rows[0]"), batch)
        yield "output", lambda: self._sink.publish(key, self._rows, epoch)
        yield "snapshot", lambda: self._snapshots.save(name, self._state, epoch=epoch, durable=True)
        yield "progress", lambda: self._progress.write(epoch, {"checkpoints": {}, "round": batch}, {})


def bench_storage(
    objects: Storage, *, rounds: int, rows: int, state_bytes: int, report: Callable[[int], object] = lambda done: None
) -> list[StorageCost]:
    """Measure all steps on an object storage and on files of this machine, in turns."""
    taken: dict[str, dict[str, list[float]]] = {step: {"files": [], "objects": []} for step in STEPS}
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        sides = {
            "files": _Side(FileStorage(folder), rows, state_bytes),
            "objects": _Side(objects, rows, state_bytes),
        }
        for number in range(rounds + 1):
            for name, side in sides.items():
                for step, work in side.steps():
                    began = time.perf_counter()
                    work()
                    if number:  # the first round opens connections and makes folders
                        taken[step][name].append(time.perf_counter() - began)
            report(number)
    return [
        StorageCost(
            step,
            median_with_interval(both["files"]),
            median_with_interval(both["objects"]),
            median_with_interval([b / a for a, b in zip(both["files"], both["objects"], strict=True)]),
        )
        for step, both in taken.items()
    ]
