"""Files with the rows of outputs for a Delta table: written, named, described. Runs anywhere, with pyarrow alone.

A file's name says of which output it is: driver's start, run, query, batch, generation, a digest of run and query
(`q`), and revision (`r`) or, of tentative rows, a digest (`t`). Names of runs and operators have dashes of their own:
only the digest tells queries apart. Files that others write (`OPTIMIZE`) have other names.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.errors import BadInput
from holdfast.runtime.io.delta_types import delta_rows
from holdfast.runtime.io.sinks import OutputKey
from holdfast.storage.storage import Storage

_OURS = re.compile(r"hf-[^/]+-[0-9]+-([0-9]+)-g([0-9]+)-(?:q([0-9a-f]{16})-([rt])|r)([0-9]+)-[0-9]+\.parquet", re.ASCII)
"""Earlier versions wrote no digest of the query: their final files have none to remove, and the rows of their tentative
ones are looked at, as if others had written them."""


@dataclass(frozen=True, slots=True)
class DeltaFile:
    """A file that holds rows of an output, with the values of the columns that the table is partitioned by."""

    name: str
    size: int
    rows: int
    values: dict[str, str | None]


def stem(key: OutputKey) -> str:
    """Return what the names of an output's files have in common."""
    operator, index = key.query
    run = re.sub(r"[^A-Za-z0-9_-]", "-", key.run)
    return f"{run}-{operator}-{index:05d}-{key.batch:010d}-g{key.generation}"


def write_files(
    storage: Storage,
    key: OutputKey,
    rows: pa.Table,
    start: str,
    partition_by: Sequence[str],
    *,
    tentative: bool = False,
) -> str:
    """Write the rows of an output; return where they are, as `StagedRows.place` has it."""
    rows = delta_rows(rows)
    files = []
    for number, (values, part) in enumerate(_parts(rows, partition_by)):
        file = pa.BufferOutputStream()
        pq.write_table(part, file)
        contents = file.getvalue()
        size = contents.size
        # Two outages may give a batch different tentative rows; a commit of the first that failed has left their file.
        version = f"t{_digest(contents)}" if tentative else f"r{key.revision}"
        name = f"hf-{start}-{stem(key)}-q{_query_digest(key)}-{version}-{number:04d}.parquet"
        if not storage.create(name, contents):
            # This node has written it before, or another one under this driver: with the same rows.
            held = storage.read(name)
            if held is None:
                raise FileNotFoundError(name)
            size = held.size
        files.append([name, size, part.num_rows, values])
    schema = rows.schema.remove_metadata().serialize().to_pybytes().hex()
    return json.dumps({"schema": schema, "files": files})


def _digest(contents: pa.Buffer) -> int:
    return int.from_bytes(hashlib.blake2b(contents, digest_size=8).digest())


def _query_digest(key: OutputKey) -> str:
    return hashlib.blake2b(f"{key.run}/{key.query}".encode(), digest_size=8).hexdigest()


def read_place(place: str) -> tuple[pa.Schema, list[DeltaFile]]:
    """Return the columns and the files of an output, of what `StagedRows.place` has."""
    fields = json.loads(place)
    schema = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(fields["schema"])))
    return schema, [DeltaFile(*one) for one in fields["files"]]


def are_there(storage: Storage, files: Sequence[DeltaFile]) -> bool:
    """Whether files are still there: VACUUM removes what no commit names, and a table must not name what is gone."""
    return all(one.name in storage.list(one.name) for one in files)


def _parts(rows: pa.Table, columns: Sequence[str]) -> list[tuple[dict[str, str | None], pa.Table]]:
    """Divide rows by the values of columns; a table's files do not contain the columns that it is partitioned by."""
    if not columns:
        return [({}, rows)]
    missing = [name for name in columns if name not in rows.column_names]
    if missing:
        raise BadInput(
            f"has no column {missing[0]!r} to partition by",
            field="delta.partition_by",
            remedy=f"there are {', '.join(rows.column_names)}",
        )
    groups = rows.select(list(columns)).group_by(list(columns), use_threads=False).aggregate([])
    found = []
    for row in groups.to_pylist():
        chosen = None
        for name, value in row.items():
            column = rows[name]
            same = pc.is_null(column) if value is None else pc.fill_null(pc.equal(column, value), False)
            chosen = same if chosen is None else pc.and_(chosen, same)
        part = rows.filter(chosen).drop_columns(list(columns))
        found.append(({name: partition_text(value) for name, value in row.items()}, part))
    return found


def partition_text(value: Any) -> str | None:
    """Write a value as Delta's log does."""
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case datetime():
            at = value.astimezone(UTC) if value.tzinfo else value
            return at.strftime("%Y-%m-%d %H:%M:%S.%f")
        case date():
            return value.isoformat()
        case str() | int() | Decimal():
            return str(value)
        case float():
            return repr(value)
    raise BadInput(
        f"a value of type {type(value).__name__} cannot be one to partition by",
        field="delta.partition_by",
        remedy="name columns of texts, numbers, dates or times",
    )


def is_ours(path: str) -> bool:
    """Whether a path is one under which the rows of an output are written; else others have written the file."""
    return _OURS.fullmatch(path) is not None


def is_replaced(path: str, key: OutputKey) -> bool:
    """Whether an output replaces a file of ours: one of its lower revisions, or tentative rows of its query.

    Those of earlier batches are among them: where a late driver has added one after the final rows, it goes too.
    """
    if (named := _OURS.fullmatch(path)) is None or named[3] != _query_digest(key):
        return False
    batch, generation, kind, revision = int(named[1]), int(named[2]), named[4], int(named[5])
    lower = (batch, generation) == (key.batch, key.generation) and revision < key.revision
    return batch <= key.batch if kind == "t" else lower
