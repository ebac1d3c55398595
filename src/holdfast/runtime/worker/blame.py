"""A step that has failed: which of its rows are to blame. Runs on a node.

Rows are tried in the operator process, with the state and the watermark of the step; what a try gives is dropped, so
neither state nor output shows that there was one. A try that raises, and one in which the process dies, have failed.
A step that does not end is not searched, and a try that does not end ends the search: the other partitions of the
process would wait for each try as long as for the step.
Nothing is left out here: the rows go to the coordinator, which logs what it decides. Where the operator lets no rows
be left out, the first row that it cannot take is looked for all the same, for a short time: people want to see it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

import pyarrow as pa

from holdfast.errors import HoldfastError, one_line
from holdfast.recovery.quarantine import LONGEST_ERROR, PoisonRow
from holdfast.runtime.messages import Failed
from holdfast.runtime.program import OperatorProgram
from holdfast.runtime.worker.dead_letters import without
from holdfast.runtime.worker.row_search import TryFailed, find_poison, first_poison
from holdfast.runtime.worker.step import Batch, gather, process
from holdfast.runtime.worker.step_guard import StepGuard

QUARANTINE_ROWS = 100
"""Rows of a partition and batch that are left out at most."""
SEARCH_SECONDS = 0.2
"""The time for a row that people can look at: other partitions of the process wait meanwhile."""
LONGEST_ROW = 300
"""Characters of it that are kept."""


def error_text(error: Exception) -> str:
    """Say what was raised."""
    return str(error) if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"


def blame(operator: OperatorProgram, given: Batch, attempt: int, failed: Failed, guard: StepGuard, most: int) -> Failed:
    """Return the answer to a step that has failed in an attempt, with the rows to blame where some are.

    `most`: rows of a partition and batch that are left out, at most.
    """
    if not operator.quarantines:
        return failed
    decided = () if given.skipped is None else given.skipped.rows
    try:
        gathered = gather(operator, given.blocks)
    except HoldfastError:
        return failed
    rows = _Rows(operator, given, gathered)
    if not rows.count:
        return failed
    plain = replace(given, skipped=None)

    def attempt_at(many: int, left_out: Sequence[int]) -> TryFailed | None:
        piece = f"{many} rows without {len(left_out)} to {left_out[-1]}" if left_out else f"{many} rows"
        if (died := guard.begin(given.partition, given.batch, attempt, piece)) is not None:
            return TryFailed(str(died), died=True, stalled=died.stalled)
        try:
            process(operator, plain, set(), rows.first(many, left_out))
        except Exception as error:  # a user's function may raise anything
            return TryFailed(error_text(error))
        finally:
            guard.end()
        return None

    result = find_poison(rows.count, attempt_at, most=most - len(decided))
    if result.problem is not None:
        problem = f"{failed.problem} (no row is quarantined: {result.problem})"
        return replace(failed, problem=problem, stalled=result.stalled)
    poison = tuple(rows.poison(number, error) for number, error in result.found)
    problem = f"{len(poison)} of {rows.count} rows cannot be taken, at first: {poison[0].error}"
    return replace(failed, problem=problem, poison=poison, all_rows=len(poison) == rows.count)


def show_row(
    operator: OperatorProgram,
    given: Batch,
    attempt: int,
    failed: Failed,
    guard: StepGuard,
    clock: Callable[[], float],
) -> Failed:
    """Return the answer to a step that raised, with the first row that it cannot take, where that is found in time."""
    try:
        rows = _Rows(operator, given, gather(operator, given.blocks))
    except HoldfastError:
        return failed
    plain, until = replace(given, skipped=None), clock() + SEARCH_SECONDS

    def fails(many: int) -> bool | None:
        if clock() > until or guard.begin(given.partition, given.batch, attempt, f"{many} rows, to see") is not None:
            return None
        try:
            process(operator, plain, set(), rows.first(many, ()))
        except Exception:  # a user's function may raise anything
            return True
        finally:
            guard.end()
        return False

    number = first_poison(rows.count, fails)
    return failed if number is None else replace(failed, row=rows.text(number))


class _Rows:
    """The rows of a step that are not left out already, numbered over all its inputs."""

    def __init__(self, operator: OperatorProgram, given: Batch, gathered: Sequence[pa.Table | None]) -> None:
        self._feeds = operator.feeds
        gone = {feed: [] if given.skipped is None else given.skipped.positions(feed) for feed in self._feeds}
        self._tables = [without(table, gone[feed]) for feed, table in zip(self._feeds, gathered, strict=True)]
        self._counts = [0 if table is None else table.num_rows for table in self._tables]
        self._places = [
            [] if table is None else sorted(set(range(table.num_rows)) - set(gone[feed]))
            for feed, table in zip(self._feeds, gathered, strict=True)
        ]
        self.count = sum(self._counts)

    def first(self, many: int, left_out: Sequence[int]) -> list[pa.Table | None]:
        """Return the first rows, without some, input by input."""
        found: list[pa.Table | None] = []
        offset = 0
        for table, count in zip(self._tables, self._counts, strict=True):
            taken = max(0, min(count, many - offset))
            part = None if table is None or not taken else table.slice(0, taken)
            found.append(without(part, [n - offset for n in left_out if offset <= n < offset + taken]))
            offset += count
        return found

    def text(self, number: int) -> str:
        """Return the row of a number as a short text, with the input that it came from."""
        for feed, table, count in zip(self._feeds, self._tables, self._counts, strict=True):
            if number < count and table is not None:
                row = table.slice(number, 1).to_pylist()[0]
                text = one_line(f"{feed}: {json.dumps(row, default=str, ensure_ascii=False)}")
                return text if len(text) <= LONGEST_ROW else f"{text[: LONGEST_ROW - 1]}…"
            number -= count
        raise IndexError(number)

    def poison(self, number: int, error: str) -> PoisonRow:
        """Return the row of a number, with its error."""
        for feed, places, count in zip(self._feeds, self._places, self._counts, strict=True):
            if number < count:
                text = one_line(error)
                text = text if len(text) <= LONGEST_ERROR else f"{text[: LONGEST_ERROR - 1]}…"
                return PoisonRow(feed, places[number], text)
            number -= count
        raise IndexError(number)
