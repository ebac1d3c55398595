"""The rows that an application's sources deliver in a drill: read from a folder, checked, cut into batches.

Runs anywhere. A folder has the rows of a source as `SOURCE.parquet`, `SOURCE.json` (one object per line) or
`SOURCE.csv`, or several such files in `SOURCE/`, read in the order of their names. A folder with `recorded.json` was
written by a drill: nothing changes it any more, so it is read in place; any other is copied first.

Cutting: of each source the first `batches` x `rows` rows are used, in the order in which they were delivered, in as
many batches of nearly equal size as the drill has.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from holdfast.application import Application, steps
from holdfast.application.columns import Schema, read_schema
from holdfast.application.readers import Files
from holdfast.errors import BadInput
from holdfast.ids import OperatorId
from holdfast.runtime.schemas import arrow_schema, conform
from holdfast.storage.storage import is_url

RECORDED = "recorded.json"
"""Marks a folder that a drill has written: how many rows of which source."""


def sources_of(app: Application) -> dict[str, pa.Schema | None]:
    """Return the sources of an application with their declared columns; None: the rows themselves say."""
    return {
        str(name): arrow_schema(app.columns[name]) for name, step in app.steps.items() if isinstance(step, steps.Source)
    }


def read_batches(app: Application, folder: Path, batches: int, rows: int) -> Iterator[dict[str, pa.Table]]:
    """Give the batches of a drill, the same each time: of each source nearly equal pieces of its first rows."""
    given = read_input(app, folder, batches * rows)
    for batch in range(batches):
        yield {name: _piece(table, batch, batches) for name, table in given.items()}


def available_batches(app: Application, batches: int, rows: int) -> Iterator[dict[str, pa.Table]]:
    """Give batches of the files that an application's sources name; a source that reads otherwise is refused."""
    given: dict[str, pa.Table] = {}
    for name, schema in sources_of(app).items():
        step = app.steps[OperatorId(name)]
        reader = step.reader if isinstance(step, steps.Source) else None
        if not isinstance(reader, Files) or f".{reader.format}" not in _READERS or is_url(reader.path):
            raise BadInput(
                f"the rows of source {name} cannot be read without Spark",
                where=f"application {app.name}",
                remedy="give them with --input DIR (DIR/SOURCE.parquet, .json or .csv), or profile a run's directory",
            )
        folder = Path(reader.path)
        given[name] = _read_source(folder.parent, folder.name, schema, batches * rows)
    need_rows({name: table.num_rows for name, table in given.items()}, f"application {app.name}")
    for batch in range(batches):
        yield {name: _piece(table, batch, batches) for name, table in given.items()}


