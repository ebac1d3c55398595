"""Session windows: rows of one key with pauses shorter than a gap between them. Runs anywhere.

What is kept of an open session is summarised under its first and last moment. A batch's rows and the open sessions are
put in order of key and time and merged where they overlap; a session [first, last + gap) comes out in the first batch
whose watermark has reached its end. A row is late when the session it would be in ended before its batch began. Costs
grow with the open sessions of a partition, in every batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from holdfast.application.windows import Session
from holdfast.runtime.tables import one_chunk
from holdfast.runtime.times import NOT_YET, Ints, Watermark, event_times, microseconds
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
from holdfast.runtime.worker.operators.panes import with_window_columns
from holdfast.runtime.worker.operators.summaries import Summary, codes_of, declare_over_time, with_plain_floats

FIRST, LAST = "@first", "@last"
_PLACE = [FIRST, LAST]


class SessionWindows:
    """Session windows over one or two inputs."""

    def __init__(self, window: Session, keys: Sequence[str], summary: Summary, times: Sequence[str]) -> None:
        self._gap = microseconds(window.gap)
        self._keys = tuple(keys)
        self._summary = summary
        self._times = tuple(times)

    def declare(self, inputs: Sequence[InputColumns]) -> Declaration:
        """See Kernel."""
        return declare_over_time(self._summary, inputs, {"kind": "session", "gap": self._gap}, self._times, _PLACE)

    def step(self, state: Runs, inputs: Sequence[pa.Table | None], before: Watermark, now: Watermark) -> Stepped:
        """Merge a batch into the open sessions and give those that end."""
        ended = NOT_YET if before is None else before
        ending = NOT_YET if now is None else now
        late: dict[int, pa.Table] = {}
        parts: list[_Part] = [_Part(name, None, one_chunk(runs)) for name, runs in sorted(state.items())]
        for side, rows in enumerate(inputs):
            if rows is None or rows.num_rows == 0:
                continue
            times, known = event_times(rows, self._times[side])
            if not known.all():
                none = np.flatnonzero(~known)
                late[side] = set_aside(rows, none, np.zeros(len(none), np.int64), NO_EVENT_TIME)
            moments = pa.array(times[known])
            fresh = with_plain_floats(take_rows(rows, known), self._keys)
            fresh = fresh.append_column(FIRST, moments).append_column(LAST, moments)
            parts.append(_Part(None, side, fresh))
        parts = [part for part in parts if part.rows.num_rows]
        if not parts:
            return Stepped({}, None, late)
        sessions = self._sessions(parts)
        closed: dict[str, list[pa.Table]] = {}
        open_: dict[str, list[pa.Table]] = {}
        for part, (first, last) in zip(parts, sessions, strict=True):
            rows = part.rows
            for name, moments in ((FIRST, first), (LAST, last)):
                rows = rows.set_column(rows.schema.get_field_index(name), name, pa.array(moments))
            ends = last + self._gap
            if part.side is not None and (ends <= ended).any():
                behind = np.flatnonzero(ends <= ended)
                aside = set_aside(part.rows.drop_columns(_PLACE), behind, np.ones(len(behind), np.int64), LATE)
                late[part.side] = one_chunk([late[part.side], aside]) if part.side in late else aside
                rows, ends = take_rows(rows, ends > ended), ends[ends > ended]
            for goes, target in ((ends <= ending, closed), (ends > ending, open_)):
                if goes.any():
                    chosen = take_rows(rows, goes)
                    kept = (
                        {str(part.name): chosen}
                        if part.side is None
                        else self._summary.reduce(part.side, chosen, _PLACE)
                    )
                    for name, table in kept.items():
                        target.setdefault(name, []).append(table)
        output = None
        if closed:
            result = self._summary.finish({name: one_chunk(tables) for name, tables in closed.items()}, _PLACE)
            if result is not None and result.num_rows:
                output = self._in_order(result)
        left = {
            name: (one_chunk([self._summary.merge(name, one_chunk(tables), _PLACE)]),) for name, tables in open_.items()
        }
        # Where nothing was added and nothing closed, the runs are the ones that were given: no delta.
        if all(part.side is None for part in parts) and not closed:
            return Stepped(state, None, late)
        return Stepped({name: runs for name, runs in left.items() if runs[0].num_rows}, output, late)

    def _sessions(self, parts: list[_Part]) -> list[tuple[Ints, Ints]]:
        """Return, for the rows of each part, the first and the last moment of the session they belong to."""
        keyed = [part.rows.select([*self._keys, *_PLACE]) for part in parts]
        together = pa.concat_tables(keyed, promote_options="permissive").combine_chunks()
        codes, _ = codes_of(together, self._keys)
        first, last = np.asarray(together[FIRST]), np.asarray(together[LAST])
        order = np.lexsort((first, codes))
        code, begin, end = codes[order], first[order], last[order]
        many = len(order)
        # The latest moment so far within a key: ranks are compared instead of times, so that a key's number, which
        # comes first, starts the maximum anew.
        rank = np.empty(many, np.int64)
        by_end = np.argsort(end, kind="stable")
        rank[by_end] = np.arange(many)
        highest = np.maximum.accumulate(code * many + rank)
        latest = end[by_end][highest % many]
        fresh = np.r_[True, (code[1:] != code[:-1]) | (begin[1:] >= latest[:-1] + self._gap)]
        number = np.cumsum(fresh) - 1
        starts = np.flatnonzero(fresh)
        ends = np.r_[starts[1:], many] - 1
        session_first, session_last = begin[starts], latest[ends]
        where = np.empty(many, np.int64)
        where[order] = number
        cuts = np.cumsum([part.rows.num_rows for part in parts])[:-1]
        return list(zip(np.split(session_first[where], cuts), np.split(session_last[where], cuts), strict=True))

    def _in_order(self, result: pa.Table) -> pa.Table:
        """Give sessions by their end, with their window."""
        ends = np.asarray(result[LAST]) + self._gap
        order = np.argsort(ends, kind="stable")
        result = result.take(pa.array(order))
        return with_window_columns(result.drop_columns(_PLACE), np.asarray(result[FIRST]), ends[order])


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """Rows to be put into sessions: a table of the state, or what one input brought."""

    name: str | None
    side: int | None
    rows: pa.Table
