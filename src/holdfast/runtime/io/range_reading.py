"""Read ranges of files through Arrow: rows, rows that do not parse, and a checksum of the bytes. Runs on a node.

Arrow is single-threaded here, and a range gives one table, so the same bytes give the same rows. The quick way is
tried first; where a range has rows that do not parse, it is read the slow way, which finds them and keeps them aside
with the reason: one bad line does not stop a stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from holdfast.application.readers import FileOptions
from holdfast.erasure.checksums import crc32
from holdfast.errors import BadInput, one_line
from holdfast.runtime.io.file_ranges import COMPRESSED, FileRange, HowRead
from holdfast.runtime.io.json_rows import find_newline, one_block, read_json, times_of
from holdfast.runtime.io.parquet_ranges import read_parquet
from holdfast.runtime.io.range_rows import LONGEST_RECORD, RangeRows, Rejected, Unreadable
from holdfast.runtime.schemas import conform
from holdfast.storage.source_files import OpenFile

LOOK_AHEAD = 64 << 10
"""Bytes that are read at once to find the end of a range's last line."""
_MARK = b"\xef\xbb\xbf"
"""A byte order mark: what some files begin with."""


def read_range(file: OpenFile, one: FileRange, how: HowRead, schema: pa.Schema) -> RangeRows:
    """Return the rows of a range with these columns. A file that changes meanwhile gives whatever it gives."""
    options = how.file_options
    if how.format == "parquet":
        return read_parquet(file, one, schema)
    data, first = _lines(file, one)
    check = crc32(memoryview(data)) if data.size else 0
    if one.file.path.lower().endswith(COMPRESSED):
        data = _decompressed(data, one.file.path, check)
    if first and data.slice(0, min(3, data.size)).to_pybytes() == _MARK:
        data = data.slice(3)
    if not data.size:
        return RangeRows(schema.empty_table(), (), check)
    if how.format == "json":
        rows, rejected = read_json(data, schema)
    else:
        names, data = _csv_names(file, data, options, schema, first)
        rows, rejected = _read_csv(data, names, options, schema) if data.size else (schema.empty_table(), [])
    return RangeRows(rows, tuple(rejected), check)


# -- lines -------------------------------------------------------------------------------------------------------------


def _lines(file: OpenFile, one: FileRange) -> tuple[pa.Buffer, bool]:
    """Return the lines that begin in a range, and whether the first of them is the file's first."""
    if one.start == 0 and one.end >= one.file.size:
        return file.read(0, one.file.size), True
    before = one.start - 1 if one.start else 0
    data = file.read(before, one.end - before)
    begin = 0
    if one.start:
        begin = find_newline(data, 0) + 1
        if not begin:
            return data.slice(0, 0), False
    if begin >= data.size:
        return data.slice(0, 0), False
    parts, at = [data.slice(begin)], before + data.size
    if data.slice(data.size - 1).to_pybytes() != b"\n":
        while at < one.file.size:
            more = file.read(at, min(LOOK_AHEAD, one.file.size - at))
            end = find_newline(more, 0)
            parts.append(more if end < 0 else more.slice(0, end + 1))
            at += more.size
            if end >= 0 or not more.size:
                break
    whole = parts[0] if len(parts) == 1 else pa.py_buffer(b"".join(map(memoryview, parts)))
    return whole, not one.start


def _decompressed(data: pa.Buffer, path: str, check: int) -> pa.Buffer:
    try:
        codec = pa.Codec.detect(path)
        return pa.CompressedInputStream(pa.BufferReader(data), codec.name).read_buffer()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise Unreadable(one_line(f"cannot be decompressed: {error}", 200), check) from None


# -- CSV ---------------------------------------------------------------------------------------------------------------


def _csv_names(
    file: OpenFile, data: pa.Buffer, options: FileOptions, schema: pa.Schema, first: bool
) -> tuple[list[str], pa.Buffer]:
    """Return the names of a file's columns, and its lines without the header."""
    if not options.header:
        return schema.names, data
    if first:
        end = find_newline(data, 0)
        line, rest = (data, data.slice(0, 0)) if end < 0 else (data.slice(0, end + 1), data.slice(end + 1))
    else:
        line, rest, size = pa.py_buffer(b""), data, LOOK_AHEAD
        while (end := find_newline(line, 0)) < 0 and line.size < file.seen.size:
            line, size = file.read(0, size), size * 4
        line = line if end < 0 else line.slice(0, end + 1)
    text = line.to_pybytes().removeprefix(b"\xef\xbb\xbf")
    # Names are texts, whatever they look like: Arrow would make 7 of "007", and nothing of "NA".
    columns = text.count(options.separator.encode()) + 1
    try:
        found = pyarrow.csv.read_csv(
            pa.BufferReader(text),
            read_options=pyarrow.csv.ReadOptions(autogenerate_column_names=True, use_threads=False),
            parse_options=_csv_parse(options),
            convert_options=pyarrow.csv.ConvertOptions(
                strings_can_be_null=False, column_types={f"f{number}": pa.binary() for number in range(columns)}
            ),
        )
    except pa.ArrowException:
        return schema.names, rest
    return [column[0].as_py().decode(errors="replace") for column in found.columns], rest


