"""Segments: operators that checkpoint together at their own interval, and what is stored between them. Pure.

The plan with one segment is the global checkpoint. With several, each moves its part of the recovery line at marks of
its own, and segments restart at different batches. What makes that consistent is the rule of `recovery_line`, with two
policies on edges:

- an edge *into an anchor* is kept on the sender's disk back to the anchor's checkpoint, as a backup keeps it: what is
  lost inside a segment takes nobody upstream of it back;
- an edge *between two segments* is stored: snapshots of its sender hold the sent blocks back to the consumer's
  checkpoint. So a sender's checkpoint may be ahead of the consumer's, whatever is lost.

What a sender sent after its last checkpoint is the *unstored tail*: if the sender is lost as well, it makes these
blocks again. A durable mark is one batch for all segments: the durable line stays one batch.

Within a segment operators may save more often than its checkpoint moves, by whole multiples (`intermediate`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from holdfast.errors import BadInput
from holdfast.ids import BatchId, OperatorId, PartitionId, SegmentId
from holdfast.recovery.graph import PartitionGraph
from holdfast.topology import Topology

ALL_PARTITIONS = SegmentId("*")
"""The segment that holds every partition of a run; no operator has this name."""

MarkedSegments: TypeAlias = Collection[SegmentId] | None
"""The segments that take a snapshot at a mark; None: all of them."""


@dataclass(frozen=True, slots=True)
class Segments:
    """Which operator is in which segment, and which operators are anchors."""

    operators: Mapping[OperatorId, SegmentId] = field(default_factory=dict)
    """The segment of every operator; none: one segment has them all."""
    anchors: frozenset[OperatorId] = frozenset()
    """Operators whose inputs are kept back to their checkpoints; sources read the log, and need not be named."""
    multiples: Mapping[OperatorId, int] = field(default_factory=dict)
    """How many times as often as their segment's checkpoint moves operators save; those not named: once."""
    holds: bool = False
    """Whether what is not deterministic crosses to another segment only once a checkpoint covers it (`held_edges`)."""

    many: bool = field(init=False, compare=False)
    """Whether there are several."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "many", len(set(self.operators.values())) > 1)

    @property
    def names(self) -> tuple[SegmentId, ...]:
        """All segments."""
        return tuple(sorted(set(self.operators.values()))) if self.many else (ALL_PARTITIONS,)

    def steps(self, segment: SegmentId) -> int:
        """Return into how many steps the interval of a segment is cut, so that every operator saves at some of them."""
        mine = (m for one, m in self.multiples.items() if not self.many or self.operators[one] == segment)
        return math.lcm(*mine)

    def saving_at(self, segment: SegmentId, step: int) -> frozenset[OperatorId]:
        """Return the operators of a segment that save at a step between two of its checkpoints."""
        steps = self.steps(segment)
        return frozenset(
            one
            for one, multiple in self.multiples.items()
            if (not self.many or self.operators[one] == segment) and step * multiple % steps == 0
        )

    def of(self, partition: PartitionId) -> SegmentId:
        """Return the segment of a partition."""
        return self.operators[partition.operator] if self.many else ALL_PARTITIONS

    def crosses(self, sender: PartitionId, consumer: PartitionId) -> bool:
        """Whether an edge leads from one segment to another: its blocks are stored."""
        return self.of(sender) != self.of(consumer)

    def keeps(self, sender: PartitionId, consumer: PartitionId) -> bool:
        """Whether a sender keeps the blocks of an edge back to the consumer's checkpoint."""
        return consumer.operator in self.anchors or self.crosses(sender, consumer)

    def by_name(self, partitions: Iterable[PartitionId]) -> dict[SegmentId, set[PartitionId]]:
        """Return partitions by their segments."""
        found: dict[SegmentId, set[PartitionId]] = {}
        for p in partitions:
            found.setdefault(self.of(p), set()).add(p)
        return found

    def are_level(self, line: Mapping[PartitionId, BatchId]) -> bool:
        """Whether within every segment all partitions have their checkpoint at one batch."""
        return all(len({line[p] for p in members}) == 1 for members in self.by_name(line).values())


ONE_SEGMENT = Segments()


def segments_of(topology: Topology, anchors: Iterable[str]) -> Segments:
    """Return the segments that anchors make: an operator that is none is in the segment of all its inputs.

    A segment is named after its first operator in topological order.
    """
    names = [OperatorId(operator.id) for operator in topology.operators]
    named = frozenset(OperatorId(one) for one in anchors)
    if strange := sorted(named - set(names)):
        raise BadInput(
            f"{strange[0]!r} is an anchor and no operator of {topology.name}",
            field="anchors",
            remedy="plan segments for this topology",
        )
    segment = {name: name for name in names}

    def first(name: OperatorId) -> OperatorId:
        while segment[name] != name:
            name = segment[name]
        return name

    place = {names[number]: at for at, number in enumerate(topology.operator_order)}
    for number in topology.operator_order:
        operator = topology.operators[number]
        if operator.id in named:
            continue
        for one in operator.inputs:
            ends = sorted((first(OperatorId(operator.id)), first(OperatorId(one.source))), key=place.__getitem__)
            segment[ends[1]] = ends[0]
    sources = {OperatorId(operator.id) for operator in topology.operators if not operator.inputs}
    return Segments({name: SegmentId(first(name)) for name in names}, named - sources)


def unstored_tail(
    graph: PartitionGraph,
    segments: Segments,
    line: Mapping[PartitionId, BatchId],
    frontiers: Mapping[PartitionId, BatchId],
) -> dict[SegmentId, int]:
    """Return how many batches of blocks each segment has sent to others since its checkpoint, at most."""
    found: dict[SegmentId, int] = {}
    for p in graph.order:
        if any(segments.crosses(p, c) for c in graph.consumers(p)):
            tail = max(0, frontiers[p] - line[p])
            found[segments.of(p)] = max(found.get(segments.of(p), 0), tail)
    return found
