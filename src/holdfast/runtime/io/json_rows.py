"""Rows from lines of JSON, through Arrow: the quick way first, and line by line where some do not parse. On a node.

A record is a line that is one object. Arrow's parser takes values one after the other, wherever lines end, ends the
process at a `null` that is the first of them, and makes a row of nulls of any other: so it is given lines only that
begin and end as an object does, and what it returns counts only where there are as many rows as lines.

A value is read as Spark's reader reads it in a column of its type, or its line is a dead letter: a fraction is no whole
number and no time, a number is no date, bytes are written in base64, and a text of another value is that value's own
text.
"""

from __future__ import annotations

import binascii
import json
import json.scanner
import math
from collections.abc import Callable
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
    if lines and any(_has_others(field.type, _is_parsed_slowly) for field in schema):
        return None
    if not lines:
        return schema.empty_table() if lines == 0 else None
    try:
        table = pyarrow.json.read_json(
            pa.BufferReader(data),
            read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=one_block(data)),
            parse_options=pyarrow.json.ParseOptions(
                explicit_schema=pa.schema([(one.name, _as_written(one.type)) for one in schema]),
                unexpected_field_behavior="ignore",
            ),
        )
        for at, field in enumerate(schema):
            if _as_written(field.type) != field.type:
                table = table.set_column(at, field, _from_texts(table.column(at), field.type))
        found = conform(table, schema, "the rows")
        found.validate(full=True)  # texts that are not UTF-8: Arrow's parser takes them
        return found if found.num_rows == lines else None
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, BadInput, ValueError):
        return None


def _is_parsed_slowly(kind: pa.DataType) -> bool:
    """Say which types within others Arrow's parser is not given: it takes numbers for dates, and texts for bytes.

    It ends the process at a map that is `[null]`.
    """
    return bool(pa.types.is_map(kind) or pa.types.is_date(kind) or pa.types.is_binary(kind))


def _has_others(kind: pa.DataType, which: Callable[[pa.DataType], bool]) -> bool:
    """Say whether a type is nested, and itself or one within it such a one."""
    parts = [kind.field(at).type for at in range(kind.num_fields)]
    return bool(parts) and (which(kind) or any(which(one) or _has_others(one, which) for one in parts))


def _as_written(kind: pa.DataType) -> pa.DataType:
    """Return the type as which Arrow parses a column: dates and bytes are texts, and nothing else."""
    return pa.string() if pa.types.is_date(kind) or pa.types.is_binary(kind) else kind


