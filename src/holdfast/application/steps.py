"""What each operator of an application does, as plain values: the runtime turns them into work on Arrow tables.

Runs anywhere. A step knows nothing of Spark, batches or state files; functions in it take and give Arrow tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from holdfast.application.aggregates import Aggregate
from holdfast.application.columns import Schema
from holdfast.application.readers import Reader
from holdfast.application.windows import Window

Table: TypeAlias = Any
"""A pyarrow.Table; named loosely so that writing an application imports no Arrow."""

TableFunction = Callable[[Table], Table]
BeforeStep = Callable[[Any, int, list[Any]], None]
"""Takes a partition, a batch and the rows of every input (None: it has none); may raise."""
CustomFunction = Callable[[Table, tuple[Table, ...], float], tuple[Table, Table]]


@dataclass(frozen=True, slots=True)
class Source:
    """Rows from outside: `reader` says where from."""

    reader: Reader | None
    event_time: str | None
    lateness: float
    """Seconds the watermark trails the latest event."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Rows as they are, in the partitions of their keys."""


@dataclass(frozen=True, slots=True)
class Map:
    """One row for one row."""

    function: TableFunction


@dataclass(frozen=True, slots=True)
class Filter:
    """Keep rows: an Arrow expression, or a function that gives a truth value per row."""

    condition: Any


@dataclass(frozen=True, slots=True)
class FlatMap:
    """Any number of rows for any rows of a batch, without memory."""

    function: TableFunction


@dataclass(frozen=True, slots=True)
class WindowAggregate:
    """Aggregates per key and window; gives key columns, `window_start`, `window_end` and one column per aggregate."""

    keys: tuple[str, ...]
    window: Window
    aggregates: tuple[tuple[str, Aggregate], ...]


@dataclass(frozen=True, slots=True)
class TopK:
    """The k rows of each window with the greatest (or least) `by`; ties are broken by the other columns."""

    keys: tuple[str, ...]
    window: Window
    k: int
    by: str
    largest: bool


@dataclass(frozen=True, slots=True)
class Distinct:
    """Each combination of these columns once per window."""

    columns: tuple[str, ...]
    window: Window


@dataclass(frozen=True, slots=True)
class WindowJoin:
    """Pairs of rows of the left and the right input that agree on the keys and share a window."""

    keys: tuple[str, ...]
    window: Window


@dataclass(frozen=True, slots=True)
class Custom:
    """A user's own operator: `function(state, inputs, watermark) -> (state, output)`, all Arrow tables.

    It must be a pure function of its arguments. One that is not says `deterministic=False`; its queries then publish
    only when a global checkpoint covers the batch.
    """

    function: CustomFunction
    state: Schema
    deterministic: bool


Step = Source | Spread | Map | Filter | FlatMap | WindowAggregate | TopK | Distinct | WindowJoin | Custom
