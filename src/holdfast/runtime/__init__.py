"""Batches and state on a node, without Spark: blocks, operators on Arrow tables, state files, the partition host."""

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
