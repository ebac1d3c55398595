"""Rows from lines of JSON, through Arrow: the quick way first, and line by line where some do not parse. On a node.

A record is a line that is one object. Arrow's parser takes values one after the other, wherever lines end, ends the
process at a `null` that is the first of them, and makes a row of nulls of any other: so it is given lines only that
begin and end as an object does, and what it returns counts only where there are as many rows as lines.
"""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from holdfast.errors import BadInput, one_line
from holdfast.runtime.io.range_rows import LONGEST_RECORD, Rejected
from holdfast.runtime.schemas import conform

PARSED_SLOWLY = 64 << 10
"""Bytes of JSON lines that are parsed line by line, where one of them does not parse."""
_LOOK_AHEAD = 64 << 10
_NEWLINE, _RETURN, _OPENING, _CLOSING = b"\n\r{}"
_MOST_DIGITS = 4300
_BLANK = frozenset(b" \t\r\n")
_IS_BLANK = np.isin(np.arange(256), list(_BLANK))
_MOST_BLANKS = 64
"""So many blanks and line ends between two lines are passed over all at once."""


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
    """Parse lines the quick way; None: some do not parse, or are not one object each."""
    lines = object_lines(data)
    if lines and any(_has_map(field.type) for field in schema):
        return None  # Arrow's parser ends the process at a map that is `[null]`
    if not lines:
        return schema.empty_table() if lines == 0 else None
    try:
        table = pyarrow.json.read_json(
            pa.BufferReader(data),
            read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=one_block(data)),
            parse_options=pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
        )
        found = conform(table, schema, "the rows")
        found.validate(full=True)  # texts that are not UTF-8: Arrow's parser takes them
        return found if found.num_rows == lines else None
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, BadInput):
        return None


def object_lines(data: pa.Buffer) -> int | None:
    """Return how many lines there are, without blank ones; None: one does not begin and end as an object does.

    Where all do, and the whole parses, each line end is between two values: behind a `}` within an object no `{` comes,
    and no text goes on over lines. A value is an object then where there are as many values as lines.
    """
    held = np.frombuffer(data, np.uint8)
    first, last = 0, int(held.size)
    while last and held[last - 1] in _BLANK:
        last -= 1
    while first < last and held[first] in _BLANK:
        first += 1
    held = held[first:last]
    if not held.size:
        return 0
    ends = np.flatnonzero(held == _NEWLINE)
    returns = np.count_nonzero(held == _RETURN)
    if returns and returns != np.count_nonzero(held[ends - 1] == _RETURN):
        return _object_lines_slowly(held)  # some are line ends of their own
    if held[0] != _OPENING or held[-1] != _CLOSING:
        return None
    others = ends[(held[ends - 1] != _CLOSING) | (held[ends + 1] != _OPENING)]
    before, behind = _past_blanks(held, others, -1), _past_blanks(held, others, 1)
    if before is None or behind is None:
        return _object_lines_slowly(held)
    if (held[before] != _CLOSING).any() or (held[behind] != _OPENING).any():
        return None
    # Between two lines that are not blank there may be several line ends: those behind the same byte.
    return int(len(ends) - len(others) + np.count_nonzero(np.diff(before, prepend=-1)) + 1)


def _past_blanks(held: np.ndarray, ends: np.ndarray, step: int) -> np.ndarray | None:
    """Return where the next byte is that is no blank and no line end, to one side; None: some are far away."""
    at = ends + step
    for _ in range(_MOST_BLANKS):
        blank = _IS_BLANK[held[at]]
        if not blank.any():
            return at
        at += step * blank
    return None


def _object_lines_slowly(held: np.ndarray) -> int | None:
    filled = [line for line in (one.strip(b" \t") for one in held.tobytes().splitlines()) if line]
    return len(filled) if all(line[:1] == b"{" and line[-1:] == b"}" for line in filled) else None


def _json_slowly(data: pa.Buffer, schema: pa.Schema, number: int) -> tuple[pa.Table, list[Rejected], int]:
    rows: list[list[Any]] = []
    rejected: list[Rejected] = []
    count = 0
    for line in data.to_pybytes().splitlines():
        if not line.strip():
            continue
        try:
            found = json_object(line)
            rows.append([json_value(found.get(field.name), field) for field in schema])
        except (ValueError, TypeError, OverflowError, RecursionError, pa.ArrowException) as error:
            record = line.decode(errors="replace")[:LONGEST_RECORD]
            rejected.append(Rejected(number + count, record, one_line(str(error), 200)))
        count += 1
    columns = [pa.array([row[at] for row in rows], field.type) for at, field in enumerate(schema)]
    return pa.Table.from_arrays(columns, schema=schema), rejected, count


