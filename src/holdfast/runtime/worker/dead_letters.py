"""Dead letters: rows that an operator cannot take, with their errors, in columns that are the same everywhere.

Runs on a node. What a dead letter says follows from the batch and the logged decision alone, so a replay makes the same
bytes, and whoever writes them need not ask whether they are there.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import date, datetime, time
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.ids import BatchId, OperatorId, PartitionId
from holdfast.recovery.quarantine import Quarantined
from holdfast.runtime.io.dead_letter_columns import DEAD_LETTER_COLUMNS


def dead_letters(
    partition: PartitionId,
    batch: BatchId,
    sources: Sequence[OperatorId],
    inputs: Sequence[pa.Table | None],
    skipped: Quarantined,
) -> pa.Table:
    """Return the rows that are left out of a batch, input by input, in their order."""
    errors = {(one.input, one.position): one.error for one in skipped.rows}
    rows: list[dict[str, Any]] = []
    for source, table in zip(sources, inputs, strict=True):
        places = [] if table is None else [place for place in skipped.positions(source) if place < table.num_rows]
        if table is None or not places:
            continue
        for place, row in zip(places, table.take(pa.array(places, pa.int64())).to_pylist(), strict=True):
            rows.append(
                {
                    "operator": partition.operator,
                    "partition": partition.index,
                    "batch": batch,
                    "input": source,
                    "position": place,
                    "error": errors[source, place],
                    "decided_at": round(skipped.at * 1e6),
                    "row": json.dumps(row, ensure_ascii=False, default=_plain),
                }
            )
    columns = [pa.array([row[field.name] for row in rows], field.type) for field in DEAD_LETTER_COLUMNS]
    return pa.Table.from_arrays(columns, schema=DEAD_LETTER_COLUMNS)


def without(table: pa.Table | None, places: Sequence[int]) -> pa.Table | None:
    """Return a table without some of its rows; None where none is left."""
    if table is None or not places:
        return table
    mask = np.ones(table.num_rows, bool)
    mask[[place for place in places if place < table.num_rows]] = False
    kept = table.filter(pa.array(mask)).combine_chunks()
    return kept if kept.num_rows else None


def _plain(value: object) -> str:
    if isinstance(value, bytes):
        return value.hex()
    return value.isoformat() if isinstance(value, date | datetime | time) else str(value)
