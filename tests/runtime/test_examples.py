"""The examples give, row for row, what plain Python computes from the same input, messed up as inputs are."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from holdfast.examples import EXAMPLES, hashtags
from holdfast.ids import NodeId
from holdfast.runtime import InProcess, run_in_process
from holdfast.runtime.worker.routing import hash_rows, partition_of
from holdfast_lab.topologies import named_topology
from runtime import oracle
from runtime.generated import SECOND, moments
from runtime.oracle import Row, bag

COUNT, ROWS = 14, 120
LATENESS = SECOND


def messed(name: str, seed: int) -> list[dict[str, pa.Table]]:
    """An example's batches with nulls among its texts, very late rows, an empty batch, and one ten times as large."""
    random = np.random.default_rng(seed)
    made = list(EXAMPLES[name].batches(seed, COUNT, ROWS))
    made[5] = {source: rows.slice(0, 0) for source, rows in made[5].items()}
    large = list(EXAMPLES[name].batches(seed + 1, 10, 10 * ROWS))[9]
    made[9] = large
    found = []
    for batch in made:
        changed = {}
        for source, clean in batch.items():
            rows = clean
            for number, field in enumerate(clean.schema):
                if pa.types.is_string(field.type):
                    values = rows[field.name].to_pylist()
                    holes = [None if random.random() < 0.03 else value for value in values]
                    rows = rows.set_column(number, field, pa.array(holes, pa.string()))
            at = np.asarray(rows["at"].cast(pa.int64())) - (random.random(len(rows)) < 0.05) * 6 * SECOND
            column = pa.array(at, pa.int64()).cast(pa.timestamp("us"))
            changed[source] = rows.set_column(rows.schema.get_field_index("at"), "at", column)
        found.append(changed)
    return found


def plain(batches: list[dict[str, pa.Table]], source: str) -> list[list[Row]]:
    return [moments(batch[source].to_pylist()) for batch in batches]


def windowed(batches: list[list[Row]], size: int, every: int, key: str) -> dict[tuple[int, int, Any], list[Row]]:
    windows, _ = oracle.sliding(batches, LATENESS, size * SECOND, every * SECOND)
    return {
        (start, end, value): members
        for (start, end), inside in windows.items()
        for (value,), members in oracle.by_key(inside, key).items()
    }


def rows_of(done: InProcess, name: str) -> list[Row]:
    return moments(done.rows(name).to_pylist())


@pytest.mark.parametrize("nodes", [1, 4])
def test_traffic(nodes: int) -> None:
    made = messed("traffic", 1)
    done = run_in_process(EXAMPLES["traffic"].application(), made, nodes=nodes)
    speeds = windowed(plain(made, "locations"), 10, 1, "segment")
    reports = windowed(plain(made, "incidents"), 10, 1, "segment")
    means = {place: sum(speed := oracle.values(rows, "speed")) / len(speed) for place, rows in speeds.items()}
    assert bag(rows_of(done, "speeds")) == bag(
        {"segment": segment, "window_start": start, "window_end": end, "speed": mean}
        for (start, end, segment), mean in means.items()
    )
    assert bag(rows_of(done, "reports")) == bag(
        {"segment": segment, "window_start": start, "window_end": end, "count": len(rows)}
        for (start, end, segment), rows in reports.items()
    )
    assert bag(rows_of(done, "jams")) == bag(
        {
            "segment": segment,
            "speed": means[start, end, segment],
            "count": len(rows),
            "left_window_start": start,
            "left_window_end": end,
            "right_window_start": start,
            "right_window_end": end,
            "window_start": end - SECOND,
            "window_end": end,
        }
        for (start, end, segment), rows in reports.items()
        if segment is not None and (start, end, segment) in means
    )
    assert done.rows("jams").num_rows > 100
    late = done.late("speeds")
    assert late is not None
    assert late.num_rows == len(oracle.sliding(plain(made, "locations"), LATENESS, 10 * SECOND, SECOND)[1])


