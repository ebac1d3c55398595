"""Declared columns and what tables really have: checked where rows enter, and where a user's function made them.

Runs anywhere.
"""

from __future__ import annotations

import re

import pyarrow as pa

from holdfast.application.columns import Schema
from holdfast.errors import BadInput


def arrow_schema(columns: Schema | None) -> pa.Schema | None:
    """Return declared columns as an Arrow schema; None where they are not known."""
    if columns is None:
        return None
    return pa.schema([(name, arrow_type(kind)) for name, kind in columns.items()])


def arrow_type(kind: str) -> pa.DataType:
    """Return the Arrow type a column type's name stands for; nested ones by what Arrow prints for them."""
    try:
        return _nested_type(kind) or pa.type_for_alias(kind)
    except ValueError:
        raise BadInput(f"{kind!r} is not a type that Arrow knows", remedy="declare another type") from None


_NESTED = re.compile(r"(list|large_list|fixed_size_list|struct|map|dictionary)<(.*)>(?:\[(\d+)\])?", re.DOTALL)
_DECIMAL = re.compile(r"decimal(32|64|128|256)\((\d+), (-?\d+)\)")
_ZONED = re.compile(r"timestamp\[(s|ms|us|ns), tz=([^\]]+)\]")


def _nested_type(kind: str) -> pa.DataType | None:
    """Return a type that has others in it, or parameters, from what Arrow prints for it; None: it is a plain one."""
    if (found := _DECIMAL.fullmatch(kind)) is not None:
        return getattr(pa, f"decimal{found[1]}")(int(found[2]), int(found[3]))
    if (found := _ZONED.fullmatch(kind)) is not None:
        return pa.timestamp(found[1], found[2])
    if (found := _NESTED.fullmatch(kind)) is None:
        return None
    name, inner, size = found.groups()
    if name == "dictionary":
        values = [part.partition("=")[2] for part in _split(inner)]
        return pa.dictionary(arrow_type(values[1]), arrow_type(values[0]), ordered=values[2] == "1")
    if name == "map":
        key, value = _split(inner.partition(" (")[0] if inner.endswith(")") and " ('" in inner else inner)[:2]
        return pa.map_(arrow_type(key), arrow_type(value.removesuffix(", keys_sorted")))
    fields = [_field(part) for part in _split(inner)]
    if name == "struct":
        return pa.struct(fields)
    if name == "fixed_size_list":
        return pa.list_(fields[0], int(size))
    return pa.list_(fields[0]) if name == "list" else pa.large_list(fields[0])


def _field(text: str) -> pa.Field:
    name, _, kind = text.partition(": ")
    plain = kind.removesuffix(" not null")
    return pa.field(name, arrow_type(plain), nullable=plain == kind)


def _split(text: str) -> list[str]:
    """Split at commas that are not within brackets."""
    parts, depth = [""], 0
    for sign in text:
        depth += (sign in "<([") - (sign in ">)]")
        if sign == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    return [part.strip() for part in parts]


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
