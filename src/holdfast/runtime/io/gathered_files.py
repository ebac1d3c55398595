"""Files of gathered outputs: written from staged ones in bounded memory, one for each value of columns. Runs anywhere.

Staged outputs are read one after the other, and a file is written row group by row group to the local disk before it is
created under its name. A file's metadata says how many rows it has of which batch, so that outputs can be told apart
again; and, where it is in a folder `COLUMN=VALUE` (`gathered_folders`), the values, with their types.
"""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.errors import CheckFailed
from holdfast.ids import BatchId
from holdfast.runtime.io.gathered_folders import NULL, check_columns, folders_of
from holdfast.runtime.io.parquet_names import Group
from holdfast.storage.storage import Storage

METADATA = b"holdfast.gathered"
"""The key of a file's metadata under which it says what it is of."""
VERSION = 1
ROW_GROUP_BYTES = 32 << 20
"""Bytes of rows that are held before they are written, of all files that are written at the same time."""
OPEN_FILES = 32
"""Files that are written at the same time; for more values of columns the staged outputs are read again."""


class PieceGone(Exception):
    """A staged output is not there: its group is done, or it is lost."""


@dataclass(frozen=True, slots=True)
class Content:
    """What a file says of itself."""

    rows: dict[BatchId, int]
    """How many rows it has of each batch, in the order in which it has them."""
    columns: tuple[str, ...]
    """All columns in their order, those among them that its folder names."""
    values: pa.Table | None = None
    """One row: the values of the columns that its folder names."""

    def encode(self) -> bytes:
        """Return it as the metadata has it."""
        about: dict[str, object] = {
            "version": VERSION,
            "batches": ranges_of(self.rows),
            "rows": list(self.rows.values()),
            "columns": list(self.columns),
        }
        if self.values is not None:
            about["values"] = _encoded(self.values)
        return json.dumps(about).encode()

    @classmethod
    def decode(cls, metadata: Mapping[bytes, bytes] | None, where: str) -> Content:
        """Read it; what no version of ours wrote is refused."""
        about = json.loads((metadata or {}).get(METADATA, b"{}"))
        if about.get("version") != VERSION:
            raise CheckFailed(
                "is a file of gathered outputs, and this version of Holdfast cannot read what it says of its batches",
                where=where,
                remedy="read it with the version that wrote it, or with any reader of Parquet",
            )
        values = None
        if "values" in about:
            values = pa.ipc.open_stream(base64.b64decode(about["values"])).read_all()
        rows = dict(zip(batches_of(about["batches"]), about["rows"], strict=True))
        return cls(rows, tuple(about["columns"]), values)


def _encoded(rows: pa.Table) -> str:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return base64.b64encode(sink.getvalue().to_pybytes()).decode()


def encoded_schema(schema: pa.Schema) -> str:
    """Return a schema as text."""
    return _encoded(schema.remove_metadata().empty_table())


def decoded_schema(text: str) -> pa.Schema:
    """Return the schema that a text says."""
    return pa.ipc.open_stream(base64.b64decode(text)).schema


def ranges_of(batches: Iterable[BatchId]) -> list[list[int]]:
    """Return batches, which rise, as ranges of first and last.

    >>> ranges_of([1, 2, 3, 7, 9, 10])
    [[1, 3], [7, 7], [9, 10]]
    """
    found: list[list[int]] = []
    for batch in batches:
        if found and batch == found[-1][1] + 1:
            found[-1][1] = int(batch)
        else:
            found.append([int(batch), int(batch)])
    return found


def batches_of(ranges: Iterable[Sequence[int]]) -> list[BatchId]:
    """Return the batches of ranges."""
    return [BatchId(batch) for first, last in ranges for batch in range(first, last + 1)]


