"""Records of a Kafka topic as columns: their checksum, the rows that they give, and a copy of them. Runs on a node.

The rows of records are a function of their bytes and of how they are read, so the same records give the same rows. A
record that does not parse is kept aside with its offset and the reason: one bad record does not stop a stream.
"""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.application.kafka_topics import record_columns
from holdfast.errors import BadInput, missing_extra, one_line
from holdfast.runtime.io.file_ranges import HowRead
from holdfast.runtime.io.json_rows import json_row, json_table
from holdfast.runtime.io.range_rows import LONGEST_RECORD, RangeRows, Rejected

FEW = 32
"""So many values are parsed one by one where one of them does not parse."""
_FRAME = 5
"""Bytes that a schema registry's clients put before an Avro value."""
NO_TIME = -1
_GONE_TO = b"gone-to"

_Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """Records of one topic partition, in the order of their offsets."""

    offsets: _Numbers
    times: _Numbers
    """Milliseconds since 1970; -1: it has none."""
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[str | None]
    """As JSON; None: it has none, or nobody asked for them."""
    gone_to: int | None = None
    """Where a range that they are of begins now: what is before went by the topic's retention. None: nothing did."""

    @property
    def bytes(self) -> int:
        """How many bytes keys and values have."""
        return sum(len(one) for one in (*self.keys, *self.values) if one is not None)

    def check(self) -> int:
        """Return the CRC-32 of everything in the records; without records 0."""
        if not len(self.offsets):
            return 0
        found = zlib.crc32(self.times.tobytes(), zlib.crc32(self.offsets.tobytes()))
        headers = [None if one is None else one.encode() for one in self.headers]
        for part in (self.keys, self.values, headers):
            sizes = np.fromiter((-1 if one is None else len(one) for one in part), np.int64, len(part))
            found = zlib.crc32(b"".join(one for one in part if one), zlib.crc32(sizes.tobytes(), found))
        return found

    def encode(self) -> pa.Buffer:
        """Return them as bytes, for a copy in the run's log."""
        table = pa.table(
            {
                "offset": self.offsets,
                "time": self.times,
                "key": pa.array(self.keys, pa.large_binary()),
                "value": pa.array(self.values, pa.large_binary()),
                "headers": pa.array(self.headers, pa.large_string()),
            }
        )
        if self.gone_to is not None:
            table = table.replace_schema_metadata({_GONE_TO: str(self.gone_to)})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return sink.getvalue()


def decode_records(data: pa.Buffer) -> Records:
    """Read a copy of records."""
    table = pa.ipc.open_stream(data).read_all().combine_chunks()
    offsets, times = (table[name].to_numpy().astype(np.int64) for name in ("offset", "time"))
    gone_to = (table.schema.metadata or {}).get(_GONE_TO)
    keys, values, headers = (table[name].to_pylist() for name in ("key", "value", "headers"))
    return Records(offsets, times, keys, values, headers, None if gone_to is None else int(gone_to))


def header_text(headers: Sequence[tuple[str, bytes | None]] | None) -> str | None:
    """Return the headers of a record as JSON: a list of names and texts; what is not UTF-8 in hexadecimal."""
    if not headers:
        return None
    return json.dumps([[name, _text(value)] for name, value in headers], ensure_ascii=False)


def _text(value: bytes | str | None) -> str | None:
    if value is None or isinstance(value, str):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.hex()


# -- rows --------------------------------------------------------------------------------------------------------------


