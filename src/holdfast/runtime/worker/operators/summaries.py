"""What is kept of a window's rows until it closes, and what comes of it then. Runs anywhere.

A summary has three parts, all by key and *place* (the columns that say which pane, session or count window a row is
in): `reduce` takes rows to what must be kept of them, `merge` puts kept things of one place together, `finish` gives
the output rows. Merging is exact for counts, whole sums, extremes, sets and rows, so cutting the same rows into other
batches gives the same results; floating-point sums then differ in their last bits, and are the same for the same
batches.

Groups of rows by the values of columns: as Arrow's single-threaded group-by, and as numbers. Runs anywhere.

Values are the same group when they are equal; nulls are one group, and so are NaNs, and so are 0.0 and -0.0. The same
rows in the same order give the same groups in the same order, on every machine. That order is Arrow's own: with many
groups it is not that of first appearance, and a later Arrow may choose another (decision 0056).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.application.aggregates import Aggregate, Function
from holdfast.application.derived_columns import joined_names
from holdfast.errors import BadInput
from holdfast.runtime.times import Ints
from holdfast.runtime.worker.operators.kernel import Declaration, InputColumns


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


# -- summaries ---------------------------------------------------------------------------------------------------------


_ROWS = "rows"
_MERGED_BY = {"rows": "sum", "count": "sum", "sum": "sum", "double_sum": "sum", "min": "min", "max": "max"}
_LARGEST_SUM = 2**63


NO_KEY = "it has no key: a window holds the rows of a partition"
"""Why a state is of its partition alone."""


class Summary(Protocol):
    """How one kind of operator summarises windows. Tables that are kept have names."""

    kind: str
    """As users know the operator."""

    def declared(self) -> dict[str, Any]:
        """Say what it computes, in values that JSON has."""
        ...

    def decides(self) -> dict[str, Any]:
        """Say what decides which rows are kept, beside the keys, the window and the columns of the tables."""
        ...

    def reduce(self, side: int, rows: pa.Table, place: Sequence[str]) -> dict[str, pa.Table]:
        """Return what must be kept of the rows of one input."""
        ...

    def merge(self, name: str, kept: pa.Table, place: Sequence[str]) -> pa.Table:
        """Put together what was kept in one table, place by place."""
        ...

    def finish(self, kept: Mapping[str, pa.Table], place: Sequence[str]) -> pa.Table | None:
        """Return the output rows, with their place."""
        ...


def declare_over_time(
    summary: Summary,
    inputs: Sequence[InputColumns],
    window: Mapping[str, Any],
    times: Sequence[str],
    place: Sequence[str],
) -> Declaration:
    """Say what an operator over event-time windows is; the tables it keeps are seen by keeping nothing of no rows."""
    tables: dict[str, pa.Schema] | None = {}
    for side, one in enumerate(inputs):
        if one.schema is None or tables is None:
            tables = None
            continue
        rows = one.schema.empty_table()
        for name in place:
            rows = rows.append_column(name, pa.array([], pa.int64()))
        tables |= {name: kept.schema for name, kept in summary.reduce(side, rows, place).items()}
    keys = inputs[0].keys
    why = None if keys else NO_KEY
    return Declaration(summary.kind, summary.declared(), window, tuple(times), tables, summary.decides(), keys, why)


class Aggregates:
    """Counts, sums, averages, extremes and numbers of distinct values."""

    kind = "aggregate"

    def __init__(self, keys: Sequence[str], aggregates: Sequence[tuple[str, Aggregate]]) -> None:
        self._keys = tuple(keys)
        self._aggregates = tuple(aggregates)
        self._distinct = tuple(
            dict.fromkeys(
                one.column
                for _, one in aggregates
                if one.function is Function.COUNT_DISTINCT and one.column is not None
            )
        )

    def declared(self) -> dict[str, Any]:
        """See Summary."""
        found = [{"name": name, "function": str(one.function), "column": one.column} for name, one in self._aggregates]
        return {"aggregates": found}

    def decides(self) -> dict[str, Any]:
        """See Summary: the names of the columns have it all."""
        return {}

    def reduce(self, side: int, rows: pa.Table, place: Sequence[str]) -> dict[str, pa.Table]:
        """Keep one row per key and place, and the distinct values where they are counted."""
        by = [*self._keys, *place]
        rows = with_plain_floats(rows, [*self._keys, *self._distinct])
        wanted: dict[str, tuple[Any, ...]] = {}
        for _, one in self._aggregates:
            for name in self._kept_columns(one, rows.schema):
                kind, _, column = name.partition(":")
                if kind == _ROWS:
                    wanted[name] = ([], "count_all")
                elif kind == "double_sum":
                    if name not in rows.column_names:
                        rows = rows.append_column(name, rows[column].cast(pa.float64(), safe=False))
                    wanted[name] = (name, "sum")
                else:
                    wanted[name] = (column, kind)
        wanted = wanted or {_ROWS: ([], "count_all")}
        for name in wanted:
            if name.startswith("sum:"):
                _check_sum(rows, by, name.removeprefix("sum:"))
        kept = {"partials": grouped(rows, by, list(wanted.values()), list(wanted))}
        for column in self._distinct:
            values = rows.select(by).append_column(_value(column), rows[column])
            kept[f"distinct:{column}"] = grouped(values, [*by, _value(column)], [], [])
        return kept

    def merge(self, name: str, kept: pa.Table, place: Sequence[str]) -> pa.Table:
        """Add up partial results; distinct values stay distinct."""
        by = [*self._keys, *place]
        if name != "partials":
            return grouped(kept, [*by, _value(name.partition(":")[2])], [], [])
        columns = [column for column in kept.column_names if column not in by]
        for column in columns:
            if column.startswith("sum:"):
                _check_sum(kept, by, column)
        return grouped(kept, by, [(column, _MERGED_BY[column.partition(":")[0]]) for column in columns], columns)

    def finish(self, kept: Mapping[str, pa.Table], place: Sequence[str]) -> pa.Table | None:
        """Give a row per key and place, a column per aggregate."""
        by = [*self._keys, *place]
        merged = self.merge("partials", kept["partials"], place)
        result = merged.select(by)
        for name, one in self._aggregates:
            result = result.append_column(name, self._value_of(one, merged, kept, by))
        return result

    def _value_of(self, one: Aggregate, merged: pa.Table, kept: Mapping[str, pa.Table], by: list[str]) -> Any:
        column = one.column
        if one.function is Function.COUNT:
            return merged[_ROWS if column is None else f"count:{column}"]
        if one.function is Function.SUM:
            total = merged[f"sum:{column}"]
            return total if pa.types.is_floating(total.type) else total.cast(pa.int64())
        if one.function is Function.AVG:
            count = merged[f"count:{column}"].cast(pa.float64())
            total = merged[f"double_sum:{column}" if f"double_sum:{column}" in merged.column_names else f"sum:{column}"]
            return pc.divide(total, count)
        if one.function is Function.COUNT_DISTINCT:
            assert column is not None
            return _counted_values(merged.select(by), kept[f"distinct:{column}"], by, _value(column))
        return merged[f"{'min' if one.function is Function.MIN else 'max'}:{column}"]

    @staticmethod
    def _kept_columns(one: Aggregate, schema: pa.Schema) -> list[str]:
        """Name the partial results an aggregate needs; several may share one."""
        column = one.column
        if column is not None and column not in schema.names:
            raise BadInput(f"there is no column {column!r} to aggregate", remedy=f"there are {', '.join(schema.names)}")
        if one.function is Function.COUNT:
            return [_ROWS if column is None else f"count:{column}"]
        if one.function is Function.SUM:
            return [f"sum:{column}"]
        if one.function is Function.AVG:
            # Whole numbers are averaged by their sum as a double: a sum that does not fit must not stop an average.
            whole = not pa.types.is_floating(schema.field(column).type)
            return [f"double_sum:{column}" if whole else f"sum:{column}", f"count:{column}"]
        if one.function is Function.COUNT_DISTINCT:
            return []
        return [f"{'min' if one.function is Function.MIN else 'max'}:{column}"]


class TopRows:
    """The k rows with the greatest (or least) value of a column; ties go by the other columns, smallest first."""

    kind = "top"

    def __init__(self, keys: Sequence[str], k: int, by: str, largest: bool) -> None:
        self._keys, self._k, self._by, self._largest = tuple(keys), k, by, largest

    def declared(self) -> dict[str, Any]:
        """See Summary."""
        return {"k": self._k, "by": self._by, "largest": self._largest}

    def decides(self) -> dict[str, Any]:
        """See Summary: only the best rows are kept."""
        return self.declared()

    def reduce(self, side: int, rows: pa.Table, place: Sequence[str]) -> dict[str, pa.Table]:
        """Keep the best rows: the best of several are among the best of each."""
        return {"top": self._best(with_plain_floats(rows, self._keys), place)}

    def merge(self, name: str, kept: pa.Table, place: Sequence[str]) -> pa.Table:
        """Keep the best of the best."""
        return self._best(kept, place)

    def finish(self, kept: Mapping[str, pa.Table], place: Sequence[str]) -> pa.Table | None:
        """Give the best, best first."""
        return self._best(kept["top"], place)

    def _best(self, rows: pa.Table, place: Sequence[str]) -> pa.Table:
        if self._by not in rows.column_names:
            raise BadInput(f"there is no column {self._by!r}", remedy=f"there are {', '.join(rows.column_names)}")
        codes, _ = codes_of(rows, [*place, *self._keys])
        direction = "descending" if self._largest else "ascending"
        values = rows[self._by].combine_chunks()
        rank = np.asarray(pc.rank(values, sort_keys=direction, tiebreaker="dense"))
        rank = rank.astype(np.int64)
        order = np.lexsort((rank, codes))
        place_in = places_in_group(codes, order)
        # The k-th value of each group: rows that tie with it are candidates too, until the other columns decide.
        last = np.full(int(codes.max()) + 1 if len(codes) else 0, np.iinfo(np.int64).max)
        kth = order[place_in == self._k - 1]
        last[codes[kth]] = rank[kth]
        chosen = order[rank[order] <= last[codes[order]]]
        if len(chosen):
            if _have_ties(codes[chosen], rank[chosen]):
                chosen = self._ordered(rows, codes, rank, chosen)
            chosen = chosen[places_in_group(codes, chosen) < self._k]
        return rows.take(pa.array(chosen))

    @staticmethod
    def _ordered(rows: pa.Table, codes: Any, rank: Any, chosen: Any) -> Any:
        """Order candidates by group, value, and then by every column that can be ordered."""
        candidates = rows.take(pa.array(chosen))
        names = [field.name for field in candidates.schema if not pa.types.is_nested(field.type)]
        renamed = candidates.select(names).rename_columns([str(number) for number in range(len(names))])
        renamed = renamed.append_column("rank", pa.array(rank[chosen])).append_column("group", pa.array(codes[chosen]))
        keys = [("group", "ascending"), ("rank", "ascending"), *((str(n), "ascending") for n in range(len(names)))]
        return chosen[np.asarray(pc.sort_indices(renamed, sort_keys=keys))]


def _have_ties(codes: Any, rank: Any) -> bool:
    """Say whether two candidates of one group have one value, so that the other columns must order them."""
    return bool(((codes[1:] == codes[:-1]) & (rank[1:] == rank[:-1])).any())


class DistinctRows:
    """Each combination of some columns once."""

    kind = "distinct"

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = tuple(columns)

    def declared(self) -> dict[str, Any]:
        """See Summary."""
        return {"columns": list(self._columns)}

    def decides(self) -> dict[str, Any]:
        """See Summary: the columns are those of the table."""
        return {}

    def reduce(self, side: int, rows: pa.Table, place: Sequence[str]) -> dict[str, pa.Table]:
        """Keep each combination once."""
        missing = [column for column in self._columns if column not in rows.column_names]
        if missing:
            raise BadInput(f"there is no column {missing[0]!r}", remedy=f"there are {', '.join(rows.column_names)}")
        return {"distinct": self.merge("distinct", with_plain_floats(rows, self._columns), place)}

    def merge(self, name: str, kept: pa.Table, place: Sequence[str]) -> pa.Table:
        """Drop repetitions."""
        return grouped(kept, [*self._columns, *place], [], [])

    def finish(self, kept: Mapping[str, pa.Table], place: Sequence[str]) -> pa.Table | None:
        """Give each combination."""
        return self.merge("distinct", kept["distinct"], place)


class Pairs:
    """Rows of the left and the right input that agree on the keys."""

    kind = "join"
    sides = ("left", "right")

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = tuple(keys)

    def declared(self) -> dict[str, Any]:
        """See Summary: the keys are those of the inputs."""
        return {}

    def decides(self) -> dict[str, Any]:
        """See Summary: all rows are kept."""
        return {}

    def reduce(self, side: int, rows: pa.Table, place: Sequence[str]) -> dict[str, pa.Table]:
        """Keep rows whose keys are all there: null equals nothing."""
        rows = with_plain_floats(rows, self._keys)
        for key in self._keys:
            if rows[key].null_count:
                rows = rows.filter(pc.is_valid(rows[key]))
        return {self.sides[side]: rows}

    def merge(self, name: str, kept: pa.Table, place: Sequence[str]) -> pa.Table:
        """Keep all rows."""
        return kept

    def finish(self, kept: Mapping[str, pa.Table], place: Sequence[str]) -> pa.Table | None:
        """Give the pairs, in the order of the left rows, then of the right."""
        if "left" not in kept or "right" not in kept:
            return None
        left, right = kept["left"], kept["right"]
        by = [*self._keys, *place]
        both = pa.concat_tables(_alike(left.select(by), right.select(by)))
        codes, count = codes_of(both.combine_chunks(), by)
        mine, theirs = codes[: left.num_rows], codes[left.num_rows :]
        order = np.argsort(theirs, kind="stable")
        many = np.bincount(theirs, minlength=count)
        starts = np.cumsum(many) - many
        rows, places = expand(starts[mine], many[mine])
        own = [name for name in left.column_names if name not in place]
        other = [name for name in right.column_names if name not in place]
        left_names, right_names = joined_names(own, other, self._keys)
        paired = left.take(pa.array(rows))
        found = right.take(pa.array(order[places]))
        columns = {left_names[name]: paired[name] for name in own}
        columns.update({right_names[name]: found[name] for name in other if name in right_names})
        columns.update({name: paired[name] for name in place})
        return pa.table(columns)


def _alike(left: pa.Table, right: pa.Table) -> list[pa.Table]:
    """Bring the keys of both sides to one type, so that equal values meet."""
    for number, field in enumerate(left.schema):
        kind = right.schema.field(number).type
        if kind == field.type:
            continue
        one = kind
        if any(pa.types.is_floating(type_) for type_ in (kind, field.type)):
            one = pa.float64()
        elif pa.types.is_integer(kind) and pa.types.is_integer(field.type):
            one = pa.int64()
        try:
            left = left.set_column(number, field.name, _exactly(left[field.name], one))
            right = right.set_column(number, field.name, _exactly(right[field.name], one))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise BadInput(
                f"key column {field.name!r} is {field.type} on the left and {kind} on the right: {error}",
                remedy="map one of them to the other's type",
            ) from None
    return [left, right]


def _exactly(values: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Return keys as another type; whole numbers that it does not have equal none of its values, and become null."""
    if not pa.types.is_integer(values.type) or not (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
        return values.cast(kind)
    numbers = np.asarray(values)  # without nulls: they are not kept
    with np.errstate(invalid="ignore"):
        cast = numbers.astype(kind.to_pandas_dtype())
        other = (cast.astype(numbers.dtype) != numbers) | ((cast < 0) != (numbers < 0))
    if pa.types.is_floating(kind):
        other |= np.abs(cast) >= _LARGEST_SUM  # what casting these back gives depends on the machine
    return pa.chunked_array([pa.array(cast, kind, mask=other)])


def _value(column: str) -> str:
    return f"value:{column}"


def _counted_values(groups: pa.Table, values: pa.Table, by: list[str], column: str) -> pa.Array:
    """Count the distinct values of each group that are not null, in the order of the groups."""
    counted = grouped(values, by, [(column, "count_distinct", pc.CountOptions(mode="only_valid"))], ["many"])
    codes, count = codes_of(pa.concat_tables([groups, counted.select(by)]).combine_chunks(), by)
    many = np.zeros(count, np.int64)
    many[codes[groups.num_rows :]] = np.asarray(counted["many"])
    return pa.array(many[codes[: groups.num_rows]])


def _check_sum(rows: pa.Table, by: Sequence[str], column: str) -> None:
    """Refuse a sum of whole numbers that does not fit into 64 bits; Arrow would wrap around in silence."""
    if column not in rows.column_names:
        raise BadInput(f"there is no column {column!r} to add up", remedy=f"there are {', '.join(rows.column_names)}")
    if not pa.types.is_integer(rows.schema.field(column).type) or rows.num_rows == 0:
        return
    extremes = pc.min_max(rows[column])
    low, high = extremes["min"].as_py(), extremes["max"].as_py()
    if low is None or max(abs(low), abs(high)) * rows.num_rows < _LARGEST_SUM:
        return
    # Sums of the upper and of the lower 32 bits fit for every table, and together they are the sum itself. Doubles
    # would lose the last bits, which decide at the border.
    values = rows[column].cast(pa.uint64() if low >= 0 else pa.int64())
    bits = pa.scalar(32, values.type)
    upper = pc.shift_right(values, bits)
    lower = pc.subtract(values, pc.shift_left(upper, bits))
    halves = rows.select(by).append_column("upper", upper).append_column("lower", lower)
    sums = grouped(halves, by, [("upper", "sum"), ("lower", "sum")], ["upper", "lower"])
    over = np.asarray(sums["upper"].cast(pa.int64()).fill_null(0))
    over = over + (np.asarray(sums["lower"].cast(pa.int64()).fill_null(0)) >> 32)
    if (over < -(2**31)).any() or (over >= 2**31).any():
        raise BadInput(
            f"a sum of column {column.removeprefix('sum:')!r} does not fit into 64 bits",
            remedy="map it to double first",
        )
