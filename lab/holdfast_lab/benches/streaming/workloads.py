"""What the benches compute: an application of ours, and the same outputs as SQL for Structured Streaming. Pure.

The SQL is what a careful user would write: each output is one windowed aggregation wherever the outputs allow it. The
sums of hashtags (O4 to O14) are weighted counts over the largest window they build on, because written as the
application has them, windows over windows over unions, Structured Streaming took longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.application import Application, sliding
from holdfast.examples import EXAMPLES, hashtags
from holdfast.examples.draws import SECOND, by_popularity, moments, of_batch

TAGS = 5000


@dataclass(frozen=True, slots=True)
class Workload:
    """One comparison."""

    name: str
    title: str
    application: Callable[[], Application]
    batches: Callable[[int, int, int], Iterator[dict[str, pa.Table]]]
    """Of a seed, a number of batches and rows per batch."""
    sql: Mapping[str, str]
    """For each output a SELECT over the sources' names; its columns are compared with ours of the same names."""
    target: float
    """How many times Structured Streaming's rows per second ours should be."""


def windowed_count() -> Application:
    """Return one source and one windowed count of four partitions."""
    app = Application("windowed-count")
    source = app.source("tags", schema={"tag": "string", "at": "timestamp"}, event_time="at", lateness=1)
    source.key_by("tag").window(sliding("10 seconds", every="1 second")).count(id="counts", parallelism=4).output()
    return app


def tag_batches(seed: int, count: int, rows: int) -> Iterator[dict[str, pa.Table]]:
    """Give batches of a second each, of so many hashtags, popular by Zipf's law."""
    names = pa.array([f"#tag{number}" for number in range(TAGS)])
    for batch in range(count):
        random = of_batch(seed, 0, batch)
        ranks = by_popularity(random, rows, TAGS, 1.1)
        yield {"tags": pa.table({"tag": names.take(pa.array(ranks)), "at": moments(random, batch, rows)})}


def in_our_days(batches: Iterator[dict[str, pa.Table]]) -> Iterator[dict[str, pa.Table]]:
    """Move event times from 1970 to 2026: Spark's watermark begins with 1970, and rows before it would be late."""
    moved = pa.scalar(1_767_225_600 * SECOND, pa.duration("us"))
    for batch in batches:
        yield {name: table.set_column(*_moved(table, moved)) for name, table in batch.items()}


def _moved(table: pa.Table, by: pa.Scalar) -> tuple[int, str, pa.ChunkedArray]:
    return table.column_names.index("at"), "at", pc.add(table["at"], by)


def _windows(columns: str, source: str, seconds: int) -> str:
    return f"(SELECT {columns}, window(at, '{seconds} seconds', '1 second') AS w FROM {source})"


def _count_sql() -> dict[str, str]:
    counts = f"SELECT tag, w, count(*) AS count FROM {_windows('tag, at', 'tags', 10)} GROUP BY tag, w"
    return {"counts": f"SELECT tag, w.end AS window_end, count FROM ({counts})"}


def _traffic_sql() -> dict[str, str]:
    located = _windows("segment, speed, at", "locations", 10)
    speeds = f"SELECT segment, w, avg(speed) AS speed FROM {located} GROUP BY segment, w"
    reports = (
        f"SELECT segment, w, count(*) AS count FROM {_windows('segment, at', 'incidents', 10)} GROUP BY segment, w"
    )
    joined = f"({speeds}) AS l JOIN ({reports}) AS r ON l.segment = r.segment AND l.w = r.w"
    return {
        "speeds": f"SELECT segment, w.end AS window_end, speed FROM ({speeds})",
        "reports": f"SELECT segment, w.end AS window_end, count FROM ({reports})",
        "jams": f"SELECT l.segment AS segment, l.w.end AS window_end, speed, count FROM {joined}",
    }


def _hashtags_sql() -> dict[str, str]:
    """Write every output as one weighted count: a row of age a counts once for each window it falls into."""
    weights = {number: [int(number == window) for window in range(4)] for number in range(4)}
    for number, reads in {**hashtags.SUMS, **hashtags.TOPS}.items():
        weights[number] = [sum(column) for column in zip(*(weights[read] for read in reads), strict=True)]
    words = "SELECT explode(split(text, ' ')) AS tag, at FROM tweets"
    tags = f"(SELECT tag, at FROM ({words}) WHERE startswith(tag, '#'))"
    found = {}
    for number, weight in weights.items():
        largest = max(window for window in range(4) if weight[window])
        newer = [
            f"WHEN at >= w.end - INTERVAL {5 * (window + 1)} SECONDS THEN {sum(weight[window:])}L"
            for window in range(largest)
        ]
        # count(*) where every row counts once; Spark is faster with it.
        value = "count(*)" if sum(weight) == 1 else f"sum(CASE {' '.join(newer)} ELSE {weight[largest]}L END)"
        text = f"SELECT tag, w, {value} AS count FROM {_windows('tag, at', tags, 5 * (largest + 1))} GROUP BY tag, w"
        if number in hashtags.TOPS:
            text = _top_sql(text)
        found[hashtags.query_name(number)] = f"SELECT tag, w.end AS window_end, count FROM ({text})"
    return found


def _top_sql(sums: str) -> str:
    """Keep the rows with the highest counts of each end of a window; ties go by name."""
    timed = f"SELECT tag, window_time(w) AS t, count FROM ({sums})"
    best = f"slice(array_sort(collect_list(struct(-count AS minus, tag))), 1, {hashtags.TOP})"
    tops = f"SELECT window(t, '1 second') AS w, {best} AS best FROM ({timed}) GROUP BY window(t, '1 second')"
    return f"SELECT one.tag AS tag, w, -one.minus AS count FROM (SELECT w, explode(best) AS one FROM ({tops}))"


WORKLOADS: dict[str, Workload] = {
    one.name: one
    for one in (
        Workload(
            "count",
            "one windowed count: 10 s every second, 5,000 keys",
            windowed_count,
            tag_batches,
            _count_sql(),
            target=3.0,
        ),
        Workload(
            "traffic",
            "traffic: two windowed aggregates and their join",
            EXAMPLES["traffic"].application,
            EXAMPLES["traffic"].batches,
            _traffic_sql(),
            target=1.5,
        ),
        Workload(
            "hashtags",
            "hashtags: fifteen outputs",
            EXAMPLES["hashtags"].application,
            EXAMPLES["hashtags"].batches,
            _hashtags_sql(),
            target=30.0,
        ),
    )
}
