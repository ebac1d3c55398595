"""Rows from lines of JSON, through Arrow: the quick way first, and line by line where some do not parse. On a node."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from holdfast.errors import BadInput, one_line
from holdfast.runtime.io.range_rows import LONGEST_RECORD, Rejected
from holdfast.runtime.schemas import conform

PARSED_SLOWLY = 64 << 10
"""Bytes of JSON lines that are parsed line by line, where one of them does not parse."""
_LOOK_AHEAD = 64 << 10


def read_json(data: pa.Buffer, schema: pa.Schema) -> tuple[pa.Table, list[Rejected]]:
    """Return the rows of lines of JSON, and the lines that do not parse, by their number."""
    table = json_table(data, schema)
    if table is not None:
        return table, []
    tables: list[pa.Table] = []
    rejected: list[Rejected] = []
    number = 0

    def read(part: pa.Buffer) -> None:
        """Halve what does not parse until it is small, so that one bad line costs little."""
        nonlocal number
        whole = json_table(part, schema)
        if whole is None and part.size > PARSED_SLOWLY:
            cut = find_newline(part, part.size // 2) + 1
            if 0 < cut < part.size:
                read(part.slice(0, cut))
                read(part.slice(cut))
                return
        if whole is None:
            whole, found, count = _json_slowly(part, schema, number)
            rejected.extend(found)
            number += count
        else:
            number += whole.num_rows
        tables.append(whole)

    read(data)
    return pa.concat_tables(tables).combine_chunks(), rejected


def json_table(data: pa.Buffer, schema: pa.Schema) -> pa.Table | None:
    """Parse lines the quick way; None: some do not parse."""
    try:
        table = pyarrow.json.read_json(
            pa.BufferReader(data),
            read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=one_block(data)),
            parse_options=pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
        )
        found = conform(table, schema, "the rows")
        found.validate(full=True)  # texts that are not UTF-8: Arrow's parser takes them
        return found
    except pa.ArrowInvalid as error:
        return schema.empty_table() if "Empty JSON" in str(error) else None
    except (pa.ArrowNotImplementedError, BadInput):
        return None


def _json_slowly(data: pa.Buffer, schema: pa.Schema, number: int) -> tuple[pa.Table, list[Rejected], int]:
    rows: list[list[Any]] = []
    rejected: list[Rejected] = []
    count = 0
    for line in data.to_pybytes().splitlines():
        if not line.strip():
            continue
        try:
            found = json.loads(line)
            if not isinstance(found, dict):
                raise ValueError("is not an object")
            rows.append([json_value(found.get(field.name), field) for field in schema])
        except (ValueError, TypeError, OverflowError, RecursionError, pa.ArrowException) as error:
            record = line.decode(errors="replace")[:LONGEST_RECORD]
            rejected.append(Rejected(number + count, record, one_line(str(error), 200)))
        count += 1
    columns = [pa.array([row[at] for row in rows], field.type) for at, field in enumerate(schema)]
    return pa.Table.from_arrays(columns, schema=schema), rejected, count


def json_value(value: Any, field: pa.Field) -> Any:
    """Return a value as its column takes it; texts of other values, and times as numbers, as Spark does."""
    kind = field.type
    if value is None:
        return None
    try:
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), ensure_ascii=False)
            return text.encode(errors="replace").decode()  # half of a pair of surrogates is "?", as in Spark
        if pa.types.is_timestamp(kind):
            found = _json_time(value, kind)
            pa.scalar(found, kind)  # refuses what is out of its range
            return found
        if pa.types.is_boolean(kind) != isinstance(value, bool):
            raise TypeError
        if pa.types.is_date(kind) and isinstance(value, int):
            return pa.scalar(value, pa.int32()).cast(kind).as_py()  # days, as Arrow's parser reads it
        if pa.types.is_date(kind) or pa.types.is_binary(kind):
            return pa.scalar(value, pa.string()).cast(kind).as_py()
        if pa.types.is_integer(kind) and isinstance(value, float) and value.is_integer():
            value = int(value)
        if pa.types.is_floating(kind) and isinstance(value, int):
            value = _nearest_double(value)
        return pa.scalar(value, kind).as_py()
    except (ValueError, TypeError, OverflowError, OSError, pa.ArrowException):
        shown = one_line(json.dumps(value, ensure_ascii=False).encode(errors="replace").decode(), 100)
        raise ValueError(f"column {field.name!r}: {shown} is not {kind}") from None


def _nearest_double(value: int) -> float:
    """Return the double that is nearest to a whole number, as Arrow's parser does; Arrow's scalars refuse most."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _json_time(value: Any, kind: pa.DataType) -> Any:
    if isinstance(value, bool):
        raise TypeError
    if isinstance(value, int | float):
        if not math.isfinite(value):
            raise ValueError
        return datetime.fromtimestamp(value, UTC).replace(tzinfo=None)
    return times_of(pa.array([value], pa.string()), kind)[0].as_py()


def times_of(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return texts as times, with a zone or without; digits of a second beyond the unit are cut off, as in Spark."""
    digits = _DIGITS.get(kind.unit)
    for tried in (texts, texts if digits is None else pc.replace_substring_regex(texts, *digits)):
        for zoned in (kind, pa.timestamp(kind.unit, "UTC")):
            try:
                return tried.cast(zoned).cast(kind)
            except pa.ArrowInvalid as error:
                problem = error
    raise problem


_DIGITS = {"us": (r"(:\d\d\.\d{6})\d+", r"\1"), "ns": (r"(:\d\d\.\d{9})\d+", r"\1")}
"""What is cut off texts of times, by their unit."""


def find_newline(data: pa.Buffer, start: int) -> int:
    """Return where the first newline is; -1: there is none."""
    view = memoryview(data)
    for at in range(start, len(view), _LOOK_AHEAD):
        found = bytes(view[at : at + _LOOK_AHEAD]).find(b"\n")
        if found >= 0:
            return at + found
    return -1


def one_block(data: pa.Buffer) -> int:
    """Return a size of block such that all is one: the table has one chunk then."""
    return max(1 << 16, int(data.size) + 1)
