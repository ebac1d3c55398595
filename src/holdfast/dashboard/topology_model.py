"""What the page needs of a topology: operators by level, who needs whom, fidelity, density. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from holdfast.planning.replicas.fidelity import LossModel, working
from holdfast.topology import Queries, Topology, from_document

_FIDELITIES_KEPT = 256


class TopologyModel:
    """A topology, by the names that events have."""

    def __init__(self, topology: Topology, outputs: Mapping[str, str]) -> None:
        """`outputs` are the names of outputs, by operator."""
        self.topology = topology
        self.names = [str(p) for p in topology.partitions()]
        self.operators = [_operator(topology, number, outputs) for number in topology.operator_order]
        queries = Queries(topology)
        self.queries = {self.names[int(head)]: int(queries.priority[q]) for q, head in enumerate(queries.heads)}
        """Priorities of queries, by their output partitions."""
        self.output_of = {
            query: outputs.get(query.rpartition("[")[0], query.rpartition("[")[0]) for query in self.queries
        }
        self.members: dict[str, tuple[str, ...]] = {}
        self.queries_of: dict[str, tuple[str, ...]] = {}
        heads = list(self.queries)
        for number, name in enumerate(self.names):
            self.queries_of[name] = tuple(heads[q] for q in queries.containing(number).tolist())
        for q, head in enumerate(heads):
            self.members[head] = tuple(self.names[p] for p in queries.members(q).tolist())
        self.costs = {name: float(topology.cost[number]) for number, name in enumerate(self.names)}
        self._losses: LossModel | None = None
        self._fidelities: dict[frozenset[str], float] = {}

    @classmethod
    def read(cls, document: object, outputs: Mapping[str, str]) -> TopologyModel:
        """Read a topology file's document; raises BadInput where it is none."""
        return cls(from_document(document), outputs)

    def fidelity(self, lost: Set[str]) -> float:
        """Return the output fidelity while exactly these partitions are lost."""
        if not lost:
            return 1.0
        key = frozenset(lost)
        if key not in self._fidelities:
            self._losses = self._losses or LossModel(self.topology)
            if len(self._fidelities) >= _FIDELITIES_KEPT:
                self._fidelities.clear()
            self._fidelities[key] = self._losses.value(working(self.topology, self.topology.indices(sorted(key))))
        return self._fidelities[key]

    def below(self, query: str, without: Set[str]) -> frozenset[str]:
        """Return the partitions of a query that some of these feed, directly or through others."""
        index = {name: number for number, name in enumerate(self.names)}
        mine = {index[p] for p in self.members.get(query, ())}
        reached, found = [index[p] for p in without if p in index], set[int]()
        while reached:
            after = {int(one) for one in self.topology.downstream(reached.pop())} & mine - found
            found |= after
            reached += after
        return frozenset(self.names[p] for p in found) - without

    def density(self, query: str, lost: Set[str], costs: Mapping[str, float]) -> tuple[float | None, float, int]:
        """Return a query's density as the planner counts it, and the cost and number of its lost partitions.

        Density is priority over the sum of c / f of its lost partitions, f being the number of queries that are down
        and need the partition. None: nothing of it is lost, or it costs nothing.
        """
        mine = [p for p in self.members.get(query, ()) if p in lost]
        cost = sum(costs.get(p, self.costs[p]) for p in mine)
        shared = sum(costs.get(p, self.costs[p]) / max(1, len(self.queries_of[p])) for p in mine)
        return (self.queries[query] / shared if shared > 0 else None), cost, len(mine)


def _operator(topology: Topology, number: int, outputs: Mapping[str, str]) -> dict[str, Any]:
    one = topology.operators[number]
    first, last = int(topology.first[number]), int(topology.first[number + 1])
    is_output = bool({*range(first, last)} & {*topology.outputs.tolist()})
    return {
        "id": str(one.id),
        "parallelism": one.parallelism,
        "level": int(topology.operator_level[number]),
        "inputs": [{"from": str(link.source), "partitioning": str(link.partitioning)} for link in one.inputs],
        "joins": bool(one.joins),
        "output": outputs.get(str(one.id), str(one.id)) if is_output else None,
    }
