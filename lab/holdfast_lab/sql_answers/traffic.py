"""Traffic's answer in Spark SQL: two windowed aggregates and their join. Runs on the driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.functions import avg

from holdfast_lab.sql_answers.inputs import Inputs
from holdfast_lab.sql_answers.windows import Answer, in_windows, late_rows, results_in_windows, with_bounds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SIZE, EVERY = 10, 1


def speeds(locations: DataFrame) -> DataFrame:
    """Average the speed per segment."""
    grouped = in_windows(locations, "at", SIZE, EVERY).groupBy("segment", "window")
    return with_bounds(grouped.agg(avg("speed").alias("speed")))


def reports(incidents: DataFrame) -> DataFrame:
    """Count the incidents per segment."""
    return with_bounds(in_windows(incidents, "at", SIZE, EVERY).groupBy("segment", "window").count())


def joined(left: DataFrame, right: DataFrame) -> DataFrame:
    """Pair speeds and reports of a segment whose windows end in the same second."""
    both = []
    for side, rows in (("left", left), ("right", right)):
        named = results_in_windows(rows, 1)
        for bound in ("window_start", "window_end"):
            named = named.withColumnRenamed(bound, f"{side}_{bound}")
        both.append(named)
    return with_bounds(both[0].join(both[1], ["segment", "window"]))


def answer(inputs: Inputs) -> Answer:
    """Return the rows of O3, O4 and O5."""
    left, right = speeds(inputs["O1"]).cache(), reports(inputs["O2"]).cache()
    return Answer(
        {"O3": left, "O4": right, "O5": joined(left, right)},
        {
            ("O3", "O1"): late_rows(inputs["O1"], "at", SIZE, EVERY),
            ("O4", "O2"): late_rows(inputs["O2"], "at", SIZE, EVERY),
        },
    )
