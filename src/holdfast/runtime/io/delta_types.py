"""Arrow types as Delta tables have them. Pure; runs on nodes and on the driver."""

from __future__ import annotations

import pyarrow as pa

from holdfast.errors import BadInput

_WIDER = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.uint64(): pa.int64()}
_PLAIN = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary(), pa.float16(): pa.float32()}


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema with the types that a Delta table has for its columns, and nothing else."""
    return pa.schema([pa.field(one.name, _plain(one.type, one.name)) for one in schema])


def delta_rows(rows: pa.Table) -> pa.Table:
    """Return rows with types that Delta knows: times in microseconds, signed integers, no dictionaries."""
    wanted = plain_schema(rows.schema)
    return rows if rows.schema.equals(wanted) else rows.cast(wanted)


def _plain(kind: pa.DataType, column: str) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type, column)
    if pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_plain(kind.value_type, column))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(one.name, _plain(one.type, column)) for one in kind])
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type, column), _plain(kind.item_type, column))
    if pa.types.is_time(kind) or pa.types.is_duration(kind) or pa.types.is_null(kind) or pa.types.is_union(kind):
        raise BadInput(
            f"column {column!r} is {kind}, and Delta tables have no such type",
            field="delta",
            remedy="convert it before the output, to a timestamp, a number or a text",
        )
    return _WIDER.get(kind, _PLAIN.get(kind, kind))
