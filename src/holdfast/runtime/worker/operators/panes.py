"""Sliding and tumbling event-time windows, by panes. Runs anywhere.

A pane is a slice of time as long as the greatest common divisor of the window's size and its slide, so every window is
whole panes. Rows are summarised into their pane once, however many windows it is in; a window that closes puts its
panes together. A pane's summaries are runs of the state: those of one batch are one run, and runs of like size are
merged, so a pane has few runs and every row is rewritten only a logarithmic number of times.

A window [start, end) closes when the watermark reaches its end: it comes out in that batch, once. A row is late for the
windows that had closed before its batch: it counts in those still open, and is set aside with how many it missed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from holdfast.application.windows import Sliding
from holdfast.runtime.tables import one_chunk
from holdfast.runtime.times import END_OF_TIME, NOT_YET, Ints, Watermark, as_timestamps, event_times, microseconds
from holdfast.runtime.worker.operators.kernel import (
    LATE,
    NO_EVENT_TIME,
    Declaration,
    InputColumns,
    Runs,
    Stepped,
    set_aside,
    take_rows,
)
from holdfast.runtime.worker.operators.summaries import Summary, declare_over_time

PANE = "@pane"
START = "@start"
FEW_PANES = 2**16
ROWS_AT_ONCE = 2_000_000
"""Windows that close together are finished together, up to about so many kept rows."""


class PaneWindows:
    """Event-time windows of a fixed length over one or two inputs."""

    def __init__(self, window: Sliding, summary: Summary, times: Sequence[str]) -> None:
        """Take the window, what to keep and compute, and each input's event-time column."""
        self._size, self._every = microseconds(window.size), microseconds(window.every)
        self._pane = math.gcd(self._size, self._every)
        self._summary = summary
        self._times = tuple(times)

    def declare(self, inputs: Sequence[InputColumns]) -> Declaration:
        """See Kernel."""
        window = {"kind": "sliding", "size": self._size, "every": self._every}
        return declare_over_time(self._summary, inputs, window, self._times, [PANE])

    def step(self, state: Runs, inputs: Sequence[pa.Table | None], before: Watermark, now: Watermark) -> Stepped:
        """Summarise a batch into its panes, give the windows that close, and forget panes no window needs."""
        closed, closing = self._last_closed(before), self._last_closed(now)
        panes: dict[str, dict[int, list[pa.Table]]] = {name: _by_pane(runs) for name, runs in state.items()}
        late: dict[int, pa.Table] = {}
        for side, rows in enumerate(inputs):
            if rows is None or rows.num_rows == 0:
                continue
            placed, aside = self._placed(rows, self._times[side], closed)
            if aside is not None:
                late[side] = aside
            if placed.num_rows:
                for name, kept in self._summary.reduce(side, placed, [PANE]).items():
                    self._add(name, panes.setdefault(name, {}), kept)
        outputs = []
        for windows in self._closing_windows(panes, closed, closing):
            kept = {name: found for name, of in panes.items() if (found := self._of_windows(of, windows)) is not None}
            if kept and (result := self._summary.finish(kept, [START])) is not None and result.num_rows:
                outputs.append(self._with_window(result))
        left = {
            name: tuple(run for pane in sorted(of) if self._last_window(pane) > closing for run in of[pane])
            for name, of in panes.items()
        }
        return Stepped(
            {name: runs for name, runs in left.items() if runs}, one_chunk(outputs) if outputs else None, late
        )

    # -- numbers of windows: window m is [m x every, m x every + size) ---------------------------------------------

    def _last_closed(self, watermark: Watermark) -> int:
        if watermark is None or watermark <= NOT_YET:
            return NOT_YET
        return END_OF_TIME if watermark >= END_OF_TIME else (watermark - self._size) // self._every

    def _first_window(self, pane: int) -> int:
        return (pane - self._size) // self._every + 1

    def _last_window(self, pane: int) -> int:
        return pane // self._every

    def _placed(self, rows: pa.Table, column: str, closed: int) -> tuple[pa.Table, pa.Table | None]:
        """Give rows their pane; set aside those without an event time and those that missed windows."""
        times, known = event_times(rows, column)
        panes = times // self._pane
        missed, windows = self._missed(panes, closed)
        aside = []
        if not known.all():
            none = np.flatnonzero(~known)
            aside.append(set_aside(rows, none, np.zeros(len(none), np.int64), NO_EVENT_TIME))
        behind = np.flatnonzero(known & (missed > 0))
        if len(behind):
            aside.append(set_aside(rows, behind, missed[behind], LATE))
        keep = known & (missed < windows)
        placed = take_rows(rows, keep)
        kept_panes = panes if len(placed) == len(panes) else panes[keep]
        return placed.append_column(PANE, pa.array(kept_panes * self._pane)), one_chunk(aside) if aside else None

    def _missed(self, panes: Ints, closed: int) -> tuple[Ints, Ints]:
        """Return for each row, by its pane's number, how many of its windows had closed, and how many it has.

        All moments of a pane are in the same windows, and panes are few: they are looked up, not computed row by row.
        """
        low, high = int(panes.min()), int(panes.max())
        few = high - low < FEW_PANES
        starts = (np.arange(low, high + 1) if few else panes) * self._pane
        first, last = (starts - self._size) // self._every + 1, starts // self._every
        windows = last - first + 1
        missed = np.minimum(np.maximum(closed - first + 1, 0), windows)
        if not few:
            return missed, windows
        if not missed.any():
            return np.zeros(len(panes), np.int64), np.ones(len(panes), np.int64)
        place = panes - low
        return missed[place], windows[place]

    def _add(self, name: str, panes: dict[int, list[pa.Table]], kept: pa.Table) -> None:
        """Add one batch's summaries to their panes, merging runs of like size."""
        for pane, run in _split_by_pane(kept):
            runs = panes.setdefault(pane, [])
            runs.append(run)
            while len(runs) > 1 and 2 * runs[-1].num_rows >= runs[-2].num_rows:
                runs[-2:] = [one_chunk([self._summary.merge(name, one_chunk(runs[-2:]), [PANE])])]

    def _closing_windows(
        self, panes: dict[str, dict[int, list[pa.Table]]], closed: int, closing: int
    ) -> Iterator[list[int]]:
        """Give the windows with rows that close now, in order, in portions that fit into memory."""
        sizes: dict[int, int] = {}
        for of in panes.values():
            for pane, runs in of.items():
                sizes[pane] = sizes.get(pane, 0) + sum(run.num_rows for run in runs)
        rows: dict[int, int] = {}
        for pane, size in sizes.items():
            first, last = max(self._first_window(pane), closed + 1), min(self._last_window(pane), closing)
            for window in range(first, last + 1):
                rows[window] = rows.get(window, 0) + size
        portion: list[int] = []
        total = 0
        for window in sorted(rows):
            if portion and total + rows[window] > ROWS_AT_ONCE:
                yield portion
                portion, total = [], 0
            portion.append(window)
            total += rows[window]
        if portion:
            yield portion

    def _of_windows(self, panes: dict[int, list[pa.Table]], windows: list[int]) -> pa.Table | None:
        """Put together what these windows hold: their panes in order of time, each row with its window's start."""
        ordered = sorted(panes)
        pieces: list[pa.Table] = []
        starts: list[int] = []
        for window in windows:
            begin = window * self._every
            low, high = np.searchsorted(ordered, [begin, begin + self._size])
            for pane in ordered[low:high]:
                pieces += panes[pane]
                starts += [begin] * len(panes[pane])
        if not pieces:
            return None
        table = one_chunk(pieces).drop_columns([PANE])
        column = np.repeat(np.array(starts, np.int64), [piece.num_rows for piece in pieces])
        return table.append_column(START, pa.array(column))

    def _with_window(self, result: pa.Table) -> pa.Table:
        starts = np.asarray(result[START])
        return with_window_columns(result.drop_columns([START]), starts, starts + self._size)


