"""The columns of sources that bring them in their Parquet files, and paths that hold on every node. On the driver."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.application import Application, Files, KafkaTopic, steps
from holdfast.application.columns import Schema, read_schema
from holdfast.application.readers import file_options
from holdfast.application.resolving import unresolved_sources, with_columns
from holdfast.errors import BadInput, one_line
from holdfast.ids import OperatorId
from holdfast.runtime.io.kafka_client import kafka_library
from holdfast.runtime.io.kafka_records import check_avro
from holdfast.storage.source_files import open_source_files
from holdfast.storage.storage import is_url


def with_absolute_paths(app: Application) -> Application:
    """Return the application with paths that do not depend on the current directory."""
    found = copy(app)
    found.steps = {name: _absolute(step) for name, step in app.steps.items()}
    return found


def _absolute(step: steps.Step) -> steps.Step:
    if not isinstance(step, steps.Source) or not isinstance(step.reader, Files) or is_url(step.reader.path):
        return step
    return replace(step, reader=replace(step.reader, path=str(Path(step.reader.path).absolute())))


def in_place_sources(app: Application) -> dict[OperatorId, Files | KafkaTopic]:
    """Return what the sources that are read in place read."""
    return {
        name: step.reader
        for name, step in app.steps.items()
        if isinstance(step, steps.Source) and isinstance(step.reader, Files | KafkaTopic) and app.reads_in_place(name)
    }


def with_file_columns(app: Application) -> Application:
    """Return the application with the columns of its files, where a source that reads them in place declares none."""
    readers, known = in_place_sources(app), dict[str, Schema]()
    for name in unresolved_sources(app):
        reader = readers.get(name)
        if isinstance(reader, Files):
            try:
                known[str(name)] = read_schema(_schema_of(name, reader), field=f"{name}.schema")
            except BadInput as error:
                raise error.placed(f"application {app.name}") from None
    return with_columns(app, known) if known else app


def check_folders(app: Application) -> None:
    """Refuse folders that are not there: a mistake in a path would wait for files for ever; and missing libraries."""
    for name, reader in in_place_sources(app).items():
        if isinstance(reader, KafkaTopic):
            kafka_library()
            check_avro(reader.options)
        if isinstance(reader, Files) and not is_url(reader.path) and not Path(reader.path).exists():
            raise BadInput(
                f"there is no folder {reader.path}",
                where=f"application {app.name}",
                field=f"{name}.files",
                remedy="make it, or name another",
            )


def _schema_of(name: OperatorId, reader: Files) -> pa.Schema:
    options = file_options(reader)
    files = open_source_files(reader.path, glob=options.glob, recursive=options.recursive)
    try:
        listed = sorted(files.list(), key=lambda one: (one.modified, one.path))
        for one in listed:
            opened = files.open(one.path)
            try:
                return pq.read_schema(pa.BufferReader(opened.read(0, one.size))).remove_metadata()
            finally:
                opened.close()
    except (OSError, pa.ArrowException) as error:
        raise BadInput(
            f"{reader.path} cannot be read as {reader.format}: {one_line(str(error), 200)}",
            field=f"{name}.files",
            remedy="mend the path or the file, or declare the schema of the source",
        ) from None
    raise BadInput(
        f"{reader.path} cannot be read as {reader.format}: there is no file yet that says the columns",
        field=f"{name}.files",
        remedy="put a first file there, or declare the schema of the source",
    )
