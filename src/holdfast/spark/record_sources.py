"""What an application's sources deliver, as tables: for a drill, which plays it again. Runs on the driver.

Each source's streaming DataFrame is read once with `availableNow`, from its start, until so many rows have come or
there are no more. A source that has nothing at once (`rate`, an idle topic) is read on for some seconds. Spark's
checkpoints of this reading are in a folder of their own: a run of the application does not see them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.application import Application, steps
from holdfast.errors import BadInput, CheckFailed
from holdfast.runtime.schemas import arrow_schema, conform

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
    for name, step in app.steps.items():
        if not isinstance(step, steps.Source):
            continue
        if step.frame is None:
            raise BadInput(
                "has no reader, so there is nothing to record",
                where=f"application {app.name}",
                field=name,
                remedy="give its rows with --input DIR, or the source a reader: app.source(…, lambda spark: …)",
            )
        schema = arrow_schema(app.columns[name])
        frame = _frame(name, step.frame, schema, spark)
        rows = _read(name, frame, folder / name / "now", limit, available_now=True, seconds=MOST_SECONDS)
        if not sum(table.num_rows for table in rows):
            rows = _read(name, frame, folder / name / "on", limit, available_now=False, seconds=IDLE_SECONDS)
        if rows:
            table = pa.concat_tables(rows).combine_chunks()
            found[str(name)] = table if schema is None else conform(table, schema, f"source {name}")
        else:
            found[str(name)] = pa.table({}) if schema is None else schema.empty_table()
    return found


def _frame(name: str, make: Callable[[Any], Any], schema: pa.Schema | None, spark: SparkSession) -> DataFrame:
    try:
        frame: DataFrame = make(spark)
    except Exception as error:
        raise BadInput(
            f"its reader failed: {_first_line(error)}", where=f"source {name}", remedy="see what the reader needs"
        ) from None
    if not getattr(frame, "isStreaming", False):
        raise BadInput("is not a streaming DataFrame", field=f"{name}.frame", remedy="make it with spark.readStream")
    if schema is None:
        return frame
    if missing := [column for column in schema.names if column not in frame.columns]:
        raise BadInput(
            f"has no column {missing[0]!r}",
            field=f"{name}.frame",
            remedy=f"it has {', '.join(frame.columns)}; select or rename to the declared schema",
        )
    return frame.select(*schema.names)


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
