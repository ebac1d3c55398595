"""Queries of every kind whose results do not depend on how rows came in batches, and their input. Used by tools.

So a run that changes its layout, and begins and ends its batches elsewhere, must give the rows of one that does not. No
row is late, values are whole numbers or eighths, and what depends on the order of a key's rows reads a source that
spreads rows by that key.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import holdfast as hf
from holdfast.runtime.in_process import InProcess

SCHEMA = "id long, key string, lane int, x double, at timestamp"
SOURCES = ("rows", "keyed")
_ARROW = pa.schema(
    {"id": pa.int64(), "key": pa.string(), "lane": pa.int32(), "x": pa.float64(), "at": pa.timestamp("us")}
)
_BEGIN = datetime(2026, 1, 1)


@dataclass(frozen=True)
class Layout:
    """What a driver runs: queries and sources with their parallelism."""

    queries: Mapping[str, int]
    sources: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(SOURCES, 2))

    def written(self) -> str:
        """Return it as text for `application`."""
        return json.dumps(asdict(self))


def read_layout(written: str) -> Layout:
    """Return the layout that was written so."""
    return Layout(**json.loads(written))


def counted(state: pa.Table, inputs: tuple[pa.Table, ...], watermark: float) -> tuple[pa.Table, pa.Table]:
    """Number the rows of every key, over all batches."""
    seen = dict(zip(state["key"].to_pylist(), state["seen"].to_pylist(), strict=True))
    made: list[tuple[str, int]] = []
    for key in inputs[0]["key"].to_pylist():
        seen[key] = seen.get(key, 0) + 1
        made.append((key, seen[key]))
    keys = sorted(seen)
    numbered = {"key": [key for key, _ in made], "number": pa.array([number for _, number in made], pa.int64())}
    kept = {"key": pa.array(keys, pa.string()), "seen": pa.array([seen[key] for key in keys], pa.int64())}
    return pa.table(kept), pa.table({**numbered, "key": pa.array(numbered["key"], pa.string())})


def _running(stream: hf.Stream, name: str, parallelism: int, *, deterministic: bool) -> hf.Stream:
    return stream.key_by("key").apply(
        counted,
        state="key string, seen long",
        schema="key string, number long",
        deterministic=deterministic,
        id=name,
        parallelism=parallelism,
    )


def _chain(stream: hf.Stream, name: str, parallelism: int) -> hf.Stream:
    small = stream.key_by("key").window(hf.tumbling(2)).agg(n=hf.count(), id=f"{name}-small", parallelism=parallelism)
    few = small.filter(pc.field("n") > 1, id=f"{name}-few", parallelism=max(1, parallelism // 2))
    return few.key_by("key").window(hf.tumbling(10)).agg(s=hf.sum("n"), id=name, parallelism=parallelism)


Make = Callable[[hf.Stream, hf.Stream, str, int], hf.Stream]

QUERIES: dict[str, Make] = {
    "some": lambda rows, keyed, name, p: rows.filter(pc.field("lane") < 2, id=name, parallelism=p),
    "tumbling": lambda rows, keyed, name, p: (
        rows.key_by("key")
        .window(hf.tumbling(10))
        .agg(n=hf.count(), mean=hf.avg("x"), lanes=hf.count_distinct("lane"), id=name, parallelism=p)
    ),
    "sliding": lambda rows, keyed, name, p: (
        rows.key_by("key", "lane")
        .window(hf.sliding(10, every=5))
        .agg(high=hf.max("x"), ids=hf.sum("id"), id=name, parallelism=p)
    ),
    "sessions": lambda rows, keyed, name, p: (
        rows.key_by("key").window(hf.session(1.5)).agg(n=hf.count(), ids=hf.sum("id"), id=name, parallelism=p)
    ),
    "threes": lambda rows, keyed, name, p: (
        keyed.key_by("key").window(hf.rows(3)).agg(ids=hf.sum("id"), id=name, parallelism=p)
    ),
    "moving": lambda rows, keyed, name, p: (
        keyed.key_by("key").window(hf.rows(5, every=2)).agg(ids=hf.sum("id"), id=name, parallelism=p)
    ),
    "best": lambda rows, keyed, name, p: (
        rows.key_by("lane").window(hf.tumbling(8)).top(2, by="id", id=name, parallelism=p)
    ),
    "lanes": lambda rows, keyed, name, p: rows.window(hf.tumbling(6)).distinct("key", "lane", id=name, parallelism=p),
    "pairs": lambda rows, keyed, name, p: rows.join(keyed, on="key", window=hf.tumbling(4), id=name, parallelism=p),
    "chain": lambda rows, keyed, name, p: _chain(rows, name, p),
    "numbered": lambda rows, keyed, name, p: _running(keyed, name, p, deterministic=True),
    "nondeterministic": lambda rows, keyed, name, p: _running(keyed, name, p, deterministic=False),
    # Without a key, its state cannot be cut: its parallelism stays.
    "whole": lambda rows, keyed, name, p: rows.window(hf.tumbling(10)).count(id=name, parallelism=1),
}
"""By name: a query over the two sources; its operators' ids begin with its name."""


