"""Read the outputs of a run as DataFrames. Runs on the driver."""

from __future__ import annotations

import json
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from holdfast.errors import BadInput, missing_extra, one_line
from holdfast.runtime.io.gathered_delta import list_staged, waiting
from holdfast.runtime.io.parquet_sink import versions_in
from holdfast.runtime.io.sinks import ORIGIN_COLUMNS, VERSION_COLUMNS
from holdfast.spark.gathered import how_gathered, read_gathered
from holdfast.spark.readers import absolute
from holdfast.storage.storage import open_storage

_TRIES = 5
"""How often a table is looked at anew whose waiting rows are committed while they are read."""

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read(spark: SparkSession, path: str | Path, tentative: bool = False) -> DataFrame:
    """Return the rows of an output as a DataFrame: of `hf.parquet(path)`, DIRECTORY/out/NAME or `hf.delta(path)`.

    Every final row of every published batch is there once, also while the run goes on; rows that wait for a file or a
    commit (`every=…`) are among them, as they are now. Any session will do; of a Delta table the session
    needs no jar.

    With `tentative`, batches of which only tentative rows are out are there as well, of each query and batch one
    version: the final one where it is out. Three columns say which: `tentative`, `fidelity` (predicted for tentative
    rows, 1 for final ones) and `revision` (1 where a final version has replaced a tentative one, else 0; in a table of
    `hf.delta(…, tentative=True)` 1 for all final rows).

    Example: `hf.read(spark, "out/pages").orderBy("window_end").show()`.
    """
    place = absolute(str(path))
    try:
        if _is_delta(str(path)):
            found = _read_table(spark, str(path), place)
            if set(VERSION_COLUMNS) <= set(found.columns):  # hf.delta(…, tentative=True)
                found = found.drop(*ORIGIN_COLUMNS)
                return found if tentative else found.where("not tentative").drop(*VERSION_COLUMNS)
            return _as_final(found, 0) if tentative else found
        if how_gathered(str(path)) is not None:
            found = read_gathered(spark, place, versions=tentative)
            if found is None:
                raise _no_rows(place)
            return found
        return _read_versions(spark, place) if tentative else spark.read.parquet(place)
    except BadInput:
        raise
    except Exception as error:
        line = one_line(str(error), 200)
        empty = "UNABLE_TO_INFER_SCHEMA" in line or "PATH_NOT_FOUND" in line
        raise BadInput(
            "there are no rows yet" if empty else f"cannot be read: {line}",
            where=place,
            remedy="name the folder of an output; windows come out once later rows have passed their end",
        ) from None


def _no_rows(place: str) -> BadInput:
    return BadInput(
        "there are no rows yet",
        where=place,
        remedy="name the folder of an output; windows come out once later rows have passed their end",
    )


def _as_final(rows: DataFrame, revision: int) -> DataFrame:
    from pyspark.sql import functions

    given = {
        "tentative": functions.lit(False),
        "fidelity": functions.lit(1.0),
        "revision": functions.lit(revision).cast("int"),
    }
    for name in VERSION_COLUMNS:
        rows = rows.withColumn(name, given[name])
    return rows


def _read_versions(spark: SparkSession, place: str) -> DataFrame:
    """Read one version of each query and batch, as one listing of the directory has them."""
    found = versions_in(open_storage(place).list())
    parts = []
    for revision in sorted(set(found.final.values())):
        names = [f"{place}/{name}" for name, its in found.final.items() if its == revision]
        parts.append(_as_final(spark.read.parquet(*names), revision))
    if found.tentative:
        # A folder that begins with `_` is passed over by readers, unless its files are named.
        parts.append(spark.read.parquet(*(f"{place}/{name}" for name in found.tentative)))
    if not parts:
        raise _no_rows(place)
    return reduce(lambda left, right: left.unionByName(right), parts)


def _is_delta(path: str) -> bool:
    """Whether there is a Delta table: its folder also has files that are in no commit."""
    try:
        return bool(open_storage(path).list("_delta_log/"))
    except (BadInput, OSError):
        return False  # a scheme that only Spark knows


def _read_table(spark: SparkSession, path: str, place: str) -> DataFrame:
    storage = open_storage(path)
    for _ in range(_TRIES):
        before = list_staged(storage)
        try:
            return _read_delta(spark, path, place)
        except Exception:
            if list_staged(storage) == before:
                raise  # else it has been committed meanwhile
    return _read_delta(spark, path, place)


def _read_delta(spark: SparkSession, path: str, place: str) -> DataFrame:
    """Read the files that the table's last commit names, by what they are partitioned by, and what waits for one."""
    import pyarrow as pa
    from pyspark.sql import functions
    from pyspark.sql.types import StructType

    try:
        from deltalake import DeltaTable
    except ModuleNotFoundError as error:
        raise missing_extra(error) or error from None
    storage = open_storage(path)
    staged = list_staged(storage)  # before the look at the table: what is committed meanwhile is in one of them
    table = DeltaTable(place)
    schema = StructType.fromJson(json.loads(table.schema().to_json()))
    columns = table.metadata().partition_columns
    stored = StructType([one for one in schema if one.name not in columns])
    groups: dict[tuple[object, ...], list[str]] = {}
    for one in pa.table(table.get_add_actions()).to_pylist():
        values = one.get("partition") or {}
        groups.setdefault(tuple(values.get(name) for name in columns), []).append(f"{place}/{unquote(one['path'])}")
    parts = []
    for values, files in groups.items():
        part = spark.read.schema(stored).parquet(*files)
        for name, value in zip(columns, values, strict=True):
            part = part.withColumn(name, functions.lit(value).cast(schema[name].dataType))
        parts.append(part.select(*schema.names))
    waits = waiting(storage, staged, table.transaction_version)
    if waits:
        # It is deleted when it is committed: so it is read at once, and where it is gone, all is looked at anew.
        part = spark.read.schema(schema).parquet(*(f"{place}/{name}" for name in waits))
        parts.append(part.select(*schema.names).localCheckpoint(eager=True))
    return reduce(lambda left, right: left.union(right), parts) if parts else spark.createDataFrame([], schema)
