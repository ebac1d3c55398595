"""CPU seconds per million CSV rows of a windowed count over files that are read in place, in one process.

    python tools/measure_files.py

Marginal: the CPU of six files less that of one, of half a million rows each. Beside it, the same files read by
pyarrow alone, on one thread.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

ROWS = 500_000
FILES = 6


def write(path: Path, number: int) -> None:
    """Write a file: pages, times 50 microseconds apart, milliseconds."""
    draw = np.random.default_rng(number)
    times = (
        np.datetime64("2026-01-01T00:00:00", "us") + (np.arange(ROWS) + number * ROWS).astype("timedelta64[us]") * 50
    )
    pages = pa.array([f"p{page}" for page in range(100)]).take(pa.array(draw.integers(0, 100, ROWS)))
    table = pa.table({"page": pages, "at": pa.array(times), "ms": draw.random(ROWS).round(3)})
    pyarrow.csv.write_csv(table, path, pyarrow.csv.WriteOptions(include_header=False))


def counted(folder: Path) -> float:
    """Return the CPU seconds of a run over a folder."""
    import holdfast as hf
    from holdfast.runtime.in_process import InProcess

    app = hf.Application("pages")
    schema = "page string, at timestamp, ms double"
    visits = app.source("visits", hf.files(str(folder), "csv", settle=0), schema=schema, event_time="at", lateness=1)
    visits.key_by("page").window(hf.tumbling("10 seconds")).count(id="counts").output("counts")
    running = InProcess(app)
    began = time.process_time()
    running.read()
    return time.process_time() - began


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as place:
        one, all_of_them = Path(place) / "one", Path(place) / "all"
        one.mkdir()
        all_of_them.mkdir()
        for number in range(FILES):
            write(all_of_them / f"{number}.csv", number)
        write(one / "0.csv", 0)
        small, large = counted(one), counted(all_of_them)
        print(f"windowed count, marginal: {(large - small) / (FILES - 1) / ROWS * 1e6:.2f} CPU s per million rows")
        began = time.process_time()
        for path in sorted(all_of_them.iterdir()):
            names = pyarrow.csv.ReadOptions(column_names=["page", "at", "ms"], use_threads=False)
            pyarrow.csv.read_csv(path, read_options=names)
        print(
            f"pyarrow alone, reading: {(time.process_time() - began) / FILES / ROWS * 1e6:.2f} CPU s per million rows"
        )


if __name__ == "__main__":
    main()
