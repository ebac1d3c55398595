"""Rows per second of the in-process backend: `python tools/runtime_rates.py [rows per batch] [batches]`.

One windowed count (hashtags by Zipf's law, sliding windows of 10 seconds every second) and the examples, in memory and
with state, logs and outboxes in files. Seconds are CPU seconds of this process, so that other work on the machine does
not count; the input is made beforehand.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from holdfast.examples import EXAMPLES, Example
from holdfast.runtime import InProcess
from holdfast_lab.benches.streaming.workloads import tag_batches, windowed_count


def measure(example: Example, rows: int, batches: int, directory: Path | None) -> None:
    """Run one application and print its rate."""
    made = list(example.batches(1, batches, rows))
    total = sum(table.num_rows for batch in made for table in batch.values())
    running = InProcess(example.application(), directory=directory)
    started = time.process_time()
    for batch in made:
        running.feed(batch)
    seconds = time.process_time() - started
    where = "memory" if directory is None else "files"
    print(
        f"{example.name:16} {where:7} {total / seconds:12,.0f} rows/s {1000 * seconds / batches:8.1f} ms a batch of "
        f"{total // batches:,} rows"
    )


def main() -> None:
    """Measure everything."""
    rows, batches = (int(text) for text in [*sys.argv[1:], "100000", "20"][:2])
    count = Example("windowed-count", "", windowed_count, tag_batches)
    for example in (count, *EXAMPLES.values()):
        measure(example, rows, batches, None)
        with tempfile.TemporaryDirectory() as directory:
            measure(example, rows, batches, Path(directory))


if __name__ == "__main__":
    main()
