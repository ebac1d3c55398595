"""A drill's input as files that arrive: one of every source for each batch interval. Runs beside the cluster.

The run reads them as a user's would be read, with Spark's file stream, one file to a micro-batch: micro-batch n of a
source is its file n. Which micro-batches a batch holds is the run's decision; every batch it logs is in the history
(`logged`), and the expected outputs are computed from the same files in the same batches.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.application import Application, files, steps

FIRST_TIME = 1_000_000_000
"""Files carry times of change one second apart from here on: Spark reads them in the order of these times."""


def with_file_sources(app: Application, folder: Path) -> Application:
    """Return the application with sources that read the files of this folder, one to a micro-batch."""
    fed = copy(app)
    fed.steps = {
        # The history of a drill is about micro-batches: what is logged in place is not in it yet.
        name: replace(
            step, reader=replace(files(str(folder / name), format="parquet", maxFilesPerTrigger=1), by_spark=True)
        )
        if isinstance(step, steps.Source)
        else step
        for name, step in app.steps.items()
    }
    return fed


class ArrivingFiles:
    """Writes the files of a drill's input as they are due; use it as a thread that is stopped."""

    def __init__(self, folder: Path, given: Sequence[dict[str, pa.Table]]) -> None:
        """Make the sources' folders; nothing arrives yet."""
        self.folder, self._given = folder, given
        self.written = 0
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        for name in given[0]:
            (folder / name).mkdir(parents=True, exist_ok=True)

    def start(self, began: float, every: float) -> None:
        """Let file n of every source arrive n intervals after this moment of the system's clock."""
        self._thread = threading.Thread(target=self._write_as_due, args=(began, every), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Write no more."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _write_as_due(self, began: float, every: float) -> None:
        for number in range(len(self._given)):
            if self._stopped.wait(max(0.0, began + number * every - time.time())):
                return
            self.write(number)

    def write(self, number: int) -> None:
        """Write one file of every source; a reader sees it whole or not at all."""
        for name, table in self._given[number].items():
            # Spark's file stream passes over names that begin with a dot.
            hidden = self.folder / name / f".{number:08d}.parquet"
            pq.write_table(_with_zones(table), hidden)
            os.utime(hidden, (FIRST_TIME + number, FIRST_TIME + number))
            hidden.rename(self.folder / name / f"{number:08d}.parquet")
        self.written = number + 1


def _with_zones(table: pa.Table) -> pa.Table:
    """Return times as Spark writes them: moments in UTC."""
    for number, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type) and field.type.tz is None:
            table = table.set_column(number, field.name, table.column(number).cast(pa.timestamp("us", "UTC")))
    return table
