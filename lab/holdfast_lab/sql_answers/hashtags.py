"""The hashtags' answer in Spark SQL: four windowed counts, sums of them, and the best of these. Runs on the driver."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql.functions import asc, desc, explode, split
from pyspark.sql.functions import sum as total

from holdfast.examples.hashtags import SUMS, TOP, TOPS
from holdfast_lab.sql_answers.inputs import Inputs
from holdfast_lab.sql_answers.windows import Answer, best, in_windows, late_rows, with_bounds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SIZES = {number: 5 * (number + 1) for number in range(4)}
EVERY = 1


def tags(tweets: DataFrame) -> DataFrame:
    """Find the hashtags of tweets."""
    return tweets.withColumn("tag", explode(split("text", " "))).filter("startswith(tag, '#')").drop("text")


def counts(found: DataFrame, size: int) -> DataFrame:
    """Count hashtags in sliding windows."""
    return with_bounds(in_windows(found, "at", size, EVERY).groupBy("tag", "window").count())


def sums(several: list[DataFrame]) -> DataFrame:
    """Add up counts of a hashtag whose windows end together."""
    together = reduce(
        lambda one, other: one.union(other), (rows.select("tag", "window_end", "count") for rows in several)
    )
    return together.groupBy("tag", "window_end").agg(total("count").alias("count"))


def tops(several: list[DataFrame]) -> DataFrame:
    """Give the hashtags with the highest sums for each end of a window, best first."""
    order = [desc("count"), asc("tag")]
    return best(sums(several), ["window_end"], order, TOP).orderBy("window_end", *order)


def answer(inputs: Inputs) -> Answer:
    """Return the rows of O0 to O14."""
    found = tags(inputs["Source"])
    rows = {number: counts(found, size).cache() for number, size in SIZES.items()}
    for number, reads in SUMS.items():
        rows[number] = sums([rows[read] for read in reads]).cache()
    for number, reads in TOPS.items():
        rows[number] = tops([rows[read] for read in reads])
    return Answer(
        {f"O{number}": frame for number, frame in rows.items()},
        {(f"O{number}", "Parser"): late_rows(found, "at", size, EVERY) for number, size in SIZES.items()},
        frozenset(f"O{number}" for number in TOPS),
    )
