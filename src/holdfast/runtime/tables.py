"""Tables put together and written down. Runs anywhere."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa


def one_chunk(tables: Sequence[pa.Table]) -> pa.Table:
    """Put tables of one schema together, in order, in one piece."""
    if len(tables) == 1 and all(column.num_chunks <= 1 for column in tables[0].columns):
        return tables[0]
    return pa.concat_tables(tables).combine_chunks()


def in_own_buffers(*tables: pa.Table) -> pa.Table:
    """Copy tables of one schema, in order, into one piece: no bits of rows before or after a slice come along.

    So equal rows are equal bytes once they are written down, wherever they were cut from.
    """
    return pa.concat_tables([*tables, tables[0].slice(0, 0)]).combine_chunks()


def encode_rows(table: pa.Table) -> pa.Buffer:
    """Write a table as an Arrow IPC stream: the same table gives the same bytes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def decode_rows(data: pa.Buffer) -> pa.Table:
    """Read an Arrow IPC stream without copying its rows."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()
