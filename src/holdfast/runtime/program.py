"""An application made ready to run: per operator its kernel, its inputs in fixed order and its routes. Runs anywhere.

Pure: the same application gives the same program on the driver and on every node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from holdfast.application import Application, Files, KafkaTopic, OnError, steps
from holdfast.application.steps import BeforeStep
from holdfast.application.windows import Rows, Session, Sliding, Window
from holdfast.errors import BadInput
from holdfast.ids import OperatorId, PartitionId
from holdfast.recovery.graph import PartitionGraph
from holdfast.runtime.blocks import LATE, OUTSIDE, SINK, Edge
from holdfast.runtime.schemas import arrow_schema
from holdfast.runtime.worker.operators.counted import CountWindows
from holdfast.runtime.worker.operators.kernel import Kernel
from holdfast.runtime.worker.operators.panes import PaneWindows
from holdfast.runtime.worker.operators.rowwise import Condition, CustomOperator, PassOn, TableFunctionOnRows
from holdfast.runtime.worker.operators.sessions import SessionWindows
from holdfast.runtime.worker.operators.summaries import Aggregates, DistinctRows, Pairs, Summary, TopRows
from holdfast.runtime.worker.routing import Route
from holdfast.topology import Partitioning, Topology


@dataclass(frozen=True, slots=True, eq=False)
class OperatorProgram:
    """What running one operator takes."""

    id: OperatorId
    parallelism: int
    kernel: Kernel
    inputs: tuple[Route, ...]
    """Where its rows come from, in the order in which they are processed."""
    outputs: tuple[Route, ...]
    """Where its rows go; an output operator's go to the sink too."""
    schema: pa.Schema | None
    """The declared columns of its rows; None where a user's function decides."""
    deterministic: bool
    """Whether it, and all it reads, gives the same outputs for the same inputs."""
    deterministic_alone: bool
    """Whether it does by itself, whatever it reads."""
    sets_aside: bool
    """Whether it may keep rows aside: late ones, and those that it cannot take."""
    quarantines: bool = False
    """Whether rows that it cannot take are left out; else its queries are parked."""
    before_step: BeforeStep | None = None
    """Called before every step of one of its partitions; what it raises is as if the operator had raised it. Drills
    put faults there."""

    @property
    def feeds(self) -> tuple[OperatorId, ...]:
        """The operators that its inputs come from, in their order."""
        return tuple(route.edge.source for route in self.inputs)


@dataclass(frozen=True, slots=True, eq=False)
class SourceProgram:
    """What ingesting a source takes."""

    id: OperatorId
    parallelism: int
    schema: pa.Schema
    keys: tuple[str, ...]
    event_time: str | None
    lateness: float
    reader: Files | KafkaTopic | None = None
    """The files, or the topic, that its partitions read themselves; None: its rows are ingested."""


