"""Which columns a windowed operator gives, from those it takes; what cannot be computed is refused. Runs anywhere.

Used twice: while an application is written, and when it starts, for sources whose columns are known only then.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.application.aggregates import Aggregate, Function
from holdfast.application.columns import NUMBERS, Schema, need_columns, need_kind
from holdfast.application.windows import Rows, Window
from holdfast.errors import BadInput

WINDOW_COLUMNS = {"window_start": "timestamp[us]", "window_end": "timestamp[us]"}


def window_columns(window: Window) -> Schema:
    """Return the columns that a window adds to its rows."""
    return {} if isinstance(window, Rows) else dict(WINDOW_COLUMNS)


def aggregate_columns(
    schema: Schema | None,
    keys: Sequence[str],
    window: Window,
    aggregates: Sequence[tuple[str, Aggregate]],
    *,
    field: str,
) -> Schema | None:
    """Return the keys, the window's columns and one column per aggregate."""
    need_columns(schema, keys, field=field)
    for name, one in aggregates:
        if one.column is None:
            continue
        if one.function in (Function.SUM, Function.AVG):
            need_kind(schema, one.column, NUMBERS, "a number", field=f"{field}.{name}")
        need_columns(schema, [one.column], field=f"{field}.{name}")
    if schema is None:
        return None
    kept = {**{key: schema[key] for key in keys}, **window_columns(window)}
    return {**kept, **{name: _aggregate_type(one, schema) for name, one in aggregates}}


def top_columns(schema: Schema | None, keys: Sequence[str], window: Window, by: str, *, field: str) -> Schema | None:
    """Return the columns of the rows, and the window's."""
    need_columns(schema, [*keys, by], field=field)
    return None if schema is None else {**schema, **window_columns(window)}


def distinct_columns(schema: Schema | None, columns: Sequence[str], window: Window, *, field: str) -> Schema | None:
    """Return the columns that are asked for, and the window's."""
    need_columns(schema, columns, field=field)
    return None if schema is None else {**{name: schema[name] for name in columns}, **window_columns(window)}


def join_columns(left: Schema | None, right: Schema | None, keys: Sequence[str], *, field: str) -> Schema | None:
    """Return the columns of both sides under the names they have in the result, and the window's."""
    need_columns(left, keys, field=field)
    need_columns(right, keys, field=field)
    if left is None or right is None:
        return None
    for key in keys:
        if (left[key] in NUMBERS) != (right[key] in NUMBERS) or (left[key] not in NUMBERS and left[key] != right[key]):
            raise BadInput(
                f"column {key!r} is {left[key]} on one side and {right[key]} on the other",
                field=f"{field}.on",
                remedy="map one of them to the other's type",
            )
    mine, theirs = joined_names(tuple(left), tuple(right), keys)
    columns = {mine[name]: kind for name, kind in left.items()}
    columns.update({theirs[name]: kind for name, kind in right.items() if name in theirs})
    columns.update(WINDOW_COLUMNS)
    if len(columns) < len(mine) + len(theirs) + len(WINDOW_COLUMNS):
        raise BadInput(
            "two columns of the result would have one name",
            field=field,
            remedy="rename the columns that begin with left_ or right_",
        )
    return columns


def joined_names(
    left: Sequence[str], right: Sequence[str], keys: Sequence[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return what the columns of each side of a join are called in its result; the keys come from the left."""
    mine = {name: f"left_{name}" if name in WINDOW_COLUMNS else name for name in left}
    taken = {*mine.values(), *WINDOW_COLUMNS}
    theirs = {name: f"right_{name}" if name in taken else name for name in right if name not in keys}
    return mine, theirs


def _aggregate_type(one: Aggregate, schema: Schema) -> str:
    if one.function in (Function.COUNT, Function.COUNT_DISTINCT):
        return "int64"
    if one.function is Function.AVG:
        return "double"
    kind = "double" if one.column is None else schema[one.column]
    if one.function is Function.SUM:
        return "double" if kind in ("double", "float") else "int64"
    return kind
