"""Finding the rows of a batch on which an operator fails. Pure: it is given what tries some of the rows.

Rows are tried from the first on: the shortest beginning of the batch that fails ends with a row that is to blame, found
by halves. That row is left out, and the rest is tried again. So every row is judged in the company of the rows before
it, which matters for operators with memory; the last try that passes has all rows that are not to blame; and one row
among n costs about log2(n) tries. Nothing of a try is kept. The order of tries depends on nothing but their results:
who begins again, because a try has ended the process, gets by the same tries to the same place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

MOST_DEATHS = 24
"""Tries in which the process may die before a search is given up: each costs a process. Enough for a million rows."""


@dataclass(frozen=True, slots=True)
class TryFailed:
    """A try has failed."""

    error: str
    died: bool = False
    """Whether its process has died of it."""
    stalled: bool = False
    """Whether it did not end, and its process was ended for that: no other is tried, each might take as long."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What a search has found."""

    found: tuple[tuple[int, str], ...] = ()
    """The numbers of the rows that are to blame, each with its error; all others pass together."""
    problem: str | None = None
    """Why no rows can be blamed."""
    stalled: bool = False
    """Whether that is because a try did not end."""


class _Stalled(Exception):
    """A try did not end."""


def first_poison(rows: int, fails: Callable[[int], bool | None]) -> int | None:
    """Return the number of the last row of the shortest beginning that fails; None where that cannot be said.

    `fails(n)` tries the first n rows; None: there is no time for it, or it ended otherwise.
    """
    if rows == 0 or fails(0) is not False:
        return None
    low, high = 0, rows
    while high - low > 1:
        middle = (low + high) // 2
        failed = fails(middle)
        if failed is None:
            return None
        low, high = (low, middle) if failed else (middle, high)
    return high - 1


def find_poison(
    rows: int, attempt: Callable[[int, Sequence[int]], TryFailed | None], *, most: int, most_deaths: int = MOST_DEATHS
) -> SearchResult:
    """Find the rows to blame, at most so many.

    `attempt(n, left_out)` tries the first n rows without some of them, and returns how that failed.
    """
    try:
        return _search(rows, attempt, most, most_deaths)
    except _Stalled as stalled:
        return SearchResult(problem=f"a try of some of its rows did not end: {stalled}", stalled=True)


def _search(
    rows: int, attempt: Callable[[int, Sequence[int]], TryFailed | None], most: int, most_deaths: int
) -> SearchResult:
    found: list[tuple[int, str]] = []
    deaths = 0

    def fails(many: int) -> TryFailed | None:
        nonlocal deaths
        failed = attempt(many, [number for number, _ in found])
        if failed is not None and failed.stalled:
            raise _Stalled(failed.error)
        deaths += failed is not None and failed.died
        return failed

    if (failed := fails(0)) is not None:
        return SearchResult(problem=f"it fails without any row: {failed.error}")
    passes = 0  # so many of the first rows pass, without those that are found
    while (failed := fails(rows)) is not None:
        if len(found) == most:
            return SearchResult(problem=f"it fails on more than {most} rows of the batch, at first: {found[0][1]}")
        low, high = passes, rows
        while high - low > 1:
            if deaths > most_deaths:
                return SearchResult(problem=f"its process died {deaths} times in search of the rows: {failed.error}")
            middle = (low + high) // 2
            half = fails(middle)
            if half is None:
                low = middle
            else:
                high, failed = middle, half
        if deaths > most_deaths:
            return SearchResult(problem=f"its process died {deaths} times in search of the rows: {failed.error}")
        found.append((high - 1, failed.error))
        passes = high  # what passed before this row passes with it left out
    if not found:
        return SearchResult(problem="it failed, and with the same rows it passes")
    return SearchResult(tuple(found))
