"""Groups of rows by the values of columns: as Arrow's single-threaded group-by, and as numbers. Runs anywhere.

Values are the same group when they are equal; nulls are one group, and so are NaNs, and so are 0.0 and -0.0. The same
rows in the same order give the same groups in the same order, on every machine. That order is Arrow's own: with many
groups it is not that of first appearance, and a later Arrow may choose another (decision 0056).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import BadInput
from holdfast.runtime.times import Ints


def with_plain_floats(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return the table with one zero and one NaN in its floating-point columns among these."""
    for name in columns:
        kind = table.schema.field(name).type
        if pa.types.is_floating(kind):
            zero = pc.add(table[name], pa.scalar(0.0, kind))
            plain = pc.if_else(pc.is_nan(zero), pa.scalar(float("nan"), kind), zero)
            table = table.set_column(table.schema.get_field_index(name), name, plain)
    return table


def grouped(table: pa.Table, by: Sequence[str], wanted: Sequence[tuple[Any, ...]], names: Sequence[str]) -> pa.Table:
    """Aggregate by group, single-threaded: the grouping columns, then one column per aggregate, named as told."""
    try:
        found = table.group_by(list(by), use_threads=False).aggregate(list(wanted))
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowKeyError) as error:
        raise BadInput(f"cannot group by {', '.join(by)}: {error}", remedy="group by texts, numbers or times") from None
    return found.rename_columns([*by, *names])


def codes_of(table: pa.Table, columns: Sequence[str]) -> tuple[Ints, int]:
    """Number the rows' groups from zero in the order they first appear; return the numbers and how many there are."""
    codes, count = np.zeros(table.num_rows, np.int64), 1 if table.num_rows else 0
    for name in columns:
        own, many = _column_codes(table[name])
        if len(columns) == 1:
            return own, many
        if count <= 1:
            codes, count = own, many
            continue
        codes, count = _column_codes(pa.array(codes * many + own))
    return codes, count


def _column_codes(values: Any) -> tuple[Ints, int]:
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if isinstance(values, pa.ChunkedArray):  # no chunks at all
        return np.zeros(0, np.int64), 0
    if not pa.types.is_dictionary(values.type):
        try:
            values = values.dictionary_encode(null_encoding="encode")
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
            raise BadInput(f"values of type {values.type} cannot be grouped: {error}", remedy="map them") from None
    elif values.null_count:
        return _column_codes(values.cast(values.type.value_type))
    return np.asarray(values.indices).astype(np.int64), len(values.dictionary)


def places_in_group(codes: Ints, order: Ints) -> Ints:
    """For rows in an order that keeps groups together, return each row's place within its group, in that order."""
    ordered = codes[order]
    fresh = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(ordered) else np.zeros(0, np.int64)
    lengths = np.diff(np.r_[fresh, len(ordered)])
    return np.arange(len(ordered)) - np.repeat(fresh, lengths)


def expand(starts: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """For every row i the numbers starts[i] .. starts[i] + counts[i] - 1: return (row, number) for all of them."""
    rows = np.repeat(np.arange(len(counts)), counts)
    ends = np.cumsum(counts)
    offsets = np.arange(len(rows)) - np.repeat(ends - counts, counts)
    return rows, starts[rows] + offsets