def _csv_parse(
    options: FileOptions, invalid: Callable[[pyarrow.csv.InvalidRow], str] | None = None
) -> pyarrow.csv.ParseOptions:
    return pyarrow.csv.ParseOptions(
        delimiter=options.separator,
        quote_char=options.quote or False,
        double_quote=not options.escape or options.escape == options.quote,
        escape_char=options.escape if options.escape and options.escape != options.quote else False,
        newlines_in_values=options.multi_line,
        invalid_row_handler=invalid,
    )


def _csv_table(
    data: pa.Buffer,
    names: Sequence[str],
    options: FileOptions,
    types: dict[str, pa.DataType],
    invalid: Callable[[pyarrow.csv.InvalidRow], str],
) -> pa.Table:
    wanted = [name for name in types if name in names]
    return pyarrow.csv.read_csv(
        pa.BufferReader(data),
        read_options=pyarrow.csv.ReadOptions(column_names=list(names), use_threads=False, block_size=one_block(data)),
        parse_options=_csv_parse(options, invalid),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types={name: types[name] for name in wanted},
            include_columns=list(types),
            include_missing_columns=True,
            null_values=["", options.null_value],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            true_values=["true", "True", "TRUE", "1"],
            false_values=["false", "False", "FALSE", "0"],
            timestamp_parsers=None if options.timestamp_format is None else [options.timestamp_format],
        ),
    )


def _stop(row: pyarrow.csv.InvalidRow) -> str:
    return "error"


def _read_csv(
    data: pa.Buffer, names: Sequence[str], options: FileOptions, schema: pa.Schema
) -> tuple[pa.Table, list[Rejected]]:
    """Return the rows of lines of CSV, and the lines that give none.

    Without `multiLine` a record is a line: a range may begin after any. Arrow lets a quoted value go on over lines, up
    to the next quote; where it did, lines with a quote that is not closed are kept aside.
    """
    table, rejected = _read_csv_records(data, names, options, schema)
    text, quote = data.to_pybytes(), options.quote.encode()
    if options.multi_line or not quote or quote not in text:
        return table, rejected
    records, stripped = table.num_rows + len(rejected), text.rstrip(b"\r\n")
    if records == stripped.count(b"\n") + 1 and not _open_quote(stripped[stripped.rfind(b"\n") + 1 :], options):
        return table, rejected
    lines = [line for line in text.splitlines() if line]
    if records == len(lines) and not (lines and _open_quote(lines[-1], options)):
        return table, rejected
    closed = [number for number, line in enumerate(lines) if not _open_quote(line, options)]
    aside = [
        Rejected(number, lines[number].decode(errors="replace")[:LONGEST_RECORD], "has a quote that is not closed")
        for number in sorted(set(range(len(lines))) - set(closed))
    ]
    if not closed:
        return schema.empty_table(), aside
    rest = b"".join(lines[number] + b"\n" for number in closed)
    table, rejected = _read_csv_records(pa.py_buffer(rest), names, options, schema)
    aside += [replace(one, position=closed[one.position]) for one in rejected]
    return table, sorted(aside, key=lambda one: one.position)


def _open_quote(line: bytes, options: FileOptions) -> bool:
    """Say whether a quoted value goes on behind the end of a line, by the rules of Arrow's parser."""
    quote, separator = options.quote.encode(), options.separator.encode()
    escape = options.escape.encode() if options.escape != options.quote else b""
    at, size = 0, len(line)
    while at < size:
        if line[at : at + 1] == quote:
            at += 1
            while at < size:
                doubled = not escape and line[at : at + 2] == quote * 2
                if line[at : at + 1] == quote and not doubled:
                    break
                at += 2 if doubled or line[at : at + 1] == escape else 1
            if at >= size:
                return True
            at += 1
        while at < size and line[at : at + 1] != separator:
            at += 2 if line[at : at + 1] == escape else 1
        if at > size:
            return True
        at += 1
    return False


