"""An application: what users write, from which the topology comes. Runs anywhere.

An application collects operators in the order they are written. `topology()` gives the model that planners use;
`steps`, `keys` and `columns` define what each operator does at run time. Nothing runs while an application is written,
and no Spark session is needed: a source holds what makes its streaming DataFrame when there is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeVar, Unpack

from holdfast.application import steps
from holdfast.application.columns import TIMES, Schema, need_columns, need_kind, read_schema
from holdfast.application.durations import Duration, seconds
from holdfast.application.hints import EVERY_OPERATOR, Hints, read_hints
from holdfast.application.kafka_topics import KafkaTopic, kafka_columns
from holdfast.application.on_error import OnError, read_on_error
from holdfast.application.readers import NEED_SCHEMA, Files, Reader
from holdfast.application.streams import Stream
from holdfast.errors import BadInput
from holdfast.ids import OperatorId, is_operator_id
from holdfast.topology import Input, Operator, Partitioning, Topology, checks

_V = TypeVar("_V")
_LETTERS = "use letters, digits, '_' and '-'"
_OF_SOURCES = ("reader", "schema", "event_time", "lateness", "rate", "parallelism", "key")
"""What a source takes beside its hints."""
BY_KEY = "-by-key"
"""Ends the id of the operator that takes a source's rows to the partitions of their keys."""


