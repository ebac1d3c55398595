"""The incidents' answer in Spark SQL: speeds, distinct incidents, their join over five minutes, an aggregate of it.

Runs on the driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.functions import avg, count_distinct
from pyspark.sql.functions import min as least

from holdfast.examples.incidents import JAM_SPEED
from holdfast_lab.sql_answers.inputs import Inputs
from holdfast_lab.sql_answers.windows import Answer, in_windows, late_rows, results_in_windows, with_bounds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SIZE, EVERY = 300, 10


def slow_seconds(locations: DataFrame) -> DataFrame:
    """Give the seconds in which a segment's average speed is that of a jam."""
    speeds = in_windows(locations, "at", 1).groupBy("segment", "window").agg(avg("speed").alias("speed"))
    return with_bounds(speeds).filter(f"speed < {JAM_SPEED}")


def known(reports: DataFrame) -> DataFrame:
    """Give each incident once in every ten seconds in which it is reported."""
    return with_bounds(in_windows(reports, "at", EVERY).select("segment", "incident", "window").distinct())


def jams(slow: DataFrame, incidents: DataFrame) -> DataFrame:
    """Tell of each incident that shares five minutes with slow seconds of its segment, in every such window."""
    left = results_in_windows(slow.withColumnRenamed("window_start", "second"), SIZE, EVERY)
    right = results_in_windows(incidents, SIZE, EVERY).withColumnRenamed("window_start", "reported")
    pairs = left.withColumnRenamed("window_end", "second_end").join(right.drop("window_end"), ["segment", "window"])
    ends_together = with_bounds(pairs)
    grouped = results_in_windows(ends_together, EVERY).groupBy("segment", "incident", "window")
    return with_bounds(
        grouped.agg(
            least("reported").alias("reported"),
            count_distinct("second_end").alias("slow_seconds"),
            least("speed").alias("slowest"),
        )
    )


def answer(inputs: Inputs) -> Answer:
    """Return the rows of O4."""
    locations, reports = inputs["locations"], inputs["reports"]
    return Answer(
        {"O4": jams(slow_seconds(locations), known(reports))},
        {
            ("O1", "locations"): late_rows(locations, "at", 1),
            ("O2", "reports"): late_rows(reports, "at", EVERY),
        },
    )
