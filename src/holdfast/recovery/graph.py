"""Who sends to whom, partition by partition, as recovery needs it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from holdfast.ids import OperatorId, PartitionId
from holdfast.topology import Queries, Topology


class PartitionGraph:
    """The partitions of a topology, their senders and consumers, and the queries they serve."""

    def __init__(
        self,
        topology: Topology,
        deterministic: Mapping[OperatorId, bool] = MappingProxyType({}),
        alone: Mapping[OperatorId, bool] | None = None,
    ) -> None:
        """`deterministic`: of operators not named it is promised that the same inputs give the same outputs.

        `alone` says it of operators by themselves, whatever they read; not given, they are as sure as that.
        """
        self.topology = topology
        self.queries = Queries(topology)
        names = topology.partitions()
        self.order: tuple[PartitionId, ...] = tuple(
            names[number] for level in topology.partitions_by_level for number in level.tolist()
        )
        """All partitions, senders before consumers."""
        self.outputs: tuple[PartitionId, ...] = tuple(names[number] for number in topology.outputs.tolist())
        self._senders = {
            names[number]: tuple(names[one] for one in topology.upstream(number).tolist())
            for number in range(len(names))
        }
        self._consumers = {
            names[number]: tuple(names[one] for one in topology.downstream(number).tolist())
            for number in range(len(names))
        }
        self._nondeterministic = {name for name, promised in deterministic.items() if not promised}
        self._alone = {name for name, promised in (alone or deterministic).items() if not promised}
        self._queries = {
            names[number]: tuple(self.outputs[query] for query in self.queries.containing(number).tolist())
            for number in range(len(names))
        }
        self._upstream: dict[PartitionId, tuple[PartitionId, ...]] = {}
        self._members: dict[PartitionId, tuple[PartitionId, ...]] = {
            query: tuple(p for p in self.order if query in self._queries[p]) for query in self.outputs
        }

    def senders(self, partition: PartitionId) -> tuple[PartitionId, ...]:
        """Return the partitions it reads from; a source reads its log, and has none."""
        return self._senders[partition]

    def consumers(self, partition: PartitionId) -> tuple[PartitionId, ...]:
        """Return the partitions that read from it."""
        return self._consumers[partition]

    def upstream(self, partition: PartitionId) -> tuple[PartitionId, ...]:
        """Return all partitions from which rows come to it, senders before consumers; not itself."""
        found = self._upstream.get(partition)
        if found is None:
            above = {*self._senders[partition]}
            for one in reversed(self.order):
                if one in above:
                    above.update(self._senders[one])
            found = self._upstream[partition] = tuple(one for one in self.order if one in above)
        return found

    def queries_of(self, partition: PartitionId) -> tuple[PartitionId, ...]:
        """Return the queries it serves, by their output partitions."""
        return self._queries[partition]

    def members(self, query: PartitionId) -> tuple[PartitionId, ...]:
        """Return the partitions of a query, by its output partition."""
        return self._members[query]

    def deterministic(self, partition: PartitionId) -> bool:
        """Whether the same inputs give the same outputs."""
        return partition.operator not in self._nondeterministic

    def deterministic_alone(self, operator: OperatorId) -> bool:
        """Whether an operator gives the same for the same inputs, whatever becomes of these upstream."""
        return operator not in self._alone
