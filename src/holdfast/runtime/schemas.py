"""Declared columns and what tables really have: checked where rows enter, and where a user's function made them.

Runs anywhere.
"""

from __future__ import annotations

import pyarrow as pa

from holdfast.application.columns import Schema
from holdfast.errors import BadInput


def arrow_schema(columns: Schema | None) -> pa.Schema | None:
    """Return declared columns as an Arrow schema; None where they are not known."""
    if columns is None:
        return None
    return pa.schema([(name, arrow_type(kind)) for name, kind in columns.items()])


def arrow_type(kind: str) -> pa.DataType:
    """Return the Arrow type a column type's name stands for."""
    try:
        return pa.type_for_alias(kind)
    except ValueError:
        raise BadInput(f"{kind!r} is not a type that Arrow knows", remedy="declare another type") from None


def conform(table: pa.Table, schema: pa.Schema, what: str) -> pa.Table:
    """Return the declared columns, in their order and type; values that do not fit are refused, others are dropped."""
    if table.schema.equals(schema):
        return table if table.schema.metadata is None else table.replace_schema_metadata(None)
    columns = []
    for field in schema:
        at = table.schema.get_all_field_indices(field.name)
        if len(at) != 1:
            problem = "has no column" if not at else "has more than one column"
            raise BadInput(
                f"{what} {problem} {field.name!r}", remedy=f"it has {', '.join(table.column_names) or 'none'}"
            )
        values = table.column(at[0])
        if values.type != field.type:
            try:
                values = values.cast(field.type)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise BadInput(
                    f"column {field.name!r} of {what} is {values.type}, declared as {field.type}: {error}",
                    remedy="declare the type it has, or map it",
                ) from None
        columns.append(values)
    return pa.table(columns, schema=schema)
