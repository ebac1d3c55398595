"""The answers by the name of their example. Runs on the driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from holdfast.examples import EXAMPLES
from holdfast_lab.sql_answers import advertising, hashtags, hot_pages, incidents, traffic, trending_keywords, word_count
from holdfast_lab.sql_answers.inputs import Inputs, input_frames
from holdfast_lab.sql_answers.windows import Answer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ANSWERS: dict[str, Callable[[Inputs], Answer]] = {
    "traffic": traffic.answer,
    "hashtags": hashtags.answer,
    "hot-pages": hot_pages.answer,
    "incidents": incidents.answer,
    "trending-keywords": trending_keywords.answer,
    "advertising": advertising.answer,
    "word-count": word_count.answer,
}


def answer(spark: SparkSession, name: str, batches: Sequence[Mapping[str, pa.Table]]) -> Answer:
    """Return what an example must give for these batches."""
    return ANSWERS[name](input_frames(spark, EXAMPLES[name].application(), batches))