def with_window_columns(table: pa.Table, starts: Ints, ends: Ints) -> pa.Table:
    """Add `window_start` and `window_end`, in place of columns of these names."""
    for name, values in (("window_start", starts), ("window_end", ends)):
        column = as_timestamps(values)
        at = table.schema.get_field_index(name)
        table = table.append_column(name, column) if at < 0 else table.set_column(at, name, column)
    return table


def _by_pane(runs: Sequence[pa.Table]) -> dict[int, list[pa.Table]]:
    found: dict[int, list[pa.Table]] = {}
    for run in runs:
        found.setdefault(run[PANE][0].as_py(), []).append(run)
    return found


def _split_by_pane(kept: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """Give the rows of each pane as one run, panes in order of time, rows in the order they were in."""
    if kept.num_rows == 0:
        return
    panes = np.asarray(kept[PANE])
    if (panes[1:] < panes[:-1]).any():
        order = np.argsort(panes, kind="stable")
        kept, panes = kept.take(pa.array(order)), panes[order]
    cuts = np.flatnonzero(np.r_[True, panes[1:] != panes[:-1]])
    for low, high in zip(cuts, np.r_[cuts[1:], len(panes)], strict=True):
        yield int(panes[low]), one_chunk([kept.slice(int(low), int(high - low))])
