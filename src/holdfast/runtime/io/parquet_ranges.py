"""Row groups of Parquet files: those that begin in a range, and of them the columns that are wanted. Runs on a node."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.erasure.checksums import crc32
from holdfast.errors import BadInput, one_line
from holdfast.runtime.io.file_ranges import FileRange
from holdfast.runtime.io.range_rows import RangeRows, Unreadable
from holdfast.runtime.schemas import conform
from holdfast.storage.source_files import OpenFile


class _Chunks(io.RawIOBase):
    """A Parquet file as Arrow reads it, from the parts that were read: each byte is read, and summed up, once."""

    def __init__(self, file: OpenFile, size: int) -> None:
        super().__init__()
        self._file, self._size, self._at = file, size, 0
        self._held: dict[int, pa.Buffer] = {}
        self.problem: OSError | None = None
        """Why the file could not be read; Arrow has errors of this kind for contents too."""

    def hold(self, start: int, count: int) -> pa.Buffer:
        held = self._held[start] = self._get(start, count)
        return held

    def _get(self, start: int, count: int) -> pa.Buffer:
        try:
            return self._file.read(start, count)
        except OSError as error:
            self.problem = error
            raise

    def read(self, count: int = -1) -> pa.Buffer:
        at, end = self._at, self._size if count < 0 else min(self._size, self._at + count)
        self._at = end
        for start, held in self._held.items():
            if start <= at and end <= start + held.size:
                return held.slice(at - start, end - at)
        return self._get(at, end - at)

    def seek(self, at: int, whence: int = 0) -> int:
        self._at = at + (0, self._at, self._size)[whence]
        return self._at

    def size(self) -> int:
        return self._size

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True


def read_parquet(file: OpenFile, one: FileRange, schema: pa.Schema) -> RangeRows:
    """Read the row groups that begin in a range, and of them the columns that are wanted."""
    chunks, check = _Chunks(file, one.file.size), 0
    try:
        end = chunks.hold(max(0, one.file.size - 8), min(8, one.file.size)).to_pybytes()
        length = int.from_bytes(end[:4], "little") + 8
        if len(end) < 8 or end[4:] != b"PAR1" or length > one.file.size:
            raise Unreadable("is not a Parquet file, or not a whole one", crc32(end))
        check = crc32(memoryview(chunks.hold(one.file.size - length, length)))
        # Spark writes times as INT96, which Arrow takes for nanoseconds: those end in 2262, and wrap around behind it.
        fine = any(pa.types.is_timestamp(field.type) and field.type.unit == "ns" for field in schema)
        opened = pq.ParquetFile(
            pa.PythonFile(chunks, mode="r"),
            pre_buffer=False,
            memory_map=False,
            coerce_int96_timestamp_unit="ns" if fine else "us",
        )
        groups, names = [], [name for name in schema.names if name in opened.schema_arrow.names]
        for number in range(opened.metadata.num_row_groups):
            group = opened.metadata.row_group(number)
            columns = [group.column(at) for at in range(group.num_columns)]
            begins = [_chunk_start(column) for column in columns]
            if not begins or not one.start <= min(begins) < one.end:
                continue
            groups.append(number)
            for column, begin in zip(columns, begins, strict=True):
                if column.path_in_schema.split(".")[0] in names:
                    check = crc32(memoryview(chunks.hold(begin, column.total_compressed_size)), check)
        table = opened.read_row_groups(groups, columns=names, use_threads=False)
        for field in schema:
            if field.name in names:
                _need_same_kind(opened, table.schema.field(field.name).type, field)
            else:  # a file from before the column was added
                table = table.append_column(field, pa.nulls(table.num_rows, field.type))
        return RangeRows(conform(table, schema, "the rows").combine_chunks(), (), check)
    except (pa.ArrowException, OSError, BadInput, ValueError) as error:
        if chunks.problem is not None:
            raise chunks.problem from None
        raise Unreadable(one_line(str(error), 200), check) from None


def _chunk_start(column: Any) -> int:
    found = column.dictionary_page_offset
    return int(column.data_page_offset if found is None else min(found, column.data_page_offset))


def _need_same_kind(opened: pq.ParquetFile, found: pa.DataType, field: pa.Field) -> None:
    """Refuse a column that is declared as another kind of value, of which Arrow would make what it can."""
    old_time = pa.types.is_timestamp(found) and any(
        opened.schema.column(at).path == field.name and opened.schema.column(at).physical_type == "INT96"
        for at in range(len(opened.schema))
    )
    if not _is_read_as(found, field.type) or (old_time and pa.types.is_integer(field.type)):
        raise BadInput(
            f"column {field.name!r} of the rows is {found}, declared as {field.type}: it is not read as such",
            remedy="declare the type it has",
        )


def _is_read_as(found: pa.DataType, kind: pa.DataType) -> bool:
    """Say whether a column may be declared as another type; values that do not fit that one are refused later.

    As in Spark: a whole number is not a time, and a text not a number. Integers may be wider, or narrower where the
    values fit; times and dates may be read as the integers that the file has, but with Spark's old INT96.
    """
    is_ = pa.types
    if is_.is_dictionary(found):
        return _is_read_as(found.value_type, kind)
    if found == kind or is_.is_null(found):
        return True
    if kind.num_fields or found.num_fields:
        if found.num_fields != kind.num_fields and not is_.is_struct(kind):
            return False
        if is_.is_struct(kind):
            if not is_.is_struct(found):
                return False
            inner = {found.field(at).name: found.field(at).type for at in range(found.num_fields)}
            pairs = [(inner[one.name], one.type) for one in kind if one.name in inner]
        else:
            pairs = [(found.field(at).type, kind.field(at).type) for at in range(kind.num_fields)]
        return all(_is_read_as(*pair) for pair in pairs)
    if is_.is_integer(kind):
        return bool(is_.is_integer(found) or (is_.is_temporal(found) and not is_.is_interval(found)))
    if is_.is_floating(kind):
        return bool(is_.is_integer(found) or (is_.is_floating(found) and found.bit_width <= kind.bit_width))
    for same in (is_.is_timestamp, is_.is_date, is_.is_decimal, is_.is_time, is_.is_duration):
        if same(kind):
            return bool(same(found))
    return _is_bytes(kind) and _is_bytes(found)


def _is_bytes(kind: pa.DataType) -> bool:
    is_ = pa.types
    found = (is_.is_string, is_.is_large_string, is_.is_binary, is_.is_large_binary, is_.is_fixed_size_binary)
    return any(one(kind) for one in found)