class Application:
    """A named set of streams, operators and outputs.

    >>> import holdfast as hf
    >>> app = hf.Application("speeds")
    >>> locations = app.source("locations", schema="segment string, speed double, at timestamp",
    ...                        event_time="at", rate=20000)
    >>> speeds = (locations.key_by("segment").window(hf.sliding("10 seconds", every="1 second"))
    ...           .agg(speed=hf.avg("speed"), parallelism=4).output("speeds", priority=[5, 1, 1, 1]))
    >>> app.topology()
    Topology('speeds', 2 operators, 5 partitions)
    """

    # Of applications that a run has kept from before operators had it.
    _on_error = OnError.PARK
    _on_errors: Mapping[OperatorId, OnError] = MappingProxyType({})

    def __init__(self, name: str, *, on_error: str = "park") -> None:
        """Name the application; the name goes into its topology, its logs and its state's namespace.

        `on_error` is for all operators that do not say it themselves: `"park"` stops the queries of an operator that
        fails; `"quarantine"` leaves out the rows that it cannot take, and keeps them as dead letters.
        """
        checks.check_name(name)
        self.name = name
        self._on_error = read_on_error(on_error, field="on_error")
        self._on_errors = {}
        self._operators: dict[OperatorId, Operator] = {}
        self.steps: dict[OperatorId, steps.Step] = {}
        """What each operator does, in the order they were written."""
        self.keys: dict[OperatorId, tuple[tuple[str, ...], ...]] = {}
        """For each operator, per input, the columns rows are spread over its partitions by (none: as they come)."""
        self.columns: dict[OperatorId, Schema | None] = {}
        """The columns each operator gives, where they are known."""
        self.event_times: dict[OperatorId, str | None] = {}
        """The column with the event time of each operator's rows. For a window's result that is `window_end`: it counts
        as happening in the last microsecond before, so results fall into the larger window that holds their own."""
        self.sinks: dict[OperatorId, object] = {}
        """Where the rows of each output operator go; None: Parquet files under DIRECTORY/out."""
        self.tentative: set[OperatorId] = set()
        """Outputs that may be tentative while partitions of their queries are lost."""
        self.before_steps: dict[OperatorId, steps.BeforeStep] = {}
        """What is called before every step of an operator; for drills and tests."""
        self._output_names: dict[OperatorId, str] = {}

    def source(
        self,
        name: str,
        reader: Reader | None = None,
        *,
        schema: Any = None,
        event_time: str | None = None,
        lateness: Duration = 0.0,
        rate: float | None = None,
        parallelism: int = 1,
        key: str | Sequence[str] | None = None,
        **hints: Unpack[Hints],
    ) -> Stream:
        """Take rows from outside.

        `reader` is `hf.files(path, …)`, `hf.kafka(servers, topic, …)`, or a function that takes a Spark session and
        returns a streaming DataFrame: `lambda spark: spark.readStream…load()`. It may be left out while planning.
        `schema` is a DDL string, a pyspark StructType, a pyarrow.Schema or a dict; without one the columns are those of
        the DataFrame, and mistakes in column names are found at the start. `event_time` names the column that windows
        go by; rows may be late by `lateness`. `rate` is what is expected, in rows per second over all partitions. With
        `key`, rows are spread over the source's partitions by these columns, else as they come; where the source's own
        partitions read files, that takes an operator of its own, `NAME-by-key`.

        >>> import holdfast as hf
        >>> app = hf.Application("web")
        >>> visits = app.source("visits", hf.files("visits/", format="json"), event_time="ts", lateness="1 second",
        ...                     schema="ts timestamp, user string, page string, ms double")
        """
        columns = None if schema is None else read_schema(schema, field=f"{name}.schema")
        if isinstance(reader, Files):
            if columns is None and reader.format in NEED_SCHEMA:
                raise BadInput(
                    f"{reader.format} files do not say the types of their columns",
                    field=f"{name}.schema",
                    remedy='give the source its schema: schema="ts timestamp, page string"',
                )
        elif isinstance(reader, KafkaTopic):
            columns = kafka_columns(reader, columns, field=f"{name}.schema")
        elif reader is not None and not callable(reader):
            raise BadInput(
                "is not a function",
                field=f"{name}.reader",
                remedy='pass hf.files("folder/"), hf.kafka(…) or `lambda spark: spark.readStream…`, not a DataFrame',
            )
        if event_time is not None:
            need_kind(columns, event_time, TIMES, "a time or a number of seconds", field=f"{name}.event_time")
        late = seconds(lateness, field=f"{name}.lateness", zero=True)
        placed = () if key is None else ((key,) if isinstance(key, str) else tuple(key))
        step = steps.Source(reader, event_time, late)
        need_columns(columns, placed, field=f"{name}.key")
        in_place = isinstance(reader, Files | KafkaTopic) and reader.in_place
        exchanged = in_place and bool(placed) and parallelism != 1
        read = self.add(
            step,
            "source",
            (),
            columns,
            name,
            parallelism,
            hints,
            rate=rate,
            placed_by=() if exchanged else placed,
            event_time=event_time,
        )
        # Whoever reads a range finds all keys in it: an exchange brings each row to the partition of its key.
        if not exchanged:
            return read
        keyed, no_hints = read.key_by(*placed), Hints()
        return self.add(
            steps.Spread(),
            "by-key",
            (keyed,),
            columns,
            f"{name}{BY_KEY}",
            parallelism,
            no_hints,
            placed_by=placed,
            event_time=event_time,
        )

    def reads_in_place(self, name: OperatorId) -> bool:
        """Whether the partitions of a source read in place; not where each must get the rows of its keys."""
        step = self.steps[name]
        if not isinstance(step, steps.Source) or not isinstance(step.reader, Files | KafkaTopic):
            return False
        return step.reader.in_place and (not self.keys[name][0] or self._operators[name].parallelism == 1)

    def with_readers(self, readers: Mapping[str, Reader]) -> Application:
        """Return this application with other readers of its sources, as if they had been declared with them.

        A source with a key whose partitions now read in place gets the operator `NAME-by-key` that `source` would give
        it. The application itself stays as it is.
        """
        made = copy(self)
        found: dict[OperatorId, Operator] = {}
        made.steps, made.keys, made.columns, made.event_times = {}, {}, {}, {}
        moved: dict[OperatorId, OperatorId] = {}
        for name, one in self._operators.items():
            inputs = tuple(replace(feed, source=moved.get(feed.source, feed.source)) for feed in one.inputs)
            found[name] = replace(one, inputs=inputs) if inputs else one
            made.steps[name], made.keys[name] = self.steps[name], self.keys[name]
            made.columns[name], made.event_times[name] = self.columns[name], self.event_times[name]
            step, reader = self.steps[name], readers.get(name)
            if not isinstance(step, steps.Source) or reader is None:
                continue
            made.steps[name] = replace(step, reader=reader)
            keys = self.keys[name][0]
            in_place = isinstance(reader, Files | KafkaTopic) and reader.in_place
            if not in_place or not keys or one.parallelism == 1:
                continue
            moved[name] = own = OperatorId(f"{name}{BY_KEY}")
            found[own] = Operator(own, one.parallelism, (Input(name, Partitioning.FULL),))
            made.steps[own], made.keys[own], made.keys[name] = steps.Spread(), (keys,), ((),)
            made.columns[own], made.event_times[own] = self.columns[name], self.event_times[name]
        made._operators, made.sinks, made._output_names = found, dict(self.sinks), dict(self._output_names)
        return made

    def output_names(self) -> dict[OperatorId, str]:
        """Return the name of every output, by its operator; operators that nothing consumes are outputs too."""
        consumed = {feed.source for one in self._operators.values() for feed in one.inputs}
        found: dict[OperatorId, str] = {}
        for name, one in self._operators.items():
            if one.output or (one.output is None and name not in consumed):
                found[name] = self._output_names.get(name, name)
        for name, given in found.items():
            if taken := [other for other, its in found.items() if its == given and other != name]:
                raise BadInput(
                    f"{name} and {taken[0]} are both published as {given!r}",
                    where=f"application {self.name}",
                    field="output",
                    remedy="give every output a name of its own",
                )
        return found

    def operator(self, name: str) -> Operator:
        """Return an operator as it stands so far."""
        return self._operators[OperatorId(name)]

    def without(self, operators: Iterable[OperatorId]) -> Application:
        """Return the application without some operators, that no other one reads from; all others are as they were."""
        gone, outputs, found = frozenset(operators), self.output_names(), copy(self)
        if not gone:
            return self

        def left(values: Mapping[OperatorId, _V]) -> dict[OperatorId, _V]:
            return {name: value for name, value in values.items() if name not in gone}

        # Whose only reader is gone does not become an output by that.
        found._operators = {name: replace(one, output=name in outputs) for name, one in left(self._operators).items()}
        found.steps, found.keys, found.columns = left(self.steps), left(self.keys), left(self.columns)
        found.event_times, found.sinks = left(self.event_times), left(self.sinks)
        found.before_steps, found._output_names = left(self.before_steps), left(self._output_names)
        found._on_errors, found.tentative = left(self._on_errors), self.tentative - gone
        return found

    def on_error_of(self, operator: OperatorId) -> OnError:
        """Return what happens to rows that an operator cannot take."""
        return self._on_errors.get(operator, self._on_error)

    def topology(self) -> Topology:
        """Return the model of the application; refuses what could not run, naming the operator and the field."""
        self.output_names()
        try:
            return Topology(self.name, self._operators.values())
        except BadInput as error:
            raise error.placed(f"application {self.name}") from None

    # -- what streams call ----------------------------------------------------------------------------------------

    def add(
        self,
        step: steps.Step,
        kind: str,
        feeds: tuple[Stream, ...],
        columns: Schema | None,
        name: str | None,
        parallelism: int | None,
        hints: Hints,
        *,
        rate: float | None = None,
        joins: bool = False,
        placed_by: tuple[str, ...] = (),
        event_time: str | None = None,
        on_error: str | None = None,
    ) -> Stream:
        """Add one operator; streams call this, users call the methods of streams."""
        own = self._own_id(kind, name)
        size = parallelism if parallelism is not None else self._usual_parallelism(feeds)
        if problem := checks.whole_problem(size):
            raise BadInput(
                problem, where=f"application {self.name}", field=f"{own}.parallelism", remedy="give 1 or more"
            )
        seen: set[OperatorId] = set()
        inputs = []
        for feed in feeds:
            if feed.app is not self or feed.id in seen:
                raise BadInput(
                    f"{feed.id} cannot feed {own}"
                    + (" twice" if feed.id in seen else ": it is of another application"),
                    where=f"application {self.name}",
                    field=own,
                    remedy="put a map between for a second copy, and use streams of one application",
                )
            seen.add(feed.id)
            inputs.append(Input(feed.id, self._partitioning(feed, size)))
        values = read_hints(hints, field=own, others=EVERY_OPERATOR if feeds else _OF_SOURCES)
        chosen = None if on_error is None else read_on_error(on_error, field=f"{own}.on_error")
        if chosen is OnError.QUARANTINE and isinstance(step, steps.Custom) and not step.deterministic:
            raise BadInput(
                "an operator that is not deterministic cannot quarantine rows: a replay has others in their places",
                where=f"application {self.name}",
                field=f"{own}.on_error",
                remedy='leave it out, or give "park"',
            )
        self._operators[own] = Operator(own, size, tuple(inputs), rate=rate, joins=joins, **values)
        try:
            checks.check_values(self._operators[own], own)
        except BadInput as error:
            del self._operators[own]
            raise error.placed(f"application {self.name}") from None
        self.steps[own] = step
        if chosen is not None:
            self._on_errors = {**self._on_errors, own: chosen}
        self.keys[own] = tuple(feed.keys for feed in feeds) if feeds else (placed_by,)
        self.columns[own] = columns
        self.event_times[own] = event_time
        return Stream(self, own, columns, (), placed_by)

    def mark_output(
        self,
        operator: OperatorId,
        priority: int | Sequence[int],
        sink: object = None,
        name: str | None = None,
        *,
        tentative: bool = False,
    ) -> None:
        """Publish an operator; streams call this. Without a name, the one it has stays, at first its id."""
        called = self._output_names.get(operator, operator) if name is None else name
        taken = [other for other, its in self._output_names.items() if its == called and other != operator]
        if not is_operator_id(called) or taken:
            raise BadInput(
                f"{called!r} {f'is the output of {taken[0]}' if taken else 'is not a name for an output'}",
                where=f"application {self.name}",
                field=f"{operator}.output",
                remedy="give every output a name of its own" if taken else _LETTERS,
            )
        folder = isinstance(sink, str) or hasattr(sink, "__fspath__")
        if not (sink is None or folder or callable(sink) or hasattr(sink, "publish")):
            raise BadInput(
                f"{sink!r} is not a sink",
                where=f"application {self.name}",
                field=f"{operator}.output.sink",
                remedy="give hf.parquet(path), another sink, or a function of rows and key",
            )
        level = tuple(priority) if isinstance(priority, Sequence) else priority
        marked = replace(self._operators[operator], output=True, priority=level)
        try:
            checks.check_values(marked, operator)
        except BadInput as error:
            raise error.placed(f"application {self.name}") from None
        self._operators[operator] = marked
        self._output_names[operator] = called
        self.sinks[operator] = sink
        self.tentative = {*self.tentative, operator} if tentative else self.tentative - {operator}

    def need_event_time(self, name: OperatorId) -> None:
        """Refuse an event-time window over rows without an event time, or over a source that has none."""
        waiting, seen = [name], {name}
        while waiting:
            at = waiting.pop()
            step = self.steps[at]
            if isinstance(step, steps.Source) and step.event_time is None:
                raise BadInput(
                    f"source {at} has no event time, and a window over time needs one",
                    where=f"application {self.name}",
                    field=f"{at}.event_time",
                    remedy='say which column it is: event_time="at"',
                )
            fresh = [one.source for one in self._operators[at].inputs if one.source not in seen]
            seen.update(fresh)
            waiting += fresh
        if self.event_times[name] is None:
            raise BadInput(
                f"the rows of {name} have no event time, and a window over time needs one",
                where=f"application {self.name}",
                field=f"{name}.event_time",
                remedy='keep the column in its schema, or name another there: event_time="at"',
            )

    def _own_id(self, kind: str, name: str | None) -> OperatorId:
        if name is None:
            number = sum(other.startswith(f"{kind}-") for other in self._operators) + 1
            while f"{kind}-{number}" in self._operators:
                number += 1
            return OperatorId(f"{kind}-{number}")
        if not is_operator_id(name) or name in self._operators:
            problem = "is the id of another operator" if name in self._operators else "is not an id"
            raise BadInput(
                f"{name!r} {problem}",
                where=f"application {self.name}",
                field="id",
                remedy="give every source and operator an id of its own" if name in self._operators else _LETTERS,
            )
        return OperatorId(name)

    def _usual_parallelism(self, feeds: tuple[Stream, ...]) -> int:
        return max((self._operators[feed.id].parallelism for feed in feeds if feed.app is self), default=1)

    def _partitioning(self, feed: Stream, size: int) -> Partitioning:
        """Choose how a stream meets its consumer.

        Keys are spread by ranges of their hash, so partitions of the same key nest when one count divides the other:
        such streams need no full exchange. See docs/decisions/0005.
        """
        many = self._operators[feed.id].parallelism
        nested = feed.placed_by == feed.keys and (many % size == 0 or size % many == 0)
        if feed.keys and not nested and many > 1 and size > 1:
            return Partitioning.FULL
        if many == size:
            return Partitioning.ONE_TO_ONE
        return Partitioning.MERGE if many > size else Partitioning.SPLIT


def load_application(names: Mapping[str, Any], where: str) -> Application:
    """Find the application that a user's file defines: a variable `app`, or the only one there is."""
    found = {name: value for name, value in names.items() if isinstance(value, Application)}
    if "app" in found:
        return found["app"]
    if len({id(one) for one in found.values()}) == 1:
        return next(iter(found.values()))
    problem = "defines no application" if not found else f"defines several applications: {', '.join(sorted(found))}"
    raise BadInput(problem, where=where, remedy='write app = hf.Application("name") once')
