"""Deliberate bugs of outputs in Delta tables: how far a table is, who may commit, what final rows replace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.runtime.io import delta_sink as sinks
from holdfast.runtime.io.delta_sink import DeltaSink
from holdfast.runtime.io.delta_tentative import Replaced, TentativeRows
from holdfast_lab.simulation.recovery import starting
from holdfast_lab.simulation.recovery.delta_table import OverSimulatedTable
from simulation.bugs import Bug, Patch


def table_is_not_asked_what_it_has(patch: Patch) -> None:
    """An output that was committed by a driver that died before it could report it is added again."""
    patch.setattr(sinks, "_is_in", lambda table, output: False)


def commit_does_not_say_how_far_it_is(patch: Patch) -> None:
    """Files are added without the application transaction of their query."""
    right = OverSimulatedTable._append

    def append(self: Any, table: Any, added: Any, versions: Mapping[str, int], removed: Any = None) -> None:
        right(self, table, added, {}, removed)

    patch.setattr(OverSimulatedTable, "_append", append)


def how_far_a_table_is_follows_its_files(patch: Patch) -> None:
    """The files are one commit, and how far the query is with them the next one."""
    right = OverSimulatedTable._append

    def append(self: Any, table: Any, added: Any, versions: Mapping[str, int], removed: Any = None) -> None:
        right(self, table, added, {}, removed)
        right(self, self._opened(), [], versions)

    patch.setattr(OverSimulatedTable, "_append", append)


def refused_commit_made_again_without_a_look(patch: Patch) -> None:
    """A commit that the table refuses, because another one has the same transaction, is made as the next one."""
    right = OverSimulatedTable._append

    def append(self: Any, table: Any, added: Any, versions: Mapping[str, int], removed: Any = None) -> None:
        try:
            right(self, table, added, versions, removed)
        except self._refused:
            right(self, self._opened(), added, versions, removed)

    patch.setattr(OverSimulatedTable, "_append", append)


def files_that_are_gone_are_committed(patch: Patch) -> None:
    """Nobody looks whether the files that a node has written are still there."""
    right = DeltaSink.publish_all

    def publish_all(self: Any, outputs: Sequence[Any], epoch: Any) -> Any:
        there, self._are_there = self._are_there, lambda staged: there(staged) or True
        try:
            return right(self, outputs, epoch)
        finally:
            del self._are_there

    patch.setattr(DeltaSink, "publish_all", publish_all)


def rows_left_staged_are_passed_over(patch: Patch) -> None:
    """Rows that a driver with `every` has left staged are not committed by one without."""
    patch.setattr(starting, "publish_left_staged", lambda *given: None)
    patch.setattr(DeltaSink, "_check_none_staged", lambda self, key: None)


def tentative_rows_stay_beside_final_ones(patch: Patch) -> None:
    """A commit with final rows does not remove the files of tentative ones."""
    patch.setattr(DeltaSink, "_may_have_tentative", lambda self, table, key: False)


def tentative_rows_that_optimize_has_moved_stay(patch: Patch) -> None:
    """Files that others have written are not looked into."""
    patch.setattr(TentativeRows, "_look_into", lambda self, other: {})


def final_rows_go_with_tentative_ones(patch: Patch) -> None:
    """A file that has tentative rows is removed as it is, and the final rows in it are not written again."""
    right = TentativeRows.replaced

    def replaced(self: Any, *given: Any) -> Replaced:
        return Replaced(right(self, *given).removed, ())

    patch.setattr(TentativeRows, "replaced", replaced)


def _bugs(*all_of: Any) -> tuple[Bug, ...]:
    return tuple(Bug(one.__name__.replace("_", " "), one.__doc__ or "", one) for one in all_of)


TABLE_BUGS = _bugs(
    table_is_not_asked_what_it_has,
    commit_does_not_say_how_far_it_is,
    how_far_a_table_is_follows_its_files,
    refused_commit_made_again_without_a_look,
    files_that_are_gone_are_committed,
)
"""Of all tables."""
LEFT_BUGS = _bugs(rows_left_staged_are_passed_over)
"""Of tables into which drivers gather, or do not, in turn."""
CORRECTION_BUGS = _bugs(
    tentative_rows_stay_beside_final_ones,
    tentative_rows_that_optimize_has_moved_stay,
    final_rows_go_with_tentative_ones,
)
"""Of tables that take tentative rows."""
