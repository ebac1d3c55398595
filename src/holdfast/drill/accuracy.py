"""How right tentative outputs were: their rows beside the final rows of the same batches. Runs anywhere.

Two numbers for each query, both means over the batches that it published as tentative and that have final rows. The
*measured fidelity* is the share of final rows that are among the tentative ones with all their values. The *accuracy*
is the paper's (PPA, sec. VI; `holdfast experiment tentative`): the share of final answers that tentative outputs have.
An answer is a row, named by its keys; where it has numbers beside them, it counts as much as they are right.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import pyarrow as pa

from holdfast.application.build import Application
from holdfast.drill.checkers import counted_rows
from holdfast.runtime.io.parquet_sink import tentative_and_final
from holdfast.runtime.io.sinks import VERSION_COLUMNS
from holdfast.storage.storage import open_storage

_WINDOW = frozenset({"window_start", "window_end"})


@dataclass(frozen=True, slots=True)
class TentativeAccuracy:
    """Of one query's tentative outputs; the mean over its batches."""

    equal_rows: float
    """The share of final rows that tentative outputs had as they are."""
    accuracy: float
    """The share of final answers that they had, each as much as its numbers were right."""


def compare_tentative(outputs: str, app: Application) -> dict[str, TentativeAccuracy]:
    """Compare, under a directory of outputs, tentative rows with the final ones; by query that had any."""
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for operator, name in app.output_names().items():
        keys = {key for feed in app.keys[operator] for key in feed}
        for output, tentative, final in tentative_and_final(open_storage(f"{outputs}/{name}")):
            if final is not None and final.num_rows:
                rows = tentative.drop_columns([one for one in VERSION_COLUMNS if one in tentative.column_names])
                found[str(output.query)].append((equal_rows(rows, final), accuracy(rows, final, keys)))
    return {
        query: TentativeAccuracy(fmean(one for one, _ in each), fmean(one for _, one in each))
        for query, each in found.items()
    }


def equal_rows(tentative: pa.Table, final: pa.Table) -> float:
    """Return the share of final rows that are among the tentative ones."""
    if set(tentative.column_names) != set(final.column_names):
        return 0.0
    have, want = counted_rows(tentative, final.column_names), counted_rows(final, final.column_names)
    return float(sum(min(count, have[row]) for row, count in want.items()) / final.num_rows)


def accuracy(tentative: pa.Table, final: pa.Table, keys: Collection[str]) -> float:
    """Return the share of final answers that tentative rows give, each as much as its numbers are right."""
    numbers = [one.name for one in final.schema if _is_number(one.type) and one.name not in {*keys, *_WINDOW}]
    named = [name for name in final.column_names if name not in numbers]
    if not named:
        named, numbers = numbers, []
    if not {*named, *numbers} <= set(tentative.column_names):
        return 0.0
    have: dict[tuple[Any, ...], list[tuple[Any, ...]]] = defaultdict(list)
    for key, values in _rows(tentative, named, numbers):
        have[key].append(values)
    right = 0.0
    for key, values in _rows(final, named, numbers):
        if given := have.get(key):
            right += _closeness(given.pop(0), values)
    return float(right / final.num_rows)


def _rows(table: pa.Table, named: list[str], numbers: list[str]) -> Iterable[tuple[tuple[Any, ...], tuple[Any, ...]]]:
    names = zip(*(map(repr, table[name].to_pylist()) for name in named), strict=True)
    values = zip(*(table[name].to_pylist() for name in numbers), strict=True) if numbers else [()] * table.num_rows
    return zip(names, values, strict=True)


def _closeness(given: tuple[Any, ...], right: tuple[Any, ...]) -> float:
    return fmean(_nearness(one, other) for one, other in zip(given, right, strict=True)) if right else 1.0


def _nearness(given: Any, right: Any) -> float:
    """Return how right a number is, from 0 to 1: 1 less its relative error."""
    if repr(given) == repr(right):
        return 1.0
    if given is None or right is None or not right:
        return 0.0
    return max(0.0, 1.0 - abs(float(given - right) / float(right)))  # not a number: 0


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def fields_of(query: str, found: Mapping[str, TentativeAccuracy]) -> dict[str, float | None]:
    """Return what a drill's result says of a query's tentative outputs."""
    one = found.get(query)
    return {
        "fidelity_measured": None if one is None else round(one.equal_rows, 4),
        "accuracy": None if one is None else round(one.accuracy, 4),
    }
