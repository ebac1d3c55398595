"""The same answers by other means: plain Python over lists of rows, one row and one window at a time.

Nothing here is shared with the runtime: windows are found by trying, watermarks by the sentence that defines them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

Row = dict[str, Any]
NEVER = float("-inf")


def watermarks(batches: list[list[Row]], lateness: int) -> list[float]:
    """The watermark after each batch: the latest event so far, less the lateness (microseconds)."""
    found, latest = [], NEVER
    for rows in batches:
        latest = max([latest, *(row["at"] - lateness for row in rows if row["at"] is not None)])
        found.append(latest)
    return found


def windows_of(moment: int, size: int, every: int) -> list[tuple[int, int]]:
    """Every window [start, start + size), start a multiple of `every`, that holds a moment."""
    start = moment - moment % every
    found = []
    while start + size > moment:
        found.append((start, start + size))
        start -= every
    return found


def sliding(
    batches: list[list[Row]], lateness: int, size: int, every: int, marks: list[float] | None = None
) -> tuple[dict[tuple[int, int], list[Row]], list[tuple[Row, int]]]:
    """The rows of each window, and the rows that missed windows, with how many."""
    marks = watermarks(batches, lateness) if marks is None else marks
    windows: dict[tuple[int, int], list[Row]] = defaultdict(list)
    missed = []
    before = NEVER
    for rows, mark in zip(batches, marks, strict=True):
        for row in rows:
            if row["at"] is None:
                continue
            many = 0
            for window in windows_of(row["at"], size, every):
                if window[1] <= before:
                    many += 1
                else:
                    windows[window].append(row)
            if many:
                missed.append((row, many))
        before = max(before, mark)
    return dict(windows), missed


def sessions(
    batches: list[list[Row]], lateness: int, gap: int, key: Callable[[Row], Any]
) -> tuple[list[tuple[Any, int, int, list[Row]]], list[Row]]:
    """All sessions (key, start, end, rows), and the late rows: row by row, merging with whatever touches."""
    done: list[tuple[Any, int, int, list[Row]]] = []
    late: list[Row] = []
    waiting: dict[Any, list[tuple[int, int, list[Row]]]] = defaultdict(list)
    before = NEVER
    for rows, mark in zip(batches, watermarks(batches, lateness), strict=True):
        for row in rows:
            if row["at"] is None:
                continue
            first, last, members = row["at"], row["at"], [row]
            apart = []
            for session in waiting[key(row)]:
                if session[0] < last + gap and first < session[1] + gap:
                    first, last, members = min(first, session[0]), max(last, session[1]), session[2] + members
                else:
                    apart.append(session)
            waiting[key(row)] = [*apart, (first, last, members)]
        for name, open_ in waiting.items():
            late += [row for _, last, members in open_ if last + gap <= before for row in members]
            still = [session for session in open_ if session[1] + gap > before]
            done += [(name, first, last + gap, members) for first, last, members in still if last + gap <= mark]
            waiting[name] = [session for session in still if session[1] + gap > mark]
        before = max(before, mark)
    done += [(name, first, last + gap, rows) for name, open_ in waiting.items() for first, last, rows in open_]
    return done, late


def counted(rows: Iterable[Row], size: int, every: int, key: Callable[[Row], Any]) -> list[tuple[Any, list[Row]]]:
    """Windows of `size` rows of a key, one every `every` rows, in the order in which they fill."""
    seen: dict[Any, list[Row]] = defaultdict(list)
    found = []
    for row in rows:
        mine = seen[key(row)]
        mine.append(row)
        if len(mine) >= size and (len(mine) - size) % every == 0:
            found.append((key(row), mine[-size:]))
    return found


def by_key(rows: Iterable[Row], *columns: str) -> dict[tuple[Any, ...], list[Row]]:
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[column] for column in columns)].append(row)
    return groups


def values(rows: Iterable[Row], column: str) -> list[Any]:
    return [row[column] for row in rows if row[column] is not None]


def aggregated(rows: list[Row]) -> Row:
    """Every aggregate there is, of the column `n` (whole), `x` (floating) and `word`."""
    whole, real, words = values(rows, "n"), values(rows, "x"), values(rows, "word")
    return {
        "rows": len(rows),
        "known": len(whole),
        "sum": sum(whole) if whole else None,
        "real": sum(real) if real else None,
        "mean": sum(whole) / len(whole) if whole else None,
        "low": min(whole) if whole else None,
        "high": max(real) if real else None,
        "first": min(words) if words else None,
        "kinds": len(set(words)),
    }


def top(rows: list[Row], k: int, by: str, *, largest: bool = True) -> list[Row]:
    """The best k: nulls last, ties by all columns in order, smallest first, nulls last."""

    def sort_key(row: Row) -> tuple[Any, ...]:
        value = row[by]
        own = (value is None, 0 if value is None else (-value if largest else value))
        return own, tuple((row[name] is None, "" if row[name] is None else row[name]) for name in row)

    return sorted(rows, key=sort_key)[:k]


def bag(rows: Iterable[Row]) -> Counter[tuple[Any, ...]]:
    """Rows as a multiset: equal rows in any order are equal bags."""
    return Counter(tuple(sorted(row.items())) for row in rows)
