"""The topology: one model that every planner, the runtime and the simulator share.

Runs anywhere. Operators come in as users wrote them; inside there are arrays over partitions, input streams and task
edges, so that ten thousand partitions and a million task edges are answered in seconds:

- a **partition** p belongs to `operator_of[p]`; partitions are numbered operator by operator, in file order;
- an **input stream** of a partition is what it receives from one upstream operator (PPA, sec. II-A); the streams
  of p are `stream_start[p] : stream_start[p + 1]`, in the order of the operator's inputs;
- a **task edge** joins two partitions; the edges of stream s are `edge_start[s] : edge_start[s + 1]`, ordered by the
  upstream partition `edge_from`. So edges are sorted by downstream partition, then input, then upstream partition.

Everything is read-only once built. Derived answers (rates, queries, shapes, MC-trees) live in modules of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import BadInput
from holdfast.ids import OperatorId, PartitionId
from holdfast.topology import checks
from holdfast.topology.operators import DEFAULT_RATE, DEFAULT_REPROCESS_SECONDS, Operator, Partitioning

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_KINDS = {kind: number for number, kind in enumerate(Partitioning)}


class Topology:
    """Operators joined by edges, a DAG. Build it with operators, the builder, or a file; it checks itself."""

    def __init__(self, name: str, operators: Iterable[Operator]) -> None:
        self.name = name
        self.operators = tuple(operators)
        checks.check_name(name)
        if not self.operators:
            raise BadInput("has no operators", field="operators", remedy="give at least one source")
        if len(self.operators) > checks.MOST_OPERATORS:
            raise BadInput("has too many operators", field="operators", remedy=f"use at most {checks.MOST_OPERATORS:,}")
        self._position: dict[str, int] = {}
        for number, operator in enumerate(self.operators):
            checks.check_values(operator, f"operators[{number}]")
            if operator.id in self._position:
                raise BadInput(
                    f"{operator.id!r} is the id of operators[{self._position[operator.id]}] already",
                    field=f"operators[{number}].id",
                    remedy="give every operator an id of its own",
                )
            self._position[operator.id] = number
        if sum(operator.parallelism for operator in self.operators) > checks.MOST_PARTITIONS:
            raise BadInput(
                "has too many partitions", field="operators", remedy=f"use at most {checks.MOST_PARTITIONS:,} in all"
            )
        checks.check_edges(self.operators, self._position)
        checks.check_acyclic(self.operators, self._position)
        self._build()
        if not len(self.outputs):
            raise BadInput(
                "no operator is an output, so there is no query",
                field="operators",
                remedy='remove "output": false from an operator that nothing consumes',
            )
        checks.check_priorities(self.operators, self.operator_outputs.tolist())

    # -- arrays ---------------------------------------------------------------------------------------------------

    def _build(self) -> None:
        operators = self.operators
        self.parallelism: Ints = _frozen(np.array([operator.parallelism for operator in operators], np.int64))
        self.first: Ints = _frozen(np.concatenate([[0], np.cumsum(self.parallelism)]).astype(np.int64))
        self.operator_of: Ints = _frozen(np.repeat(np.arange(len(operators)), self.parallelism))

        fan_in = np.array([len(operator.inputs) for operator in operators], np.int64)
        total = int(fan_in.sum())
        position = self._position
        self.link_from: Ints = _frozen(
            np.fromiter((position[i.source] for operator in operators for i in operator.inputs), np.int64, total)
        )
        """Upstream operator of each link; a link joins two operators, in the order of the operators' inputs."""
        self.link_to: Ints = _frozen(np.repeat(np.arange(len(operators)), fan_in))
        self.link_kind: Ints = _frozen(
            np.fromiter((_KINDS[i.partitioning] for operator in operators for i in operator.inputs), np.int64, total)
        )
        self.link_start: Ints = _frozen(np.concatenate([[0], np.cumsum(fan_in)]).astype(np.int64))
        self._expand()

        consumed = np.zeros(len(operators), bool)
        consumed[self.link_from] = True
        self.operator_outputs: NDArray[np.bool_] = _frozen(
            np.array(
                [(not c) if o.output is None else o.output for o, c in zip(operators, consumed, strict=True)], bool
            )
        )
        self.outputs: Ints = _frozen(np.flatnonzero(self.operator_outputs[self.operator_of]))
        """The output partitions, in order: the head of each query."""

    def _expand(self) -> None:
        """Turn links into input streams and task edges."""
        sizes = self.parallelism
        link = np.repeat(np.arange(len(self.link_to)), sizes[self.link_to])
        starts = np.concatenate([[0], np.cumsum(sizes[self.link_to])])[:-1]
        j = np.arange(len(link)) - np.repeat(starts, sizes[self.link_to])
        n1, n2 = sizes[self.link_from[link]], sizes[self.link_to[link]]
        kind = self.link_kind[link]
        split, merge, full = (kind == _KINDS[k] for k in (Partitioning.SPLIT, Partitioning.MERGE, Partitioning.FULL))
        # Upstream partitions of downstream j are one range: floor(j N1 / N2) for a split, those whose
        # floor(i N2 / N1) is j for a merge, all for full, j itself for one-to-one.
        low = np.where(split, j * n1 // n2, np.where(merge, -(-j * n1 // n2), np.where(full, 0, j)))
        high = np.where(merge, -(-(j + 1) * n1 // n2), np.where(full, n1, low + 1))

        downstream = self.first[self.link_to[link]] + j
        order = np.lexsort((link, downstream))
        self.stream_link: Ints = _frozen(link[order])
        """The link each input stream belongs to."""
        self.stream_to: Ints = _frozen(downstream[order])
        count = np.bincount(self.stream_to, minlength=len(self)).astype(np.int64)
        self.stream_start: Ints = _frozen(np.concatenate([[0], np.cumsum(count)]).astype(np.int64))
        self.stream_share: Floats = _frozen(self._shares(link, j, low)[order])
        """Which part of each upstream partition's output to this operator goes into this input stream."""
        width = (high - low)[order]
        self.edge_start: Ints = _frozen(np.concatenate([[0], np.cumsum(width)]).astype(np.int64))
        base = (self.first[self.link_from[link]] + low)[order]
        edges = int(self.edge_start[-1])
        self.edge_from: Ints = _frozen(np.arange(edges) + np.repeat(base - self.edge_start[:-1], width))
        """Upstream partition of each task edge."""

    def _shares(self, link: Ints, j: Ints, low: Ints) -> Floats:
        """What one upstream partition sends to one operator divides over its targets by their weights."""
        weight = self.weights[self.first[self.link_to[link]] + j]
        kind = self.link_kind[link]
        share = np.ones(len(link))
        full = kind == _KINDS[Partitioning.FULL]
        totals = np.bincount(self.operator_of, self.weights, minlength=len(self.operators))
        share[full] = weight[full] / totals[self.link_to[link[full]]]
        split = np.flatnonzero(kind == _KINDS[Partitioning.SPLIT])
        if len(split):
            # Targets of one upstream partition over one split link are a group of neighbours.
            offsets = np.concatenate([[0], np.cumsum(self.parallelism[self.link_from])])[:-1]
            group = offsets[link[split]] + low[split]
            sums = np.bincount(group, weight[split])
            if (sums[group] <= 0).any():
                bad = split[np.flatnonzero(sums[group] <= 0)[0]]
                number = int(self.link_to[link[bad]])
                raise BadInput(
                    f"leave {self.operators[self.link_from[link[bad]]].id}[{int(low[bad])}] without a target: "
                    "all partitions it splits to have weight zero",
                    field=f"operators[{number}].weights",
                    remedy="give one of them a share above zero",
                )
            share[split] = weight[split] / sums[group]
        return share

    @cached_property
    def weights(self) -> Floats:
        """Relative share of its operator's input per partition, as given (equal: 1)."""
        return _frozen(
            np.concatenate(
                [np.ones(o.parallelism) if o.weights is None else np.array(o.weights, float) for o in self.operators]
            )
        )

    @cached_property
    def edge_to(self) -> Ints:
        """Downstream partition of each task edge."""
        return _frozen(self.stream_to[self.edge_stream])

    @cached_property
    def edge_stream(self) -> Ints:
        """Input stream each task edge belongs to."""
        return _frozen(np.repeat(np.arange(len(self.stream_to)), np.diff(self.edge_start)))

    @cached_property
    def up_start(self) -> Ints:
        """Task edges into partition p are `up_start[p] : up_start[p + 1]`."""
        return _frozen(self.edge_start[self.stream_start])

    @cached_property
    def down_edges(self) -> Ints:
        """All task edges, sorted by upstream partition; those out of p begin at `down_start[p]`."""
        return _frozen(np.argsort(self.edge_from, kind="stable"))

    @cached_property
    def down_start(self) -> Ints:
        """Where each partition's outgoing task edges begin in `down_edges`."""
        count = np.bincount(self.edge_from, minlength=len(self))
        return _frozen(np.concatenate([[0], np.cumsum(count)]).astype(np.int64))

    @cached_property
    def operator_level(self) -> Ints:
        """Longest distance from a source, per operator; sources have level 0."""
        level = np.zeros(len(self.operators), np.int64)
        for number in self.operator_order:
            feeds = self.link_from[self.link_start[number] : self.link_start[number + 1]]
            if len(feeds):
                level[number] = level[feeds].max() + 1
        return _frozen(level)

    @cached_property
    def operator_order(self) -> tuple[int, ...]:
        """The operators in a topological order, sources first; file order where it does not matter."""
        waiting = np.diff(self.link_start).tolist()
        order = np.argsort(self.link_from, kind="stable")
        start = np.concatenate([[0], np.cumsum(np.bincount(self.link_from, minlength=len(self.operators)))])
        targets = self.link_to[order].tolist()
        begin = start.tolist()
        ready = [number for number, left in enumerate(waiting) if left == 0]
        for number in ready:
            for consumer in targets[begin[number] : begin[number + 1]]:
                waiting[consumer] -= 1
                if waiting[consumer] == 0:
                    ready.append(consumer)
        return tuple(ready)

    @cached_property
    def level(self) -> Ints:
        """Topological level of each partition."""
        return _frozen(self.operator_level[self.operator_of])

    @cached_property
    def partitions_by_level(self) -> tuple[Ints, ...]:
        """The partitions of each level, lowest first: a sweep over them meets inputs before consumers."""
        order = np.argsort(self.level, kind="stable")
        ends = np.cumsum(np.bincount(self.level))[:-1]
        return tuple(_frozen(part) for part in np.split(order, ends))

    @cached_property
    def edges_by_level(self) -> tuple[Ints, ...]:
        """The task edges into each level's partitions, in the order of `partitions_by_level`."""
        level = self.level[self.edge_to]
        order = np.argsort(level, kind="stable")
        ends = np.cumsum(np.bincount(level, minlength=len(self.partitions_by_level)))[:-1]
        return tuple(_frozen(part) for part in np.split(order, ends))

    # -- values per partition and per operator --------------------------------------------------------------------

    @cached_property
    def source_rate(self) -> Floats:
        """Tuples per second that enter each partition from outside: a source's share of its rate, else 0."""
        rate = np.array([(DEFAULT_RATE if o.rate is None else o.rate) if o.is_source else 0.0 for o in self.operators])
        totals = np.bincount(self.operator_of, self.weights, minlength=len(self.operators))
        return _frozen(rate[self.operator_of] * self.weights / totals[self.operator_of])

    @cached_property
    def is_source(self) -> NDArray[np.bool_]:
        """Whether each partition belongs to a source."""
        return _frozen(np.array([o.is_source for o in self.operators], bool)[self.operator_of])

    @cached_property
    def joins(self) -> NDArray[np.bool_]:
        """Whether each partition belongs to a correlated-input operator."""
        return _frozen(np.array([o.joins for o in self.operators], bool)[self.operator_of])

    @cached_property
    def selectivity(self) -> Floats:
        """Output tuples per input tuple of each partition."""
        return _frozen(np.array([o.selectivity for o in self.operators], float)[self.operator_of])

    @cached_property
    def priority(self) -> Ints:
        """Priority of each partition's query; it means something at output partitions."""
        return _frozen(self._per_partition("priority").astype(np.int64))

    @cached_property
    def cost(self) -> Floats:
        """Resources each partition needs, in the unit of the capacity."""
        return _frozen(self._per_partition("cost").astype(float))

    @cached_property
    def reprocess_seconds(self) -> Floats:
        """T(v) of each partition."""
        return _frozen(self._per_partition("reprocess_seconds", DEFAULT_REPROCESS_SECONDS).astype(float))

    @cached_property
    def domain_of(self) -> Ints:
        """Failure domain of each partition as a number into `domains`; -1 where none is named."""
        codes: dict[str | None, int] = {None: -1}
        codes.update({name: code for code, name in enumerate(self.domains)})
        return _frozen(np.array([codes[name] for name in self._domain_names()], np.int64))

    @cached_property
    def domains(self) -> tuple[str, ...]:
        """The named failure domains, sorted."""
        return tuple(sorted({name for name in self._domain_names() if name is not None}))

    def _domain_names(self) -> list[str | None]:
        names: list[str | None] = []
        for o in self.operators:
            names += o.domain if isinstance(o.domain, tuple) else [o.domain] * o.parallelism
        return names

    def _per_partition(self, field: str, absent: float | None = None) -> NDArray[Any]:
        pieces = []
        for o in self.operators:
            value = getattr(o, field)
            value = absent if value is None else value
            pieces.append(np.array(value) if isinstance(value, tuple) else np.full(o.parallelism, value))
        return np.concatenate(pieces)

    # -- names and neighbours -------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """How many partitions there are."""
        return int(self.first[-1])

    @property
    def task_edges(self) -> int:
        """How many edges between partitions there are."""
        return len(self.edge_from)

    def position(self, operator: str) -> int:
        """Return an operator's place in `operators`."""
        if operator not in self._position:
            raise BadInput(f"there is no operator {operator!r} in {self.name}", remedy=self._suggest(operator))
        return self._position[operator]

    def operator(self, operator: str) -> Operator:
        """Return the operator with this id."""
        return self.operators[self.position(operator)]

    def partition(self, index: int) -> PartitionId:
        """Name the partition with this number."""
        number = int(self.operator_of[index])
        return PartitionId(OperatorId(self.operators[number].id), int(index - self.first[number]))

    def partitions(self, indices: Iterable[int] | None = None) -> list[PartitionId]:
        """Name partitions, all of them by default."""
        return [self.partition(index) for index in (range(len(self)) if indices is None else indices)]

    def index(self, partition: PartitionId | str) -> int:
        """Return the number of a partition; refuse one that is not there, saying what is."""
        named = PartitionId.parse(partition) if isinstance(partition, str) else partition
        number = self.position(named.operator)
        if not 0 <= named.index < self.operators[number].parallelism:
            raise BadInput(
                f"there is no partition {named} in {self.name}",
                remedy=f"{named.operator} has {named.operator}[0] to "
                f"{named.operator}[{self.operators[number].parallelism - 1}]",
            )
        return int(self.first[number]) + named.index

    def indices(self, partitions: Iterable[PartitionId | str]) -> Ints:
        """Return the numbers of partitions, in the order given."""
        return np.array([self.index(partition) for partition in partitions], np.int64)

    def partitions_of(self, operator: str) -> range:
        """Return the numbers of an operator's partitions."""
        number = self.position(operator)
        return range(int(self.first[number]), int(self.first[number + 1]))

    def upstream(self, index: int) -> Ints:
        """Return the partitions that send to this one."""
        return np.unique(self.edge_from[self.up_start[index] : self.up_start[index + 1]])

    def downstream(self, index: int) -> Ints:
        """Return the partitions that this one sends to."""
        return np.unique(self.edge_to[self.down_edges[self.down_start[index] : self.down_start[index + 1]]])

    def _suggest(self, word: str) -> str:
        return checks.suggestion(word, [operator.id for operator in self.operators])

    def __eq__(self, other: object) -> bool:
        """Topologies are equal when their names and operators are."""
        return isinstance(other, Topology) and self.name == other.name and self.operators == other.operators

    def __hash__(self) -> int:
        return hash((self.name, self.operators))

    def __repr__(self) -> str:
        return f"Topology({self.name!r}, {len(self.operators)} operators, {len(self)} partitions)"


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    array.setflags(write=False)
    return array


def as_mask(topology: Topology, partitions: Sequence[int] | Ints) -> NDArray[np.bool_]:
    """Return a truth value per partition: whether it is among these."""
    mask = np.zeros(len(topology), bool)
    mask[np.asarray(partitions, np.int64)] = True
    return mask
