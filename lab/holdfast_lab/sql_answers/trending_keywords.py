"""The trending keywords' answer in Spark SQL: words that are no stop words, counted and ranked. Runs on the driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.functions import asc, col, desc, explode, lower, split

from holdfast.examples.trending_keywords import STOP_WORDS, TOP
from holdfast_lab.sql_answers.inputs import Inputs
from holdfast_lab.sql_answers.windows import Answer, best, in_windows, late_rows, results_in_windows, with_bounds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SIZE, EVERY = 60, 10


def keywords(tweets: DataFrame) -> DataFrame:
    """Cut tweets at white space and leave out stop words."""
    words = tweets.withColumn("word", explode(split(lower("text"), r"\s+"))).drop("text")
    return words.filter(~col("word").isin("", *STOP_WORDS))


def counts(found: DataFrame) -> DataFrame:
    """Count keywords in sliding windows."""
    return with_bounds(in_windows(found, "at", SIZE, EVERY).groupBy("word", "window").count())


def trending(counted: DataFrame) -> DataFrame:
    """Give the most frequent keywords of windows that end together, best first; the window is that of the ranking."""
    ranked = results_in_windows(counted, EVERY)
    order = [desc("count"), asc("word")]
    return with_bounds(best(ranked, ["window"], order, TOP)).orderBy("window_end", *order)


def answer(inputs: Inputs) -> Answer:
    """Return the rows of the output `trending`."""
    found = keywords(inputs["tweets"])
    return Answer(
        {"trending": trending(counts(found))},
        {("counter", "filter"): late_rows(found, "at", SIZE, EVERY)},
        frozenset({"trending"}),
    )
