"""Rows of a drill as the bytes of a file, or as the records of a topic. Runs anywhere; pure.

What is written reads back as the same rows; what a format cannot hold (a fraction that is no number, in JSON) is
written as null, and `as_delivered` says so of the rows that are expected.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from holdfast.application import Files, KafkaTopic
from holdfast.application.kafka_topics import record_columns
from holdfast.application.readers import file_options
from holdfast.errors import BadInput


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a topic."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()
    milliseconds: int | None = None


def encode_file(table: pa.Table, reader: Files) -> bytes:
    """Return rows as a file of a source's format."""
    if reader.format == "json":
        return b"".join(one + b"\n" for one in _lines(table))
    sink = pa.BufferOutputStream()
    if reader.format == "parquet":
        pq.write_table(table, sink)
    else:
        options = file_options(reader)
        if not options.multi_line and any(map(_has_line_breaks, table.columns)):
            raise BadInput(
                "a value has a line break, which CSV without multiLine cannot hold",
                remedy="give --feed spark, or rows without such values",
            )
        try:
            pyarrow.csv.write_csv(
                table,
                sink,
                pyarrow.csv.WriteOptions(include_header=options.header, delimiter=options.separator),
            )
        except pa.ArrowException as error:
            raise BadInput(
                f"these rows cannot be written as CSV: {error}",
                remedy="give --feed spark, or rows without such columns",
            ) from None
    return bytes(memoryview(sink.getvalue()))


def encode_records(table: pa.Table, reader: KafkaTopic) -> list[Record]:
    """Return rows as records of a topic."""
    parts = record_columns(reader.format, reader.options, table.column_names)
    given: dict[str, list[Any]] = {part: table[name].to_pylist() for part, name in parts.items()}
    if reader.format == "raw":
        values: Sequence[bytes | None] = [_bytes(one) for one in given.get("value", [None] * table.num_rows)]
    else:
        values = _lines(table.select([name for name in table.column_names if name not in parts.values()]))
    keys, headers = given.get("key"), given.get("headers")
    times: list[int | None] | None = None
    if "timestamp" in parts:
        moments = table[parts["timestamp"]].cast(pa.timestamp("ms"), safe=False)
        times = moments.cast(pa.int64()).to_pylist()
    return [
        Record(
            None if keys is None else _bytes(keys[row]),
            value,
            () if headers is None else _headers(headers[row]),
            None if times is None else times[row],
        )
        for row, value in enumerate(values)
    ]


def _headers(text: str | None) -> tuple[tuple[str, bytes], ...]:
    return () if text is None else tuple((name, _bytes(value) or b"") for name, value in json.loads(text))


def delivered_columns(columns: Sequence[str], reader: Files | KafkaTopic) -> list[str]:
    """Return the columns that come back as they were given: not positions in a topic, nor times there."""
    if isinstance(reader, Files):
        return list(columns)
    parts = record_columns(reader.format, reader.options, columns)
    lost = {name for part, name in parts.items() if part not in ("key", "value")}
    return [name for name in columns if name not in lost]


def as_delivered(table: pa.Table, reader: Files | KafkaTopic) -> pa.Table:
    """Return the rows as a reader must find them."""
    if reader.format != "json":
        return table
    for number, field in enumerate(table.schema):
        if pa.types.is_floating(field.type):
            column = table.column(number)
            finite = pc.fill_null(pc.is_finite(column), False)
            table = table.set_column(number, field, pc.if_else(finite, column, pa.scalar(None, field.type)))
    return table


def _has_line_breaks(column: pa.ChunkedArray) -> bool:
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return False
    return bool(pc.any(pc.match_substring_regex(column, "[\r\n]")).as_py())


def _lines(table: pa.Table) -> list[bytes]:
    rows = as_delivered(table, _JSON).to_pylist()
    return [json.dumps(one, default=_plain, ensure_ascii=False, separators=(",", ":")).encode() for one in rows]


_JSON = Files("", "json")


def _plain(value: Any) -> str:
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, bytes):
        return b64encode(value).decode()
    return str(value) if isinstance(value, Decimal) else repr(value)


def _bytes(value: Any) -> bytes | None:
    return value if value is None or isinstance(value, bytes) else str(value).encode()