def record_rows(records: Records, how: HowRead, schema: pa.Schema, topic_partition: int = 0) -> RangeRows:
    """Return the rows that records of a topic partition give, with these columns, and the records that give none."""
    parts = record_columns(how.format, how.options, schema.names)
    inside = pa.schema([one for one in schema if one.name not in parts.values()])
    problems: dict[int, str] = {}
    if how.format == "json":
        table, good = _parsed(records.values, inside, problems, _json_quick, _json_one)
    elif how.format == "avro":
        read = _AvroValues(dict(how.options))
        table, good = _parsed(records.values, inside, problems, read.quick, read.one)
    else:
        table, good = None, np.arange(len(records.values))
    columns: dict[str, pa.Array] = {}
    for part, name in parts.items():
        kind = schema.field(name).type
        if part == "partition":
            columns[name] = pa.array(np.full(len(records.values), topic_partition), kind)
        else:
            columns[name] = _part(records, part, kind, problems)
    keep = np.array([at for at in good if at not in problems], np.int64) if problems else good
    whole = len(keep) == len(records.values)
    found = []
    for one in schema:
        if one.name in columns:
            found.append(columns[one.name] if whole else columns[one.name].take(pa.array(keep)))
        else:
            assert table is not None
            found.append(table[one.name].combine_chunks())
    if table is not None and not whole and len(keep) != len(good):
        # A record whose value parses and whose key does not: its row goes, too.
        rows = {int(at): row for row, at in enumerate(good)}
        chosen = pa.array([rows[int(at)] for at in keep], pa.int64())
        found = [
            column if one.name in columns else column.take(chosen) for one, column in zip(schema, found, strict=True)
        ]
    rejected = [
        Rejected(int(records.offsets[at]), _shown(records.values[at]), one_line(reason, 200))
        for at, reason in sorted(problems.items())
    ]
    return RangeRows(pa.Table.from_arrays(found, schema=schema), tuple(rejected), records.check())


def _shown(value: bytes | None) -> str:
    return "" if value is None else value[: 4 * LONGEST_RECORD].decode(errors="replace")[:LONGEST_RECORD]


_Quick = Callable[[Sequence[bytes | None], pa.Schema], pa.Table | None]
_One = Callable[[bytes | None, pa.Schema], list[Any]]