class _Written(float):
    """A number, and how it was written: a decimal is read from the text, as Arrow's parser reads it."""

    text: str

    def __new__(cls, text: str) -> _Written:
        made = super().__new__(cls, text)
        made.text = text
        return made

    @property
    def whole(self) -> bool:
        """Whether it was written without a point or an exponent."""
        return self.text.removeprefix("-").isdigit()


def _whole(text: str) -> int | _Written:
    """Return a whole number; -0 keeps its sign, and one with more digits than Python takes is a double."""
    return _Written(text) if text == "-0" or len(text) > _MOST_DIGITS else int(text)


def json_object(text: bytes) -> dict[str, Any]:
    """Parse a record; `ValueError`: it is no object."""
    found = json.loads(text, parse_float=_Written, parse_int=_whole)
    if not isinstance(found, dict):
        raise ValueError("is not an object")
    return found


def json_value(value: Any, field: pa.Field) -> Any:
    """Return a value as its column takes it; texts of other values, and times as numbers, as Spark does."""
    try:
        return _value(value, field.type)
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, OSError, pa.ArrowException):
        shown = one_line(_json_text(value).encode(errors="replace").decode(), 100)
        raise ValueError(f"column {field.name!r}: {shown} is not {field.type}") from None


def _value(value: Any, kind: pa.DataType) -> Any:
    """Return a value as Arrow's parser reads it, and what that one does not take as Spark does; so do nested ones."""
    if value is None:
        return None
    if pa.types.is_nested(kind):
        found = _nested_value(value, kind)
        pa.scalar(found, kind)  # refuses what is out of a range, or of another length
        return found
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        text = value if isinstance(value, str) else _json_text(value)
        return text.encode(errors="replace").decode()  # half of a pair of surrogates is "?", as in Spark
    if pa.types.is_timestamp(kind):
        found = _json_time(value, kind)
        pa.scalar(found, kind)  # refuses what is out of its range
        return found
    if pa.types.is_boolean(kind) != isinstance(value, bool):
        raise TypeError
    if pa.types.is_date(kind) and (isinstance(value, int) or (isinstance(value, _Written) and value.text == "-0")):
        if pa.types.is_date64(kind) and value % 86_400_000:
            raise ValueError  # milliseconds that are no whole days
        # Days, or such milliseconds, as Arrow's parser reads them.
        return pa.scalar(int(value), pa.int64() if pa.types.is_date64(kind) else pa.int32()).cast(kind).as_py()
    if pa.types.is_date(kind) or pa.types.is_binary(kind):
        return pa.scalar(value, pa.string()).cast(kind).as_py()
    if pa.types.is_decimal(kind) and not isinstance(value, dict | list):
        text = value.text if isinstance(value, _Written) else str(value)
        return pa.scalar(text, pa.string()).cast(kind).as_py()
    if pa.types.is_integer(kind) and isinstance(value, float) and value.is_integer():
        value = int(value)
    if pa.types.is_floating(kind) and isinstance(value, int):
        value = _nearest_double(value)
    return pa.scalar(value, kind).as_py()


def _nested_value(value: Any, kind: pa.DataType) -> Any:
    """Return a list, a struct, or the pairs of a map, which is an object or a list of {"key": …, "value": …}."""
    if pa.types.is_map(kind):
        pairs = value.items() if isinstance(value, dict) else [(one["key"], one["value"]) for one in value]
        if any(key is None for key, _ in pairs):
            raise TypeError
        return [(_value(key, kind.key_type), _value(one, kind.item_type)) for key, one in pairs]
    if pa.types.is_struct(kind):
        return {one.name: _value(value.get(one.name), one.type) for one in kind}
    if not isinstance(value, list):
        raise TypeError
    return [_value(one, kind.value_type) for one in value]


def _json_text(value: Any) -> str:
    """Write a value as JSON: whole numbers have all their digits, and 0 has no sign."""
    if isinstance(value, dict):
        return f"{{{','.join(f'{_json_text(name)}:{_json_text(one)}' for name, one in value.items())}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_json_text, value))}]"
    if isinstance(value, _Written) and value.whole:
        return "0" if value.text == "-0" else value.text
    return json.dumps(value, ensure_ascii=False)


def _has_map(kind: pa.DataType) -> bool:
    return pa.types.is_map(kind) or any(_has_map(kind.field(at).type) for at in range(kind.num_fields))


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
    plain = pa.timestamp(kind.unit)  # a text without a zone is in UTC, as Arrow's parser reads it
    return times_of(pa.array([value], pa.string()), plain).cast(kind)[0].as_py()


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