def _piece(table: pa.Table, batch: int, batches: int) -> pa.Table:
    begin, end = (number * table.num_rows // batches for number in (batch, batch + 1))
    return table.slice(begin, end - begin)


def read_input(app: Application, folder: Path, limit: int) -> dict[str, pa.Table]:
    """Read the first rows of every source from a folder, with the columns that the application declares."""
    if not folder.is_dir():
        raise BadInput(
            "no such folder", where=str(folder), field="--input", remedy="give a folder with DIR/SOURCE.parquet"
        )
    found = {name: _read_source(folder, name, schema, limit) for name, schema in sources_of(app).items()}
    need_rows({name: table.num_rows for name, table in found.items()}, str(folder))
    return found


def recorded_columns(app: Application, folder: Path, sources: Iterable[str]) -> dict[str, Schema]:
    """Return the columns that the rows of these sources have in a folder."""
    given = read_input(app, folder, 1)
    return {name: read_schema(given[name].schema, field=f"{name}.schema") for name in sources}


def need_rows(rows: Mapping[str, int], where: str) -> None:
    """Refuse an input in which a source has no rows: its part of the application would not be tried."""
    for name, count in rows.items():
        if not count:
            raise BadInput(
                "has no rows",
                where=where,
                field=name,
                remedy="every source needs some: give them with --input DIR (DIR/SOURCE.parquet, .json or .csv)",
            )


def write_input(tables: Mapping[str, pa.Table], folder: Path) -> None:
    """Write the rows of every source as Parquet, then the file that marks the folder as complete."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RECORDED).unlink(missing_ok=True)
    for name, table in tables.items():
        pq.write_table(table, folder / f"{name}.parquet")
    (folder / RECORDED).write_text(
        json.dumps({"rows": {name: table.num_rows for name, table in tables.items()}}) + "\n"
    )


def is_recorded(folder: Path) -> bool:
    """Whether a drill has written this folder, to its end."""
    return (folder / RECORDED).is_file()


def _read_source(folder: Path, name: str, schema: pa.Schema | None, limit: int) -> pa.Table:
    files = _files_of(folder, name)
    tables: list[pa.Table] = []
    left = limit
    for path in files:
        if left <= 0:
            break
        table = _READERS[path.suffix](path, schema)
        if schema is not None:
            try:
                table = conform(_with_times(table, schema), schema, f"source {name}")
            except BadInput as error:
                raise error.placed(str(path)) from None
        tables.append(table.slice(0, left))
        left -= tables[-1].num_rows
    try:
        return pa.concat_tables(tables).combine_chunks()
    except pa.ArrowInvalid as error:
        raise BadInput(
            f"its files have different columns: {error}",
            where=str(folder),
            field=name,
            remedy="declare the source's schema, or give files of one kind",
        ) from None


def _files_of(folder: Path, name: str) -> list[Path]:
    single = [folder / f"{name}{suffix}" for suffix in _READERS if (folder / f"{name}{suffix}").is_file()]
    inside = folder / name
    several = sorted(
        path for path in inside.glob("*") if path.suffix in _READERS and not path.name.startswith(("_", "."))
    )
    if len(single) + bool(several) > 1 or len({path.suffix for path in several}) > 1:
        there = ", ".join(path.name for path in [*single, *several][:4])
        raise BadInput(
            f"source {name} is there more than once: {there}", where=str(folder), remedy="leave one kind of files"
        )
    if not single and not several:
        raise BadInput(
            f"has no rows of source {name}",
            where=str(folder),
            field="--input",
            remedy=f"put them into {name}.parquet, {name}.json or {name}.csv, or into files in {name}/",
        )
    return single or several


def _with_times(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Read texts that are declared as times; those with a zone become UTC, as Spark has them."""
    for number, name in enumerate(table.column_names):
        if name not in schema.names or not pa.types.is_timestamp(schema.field(name).type):
            continue
        column = table.column(number)
        if pa.types.is_string(column.type):
            wanted = schema.field(name).type
            try:
                column = column.cast(pa.timestamp(wanted.unit, "UTC"))
            except pa.ArrowInvalid:
                continue  # without a zone: `conform` reads it, or says what is wrong
            table = table.set_column(number, name, column.cast(wanted))
    return table


def _read_parquet(path: Path, schema: pa.Schema | None) -> pa.Table:
    return _opened(path, lambda: pq.ParquetFile(path).read())


def _read_json(path: Path, schema: pa.Schema | None) -> pa.Table:
    options = pa.json.ParseOptions(explicit_schema=_without_times(schema))
    return _opened(path, lambda: pa.json.read_json(path, parse_options=options))


def _read_csv(path: Path, schema: pa.Schema | None) -> pa.Table:
    known = _without_times(schema)
    types = {} if known is None else {field.name: field.type for field in known}
    options = pa.csv.ConvertOptions(column_types=types)
    return _opened(path, lambda: pa.csv.read_csv(path, convert_options=options))


def _without_times(schema: pa.Schema | None) -> pa.Schema | None:
    """Let times be read as texts first: both formats refuse a zone where none is declared."""
    if schema is None:
        return None
    return pa.schema([(one.name, pa.string() if pa.types.is_timestamp(one.type) else one.type) for one in schema])


def _opened(path: Path, read: Callable[[], pa.Table]) -> pa.Table:
    try:
        return read()
    except (OSError, pa.ArrowException) as error:
        raise BadInput(
            f"cannot be read: {error}",
            where=str(path),
            remedy="give Parquet, JSON lines or CSV with the declared columns",
        ) from None


_READERS: dict[str, Callable[[Path, pa.Schema | None], pa.Table]] = {
    ".parquet": _read_parquet,
    ".json": _read_json,
    ".csv": _read_csv,
}
