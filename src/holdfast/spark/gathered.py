"""Read gathered outputs as DataFrames: what is in files, and what is staged. Runs on the driver.

Files are read when the DataFrame is used, as every table is: nothing deletes them. What is staged is read at once,
because it is deleted when it is published; where that happens meanwhile, all is looked at anew.

The columns are those of the newest rows that are out, staged ones among them: of the last layout, and there of the last
batch. Rows of earlier ones, which do not have a column, have null in it; a column that only they have is left out.
"""

from __future__ import annotations

import json
from functools import reduce
from typing import TYPE_CHECKING, Any

from holdfast.errors import BadInput
from holdfast.runtime.io.gathered_files import content_of, decoded_schema
from holdfast.runtime.io.gathered_reading import gathers, see
from holdfast.runtime.io.parquet_names import GROUPS, Group, Seen, done_in, key_of, name_of
from holdfast.runtime.io.parquet_sink import TENTATIVE, versions_in
from holdfast.runtime.io.sinks import FINAL, VERSION_COLUMNS, OutputKey
from holdfast.storage.storage import Storage, open_storage

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

_TRIES = 10


def how_gathered(path: str) -> dict[str, Any] | None:
    """Return how the outputs in a folder are gathered; None: they are not."""
    try:
        return gathers(open_storage(path))
    except (BadInput, OSError):
        return None  # a scheme that only Spark knows


def read_gathered(spark: SparkSession, place: str, *, versions: bool) -> DataFrame | None:
    """Return the rows of gathered outputs, each once; None: there are none. See `reading.read` for `versions`."""
    storage = open_storage(place)
    last: Exception | None = None
    for _ in range(_TRIES):
        tentative = versions_in(storage.list(TENTATIVE)).tentative if versions else []
        seen = see(storage)
        try:
            parts = _parts(spark, place, storage, seen, tentative, versions=versions)
        except Exception as error:
            if see(storage).staged == seen.staged:
                raise
            last = error  # it has been published meanwhile
            continue
        return reduce(lambda left, right: left.unionByName(right), parts) if parts else None
    raise BadInput(
        f"is published faster than it can be read: {last}",
        where=place,
        remedy="set a longer `every`",
    )


def _parts(
    spark: SparkSession, place: str, storage: Storage, seen: Seen, tentative: list[str], *, versions: bool
) -> list[DataFrame]:
    from pyspark.sql import functions

    corrected = {name.removeprefix(TENTATIVE) for name in tentative}
    schema = _newest_schema(spark, place, storage, seen)

    def files(names: list[str], schema: StructType | None = schema) -> DataFrame:
        reader = spark.read.option("basePath", place)
        if schema is None:  # there are tentative rows only
            return reader.parquet(*(f"{place}/{name}" for name in names))
        return reader.schema(schema).parquet(*(f"{place}/{name}" for name in names)).select(*schema.names)

    def version(part: DataFrame, revision: Column) -> DataFrame:
        given = {"tentative": functions.lit(False), "fidelity": functions.lit(1.0), "revision": revision.cast("int")}
        return part.withColumns(given) if versions else part

    parts: list[DataFrame] = []
    apart = [name for name, group in seen.files.items() if any(_has(group, key_of(one)) for one in corrected)]
    together = [name for name in seen.files if name not in apart]
    if together:
        parts.append(version(files(together), functions.lit(0)))
    for name in apart:  # some of its rows have replaced tentative ones
        parts.append(version(files([name]), _revision(storage, name, seen.files[name], corrected)))
    for revision in (0, FINAL):
        names = [one for one, key in seen.staged.items() if (FINAL if name_of(key) in corrected else 0) == revision]
        if names:
            parts.append(version(files(names), functions.lit(revision)).localCheckpoint(eager=True))
    out = {name_of(key) for key in seen.staged.values()}
    waiting = [one for one in corrected - out if not any(_is_past(group, key_of(one)) for group in seen.files.values())]
    if waiting:
        whole = None if schema is None else _with_versions(schema)
        parts.append(files([f"{TENTATIVE}{name}" for name in sorted(waiting)], whole))
    return parts


def _is_past(group: Group, key: OutputKey | None) -> bool:
    return (
        key is not None
        and (key.query, key.generation) == (group.query, group.generation)
        and key.batch <= group.through
    )


def _has(group: Group, key: OutputKey | None) -> bool:
    return key is not None and _is_past(group, key) and key.batch >= group.first


def _revision(storage: Storage, name: str, group: Group, corrected: set[str]) -> Column:
    """Return the revision of each row of a file."""
    from pyspark.sql import functions

    if (data := storage.read(name)) is None:
        raise FileNotFoundError(name)
    row, at = functions.col("_metadata.row_index"), 0
    hit = functions.lit(False)
    for batch, many in content_of(data, name).rows.items():
        if name_of(OutputKey(group.query, batch, generation=group.generation)) in corrected:
            hit = hit | ((row >= at) & (row < at + many))
        at += many
    return functions.when(hit, FINAL).otherwise(0)


def _newest_schema(spark: SparkSession, place: str, storage: Storage, seen: Seen) -> StructType | None:
    """Return the columns of the newest rows that are out; None: there are none."""
    staged = max(seen.staged, key=lambda name: (seen.staged[name].generation, seen.staged[name].batch), default=None)
    file = max(seen.files, key=lambda name: (seen.files[name].generation, seen.files[name].through), default=None)
    if staged is not None:
        key = seen.staged[staged]
        if file is None or (key.generation, key.batch) > (seen.files[file].generation, seen.files[file].through):
            return spark.read.parquet(f"{place}/{staged}").schema
    if file is None:
        return None
    about = _schema(storage)
    return spark.read.parquet(f"{place}/{file}").schema if about is None else _spark_schema(about)


def _with_versions(schema: StructType) -> StructType:
    from pyspark.sql.types import BooleanType, DoubleType, IntegerType, StructType

    both = StructType(list(schema.fields))
    for name, kind in zip(VERSION_COLUMNS, (BooleanType(), DoubleType(), IntegerType()), strict=True):
        both = both.add(name, kind)
    return both


def _schema(storage: Storage) -> pa.Schema | None:
    """Return the newest columns of a table that is partitioned by some; None: it is not, and its files have them."""
    about = gathers(storage)
    if not (about or {}).get("partition_by"):
        return None
    done = done_in(storage.list(GROUPS))
    last = max(done, key=lambda one: (one.generation, one.through, one.query), default=None)
    data = None if last is None else storage.read(last.done)
    if data is None:
        raise FileNotFoundError("the record of a group that is done")
    return decoded_schema(json.loads(data.to_pybytes())["schema"])


def _spark_schema(schema: pa.Schema) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)
