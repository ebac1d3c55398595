"""Columns and their types, checked while an application is written. Runs anywhere, without Arrow and Spark.

A schema is column name -> type name as Arrow prints it (`string`, `int64`, `double`, `timestamp[us]`, …). Users write
one as a DDL string, a pyspark StructType, a pyarrow.Schema or a dict; type names in a DDL string and in a dict are
Spark SQL's or Arrow's. Where the columns of a stream are unknown (None), nothing is checked until the application
starts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.errors import BadInput
from holdfast.topology.checks import suggestion

Schema = dict[str, str]

SPARK_TYPES = {
    "string": "string",
    "bigint": "int64",
    "int": "int32",
    "smallint": "int16",
    "tinyint": "int8",
    "double": "double",
    "float": "float",
    "boolean": "bool",
    "timestamp": "timestamp[us]",
    "timestamp_ntz": "timestamp[us]",
    "timestamp_ltz": "timestamp[us]",
    "date": "date32[day]",
    "binary": "binary",
    "long": "int64",
    "integer": "int32",
    "short": "int16",
    "byte": "int8",
    "real": "float",
}
"""Spark SQL's names of the column types that Holdfast has."""
_OTHER_NAMES = {"str": "string", "float64": "double", "float32": "float", "bytes": "binary"}
KNOWN_TYPES = (
    *("string", "large_string", "binary", "bool", "double", "float", "date32[day]"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("timestamp[s]", "timestamp[ms]", "timestamp[us]", "timestamp[ns]"),
)
NUMBERS = frozenset({"double", "float"} | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)})
TIMES = frozenset(name for name in KNOWN_TYPES if name.startswith("timestamp")) | NUMBERS
_SIZED_TEXT = re.compile(r"(var)?char\s*\(\s*\d+\s*\)")
_NESTED = re.compile(r"(array|map|struct|list|large_list|variant|interval|decimal|numeric|dec)\b")
_EXAMPLE = 'write "segment string, speed double, at timestamp"'


def read_schema(given: Any, *, field: str) -> Schema:
    """Read a schema: a DDL string, a pyspark StructType, a pyarrow.Schema, or a dict of column and type names.

    >>> read_schema("ts timestamp, user string NOT NULL, n int", field="schema")
    {'ts': 'timestamp[us]', 'user': 'string', 'n': 'int32'}
    """
    if isinstance(given, str):
        return _checked(_read_ddl(given, field), field)
    if hasattr(given, "names") and hasattr(given, "types"):  # a pyarrow.Schema
        return {str(name): _without_zone(str(kind)) for name, kind in zip(given.names, given.types, strict=True)}
    if hasattr(given, "fieldNames") and hasattr(given, "fields"):  # a StructType of PySpark
        return _checked([(one.name, one.dataType.simpleString()) for one in given.fields], field)
    if not isinstance(given, Mapping):
        raise BadInput("is not a schema", field=field, remedy=_EXAMPLE)
    return _checked([(name, str(kind)) for name, kind in given.items()], field)


def spark_ddl(schema: Schema) -> str:
    """Return a schema as a DDL string for Spark.

    >>> spark_ddl({"ts": "timestamp[us]", "n": "uint8"})
    '`ts` timestamp, `n` smallint'
    """
    unsigned = {"uint8": "smallint", "uint16": "int", "uint32": "bigint", "uint64": "bigint"}
    by_arrow = {arrow: spark for spark, arrow in reversed(SPARK_TYPES.items())} | unsigned
    by_arrow["large_string"] = "string"
    return ", ".join(
        f"`{name.replace('`', '``')}` {'timestamp' if kind.startswith('timestamp') else by_arrow.get(kind, kind)}"
        for name, kind in schema.items()
    )


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


def _checked(columns: list[tuple[str, str]], field: str) -> Schema:
    """Return the columns with Arrow's names of their types; refuse what is no column, twice there, or nested."""
    if not columns:
        raise BadInput("is not a schema: it names no column", field=field, remedy=_EXAMPLE)
    found: Schema = {}
    for name, kind in columns:
        if not isinstance(name, str) or not name:
            raise BadInput(f"{name!r} is not a column name", field=field, remedy="name columns with texts")
        if name in found:
            raise BadInput(f"column {name!r} is there twice", field=field, remedy="name every column once")
        found[name] = _arrow_name(kind, f"{field}.{name}")
    return found


def _arrow_name(kind: str, field: str) -> str:
    plain = kind.strip()
    low = plain.lower()
    if _SIZED_TEXT.fullmatch(low):
        return "string"
    known = SPARK_TYPES.get(low) or _OTHER_NAMES.get(low) or _without_zone(low)
    if known in KNOWN_TYPES:
        return known
    if _NESTED.match(low):
        raise BadInput(
            f"type {plain} is not supported: columns hold plain values",
            field=field,
            remedy="select its parts as columns, or cast it (decimal to double, others to string) in the reader",
        )
    names = [*KNOWN_TYPES, *SPARK_TYPES, *_OTHER_NAMES]
    raise BadInput(f"{plain!r} is not a column type", field=field, remedy=suggestion(plain, names))


def _without_zone(kind: str) -> str:
    """Drop the time zone of a timestamp: values are kept in UTC, as Spark does."""
    return re.sub(r"^(timestamp\[\w+), tz=[^\]]*\]$", r"\1]", kind)


def _read_ddl(text: str, field: str) -> list[tuple[str, str]]:
    """Split `a int, b: string NOT NULL COMMENT 'x'` into names and types."""
    found = []
    for part in _parts(text, field):
        match = re.fullmatch(
            r"(?P<name>`(?:[^`]|``)+`|[^\s:`]+)\s*(?::|\s)\s*(?P<kind>.+?)(?:\s+not\s+null)?(?:\s+comment\s+'.*')?",
            part,
            re.IGNORECASE | re.DOTALL,
        )
        if match is None:
            raise BadInput(f"{part!r} is not a column name and a type", field=field, remedy=_EXAMPLE)
        name = match["name"]
        found.append((name[1:-1].replace("``", "`") if name.startswith("`") else name, match["kind"]))
    return found


def _parts(text: str, field: str) -> list[str]:
    """Split at commas that are not within brackets or quotes."""
    parts, depth, quote = [""], 0, ""
    for sign in text:
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "`'":
            quote = sign
        else:
            depth += (sign in "<(") - (sign in ">)")
        if sign == "," and not quote and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    if quote or depth:
        raise BadInput(f"{text!r} has an open bracket or quote", field=field, remedy=_EXAMPLE)
    return [part.strip() for part in parts]
