"""Seeded rows with everything that goes wrong in streams: skew, nulls, unicode, disorder, lateness, empty batches."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from runtime.oracle import Row

SECOND = 1_000_000
SCHEMA = {"word": "string", "n": "int64", "x": "double", "at": "timestamp[us]"}
ARROW = pa.schema([("word", pa.string()), ("n", pa.int64()), ("x", pa.float64()), ("at", pa.timestamp("us"))])
WORDS = ["the", "of", "", "é", "日本", "😀", "a" * 300, "tab\t", None, "O'Neil", "the "]
EPOCH = datetime(1970, 1, 1)


def batches(
    seed: int, count: int = 8, most: int = 40, *, start: int = -3 * SECOND, disorder: int = 4 * SECOND
) -> list[list[Row]]:
    """Batches whose events move on in time by about a second each, out of order by up to `disorder` microseconds.

    Some batches are empty, some moments lie exactly on a second, some rows have no word, number or moment.
    """
    random = np.random.default_rng(seed)
    made = []
    for number in range(count):
        size = 0 if random.random() < 0.15 else int(random.integers(1, most))
        rows: list[Row] = []
        for _ in range(size):
            at = start + number * SECOND + int(random.integers(0, SECOND)) - int(random.integers(0, disorder + 1))
            if random.random() < 0.2:
                at -= at % SECOND
            rows.append(
                {
                    "word": WORDS[int(min(random.zipf(1.5), len(WORDS))) - 1],
                    "n": None if random.random() < 0.1 else int(random.integers(-5, 6)),
                    # Eighths add up exactly, in any order.
                    "x": None if random.random() < 0.1 else int(random.integers(-40, 41)) / 8,
                    "at": None if random.random() < 0.03 else at,
                }
            )
        made.append(rows)
    return made


def table(rows: list[Row], schema: pa.Schema = ARROW) -> pa.Table:
    """Rows as a table; moments are microseconds."""
    columns = {field.name: pa.array([row[field.name] for row in rows], _plain(field.type)) for field in schema}
    return pa.table({name: values.cast(schema.field(name).type) for name, values in columns.items()})


def moments(rows: list[dict[str, Any]]) -> list[Row]:
    """Rows as they come out, with moments as microseconds."""
    return [{name: micro(value) for name, value in row.items()} for row in rows]


def micro(value: Any) -> Any:
    return (value - EPOCH) // timedelta(microseconds=1) if isinstance(value, datetime) else value


def _plain(kind: pa.DataType) -> pa.DataType:
    return pa.int64() if pa.types.is_timestamp(kind) else kind
