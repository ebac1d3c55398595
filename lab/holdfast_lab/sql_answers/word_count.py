"""Word count's answer in Spark SQL. Runs on the driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.functions import explode, split

from holdfast_lab.sql_answers.inputs import Inputs
from holdfast_lab.sql_answers.windows import Answer, in_windows, late_rows, with_bounds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SIZE = 10


def words(sentences: DataFrame) -> DataFrame:
    """Cut sentences at white space."""
    return sentences.withColumn("word", explode(split("text", r"\s+"))).filter("word <> ''").drop("text")


def counts(found: DataFrame) -> DataFrame:
    """Count words per window."""
    return with_bounds(in_windows(found, "at", SIZE).groupBy("word", "window").count())


def answer(inputs: Inputs) -> Answer:
    """Return the rows of the output `counts`."""
    found = words(inputs["sentences"])
    return Answer({"counts": counts(found)}, {("counts", "words"): late_rows(found, "at", SIZE)})
