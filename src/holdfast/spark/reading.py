"""Read the outputs of a run as DataFrames. Runs on the driver."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.errors import BadInput, one_line
from holdfast.spark.readers import absolute

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read(spark: SparkSession, path: str | Path) -> DataFrame:
    """Return the rows of a Parquet output (`hf.parquet(path)`, or DIRECTORY/out/NAME) as a DataFrame.

    Every row of every published batch is there once, also while the run goes on. Any session will do.

    Example: `hf.read(spark, "out/pages").orderBy("window_end").show()`.
    """
    place = absolute(str(path))
    try:
        return spark.read.parquet(place)
    except Exception as error:
        line = one_line(str(error), 200)
        empty = "UNABLE_TO_INFER_SCHEMA" in line or "PATH_NOT_FOUND" in line
        raise BadInput(
            "there are no rows yet" if empty else f"cannot be read: {line}",
            where=place,
            remedy="name the folder of an output; windows come out once later rows have passed their end",
        ) from None
