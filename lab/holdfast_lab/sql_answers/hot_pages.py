"""The hot pages' answer in Spark SQL: slices of a hundred rows by row_number, three times. Runs on the driver.

Slices follow the order in which rows reach a task, so the answer numbers rows by it. A task takes a batch's rows sender
by sender, each sender's in the order it gave them; a slice comes out in the batch that fills it, its pages in the order
in which they first appear.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.functions import asc_nulls_last, coalesce, col, count, desc, expr, floor, lag, lit, row_number
from pyspark.sql.functions import max as greatest
from pyspark.sql.functions import min as least
from pyspark.sql.functions import sum as total
from pyspark.sql.window import Window

from holdfast.examples.hot_pages import SLICE, TOP
from holdfast_lab.sql_answers.inputs import BATCH, PLACE, Inputs
from holdfast_lab.sql_answers.windows import Answer, best

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SLICING, MERGING = 8, 4
"""Tasks of O1 and O2."""

_WORD = 2**64
_ORDER = (BATCH, "task", "slice", "first")


def task_of(server: int | None, tasks: int) -> int:
    """Return the task whose range holds a server's hash: the rule of decision 0050, written down a second time."""
    step, null = 0x9E3779B97F4A7C15, 0x9E6C63D0676A9A99

    def mixed(word: int) -> int:
        word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % _WORD
        word = (word ^ (word >> 27)) * 0x94D049BB133111EB % _WORD
        return word ^ (word >> 31)

    hashed = mixed(null if server is None else mixed((server + step) % _WORD))
    return (hashed >> 32) * tasks >> 32


def by_task(visits: DataFrame) -> DataFrame:
    """Give each visit its task of O1, as one visit of a page."""
    servers = [row.server for row in visits.select("server").distinct().collect()]
    tasks = visits.sparkSession.createDataFrame(
        [(server, task_of(server, SLICING)) for server in servers], "at_server int, task int"
    )
    placed = visits.join(tasks, visits["server"].eqNullSafe(tasks["at_server"]))
    return placed.select("task", BATCH, PLACE, "page", lit(1).cast("long").alias("visits"))


def slices(rows: DataFrame, *order: str) -> DataFrame:
    """Sum each slice of a hundred rows of a task by page; slices that are not full do not come out."""
    numbered = rows.withColumn("number", row_number().over(Window.partitionBy("task").orderBy(*order)) - 1)
    of_slice = Window.partitionBy("into", "cut")
    cut = (
        numbered.withColumnRenamed("task", "into")
        .withColumn("cut", floor(col("number") / SLICE))
        .withColumn("size", count(lit(1)).over(of_slice))
        .withColumn("filled", greatest(BATCH).over(of_slice))
        .filter(col("size") == SLICE)
    )
    sums = cut.groupBy("into", "cut", "filled", "page").agg(
        total("visits").alias("visits"), least("number").alias("first")
    )
    return sums.select(
        col("into").alias("task"), col("cut").alias("slice"), col("filled").alias(BATCH), "first", "page", "visits"
    )


def sent_on(rows: DataFrame, senders: int, receivers: int) -> DataFrame:
    """Bring rows to the tasks that they merge into, with where they came from."""
    return rows.withColumnRenamed("task", "sender").withColumn("task", expr(f"sender * {receivers} div {senders}"))


def hottest(rows: DataFrame) -> DataFrame:
    """Give the hottest pages after every batch in which a hundred sums were full."""
    numbered = rows.withColumn("number", row_number().over(Window.orderBy(*_ORDER)) - 1)
    full = numbered.groupBy(BATCH).agg((floor((greatest("number") + 1) / SLICE) * SLICE).alias("full"))
    before = coalesce(lag("full").over(Window.orderBy(BATCH)), lit(0))
    updated = full.withColumn("before", before).filter(col("full") > col("before")).withColumnRenamed(BATCH, "after")
    totals = (
        updated.join(numbered, col("number") < col("full"))
        .groupBy("after", "page")
        .agg(total("visits").alias("visits"))
    )
    order = [desc("visits"), asc_nulls_last("page")]
    return best(totals, ["after"], order, TOP).orderBy("after", *order).select("page", "visits")


def answer(inputs: Inputs) -> Answer:
    """Return the rows of O3."""
    first = slices(by_task(inputs["visits"]), PLACE)
    merged = slices(sent_on(first, SLICING, MERGING), BATCH, "sender", "slice", "first")
    return Answer({"O3": hottest(merged)}, in_order=frozenset({"O3"}))