def _parsed(
    values: Sequence[bytes | None], schema: pa.Schema, problems: dict[int, str], quick: _Quick, one: _One
) -> tuple[pa.Table, _Numbers]:
    """Parse values; return their rows and which values those are. Halves are tried until what fails is small."""
    tables: list[pa.Table] = []
    good: list[_Numbers] = []

    def parse(first: int, count: int) -> None:
        table = quick(values[first : first + count], schema)
        if table is not None:
            tables.append(table)
            good.append(np.arange(first, first + count))
        elif count > FEW:
            parse(first, count // 2)
            parse(first + count // 2, count - count // 2)
        else:
            kept, rows = [], []
            for at in range(first, first + count):
                try:
                    rows.append(one(values[at], schema))
                    kept.append(at)
                except (
                    ValueError,
                    TypeError,
                    OverflowError,
                    RecursionError,
                    pa.ArrowException,
                    BadInput,
                ) as error:
                    problems[at] = str(error) or type(error).__name__
            columns = [pa.array([row[at] for row in rows], each.type) for at, each in enumerate(schema)]
            if len(schema):
                tables.append(pa.Table.from_arrays(columns, schema=schema))
            good.append(np.array(kept, np.int64))

    if values:
        parse(0, len(values))
    found = np.concatenate(good) if good else np.arange(0)
    filled = [one for one in tables if one.num_columns]
    return (pa.concat_tables(filled).combine_chunks() if filled else schema.empty_table()), found


def _json_quick(values: Sequence[bytes | None], schema: pa.Schema) -> pa.Table | None:
    """Parse values as lines; None: some do not parse, or one is not one object."""
    if not len(schema):
        return None
    data = b"\n".join([b"{}" if one is None else one for one in values])
    if data.count(b"\n") != len(values) - 1 or b"\r" in data:
        # Between the parts of a value a line break is a blank; within a text it would not be JSON.
        data = b"\n".join([b"{}" if one is None else one.translate(_BLANKS) for one in values])
    table = json_table(pa.py_buffer(data), schema)
    return table if table is not None and table.num_rows == len(values) else None


_BLANKS = bytes.maketrans(b"\r\n", b"  ")


def _json_one(value: bytes | None, schema: pa.Schema) -> list[Any]:
    return [None] * len(schema) if value is None else json_row(value, schema)


class _AvroValues:
    """Values that were written with one Avro schema."""

    def __init__(self, options: dict[str, str]) -> None:
        self._schema, self._read = _avro(options["avro_schema"])
        self._framed = options.get("avro_framing") == "confluent"

    def quick(self, values: Sequence[bytes | None], schema: pa.Schema) -> pa.Table | None:
        try:
            rows = [self._record(value) for value in values]
            columns = [_typed([row.get(one.name) for row in rows], one.type) for one in schema]
        except (ValueError, TypeError, OverflowError, pa.ArrowException, EOFError, IndexError, KeyError):
            return None
        return pa.Table.from_arrays(columns, schema=schema) if len(schema) else None

    def one(self, value: bytes | None, schema: pa.Schema) -> list[Any]:
        try:
            row = self._record(value)
        except (EOFError, IndexError, KeyError) as error:
            raise ValueError(f"does not follow the Avro schema ({type(error).__name__})") from None
        found = []
        for one in schema:
            try:
                found.append(_typed([row.get(one.name)], one.type)[0].as_py())
            except (ValueError, TypeError, OverflowError, pa.ArrowException):
                shown = one_line(repr(row.get(one.name)), 100)
                raise ValueError(f"column {one.name!r}: {shown} is not {one.type}") from None
        return found

    def _record(self, value: bytes | None) -> dict[str, Any]:
        if value is None:
            return {}
        if self._framed and (len(value) < _FRAME or value[0]):
            raise ValueError("has no bytes of a schema registry before it")
        data = io.BytesIO(value)
        data.seek(_FRAME if self._framed else 0)
        found = self._read(data, self._schema, None)
        if data.tell() != len(value):
            raise ValueError(f"has {len(value) - data.tell()} bytes after its end")
        if not isinstance(found, dict):
            raise ValueError("is not an Avro record")
        return found


def _typed(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Return values as a column; `TypeError`: they are of another kind, of which pyarrow makes what it can.

    It makes whole numbers of fractions, times and dates of numbers, and dates of times.
    """
    found = pa.infer_type(values)
    if pa.types.is_integer(kind):
        same = pa.types.is_integer(found)
    elif pa.types.is_floating(kind):
        same = pa.types.is_integer(found) or pa.types.is_floating(found)
    else:
        kinds = (pa.types.is_timestamp, pa.types.is_date, pa.types.is_time, pa.types.is_duration)
        same = all(one(found) for one in kinds if one(kind))
    if not same and not pa.types.is_null(found):
        raise TypeError(f"{found} is not {kind}")
    return pa.array(values, kind)


@lru_cache(maxsize=16)
def _avro(schema: str) -> tuple[Any, Callable[..., Any]]:
    try:
        import fastavro
        import fastavro.schema
    except ModuleNotFoundError as error:
        raise missing_extra(error) or error from None
    try:
        return fastavro.parse_schema(json.loads(schema)), fastavro.schemaless_reader
    except (fastavro.schema.SchemaParseException, fastavro.schema.UnknownType, KeyError) as error:
        raise BadInput(
            f"is not an Avro schema: {one_line(str(error), 200)}", field="kafka.avro_schema", remedy="mend the schema"
        ) from None


def check_avro(options: Sequence[tuple[str, str]]) -> None:
    """Refuse an Avro schema that is none, and a machine without the library."""
    if (schema := dict(options).get("avro_schema")) is not None:
        _avro(schema)


def _part(records: Records, part: str, kind: pa.DataType, problems: dict[int, str]) -> pa.Array:
    """Return one part of all records as a column; where it does not fit the column, null, and a problem."""
    if part == "timestamp":
        held = np.where(records.times == NO_TIME, 0, records.times)
        times = pa.array(held, pa.int64(), mask=records.times == NO_TIME)
        return times.cast(pa.timestamp("ms")).cast(kind)
    if part == "offset":
        return pa.array(records.offsets, kind)
    if part == "headers":
        return pa.array(records.headers, kind)
    values = records.keys if part == "key" else records.values
    if pa.types.is_binary(kind):
        return pa.array(values, kind)
    try:
        return pa.array(values, pa.binary()).cast(kind)
    except pa.ArrowInvalid:
        texts: list[str | None] = []
        for at, one in enumerate(values):
            try:
                texts.append(None if one is None else one.decode())
            except UnicodeDecodeError:
                problems.setdefault(at, f"its {part} is not UTF-8")
                texts.append(None)
        return pa.array(texts, kind)
