"""The advertising benchmark's answer in Spark SQL: a filter, a join with the table of campaigns, a windowed count.

Runs on the driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.examples.advertising import CAMPAIGN_OF_AD
from holdfast_lab.sql_answers.inputs import Inputs
from holdfast_lab.sql_answers.windows import Answer, in_windows, late_rows, with_bounds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SIZE = 10


def views(events: DataFrame) -> DataFrame:
    """Give the campaign of every view, by an inner join."""
    campaigns = events.sparkSession.createDataFrame(list(CAMPAIGN_OF_AD.items()), "ad_id string, campaign_id string")
    seen = events.filter("event_type = 'view'").join(campaigns, "ad_id")
    return seen.drop("user_id", "page_id", "ad_id", "ad_type", "event_type", "ip_address")


def counts(seen: DataFrame) -> DataFrame:
    """Count views per campaign and window."""
    return with_bounds(in_windows(seen, "event_time", SIZE).groupBy("campaign_id", "window").count())


def answer(inputs: Inputs) -> Answer:
    """Return the rows of the output `counts`."""
    seen = views(inputs["events"])
    return Answer({"counts": counts(seen)}, {("counts", "joined"): late_rows(seen, "event_time", SIZE)})
