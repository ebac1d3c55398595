"""The example applications by name. Runs anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from holdfast.application import Application
from holdfast.examples import (
    advertising,
    hashtags,
    hot_pages,
    incidents,
    traffic,
    trending_keywords,
    word_count,
)

Batches = Iterator[dict[str, pa.Table]]


@dataclass(frozen=True, slots=True)
class Example:
    """An application and its input."""

    name: str
    title: str
    application: Callable[[], Application]
    batches: Callable[[int, int, int], Batches]
    """Of a seed, a number of batches and rows per batch: batch b is the same whichever batches are made before it."""


EXAMPLES: dict[str, Example] = {
    one.name: one
    for one in (
        Example("traffic", traffic.TITLE, traffic.application, traffic.batches),
        Example("hashtags", hashtags.TITLE, hashtags.application, hashtags.batches),
        Example("hot-pages", hot_pages.TITLE, hot_pages.application, hot_pages.batches),
        Example("incidents", incidents.TITLE, incidents.application, incidents.batches),
        Example("trending-keywords", trending_keywords.TITLE, trending_keywords.application, trending_keywords.batches),
        Example("advertising", advertising.TITLE, advertising.application, advertising.batches),
        Example("word-count", word_count.TITLE, word_count.application, word_count.batches),
    )
}