def application(written: str, folder: Path | None = None, since: Mapping[str, int] | None = None) -> hf.Application:
    """Return the application of a layout.

    With a folder, sources read the files that are there. `since`: rows of a source with a lower id do not get to
    queries, but move the watermark on: what a query that was added later gives.
    """
    layout = read_layout(written)
    app = hf.Application("changing")
    streams = []
    for name in SOURCES:
        stream = app.source(
            name,
            None if folder is None else _reader(str(folder / name)),
            schema=SCHEMA,
            event_time="at",
            lateness="1 second",
            parallelism=layout.sources[name],
            key="key" if name == "keyed" else None,
        ).output(name)
        if since is not None:
            kept = stream.key_by("key") if name == "keyed" else stream
            stream = kept.filter(pc.field("id") >= since[name], id=f"since-{name}", parallelism=layout.sources[name])
        streams.append(stream)
    for name, parallelism in layout.queries.items():
        QUERIES[name](streams[0], streams[1], name, parallelism).output(name)
    return app


def _reader(folder: str) -> Callable[[Any], Any]:
    return lambda spark: spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(folder)


# -- input -------------------------------------------------------------------------------------------------------------


class Input:
    """The files of both sources, each a micro-batch: any number, always the same for a seed."""

    def __init__(self, seed: int, rows: int) -> None:
        self._seed, self.rows = seed, rows

    def table(self, source: str, number: int) -> pa.Table:
        """Return the rows of a file. Its times reach from the second before its own: none is late."""
        draw = Random(f"{self._seed} {source} {number}")
        return pa.Table.from_pylist(
            [
                {
                    "id": number * self.rows + one,
                    "key": f"k{draw.randrange(11)}",
                    "lane": draw.randrange(3),
                    "x": draw.randrange(800) / 8,
                    "at": _BEGIN + timedelta(milliseconds=1000 + 1000 * number + draw.randrange(-900, 1000)),
                }
                for one in range(self.rows)
            ],
            _ARROW,
        )

    def write(self, folder: Path, first: int, after: int) -> None:
        """Write files of both sources, in the order in which they are to be read."""
        for source in SOURCES:
            (folder / source).mkdir(parents=True, exist_ok=True)
            for number in range(first, after):
                rows = self.table(source, number).to_pylist()
                lines = [json.dumps({**row, "at": row["at"].isoformat(timespec="milliseconds")}) for row in rows]
                path = folder / source / f"{number:05d}.json"
                part = folder / f"{source}-{number}.part"  # a reader sees whole files only
                part.write_text("\n".join(lines))
                os.utime(part, (1_000_000 + number, 1_000_000 + number))
                part.rename(path)


def expected(
    given: Input, layout: Layout, since: Mapping[str, int], until: Mapping[str, int], *, closed: bool
) -> dict[str, list[str]]:
    """Return the rows of every output of a run in one process, which reads files `since` to `until` of each source."""
    ids = {name: number * given.rows for name, number in since.items()}
    run = InProcess(application(layout.written(), since=ids))
    for number in range(max(until.values())):
        run.feed({name: given.table(name, number) for name in SOURCES if number < until[name]})
    if closed:
        run.close()
    run.checkpoint()  # what is not deterministic comes out with it
    return {name: as_lines(run.rows(name)) for name in layout.queries}


def as_lines(table: pa.Table | None) -> list[str]:
    """Return rows as text, in no order of their own."""
    rows: Sequence[Any] = [] if table is None else table.to_pylist()
    return sorted(map(str, rows))