def _from_texts(texts: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if pa.types.is_date(kind):
        return texts.cast(kind)
    values = [None if one is None else _from_base64(one) for one in texts.to_pylist()]
    return pa.chunked_array([pa.array(values, kind)])


def _from_base64(text: str) -> bytes:
    return binascii.a2b_base64(text, strict_mode=True) if text else b""


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
            rows.append(json_row(line, schema))
        except (ValueError, TypeError, OverflowError, RecursionError, pa.ArrowException) as error:
            record = line.decode(errors="replace")[:LONGEST_RECORD]
            rejected.append(Rejected(number + count, record, one_line(str(error), 200)))
        count += 1
    columns = [pa.array([row[at] for row in rows], field.type) for at, field in enumerate(schema)]
    return pa.Table.from_arrays(columns, schema=schema), rejected, count


class _Written(float):
    """A number, and how it was written: texts keep it, and a decimal is read from it, as Arrow's parser reads it."""

    text: str

    def __new__(cls, text: str) -> _Written:
        made = super().__new__(cls, text)
        made.text = text
        return made

    @property
    def whole(self) -> bool:
        """Whether it was written without a point or an exponent."""
        return self.text.removeprefix("-").isdigit()


class _Object(dict[str, Any]):
    """An object, and how it was written."""

    text: str


class _List(list[Any]):
    """A list, and how it was written."""

    text: str


def _whole(text: str) -> int | _Written:
    """Return a whole number; -0 keeps its sign, and one with more digits than Python takes is a double."""
    return _Written(text) if text == "-0" or len(text) > _MOST_DIGITS else int(text)


_PLAIN = json.JSONDecoder(parse_float=_Written, parse_int=_whole)


class _KeepsTexts(json.JSONDecoder):
    """A decoder whose objects and lists know how they were written; slower than the plain one."""

    def __init__(self) -> None:
        super().__init__(parse_float=_Written, parse_int=_whole)
        parts: Any = self  # not in the type hints of the standard library
        parts.parse_object = _keeping(parts.parse_object, _Object)
        parts.parse_array = _keeping(parts.parse_array, _List)
        parts.scan_once = _in_python.py_make_scanner(self)


def _keeping(parse: Callable[..., Any], kept: type[_Object | _List]) -> Callable[..., Any]:
    """Return what parses what `parse` does, from behind its first sign, and keeps how it was written."""

    def parsed(at: tuple[str, int], *rest: Any) -> tuple[_Object | _List, int]:
        value, end = parse(at, *rest)
        made = kept(value)
        made.text = at[0][at[1] - 1 : end]
        return made, end

    return parsed


_in_python: Any = json.scanner
_KEEPS_TEXTS = _KeepsTexts()


def json_row(record: bytes, schema: pa.Schema) -> list[Any]:
    """Return the values of a record as their columns take them; `ValueError`: it is no object, or one does not fit."""
    text = record.decode(json.detect_encoding(record), "surrogatepass")
    found = _PLAIN.decode(text)
    if not isinstance(found, dict):
        raise ValueError("is not an object")
    if any(isinstance(found.get(one.name), dict | list) and _holds_text(one.type) for one in schema):
        found = _KEEPS_TEXTS.decode(text)
    return [json_value(found.get(one.name), one) for one in schema]


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _holds_text(kind: pa.DataType) -> bool:
    return _is_text(kind) or _has_others(kind, _is_text)


def json_value(value: Any, field: pa.Field) -> Any:
    """Return a value as its column takes it, as Spark does; `ValueError`: the column does not take it."""
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
    if _is_text(kind):
        text = value if isinstance(value, str) else _json_text(value)
        return text.encode(errors="replace").decode()  # half of a pair of surrogates is "?", as in Spark
    if pa.types.is_timestamp(kind):
        found = _json_time(value, kind)
        pa.scalar(found, kind)  # refuses what is out of its range
        return found
    if pa.types.is_boolean(kind) != isinstance(value, bool):
        raise TypeError
    if pa.types.is_date(kind):
        return pa.scalar(value, pa.string()).cast(kind).as_py()
    if pa.types.is_binary(kind):
        if not isinstance(value, str):
            raise TypeError
        return _from_base64(value)
    if pa.types.is_decimal(kind) and not isinstance(value, dict | list):
        text = value.text if isinstance(value, _Written) else str(value)
        return pa.scalar(text, pa.string()).cast(kind).as_py()
    if pa.types.is_integer(kind):
        value = _whole_number(value)
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
    """Return the text that stands for a value: how it was written, where that is known."""
    if isinstance(value, _Written | _Object | _List):
        return value.text
    if isinstance(value, dict):
        return f"{{{','.join(f'{_json_text(name)}:{_json_text(one)}' for name, one in value.items())}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_json_text, value))}]"
    return json.dumps(value, ensure_ascii=False)


def _whole_number(value: Any) -> int:
    """Return what was written as a whole number; pyarrow takes fractions for integers, and cuts them off."""
    if isinstance(value, _Written) and value.whole:
        return int(value.text)
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError
    return value


def _nearest_double(value: int) -> float:
    """Return the double that is nearest to a whole number, as Arrow's parser does; Arrow's scalars refuse most."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _json_time(value: Any, kind: pa.DataType) -> Any:
    if not isinstance(value, str):  # seconds since 1970
        return datetime.fromtimestamp(_whole_number(value), UTC).replace(tzinfo=None)
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
