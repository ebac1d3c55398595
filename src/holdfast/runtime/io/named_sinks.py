"""The sinks as users name them: `hf.parquet(path)`, `hf.foreach_batch(function)`, … Runs on the driver.

Each takes the rows of an output batch by batch, under the output's key; `sinks.py` says how often a batch may come to
each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from holdfast.errors import BadInput
from holdfast.runtime.io.parquet_sink import ParquetSink
from holdfast.runtime.io.sinks import ConsoleSink, FunctionSink, MemorySink, OutputKey, TransactionalSink


def parquet(path: str | Path) -> ParquetSink:
    """Write an output as Parquet into a folder or under the URL of an object store, each batch once.

    Any Parquet reader reads it as one table. Executors that reach it write it themselves. Read it with
    `hf.read(spark, path)`.

    >>> import holdfast as hf
    >>> app = hf.Application("web")
    >>> visits = app.source("visits", schema="page string").output("pages", sink=hf.parquet("out/pages"))
    """
    if not str(path).strip():
        raise BadInput("is empty", field="parquet.path", remedy='name a folder: hf.parquet("out/pages")')
    return ParquetSink(path)


def foreach_batch(function: Callable[[pa.Table, OutputKey], object]) -> FunctionSink:
    """Call a function with every batch of an output, on the driver: a pyarrow.Table and an `hf.OutputKey`.

    The function is called at least once for every batch, and again after a failure of the driver: the key tells it
    that it has seen a batch.

    >>> import holdfast as hf
    >>> seen = {}
    >>> def keep(rows, key):
    ...     seen[key] = rows.num_rows
    >>> app = hf.Application("web")
    >>> visits = app.source("visits", schema="page string").output("pages", sink=hf.foreach_batch(keep))
    """
    _need_function(function, "foreach_batch")
    return FunctionSink(function)


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


def _need_function(given: object, field: str) -> None:
    if not callable(given):
        raise BadInput(f"{given!r} is not a function", field=field, remedy="pass a function of rows and key")
