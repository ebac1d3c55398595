"""Windows, late rows and best rows in Spark SQL, as the examples' answers need them. Runs on the driver.

A row counts in every window that holds its moment and had not closed when its batch began: whose end is after the
watermark it met. Rows that carry no watermark (of a stream that Spark itself watches over) count in all. A window's
result happened in the last microsecond before the window's end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql.functions import col, count_if, explode, expr, lit, monotonically_increasing_id, row_number, window
from pyspark.sql.window import Window

from holdfast_lab.sql_answers.inputs import BOOKKEEPING, MET

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

WINDOW = "window"
MOST_EXPANDED = 20
"""Spark generates code for every sliding window a row is in; with many more that code does not compile."""


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """What an application must give for an input, once all its sources have ended."""

    rows: Mapping[str, DataFrame]
    """The rows of each output."""
    late: Mapping[tuple[str, str], DataFrame] = field(default_factory=dict)
    """The rows an operator must keep aside, of each of its inputs: (operator, who feeds it)."""
    in_order: frozenset[str] = frozenset()
    """The outputs whose rows come in one order only: that of their DataFrame."""


def in_windows(rows: DataFrame, time: str | Column, size: int, every: int | None = None) -> DataFrame:
    """Give each row once for every window (lengths in seconds) it counts in, with the window in the column `window`."""
    placed = _placed(rows, time, size, every or size)
    if MET not in rows.columns:
        return placed
    return placed.filter(col(MET).isNull() | (col("window.end") > col(MET)))


def results_in_windows(results: DataFrame, size: int, every: int | None = None) -> DataFrame:
    """Put results of windows into larger windows; results are never late."""
    return in_windows(results, happened(), size, every)


def _placed(rows: DataFrame, time: str | Column, size: int, every: int) -> DataFrame:
    if size <= MOST_EXPANDED * every:
        return rows.withColumn(WINDOW, window(time, f"{size} seconds", f"{every} seconds"))
    # All windows that hold a moment begin between the last slide before it and one window's length earlier.
    slide = rows.withColumn(WINDOW, window(time, f"{every} seconds"))
    starts = f"sequence(window.start - INTERVAL '{size - every}' SECOND, window.start, INTERVAL '{every}' SECOND)"
    bounds = f"transform({starts}, start -> named_struct('start', start, 'end', start + INTERVAL '{size}' SECOND))"
    return slide.withColumn(WINDOW, explode(expr(bounds)))


def happened(end: str = "window_end") -> Column:
    """Return the moment at which a window's result happened."""
    return col(end) - expr("INTERVAL '0.000001' SECOND")


def with_bounds(results: DataFrame) -> DataFrame:
    """Replace the window by its start and its end."""
    bounded = results.withColumn("window_start", col("window.start")).withColumn("window_end", col("window.end"))
    return bounded.drop(WINDOW)


def late_rows(rows: DataFrame, time: str, size: int, every: int | None = None) -> DataFrame:
    """Give the rows that missed windows, with how many, and those without an event time."""
    own = [name for name in rows.columns if name not in BOOKKEEPING]
    numbered = rows.withColumn("row", monotonically_increasing_id())  # equal rows are late one by one
    missed = (
        _placed(numbered, time, size, every or size)
        .groupBy("row", *own)
        .agg(count_if(col("window.end") <= col(MET)).alias("missed_windows"))
        .filter("missed_windows > 0")
        .select(*own, lit("late").alias("late_reason"), "missed_windows")
    )
    timeless = rows.filter(col(time).isNull()).select(*own, lit("no event time"), lit(0).cast("long"))
    return missed.union(timeless)


def best(rows: DataFrame, groups: Sequence[str], order: Sequence[Any], k: int) -> DataFrame:
    """Give the first k rows of every group, in an order that leaves no choice."""
    ranked = rows.withColumn("rank", row_number().over(Window.partitionBy(*groups).orderBy(*order)))
    return ranked.filter(col("rank") <= k).drop("rank")
