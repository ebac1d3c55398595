"""Streams: what users chain operators on. Each call adds one operator to the application and returns its output.

Runs anywhere. Every operator takes `on_error`: what becomes of rows that it cannot take, by default as the application
says. A stream remembers its columns (where known) and by which columns it is keyed, so that the builder can
choose the partitioning of the next exchange: rows of one key always meet in one partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Unpack

from holdfast.application import steps
from holdfast.application.aggregates import Aggregate, count
from holdfast.application.columns import TIMES, Schema, need_columns, need_kind, read_schema
from holdfast.application.conditions import check_condition
from holdfast.application.derived_columns import (
    WINDOW_COLUMNS,
    aggregate_columns,
    distinct_columns,
    join_columns,
    top_columns,
    window_columns,
)
from holdfast.application.hints import EVERY_OPERATOR, Hints
from holdfast.application.members import STREAM, WINDOWED, no_such_member
from holdfast.application.windows import Rows, Window
from holdfast.errors import BadInput
from holdfast.ids import OperatorId
from holdfast.topology import Partitioning
from holdfast.topology.checks import suggestion

if TYPE_CHECKING:
    from holdfast.application.build import Application


@dataclass(frozen=True, slots=True)
class Stream:
    """The output of an operator. Immutable: every call gives a new stream and leaves this one as it is."""

    app: Application
    id: OperatorId
    columns: Schema | None
    keys: tuple[str, ...] = ()
    """The columns by which the next operator needs rows of one key together; none where any partition will do."""
    placed_by: tuple[str, ...] = ()
    """The columns by which rows are already spread over this operator's partitions."""

    @property
    def event_time(self) -> str | None:
        """The column that event-time windows over this stream go by; None where there is none."""
        return self.app.event_times[self.id]

    if not TYPE_CHECKING:  # a type checker must go on to refuse what is not there

        def __getattr__(self, name: str) -> Any:
            raise no_such_member("a stream", name, STREAM, dir(Stream))

    # -- row by row -----------------------------------------------------------------------------------------------

    def map(
        self,
        function: steps.TableFunction,
        *,
        schema: Any = None,
        event_time: str | None = None,
        id: str | None = None,  # noqa: A002
        parallelism: int | None = None,
        on_error: str | None = None,
        **hints: Unpack[Hints],
    ) -> Stream:
        """Turn each row into one row: `function` takes an Arrow table and gives one with as many rows.

        Event time stays in its column; where the rows have it in another one, `event_time` names it.

        Example: `speeds.map(lambda rows: rows.append_column("kmh", pc.multiply(rows["speed"], 3.6)))`.
        """
        _need_function(function, f"{self.id}.map")
        columns = None if schema is None else read_schema(schema, field="schema")
        time = self._time_of(columns, event_time, f"{self.id}.map")
        return self._next(steps.Map(function), "map", columns, id, parallelism, hints, time, on_error)

    def filter(
        self,
        condition: Any,
        *,
        id: str | None = None,  # noqa: A002
        parallelism: int | None = None,
        on_error: str | None = None,
        **hints: Unpack[Hints],
    ) -> Stream:
        """Keep the rows where a condition holds: a `pyarrow.compute` expression, or a function that gives truth values.

        Example: `speeds.filter(pc.field("speed") > 0)`.
        """
        check_condition(condition, self.columns, field=f"{self.id}.filter")
        kept = self._next(
            steps.Filter(condition), "filter", self.columns, id, parallelism, hints, self.event_time, on_error
        )
        stays = kept.app.operator(kept.id).inputs[0].partitioning is Partitioning.ONE_TO_ONE
        return replace(kept, keys=self.keys, placed_by=self.keys or (self.placed_by if stays else ()))

    def flat_map(
        self,
        function: steps.TableFunction,
        *,
        schema: Any = None,
        event_time: str | None = None,
        id: str | None = None,  # noqa: A002
        parallelism: int | None = None,
        on_error: str | None = None,
        **hints: Unpack[Hints],
    ) -> Stream:
        """Turn the rows of a batch into any number of rows: a tweet into its hashtags, say. It keeps no memory.

        Event time stays in its column, which the new rows must have too where windows over time follow; where they
        have it in another one, `event_time` names it.
        """
        _need_function(function, f"{self.id}.flat_map")
        columns = None if schema is None else read_schema(schema, field="schema")
        time = self._time_of(columns, event_time, f"{self.id}.flat_map")
        return self._next(steps.FlatMap(function), "flat-map", columns, id, parallelism, hints, time, on_error)

    # -- by key and window ----------------------------------------------------------------------------------------

    def key_by(self, *columns: str) -> Stream:
        """Bring rows with the same values of these columns together in whatever comes next. Adds no operator."""
        if not columns:
            raise BadInput("needs at least one column", field=f"{self.id}.key_by", remedy='write key_by("segment")')
        need_columns(self.columns, columns, field=f"{self.id}.key_by")
        return replace(self, keys=tuple(columns))

    def window(self, window: Window) -> Windowed:
        """Look at rows together: `sliding`, `tumbling`, `session` or `rows`. Follow it with what to compute."""
        _need_window(window, f"{self.id}.window")
        if not isinstance(window, Rows):
            self.app.need_event_time(self.id)
        return Windowed(self, window)

    def join(
        self,
        other: Stream,
        *,
        on: str | Sequence[str],
        window: Window,
        id: str | None = None,  # noqa: A002
        parallelism: int | None = None,
        on_error: str | None = None,
        **hints: Unpack[Hints],
    ) -> Stream:
        """Pair the rows of two streams that agree on columns and fall into the same event-time window.

        A pair comes out once for every window it shares, with `window_start` and `window_end`; where the streams have
        columns of these names, they come out as `left_…` and `right_…`. Other columns that both have, apart from the
        keys, come out as they are from this stream and as `right_…` from the other. Null keys pair with nothing.

        Example: `speeds.join(reports, on="segment", window=tumbling("10 seconds"), parallelism=2)`.
        """
        if not isinstance(other, Stream) or other.app is not self.app:
            raise BadInput(
                "is not a stream of the same application", field=f"{self.id}.join", remedy="join its streams"
            )
        _need_window(window, f"{self.id}.join.window")
        if isinstance(window, Rows):
            raise BadInput("counts rows", field=f"{self.id}.join.window", remedy="join over an event-time window")
        keys = (on,) if isinstance(on, str) else tuple(on)
        if not keys:
            raise BadInput("names no column", field=f"{self.id}.join.on", remedy='write on="segment"')
        left, right = self.key_by(*keys), other.key_by(*keys)
        for side in (left, right):
            self.app.need_event_time(side.id)
        columns = join_columns(self.columns, other.columns, keys, field=f"{self.id}.join")
        step = steps.WindowJoin(keys, window)
        return self.app.add(
            step,
            "join",
            (left, right),
            columns,
            id,
            parallelism,
            hints,
            joins=True,
            placed_by=_still_placed(keys, window),
            event_time="window_end",
            on_error=on_error,
        )

    def apply(
        self,
        function: steps.CustomFunction,
        *others: Stream,
        state: Any,
        schema: Any,
        event_time: str | None = None,
        deterministic: bool = True,
        joins: bool = False,
        id: str | None = None,  # noqa: A002
        parallelism: int | None = None,
        on_error: str | None = None,
        **hints: Unpack[Hints],
    ) -> Stream:
        """Run your own operator with memory: `function(state, inputs, watermark) -> (new state, output rows)`.

        `state` and what comes out are Arrow tables with the schemas declared here; `inputs` has one table per input
        stream, this one first, rows in a fixed order; `watermark` is in seconds. It is called once in every batch, with
        empty tables where nothing came. Event time is in the column `event_time`, or in this stream's own.
        State must depend only on the arguments (else say `deterministic=False`).
        Where it needs rows of one key together, call it on a stream after `key_by`, and split
        state by the same key. `joins=True` says that without one of its inputs the others are useless.
        """
        _need_function(function, f"{self.id}.apply")
        step = steps.Custom(function, read_schema(state, field="state"), deterministic)
        columns = read_schema(schema, field="schema")
        time = self._time_of(columns, event_time, f"{self.id}.apply")
        return self.app.add(
            step,
            "apply",
            (self, *others),
            columns,
            id,
            parallelism,
            hints,
            joins=joins,
            event_time=time,
            on_error=on_error,
        )

    # -- the end --------------------------------------------------------------------------------------------------

    def output(
        self,
        name: str | None = None,
        *,
        priority: int | Sequence[int] = 1,
        sink: object = None,
        tentative: bool = False,
    ) -> Stream:
        """Publish this stream under a name; without one, the operator's id is the name.

        Each partition of the operator heads a query with this priority (or one each): after a failure, queries of high
        priority come back first. `sink` takes the rows (`hf.parquet(path)`, …); without one they go to Parquet files
        under DIRECTORY/out/NAME. The stream can still be consumed by other operators.

        With `tentative`, a query goes on while partitions of it are lost, on the rows that are left: its outputs are
        marked tentative, with a fidelity, and the final ones replace them after the recovery. The sink must be able to
        correct: Parquet files, memory, or `hf.foreach_batch(…, tentative=…)`.

        >>> import holdfast as hf
        >>> app = hf.Application("web")
        >>> visits = app.source("visits", schema="page string")
        >>> pages = visits.key_by("page").window(hf.rows(100)).count().output("pages", priority=5)
        >>> app.output_names()
        {'aggregate-1': 'pages'}
        """
        self.app.mark_output(self.id, priority, sink, name, tentative=tentative)
        return self

    def _next(
        self,
        step: steps.Step,
        kind: str,
        columns: Schema | None,
        name: str | None,
        parallelism: int | None,
        hints: Hints,
        event_time: str | None,
        on_error: str | None,
    ) -> Stream:
        return self.app.add(
            step, kind, (self,), columns, name, parallelism, hints, event_time=event_time, on_error=on_error
        )

    def _time_of(self, columns: Schema | None, given: str | None, field: str) -> str | None:
        """Return the event time of rows made from this stream's: in the column given, or where it was."""
        if given is not None:
            need_kind(columns, given, TIMES, "a time or a number of seconds", field=f"{field}.event_time")
            return given
        mine = self.event_time
        return mine if columns is None or (mine in columns and columns[mine] in TIMES) else None


