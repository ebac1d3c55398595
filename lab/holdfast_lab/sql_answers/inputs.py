"""A whole input as DataFrames: every row with its batch, its place in the stream, and the watermark it met.

Runs on the driver. Which rows are late depends on how the input was cut into batches, and nothing else does: a row
meets the watermark of the batches before its own, the latest event in them less the source's lateness. Count windows
depend on the order of arrival: the place is that order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
from pyspark.sql.functions import broadcast, col, expr
from pyspark.sql.functions import max as greatest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.window import Window

from holdfast.application import Application, steps

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Inputs: TypeAlias = "Mapping[str, DataFrame]"
"""The rows of each source."""

BATCH, PLACE, MET = "batch", "place", "watermark_met"
BOOKKEEPING = (BATCH, PLACE, MET)


def input_frames(spark: SparkSession, app: Application, batches: Sequence[Mapping[str, pa.Table]]) -> Inputs:
    """Return the rows of all batches, source by source; a source that a batch does not name has no rows in it."""
    found: dict[str, DataFrame] = {}
    for name, step in app.steps.items():
        if not isinstance(step, steps.Source):
            continue
        rows = _one_frame(spark, name, batches)
        found[name] = rows if step.event_time is None else _with_watermarks(rows, len(batches), step)
    return found


def _one_frame(spark: SparkSession, name: str, batches: Sequence[Mapping[str, pa.Table]]) -> DataFrame:
    tables = [
        batch[name].append_column(BATCH, pa.array(np.full(batch[name].num_rows, number)))
        for number, batch in enumerate(batches)
        if name in batch
    ]
    # In one piece: PySpark 4.3 loses what comes after an empty piece of a table.
    table = pa.concat_tables(tables).combine_chunks()
    table = table.append_column(PLACE, pa.array(np.arange(table.num_rows)))
    # Moments have no time zone: none has a say in which window they are.
    return spark.createDataFrame(table, from_arrow_schema(table.schema, prefer_timestamp_ntz=True))


def _with_watermarks(rows: DataFrame, batches: int, source: steps.Source) -> DataFrame:
    """Add to each row the latest event of all batches before its own, less the lateness; null where there is none."""
    latest = rows.groupBy(BATCH).agg(greatest(str(source.event_time)).alias("latest"))
    so_far = Window.orderBy(BATCH).rowsBetween(Window.unboundedPreceding, -1)
    lateness = expr(f"INTERVAL '{source.lateness:.6f}' SECOND")
    marks = (
        rows.sparkSession.range(batches)
        .withColumnRenamed("id", BATCH)
        .join(latest, BATCH, "left")
        .select(BATCH, (greatest("latest").over(so_far) - lateness).alias(MET))
    )
    return rows.join(broadcast(marks), BATCH).select(*rows.columns, col(MET))
