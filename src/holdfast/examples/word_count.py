"""Word count: how often each word is said, in windows of ten seconds. Runs anywhere; the sentences are synthetic."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import holdfast as hf
from holdfast.examples.draws import by_popularity, moments, of_batch

TITLE = "How often each word is said, in windows of ten seconds"
WORDS = 2000
WORDS_IN_SENTENCE = 6


def application() -> hf.Application:
    """Return the application: sentences are cut into words, words are counted per window."""
    app = hf.Application("word-count")
    sentences = app.source("sentences", schema="text string, at timestamp", event_time="at", lateness=1, rate=10_000)
    words = sentences.flat_map(
        split, schema="word string, at timestamp", id="words", parallelism=2, selectivity=WORDS_IN_SENTENCE
    )
    words.key_by("word").window(hf.tumbling("10 seconds")).count(id="counts", parallelism=4).output("counts")
    return app


def split(sentences: pa.Table) -> pa.Table:
    """Cut sentences at spaces; a sentence without words gives none."""
    lists = pc.split_pattern_regex(sentences["text"], r"\s+").combine_chunks()
    at = pc.take(sentences["at"], pc.list_parent_indices(lists))
    words = pa.table({"word": pc.list_flatten(lists), "at": at})
    return words.filter(pc.not_equal(words["word"], ""))


def batches(seed: int, count: int, rows: int) -> Iterator[dict[str, pa.Table]]:
    """Give batches of a second each, of so many sentences of words with Zipf's popularity."""
    vocabulary = pa.array([f"wörd{number}" if number % 7 == 0 else f"word{number}" for number in range(WORDS)])
    for batch in range(count):
        random = of_batch(seed, 0, batch)
        ranks = by_popularity(random, rows * WORDS_IN_SENTENCE, WORDS, 1.0)
        ends = np.arange(rows + 1, dtype=np.int32) * WORDS_IN_SENTENCE
        lists = pa.ListArray.from_arrays(pa.array(ends), vocabulary.take(pa.array(ranks)))
        yield {"sentences": pa.table({"text": pc.binary_join(lists, " "), "at": moments(random, batch, rows)})}
