"""Held edges: what is not deterministic crosses the boundary of its segment once its checkpoint covers it. Pure.

A partition that is not deterministic, or that gets blocks in its own segment from one, may make other blocks again than
those that it sent after its checkpoint. Whoever has taken those in has to go back with it. Where a plan's segments
*hold*, its blocks for other segments stay in its outbox until the recovery line has come to their batch: what it makes
otherwise was never seen beyond the boundary, and the segments on both sides recover alone. After the boundary an
operator is as sure as it is by itself: what it takes in is covered.

A segment after a held edge is behind by the sender's checkpoint interval. So it must not come before the sender's
segment in any way, or that one's checkpoint would wait for itself: such an edge is not held, and both roll back
together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.ids import BatchId, OperatorId, PartitionId, SegmentId
from holdfast.recovery.graph import PartitionGraph
from holdfast.recovery.segments import Segments


@dataclass(frozen=True, slots=True)
class HeldEdges:
    """Which edges are held, and which operators may make other blocks again than their consumers have seen."""

    edges: frozenset[tuple[OperatorId, OperatorId]]
    unheld: frozenset[tuple[OperatorId, OperatorId]]
    """Edges between segments that cannot be held, or are not to be: the consumer rolls back with the sender."""
    nondeterministic: frozenset[OperatorId]
    """Operators that may make other blocks again, from what they take in that is not held."""
    consumers: frozenset[OperatorId]
    """Operators that take in over a held edge."""

    def limits(self, graph: PartitionGraph, line: Mapping[PartitionId, BatchId]) -> dict[PartitionId, BatchId]:
        """Return the last batch that partitions after held edges can complete now, with all downstream of them."""
        found: dict[PartitionId, BatchId] = {}
        if self.edges:
            for p in graph.order:
                reach = [
                    line[s] if (s.operator, p.operator) in self.edges else found[s]
                    for s in graph.senders(p)
                    if s in found or (s.operator, p.operator) in self.edges
                ]
                if reach:
                    found[p] = min(reach)
        return found


def held_edges(graph: PartitionGraph, segments: Segments) -> HeldEdges:
    """Return the held edges of a plan's segments."""
    before = _segments_before(graph, segments)
    edges: set[tuple[OperatorId, OperatorId]] = set()
    unheld: set[tuple[OperatorId, OperatorId]] = set()
    nondeterministic: set[OperatorId] = set()
    topology = graph.topology
    for number in topology.operator_order:
        operator = topology.operators[number]
        name = OperatorId(operator.id)
        sure = graph.deterministic_alone(name)
        for source in (OperatorId(feed.source) for feed in operator.inputs):
            if source not in nondeterministic:
                continue
            crosses = segments.many and segments.operators[source] != segments.operators[name]
            if crosses and segments.holds and segments.operators[name] not in before[segments.operators[source]]:
                edges.add((source, name))
                continue
            sure = False
            if crosses:
                unheld.add((source, name))
        if not sure:
            nondeterministic.add(name)
    return HeldEdges(frozenset(edges), frozenset(unheld), frozenset(nondeterministic), frozenset(to for _, to in edges))


def _segments_before(graph: PartitionGraph, segments: Segments) -> dict[SegmentId, set[SegmentId]]:
    """Return, for every segment, those from which blocks come to it, over any number of others."""
    found: dict[SegmentId, set[SegmentId]] = {name: set() for name in segments.names}
    if not segments.many:
        return found
    for operator in graph.topology.operators:
        mine = segments.operators[OperatorId(operator.id)]
        found[mine] |= {segments.operators[OperatorId(feed.source)] for feed in operator.inputs} - {mine}
    grew = True
    while grew:
        grew = False
        for above in found.values():
            more = {further for one in above for further in found[one]} - above
            above.update(more)
            grew = grew or bool(more)
    return found
