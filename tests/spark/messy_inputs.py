"""An example's input with all that goes wrong in streams: skew, empty batches, disorder, lateness, nulls, unicode.

Batches are small save one, which is ten times as large.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.examples import EXAMPLES
from holdfast.examples.draws import SECOND

COUNT, ROWS = 14, 60
MORE_ROWS = {"hot-pages": 400}
"""Three levels of slices of a hundred take many rows until something comes out more than once."""
EMPTY, ONE_SOURCE, LARGE, AHEAD, SKEWED = 4, 7, 9, 10, 11
"""Which batches are special."""

TEXTS = [
    *("", " ", "#", "# #", "日本 #東京 #東京", "😀 #😀 the", "#naïve  #nai\u0308ve", "\t#tab\tbed\n", "O'Neil;--"),
    *("ÄÖÜ äöü straße", "#" + "x" * 300, "#größe7 #größe7", "view", "the THE The"),
]


def messy(name: str, seed: int) -> list[dict[str, pa.Table]]:
    """Return an example's batches, messed up; the same for the same seed."""
    random = np.random.default_rng([seed, 99])
    rows_of_batch = MORE_ROWS.get(name, ROWS)
    made = list(EXAMPLES[name].batches(seed, COUNT, rows_of_batch))
    made[LARGE] = list(EXAMPLES[name].batches(seed + 1, LARGE + 1, 10 * rows_of_batch))[LARGE]
    sources = list(made[0])
    made[EMPTY] = {source: rows.slice(0, 0) for source, rows in made[EMPTY].items()}
    if len(sources) > 1:
        del made[ONE_SOURCE][sources[-1]]
    found = []
    for number, batch in enumerate(made):
        changed = {}
        for source, rows in batch.items():
            hot = random.random(rows.num_rows) < (0.8 if number == SKEWED else 0.0)
            same = rows.take(pa.array(np.where(hot, 0, np.arange(rows.num_rows))))
            columns = {
                field.name: _moments(random, rows[field.name], ahead=number == AHEAD)
                if pa.types.is_timestamp(field.type)
                else _values(random, same[field.name])
                for field in rows.schema
            }
            changed[source] = pa.table(columns)
        found.append(changed)
    return found


def _values(random: np.random.Generator, column: pa.ChunkedArray) -> pa.Array:
    """Make three in a hundred values null, and three in a hundred texts strange."""
    values = column.to_pylist()
    for row in np.flatnonzero(random.random(len(values)) < 0.03):
        values[row] = None
    if pa.types.is_string(column.type):
        for row in np.flatnonzero(random.random(len(values)) < 0.03):
            values[row] = TEXTS[int(random.integers(0, len(TEXTS)))]
    return pa.array(values, column.type)


def _moments(random: np.random.Generator, column: pa.ChunkedArray, *, ahead: bool) -> pa.Array:
    """Make some moments late by seconds, some by minutes, some null, and some lie exactly on a second."""
    at = np.asarray(column.cast(pa.int64())).copy()

    def some(share: float) -> Any:
        return np.flatnonzero(random.random(len(at)) < share)

    at[some(0.05)] -= random.integers(2, 9) * SECOND
    at[some(0.02)] -= random.integers(20, 90) * SECOND
    at[some(0.01)] -= 500 * SECOND
    whole = some(0.05)
    at[whole] -= at[whole] % SECOND
    holes = random.random(len(at)) < 0.03
    # However few the rows are, one is late and one has no moment.
    at[1:2], holes[1:2], holes[2:3] = at[1:2] - 500 * SECOND, False, True
    if ahead:
        # A clock that is ahead: what is in time by other clocks comes late after it.
        at[:1], holes[:1] = at[:1] + 5 * SECOND, False
    return pa.array(at, pa.int64(), mask=holes).cast(column.type)
