"""Count windows: so many rows of a key, in the order they come, one window every so many rows. Runs anywhere.

Window n of a key holds its rows n x every to n x every + size - 1, and comes out in the batch that brings its last row.
Kept are the rows that a later window still needs, so rows are numbered anew from the first of these. Windows come out
in the order in which they are filled.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from holdfast.application.windows import Rows
from holdfast.runtime.tables import one_chunk
from holdfast.runtime.times import Watermark
from holdfast.runtime.worker.operators.kernel import Declaration, InputColumns, Runs, Stepped, take_rows
from holdfast.runtime.worker.operators.summaries import (
    NO_KEY,
    Summary,
    codes_of,
    expand,
    places_in_group,
    with_plain_floats,
)

_WINDOW = "@window"
_WAITING = "waiting"


class CountWindows:
    """Windows of rows of one input."""

    def __init__(self, window: Rows, keys: Sequence[str], summary: Summary) -> None:
        self._size, self._every = window.size, window.every
        self._keys = tuple(keys)
        self._summary = summary

    def declare(self, inputs: Sequence[InputColumns]) -> Declaration:
        """See Kernel. The state is rows as they came, so what is computed of them may change."""
        schema = inputs[0].schema
        return Declaration(
            self._summary.kind,
            self._summary.declared(),
            {"kind": "rows", "size": self._size, "every": self._every},
            tables=None if schema is None else {_WAITING: schema},
            state_keys=inputs[0].keys,
            not_split=None if inputs[0].keys else NO_KEY,
        )

    def step(self, state: Runs, inputs: Sequence[pa.Table | None], before: Watermark, now: Watermark) -> Stepped:
        """Add a batch's rows and give the windows they fill."""
        fresh = inputs[0]
        if fresh is None or fresh.num_rows == 0:
            return Stepped(state)
        waiting = state.get(_WAITING, ())
        rows = one_chunk([*waiting, with_plain_floats(fresh, self._keys)])
        codes, count = codes_of(rows, self._keys)
        order = np.argsort(codes, kind="stable")
        places = np.empty(len(codes), np.int64)
        places[order] = places_in_group(codes, order)
        lengths = np.bincount(codes, minlength=count)
        full = np.maximum((lengths - self._size) // self._every + 1, 0)
        if not full.any():
            return Stepped({_WAITING: self._with_run(waiting, rows, fresh.num_rows)})
        first = np.maximum(-(-(places - self._size + 1) // self._every), 0)
        last = np.minimum(places // self._every, full[codes] - 1)
        row, window = expand(first, np.maximum(last - first + 1, 0))
        # Windows are numbered by the row that fills them, which is different for each window of a key, and counted
        # over all keys: sorting by it gives the order in which they are filled, with rows in their own order.
        group = (np.cumsum(full) - full)[codes[row]] + window
        filled_by = np.zeros(int(full.sum()), np.int64)
        ends = places[row] == window * self._every + self._size - 1
        filled_by[group[ends]] = row[ends]
        rank = np.empty(len(filled_by), np.int64)
        rank[np.argsort(filled_by, kind="stable")] = np.arange(len(filled_by))
        number = rank[group]
        by_window = np.argsort(number, kind="stable")
        inside = rows.take(pa.array(row[by_window])).append_column(_WINDOW, pa.array(number[by_window]))
        result = self._summary.finish(self._summary.reduce(0, inside, [_WINDOW]), [_WINDOW])
        output = None
        if result is not None and result.num_rows:
            result = result.take(pa.array(np.argsort(np.asarray(result[_WINDOW]), kind="stable")))
            output = result.drop_columns([_WINDOW])
        left = take_rows(rows, places >= full[codes] * self._every)
        return Stepped({_WAITING: (one_chunk([left]),)} if left.num_rows else {}, output)

    @staticmethod
    def _with_run(waiting: tuple[pa.Table, ...], rows: pa.Table, fresh: int) -> tuple[pa.Table, ...]:
        """Add the fresh rows as a run, merging runs of like size."""
        runs = [*waiting, one_chunk([rows.slice(rows.num_rows - fresh)])]
        while len(runs) > 1 and 2 * runs[-1].num_rows >= runs[-2].num_rows:
            runs[-2:] = [one_chunk(runs[-2:])]
        return tuple(runs)