# -- writing --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _File:
    """A file that is being written."""

    path: Path
    writer: pq.ParquetWriter
    values: pa.Table | None
    waiting: list[pa.Table] = field(default_factory=list)
    rows: dict[BatchId, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Written:
    """What came of writing the files of a group."""

    names: tuple[str, ...]
    schema: pa.Schema
    """Of the last rows, those columns among it that folders name."""


def read_piece(storage: Storage, name: str) -> pa.Table:
    """Return the rows of a staged output."""
    if (data := storage.read(name)) is None:
        raise PieceGone(name)
    return pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file that is written, and not created yet."""

    place: str
    """The folder that its columns' values name; empty: none does."""
    name: str
    data: pa.Buffer
    rows: int
    values: pa.Table | None
    """One row: the values of those columns."""
    schema: pa.Schema
    """Of the rows, those columns among it."""


def write_group(
    storage: Storage,
    group: Group,
    pieces: Mapping[BatchId, str],
    partition_by: Sequence[str],
    create: Callable[[NewFile], str] | None = None,
) -> Written:
    """Create the files of a group out of its staged outputs, where they are not there; PieceGone: one of these is not.

    A file has rows of one schema. Where staged outputs have another one than those before them, the files end, and the
    next ones begin: each is named by the batches, first and last, that it could have rows of. So all drivers cut alike.

    A file is created only when all its rows have been read, and what follows them: so where an output has been deleted
    meanwhile, which is done once all files are there, this finds their names taken. `create` creates a file, and
    returns its name: without it, the file is in the folder that its values name.
    """
    if create is None:
        create = partial(_create, storage)
    names: list[str] = []
    left = dict(pieces)
    while True:
        part = _write(storage, group, left, partition_by, create)
        names += part.names
        others = list(part.others)
        for start in range(0, len(others), OPEN_FILES):
            places = others[start : start + OPEN_FILES]
            names += _write(storage, group, part.pieces, partition_by, create, places).names
        left = {batch: name for batch, name in left.items() if batch not in part.pieces}
        if not left:
            return Written(tuple(names), part.schema)


@dataclass(slots=True)
class _Part:
    """Staged outputs of a group that follow each other and have one schema, and the files that were created of them."""

    schema: pa.Schema
    pieces: dict[BatchId, str] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    others: dict[str, None] = field(default_factory=dict)
    """Folders whose files were not written."""


def _write(
    storage: Storage,
    group: Group,
    pieces: Mapping[BatchId, str],
    partition_by: Sequence[str],
    create: Callable[[NewFile], str],
    places: Collection[str] | None = None,
) -> _Part:
    """Create the files of the first outputs that have one schema, in some folders; None: those that come first."""
    part: _Part | None = None
    files: dict[str, _File] = {}
    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder, ExitStack() as opened:
        held = 0
        for batch, name in pieces.items():
            rows = read_piece(storage, name)
            if part is None:
                part = _Part(rows.schema.remove_metadata())
                columns = [name for name in part.schema.names if name not in partition_by]
            if not _fits(rows.schema, part.schema):
                break
            check_columns(rows.schema, partition_by, storage.url)
            part.pieces[batch] = name
            for place, take in _by_folder(rows.cast(part.schema), partition_by):
                if place not in files:
                    if place not in places if places is not None else len(files) == OPEN_FILES:
                        part.others[place] = None
                        continue
                    path = Path(folder, f"{len(files)}.parquet")
                    some = take()
                    writer = opened.enter_context(pq.ParquetWriter(path, some.select(columns).schema))
                    files[place] = _File(path, writer, _values(some, place, partition_by))
                else:
                    some = take()
                file = files[place]
                file.waiting.append(some.select(columns))
                file.rows[batch] = some.num_rows
                held += some.nbytes
            if held >= ROW_GROUP_BYTES:
                _flush(files.values())
                held = 0
        assert part is not None
        _flush(files.values())
        about = tuple(part.schema.names)
        for file in files.values():
            file.writer.add_key_value_metadata({METADATA: Content(file.rows, about, file.values).encode()})
        opened.close()
        own = replace(group, first=min(part.pieces), through=max(part.pieces)).file
        for place, file in files.items():
            with pa.memory_map(str(file.path)) as data:
                new = NewFile(place, own, data.read_buffer(), sum(file.rows.values()), file.values, part.schema)
                part.names.append(create(new))
    return part


def _create(storage: Storage, new: NewFile) -> str:
    name = f"{new.place}/{new.name}" if new.place else new.name
    storage.create(name, new.data)
    return name


def _fits(schema: pa.Schema, into: pa.Schema) -> bool:
    """Whether rows can be in a file of a schema as they are: where a column has no type, it has no value either."""
    if schema.names != into.names:
        return False
    return all(
        one == other or (one.type == pa.null() and other.nullable) for one, other in zip(schema, into, strict=True)
    )


def _flush(files: Iterable[_File]) -> None:
    for file in files:
        if file.waiting:
            whole = pa.concat_tables(file.waiting)
            file.writer.write_table(whole, row_group_size=max(1, whole.num_rows))
            file.waiting.clear()


def _by_folder(rows: pa.Table, partition_by: Sequence[str]) -> Iterator[tuple[str, Callable[[], pa.Table]]]:
    """Yield each folder, and what returns its rows."""
    if not partition_by:
        yield "", lambda: rows
        return
    folders, numbers = folders_of(rows, partition_by)
    order = pc.sort_indices(numbers)  # it keeps the order of rows in a folder
    ends = pc.run_end_encode(numbers.take(order))
    at = 0
    for number, end in zip(ends.values.to_pylist(), ends.run_ends.to_pylist(), strict=True):
        yield folders[number], partial(rows.take, order.slice(at, end - at))
        at = end


def _values(rows: pa.Table, place: str, partition_by: Sequence[str]) -> pa.Table | None:
    """Return the values that a folder names; an empty text is null there."""
    if not partition_by:
        return None
    found = rows.select(list(partition_by)).slice(0, 1)
    for name, part in zip(partition_by, place.split("/"), strict=True):
        if part.endswith(f"={NULL}"):
            at = found.schema.get_field_index(name)
            found = found.set_column(at, name, pa.nulls(1, found.schema.field(name).type))
    return found.combine_chunks().replace_schema_metadata(None)


# -- reading --------------------------------------------------------------------------------------------------------


def content_of(data: pa.Buffer, name: str) -> Content:
    """Return what a file says of itself."""
    return Content.decode(pq.read_metadata(pa.BufferReader(data)).metadata, name)


def rows_by_batch(data: pa.Buffer, name: str) -> Iterator[tuple[BatchId, pa.Table]]:
    """Yield the rows of a file, batch by batch, with the columns that its folder names."""
    content = content_of(data, name)
    rows = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
    if content.values is not None:
        for column in content.values.column_names:
            value = content.values[column].combine_chunks()
            rows = rows.append_column(content.values.schema.field(column), value.take(pa.repeat(0, rows.num_rows)))
        rows = rows.select(list(content.columns))
    at = 0
    for batch, many in content.rows.items():
        yield batch, rows.slice(at, many).replace_schema_metadata(None)
        at += many
