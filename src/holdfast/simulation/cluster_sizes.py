"""Clusters to simulate times on: a topology on any number of nodes, some of which fail. Pure.

The topology is one that is given, or copies of the hashtags example: ten nodes with fifteen queries are incremental
recovery's own cluster (Fig. 9), larger ones have more copies of it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from holdfast.examples import hashtags
from holdfast.ids import NodeId, OperatorId, PartitionId
from holdfast.recovery.assignment import spread_evenly
from holdfast.recovery.strategy import RecoverySettings
from holdfast.simulation.times import STRATEGY_OF, RecoveryTimes, TimeConstants, best_case, simulate_times
from holdfast.topology import Topology

NODES_PER_COPY = 10
SPARE = 1.15
"""What nodes have beyond what everything needs at the bound."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster before and after a failure."""

    topology: Topology
    placement: dict[PartitionId, NodeId]
    capacity: dict[NodeId, float]
    failed: tuple[NodeId, ...]
    arrivals: tuple[tuple[float, NodeId, float], ...]


def copies_of(topology: Topology, copies: int, seed: int) -> Topology:
    """Return so many copies of a topology side by side, outputs with priorities of 1 to 10."""
    draw = random.Random(seed)
    operators = []
    for number in range(copies):
        for operator in topology.operators:
            inputs = tuple(replace(one, source=OperatorId(f"c{number}-{one.source}")) for one in operator.inputs)
            priority = (
                tuple(draw.randint(1, 10) for _ in range(operator.parallelism))
                if operator.output
                else operator.priority
            )
            name = OperatorId(f"c{number}-{operator.id}")
            operators.append(replace(operator, id=name, inputs=inputs, priority=priority))
    return Topology(f"{topology.name}-{copies}", operators)


def draw_cluster(nodes: int, failed_share: float, seed: int, topology: Topology | None = None) -> Cluster:
    """Draw a cluster: a group of nodes fails at once, as many others come after two to six minutes, one by one.

    A topology that is given runs once, with its own priorities; without one, there is a copy of the hashtags example
    for every ten nodes, with priorities drawn from the seed.
    """
    draw = random.Random(seed)
    if topology is None:
        topology = copies_of(hashtags.application().topology(), max(1, round(nodes / NODES_PER_COPY)), seed)
    names = [NodeId(f"n{number}") for number in range(nodes)]
    spread = spread_evenly(topology, nodes)
    load_of = [0.0] * nodes
    for partition, slot in spread.items():
        load_of[slot] += float(topology.cost[topology.index(partition)])
    # The same for all, as little as the fullest needs, and a little to spare over the mean.
    size = max(*load_of, SPARE * sum(load_of) / nodes) / 0.8
    failed = tuple(sorted(draw.sample(names, max(1, round(failed_share * nodes)))))
    arrivals = tuple((draw.uniform(120, 360), NodeId(f"a{number}"), size) for number in range(len(failed)))
    placement = {partition: names[slot] for partition, slot in spread.items()}
    return Cluster(topology, placement, dict.fromkeys(names, size), failed, arrivals)


def compare_strategies(
    cluster: Cluster, strategies: Sequence[str], constants: TimeConstants
) -> dict[str, RecoveryTimes]:
    """Simulate the same failure with each strategy."""
    found = {}
    for name in strategies:
        arrivals = best_case(cluster.arrivals) if name == "best-case" else cluster.arrivals
        settings = RecoverySettings(strategy=STRATEGY_OF[name])
        found[name] = replace(
            simulate_times(
                cluster.topology,
                cluster.placement,
                cluster.capacity,
                cluster.failed,
                arrivals,
                settings,
                constants,
            ),
            strategy=name,
        )
    return found