@dataclass(frozen=True, slots=True)
class Windowed:
    """A stream with a window: say what to compute over it."""

    stream: Stream
    over: Window

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise no_such_member("a window", name, WINDOWED, dir(Windowed))

    def agg(
        self,
        *unnamed: object,
        id: str | None = None,  # noqa: A002
        parallelism: int | None = None,
        on_error: str | None = None,
        hints: Hints | None = None,
        **aggregates: Aggregate,
    ) -> Stream:
        """Compute aggregates per key and window, one column each. Columns are the keys, `window_start`, `window_end`.

        >>> import holdfast as hf
        >>> app = hf.Application("speeds")
        >>> cars = app.source("cars", schema="segment string, speed double, at timestamp", event_time="at")
        >>> speeds = cars.key_by("segment").window(hf.tumbling("10 s")).agg(n=hf.count(), speed=hf.avg("speed"))
        >>> list(speeds.columns)
        ['segment', 'window_start', 'window_end', 'n', 'speed']
        """
        field = f"{self.stream.id}.agg"
        if unnamed:
            raise BadInput(
                "an aggregate has no name", field=field, remedy='name its column: agg(total=hf.sum("amount"))'
            )
        if not aggregates:
            raise BadInput("computes nothing", field=field, remedy='write speed=hf.avg("speed")')
        for name, one in aggregates.items():
            if not isinstance(one, Aggregate):
                raise _not_an_aggregate(one, name, field)
            if name in self.stream.keys or name in WINDOW_COLUMNS:
                raise BadInput(f"{name!r} is a key or window column", field=f"{field}.{name}", remedy="rename it")
        asked = tuple(aggregates.items())
        columns = aggregate_columns(self.stream.columns, self.stream.keys, self.over, asked, field=field)
        step = steps.WindowAggregate(self.stream.keys, self.over, asked)
        return self._add(step, "aggregate", columns, id, parallelism, hints or {}, None, on_error)

    def count(
        self,
        *,
        id: str | None = None,  # noqa: A002
        parallelism: int | None = None,
        on_error: str | None = None,
        **hints: Unpack[Hints],
    ) -> Stream:
        """Count rows per key and window, in a column `count`."""
        return self.agg(id=id, parallelism=parallelism, on_error=on_error, hints=hints, count=count())

    def top(
        self,
        k: int,
        *,
        by: str,
        largest: bool = True,
        id: str | None = None,  # noqa: A002
        parallelism: int | None = None,
        on_error: str | None = None,
        **hints: Unpack[Hints],
    ) -> Stream:
        """Keep the k rows of each key and window with the greatest value of a column (the least: `largest=False`).

        `window_start` and `window_end` are those of this window; columns of these names in the rows give way.
        """
        field = f"{self.stream.id}.top"
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise BadInput(f"{k!r} is not a number of rows", field=field, remedy="give a whole number of 1 or more")
        columns = top_columns(self.stream.columns, self.stream.keys, self.over, by, field=field)
        step = steps.TopK(self.stream.keys, self.over, k, by, largest)
        return self._add(step, "top", columns, id, parallelism, hints, self.stream.event_time, on_error)

    def distinct(
        self,
        *columns: str,
        id: str | None = None,  # noqa: A002
        parallelism: int | None = None,
        on_error: str | None = None,
        **hints: Unpack[Hints],
    ) -> Stream:
        """Give each combination of these columns once per window."""
        field = f"{self.stream.id}.distinct"
        if not columns:
            raise BadInput("needs at least one column", field=field, remedy='write distinct("segment", "incident")')
        kept = distinct_columns(self.stream.columns, columns, self.over, field=field)
        if not isinstance(self.over, Rows) and (taken := set(columns) & set(WINDOW_COLUMNS)):
            raise BadInput(
                f"{min(taken)!r} is the window's own column", field=field, remedy="leave it out or rename it"
            )
        # Equal rows must meet in one partition, so the stream's own key will do only where it is among the columns.
        own = self.stream.keys and set(self.stream.keys) <= set(columns)
        keyed = self if own else Windowed(self.stream.key_by(*columns), self.over)
        time = self.stream.event_time if self.stream.event_time in columns else None
        step = steps.Distinct(columns, self.over)
        return keyed._add(step, "distinct", kept, id, parallelism, hints, time, on_error)

    def _add(
        self,
        step: steps.Step,
        kind: str,
        columns: Schema | None,
        name: str | None,
        parallelism: int | None,
        hints: Hints,
        row_time: str | None,
        on_error: str | None,
    ) -> Stream:
        """Add the operator; rows of count windows have the event time they came with, others their window's end."""
        keys = self.stream.keys
        time = row_time if isinstance(self.over, Rows) else "window_end"
        return self.stream.app.add(
            step,
            kind,
            (self.stream,),
            columns,
            name,
            parallelism,
            hints,
            placed_by=_still_placed(keys, self.over),
            event_time=time,
            on_error=on_error,
        )


def _still_placed(keys: tuple[str, ...], window: Window) -> tuple[str, ...]:
    """Return by which columns the rows of a window's operator are spread: not by one that its window has replaced."""
    return () if set(keys) & set(window_columns(window)) else keys


def _not_an_aggregate(given: object, name: str, field: str) -> BadInput:
    remedy = suggestion(name, EVERY_OPERATOR)
    if name in Hints.__optional_keys__:
        remedy = f'write hints={{"{name}": …}} here'
    elif not remedy.startswith("did you mean"):
        remedy = 'write hf.sum("bytes")'
    return BadInput(f"{given!r} is not an aggregate", field=f"{field}.{name}", remedy=remedy)


def _need_window(window: object, field: str) -> None:
    if not isinstance(window, Window):
        raise BadInput(f"{window!r} is not a window", field=field, remedy='write hf.tumbling("1 minute")')


def _need_function(given: object, field: str) -> None:
    if not callable(given):
        raise BadInput(f"{given!r} is not a function", field=field, remedy="pass a function of Arrow tables")
