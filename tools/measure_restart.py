"""How long a new process of a node takes until it has the node's state: `python tools/measure_restart.py`.

What a commit costs beside a plain write of the same bytes is in `holdfast bench limits`.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

import pyarrow as pa

from holdfast.ids import OperatorId, PartitionId
from holdfast.runtime.state.journal_store import JournalStore
from holdfast_lab.benches.limits.state import rows_of, turn

ROWS = (10, 100, 1_000, 10_000, 100_000)
PARTITIONS, COMMITS = 8, 64


def restart(partitions: int, batches: int, rows: pa.Table) -> tuple[float, float]:
    """Return the seconds until a new process has a node's state, and how many MB its files have."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-state-"))
    try:
        store = JournalStore(folder)
        turn(store, partitions, batches, rows)
        store.close()
        began = time.process_time()
        anew = JournalStore(folder)
        for index in range(partitions):
            chain = anew.chain(PartitionId(OperatorId("O3"), index))
            assert chain is not None
            assert chain.last is not None
            assert anew.load(chain.last) is not None
        return time.process_time() - began, anew.file_bytes / 1e6
    finally:
        shutil.rmtree(folder)


def main() -> None:
    """Measure and print."""
    for count in ROWS:
        batches = max(8, min(COMMITS, 2_000_000 // (count * PARTITIONS)))
        seconds, size = restart(PARTITIONS, batches, rows_of(count))
        print(f"{count} rows a commit: {seconds * 1000:.1f} ms for files of {size:.1f} MB")


if __name__ == "__main__":
    main()