def _read_csv_records(
    data: pa.Buffer, names: Sequence[str], options: FileOptions, schema: pa.Schema
) -> tuple[pa.Table, list[Rejected]]:
    if data.slice(0, min(3, data.size)).to_pybytes() == _MARK:
        data = pa.py_buffer(_MARK + data.to_pybytes())  # Arrow leaves out one, which is none: the file goes on here
    types = {field.name: field.type for field in schema}
    zoned = {name: pa.timestamp(kind.unit, "UTC") if _is_plain_time(kind) else kind for name, kind in types.items()}
    for tried in (types, zoned) if zoned != types and options.timestamp_format is None else (types,):
        try:
            return conform(_csv_table(data, names, options, tried, _stop), schema, "the rows"), []
        except (pa.ArrowInvalid, BadInput):
            continue
    return _read_csv_slowly(data, names, options, schema)


def _is_plain_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind)) and kind.tz is None


def _read_csv_slowly(
    data: pa.Buffer, names: Sequence[str], options: FileOptions, schema: pa.Schema
) -> tuple[pa.Table, list[Rejected]]:
    """Read every column as text, then convert value by value where a column does not convert as a whole."""
    rejected: list[Rejected] = []
    wrong: list[int] = []

    def skip(row: pyarrow.csv.InvalidRow) -> str:
        number = (row.number or 1) - 1
        wrong.append(number)
        reason = f"has {row.actual_columns} columns, and {row.expected_columns} are declared"
        rejected.append(Rejected(number, row.text[:LONGEST_RECORD], reason))
        return "skip"

    try:
        texts = _csv_table(data, names, options, dict.fromkeys(schema.names, pa.binary()), skip)
    except pa.ArrowInvalid as error:
        if "Empty CSV" in str(error):
            return schema.empty_table(), rejected
        whole = data.slice(0, min(data.size, LONGEST_RECORD)).to_pybytes().decode(errors="replace")
        return schema.empty_table(), [
            *rejected,
            Rejected(0, whole, one_line(f"the range does not parse: {error}", 200)),
        ]
    numbers = np.delete(np.arange(texts.num_rows + len(wrong)), wrong) if wrong else np.arange(texts.num_rows)
    reasons: dict[int, str] = {}
    columns = []
    for field in schema:
        values, bad = _converted(texts[field.name].combine_chunks(), field.type, options)
        columns.append(values)
        for at in bad:
            shown = (texts[field.name][at].as_py() or b"").decode(errors="replace")[:100]
            reasons.setdefault(at, f"column {field.name!r}: {shown!r} is not {field.type}")
    table = pa.Table.from_arrays(columns, schema=schema)
    if reasons:
        for at, reason in sorted(reasons.items()):
            cells = [b"" if column[at].as_py() is None else column[at].as_py() for column in texts.columns]
            record = options.separator.join(cell.decode(errors="replace") for cell in cells)
            rejected.append(Rejected(int(numbers[at]), record[:LONGEST_RECORD], reason))
        keep = np.ones(table.num_rows, bool)
        keep[list(reasons)] = False
        table = table.filter(pa.array(keep)).combine_chunks()
    return table, sorted(rejected, key=lambda one: one.position)


def _converted(values: pa.Array, kind: pa.DataType, options: FileOptions) -> tuple[pa.Array, list[int]]:
    """Convert texts to a type; return where that cannot be done, with nulls there."""
    parts: list[pa.Array] = []
    bad: list[int] = []

    def convert(first: int, count: int) -> None:
        part = values.slice(first, count)
        try:
            parts.append(_cast(part, kind, options))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, BadInput):
            if count == 1:
                bad.append(first)
                parts.append(pa.nulls(1, kind))
            else:
                convert(first, count // 2)
                convert(first + count // 2, count - count // 2)

    if len(values):
        convert(0, len(values))
    return (pa.concat_arrays(parts) if parts else pa.nulls(0, kind)), bad


def _cast(values: pa.Array, kind: pa.DataType, options: FileOptions) -> pa.Array:
    if pa.types.is_binary(kind):
        return values
    if pa.types.is_dictionary(kind):
        return _cast(values, kind.value_type, options).cast(kind)
    texts = values.cast(pa.string())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return texts.cast(kind)
    # A quoted text that stands for null is none, as in Spark: an empty text is no number.
    none = pc.is_in(texts, value_set=pa.array(["", options.null_value]))
    texts = pc.if_else(none, pa.scalar(None, pa.string()), texts)
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), kind)
    if pa.types.is_primitive(kind) or pa.types.is_decimal(kind):
        texts = pc.ascii_trim(texts, characters=" \t")  # as Arrow's reader of CSV does, which reads most ranges
    if pa.types.is_timestamp(kind):
        if options.timestamp_format is not None:
            return pc.strptime(texts, format=options.timestamp_format, unit=kind.unit)
        return times_of(texts, kind)
    if pa.types.is_time(kind):
        return pc.binary_join_element_wise("1970-01-01T", texts, "").cast(pa.timestamp(kind.unit)).cast(kind)
    return texts.cast(kind)
