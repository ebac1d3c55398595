"""Sharing a budget between two parties: out[c] = min over j of a[c - j] + b[j], for many pairs at once. Pure.

Costs fall, or stay, as the budget grows, and are infinite below the least budget; everything here relies on that.
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import as_strided

from holdfast.topology.model import Floats, Ints

DENSE_CELLS = 2_000_000
"""Up to this many pairs of budgets a plain table is faster than the search that uses convexity."""


def share(a: Floats, b: Floats) -> Floats:
    """Combine any two costs, row by row: O(Z^2) a row. Budgets below a row's least are skipped."""
    size = a.shape[-1]
    out = np.full(np.broadcast_shapes(a.shape, b.shape), np.inf)
    finite = np.isfinite(b).reshape(-1, size).any(axis=0)
    first_a = _first_finite(a)
    for j in range(int(np.argmax(finite)) if finite.any() else size, size):
        if first_a + j >= size:
            break
        part = out[..., first_a + j :]
        np.minimum(part, a[..., first_a : size - j] + b[..., j : j + 1], out=part)
    return out


def _first_finite(a: Floats) -> int:
    finite = np.isfinite(a).reshape(-1, a.shape[-1]).any(axis=0)
    return int(np.argmax(finite)) if finite.any() else a.shape[-1]


def best_split(a: Floats, b: Floats, budget: int) -> int:
    """Return how much of the budget goes to b, for one pair of costs; the least where several are best."""
    return int(np.argmin(a[budget::-1] + b[: budget + 1]))


class ConvexSharing:
    """Combines any costs with convex ones, row by row: O(Z log Z) a row, or a plain table where that is small.

    It keeps the table between calls: fresh memory costs more than the additions in it.
    """

    def __init__(self, most_rows: int, size: int) -> None:
        self.dense = most_rows * size * size <= DENSE_CELLS
        if self.dense:
            self._padded = np.full((most_rows, 2 * size - 1), np.inf)
            self._table = np.empty((most_rows, size, size))

    def __call__(self, a: Floats, b: Floats) -> Floats:
        """Return out[r, c] = min over j of a[r, c - j] + b[r, j]; the rows of b are convex where finite."""
        if not self.dense:
            return _monotone(a, b)
        rows, size = a.shape
        padded = self._padded[:rows]
        padded[:, size - 1 :] = a
        row, one = padded.strides
        # Entry (row, j, c) is a[c - j]; budgets last, so that adding and comparing run along memory.
        shifted = as_strided(padded[:, size - 1 :], (rows, size, size), (row, -one, one), writeable=False)
        table = np.add(shifted, b[:, :, None], out=self._table[:rows])
        out: Floats = table.min(axis=1)
        return out


def _monotone(a: Floats, b: Floats) -> Floats:
    """Search rows of budgets by halves: where b is convex, the best share of a never falls as the budget grows."""
    rows, size = a.shape
    flat_a, flat_b = np.ravel(a), np.ravel(b)
    out = np.full((rows, size), np.inf)
    first_a, first_b = _first(a), _first(b)
    start = first_a + first_b
    number = np.arange(rows)
    best = np.zeros((rows, size + 1), np.int64)  # best share of a, per budget; the last column is a sentinel
    best[:, size] = size
    step = 1 << max(size - 1, 1).bit_length()
    # Budgets at odd multiples of the step lie between two that are done, or beyond the ends.
    while step:
        budgets = np.arange(0 if step > size - 1 else step, size, 2 * step)
        below, above = budgets - step, np.minimum(budgets + step, size)
        row = np.repeat(number, len(budgets))
        budget = np.tile(budgets, rows)
        low = np.maximum(
            np.where(np.tile(below, rows) >= 0, best[row, np.maximum(np.tile(below, rows), 0)], 0), first_a[row]
        )
        high = np.minimum(best[row, np.tile(above, rows)], budget - first_b[row])
        keep = budget >= start[row]
        row, budget, low, high = row[keep], budget[keep], low[keep], high[keep]
        if len(row):
            value, share_a = _least(flat_a, flat_b, row * size, budget, low, high)
            out[row, budget] = value
            best[row, budget] = share_a
        step //= 2
    return out


def _first(a: Floats) -> Ints:
    finite = np.isfinite(a)
    first: Ints = np.where(finite.any(axis=1), np.argmax(finite, axis=1), a.shape[1]).astype(np.int64)
    return first


def _least(a: Floats, b: Floats, offset: Ints, budget: Ints, low: Ints, high: Ints) -> tuple[Floats, Ints]:
    """Return the least a[j] + b[budget - j] with low <= j <= high, and the first such j, for every entry."""
    width = high - low + 1
    ends = np.cumsum(width)
    starts = ends - width
    entry = np.repeat(np.arange(len(width)), width)
    j = np.arange(int(ends[-1])) - (starts - low)[entry]
    values = a[offset[entry] + j] + b[(offset + budget)[entry] - j]
    least = np.minimum.reduceat(values, starts)
    hits = np.flatnonzero(values == least[entry])
    owner = entry[hits]
    first = np.ones(len(hits), bool)
    first[1:] = owner[1:] != owner[:-1]
    return least, j[hits[first]]
