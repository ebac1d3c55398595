"""The columns of dead letters: rows that an operator cannot take, and records that do not parse. Runs anywhere."""

from __future__ import annotations

import pyarrow as pa

DEAD_LETTER_COLUMNS = pa.schema(
    [
        ("operator", pa.string()),
        ("partition", pa.int32()),
        ("batch", pa.int64()),
        ("input", pa.string()),
        ("position", pa.int64()),
        ("error", pa.string()),
        ("decided_at", pa.timestamp("us", tz="UTC")),
        ("row", pa.string()),
    ]
)
"""`input`: the operator that a row comes from, or the range of a record. `position`: the place of a row among the rows
of that input and batch, or the number of a record in its range. `row`: the row as JSON, or the record's text."""
