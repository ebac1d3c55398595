"""The operator processes of a node: which of its partitions each one has. Pure; runs on the driver, in the backend.

The coordinator, the recovery machine and plans know nodes; a node is what is placed on and what is lost. Where a node
has several operator processes, its backend divides a desired state among them: in assignments the node's name becomes
that of a process, so that workers, subscriptions and connections take processes as they take nodes. Reports of a
process become reports of its node.

A partition is put into the process with the least to do when it first comes to a node. The partitions of the most
valuable query get processes without others, where that leaves the processes about evenly loaded: a step that hangs, or
takes too much memory, stops all partitions of its process. A partition stays in its process for as long as the node is
held, also where it leaves and comes back: its journal is there, and no other process of the node ever has an older one.
Within an epoch that is more than thrift: two processes that make one version of a partition would make it twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from holdfast.ids import NodeId, OperatorId, PartitionId
from holdfast.recovery.graph import PartitionGraph
from holdfast.runtime.messages import DesiredState, NodeReport, PartitionAssignment
from holdfast.runtime.program import Program


def process_name(node: NodeId, index: int, count: int) -> NodeId:
    """Name a process of a node that has so many; the only one of a node has the node's name."""
    return node if count == 1 else NodeId(f"{node}#{index}")


def declared_costs(program: Program) -> dict[PartitionId, float]:
    """Return what partitions cost, as the topology says."""
    topology = program.topology
    return {topology.partition(index): float(cost) for index, cost in enumerate(topology.cost)}


def most_valuable(program: Program) -> frozenset[PartitionId]:
    """Return the partitions of the queries with the highest priority; none where all queries have it."""
    graph = PartitionGraph(program.topology)
    priority = {query: int(program.topology.priority[program.topology.index(query)]) for query in graph.outputs}
    highest = max(priority.values(), default=0)
    if all(one == highest for one in priority.values()):
        return frozenset()
    return frozenset(p for query, one in priority.items() if one == highest for p in graph.members(query))


MOST_UNEVEN = 1.25
"""A process may get so many times its even share of a node's cost for the sake of keeping partitions apart."""


class ProcessSpread:
    """Where the partitions of all nodes are, in nodes of so many processes each."""

    def __init__(
        self, count: int, costs: Mapping[PartitionId, float], apart: Collection[PartitionId] = frozenset()
    ) -> None:
        """`costs`: what partitions cost; one that is not named costs 1. `apart`: to be kept apart from the others."""
        self.count = count
        self._costs, self._apart = costs, frozenset(apart)
        self._at: dict[NodeId, dict[PartitionId, int]] = {}
        """The process of every partition that has been on a node since the node is held."""
        self._outbox_bytes: dict[NodeId, list[int]] = {}
        """What each process of a node last said that its outboxes hold."""

    def names(self, node: NodeId) -> tuple[NodeId, ...]:
        """Return the names of a node's processes."""
        return tuple(process_name(node, index, self.count) for index in range(self.count))

    def index(self, node: NodeId, partition: PartitionId) -> int | None:
        """Return the process of a node that a partition belongs to; None: it has never been there."""
        return 0 if self.count == 1 else self._at.get(node, {}).get(partition)

    def divide(self, desired: DesiredState, held: Collection[NodeId]) -> DesiredState:
        """Return the desired state of processes; of nodes that are not held (any more) nothing is remembered."""
        if self.count == 1:
            return desired
        here: dict[NodeId, list[PartitionId]] = {}
        for placed in (desired.assignments, desired.copies, desired.stand_ins):
            for partition, one in placed.items():
                here.setdefault(one.node, []).append(partition)
        at: dict[tuple[PartitionId, NodeId], NodeId] = {}
        for node, partitions in here.items():
            known = self._at.setdefault(node, {}) if node in held else {}
            self._place(known, partitions)
            names = self.names(node)
            at.update({(partition, node): names[known[partition]] for partition in partitions})

        def named(assigned: Mapping[PartitionId, PartitionAssignment]) -> dict[PartitionId, PartitionAssignment]:
            return {p: replace(one, node=at[p, one.node]) for p, one in assigned.items()}

        return replace(
            desired,
            assignments=named(desired.assignments),
            copies=named(desired.copies),
            stand_ins={p: replace(one, node=at[p, one.node]) for p, one in desired.stand_ins.items()},
        )

    def report_of(self, node: NodeId, index: int, report: NodeReport) -> NodeReport:
        """Return the report of a process as one of its node: with what is that process's to say."""
        if self.count == 1:
            return report
        sizes = self._outbox_bytes.setdefault(node, [0] * self.count)
        sizes[index] = report.outbox_bytes
        known = self._at.get(node, {})
        return replace(
            report,
            node=node,
            frontiers={p: at for p, at in report.frontiers.items() if known.get(p) == index},
            kept_from={p: at for p, at in report.kept_from.items() if known.get(p) == index},
            outbox_bytes=sum(sizes),
        )

    def lose(self, node: NodeId) -> None:
        """A node is gone, or begins anew: nothing of it is known."""
        self._at.pop(node, None)
        self._outbox_bytes.pop(node, None)

    def _place(self, known: dict[PartitionId, int], partitions: Iterable[PartitionId]) -> None:
        """Put partitions that are new to a node into its processes, the costliest first."""
        loads = [0.0] * self.count
        kinds: list[set[bool]] = [set() for _ in loads]
        alike: dict[tuple[OperatorId, int], int] = {}

        def put(partition: PartitionId, index: int) -> None:
            loads[index] += self._cost(partition)
            kinds[index].add(partition in self._apart)
            alike[partition.operator, index] = alike.get((partition.operator, index), 0) + 1

        fresh = []
        for partition in partitions:
            if (index := known.get(partition)) is None:
                fresh.append(partition)
            else:
                put(partition, index)
        share = (sum(loads) + sum(map(self._cost, fresh))) / self.count
        for partition in sorted(fresh, key=lambda p: (p not in self._apart, -self._cost(p))):
            cost, kind = self._cost(partition), partition in self._apart
            # Among its own, as long as no process gets much more to do than it would get with all mixed.
            own = [
                index
                for index in range(self.count)
                if kinds[index] <= {kind} and loads[index] + cost <= max(MOST_UNEVEN * share, cost)
            ]
            if kind:  # as few processes as do: the others need some
                own = [index for index in own if kinds[index]] or own
            least = min(
                own or range(self.count),
                key=lambda index: (loads[index], alike.get((partition.operator, index), 0), index),
            )
            known[partition] = least
            put(partition, least)

    def _cost(self, partition: PartitionId) -> float:
        return self._costs.get(partition, 1.0)
