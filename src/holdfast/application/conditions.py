"""Conditions of filters, checked while an application is written. Runs anywhere.

An Arrow expression names columns: it is evaluated on a table without rows, so that a wrong name or type is refused
where it is written. Arrow is imported only where the user has it already. A function is called at run time only.
"""

from __future__ import annotations

import re
from typing import Any

from holdfast.application.columns import Schema
from holdfast.errors import BadInput
from holdfast.topology.checks import suggestion

_EXAMPLE = 'write pc.field("amount") > 0, with pyarrow.compute as pc, or a function of the rows'
_NO_FIELD = re.compile(r"No match for FieldRef\.Name\((?P<name>.*?)\) in ")


def check_condition(condition: Any, columns: Schema | None, *, field: str) -> None:
    """Refuse what is no condition, or one that does not fit the columns; where these are unknown, the former only."""
    if not _is_expression(condition):
        # A Column of PySpark is one of the things that are not called.
        if not callable(condition) or type(condition).__module__.startswith("pyspark."):
            raise BadInput(f"{_shown(condition)} is not a condition", field=field, remedy=_EXAMPLE)
        return
    if columns is None:
        return
    import pyarrow as pa

    try:
        empty = pa.schema([(name, pa.type_for_alias(kind)) for name, kind in columns.items()]).empty_table()
    except ValueError:  # a nested column, of a schema of Arrow's: such a condition is tried at run time
        return
    try:
        empty.filter(condition)
    except pa.ArrowException as error:
        text = str(error)
        if (missing := _NO_FIELD.match(text)) is not None:
            name = missing["name"]
            raise BadInput(
                f"there is no column {name!r}", field=field, remedy=suggestion(name, list(columns))
            ) from None
        raise BadInput(
            f"{condition} cannot be evaluated: {text}",
            field=field,
            remedy=f"compare columns with values of their own types: {', '.join(map(' '.join, columns.items()))}",
        ) from None


def _is_expression(condition: Any) -> bool:
    kind = type(condition)
    return kind.__name__ == "Expression" and kind.__module__.startswith("pyarrow.")


def _shown(condition: Any) -> str:
    return repr(condition) if isinstance(condition, str | bool | int | float | None) else type(condition).__qualname__
