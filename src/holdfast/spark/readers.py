"""Streaming DataFrames of an application's sources, and the columns they have. Runs on the driver."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.application import Application, Files, KafkaTopic, steps
from holdfast.application.columns import Schema, read_schema, spark_ddl
from holdfast.application.resolving import unresolved_sources, with_columns
from holdfast.errors import BadInput, one_line
from holdfast.ids import OperatorId
from holdfast.runtime.io.file_columns import in_place_sources
from holdfast.spark.user_modules import send_by_value

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def check_readers(app: Application) -> None:
    """Refuse sources without a reader; needs no session, so that no cluster is started for what cannot run."""
    for name, step in app.steps.items():
        if isinstance(step, steps.Source) and step.reader is None:
            raise BadInput(
                "has no streaming DataFrame",
                where=f"application {app.name}",
                field=f"{name}.reader",
                remedy='give the source one: app.source(…, hf.files("folder/")) or lambda spark: spark.readStream…',
            )


def open_sources(app: Application, spark: SparkSession, *, in_place: bool = False) -> dict[OperatorId, DataFrame]:
    """Return a streaming DataFrame for every source, each with the columns that the source declares.

    Sources that are read in place have none, unless they are asked for.
    """
    check_readers(app)
    found: dict[OperatorId, DataFrame] = {}
    left_out = {} if in_place else in_place_sources(app)
    for name, step in app.steps.items():
        if isinstance(step, steps.Source) and name not in left_out:
            try:
                found[name] = _open(name, step, app.columns[name], spark)
            except BadInput as error:
                raise error.placed(f"application {app.name}") from None
    return found


def resolved(app: Application, frames: dict[OperatorId, DataFrame]) -> Application:
    """Return the application with the columns of its DataFrames, where a source declares none."""
    open_ones = unresolved_sources(app)
    if not open_ones:
        return app
    known = {str(name): read_schema(frames[name].schema, field=f"{name}.schema") for name in open_ones}
    return with_columns(app, known)


def absolute(path: str) -> str:
    """Return a path that does not depend on the current directory; one with a scheme (s3a:, hdfs:) stays as it is."""
    return path if _SCHEME.match(path) else str(Path(path).absolute())


def _open(name: OperatorId, step: steps.Source, columns: Schema | None, spark: SparkSession) -> DataFrame:
    reader = step.reader
    if isinstance(reader, KafkaTopic):
        raise BadInput(
            "reads Kafka in place, and has no DataFrame to record",
            field=f"{name}.reader",
            remedy="give its rows with --input DIR",
        )
    frame: Any = (
        _stream_of_files(name, reader, columns, spark) if isinstance(reader, Files) else _called(name, step, spark)
    )
    if not getattr(frame, "isStreaming", False):
        raise BadInput("is not a streaming DataFrame", field=f"{name}.reader", remedy="make it with spark.readStream")
    if columns is None:
        return frame
    if missing := [column for column in columns if column not in frame.columns]:
        raise BadInput(
            f"has no column {missing[0]!r}",
            field=f"{name}.reader",
            remedy=f"it has {', '.join(frame.columns)}; select or rename to the declared schema",
        )
    return frame.select(*[f"`{column.replace('`', '``')}`" for column in columns])


def _called(name: OperatorId, step: steps.Source, spark: SparkSession) -> Any:
    assert callable(step.reader)
    send_by_value(step.reader)
    try:
        return step.reader(spark)
    except Exception as error:
        raise BadInput(
            f"its reader failed: {one_line(str(error) or type(error).__name__, 200)}",
            field=f"{name}.reader",
            remedy="correct the function that makes the streaming DataFrame",
        ) from error


def _stream_of_files(name: OperatorId, reader: Files, columns: Schema | None, spark: SparkSession) -> DataFrame:
    path, options = absolute(reader.path), dict(reader.options)
    if reader.in_place:  # these are none of Spark's
        options = {name: text for name, text in options.items() if name not in ("start", "settle")}
    if not _SCHEME.match(path) and not Path(path).exists():
        raise BadInput(f"there is no folder {path}", field=f"{name}.files", remedy="make it, or name another")
    try:
        if columns is None:
            schema = spark.read.format(reader.format).options(**options).load(path).schema
        stream = spark.readStream.format(reader.format).options(**options)
        return stream.schema(schema if columns is None else spark_ddl(columns)).load(path)
    except Exception as error:
        raise BadInput(
            f"{path} cannot be read as {reader.format}: {one_line(str(error), 200)}",
            field=f"{name}.files",
            remedy="put a first file there, or declare the schema of the source"
            if columns is None
            else "mend the path",
        ) from None