class Program:
    """A whole application, ready to run."""

    def __init__(self, app: Application) -> None:
        self.name = app.name
        self.topology: Topology = app.topology()
        self.operators: Mapping[OperatorId, OperatorProgram] = _operators(app, self.topology)
        self.sources: Mapping[OperatorId, SourceProgram] = {
            name: _source(app, name, step) for name, step in app.steps.items() if isinstance(step, steps.Source)
        }
        self.sinks: Mapping[OperatorId, object] = dict(app.sinks)
        self.tentative: frozenset[OperatorId] = frozenset(app.tentative)
        """Outputs that may be tentative."""
        self.output_names: Mapping[OperatorId, str] = app.output_names()
        """The name that users know each output operator by."""
        order = self.topology.operator_order
        self.order: tuple[OperatorId, ...] = tuple(self.topology.operators[number].id for number in order)
        """The operators, inputs before consumers."""

    def output_operator(self, name: str) -> OperatorId:
        """Return the operator that is published under a name."""
        for operator, its in self.output_names.items():
            if its == name:
                return operator
        raise BadInput(
            f"{name!r} is not an output",
            where=f"application {self.name}",
            field="sinks",
            remedy=f"there are {', '.join(self.output_names.values())}",
        )

    def sinks_by_operator(self, sinks: Mapping[str, object]) -> dict[str, object]:
        """Return sinks that are given by the names of outputs, by their operators."""
        return {self.output_operator(name): sink for name, sink in sinks.items()}

    @cached_property
    def partitions(self) -> tuple[PartitionId, ...]:
        """All partitions, inputs before consumers: the order in which a host works."""
        return tuple(PartitionId(name, i) for name in self.order for i in range(self.operators[name].parallelism))

    @cached_property
    def outputs(self) -> tuple[PartitionId, ...]:
        """The output partitions."""
        return tuple(self.topology.partition(index) for index in self.topology.outputs)

    @cached_property
    def graph(self) -> PartitionGraph:
        """Who sends to whom, as recovery needs it."""
        return PartitionGraph(
            self.topology,
            {name: one.deterministic for name, one in self.operators.items()},
            {name: one.deterministic_alone for name, one in self.operators.items()},
        )

    def streams(self, partition: PartitionId) -> tuple[tuple[Edge, PartitionId], ...]:
        """Return a partition's input streams in the fixed order in which their rows are processed."""
        return self._streams[partition]

    def consumers(self, partition: PartitionId) -> tuple[PartitionId, ...]:
        """Return who takes what a partition sends: other partitions, a sink, and who takes its late rows."""
        return self._consumers[partition]

    @cached_property
    def senders(self) -> Mapping[PartitionId, tuple[PartitionId, ...]]:
        """The partitions that every partition reads from, sources of their log."""
        return {p: tuple(dict.fromkeys(sender for _, sender in self._streams[p])) for p in self.partitions}

    @cached_property
    def edges(self) -> Mapping[tuple[PartitionId, PartitionId], Edge]:
        """The edge between each partition and each of its consumers."""
        return {
            (partition, PartitionId(route.edge.target, target)): route.edge
            for partition in self.partitions
            for route in self.operators[partition.operator].outputs
            for target in route.targets(partition.index)
        }

    @cached_property
    def _streams(self) -> Mapping[PartitionId, tuple[tuple[Edge, PartitionId], ...]]:
        return {p: self._streams_of(p) for p in self.partitions}

    @cached_property
    def _consumers(self) -> Mapping[PartitionId, tuple[PartitionId, ...]]:
        return {p: self._consumers_of(p) for p in self.partitions}

    def _streams_of(self, partition: PartitionId) -> tuple[tuple[Edge, PartitionId], ...]:
        operator = self.operators[partition.operator]
        found: list[tuple[Edge, PartitionId]] = []
        for route in operator.inputs:
            found += [
                (route.edge, PartitionId(route.edge.source, sender))
                for sender in range(route.senders)
                if partition.index in route.targets(sender)
            ]
        return tuple(found)

    def _consumers_of(self, partition: PartitionId) -> tuple[PartitionId, ...]:
        operator = self.operators[partition.operator]
        found = [PartitionId(r.edge.target, index) for r in operator.outputs for index in r.targets(partition.index)]
        return (*found, *([PartitionId(LATE, partition.index)] if operator.sets_aside else []))


