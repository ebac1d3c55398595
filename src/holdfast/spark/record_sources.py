"""What an application's sources deliver, as tables: for a drill, which plays it again. Runs on the driver.

Each source's streaming DataFrame is read once with `availableNow`, from its start, until so many rows have come or
there are no more. A source that has nothing at once (`rate`, an idle topic) is read on for some seconds. Spark's
checkpoints of this reading are in a folder of their own: a run of the application does not see them.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from holdfast.application import Application
from holdfast.errors import CheckFailed
from holdfast.runtime.schemas import arrow_schema, conform
from holdfast.spark.reader_checkpoint import through_file_system
from holdfast.spark.readers import open_sources

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

IDLE_SECONDS = 20.0
"""How long a source that has nothing at once is read on."""
MOST_SECONDS = 120.0
"""How long a source that has something may take."""
_LOOK_AGAIN = 0.2


def record_sources(app: Application, spark: SparkSession, folder: Path, limit: int) -> dict[str, pa.Table]:
    """Return the first rows that every source delivers, at most so many of each; checkpoints go into the folder."""
    found = {}
    for name, frame in open_sources(app, spark, in_place=True).items():
        rows = _read(name, frame, folder / name / "now", limit, available_now=True, seconds=MOST_SECONDS)
        if not sum(table.num_rows for table in rows):
            rows = _read(name, frame, folder / name / "on", limit, available_now=False, seconds=IDLE_SECONDS)
        schema = arrow_schema(app.columns[name])
        if rows:
            table = pa.concat_tables(rows).combine_chunks()
            found[str(name)] = table if schema is None else conform(table, schema, f"source {name}")
        else:
            found[str(name)] = pa.table({}) if schema is None else schema.empty_table()
    return found


def _read(
    name: str, frame: DataFrame, checkpoint: Path, limit: int, *, available_now: bool, seconds: float
) -> list[pa.Table]:
    """Read until so many rows have come, the source has ended, or the time is over."""
    taken: list[pa.Table] = []

    def count() -> int:
        return sum(table.num_rows for table in taken)

    def take(rows: DataFrame, number: int) -> None:
        if (left := limit - count()) > 0:
            taken.append(rows.limit(left).toArrow())

    writer = frame.writeStream.option("checkpointLocation", str(checkpoint)).foreachBatch(take)
    with through_file_system(frame.sparkSession):
        query = (writer.trigger(availableNow=True) if available_now else writer).start()
    deadline = time.monotonic() + seconds
    try:
        while query.isActive and count() < limit and time.monotonic() < deadline:
            time.sleep(_LOOK_AGAIN)
        if (problem := query.exception()) is not None and count() < limit:
            raise CheckFailed(
                f"reading it failed: {_first_line(problem)}",
                where=f"source {name}",
                remedy="correct its reader, or give rows with --input DIR",
            )
    finally:
        query.stop()
    return taken


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
