"""What every operator is to the partition host: one step from a state, a batch's inputs and watermarks to the next.

Runs anywhere. A state is named tables, each a tuple of runs (small tables that never change). A step returns the runs
that make the new state; a run that is the very object it was given has not changed, so what a step adds to the state
files, its delta, is known without comparing rows. A step must be a pure function: the same arguments give the same
bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from holdfast.runtime.times import Ints, Watermark

Runs: TypeAlias = Mapping[str, tuple[pa.Table, ...]]
"""The runs of each state table, oldest first."""

LATE_REASON = "late_reason"
MISSED_WINDOWS = "missed_windows"
LATE = "late"
NO_EVENT_TIME = "no event time"


@dataclass(frozen=True, slots=True, eq=False)
class Stepped:
    """What a step gives: the new state, the output's rows, and rows kept aside, per input."""

    state: Runs
    output: pa.Table | None = None
    late: Mapping[int, pa.Table] = field(default_factory=dict)
    """Rows that missed a window, or have no event time, with why and how many windows they missed."""


@dataclass(frozen=True, slots=True)
class InputColumns:
    """One input of an operator: the columns its rows are spread by, and all of its columns where they are declared."""

    keys: tuple[str, ...]
    schema: pa.Schema | None


@dataclass(frozen=True, slots=True, eq=False)
class Declaration:
    """What an operator is, in plain values: a run records it, and a restart compares it (runtime/identity.py).

    The defaults are those of an operator without state.
    """

    kind: str
    """source, map, filter, flat-map, aggregate, top, distinct, join or apply."""
    computes: Mapping[str, Any] = field(default_factory=dict)
    """What it computes, in values that JSON has; functions by their names."""
    window: Mapping[str, Any] | None = None
    """Its window; times in microseconds."""
    event_times: tuple[str, ...] = ()
    """The event-time column of each input, where its windows go by them."""
    tables: Mapping[str, pa.Schema] | None = field(default_factory=dict)
    """The columns of each table of its state; empty: it has none; None: not known, as those of its input are not."""
    kept: Mapping[str, Any] = field(default_factory=dict)
    """What decides which rows the tables hold, beside the keys, the window and the columns."""
    state_keys: tuple[str, ...] = ()
    """The key columns that every table of the state has: a row belongs where the hash of these belongs."""
    not_split: str | None = None
    """Why the state cannot be spread over another number of partitions; None: it can be, by its keys."""


class Kernel(Protocol):
    """One operator's work. Inputs are None where a batch has no rows on that input."""

    def declare(self, inputs: Sequence[InputColumns]) -> Declaration:
        """Say what the operator is, and by which columns its state is spread over partitions."""
        ...

    def step(self, state: Runs, inputs: Sequence[pa.Table | None], before: Watermark, now: Watermark) -> Stepped:
        """Take one batch: `before` is the watermark after the previous batch, `now` that of this batch's barriers."""
        ...


def set_aside(table: pa.Table, rows: Ints, missed: Ints, reason: str) -> pa.Table:
    """Return some rows of an input, with why they are kept aside."""
    kept = table.take(pa.array(rows))
    kept = kept.append_column(LATE_REASON, pa.array([reason] * len(rows), pa.string()))
    return kept.append_column(MISSED_WINDOWS, pa.array(missed, pa.int64()))


def take_rows(table: pa.Table, mask: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> pa.Table:
    """Keep the rows where a mask holds; the same table where it always does."""
    return table if mask.all() else table.filter(pa.array(mask))
