"""What Spark's own checkpoint costs a micro-batch on a local disk: as Spark writes it, and as Holdfast has it.

    python tools/measure_micro_batches.py

A local Spark reads small files, one in each micro-batch, into a `foreachBatch` that does nothing. Both sides take turns
in one JVM; the first turn of each warms it up and does not count. Prints seconds and CPU seconds of a micro-batch
(those of the JVM and of the processes that it starts), medians with the least and the most, and their ratio.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def cpu_seconds(process: int) -> float:
    """Return the CPU seconds of a process, and of its children that have ended."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def turn(spark: SparkSession, process: int, place: Path, files: int) -> tuple[float, float]:
    """Read all files; return the seconds of a micro-batch, and its CPU seconds."""
    frame = spark.readStream.schema("n int").option("maxFilesPerTrigger", 1).json(str(place / "in"))
    writer = frame.writeStream.foreachBatch(lambda rows, number: None).trigger(availableNow=True)
    cpu, began = cpu_seconds(process), time.monotonic()
    query = writer.option("checkpointLocation", tempfile.mkdtemp(dir=place)).start()
    query.awaitTermination()
    return (time.monotonic() - began) / files, (cpu_seconds(process) - cpu) / files


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--files", type=int, default=24, help="micro-batches of a turn")
    parser.add_argument("--turns", type=int, default=5, help="turns of each side that count")
    given = parser.parse_args()
    from pyspark.sql import SparkSession

    from holdfast.spark.reader_checkpoint import through_file_system

    conf = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.log.level": "ERROR"}
    spark = SparkSession.builder.master("local[1]").config(map=conf).getOrCreate()
    assert spark.sparkContext._jvm is not None
    process = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())
    sides: dict[str, Callable[[], AbstractContextManager[None]]] = {
        "as Spark writes it": nullcontext,
        "as Holdfast has it": lambda: through_file_system(spark),
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "in").mkdir()
        for number in range(given.files):
            path = place / "in" / f"{number:04d}.json"
            path.write_text('{"n": 1}\n')
            os.utime(path, (1_700_000_000 + number,) * 2)
        for number in range(given.turns + 1):
            for name, side in sides.items():
                with side():
                    one = turn(spark, process, place, given.files)
                if number:
                    found[name].append(one)
        spark.stop()
    for position, what in enumerate(("seconds", "CPU seconds")):
        medians = []
        for name, turns in found.items():
            values = [one[position] for one in turns]
            medians.append(statistics.median(values))
            print(f"{what} of a micro-batch, {name}: {medians[-1]:.3f} ({min(values):.3f} to {max(values):.3f})")
        print(f"{what}: {medians[0] / medians[1]:.1f} times")


if __name__ == "__main__":
    main()
