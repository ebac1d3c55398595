"""What a window computes, per key: count, sum, average, least, greatest, distinct values. Runs anywhere."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Function(StrEnum):
    """The aggregates there are."""

    COUNT = "count"
    SUM = "sum"
    AVERAGE = "average"
    LEAST = "min"
    GREATEST = "max"
    DISTINCT = "distinct"


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One aggregate over a column (over rows, for a count). Nulls are passed over, as in SQL."""

    function: Function
    column: str | None = None


def count(column: str | None = None) -> Aggregate:
    """How many rows; with a column, how many of its values are not null."""
    return Aggregate(Function.COUNT, column)


def total(column: str) -> Aggregate:
    """The sum of a column."""
    return Aggregate(Function.SUM, column)


def average(column: str) -> Aggregate:
    """The mean of a column."""
    return Aggregate(Function.AVERAGE, column)


def least(column: str) -> Aggregate:
    """The smallest value of a column."""
    return Aggregate(Function.LEAST, column)


def greatest(column: str) -> Aggregate:
    """The largest value of a column."""
    return Aggregate(Function.GREATEST, column)


def distinct(column: str) -> Aggregate:
    """How many different values a column has."""
    return Aggregate(Function.DISTINCT, column)
