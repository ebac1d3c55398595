"""Columns and their types, checked while an application is written. Runs anywhere, without Arrow.

A schema is column name -> type name as Arrow prints it (`string`, `int64`, `double`, `timestamp[us]`, …). A
pyarrow.Schema is taken too. Where a user's function makes the rows and says no schema, columns are unknown (None) and
nothing is checked until the application runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.errors import BadInput
from holdfast.topology.checks import suggestion

Schema = dict[str, str]

_ALIASES = {
    "str": "string",
    "text": "string",
    "int": "int64",
    "long": "int64",
    "float": "double",
    "float64": "double",
    "float32": "float",
    "boolean": "bool",
    "timestamp": "timestamp[us]",
    "bytes": "binary",
    "date": "date32[day]",
}
KNOWN_TYPES = (
    *("string", "large_string", "binary", "bool", "double", "float", "date32[day]"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("timestamp[s]", "timestamp[ms]", "timestamp[us]", "timestamp[ns]"),
)
NUMBERS = frozenset({"double", "float"} | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)})
TIMES = frozenset(name for name in KNOWN_TYPES if name.startswith("timestamp")) | NUMBERS


def read_schema(given: Mapping[str, str] | Any, *, field: str) -> Schema:
    """Take a mapping of column names to type names, or a pyarrow.Schema."""
    if hasattr(given, "names") and hasattr(given, "types"):
        return {str(name): str(kind) for name, kind in zip(given.names, given.types, strict=True)}
    if not isinstance(given, Mapping) or not given:
        raise BadInput("is not a schema", field=field, remedy='write {"segment": "string", "speed": "double"}')
    found: Schema = {}
    for name, kind in given.items():
        if not isinstance(name, str) or not name:
            raise BadInput(f"{name!r} is not a column name", field=field, remedy="name columns with texts")
        known = _ALIASES.get(str(kind), str(kind))
        if known not in KNOWN_TYPES:
            names = [*KNOWN_TYPES, *_ALIASES]
            raise BadInput(
                f"{kind!r} is not a column type", field=f"{field}.{name}", remedy=suggestion(str(kind), names)
            )
        found[name] = known
    return found


def need_columns(schema: Schema | None, columns: Iterable[str], *, field: str) -> None:
    """Refuse columns that are not there; pass where the columns are not known yet."""
    for column in columns:
        if not isinstance(column, str) or not column:
            raise BadInput(f"{column!r} is not a column name", field=field, remedy="name columns with texts")
        if schema is not None and column not in schema:
            raise BadInput(f"there is no column {column!r}", field=field, remedy=suggestion(column, list(schema)))


def need_kind(schema: Schema | None, column: str, kinds: frozenset[str], what: str, *, field: str) -> None:
    """Refuse a column of a wrong type; pass where the type is not known yet."""
    need_columns(schema, [column], field=field)
    if schema is not None and schema[column] not in kinds:
        raise BadInput(
            f"column {column!r} is {schema[column]}, not {what}", field=field, remedy="choose another column"
        )
