"""Hashtags (incremental recovery, Fig. 8): fifteen queries that build on each other, from one stream of tweets.

Runs anywhere. O0 to O3 count hashtags in sliding windows of 5, 10, 15 and 20 seconds; O4 to O9 add up what they
subscribe to, by hashtag and end of window; O10 to O14 give the ten hashtags with the highest sums. Who subscribes to
whom is that of the library's topology of this name, where paper and picture leave it open. The tweets are synthetic:
1.5 hashtags each, popular by Zipf's law.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.application import Application, Stream, sliding
from holdfast.examples.draws import by_popularity, moments, of_batch

TITLE = "Hashtag frequencies: fifteen queries that build on each other"
TAGS = 5000
SUMS: dict[int, tuple[int, ...]] = {4: (0, 1), 5: (1, 2), 6: (2, 3), 7: (4, 5), 8: (4, 5, 6), 9: (5, 6)}
TOPS: dict[int, tuple[int, ...]] = {10: (7,), 11: (7, 8), 12: (8,), 13: (8, 9), 14: (9,)}
TOP = 10

_SCORES = {"tag": "string", "window_end": "timestamp", "count": "int64"}


def application() -> Application:
    """Return the application: every one of O0 to O14 is an output."""
    app = Application("hashtags")
    tweets = app.source("Source", schema={"text": "string", "at": "timestamp"}, event_time="at", lateness=1, rate=1_000)
    tags = tweets.flat_map(hashtags, schema={"tag": "string", "at": "timestamp"}, id="Parser", selectivity=1.5)
    made: dict[int, Stream] = {}
    for number in range(4):
        window = sliding(5 * (number + 1), every="1 second")
        made[number] = tags.key_by("tag").window(window).count(id=f"O{number}", parallelism=1).output()
    for feeds, function in ((SUMS, summed), (TOPS, topped)):
        for number, reads in feeds.items():
            first, *others = (made[read] for read in reads)
            made[number] = first.apply(
                function,
                *others,
                state={"tag": "string"},
                schema=_SCORES,
                event_time="window_end",
                id=f"O{number}",
                parallelism=1,
            ).output()
    return app


def hashtags(tweets: pa.Table) -> pa.Table:
    """Find the hashtags of tweets."""
    words = pc.split_pattern(tweets["text"], " ").combine_chunks()
    found = pa.table({"tag": pc.list_flatten(words), "at": pc.take(tweets["at"], pc.list_parent_indices(words))})
    return found.filter(pc.starts_with(found["tag"], "#"))


def summed(state: pa.Table, inputs: tuple[pa.Table, ...], watermark: float) -> tuple[pa.Table, pa.Table]:
    """Add up the counts of a hashtag whose windows end together: those come out in one batch, so nothing is kept."""
    together = pa.concat_tables([rows.select(["tag", "window_end", "count"]) for rows in inputs])
    sums = together.group_by(["tag", "window_end"], use_threads=False).aggregate([("count", "sum")])
    return state, sums.rename_columns(["tag", "window_end", "count"])


def topped(state: pa.Table, inputs: tuple[pa.Table, ...], watermark: float) -> tuple[pa.Table, pa.Table]:
    """Give the hashtags with the highest sums, for each end of a window; ties go by name."""
    _, sums = summed(state, inputs, watermark)
    ordered = sums.sort_by([("window_end", "ascending"), ("count", "descending"), ("tag", "ascending")])
    ends = np.asarray(ordered["window_end"].cast(pa.int64()))
    first = np.searchsorted(ends, ends, side="left")
    return state, ordered.filter(pa.array(np.arange(len(ends)) - first < TOP))


def batches(seed: int, count: int, rows: int) -> Iterator[dict[str, pa.Table]]:
    """Give batches of a second each, of so many tweets with one hashtag or two."""
    tags = pa.array([f"#tag{number}" if number % 11 else f"#größe{number}" for number in range(TAGS)])
    for batch in range(count):
        random = of_batch(seed, 0, batch)
        first, second = (tags.take(pa.array(by_popularity(random, rows, TAGS, 1.1))) for _ in range(2))
        second = pc.if_else(pa.array(random.random(rows) < 0.5), second, "nothing")
        text = pc.binary_join_element_wise("just", first, "and", second, " ")
        yield {"Source": pa.table({"text": text, "at": moments(random, batch, rows)})}
