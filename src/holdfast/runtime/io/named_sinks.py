"""The sinks as users name them: `hf.parquet(path)`, `hf.foreach_batch(function)`, … Runs on the driver.

Each takes the rows of an output batch by batch, under the output's key; `sinks.py` says how often a batch may come to
each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from holdfast.application.durations import Duration, seconds
from holdfast.application.kafka_topics import client_settings
from holdfast.errors import BadInput
from holdfast.runtime.io.delta_sink import DeltaSink
from holdfast.runtime.io.gathered_delta import GatheredDeltaSink
from holdfast.runtime.io.gathered_parquet import GatheredParquetSink
from holdfast.runtime.io.gathering import EVERY_SECONDS
from holdfast.runtime.io.kafka_sink import VALUES, KafkaSink
from holdfast.runtime.io.parquet_sink import ParquetSink
from holdfast.runtime.io.sinks import ConsoleSink, FunctionSink, MemorySink, OutputKey, TransactionalSink
from holdfast.topology.checks import suggestion

PLACES = ("nodes", "driver")
"""Where a function may be called."""
FORMATS = ("arrow", "pandas")
"""What rows it may get."""


def parquet(
    path: str | Path,
    *,
    every: Duration | None = None,
    file_mb: float = 128,
    partition_by: str | Sequence[str] = (),
) -> ParquetSink:
    """Write an output as Parquet into a folder or under the URL of an object store, each batch once.

    Any Parquet reader reads it as one table. Executors that reach it write it themselves. Read it with
    `hf.read(spark, path)`.

    Without `every` each query writes one file for each batch, which readers see at once. With it, a query's rows of
    many batches are one file, which is published when its first row has waited so long, or when the file has about
    `file_mb` megabytes; `hf.read` also returns what waits. `partition_by` names columns: files are in folders such as
    `day=2026-01-01` then, and `every` is one minute if it is not given.

    >>> import holdfast as hf
    >>> app = hf.Application("web")
    >>> visits = app.source("visits", schema="page string, day string")
    >>> pages = visits.output("pages", sink=hf.parquet("out/pages", every="5 minutes", partition_by="day"))
    """
    if not str(path).strip():
        raise BadInput("is empty", field="parquet.path", remedy='name a folder: hf.parquet("out/pages")')
    columns = _columns(partition_by, "parquet")
    _need_size(file_mb, "parquet")
    if every is None and not columns:
        return ParquetSink(path)
    interval = EVERY_SECONDS if every is None else seconds(every, field="parquet.every")
    return GatheredParquetSink(path, interval, file_mb, columns)


def delta(
    table: str | Path,
    partition_by: str | Sequence[str] = (),
    *,
    every: Duration | None = None,
    file_mb: float = 128,
    tentative: bool = False,
) -> DeltaSink:
    """Add an output to a Delta table, each batch once; the extra `delta` brings the library, on the driver only.

    Executors that reach the table's folder write the files; the driver commits them. The table is created with the
    first rows. Several outputs, and several runs, may write to one table.

    Without `every` batches are committed as they come, each query's rows of a batch in a file of their own. With it
    they wait: a query's rows of many batches are one file, for each value of the columns to partition by, and a commit
    adds the files of all queries when the first row has waited so long, or when about `file_mb` megabytes wait.
    `hf.read` also returns what waits.

    With `tentative` the table takes tentative rows, and the commit with a batch's final rows removes them. Its rows
    have five more columns: `tentative`, `fidelity`, `revision`, `holdfast_query`, `holdfast_batch`; ask for `not
    tentative` where only final ones count.

    >>> import holdfast as hf
    >>> app = hf.Application("web")
    >>> visits = app.source("visits", schema="page string, day string")
    >>> pages = visits.output("pages", sink=hf.delta("lake/pages", partition_by="day"))
    """
    if not str(table).strip():
        raise BadInput("is empty", field="delta.table", remedy='name a table: hf.delta("lake/pages")')
    if every is None:
        return DeltaSink(table, [partition_by] if isinstance(partition_by, str) else partition_by, tentative=tentative)
    if tentative:
        raise BadInput(
            "rows of a table with tentative ones cannot wait: final rows would correct them an interval late",
            field="delta.every",
            remedy="leave out `every`, or tentative=True",
        )
    _need_size(file_mb, "delta")
    return GatheredDeltaSink(table, seconds(every, field="delta.every"), file_mb, _columns(partition_by, "delta"))


def kafka_topic(
    servers: str | Sequence[str],
    topic: str,
    value: str = "json",
    *,
    key: str | None = None,
    timeout: Duration = "10 seconds",
    settings: Mapping[str, object] | None = None,
    tentative: bool = False,
) -> KafkaSink:
    """Write an output to a Kafka topic, each batch once, in transactions; the extra `kafka` brings the library.

    `value` is `json` (each row is an object) or `raw` (the column `value`). `key` names the column whose values are the
    records' keys. Readers must read committed records only (`isolation.level=read_committed`). Rows pass through the
    driver. `settings` are librdkafka's, such as `security.protocol`; they are passed on as they are, and never shown.

    With `tentative` the topic takes tentative rows. Headers of every record say which version it is (`holdfast-query`,
    `-batch`, `-revision`, and `-fidelity` of tentative ones): of a query and batch the highest revision counts.

    >>> import holdfast as hf
    >>> app = hf.Application("web")
    >>> visits = app.source("visits", schema="page string, n long")
    >>> pages = visits.output("pages", sink=hf.kafka_topic("broker:9092", "pages", key="page"))
    """
    places = servers if isinstance(servers, str) else ",".join(map(str, servers))
    for name, given in {"servers": places, "topic": topic}.items():
        if not str(given).strip():
            remedy = 'name brokers and a topic: hf.kafka_topic("broker:9092", "pages")'
            raise BadInput("is empty", field=f"kafka_topic.{name}", remedy=remedy)
    if value not in VALUES:
        raise BadInput(
            f"{value!r} is not a kind of value", field="kafka_topic.value", remedy=suggestion(str(value), VALUES)
        )
    return KafkaSink(
        places,
        topic,
        value,
        key,
        timeout=seconds(timeout, field="kafka_topic.timeout"),
        settings=client_settings(settings, field="kafka_topic.settings"),
        tentative=tentative,
    )


def foreach_batch(
    function: Callable[[Any, OutputKey], object],
    tentative: Callable[[Any, OutputKey, float], object] | None = None,
    *,
    where: str = "nodes",
    format: str = "arrow",  # noqa: A002
) -> FunctionSink:
    """Call a function with every batch of an output: the rows and an `hf.OutputKey`.

    It is called on the nodes, where the rows are, beside what they process: on each by one thread, one call after the
    other. What it writes to variables of the program stays there: `where="driver"` calls it on the driver. Rows are a
    pyarrow.Table, with `format="pandas"` a pandas.DataFrame.

    The function is called at least once for every batch, and again after a failure, with the same rows: the key tells
    it that it has seen a batch. `tentative` is for outputs that may be tentative: it gets their rows, a key of revision
    0 and the predicted fidelity; final rows come to `function` under revision 1 then, and replace them.

    >>> import holdfast as hf
    >>> def keep(rows, key):
    ...     print(key.query, key.batch, rows.num_rows)
    >>> app = hf.Application("web")
    >>> visits = app.source("visits", schema="page string").output("pages", sink=hf.foreach_batch(keep))
    """
    _need_function(function, "foreach_batch")
    if tentative is not None:
        _need_function(tentative, "foreach_batch.tentative")
    for field, given, known in (("where", where, PLACES), ("format", format, FORMATS)):
        if given not in known:
            remedy = suggestion(str(given), known)
            raise BadInput(f"{given!r} is none of {', '.join(known)}", field=f"foreach_batch.{field}", remedy=remedy)
    return FunctionSink(function, tentative, on_nodes=where == "nodes", pandas=format == "pandas")


def transactional(
    exists: Callable[[OutputKey], bool], write: Callable[[pa.Table, OutputKey], object]
) -> TransactionalSink:
    """Write an output to a database, each batch once: `write` stores the key in the same transaction as the rows.

    Before a write, `exists` is asked whether the key is stored already.

    >>> import holdfast as hf
    >>> table = {}
    >>> sink = hf.transactional(exists=lambda key: key in table, write=lambda rows, key: table.update({key: rows}))
    """
    _need_function(exists, "transactional.exists")
    _need_function(write, "transactional.write")
    return TransactionalSink(exists, write)


def memory() -> MemorySink:
    """Keep the rows of an output in the driver's memory, for tests and a first try: `sink.rows()` returns them.

    >>> import holdfast as hf
    >>> sink = hf.memory()
    >>> sink.rows() is None
    True
    """
    return MemorySink()


def console(rows: int = 20) -> ConsoleSink:
    """Print every batch of an output on standard output, so many rows of it at most.

    >>> import holdfast as hf
    >>> app = hf.Application("web")
    >>> visits = app.source("visits", schema="page string").output("pages", sink=hf.console(rows=5))
    """
    return ConsoleSink(_print, rows)


def _print(line: str) -> None:
    import sys

    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _columns(partition_by: str | Sequence[str], sink: str) -> list[str]:
    columns = [partition_by] if isinstance(partition_by, str) else list(partition_by)
    for name in columns:
        if not isinstance(name, str) or not name or name[0] in "._" or columns.count(name) > 1:
            raise BadInput(
                f"{name!r} cannot name folders, because it is empty, named twice or begins with `_` or `.`",
                field=f"{sink}.partition_by",
                remedy=f'name columns: hf.{sink}("out/pages", partition_by="day")',
            )
    return columns


def _need_size(file_mb: float, sink: str) -> None:
    if not file_mb > 0:
        raise BadInput(f"{file_mb!r} is not a size", field=f"{sink}.file_mb", remedy="give megabytes, 128 for example")


def _need_function(given: object, field: str) -> None:
    if not callable(given):
        raise BadInput(f"{given!r} is not a function", field=field, remedy="pass a function of rows and key")
