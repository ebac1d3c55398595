"""Batches and state on a node, without Spark: blocks, operators on Arrow tables, state files, the partition host.

Nothing is imported before it is used: a node's process needs no coordinator and no sinks.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.runtime.in_process import InProcess, run_in_process
    from holdfast.runtime.io.parquet_sink import ParquetSink
    from holdfast.runtime.io.sinks import ConsoleSink, FunctionSink, MemorySink, OutputKey, TransactionalSink

__all__ = [
    "ConsoleSink",
    "FunctionSink",
    "InProcess",
    "MemorySink",
    "OutputKey",
    "ParquetSink",
    "TransactionalSink",
    "run_in_process",
]

_HOMES = {
    "InProcess": "in_process",
    "ParquetSink": "io.parquet_sink",
    "run_in_process": "in_process",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'io.sinks')}"), name)