def _operators(app: Application, topology: Topology) -> dict[OperatorId, OperatorProgram]:
    routes_in: dict[OperatorId, list[Route]] = {name: [] for name in app.steps}
    routes_out: dict[OperatorId, list[Route]] = {name: [] for name in app.steps}
    outputs = {topology.partition(index).operator for index in topology.outputs}
    for operator in topology.operators:
        name = operator.id
        for number, feed in enumerate(operator.inputs):
            senders = topology.operator(feed.source).parallelism
            keys = app.keys[name][number]
            route = Route(Edge(feed.source, name), feed.partitioning, senders, operator.parallelism, keys)
            routes_in[name].append(route)
            routes_out[feed.source].append(route)
        if operator.is_source:
            many = operator.parallelism
            routes_in[name].append(Route(Edge(OUTSIDE, name), Partitioning.ONE_TO_ONE, many, many, ()))
    found: dict[OperatorId, OperatorProgram] = {}
    for number in topology.operator_order:
        operator = topology.operators[number]
        name, many = operator.id, operator.parallelism
        if name in outputs:
            routes_out[name].append(Route(Edge(name, SINK), Partitioning.ONE_TO_ONE, many, many, ()))
        step, kernel = app.steps[name], _kernel(app, name)
        alone = not isinstance(step, steps.Custom) or step.deterministic
        sure = alone and all(found[feed.source].deterministic for feed in operator.inputs)
        found[name] = OperatorProgram(
            name,
            many,
            kernel,
            tuple(routes_in[name]),
            tuple(routes_out[name]),
            arrow_schema(app.columns[name]),
            sure,
            alone,
            # Any of them may have rows to leave out: a decision holds after `on_error` has changed.
            not operator.is_source or app.reads_in_place(name),
            # Positions name the same rows in every replay only where all before it is deterministic.
            sure and app.on_error_of(name) is OnError.QUARANTINE,
            app.before_steps.get(name),
        )
    return found


def _source(app: Application, name: OperatorId, step: steps.Source) -> SourceProgram:
    schema = arrow_schema(app.columns[name])
    if schema is None:
        raise BadInput(
            "the columns of this source are not known yet",
            where=f"application {app.name}",
            field=f"{name}.schema",
            remedy='declare them: schema="ts timestamp, page string"; hf.start takes them from the DataFrame',
        )
    reader = step.reader if isinstance(step.reader, Files | KafkaTopic) and app.reads_in_place(name) else None
    return SourceProgram(
        name, app.operator(name).parallelism, schema, app.keys[name][0], step.event_time, step.lateness, reader
    )


def _kernel(app: Application, name: OperatorId) -> Kernel:
    step = app.steps[name]
    feeds = [feed.source for feed in app.operator(name).inputs]
    if isinstance(step, steps.Source | steps.Spread):
        return PassOn("source" if isinstance(step, steps.Source) else "by-key")
    if isinstance(step, steps.Map | steps.FlatMap):
        return TableFunctionOnRows(step.function, one_for_one=isinstance(step, steps.Map))
    if isinstance(step, steps.Filter):
        return Condition(step.condition)
    if isinstance(step, steps.Custom):
        return CustomOperator(step, [arrow_schema(app.columns[feed]) for feed in feeds])
    summary, keys = _summary(step, app.keys[name][0])
    if isinstance(step.window, Rows):
        return CountWindows(step.window, keys, summary)
    return _over_time(step.window, summary, keys, [_event_time(app, name, feed) for feed in feeds])


def _summary(
    step: steps.WindowAggregate | steps.TopK | steps.Distinct | steps.WindowJoin, keys: tuple[str, ...]
) -> tuple[Summary, tuple[str, ...]]:
    if isinstance(step, steps.WindowAggregate):
        return Aggregates(step.keys, step.aggregates), step.keys
    if isinstance(step, steps.TopK):
        return TopRows(step.keys, step.k, step.by, step.largest), step.keys
    if isinstance(step, steps.Distinct):
        return DistinctRows(step.columns), keys
    return Pairs(step.keys), step.keys


def _over_time(window: Window, summary: Summary, keys: tuple[str, ...], times: list[str]) -> Kernel:
    if isinstance(window, Sliding):
        return PaneWindows(window, summary, times)
    assert isinstance(window, Session)
    return SessionWindows(window, keys, summary, times)


def _event_time(app: Application, name: OperatorId, feed: OperatorId) -> str:
    column = app.event_times[feed]
    if column is None:
        raise BadInput(
            f"the rows of {feed} have no event time, and the window of {name} needs one",
            where=f"application {app.name}",
            field=f"{feed}.event_time",
            remedy='keep the column in its schema, or name another there: event_time="at"',
        )
    return column
