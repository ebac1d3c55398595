"""Operators without memory: sources, maps, filters, flat-maps; and the operator a user writes. Runs anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.application import steps
from holdfast.errors import BadInput
from holdfast.runtime.schemas import arrow_schema, conform
from holdfast.runtime.tables import one_chunk
from holdfast.runtime.times import Watermark, in_seconds
from holdfast.runtime.worker.operators.kernel import Declaration, InputColumns, Runs, Stepped


class PassOn:
    """Give rows as they came: a source, or the exchange behind one."""

    def __init__(self, kind: str = "source") -> None:
        self._kind = kind

    def declare(self, inputs: Sequence[InputColumns]) -> Declaration:
        """See Kernel."""
        return Declaration(self._kind)

    def step(self, state: Runs, inputs: Sequence[pa.Table | None], before: Watermark, now: Watermark) -> Stepped:
        """Give the rows."""
        return Stepped(state, inputs[0])


class TableFunctionOnRows:
    """A map or flat-map: a user's function of a table. Not called for batches without rows."""

    def __init__(self, function: steps.TableFunction, *, one_for_one: bool) -> None:
        self._function, self._one_for_one = function, one_for_one

    def declare(self, inputs: Sequence[InputColumns]) -> Declaration:
        """See Kernel."""
        return Declaration("map" if self._one_for_one else "flat-map", {"function": function_name(self._function)})

    def step(self, state: Runs, inputs: Sequence[pa.Table | None], before: Watermark, now: Watermark) -> Stepped:
        """Call the function with the batch's rows."""
        rows = inputs[0]
        if rows is None or rows.num_rows == 0:
            return Stepped(state)
        made = as_table(self._function(rows), "the function")
        if self._one_for_one and made.num_rows != rows.num_rows:
            raise BadInput(
                f"the function of a map gave {made.num_rows} rows for {rows.num_rows}",
                remedy="use flat_map for other numbers of rows",
            )
        return Stepped(state, made)


class Condition:
    """A filter: an Arrow expression, or a function that gives a truth value per row; null keeps no row."""

    def __init__(self, condition: Any) -> None:
        self._condition = condition

    def declare(self, inputs: Sequence[InputColumns]) -> Declaration:
        """See Kernel."""
        if isinstance(self._condition, pc.Expression):
            return Declaration("filter", {"condition": str(self._condition)})
        return Declaration("filter", {"function": function_name(self._condition)})

    def step(self, state: Runs, inputs: Sequence[pa.Table | None], before: Watermark, now: Watermark) -> Stepped:
        """Keep the rows for which it holds."""
        rows = inputs[0]
        if rows is None or rows.num_rows == 0:
            return Stepped(state)
        if isinstance(self._condition, pc.Expression):
            from pyarrow import acero  # loads pandas, which few applications need

            plan = acero.Declaration.from_sequence(
                [
                    acero.Declaration("table_source", acero.TableSourceNodeOptions(rows)),
                    acero.Declaration("filter", acero.FilterNodeOptions(self._condition)),
                ]
            )
            return Stepped(state, plan.to_table(use_threads=False))
        mask = self._condition(rows)
        if not isinstance(mask, pa.Array | pa.ChunkedArray):
            mask = pa.array(mask)
        if not pa.types.is_boolean(mask.type) or len(mask) != rows.num_rows:
            raise BadInput(
                f"the condition of a filter gave {len(mask)} values of type {mask.type} for {rows.num_rows} rows",
                remedy="give one truth value per row",
            )
        return Stepped(state, rows.filter(mask))


class CustomOperator:
    """A user's operator with memory. Called in every batch: time passes without rows, too."""

    def __init__(self, step: steps.Custom, inputs: Sequence[pa.Schema | None]) -> None:
        self._function = step.function
        self._schema = arrow_schema(step.state) or pa.schema([])
        self._inputs = [schema if schema is not None else pa.schema([]) for schema in inputs]

    def declare(self, inputs: Sequence[InputColumns]) -> Declaration:
        """See Kernel. A column of the state with the name of the inputs' key is taken to hold the key."""
        return Declaration(
            "apply",
            {"function": function_name(self._function)},
            tables={"own": self._schema},
            state_keys=inputs[0].keys,
            not_split=self._not_split(inputs),
        )

    def _not_split(self, inputs: Sequence[InputColumns]) -> str | None:
        """Say why nobody knows which partition a row of the state belongs to; None: its key says."""
        keys = inputs[0].keys
        if any(not one.keys for one in inputs):
            return "it takes rows without a key, so a row of its state belongs to a partition, not to a key"
        if any(one.keys != keys for one in inputs):
            return f"its inputs have different keys: {'; '.join(', '.join(one.keys) for one in inputs)}"
        for key in keys:
            if key not in self._schema.names:
                return f"its state has no column {key!r}, by which its rows are keyed"
            mine = self._schema.field(key).type
            for one in inputs:
                if one.schema is None:
                    return f"the columns of its input are not declared, so the type of {key!r} is not known"
                theirs = one.schema.field(key).type
                if not _hash_alike(mine, theirs):
                    return f"column {key!r} is {mine} in its state and {theirs} in its input"
        return None

    def step(self, state: Runs, inputs: Sequence[pa.Table | None], before: Watermark, now: Watermark) -> Stepped:
        """Call the function with its state, the batch's rows and the watermark."""
        runs = state.get("own", ())
        old = one_chunk(runs) if runs else self._schema.empty_table()
        given = tuple(
            schema.empty_table() if rows is None else rows for rows, schema in zip(inputs, self._inputs, strict=True)
        )
        answer = self._function(old, given, in_seconds(now))
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise BadInput("the function did not give a pair", remedy="return (new state, output rows)")
        new, made = as_table(answer[0], "the state"), answer[1]
        output = None if made is None else as_table(made, "the output")
        if new is old or (runs and new.equals(old)):
            return Stepped(state, output)
        new = one_chunk([conform(new, self._schema, "the new state")])
        return Stepped({"own": (new,)} if new.num_rows else {}, output)


def function_name(function: Any) -> str:
    """Name a user's function by module and name: the same in every process, whatever its code."""
    while isinstance(function, partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{getattr(named, '__module__', None) or '?'}.{named.__qualname__}"


def _hash_alike(one: pa.DataType, other: pa.DataType) -> bool:
    """Say whether a value of one type, written as the other, is the same value with the same hash, or is refused."""
    groups = (
        pa.types.is_integer,
        pa.types.is_timestamp,
        lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind),
    )
    return one == other or any(among(one) and among(other) for among in groups)


def as_table(made: Any, what: str) -> pa.Table:
    """Take what a user's function gave as a table; anything else is refused."""
    if isinstance(made, pa.RecordBatch):
        return pa.Table.from_batches([made])
    if not isinstance(made, pa.Table):
        raise BadInput(f"{what} is {type(made).__name__}, not an Arrow table", remedy="give a pyarrow.Table")
    return made
