"""Aggregates of a window, per key, with the names of `pyspark.sql.functions`. Runs anywhere."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from holdfast.application.members import AGGREGATE, no_such_member


class Function(StrEnum):
    """The aggregate functions there are; the values are the names in `pyspark.sql.functions`."""

    COUNT = "count"
    SUM = "sum"
    AVG = "avg"
    MIN = "min"
    MAX = "max"
    COUNT_DISTINCT = "count_distinct"


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One aggregate over a column (`count` also over rows). Nulls are skipped, as in SQL.

    >>> import holdfast as hf
    >>> hf.avg("speed")
    Aggregate(function=<Function.AVG: 'avg'>, column='speed')
    """

    function: Function
    column: str | None = None

    if not TYPE_CHECKING:  # a type checker must go on to refuse what is not there

        def __getattr__(self, name: str) -> Any:
            raise no_such_member("an aggregate", name, AGGREGATE, dir(Aggregate))


def count(column: str | None = None) -> Aggregate:
    """Count the rows; with a column, count its values that are not null.

    >>> import holdfast as hf
    >>> app = hf.Application("counted")
    >>> visits = app.source("visits", schema="page string, ms double")
    >>> visits.key_by("page").window(hf.rows(10)).agg(n=hf.count(), timed=hf.count("ms")).columns
    {'page': 'string', 'n': 'int64', 'timed': 'int64'}
    """
    return Aggregate(Function.COUNT, column)


def sum(column: str) -> Aggregate:  # noqa: A001
    """Add up a column of numbers; whole numbers give an int64 and an overflow is an error.

    >>> import holdfast as hf
    >>> app = hf.Application("added")
    >>> sales = app.source("sales", schema="shop string, cents bigint")
    >>> sales.key_by("shop").window(hf.rows(10)).agg(cents=hf.sum("cents")).columns
    {'shop': 'string', 'cents': 'int64'}
    """
    return Aggregate(Function.SUM, column)


def avg(column: str) -> Aggregate:
    """Compute the mean of a column of numbers, as a double.

    >>> import holdfast as hf
    >>> app = hf.Application("averaged")
    >>> cars = app.source("cars", schema="segment string, speed double")
    >>> cars.key_by("segment").window(hf.rows(10)).agg(speed=hf.avg("speed")).columns
    {'segment': 'string', 'speed': 'double'}
    """
    return Aggregate(Function.AVG, column)


def min(column: str) -> Aggregate:  # noqa: A001
    """Find the smallest value of a column.

    >>> import holdfast as hf
    >>> app = hf.Application("smallest")
    >>> cars = app.source("cars", schema="segment string, speed double")
    >>> cars.key_by("segment").window(hf.rows(10)).agg(slowest=hf.min("speed")).columns
    {'segment': 'string', 'slowest': 'double'}
    """
    return Aggregate(Function.MIN, column)


def max(column: str) -> Aggregate:  # noqa: A001
    """Find the largest value of a column.

    >>> import holdfast as hf
    >>> app = hf.Application("largest")
    >>> cars = app.source("cars", schema="segment string, speed double")
    >>> cars.key_by("segment").window(hf.rows(10)).agg(fastest=hf.max("speed")).columns
    {'segment': 'string', 'fastest': 'double'}
    """
    return Aggregate(Function.MAX, column)


def count_distinct(column: str) -> Aggregate:
    """Count the different values of a column.

    >>> import holdfast as hf
    >>> app = hf.Application("visitors")
    >>> visits = app.source("visits", schema="page string, user string")
    >>> visits.key_by("page").window(hf.rows(10)).agg(users=hf.count_distinct("user")).columns
    {'page': 'string', 'users': 'int64'}
    """
    return Aggregate(Function.COUNT_DISTINCT, column)
