"""Rows per second of the in-process backend: `python tools/runtime_rates.py [rows per batch] [batches]`.

One windowed count (hashtags by Zipf's law, sliding windows of 10 seconds every second) and the examples, in memory and
with state, logs and outboxes in files. Seconds are CPU seconds of this process, so that other work on the machine does
not count; the input is made beforehand.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from holdfast.application import Application, sliding
from holdfast.examples import EXAMPLES, Example
from holdfast.examples.draws import by_popularity, moments, of_batch
from holdfast.runtime import InProcess

TAGS = 5000


def windowed_count() -> Application:
    """One source, one windowed count of four partitions."""
    app = Application("windowed-count")
    source = app.source("tags", schema={"tag": "string", "at": "timestamp"}, event_time="at", lateness=1)
    source.key_by("tag").window(sliding("10 seconds", every="1 second")).count(id="counts", parallelism=4).output()
    return app


def tags(seed: int, count: int, rows: int) -> Iterator[dict[str, pa.Table]]:
    """Batches of hashtags."""
    names = pa.array([f"#tag{number}" for number in range(TAGS)])
    for batch in range(count):
        random = of_batch(seed, 0, batch)
        ranks = by_popularity(random, rows, TAGS, 1.1)
        yield {"tags": pa.table({"tag": names.take(pa.array(ranks)), "at": moments(random, batch, rows)})}


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
    count = Example("windowed-count", "", windowed_count, tags)
    for example in (count, *EXAMPLES.values()):
        measure(example, rows, batches, None)
        with tempfile.TemporaryDirectory() as directory:
            measure(example, rows, batches, Path(directory))


if __name__ == "__main__":
    main()