def test_hashtags() -> None:
    made = messed("hashtags", 2)
    done = run_in_process(EXAMPLES["hashtags"].application(), made)
    tags = [
        [{"tag": word, "at": row["at"]} for row in rows for word in (row["text"] or "").split(" ") if word[:1] == "#"]
        for rows in plain(made, "tweets")
    ]
    # The parser has no rows where the text is null, but the source's watermark counts them.
    marks = oracle.watermarks(plain(made, "tweets"), LATENESS)
    scores: dict[int, Counter[tuple[str, int]]] = {}
    for number in range(4):
        windows, _ = oracle.sliding(tags, LATENESS, 5 * (number + 1) * SECOND, SECOND, marks)
        scores[number] = Counter()
        for (_, end), rows in windows.items():
            for row in rows:
                scores[number][row["tag"], end] += 1
        found = {(row["tag"], row["window_end"]): row["count"] for row in rows_of(done, hashtags.query_name(number))}
        assert found == dict(scores[number])
    for number, reads in {**hashtags.SUMS, **hashtags.TOPS}.items():
        total: Counter[tuple[str, int]] = sum((scores[read] for read in reads), Counter())
        if number in hashtags.TOPS:
            by_end: dict[int, list[tuple[int, str]]] = defaultdict(list)
            for (tag, end), many in total.items():
                by_end[end].append((-many, tag))
            best = {(tag, end) for end, ranked in by_end.items() for _, tag in sorted(ranked)[:10]}
            total = Counter({place: many for place, many in total.items() if place in best})
        scores[number] = total
        found = {(row["tag"], row["window_end"]): row["count"] for row in rows_of(done, hashtags.query_name(number))}
        assert found == dict(total), hashtags.query_name(number)
        assert done.rows(hashtags.query_name(number)).num_rows == len(total)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_and_the_library_have_one_topology(name: str) -> None:
    assert named_topology(name) == EXAMPLES[name].application().topology()


@pytest.mark.parametrize("nodes", [1, 3])
def test_word_count(nodes: int) -> None:
    made = messed("word-count", 3)
    done = run_in_process(EXAMPLES["word-count"].application(), made, nodes=nodes)
    sentences = plain(made, "sentences")
    words = [[{"word": w, "at": row["at"]} for row in rows for w in (row["text"] or "").split()] for rows in sentences]
    marks = oracle.watermarks(sentences, LATENESS)
    windows, _ = oracle.sliding(words, LATENESS, 10 * SECOND, 10 * SECOND, marks)
    assert bag(rows_of(done, "counts")) == bag(
        {"word": word, "window_start": start, "window_end": end, "count": len(members)}
        for (start, end), inside in windows.items()
        for (word,), members in oracle.by_key(inside, "word").items()
    )


def test_hot_pages() -> None:
    made = messed("hot-pages", 4)
    done = run_in_process(EXAMPLES["hot-pages"].application(), made)
    servers = partition_of(hash_rows(pa.table({"server": range(32)}), ["server"]), 8)
    waiting: dict[tuple[str, int], list[tuple[str, int]]] = defaultdict(list)
    totals: Counter[str] = Counter()
    expected = []

    def sliced(place: tuple[str, int], rows: list[tuple[str, int]]) -> list[tuple[str, int]]:
        queue, out = waiting[place], []
        for row in rows:
            queue.append(row)
            if len(queue) == 100:
                sums: dict[str, int] = {}
                for page, many in queue:
                    sums[page] = sums.get(page, 0) + many
                out += sums.items()
                queue.clear()
        return out

    for batch in plain(made, "visits"):
        first = [sliced(("slices", i), [(r["page"], 1) for r in batch if servers[r["server"]] == i]) for i in range(8)]
        second = [row for j in range(4) for row in sliced(("merged", j), first[2 * j] + first[2 * j + 1])]
        queue = waiting["hottest", 0]
        queue += second
        full = len(queue) // 100 * 100
        for page, many in queue[:full]:
            totals[page] += many
        del queue[:full]
        if full:
            expected += sorted(totals.items(), key=lambda item: (-item[1], item[0] is None, item[0] or ""))[:100]
    assert [(row["page"], row["visits"]) for row in rows_of(done, "hottest")] == expected
    assert len(expected) >= 200, "the totals were updated more than once"


@pytest.mark.parametrize("name", EXAMPLES)
def test_generators_are_replayable_and_examples_survive_failures(name: str) -> None:
    example = EXAMPLES[name]
    made = list(example.batches(7, 8, 200))
    for again, batch in zip(example.batches(7, 4, 200), made[:4], strict=True):
        assert all(again[source].equals(rows) for source, rows in batch.items()), "the number of batches changes none"
    assert not all(next(iter(example.batches(8, 1, 200)))[source].equals(rows) for source, rows in made[0].items())

    plainly = run_in_process(example.application(), made)
    running = InProcess(example.application(), nodes=3)
    for number, batch in enumerate(made):
        running.feed(batch)
        if number == 2:
            running.checkpoint()
        if number == 5:
            node = running.hosts[NodeId("node-1")]
            running.fail(*node.partitions)
            running.recover()
    running.close()
    for name_ in dict.fromkeys(partition.operator for partition in plainly.program.outputs):
        assert running.rows(name_).equals(plainly.rows(name_))
