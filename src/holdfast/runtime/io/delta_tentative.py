"""Tentative rows in a Delta table: what final rows replace, in whatever files they are. Runs on the driver.

Tentative rows are added in files of their own, and go with these. But a table may be rewritten by others: `OPTIMIZE`
moves rows of many files into one. So in a table that takes tentative rows each row says which query and batch it is
from (`ORIGIN_COLUMNS`), and files that others have written are looked through: where one has tentative rows, it is
rewritten, in the commit that adds the final ones. All its tentative rows leave it: those that still count get a small
file, so that the next batches do not rewrite the large one again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq

from holdfast.errors import CheckFailed
from holdfast.runtime.io.delta_files import DeltaFile, are_there, is_ours, is_replaced, partition_text
from holdfast.runtime.io.delta_types import delta_rows
from holdfast.runtime.io.sinks import ORIGIN_COLUMNS, VERSION_COLUMNS, OutputKey
from holdfast.storage.storage import Storage

if TYPE_CHECKING:
    from deltalake import DeltaTable

_LOOKED_AT = (VERSION_COLUMNS[0], *ORIGIN_COLUMNS)


class FileWent(Exception):
    """A file that the table names is not there: it was rewritten and vacuumed since the look at the table."""


def query_name(key: OutputKey) -> str:
    """Return what `holdfast_query` has of an output."""
    return f"{key.run}/{key.query}"


def with_origin(rows: pa.Table, key: OutputKey) -> pa.Table:
    """Return rows with the columns that say where they are from."""
    given = (pa.scalar(query_name(key), pa.string()), pa.scalar(int(key.batch), pa.int64()))
    for name, value in zip(ORIGIN_COLUMNS, given, strict=True):
        rows = rows.append_column(name, pa.repeat(value, rows.num_rows))
    return rows


@dataclass(frozen=True, slots=True)
class Replaced:
    """What a commit takes from the table, and what it gives instead."""

    removed: Mapping[str, int] = field(default_factory=dict)
    """Files by their paths, with their sizes: as they are in the folder, which the log has encoded."""
    added: Sequence[DeltaFile] = ()
    """With the rows of removed files that stay."""


@dataclass(frozen=True, slots=True)
class _Other:
    """A file that others have written."""

    path: str
    size: int
    values: Mapping[str, Any]
    """Of the columns that the table is partitioned by."""


class TentativeRows:
    """Finds the tentative rows of one table, for one driver."""

    def __init__(
        self,
        place: str,
        storage: Storage,
        files: pa_fs.FileSystem,
        unique: Callable[[], str] = lambda: uuid4().hex,
    ) -> None:
        """`files`: the table's folder, by the paths in its log. `unique` gives parts of names of files."""
        self._place, self._storage, self._files, self._unique = place, storage, files, unique
        self._first: dict[str, Mapping[str, int]] = {}
        """Of files that others have written: the first batch of tentative rows, by query. A file never changes."""
        self._rewritten: dict[tuple[str, tuple[tuple[str, int], ...]], list[DeltaFile]] = {}
        """What was written for a commit that has not come about yet, as far as this driver knows."""
        self._final: set[str] = set()
        """Which of these files have final rows only."""

    def replaced(self, table: DeltaTable, keys: Sequence[OutputKey], start: str) -> Replaced:
        """Return what final outputs replace: of each query, tentative rows up to the batch, and lower revisions.

        `FileWent`: look at the table again.
        """
        removed: dict[str, int] = {}
        added: list[DeltaFile] = []
        through: dict[str, int] = {}
        for key in keys:
            through[query_name(key)] = max(key.batch, through.get(query_name(key), -1))
        others = []
        columns = table.metadata().partition_columns
        for one in pa.table(table.get_add_actions()).to_pylist():
            path, size = unquote(one["path"]), one["size_bytes"]
            if is_ours(path):
                if any(is_replaced(path, key) for key in keys):
                    removed[path] = size
            elif (one.get("max") or {}).get(_LOOKED_AT[0]) is not False:
                values = one.get("partition") or {}
                others.append(_Other(path, size, {name: values.get(name) for name in columns}))
        for path in self._first.keys() - {one.path for one in others}:
            del self._first[path]
        for other in others:
            if other.path not in self._first:
                self._first[other.path] = self._look_into(other)
            first = self._first[other.path]
            wanted = {query: last for query, last in through.items() if first.get(query, last + 1) <= last}
            if wanted:
                removed[other.path] = other.size
                added += self._without(table, other, wanted, start)
        return Replaced(removed, added)

    def committed(self) -> None:
        """Forget what was written for the commit: it has come about."""
        self._first |= {name: {} for name in self._final}
        self._rewritten.clear()
        self._final.clear()

    def _look_into(self, other: _Other) -> dict[str, int]:
        """Return the first batch of the tentative rows in a file, by query."""
        found: dict[str, int] = {}
        for rows in self._groups(other, _LOOKED_AT):
            tentative, *origin = _looked_at(rows, other)
            for query, batch in zip(*(one.filter(tentative).to_pylist() for one in origin), strict=True):
                if query is None or batch is None:
                    raise CheckFailed(
                        f"{other.path} has tentative rows that do not say which query and batch they are from",
                        where=self._place,
                        remedy="they are from an earlier version, or another writer: delete them, "
                        f"`DeltaTable({self._place!r}).delete('tentative and {ORIGIN_COLUMNS[0]} is null')`, then run "
                        "`holdfast resume`",
                    )
                found[query] = min(batch, found.get(query, batch))
        return found

    def _without(self, table: DeltaTable, other: _Other, wanted: Mapping[str, int], start: str) -> list[DeltaFile]:
        """Write the rows of a file that stay: final ones, and tentative ones that still count."""
        about = other.path, tuple(sorted(wanted.items()))
        if (before := self._rewritten.get(about)) is not None and are_there(self._storage, before):
            return before
        if "deletionVectors" in (table.protocol().reader_features or ()):
            raise CheckFailed(
                f"{other.path} has tentative rows that final ones replace, and may have rows that are only marked as "
                "deleted: it cannot be rewritten",
                where=self._place,
                remedy="switch deletion vectors off for this table, and remove those that it has (REORG TABLE … APPLY "
                "(PURGE)), then run `holdfast resume`",
            )
        final, rest = _Part(), _Part()
        for rows in self._groups(other, None):
            tentative, queries, batches = _looked_at(rows, other)
            gone = pa.repeat(pa.scalar(False), rows.num_rows)
            for query, last in wanted.items():
                gone = pc.or_(gone, pc.and_(pc.equal(queries, query), pc.less_equal(batches, last)))
            final.add(rows.filter(pc.invert(tentative)))
            rest.add(rows.filter(pc.and_(tentative, pc.invert(gone))))
        values = {name: partition_text(value) for name, value in other.values.items()}
        found = []
        for part in (final, rest):
            if (data := part.end()) is not None:
                name = f"hf-{start}-{self._unique()}.parquet"
                self._storage.create(name, data)
                found.append(DeltaFile(name, data.size, part.rows, values))
                if part is final:
                    self._final.add(name)
        self._rewritten[about] = found
        return found

    def _groups(self, other: _Other, columns: Sequence[str] | None) -> Iterator[pa.Table]:
        """Read a file, one row group after the other."""
        try:
            with self._files.open_input_file(other.path) as opened, pq.ParquetFile(opened) as file:
                there = file.schema_arrow.names
                chosen = there if columns is None else [name for name in columns if name in there]
                for number in range(file.num_row_groups):
                    yield delta_rows(file.read_row_group(number, columns=chosen))  # delta-rs writes views of texts
        except FileNotFoundError:
            raise FileWent(f"{other.path} is not there") from None


class _Part:
    """Rows that are written to one file; nothing where there are none."""

    def __init__(self) -> None:
        self.rows, self._stream = 0, pa.BufferOutputStream()
        self._writer: pq.ParquetWriter | None = None

    def add(self, rows: pa.Table) -> None:
        if rows.num_rows:
            self._writer = self._writer or pq.ParquetWriter(self._stream, rows.schema)
            self._writer.write_table(rows)
            self.rows += rows.num_rows

    def end(self) -> pa.Buffer | None:
        if self._writer is None:
            return None
        self._writer.close()
        return self._stream.getvalue()


def _looked_at(rows: pa.Table, other: _Other) -> list[pa.Array]:
    """Return of each row whether it is tentative, its query and its batch.

    A table may be partitioned by one of these columns; who has added rows without them has added final ones.
    """
    found = []
    for name, kind in zip(_LOOKED_AT, (pa.bool_(), pa.string(), pa.int64()), strict=True):
        if name in rows.column_names:
            column = rows[name].combine_chunks().cast(kind)
        else:
            column = pa.repeat(pa.scalar(other.values.get(name), kind), rows.num_rows)
        found.append(column)
    return [pc.fill_null(found[0], False), *found[1:]]
