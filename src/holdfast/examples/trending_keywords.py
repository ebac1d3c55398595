"""Trending keywords (FastRecover, Fig. 2.1): tweets are split into words, stop words dropped, the others counted.

Runs anywhere. The splitter, the filter and five instances of the counter are the paper's; a last operator puts the
counters' answers together, so that there is one list: the twenty most frequent words of the last minute, every ten
seconds. The tweets are synthetic: 50 a second (the 3,000 a minute of the paper's experiments), ten words each, six of
them stop words or punctuation on average, the others popular by Zipf's law; what is popular changes every half minute.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.application import Application, sliding, tumbling
from holdfast.examples.draws import by_popularity, moments, of_batch

TITLE = "The twenty words most used in the last minute, every ten seconds"
WORDS = 3000
WORDS_IN_TWEET = 10
STOP_SHARE = 0.6
BATCHES_PER_TOPIC = 30
TOP = 20
STOP_WORDS = (
    *("a", "about", "after", "all", "an", "and", "any", "are", "as", "at", "be", "been", "but", "by", "can", "do"),
    *("for", "from", "had", "has", "have", "he", "her", "his", "i", "if", "in", "into", "is", "it", "its", "me", "my"),
    *("no", "not", "of", "on", "or", "our", "she", "so", "than", "that", "the", "their", "them", "there", "they"),
    *("this", "to", "was", "we", "were", "what", "when", "which", "who", "will", "with", "would", "you", "your"),
    *(".", ",", "!", "?", ":", ";", "-", "–", "…", "&", "rt"),
)


def application() -> Application:
    """Return the application: three tasks that split, four that filter, five that count, one that ranks."""
    app = Application("trending-keywords")
    tweets = app.source(
        "tweets", schema={"text": "string", "at": "timestamp"}, event_time="at", lateness=1, parallelism=3, rate=50
    )
    words = tweets.flat_map(
        split,
        schema={"word": "string", "at": "timestamp"},
        id="splitter",
        parallelism=3,
        selectivity=WORDS_IN_TWEET,
        tuple_bytes=1000,
    )
    keywords = words.filter(is_keyword, id="filter", parallelism=4, selectivity=1 - STOP_SHARE)
    counts = (
        keywords.key_by("word")
        .window(sliding("1 minute", every="10 seconds"))
        .count(id="counter", parallelism=5, selectivity=0.1)
    )
    # Counts of windows that end together fall into the same ten seconds.
    counts.window(tumbling("10 seconds")).top(TOP, by="count", id="trending", parallelism=1).output()
    return app


def split(tweets: pa.Table) -> pa.Table:
    """Cut tweets at white space, in small letters."""
    lists = pc.split_pattern_regex(pc.utf8_lower(tweets["text"]), r"\s+").combine_chunks()
    at = pc.take(tweets["at"], pc.list_parent_indices(lists))
    return pa.table({"word": pc.list_flatten(lists), "at": at})


def is_keyword(words: pa.Table) -> pa.Array:
    """Say which words are not stop words."""
    dropped = pc.is_in(words["word"], value_set=pa.array(["", *STOP_WORDS]))
    return pc.invert(dropped)


def batches(seed: int, count: int, rows: int) -> Iterator[dict[str, pa.Table]]:
    """Give batches of a second each, of so many tweets."""
    vocabulary = pa.array(
        [*STOP_WORDS, *(f"Müller{number}" if number % 13 == 0 else f"topic{number}" for number in range(WORDS))]
    )
    few = len(STOP_WORDS)
    for batch in range(count):
        random = of_batch(seed, 0, batch)
        many = rows * WORDS_IN_TWEET
        topics = (by_popularity(random, many, WORDS, 1.0) + 17 * (batch // BATCHES_PER_TOPIC)) % WORDS
        chosen = np.where(random.random(many) < STOP_SHARE, random.integers(0, few, many), few + topics)
        ends = np.arange(rows + 1, dtype=np.int32) * WORDS_IN_TWEET
        lists = pa.ListArray.from_arrays(pa.array(ends), vocabulary.take(pa.array(chosen)))
        yield {"tweets": pa.table({"text": pc.binary_join(lists, " "), "at": moments(random, batch, rows)})}
